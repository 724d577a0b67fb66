//! Products by a vendor's library, to compare ours with. It is never needed: no op of a plan is computed by it, and it is
//! looked for only when it is asked for.

use half::{bf16, f16};

use crate::driver::DriverError;
use crate::driver::cuda::cublaslt::Library;
use crate::{GpuBackend, System};

/// What both operands and the results are in. Sums are in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// binary16.
    F16,
    /// bfloat16.
    BF16,
}

/// A product `y = x · wᵀ`: `x` (rows, in_features), `w` (out_features, in_features), all by rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// Tokens.
    pub rows: usize,
    /// Rows of the matrix.
    pub out_features: usize,
    /// Its columns.
    pub in_features: usize,
    /// What all is in.
    pub numbers: Numbers,
}

/// What the library did.
#[derive(Clone, Debug, PartialEq)]
pub struct VendorTimes {
    /// Of one product, from each replay.
    pub seconds: Vec<f64>,
    /// Matrices that were gone through before the first came again.
    pub copies: usize,
    /// The largest difference of some results from the sums in f64 by the largest magnitude of these.
    pub max_error: f64,
}

/// Why nothing can be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VendorError {
    /// No library.
    #[error(
        "cuBLASLt was not found on this machine; nothing needs it but this comparison: `pip install nvidia-cublas-cu12`, and \
         LD_LIBRARY_PATH at its nvidia/cublas/lib"
    )]
    Missing,
    /// Another kind of device.
    #[error("cuBLASLt is for NVIDIA GPUs: expected --device cuda, found `{device}`")]
    NotCuda {
        /// The device.
        device: String,
    },
    /// No memory for the operands.
    #[error("the device has no room for {bytes} bytes of operands{}", free_words(*free_bytes))]
    OutOfMemory {
        /// Those that were asked for.
        bytes: u64,
        /// What is free, where the system says it.
        free_bytes: Option<u64>,
    },
    /// The library or the driver failed.
    #[error("cuBLASLt failed: {reason}")]
    Failed {
        /// What it said.
        reason: String,
    },
}

fn free_words(free_bytes: Option<u64>) -> String {
    free_bytes.map_or(String::new(), |free| format!("; {free} bytes are free"))
}

impl From<DriverError> for VendorError {
    fn from(error: DriverError) -> Self {
        match error {
            DriverError::OutOfMemory { bytes, free_bytes } => Self::OutOfMemory { bytes, free_bytes },
            DriverError::Failed(reason) => Self::Failed { reason },
        }
    }
}

/// A vendor's library on a device.
pub struct Vendor(Library);

/// Products in one graph, so that none waits for the host.
const LAUNCHES: usize = 16;
/// Results that are compared.
const SAMPLES: usize = 256;

impl GpuBackend {
    /// The library of this device's vendor, if it is installed.
    pub fn vendor(&self) -> Result<Vendor, VendorError> {
        match &self.system {
            System::Cuda(device) => Library::open(device).map(Vendor),
            #[cfg(any(feature = "sim", target_os = "macos"))]
            _ => Err(VendorError::NotCuda { device: self.device.name.clone() }),
        }
    }
}

impl Vendor {
    /// Computes `product` of numbers from `random` bits, over at least `rotation_bytes` of matrices (or as many as a graph has
    /// products), and takes the time of `replays`.
    pub fn measure(
        &mut self,
        product: &Product,
        rotation_bytes: u64,
        replays: usize,
        random: &mut dyn FnMut() -> u64,
    ) -> Result<VendorTimes, VendorError> {
        let &Product { rows, out_features, in_features, numbers } = product;
        let mut operand =
            |len: usize| -> Vec<u16> { (0..len).map(|_| numbers.encode(signed_unit(random()))).collect() };
        let (weights, x) = (operand(out_features * in_features), operand(rows * in_features));
        let copies = rotation_bytes.div_ceil(size_of_val(&weights[..]) as u64).clamp(1, LAUNCHES as u64) as usize;
        let operands = self.0.upload(product, copies, &weights, &x)?;
        let measured = self.0.time(product, &operands, LAUNCHES, replays);
        let mut y = vec![0; rows * out_features];
        let downloaded = self.0.download(&operands, &mut y);
        self.0.free(operands);
        let seconds = measured?;
        downloaded?;
        Ok(VendorTimes { seconds, copies, max_error: max_error(product, &weights, &x, &y) })
    }
}

/// How far some of `y` are from `x · wᵀ`: places of no pattern, the last one included.
fn max_error(product: &Product, w: &[u16], x: &[u16], y: &[u16]) -> f64 {
    let &Product { rows, out_features, in_features, numbers } = product;
    let (mut error, mut largest) = (0f64, f64::MIN_POSITIVE);
    for sample in 0..SAMPLES {
        let place = rows * out_features - 1 - sample * 7919 % (rows * out_features);
        let (row, feature) = (place / out_features, place % out_features);
        let terms = x[row * in_features..][..in_features].iter().zip(&w[feature * in_features..][..in_features]);
        let sum: f64 = terms.map(|(&a, &b)| numbers.decode(a) * numbers.decode(b)).sum();
        // Not a number is as wrong as can be.
        let off = (numbers.decode(y[place]) - sum).abs();
        error = if off.is_nan() { f64::INFINITY } else { error.max(off) };
        largest = largest.max(sum.abs());
    }
    error / largest
}

impl Numbers {
    fn encode(self, value: f32) -> u16 {
        match self {
            Self::F16 => f16::from_f32(value).to_bits(),
            Self::BF16 => bf16::from_f32(value).to_bits(),
        }
    }

    fn decode(self, bits: u16) -> f64 {
        match self {
            Self::F16 => f16::from_bits(bits).to_f64(),
            Self::BF16 => bf16::from_bits(bits).to_f64(),
        }
    }
}

/// From -1 to below 1, as the upper bits say.
fn signed_unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}

#[cfg(test)]
mod tests {
    use testing::Rng;

    use super::*;
    use crate::{GpuOptions, ThreadOrder};

    /// `x · wᵀ` by rows, as the library is to leave it.
    fn computed(product: &Product, w: &[u16], x: &[u16]) -> Vec<u16> {
        let &Product { rows, out_features, in_features, numbers } = product;
        let dot = |row: usize, feature: usize| -> f64 {
            let pair = |i| numbers.decode(x[row * in_features + i]) * numbers.decode(w[feature * in_features + i]);
            (0..in_features).map(pair).sum()
        };
        let places = (0..rows).flat_map(|row| (0..out_features).map(move |feature| (row, feature)));
        places.map(|(row, feature)| numbers.encode(dot(row, feature) as f32)).collect()
    }

    #[test]
    fn results_in_another_order_or_none_are_seen() {
        for (numbers, rounding) in [(Numbers::F16, 1e-3), (Numbers::BF16, 8e-3)] {
            let product = Product { rows: 7, out_features: 40, in_features: 24, numbers };
            let mut rng = Rng::new(5);
            let mut operand =
                |len: usize| -> Vec<u16> { (0..len).map(|_| numbers.encode(signed_unit(rng.next_u64()))).collect() };
            let (w, x) = (operand(40 * 24), operand(7 * 24));
            let right = computed(&product, &w, &x);
            assert!(max_error(&product, &w, &x, &right) < rounding);
            let by_columns: Vec<_> = (0..7 * 40).map(|place| right[place % 7 * 40 + place / 7]).collect();
            assert!(max_error(&product, &w, &x, &by_columns) > 0.1);
            assert!(max_error(&product, &w, &x, &[0; 7 * 40]) > 0.1);
            let mut holed = right;
            holed[7 * 40 - 1] = numbers.encode(f32::NAN);
            assert_eq!(max_error(&product, &w, &x, &holed), f64::INFINITY);
        }
    }

    #[test]
    fn random_numbers_are_of_both_signs_and_no_larger_than_one() {
        assert_eq!([0, 1 << 63, u64::MAX].map(signed_unit), [-1.0, 0.0, 1.0 - f32::EPSILON]);
        let mut rng = Rng::new(1);
        let numbers: Vec<_> = (0..10_000).map(|_| signed_unit(rng.next_u64())).collect();
        assert!(numbers.iter().all(|number| number.abs() <= 1.0));
        assert!(numbers.iter().sum::<f32>().abs() < 300.0);
    }

    #[test]
    fn other_devices_and_machines_without_the_library_are_told_so() {
        let simulator = GpuBackend::simulator(ThreadOrder::Forward, 1 << 20, GpuOptions::default());
        let Err(error) = simulator.vendor() else { panic!("it is no NVIDIA GPU") };
        assert_eq!(error.to_string(), "cuBLASLt is for NVIDIA GPUs: expected --device cuda, found `sim`");
        assert!(VendorError::Missing.to_string().contains("pip install nvidia-cublas-cu12"));
    }
}
