//! What a device gives at most: bandwidths, the peak of matrix instructions, the cost of launches and of barriers.
//! Measured by kernels that do one thing each (`kernels/roofline.h`), never taken from a data sheet.

use std::time::Instant;

use backend::BackendError;
use tensor::WeightFormat;

use crate::driver::{Driver, DriverError};
use crate::executable::device_error;
use crate::launch::{Access, Launch, Region};
use crate::params::RooflineParams;
use crate::target::{Matrix, Target};
use crate::{GpuBackend, System};

/// As in `kernels/roofline.h`.
const THREADS: u32 = 512;
const SIMDS: usize = 16;
const VECTOR_BYTES: u64 = 16;
const PIECE_BYTES: usize = 2048;
const RINGS_HEADER: usize = 1024;
const RING_STAGES_MAX: usize = 6;
/// As in `kernels/sm90/roofline.h`.
const FOUR_THREADS: u32 = 256;
const FOUR_GROUP_BYTES: u32 = 6 * 64 * 128;

/// Groups of [`THREADS`] that a multiprocessor runs at once where they keep little in registers.
const GROUPS_BESIDE: usize = 4;
/// Launches of a pass over memory.
const TURNS: usize = 4;
/// Passes; the best one counts, since everything that disturbs a pass makes it slower.
const PASSES: usize = 5;
/// A buffer that is read may be so much smaller where memory is short, and no more: the caches would hold it.
const SHRINKS_MAX: u32 = 2;
/// Beyond any device: a clock that stands still must not be waited for.
const ROUNDS_MAX: i32 = 1 << 24;

/// The kind of a bandwidth of reading.
const READ: &str = "read";
/// What costs are of that come between two kernels.
const LAUNCH: &str = "launch in a graph";
const EARLY_LAUNCH: &str = "launch in a graph, early start";

/// What was measured of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Roofline {
    /// Of its memory.
    pub bandwidths: Vec<Bandwidth>,
    /// Of its arithmetic.
    pub peaks: Vec<Peak>,
    /// Of what comes between kernels.
    pub costs: Vec<Cost>,
}

/// What the memory gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bandwidth {
    /// `read` or `copy`; a byte that is copied counts once.
    pub kind: &'static str,
    /// How.
    pub way: &'static str,
    /// Bytes that are gone through.
    pub buffer_bytes: u64,
    /// Of all multiprocessors together.
    pub bytes_per_s: f64,
}

/// What all multiprocessors compute together with one class of instructions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// Its name in reports.
    pub class: &'static str,
    /// The instruction that gave the figure.
    pub instruction: &'static str,
    /// A multiplication and an addition are two operations.
    pub ops_per_s: f64,
}

/// What something takes that computes nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// What.
    pub what: &'static str,
    /// How long.
    pub seconds: f64,
}

impl Roofline {
    /// Bytes per second that are read in the best way there is.
    pub fn read_bandwidth(&self) -> Option<f64> {
        let reads = self.bandwidths.iter().filter(|found| found.kind == READ);
        reads.map(|read| read.bytes_per_s).reduce(f64::max)
    }

    /// Seconds from one kernel of a recorded step to the next, begun as early as the device can.
    pub fn boundary(&self) -> Option<f64> {
        let launches = self.costs.iter().filter(|cost| [LAUNCH, EARLY_LAUNCH].contains(&cost.what));
        launches.map(|cost| cost.seconds).reduce(f64::min)
    }
}

impl GpuBackend {
    /// All that is measured. Takes about half a second, and 1 GiB of the device's memory for that time.
    pub fn roofline(&self) -> Result<Roofline, BackendError> {
        self.measure(|bench| {
            Ok(Roofline { bandwidths: bench.bandwidths()?, peaks: bench.peaks()?, costs: bench.costs()? })
        })
    }

    /// Bytes per second that kernels read of a buffer which no cache holds, in the best way there is. Takes a few
    /// milliseconds, and 1 GiB of the device's memory, or what is left down to a quarter of that, for that time.
    pub fn read_bandwidth(&self) -> Result<f64, BackendError> {
        let reads = self.measure(|bench| bench.reads())?;
        Ok(reads.iter().map(|read| read.bytes_per_s).fold(0.0, f64::max))
    }

    /// The ceiling of products with weights in `format`: of f32 arithmetic for F32, of matrix instructions for all
    /// others. Those of f16 and bf16 are equally fast; codes become f16 on their way there.
    pub fn peak_of_format(&self, format: WeightFormat) -> Result<Peak, BackendError> {
        let best = self.loop_of(format);
        self.measure(|bench| bench.peak(&best))
    }

    /// The name of the class of instructions whose peak is the ceiling of products with weights in `format`.
    pub fn peak_class_of(&self, format: WeightFormat) -> &'static str {
        self.loop_of(format).class
    }

    /// The loop whose peak is the ceiling of products with weights in `format`.
    fn loop_of(&self, format: WeightFormat) -> Loop {
        let mut loops = self.loops();
        if format == WeightFormat::F32 { loops.swap_remove(0) } else { loops.remove(loops.len() - 1) }
    }

    fn measure<T>(&self, measure: impl FnOnce(&mut Bench<'_>) -> Result<T, DriverError>) -> Result<T, BackendError> {
        let error = device_error(self.device.name.clone(), "a buffer to measure with");
        let mut driver = self.open().map_err(&error)?;
        Bench::new(&mut *driver, self).and_then(|mut bench| measure(&mut bench)).map_err(&error)
    }

    /// Loops of arithmetic, the slowest class first.
    fn loops(&self) -> Vec<Loop> {
        let mut loops = vec![F32_LOOP];
        // Matrices of 8 by 8 have no loop of their own: their arithmetic is that of f32.
        if self.target().matrix >= Matrix::SimdGroup {
            loops.push(MATRIX_LOOP);
        }
        if self.target().matrix == Matrix::FourSimdGroups {
            loops.push(FOUR_LOOP);
        }
        loops
    }

    /// Bytes of the buffer that stands for weights, the least time of a pass, and kernels of a chain of launches: what
    /// takes a GPU no time takes the simulator for ever.
    fn sizes(&self) -> (u64, f64, usize) {
        match self.system {
            System::Cuda(_) => (1 << 30, 8e-3, 1000),
            #[cfg(target_os = "macos")]
            System::Metal(_) => (1 << 30, 8e-3, 1000),
            #[cfg(feature = "sim")]
            System::Sim(..) => (1 << 18, 0.0, 4),
        }
    }
}

/// A loop of arithmetic.
struct Loop {
    class: &'static str,
    instruction: &'static str,
    kernel: &'static str,
    /// Threads of a group, groups of a multiprocessor, and group memory.
    threads: u32,
    groups: usize,
    group_bytes: u32,
    /// Operations of a round of a group.
    ops: u64,
}

const F32_LOOP: Loop = Loop {
    class: "f32_fma",
    instruction: "fma.f32",
    kernel: "peak_f32",
    threads: THREADS,
    groups: 2,
    group_bytes: 0,
    ops: THREADS as u64 * 16 * 2,
};
const MATRIX_LOOP: Loop = Loop {
    class: "f16_matrix",
    instruction: "mma.m16n8k16",
    kernel: "peak_f16",
    threads: THREADS,
    groups: 1,
    group_bytes: 0,
    ops: SIMDS as u64 * 8 * 16 * 8 * 16 * 2,
};
const FOUR_LOOP: Loop = Loop {
    class: "f16_matrix",
    instruction: "wgmma.m64n256k16",
    kernel: "peak_f16_four",
    threads: FOUR_THREADS,
    groups: 1,
    group_bytes: FOUR_GROUP_BYTES,
    ops: 2 * 4 * 64 * 256 * 16 * 2,
};

/// A device with memory to measure on.
struct Bench<'a> {
    driver: &'a mut dyn Driver,
    backend: &'a GpuBackend,
    target: Target,
    buffer_bytes: u64,
    pass_seconds: f64,
    chain_len: usize,
    /// A word for each thread of the largest launch.
    found: Region,
    counter: Region,
}

impl<'a> Bench<'a> {
    fn new(driver: &'a mut dyn Driver, backend: &'a GpuBackend) -> Result<Self, DriverError> {
        let target = backend.target();
        let (buffer_bytes, pass_seconds, chain_len) = backend.sizes();
        let mut region = |bytes| Ok::<_, DriverError>(Region { address: driver.allocate(bytes)?, bytes });
        let found = region((target.multiprocessors * GROUPS_BESIDE) as u64 * u64::from(THREADS) * 4)?;
        let counter = region(4)?;
        Ok(Self { driver, backend, target, buffer_bytes, pass_seconds, chain_len, found, counter })
    }

    fn bandwidths(&mut self) -> Result<Vec<Bandwidth>, DriverError> {
        let mut found = self.reads()?;
        found.push(self.with_buffer(|bench, buffer| {
            let half = buffer.bytes / 2;
            let [from, to] = [0, half].map(|at| buffer.part(at, half));
            let launch = bench.loads("copy_loads", from).with(Access::Write, to);
            let launch = bench.with_params(launch, |params| params.to = to.address);
            bench.bandwidth("copy", "16-byte loads", &launch, half)
        })?);
        Ok(found)
    }

    fn reads(&mut self) -> Result<Vec<Bandwidth>, DriverError> {
        self.with_buffer(|bench, buffer| {
            let found = bench.found;
            let loads = bench.loads("read_loads", buffer).with(Access::Write, found);
            let mut reads = vec![bench.bandwidth(READ, "16-byte loads", &loads, buffer.bytes)?];
            if bench.target.bulk_copies {
                let copies = bench.copies(buffer);
                reads.push(bench.bandwidth(READ, "bulk copies", &copies, buffer.bytes)?);
            }
            Ok(reads)
        })
    }

    /// Runs `measure` on memory that is given back after it.
    fn with_buffer<T>(
        &mut self,
        measure: impl FnOnce(&mut Self, Region) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let buffer = self.buffer()?;
        let measured = measure(self, buffer);
        self.driver.free(buffer.address);
        measured
    }

    fn buffer(&mut self) -> Result<Region, DriverError> {
        let mut shrinks = 0;
        loop {
            let bytes = self.buffer_bytes >> shrinks;
            match self.driver.allocate(bytes) {
                Ok(address) => return Ok(Region { address, bytes }),
                Err(DriverError::OutOfMemory { .. }) if shrinks < SHRINKS_MAX => shrinks += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Launches of `groups` of [`THREADS`].
    fn launch(&self, kernel: &'static str, groups: usize, params: RooflineParams) -> Launch {
        let params = RooflineParams { groups: groups as i32, found: self.found.address, ..params };
        Launch::new(kernel, [groups, 1, 1], &params).with_groups_of(THREADS, 0)
    }

    fn with_params(&self, launch: Launch, change: impl FnOnce(&mut RooflineParams)) -> Launch {
        let mut params: RooflineParams = bytemuck::cast_slice(&launch.params)[0];
        change(&mut params);
        Launch { params: bytemuck::cast_slice(&[params]).to_vec(), ..launch }
    }

    /// Every vector of `from`, by loads.
    fn loads(&self, kernel: &'static str, from: Region) -> Launch {
        let vectors = (from.bytes / VECTOR_BYTES) as i32;
        let params = RooflineParams { from: from.address, vectors, ..RooflineParams::default() };
        self.launch(kernel, self.target.multiprocessors * GROUPS_BESIDE, params).with(Access::Read, from)
    }

    /// Every piece of `from`, by bulk copies.
    fn copies(&self, from: Region) -> Launch {
        let ring_bytes = SIMDS * PIECE_BYTES;
        let stages = (self.target.group_bytes_max as usize - RINGS_HEADER) / ring_bytes;
        let stages = stages.min(RING_STAGES_MAX);
        let vectors = (from.bytes / VECTOR_BYTES) as i32;
        let params = RooflineParams { from: from.address, vectors, stages: stages as i32, ..RooflineParams::default() };
        self.launch("read_copies", self.target.multiprocessors, params)
            .with_groups_of(THREADS, (RINGS_HEADER + stages * ring_bytes) as u32)
            .with(Access::Read, from)
            .with(Access::Write, self.found)
    }

    fn bandwidth(
        &mut self,
        kind: &'static str,
        way: &'static str,
        launch: &Launch,
        bytes: u64,
    ) -> Result<Bandwidth, DriverError> {
        // Several in a row, as kernels of a step are: what begins and ends a launch is a small part of it.
        let launches = vec![launch.clone(); TURNS];
        let seconds = self.best_time(&launches)? / TURNS as f64;
        Ok(Bandwidth { kind, way, buffer_bytes: bytes, bytes_per_s: bytes as f64 / seconds })
    }

    /// In seconds, by the device's clock.
    fn best_time(&mut self, launches: &[Launch]) -> Result<f64, DriverError> {
        let mut best = f64::INFINITY;
        for _ in 0..PASSES {
            best = best.min(self.time(launches)?);
        }
        Ok(best)
    }

    fn time(&mut self, launches: &[Launch]) -> Result<f64, DriverError> {
        self.driver.upload(self.counter.address, &[0; 4])?;
        let edges = self.driver.time(&[launches])?;
        let nanoseconds = edges.last().copied().unwrap_or(0) - edges.first().copied().unwrap_or(0);
        Ok(nanoseconds.max(1) as f64 / 1e9)
    }

    fn peaks(&mut self) -> Result<Vec<Peak>, DriverError> {
        self.backend.loops().iter().map(|arithmetic| self.peak(arithmetic)).collect()
    }

    fn peak(&mut self, arithmetic: &Loop) -> Result<Peak, DriverError> {
        let &Loop { class, instruction, groups, ops, .. } = arithmetic;
        let mut rounds = 16;
        while self.time(&[self.rounds(arithmetic, rounds)])? < self.pass_seconds && rounds < ROUNDS_MAX {
            rounds *= 2;
        }
        let seconds = self.best_time(&[self.rounds(arithmetic, rounds)])?;
        let all = (groups * self.target.multiprocessors) as f64 * ops as f64 * f64::from(rounds);
        Ok(Peak { class, instruction, ops_per_s: all / seconds })
    }

    fn rounds(&self, arithmetic: &Loop, rounds: i32) -> Launch {
        let groups = arithmetic.groups * self.target.multiprocessors;
        self.launch(arithmetic.kernel, groups, RooflineParams { rounds, ..RooflineParams::default() })
            .with_groups_of(arithmetic.threads, arithmetic.group_bytes)
            .with(Access::Write, self.found)
    }

    fn costs(&mut self) -> Result<Vec<Cost>, DriverError> {
        let mut costs = vec![Cost { what: LAUNCH, seconds: self.launch_cost(false)? }];
        if self.target.bulk_copies {
            costs.push(Cost { what: EARLY_LAUNCH, seconds: self.launch_cost(true)? });
        }
        if self.target.groups_meet {
            costs.push(Cost { what: "barrier of all groups", seconds: self.barrier_cost()? });
        }
        Ok(costs)
    }

    /// What a kernel of a recorded chain takes that does nothing but wait for the one ahead.
    fn launch_cost(&mut self, early_start: bool) -> Result<f64, DriverError> {
        let idle = self.launch("idle_launch", self.target.multiprocessors, RooflineParams::default());
        let idle = Launch { early_start, ..idle.with_groups_of(128, 0) };
        let mut times = [0.0; 2];
        // What comes once a chain is in both.
        for (time, len) in times.iter_mut().zip([self.chain_len / 4, self.chain_len / 4 + self.chain_len]) {
            let recording = self.driver.record(&vec![idle.clone(); len])?;
            *time = f64::INFINITY;
            for _ in 0..PASSES {
                let begun = Instant::now();
                self.driver.enqueue(recording, (self.counter.address, &[0]), (self.found.address, 0))?;
                self.driver.collect()?;
                *time = time.min(begun.elapsed().as_secs_f64());
            }
        }
        self.driver.forget_recordings();
        Ok((times[1] - times[0]).max(0.0) / self.chain_len as f64)
    }

    /// What it takes all groups to wait for each other, one a multiprocessor.
    fn barrier_cost(&mut self) -> Result<f64, DriverError> {
        let rounds = self.chain_len as i32;
        let [few, many] =
            [rounds / 4, rounds / 4 + rounds].map(|rounds| self.meeting(self.target.multiprocessors, rounds));
        let times = [self.best_time(&[few])?, self.best_time(&[many])?];
        Ok((times[1] - times[0]).max(0.0) / f64::from(rounds))
    }

    fn meeting(&self, groups: usize, rounds: i32) -> Launch {
        let params = RooflineParams { counter: self.counter.address, rounds, ..RooflineParams::default() };
        self.launch("meet_all", groups, params).with(Access::Update, self.counter).with(Access::Write, self.found)
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use super::*;
    use crate::{GpuOptions, SimDialect, ThreadOrder};

    fn simulator(order: ThreadOrder) -> GpuBackend {
        GpuBackend::simulator(order, 1 << 24, GpuOptions::default())
    }

    #[test]
    fn what_metal_has_is_measured() {
        let backend = GpuBackend::simulator_of(SimDialect::Metal, ThreadOrder::Forward, 1 << 24, GpuOptions::default());
        let Roofline { bandwidths, peaks, costs } = backend.roofline().unwrap();
        let kinds: Vec<_> = bandwidths.iter().map(|found| (found.kind, found.way)).collect();
        assert_eq!(kinds, [("read", "16-byte loads"), ("copy", "16-byte loads")]);
        assert_eq!(peaks.iter().map(|peak| peak.class).collect::<Vec<_>>(), ["f32_fma"]);
        assert_eq!(costs.len(), 1);
        assert_eq!(backend.peak_of_format(WeightFormat::Q8_0).unwrap().class, "f32_fma");
    }

    fn on_bench(test: impl Fn(&mut Bench<'_>)) {
        for order in [ThreadOrder::Forward, ThreadOrder::Reverse] {
            let backend = simulator(order);
            let mut driver = backend.open().unwrap();
            test(&mut Bench::new(&mut *driver, &backend).unwrap());
        }
    }

    /// A buffer of `bytes` of noise, and the noise.
    fn noise(bench: &mut Bench<'_>, bytes: u64) -> (Region, Vec<u32>) {
        let buffer = Region { address: bench.driver.allocate(bytes).unwrap(), bytes };
        let words: Vec<u32> = (0..bytes as u32 / 4).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        bench.driver.upload(buffer.address, bytemuck::cast_slice(&words)).unwrap();
        (buffer, words)
    }

    /// What the first `threads` threads found.
    fn found(bench: &mut Bench<'_>, threads: u32) -> Vec<u32> {
        let mut found = vec![0; threads as usize];
        bench.driver.download(bench.found.address, bytemuck::cast_slice_mut(&mut found)).unwrap();
        found
    }

    #[test]
    fn every_byte_is_read_and_copied() {
        on_bench(|bench| {
            // Whole rounds of all threads and a rest; whole pieces, as many as no ring divides.
            for (bytes, pieces) in [(37 * 2048, true), (3 * 4 * 512 * 8 * 16 + 48, false), (16, false), (2048, true)] {
                let (buffer, words) = noise(bench, bytes);
                let parity = |words: &[u32]| words.iter().fold(0, |parity, word| parity ^ word);
                let loads = bench.loads("read_loads", buffer).with(Access::Write, bench.found);
                let ways = [Some(loads), pieces.then(|| bench.copies(buffer))];
                for launch in ways.into_iter().flatten() {
                    bench.driver.launch(&launch).unwrap();
                    let threads = launch.groups[0] * launch.threads;
                    assert_eq!(parity(&found(bench, threads)), parity(&words), "{}, {bytes} bytes", launch.kernel);
                }
                let to = Region { address: bench.driver.allocate(bytes).unwrap(), bytes };
                let copy = bench.loads("copy_loads", buffer).with(Access::Write, to);
                let copy = bench.with_params(copy, |params| params.to = to.address);
                bench.driver.launch(&copy).unwrap();
                let mut copied = vec![0u32; words.len()];
                bench.driver.download(to.address, bytemuck::cast_slice_mut(&mut copied)).unwrap();
                assert_eq!(copied, words, "{bytes} bytes");
            }
        });
    }

    /// The number that the kernels make of `i`, as f16 where `rounded`.
    fn number(i: usize, rounded: bool) -> f64 {
        let x = ((i * 40_503 % 0x10000) as f32 - 32_768.0) / 32_768.0;
        f64::from(if rounded { half::f16::from_f32(x).to_f32() } else { x })
    }

    #[test]
    fn arithmetic_is_what_it_is_counted_as() {
        const ROUNDS: i32 = 3;
        on_bench(|bench| {
            let launch = |bench: &Bench<'_>, arithmetic| bench.rounds(arithmetic, ROUNDS);
            bench.driver.launch(&launch(bench, &F32_LOOP)).unwrap();
            for (lane, &sum) in found(bench, 32).iter().enumerate() {
                let after = |x: f64| (0..ROUNDS).fold(x, |x, _| x * 0.75 + 0.5);
                let expected: f64 = (0..16).map(|j| after(number(lane * 16 + j, false))).sum();
                assert!((f64::from(f32::from_bits(sum)) - expected).abs() < 1e-4, "lane {lane}");
            }
            // The sum of a product over all its rows and columns: of the columns of a times the rows of b.
            bench.driver.launch(&launch(bench, &MATRIX_LOOP)).unwrap();
            let sum: f64 = found(bench, 32).iter().map(|&sum| f64::from(f32::from_bits(sum))).sum();
            let (mut a, mut b) = ([0.0; 16], [0.0; 16]);
            for lane in 0..32 {
                for i in 0..8 {
                    // Rows g, g + 8, g, g + 8; columns t and t + 8, in pairs.
                    a[lane % 4 * 2 + i % 2 + i / 4 * 8] += number(lane * 8 + i, true);
                }
                for (j, i) in (0..8).flat_map(|j| (0..4).map(move |i| (j, i))) {
                    b[lane % 4 * 2 + i % 2 + i / 2 * 8] += number(256 + lane * 32 + j * 4 + i, true);
                }
            }
            let product: f64 = a.iter().zip(b).map(|(a, b)| a * b).sum();
            assert!((sum - f64::from(ROUNDS) * product).abs() < 1e-2, "{sum}, {}", f64::from(ROUNDS) * product);
            assert_eq!(MATRIX_LOOP.ops, SIMDS as u64 * 8 * 4096);
        });
    }

    #[test]
    fn groups_that_do_not_run_at_once_do_not_meet() {
        on_bench(|bench| {
            bench.time(&[bench.meeting(1, 3)]).unwrap();
            assert_eq!(found(bench, THREADS), vec![3; THREADS as usize]);
            let error = bench.time(&[bench.meeting(2, 1)]).unwrap_err().to_string();
            assert!(error.contains("wait for a group that has not run"), "{error}");
        });
    }

    #[test]
    fn all_of_it_is_measured_and_memory_given_back() {
        let backend = simulator(ThreadOrder::Forward);
        let Roofline { bandwidths, peaks, costs } = backend.roofline().unwrap();
        let kinds: Vec<_> = bandwidths.iter().map(|found| (found.kind, found.way)).collect();
        assert_eq!(kinds, [("read", "16-byte loads"), ("read", "bulk copies"), ("copy", "16-byte loads")]);
        assert!(bandwidths.iter().all(|found| found.bytes_per_s > 0.0));
        assert_eq!(peaks.iter().map(|peak| peak.class).collect::<Vec<_>>(), ["f32_fma", "f16_matrix"]);
        assert!(peaks.iter().all(|peak| peak.ops_per_s > 0.0));
        assert_eq!(costs.len(), 2);
        let roofline = Roofline { bandwidths, peaks, costs };
        assert!(roofline.read_bandwidth() > Some(0.0) && roofline.boundary() >= Some(0.0));
        assert_eq!(backend.peak_class_of(WeightFormat::Q8_0), "f16_matrix");
        assert!(backend.read_bandwidth().unwrap() > 0.0);
        assert_eq!(backend.peak_of_format(WeightFormat::Q8_0).unwrap().class, "f16_matrix");
        assert_eq!(backend.peak_of_format(WeightFormat::F32).unwrap().class, "f32_fma");
        // A quarter of the buffer, and what the threads find, are enough; less is not.
        let small = |bytes| GpuBackend::simulator(ThreadOrder::Forward, bytes, GpuOptions::default());
        assert!(small((1 << 16) + 3 * 4 * 512 * 4 + 4).read_bandwidth().is_ok());
        let error = small(1 << 15).read_bandwidth().unwrap_err().to_string();
        assert!(error.contains("cannot hold a buffer to measure with"), "{error}");
    }
}
