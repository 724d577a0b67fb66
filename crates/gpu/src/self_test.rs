//! The first things that can go wrong on a device that nobody has tried: copies.

use backend::{Backend, BackendError};

use crate::executable::device_error;
use crate::params::Address;
use crate::{DriverError, GpuBackend};

/// Bytes of what is copied: less than a word, around a page, and more than fits any staging memory.
const SIZES: [usize; 5] = [1, 4095, 16 << 10, (1 << 20) + 3, 64 << 20];

impl GpuBackend {
    /// Copies bytes to the device and back, whole and in part, and compares. Returns how many bytes went there.
    pub fn check_copies(&self) -> Result<u64, BackendError> {
        let device = &self.device().name;
        let error = device_error(device.clone(), "a buffer to copy to");
        let mut driver = self.open().map_err(&error)?;
        let mut copied = 0;
        for size in SIZES {
            // No two places in sixteen have the same byte next to the same.
            let sent: Vec<u8> = (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
            let mut check = || -> Result<Option<String>, DriverError> {
                let start = driver.allocate(size as u64)?;
                driver.upload(start, &sent)?;
                let mut back = vec![0; size];
                driver.download(start, &mut back)?;
                // From its middle to its end.
                let half = size / 2;
                let mut part = vec![0; size - half];
                driver.download(Address(start.0 + half as u64), &mut part)?;
                driver.free(start);
                let differs =
                    |found: &[u8], sent: &[u8]| found.iter().zip(sent).position(|(found, sent)| found != sent);
                let at = differs(&back, &sent).or_else(|| differs(&part, &sent[half..]).map(|at| half + at));
                Ok(at.map(|at| format!("byte {at} of {size} that were copied there and back is another")))
            };
            if let Some(reason) = check().map_err(&error)? {
                return Err(BackendError::Device { device: device.clone(), reason });
            }
            copied += size as u64;
        }
        Ok(copied)
    }
}
