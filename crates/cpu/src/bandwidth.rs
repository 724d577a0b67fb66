//! How fast this machine's memory can be read: the ceiling of decode, measured, never taken from a data sheet.

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use crate::pool::Team;
use crate::simd::{Kernel, LANES, Simd};
use crate::{CpuBackend, Isa};

/// Bytes read in one pass: beyond the caches of nearly all machines. Where the last level is larger (server processors
/// have up to 1 GiB, shared), the figure is what weights of this size get, which is the question anyway.
const BUFFER_BYTES: usize = 512 << 20;
/// Passes; the best one counts, since everything that disturbs a pass makes it slower.
const PASSES: usize = 4;

impl CpuBackend {
    /// Bytes per second that the backend's threads read together from a buffer of 512 MiB, in order: best of four passes
    /// after one that faults the pages in. Takes about a tenth of a second, and 512 MiB for that time.
    pub fn read_bandwidth(&self) -> f64 {
        let data = vec![1.0f32; BUFFER_BYTES / size_of::<f32>()];
        let Ok(mut team) = Team::new(self.threads, self.pin) else { return 0.0 };
        let isa = self.isa;
        let mut best = 0.0f64;
        for _ in 0..PASSES {
            let checksum = AtomicU32::new(0);
            let begun = Instant::now();
            let read = team.run(&|worker| {
                let part =
                    &data[worker.share(data.len() / LANES).start * LANES..worker.share(data.len() / LANES).end * LANES];
                // Keeps the compiler from leaving out loads whose values nobody uses.
                checksum.fetch_add(sum(isa, part).to_bits(), Ordering::Relaxed);
            });
            let elapsed = begun.elapsed().as_secs_f64();
            black_box(checksum.into_inner());
            if read.is_ok() {
                best = best.max(BUFFER_BYTES as f64 / elapsed);
            }
        }
        best
    }
}

/// The sum of `values`, with as many loads under way as the processor takes.
fn sum(isa: Isa, values: &[f32]) -> f32 {
    struct Sum<'a>(&'a [f32]);
    impl Kernel for Sum<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<S: Simd>(self, simd: S) -> f32 {
            const STREAMS: usize = 8;
            let mut sums = [simd.splat(0.0); STREAMS];
            let (vectors, _) = self.0.as_chunks::<LANES>();
            let (groups, rest) = vectors.as_chunks::<STREAMS>();
            for group in groups {
                for (sum, values) in sums.iter_mut().zip(group) {
                    *sum = simd.add(*sum, simd.load(values));
                }
            }
            for values in rest {
                sums[0] = simd.add(sums[0], simd.load(values));
            }
            let total = sums.into_iter().reduce(|a, b| simd.add(a, b)).expect("there are eight");
            simd.sum(total)
        }
    }
    isa.run(Sum(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_reads_every_value() {
        let values: Vec<f32> = (0..16 * 21).map(|i| (i % 7) as f32).collect();
        let expected: f32 = values.iter().sum();
        for isa in Isa::available() {
            assert_eq!(sum(isa, &values), expected, "{isa}");
        }
    }
}
