//! How fast this machine's memory can be read: the ceiling of decode, measured, never taken from a data sheet.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::pool::{Team, Worker};
use crate::shared::{AlignedBuffer, SharedSlice};
use crate::simd::{Kernel, LANES, Simd, Words};
use crate::{CpuBackend, Isa};

/// Bytes of the buffer that stands for weights: beyond the caches of nearly all machines. Where the last level is larger
/// (server processors have up to 1 GiB, shared), the figure is what weights of this size get, which is the question
/// anyway.
const BUFFER_BYTES: usize = 512 << 20;
/// Bytes that a pass moves at least, so that a small buffer is not gone through before the clock has ticked.
const PASS_BYTES: usize = 256 << 20;
/// Passes; the best one counts, since everything that disturbs a pass makes it slower.
const PASSES: usize = 4;

impl CpuBackend {
    /// Bytes per second that the backend's threads read together from a buffer of 512 MiB, in order: best of four passes
    /// after one that faults the pages in. Takes about a tenth of a second, and 512 MiB for that time.
    pub fn read_bandwidth(&self) -> f64 {
        self.read_bandwidth_of(BUFFER_BYTES)
    }

    /// As [`CpuBackend::read_bandwidth`], from a buffer of `buffer_bytes`, again and again where that is small: what the
    /// caches give that hold it.
    pub fn read_bandwidth_of(&self, buffer_bytes: usize) -> f64 {
        let Some(mut data) = AlignedBuffer::<f32>::zeroed(buffer_bytes / size_of::<f32>()) else { return 0.0 };
        let isa = self.isa;
        let vectors = data.len() / LANES;
        let bytes = size_of_val(&*data);
        let data = SharedSlice::new(&mut data);
        let part = |worker: &Worker<'_>| {
            let share = worker.share(vectors);
            share.start * LANES..share.end * LANES
        };
        // Pages come to be on the node of memory of the worker that reads them.
        // SAFETY: each worker has its own share.
        let touch = |worker: &Worker<'_>| unsafe { data.write(part(worker)) }.fill(1.0);
        self.best_pass(bytes, touch, |worker, repeats| {
            // SAFETY: nobody writes any more.
            let part = unsafe { data.read(part(worker)) };
            for _ in 0..repeats {
                // Keeps the compiler from leaving out loads whose values nobody uses, or that it has done before.
                black_box(sum(isa, black_box(part)));
            }
        })
    }

    /// Bytes per second that the backend's threads copy together from one buffer of `buffer_bytes` into another: each
    /// byte counts once, though memory moves it twice or, where a store fetches its line first, three times.
    pub fn copy_bandwidth(&self, buffer_bytes: usize) -> f64 {
        let source = vec![1.0f32; buffer_bytes / size_of::<f32>()];
        let mut target = vec![0.0f32; source.len()];
        let share = source.len().div_ceil(self.threads).max(1);
        // Each worker locks its own part only: never contended.
        let parts: Vec<_> = target.chunks_mut(share).map(Mutex::new).collect();
        self.best_pass(
            size_of_val(source.as_slice()),
            |_| (),
            |worker, repeats| {
                let (Some(part), Some(from)) = (parts.get(worker.index), source.chunks(share).nth(worker.index)) else {
                    return;
                };
                let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
                for _ in 0..repeats {
                    part.copy_from_slice(black_box(from));
                    black_box(&mut **part);
                }
            },
        )
    }

    /// Bytes per second of the best of some passes, after `touch`, in which the team goes through a buffer of `buffer_bytes`
    /// as often as `pass` is told to.
    fn best_pass(
        &self,
        buffer_bytes: usize,
        touch: impl Fn(&Worker<'_>) + Sync,
        pass: impl Fn(&Worker<'_>, usize) + Sync,
    ) -> f64 {
        let Ok(mut team) = Team::new(self.threads, self.pin) else { return 0.0 };
        if team.run(&touch).is_err() {
            return 0.0;
        }
        let repeats = PASS_BYTES.div_ceil(buffer_bytes.max(1));
        let mut best = 0.0f64;
        for _ in 0..PASSES {
            let begun = Instant::now();
            let done = team.run(&|worker| pass(worker, repeats));
            let elapsed = begun.elapsed().as_secs_f64();
            if done.is_ok() {
                best = best.max((buffer_bytes * repeats) as f64 / elapsed);
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
        const WORDS: Words = Words::Floats;
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

    #[test]
    fn buffers_of_any_size_can_be_measured() {
        let options = crate::CpuOptions { threads: Some(3), ..Default::default() };
        let backend = CpuBackend::new(options).expect("any machine runs three threads");
        // Smaller than a vector, fewer lines than threads, and uneven shares.
        for buffer_bytes in [4, 100, 4099 * 4] {
            assert!(backend.copy_bandwidth(buffer_bytes) > 0.0, "{buffer_bytes}");
        }
        assert!(backend.read_bandwidth_of(4099 * 4) > 0.0);
    }
}
