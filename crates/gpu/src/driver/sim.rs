//! The simulator as a device: the kernel text, compiled as C++ by the build script, on the processor; as CUDA sees the text,
//! or as Metal does, through `kernels/port/metal.h`.
//!
//! Slow and strict. What it finds is in the header of `kernels/port/sim.h`; here memory is poisoned, results of each
//! launch too, and launches run in one thread order or the other.

use std::alloc::{self, Layout};
use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use backend::Counters;
use bytes::Bytes;

use super::hazards::stretches;
use super::{Driver, DriverError, Recording, STEPS_MAX};
use crate::launch::{Access, Launch};
use crate::params::Address;

/// In which order the simulator runs the threads of a SIMD group, the SIMD groups of a group, the groups of a launch, and the
/// launches of a step that need not wait for each other. What depends on it is a race.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadOrder {
    /// First to last.
    #[default]
    Forward,
    /// Last to first.
    Reverse,
}

/// Through whose header the simulator sees the kernel text, and whose limits its groups have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SimDialect {
    /// As CUDA does, with copies and matrix instructions of its own.
    #[default]
    Cuda = 0,
    /// As Metal does: groups have 32 KiB of memory, and matrices are 8 by 8.
    Metal = 1,
}

/// What is to go wrong on a simulated device. Clones share it, so that it can be planted while the device runs.
#[derive(Clone, Debug, Default)]
pub struct SimFaults(Arc<Mutex<Option<SimFault>>>);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// One call of the driver fails, after so many that do not.
    OneCall {
        /// Those before it.
        after: usize,
    },
    /// Nothing can be allocated.
    OutOfMemory,
    /// Every call fails.
    Lost,
}

impl SimFaults {
    /// From the next call of the driver on; `None` for no more of it.
    pub fn set(&self, fault: Option<SimFault>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// What a call gets that allocates so many bytes, if any.
    fn of_call(&self, allocates: Option<u64>) -> Result<(), DriverError> {
        let mut fault = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match (&mut *fault, allocates) {
            (Some(SimFault::OneCall { after: 0 }), _) => {
                *fault = None;
                Err(DriverError::Failed("planted".to_owned()))
            }
            (Some(SimFault::OneCall { after }), _) => {
                *after -= 1;
                Ok(())
            }
            (Some(SimFault::OutOfMemory), Some(bytes)) => Err(DriverError::OutOfMemory { bytes, free_bytes: Some(0) }),
            (Some(SimFault::Lost), _) => Err(DriverError::Failed("planted: the device is lost".to_owned())),
            (Some(SimFault::OutOfMemory) | None, _) => Ok(()),
        }
    }
}

/// As `sim::Operand` in the kernel text.
#[repr(C)]
struct SimOperand {
    address: u64,
    bytes: u64,
    access: u32,
    padding: u32,
}

unsafe extern "C" {
    fn hotmetal_sim_begin_step();
    #[cfg(test)]
    fn hotmetal_sim_kernel(dialect: i32, name: *const c_char, threads: *mut u32, group_bytes: *mut u64) -> i32;
    fn hotmetal_sim_launch(
        dialect: i32,
        name: *const c_char,
        params: *const c_void,
        params_size: u64,
        groups_x: u32,
        groups_y: u32,
        groups_z: u32,
        threads: u32,
        group_bytes: u64,
        operands: *const SimOperand,
        num_operands: u64,
        reverse: i32,
        error: *mut c_char,
        error_size: u64,
    ) -> i32;
}

/// Threads of a group of a kernel, and the bytes of group memory that it declares itself; `None` where there is no such
/// kernel.
#[cfg(test)]
pub(crate) fn kernel_of(dialect: SimDialect, name: &str) -> Option<(u32, u64)> {
    let name = CString::new(name).ok()?;
    let (mut threads, mut group_bytes) = (0, 0);
    // SAFETY: the name ends with NUL, and both places are written before the call returns.
    let found = unsafe { hotmetal_sim_kernel(dialect as i32, name.as_ptr(), &mut threads, &mut group_bytes) };
    (found != 0).then_some((threads, group_bytes))
}

/// NaN as f32 and as f16, and no index of anything.
const POISON: u8 = 0xff;

pub(crate) struct SimDriver {
    dialect: SimDialect,
    order: ThreadOrder,
    memory_bytes: u64,
    allocated_bytes: u64,
    allocations: HashMap<Address, Layout>,
    /// Memory of the host that kernels read.
    in_place: Vec<Bytes>,
    recordings: Vec<Vec<Launch>>,
    /// Of the steps under way, the oldest first: they have been computed already.
    outputs: VecDeque<Vec<u32>>,
    /// Of the step that was collected last.
    collected: Vec<u32>,
    counters: Counters,
    faults: SimFaults,
    /// Whether a step submits each of its launches by itself.
    eager: bool,
}

impl SimDriver {
    pub(crate) fn new(dialect: SimDialect, order: ThreadOrder, memory_bytes: u64, faults: SimFaults) -> Self {
        Self {
            dialect,
            order,
            memory_bytes,
            allocated_bytes: 0,
            allocations: HashMap::new(),
            in_place: vec![],
            recordings: vec![],
            outputs: VecDeque::new(),
            collected: vec![],
            counters: Counters::default(),
            faults,
            eager: false,
        }
    }

    /// Submits each launch of a step by itself, if `eager` says so.
    pub(crate) fn set_eager(&mut self, eager: bool) {
        self.eager = eager;
    }

    /// That `address` and `len` lie in one allocation, or in memory of the host that is read in place.
    fn check(&self, address: Address, len: usize) {
        let inside = |(start, layout): (&Address, &Layout)| {
            address.0 >= start.0 && address.0 + len as u64 <= start.0 + layout.size() as u64
        };
        let in_place = |bytes: &Bytes| {
            let start = bytes.as_ptr() as u64;
            address.0 >= start && address.0 + len as u64 <= start + bytes.len() as u64
        };
        let found = self.allocations.iter().any(inside) || self.in_place.iter().any(in_place);
        assert!(found, "{len} bytes at {address:?} are not allocated");
    }
}

impl SimDriver {
    /// Runs a kernel, one by one or as part of a step.
    fn run(&mut self, launch: &Launch) -> Result<(), DriverError> {
        let operands: Vec<_> = launch
            .operands
            .iter()
            .map(|operand| {
                let bytes = operand.region.bytes;
                self.check(operand.region.address, bytes as usize);
                if operand.access == Access::Write {
                    // SAFETY: inside one allocation, as just checked, which no Rust reference points into.
                    unsafe { (operand.region.address.0 as *mut u8).write_bytes(POISON, bytes as usize) };
                }
                let access = operand.access as u32;
                SimOperand { address: operand.region.address.0, bytes, access, padding: 0 }
            })
            .collect();
        let name = CString::new(launch.kernel).expect("kernel names hold no NUL");
        let mut error = [0 as c_char; 512];
        let [x, y, z] = launch.groups;
        // SAFETY: pointers and lengths are of the same slices; the kernel touches nothing but `operands`, which lie in
        // allocations of this driver, because every access is checked against them.
        let failed = unsafe {
            hotmetal_sim_launch(
                self.dialect as i32,
                name.as_ptr(),
                launch.params.as_ptr().cast(),
                size_of_val(&launch.params[..]) as u64,
                x,
                y,
                z,
                launch.threads,
                launch.group_bytes.into(),
                operands.as_ptr(),
                operands.len() as u64,
                (self.order == ThreadOrder::Reverse).into(),
                error.as_mut_ptr(),
                error.len() as u64,
            )
        };
        if failed == 0 {
            return Ok(());
        }
        // SAFETY: the call ended the message with NUL.
        let message = unsafe { CStr::from_ptr(error.as_ptr()) };
        Err(DriverError::Failed(message.to_string_lossy().into_owned()))
    }
}

impl Driver for SimDriver {
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.faults.of_call(Some(bytes))?;
        let free_bytes = self.memory_bytes - self.allocated_bytes;
        let out_of_memory = DriverError::OutOfMemory { bytes, free_bytes: Some(free_bytes) };
        if bytes.max(1) > free_bytes {
            return Err(out_of_memory);
        }
        let layout = usize::try_from(bytes.max(1)).ok().and_then(|size| Layout::from_size_align(size, 256).ok());
        let Some(layout) = layout else { return Err(out_of_memory) };
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc::alloc(layout) };
        if memory.is_null() {
            return Err(out_of_memory);
        }
        // SAFETY: just allocated, this long.
        unsafe { memory.write_bytes(POISON, layout.size()) };
        let address = Address(memory as u64);
        self.counters.allocations += 1;
        self.allocated_bytes += layout.size() as u64;
        self.allocations.insert(address, layout);
        Ok(address)
    }

    fn free(&mut self, address: Address) {
        let layout = self.allocations.remove(&address).expect("only what was allocated is freed");
        self.allocated_bytes -= layout.size() as u64;
        // SAFETY: allocated with this layout, and no longer known.
        unsafe { alloc::dealloc(address.0 as *mut u8, layout) };
    }

    fn in_place(&mut self, bytes: &Bytes) -> Option<Address> {
        self.in_place.push(bytes.clone());
        Some(Address(bytes.as_ptr() as u64))
    }

    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), DriverError> {
        self.faults.of_call(None)?;
        self.check(to, bytes.len());
        // A step begins with its input.
        // SAFETY: forgets what was noted of this thread's launches.
        unsafe { hotmetal_sim_begin_step() };
        // SAFETY: inside one allocation, as just checked, which no Rust reference points into.
        unsafe { (to.0 as *mut u8).copy_from(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.faults.of_call(None)?;
        self.check(from, bytes.len());
        // SAFETY: inside one allocation, as just checked; poisoned or written, never uninitialised.
        unsafe { (from.0 as *const u8).copy_to(bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError> {
        self.faults.of_call(None)?;
        self.counters.launches += 1;
        self.run(launch)
    }

    /// By the host's clock.
    fn time_in_replay(&mut self, ops: &[&[Launch]]) -> Result<Option<Vec<u64>>, DriverError> {
        let mut edges = vec![0];
        for end in 1..=ops.len() {
            // As a driver does that copies the step input ahead of a replay.
            // SAFETY: the function takes nothing; it forgets what it noted about earlier launches of this thread.
            unsafe { hotmetal_sim_begin_step() };
            let begun = Instant::now();
            ops[..end].iter().flat_map(|launches| *launches).try_for_each(|launch| self.run(launch))?;
            edges.push((begun.elapsed().as_nanos() as u64).max(edges[end - 1]));
        }
        Ok(Some(edges))
    }

    fn record(&mut self, launches: &[Launch]) -> Result<Recording, DriverError> {
        self.faults.of_call(None)?;
        self.recordings.push(launches.to_vec());
        Ok(Recording(self.recordings.len() - 1))
    }

    fn forget_recordings(&mut self) {
        self.recordings.clear();
    }

    fn enqueue(
        &mut self,
        recording: Recording,
        (to, input): (Address, &[i32]),
        (from, num_words): (Address, usize),
    ) -> Result<(), DriverError> {
        assert!(self.outputs.len() < STEPS_MAX, "no more steps are under way than there is room for");
        self.upload(to, bytemuck::cast_slice(input))?;
        let launches = std::mem::take(&mut self.recordings[recording.0]);
        let done = match self.order {
            _ if self.eager => launches.iter().try_for_each(|launch| self.launch(launch)),
            ThreadOrder::Forward => launches.iter().try_for_each(|launch| self.run(launch)),
            ThreadOrder::Reverse => {
                let mut stretches = stretches(&launches).into_iter();
                stretches.try_for_each(|stretch| stretch.iter().rev().try_for_each(|launch| self.run(launch)))
            }
        };
        self.recordings[recording.0] = launches;
        done?;
        let mut output = std::mem::take(&mut self.collected);
        output.resize(num_words, 0);
        self.download(from, bytemuck::cast_slice_mut(&mut output))?;
        self.outputs.push_back(output);
        self.counters.steps += 1;
        Ok(())
    }

    fn collect(&mut self) -> Result<&[u32], DriverError> {
        self.counters.waits += 1;
        self.collected = self.outputs.pop_front().expect("a step is under way");
        self.faults.of_call(None)?;
        Ok(&self.collected)
    }

    fn num_under_way(&self) -> usize {
        self.outputs.len()
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for SimDriver {
    fn drop(&mut self) {
        let addresses: Vec<_> = self.allocations.keys().copied().collect();
        addresses.into_iter().for_each(|address| self.free(address));
    }
}
