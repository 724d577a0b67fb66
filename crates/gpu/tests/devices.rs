//! Asking for devices that may not be there.

use gpu::{GpuBackend, GpuError, GpuOptions};

#[test]
fn a_machine_without_a_driver_or_a_device_says_so() {
    // Nobody has this many.
    match GpuBackend::cuda(4096, GpuOptions::default()).unwrap_err() {
        GpuError::NoDevice { ordinal: 4096, found } => assert!(found < 4096),
        error @ GpuError::NoDriver => {
            assert!(error.to_string().starts_with("this machine has no NVIDIA driver"), "{error}");
        }
        // A driver without a device to drive does not even begin.
        error => assert!(error.to_string().starts_with("the NVIDIA driver failed: "), "{error}"),
    }
}
