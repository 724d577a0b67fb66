//! Apple GPUs, through Metal. No Apple device has run this file yet: `docs/metal.md` says what was checked, and how.
//!
//! Memory is shared with the host, so uploads and downloads are plain copies. Kernels find their operands by the addresses
//! in their parameters; a residency set says that all of them are in use. Metal tracks no hazards here. Within a step,
//! barriers stand between launches that depend on each other ([`Hazards`]); one fence orders everything else: each encoder
//! waits for it first and updates it last.
//!
//! A step is one command buffer: its input is copied to its place, its kernels run, its output is copied to where the host
//! reads it, and a shared event is signalled. The kernels are encoded anew for each step, or replayed from an indirect
//! command buffer ([`crate::MetalOptions::indirect`]).

mod device;
mod error;
mod program;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::Bytes;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSURL;
use objc2_metal::{
    MTLBlitCommandEncoder, MTLBuffer, MTLCaptureDescriptor, MTLCaptureDestination, MTLCaptureManager, MTLCommandBuffer,
    MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue, MTLComputeCommandEncoder, MTLComputePipelineState,
    MTLDevice, MTLDispatchType, MTLFence, MTLResidencySet, MTLResidencySetDescriptor, MTLResourceOptions,
    MTLSharedEvent,
};

use backend::Counters;

use super::hazards::Hazards;
use super::{Driver, DriverError, Recording, STEPS_MAX};
use crate::launch::Launch;
use crate::params::Address;

pub(crate) use device::MetalDevice;

use device::Context;
use error::{command_error, describe, ended};
use program::{Dispatch, Indirect, Program};

type Object<T> = Retained<ProtocolObject<T>>;
type Device = Object<dyn MTLDevice>;
type Buffer = Object<dyn MTLBuffer>;
type CommandBuffer = Object<dyn MTLCommandBuffer>;
type Pipeline = Object<dyn MTLComputePipelineState>;

/// Pages of Apple's processors.
const PAGE_BYTES: usize = 16 << 10;
/// Command buffers that wait to be looked at; a queue holds 64.
const SUBMITTED_MAX: usize = 32;
/// How long the host sleeps before it asks whether a step has failed instead of ended.
const WAIT_MS: u64 = 200;
/// The step that is captured: prompts are over by then, as a rule.
const CAPTURED_STEP: u64 = 4;

/// One model's use of a device.
pub(crate) struct MetalDriver {
    context: Arc<Context>,
    queue: Object<dyn MTLCommandQueue>,
    /// Everything that kernels reach by address.
    resident: Object<dyn MTLResidencySet>,
    /// Orders encoders.
    fence: Object<dyn MTLFence>,
    /// Counts steps that have ended.
    event: Object<dyn MTLSharedEvent>,
    /// By address.
    allocations: BTreeMap<u64, Buffer>,
    /// Memory of the host that kernels read where it is, with its owner.
    in_place: Vec<(Buffer, Bytes)>,
    programs: Vec<Program>,
    /// Command buffers that are no steps, the oldest first, until they are seen to have ended.
    submitted: VecDeque<CommandBuffer>,
    /// Of the steps under way; others are free.
    slots: [Slot; STEPS_MAX],
    /// The slot of the oldest step under way.
    oldest: usize,
    under_way: usize,
    counters: Counters,
}

// SAFETY: the objects belong to this value alone, and Metal binds none of them to a thread.
unsafe impl Send for MetalDriver {}

/// Where the host's side of a step is.
#[derive(Default)]
struct Slot {
    input: Option<Buffer>,
    output: Option<Buffer>,
    num_words: usize,
    commands: Option<CommandBuffer>,
    /// What the event counts to when the step has ended.
    value: u64,
}

impl MetalDriver {
    pub(crate) fn open(device: &MetalDevice) -> Result<Self, DriverError> {
        let context = device.context.clone();
        let device = &context.device;
        let lacks = |what: &str| DriverError::Failed(format!("Metal gives no {what}"));
        let queue = device.newCommandQueue().ok_or_else(|| lacks("command queue"))?;
        let resident = device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new());
        let resident = resident.map_err(|error| DriverError::Failed(describe(&error)))?;
        queue.addResidencySet(&resident);
        Ok(Self {
            fence: device.newFence().ok_or_else(|| lacks("fence"))?,
            event: device.newSharedEvent().ok_or_else(|| lacks("event"))?,
            queue,
            resident,
            allocations: BTreeMap::new(),
            in_place: vec![],
            programs: vec![],
            submitted: VecDeque::new(),
            slots: Default::default(),
            oldest: 0,
            under_way: 0,
            counters: Counters::default(),
            context,
        })
    }

    /// So many bytes as the length of a buffer, if the system lets this program have that much more.
    fn affordable(&self, bytes: u64) -> Option<usize> {
        let device = &self.context.device;
        let used = device.currentAllocatedSize() as u64;
        let fits = used.saturating_add(bytes) <= device.recommendedMaxWorkingSetSize();
        usize::try_from(bytes.max(1)).ok().filter(|&size| fits && size <= device.maxBufferLength())
    }

    /// Memory that host and device share; zeros.
    fn buffer(&self, bytes: u64) -> Result<Buffer, DriverError> {
        let size = self.affordable(bytes);
        let buffer = size.and_then(|size| self.context.device.newBufferWithLength_options(size, options()));
        buffer.ok_or_else(|| {
            let device = &self.context.device;
            let most = device.recommendedMaxWorkingSetSize();
            DriverError::OutOfMemory {
                bytes,
                free_bytes: Some(most.saturating_sub(device.currentAllocatedSize() as u64)),
            }
        })
    }

    /// Makes `place` a buffer of `bytes` at least; returns how many allocations that took.
    fn reserve(&self, place: &mut Option<Buffer>, bytes: usize) -> Result<u64, DriverError> {
        if bytes == 0 || place.as_ref().is_some_and(|buffer| buffer.length() >= bytes) {
            return Ok(0);
        }
        *place = Some(self.buffer(bytes.next_power_of_two().max(4096) as u64)?);
        Ok(1)
    }

    /// The allocation that `address` is in, and where in it.
    fn find(&self, address: Address, len: usize) -> (&Buffer, usize) {
        let found = self.allocations.range(..=address.0).next_back();
        let (start, buffer) = found.expect("addresses are those that were allocated");
        let offset = (address.0 - start) as usize;
        assert!(offset + len <= buffer.length(), "{len} bytes at {address:?} are not allocated");
        (buffer, offset)
    }

    fn prepare(&mut self, launch: &Launch, waits: bool) -> Result<Dispatch, DriverError> {
        let (dispatch, made) = Dispatch::new(&self.context, launch, waits)?;
        self.counters.look_ups += u64::from(made);
        Ok(dispatch)
    }

    fn prepare_all(&mut self, launches: &[Launch]) -> Result<Vec<Dispatch>, DriverError> {
        let mut hazards = Hazards::default();
        launches.iter().map(|launch| self.prepare(launch, hazards.must_wait(launch))).collect()
    }

    /// An empty command buffer. It keeps nothing alive: what it uses goes only after [`MetalDriver::finish`].
    fn command_buffer(&self) -> Result<CommandBuffer, DriverError> {
        let commands = self.queue.commandBufferWithUnretainedReferences();
        commands.ok_or_else(|| DriverError::Failed("Metal gives no command buffer".to_owned()))
    }

    /// Appends kernels to `commands`, behind all that was there before.
    fn encode(&self, commands: &CommandBuffer, program: &Program) -> Result<(), DriverError> {
        let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        let encoder = encoder.ok_or_else(|| DriverError::Failed("Metal gives no compute encoder".to_owned()))?;
        encoder.waitForFence(&self.fence);
        program.encode(&encoder);
        encoder.updateFence(&self.fence);
        encoder.endEncoding();
        Ok(())
    }

    /// Appends a copy to `commands`, behind all that was there before.
    fn copy(
        &self,
        commands: &CommandBuffer,
        (from, from_at): (&Buffer, usize),
        (to, to_at): (&Buffer, usize),
        len: usize,
    ) -> Result<(), DriverError> {
        let encoder = commands.blitCommandEncoder();
        let encoder = encoder.ok_or_else(|| DriverError::Failed("Metal gives no copy encoder".to_owned()))?;
        encoder.waitForFence(&self.fence);
        // SAFETY: inside both, as `find` and `reserve` see to, and both outlive the step.
        unsafe { encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(from, from_at, to, to_at, len) };
        encoder.updateFence(&self.fence);
        encoder.endEncoding();
        Ok(())
    }

    /// Runs kernels outside of a step.
    fn submit(&mut self, dispatches: Vec<Dispatch>) -> Result<CommandBuffer, DriverError> {
        let commands = self.command_buffer()?;
        self.encode(&commands, &Program { dispatches, indirect: None })?;
        commands.commit();
        self.submitted.push_back(commands.clone());
        if self.submitted.len() > SUBMITTED_MAX {
            self.submitted.pop_front().map_or(Ok(()), |oldest| ended(&oldest))?;
        }
        Ok(commands)
    }

    /// Waits for all work.
    fn finish(&mut self) -> Result<(), DriverError> {
        self.counters.waits += 1;
        let steps = self.slots.iter().filter_map(|slot| slot.commands.as_ref());
        let mut outcomes: Vec<_> = steps.map(ended).collect();
        outcomes.extend(self.submitted.drain(..).map(|commands| ended(&commands)));
        outcomes.into_iter().collect()
    }

    /// The kernels of a step as the device keeps them.
    fn indirect(&self, dispatches: &[Dispatch]) -> Result<Indirect, DriverError> {
        let params = self.buffer(Indirect::params_bytes(dispatches))?;
        let indirect = Indirect::new(&self.context.device, params, dispatches)?;
        self.resident.addAllocation(ProtocolObject::from_ref(&*indirect.params));
        self.resident.addAllocation(ProtocolObject::from_ref(&*indirect.commands));
        self.resident.commit();
        Ok(indirect)
    }

    /// Begins a trace, to be opened with Xcode, of what is submitted until [`end_capture`].
    fn begin_capture(&self, file: &Path) -> Result<(), DriverError> {
        let refused = |why: String| DriverError::Failed(format!("cannot capture to `{}`: {why}", file.display()));
        // SAFETY: there is one, and it may be used from any thread.
        let manager = unsafe { MTLCaptureManager::sharedCaptureManager() };
        if !manager.supportsDestination(MTLCaptureDestination::GPUTraceDocument) {
            return Err(refused("set MTL_CAPTURE_ENABLED=1 in the environment".to_owned()));
        }
        let descriptor = MTLCaptureDescriptor::new();
        // SAFETY: a command queue is one of the things that can be captured.
        unsafe { descriptor.setCaptureObject(Some((*self.queue).as_ref())) };
        descriptor.setDestination(MTLCaptureDestination::GPUTraceDocument);
        descriptor.setOutputURL(NSURL::from_file_path(file).as_deref());
        manager.startCaptureWithDescriptor_error(&descriptor).map_err(|error| refused(describe(&error)))
    }

    /// Encodes and submits a step from the slot at `place`, whose input is staged.
    fn submit_step(
        &self,
        place: usize,
        program: &Program,
        (to, input_bytes): (Address, usize),
        (from, output_bytes): (Address, usize),
    ) -> Result<CommandBuffer, DriverError> {
        let Slot { input, output, value, .. } = &self.slots[place];
        let commands = self.command_buffer()?;
        if let Some(input) = input {
            self.copy(&commands, (input, 0), self.find(to, input_bytes), input_bytes)?;
        }
        self.encode(&commands, program)?;
        if let Some(output) = output.as_ref().filter(|_| output_bytes > 0) {
            self.copy(&commands, self.find(from, output_bytes), (output, 0), output_bytes)?;
        }
        commands.encodeSignalEvent_value(ProtocolObject::from_ref(&*self.event), *value);
        commands.commit();
        Ok(commands)
    }
}

impl Driver for MetalDriver {
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        let buffer = self.buffer(bytes)?;
        self.resident.addAllocation(ProtocolObject::from_ref(&*buffer));
        self.resident.commit();
        self.resident.requestResidency();
        self.counters.allocations += 1;
        let address = buffer.gpuAddress();
        self.allocations.insert(address, buffer);
        Ok(Address(address))
    }

    fn free(&mut self, address: Address) {
        // An error of the device is reported by the call that needs it next.
        let _ = self.finish();
        let buffer = self.allocations.remove(&address.0).expect("only what was allocated is freed");
        self.resident.removeAllocation(ProtocolObject::from_ref(&*buffer));
        self.resident.commit();
    }

    fn in_place(&mut self, bytes: &Bytes) -> Option<Address> {
        if self.context.copied || bytes.is_empty() {
            return None;
        }
        let before = bytes.as_ptr().addr() % PAGE_BYTES;
        let len = self.affordable((before + bytes.len()).next_multiple_of(PAGE_BYTES) as u64)?;
        let start = NonNull::new(bytes.as_ptr().wrapping_sub(before).cast_mut().cast::<c_void>())?;
        let device = &self.context.device;
        // SAFETY: whole pages, each of which has a byte of `bytes` and so is there as long as these are; kernels read those
        // bytes alone, which nobody changes.
        let buffer =
            unsafe { device.newBufferWithBytesNoCopy_length_options_deallocator(start, len, options(), None) }?;
        self.resident.addAllocation(ProtocolObject::from_ref(&*buffer));
        self.resident.commit();
        let address = Address(buffer.gpuAddress() + before as u64);
        self.in_place.push((buffer, bytes.clone()));
        Some(address)
    }

    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), DriverError> {
        self.finish()?;
        let (buffer, offset) = self.find(to, bytes.len());
        // SAFETY: inside the allocation, as just checked, which the device does not use now and no Rust reference is to.
        unsafe { buffer.contents().cast::<u8>().add(offset).copy_from(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.finish()?;
        let (buffer, offset) = self.find(from, bytes.len());
        // SAFETY: as for an upload; a new buffer is zeros, so all of it is initialised.
        unsafe { buffer.contents().cast::<u8>().add(offset).copy_to(NonNull::from(&mut *bytes).cast(), bytes.len()) };
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError> {
        self.counters.launches += 1;
        autoreleasepool(|_| {
            let dispatch = self.prepare(launch, false)?;
            self.submit(vec![dispatch]).map(drop)
        })
    }

    /// Each op is a command buffer of its own, since that is what Metal times on every device. So what lies between two is
    /// counted to the first of them.
    fn time(&mut self, ops: &[&[Launch]]) -> Result<Vec<u64>, DriverError> {
        autoreleasepool(|_| {
            let mut timed = Vec::with_capacity(ops.len());
            for launches in ops {
                let dispatches = self.prepare_all(launches)?;
                timed.push(self.submit(dispatches)?);
            }
            self.finish()?;
            let begun = timed.first().map_or(0.0, |first| first.GPUStartTime());
            let times = timed.iter().map(|commands| commands.GPUStartTime());
            let times = times.chain([timed.last().map_or(0.0, |last| last.GPUEndTime())]);
            // An op without kernels takes no time, and may not have been timed.
            let since = times.map(|seconds| ((seconds - begun).max(0.0) * 1e9) as u64);
            let latest = |edge: &mut u64, since: u64| {
                *edge = since.max(*edge);
                Some(*edge)
            };
            Ok(since.scan(0, latest).collect())
        })
    }

    fn record(&mut self, launches: &[Launch]) -> Result<Recording, DriverError> {
        autoreleasepool(|_| {
            let dispatches = self.prepare_all(launches)?;
            self.context.keep_pipelines();
            let indirect = if self.context.indirect { Some(self.indirect(&dispatches)?) } else { None };
            self.programs.push(Program { dispatches, indirect });
            Ok(Recording(self.programs.len() - 1))
        })
    }

    fn forget_recordings(&mut self) {
        // What cannot be done here is reported by the call that needs the device next.
        let _ = self.finish();
        for Indirect { commands, params } in self.programs.drain(..).filter_map(|program| program.indirect) {
            self.resident.removeAllocation(ProtocolObject::from_ref(&*params));
            self.resident.removeAllocation(ProtocolObject::from_ref(&*commands));
        }
        self.resident.commit();
    }

    fn enqueue(
        &mut self,
        recording: Recording,
        (to, input): (Address, &[i32]),
        (from, num_words): (Address, usize),
    ) -> Result<(), DriverError> {
        assert!(self.under_way < STEPS_MAX, "no more steps are under way than there is room for");
        let place = (self.oldest + self.under_way) % STEPS_MAX;
        let (input_bytes, output_bytes) = (size_of_val(input), num_words * size_of::<u32>());
        let mut slot = std::mem::take(&mut self.slots[place]);
        let grown = self.reserve(&mut slot.input, input_bytes);
        let grown = grown.and_then(|grown| Ok(grown + self.reserve(&mut slot.output, output_bytes)?));
        slot.num_words = num_words;
        slot.value = self.counters.steps + 1;
        if let Some(staged) = slot.input.as_ref().filter(|_| grown.is_ok()) {
            // SAFETY: the buffer is as long as was just reserved, and the step that used it last was collected.
            unsafe { staged.contents().cast::<i32>().copy_from(NonNull::from(input).cast(), input.len()) };
        }
        self.slots[place] = slot;
        self.counters.allocations += grown?;

        let capture = if self.counters.steps == CAPTURED_STEP { self.context.take_capture() } else { None };
        capture.as_deref().map_or(Ok(()), |file| self.begin_capture(file))?;
        let program = &self.programs[recording.0];
        let commands = autoreleasepool(|_| self.submit_step(place, program, (to, input_bytes), (from, output_bytes)));
        if capture.is_some() {
            end_capture();
        }
        self.slots[place].commands = Some(commands?);
        self.under_way += 1;
        self.counters.steps += 1;
        Ok(())
    }

    fn collect(&mut self) -> Result<&[u32], DriverError> {
        assert!(self.under_way > 0, "a step is under way");
        let slot = &mut self.slots[self.oldest];
        self.oldest = (self.oldest + 1) % STEPS_MAX;
        self.under_way -= 1;
        self.counters.waits += 1;
        let commands = slot.commands.take().expect("a step under way has commands");
        // A step that fails may never signal.
        while !self.event.waitUntilSignaledValue_timeoutMS(slot.value, WAIT_MS) {
            if commands.status() >= MTLCommandBufferStatus::Completed {
                break;
            }
        }
        if commands.status() == MTLCommandBufferStatus::Error {
            return Err(command_error(&commands));
        }
        let Some(output) = slot.output.as_ref().filter(|_| slot.num_words > 0) else { return Ok(&[]) };
        // SAFETY: the copy to it has ended; it has so many words, and the device leaves it alone until the slot is used
        // again, which takes `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(output.contents().cast::<u32>().as_ptr(), slot.num_words) })
    }

    fn num_under_way(&self) -> usize {
        self.under_way
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for MetalDriver {
    fn drop(&mut self) {
        // The device may still use what is dropped next. Where it is lost, nobody does.
        let _ = self.finish();
        self.context.keep_pipelines();
        self.resident.endResidency();
        self.queue.removeResidencySet(&self.resident);
    }
}

fn options() -> MTLResourceOptions {
    MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked
}

fn end_capture() {
    // SAFETY: there is one, and it may be used from any thread.
    unsafe { MTLCaptureManager::sharedCaptureManager() }.stopCapture();
}
