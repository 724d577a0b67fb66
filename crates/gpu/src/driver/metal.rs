//! Apple GPUs, through Metal. No Apple device has run this file yet: `docs/metal.md` says what was checked, and how.
//!
//! Memory is shared with the host, so uploads and downloads are plain copies. Kernels find their operands by the addresses
//! in their parameters; a residency set says that all of them are in use. Metal tracks no hazards here. Within a step,
//! barriers stand between launches that depend on each other ([`Hazards`]); one fence orders everything else: each encoder
//! waits for it first and updates it last.
//!
//! A step is one command buffer: its input is copied to its place, its kernels run, its output is copied to where the host
//! reads it, and a shared event is signalled. The kernels are encoded anew for each step, or replayed from an indirect
//! command buffer ([`MetalOptions::indirect`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use dispatch2::DispatchData;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSOperatingSystemVersion, NSProcessInfo, NSRange, NSString, NSURL};
use objc2_metal::{
    MTLBarrierScope, MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLBlitCommandEncoder, MTLBuffer,
    MTLCaptureDescriptor, MTLCaptureDestination, MTLCaptureManager, MTLCommandBuffer, MTLCommandBufferError,
    MTLCommandBufferStatus, MTLCommandEncoder, MTLCommandQueue, MTLCompileOptions, MTLComputeCommandEncoder,
    MTLComputePipelineDescriptor, MTLComputePipelineState, MTLCopyAllDevices, MTLDevice, MTLDispatchType, MTLFence,
    MTLGPUFamily, MTLIndirectCommandBuffer, MTLIndirectCommandBufferDescriptor, MTLIndirectCommandType,
    MTLIndirectComputeCommand, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode,
    MTLPipelineOption, MTLResidencySet, MTLResidencySetDescriptor, MTLResourceOptions, MTLSharedEvent, MTLSize,
};

use backend::Counters;

use super::hazards::Hazards;
use super::{Driver, DriverError, Recording, STEPS_MAX};
use crate::launch::Launch;
use crate::metal_source::MetalKernels;
use crate::params::Address;
use crate::{GpuError, MetalOptions};

// A program without a window has the default device only with this framework in it.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

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
/// Bytes of parameters that Metal takes with a launch.
const PARAMS_MAX: usize = 4096;
/// Where the parameters of an indirect command may begin.
const PARAMS_ALIGN: usize = 256;
/// The least version of macOS: the first with version 3.2 of the language, whose fences kernels need, and residency sets.
const MACOS_MIN: isize = 15;

/// A device that was found, with the kernels for it.
#[derive(Clone, Debug)]
pub(crate) struct MetalDevice {
    context: Arc<Context>,
    pub(crate) name: String,
    /// What the system lets a program use at a time, less what this program uses already.
    pub(crate) memory_bytes: u64,
    /// Guessed from the name: Metal does not say.
    pub(crate) cores: u32,
    /// Bytes of group memory that a group may have.
    pub(crate) group_bytes_max: u32,
    /// `built with the program` or `compiled from source`
    pub(crate) kernels: &'static str,
}

impl MetalDevice {
    /// How many there are.
    pub(crate) fn count() -> Result<usize, GpuError> {
        Ok(Self::all()?.len())
    }

    fn all() -> Result<Retained<NSArray<ProtocolObject<dyn MTLDevice>>>, GpuError> {
        let version = NSOperatingSystemVersion { majorVersion: MACOS_MIN, minorVersion: 0, patchVersion: 0 };
        if !NSProcessInfo::processInfo().isOperatingSystemAtLeastVersion(version) {
            return Err(failed_to_start(format!("the kernels need macOS {MACOS_MIN} or newer; use --device cpu")));
        }
        Ok(MTLCopyAllDevices())
    }

    /// The device of this number, as the system counts. Loads or compiles the kernels.
    pub(crate) fn find(ordinal: usize, options: &MetalOptions) -> Result<Self, GpuError> {
        let devices = Self::all()?;
        let Some(device) = devices.iter().nth(ordinal) else {
            return Err(GpuError::NoMetalDevice { ordinal, found: devices.len() });
        };
        let name = device.name().to_string();
        if !device.supportsFamily(MTLGPUFamily::Apple7) || !device.hasUnifiedMemory() {
            return Err(failed_to_start(format!("`{name}` is no GPU of an Apple M1 or newer; use --device cpu")));
        }
        let working_set = device.recommendedMaxWorkingSetSize();
        let group_bytes_max = u32::try_from(device.maxThreadgroupMemoryLength()).unwrap_or(u32::MAX);
        let (context, kernels) = Context::new(device, options)?;
        Ok(Self {
            memory_bytes: working_set.saturating_sub(context.device.currentAllocatedSize() as u64),
            context: Arc::new(context),
            cores: cores(&name),
            name,
            group_bytes_max,
            kernels,
        })
    }
}

/// GPU cores of the smallest chip that has this name.
fn cores(name: &str) -> u32 {
    let tiers = [("Ultra", 48), ("Max", 24), ("Pro", 14)];
    tiers.into_iter().find(|(tier, _)| name.ends_with(tier)).map_or(8, |(_, cores)| cores)
}

/// A device and the kernels for it, which all models share.
struct Context {
    device: Device,
    library: Object<dyn MTLLibrary>,
    pipelines: Mutex<Pipelines>,
    indirect: bool,
    /// Whether no weights are used in place.
    copied: bool,
    capture: Option<PathBuf>,
}

// SAFETY: devices, libraries and pipeline states may be used from any thread, says Metal; the archive only under the lock.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Kernels as the device runs them: each is made once, and kept in an archive from one start to the next.
struct Pipelines {
    made: HashMap<&'static str, Pipeline>,
    archive: Object<dyn MTLBinaryArchive>,
    /// Where the archive is kept.
    file: Option<PathBuf>,
    /// Whether it has grown.
    grown: bool,
}

impl Context {
    /// Also returns where the kernels come from, in words.
    fn new(device: Device, options: &MetalOptions) -> Result<(Self, &'static str), GpuError> {
        let found = MetalKernels::load(options.source.as_deref())?;
        let (library, kernels) = match &found {
            MetalKernels::Text(text) => (compile(&device, text)?, "compiled from source"),
            &MetalKernels::Built(bytes) => {
                let library = device.newLibraryWithData_error(&DispatchData::from_static_bytes(bytes));
                (library.map_err(|error| failed_to_start(describe(&error)))?, "built with the program")
            }
        };
        let how = if options.indirect { "indirect" } else { "direct" };
        // A damaged or outdated archive is none.
        let file = options.cache.as_ref().map(|cache| cache.join(format!("{:016x}-{how}.metalarchive", found.hash())));
        let kept = file.as_deref().filter(|file| file.exists()).and_then(|file| archive(&device, Some(file)).ok());
        let archive =
            kept.map_or_else(|| archive(&device, None), Ok).map_err(|error| failed_to_start(describe(&error)))?;
        let pipelines = Mutex::new(Pipelines { made: HashMap::new(), archive, file, grown: false });
        let &MetalOptions { indirect, copied, .. } = options;
        Ok((Self { device, library, pipelines, indirect, copied, capture: options.capture.clone() }, kernels))
    }

    /// The kernel of that name, and whether it was made now.
    fn pipeline(&self, kernel: &'static str) -> Result<(Pipeline, bool), DriverError> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipeline) = pipelines.made.get(kernel) {
            return Ok((pipeline.clone(), false));
        }
        let name = NSString::from_str(kernel);
        let function = self.library.newFunctionWithName(&name);
        let function = function.ok_or_else(|| DriverError::Failed(format!("there is no kernel `{kernel}`")))?;
        let descriptor = MTLComputePipelineDescriptor::new();
        descriptor.setLabel(Some(&name));
        descriptor.setComputeFunction(Some(&function));
        descriptor.setSupportIndirectCommandBuffers(self.indirect);
        descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*pipelines.archive])));
        let make = |option| {
            self.device.newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, option, None)
        };
        let pipeline = match make(MTLPipelineOption::FailOnBinaryArchiveMiss) {
            Ok(pipeline) => pipeline,
            Err(_) => {
                let pipeline = make(MTLPipelineOption::None);
                let pipeline = pipeline
                    .map_err(|error| DriverError::Failed(format!("kernel `{kernel}`: {}", describe(&error))))?;
                // Without an archive it is compiled again next time.
                pipelines.grown |=
                    pipelines.archive.addComputePipelineFunctionsWithDescriptor_error(&descriptor).is_ok();
                pipeline
            }
        };
        pipelines.made.insert(kernel, pipeline.clone());
        Ok((pipeline, true))
    }

    /// Writes the archive, if it has grown. That it cannot be kept is no error.
    fn keep_pipelines(&self) {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut pipelines.grown) {
            return;
        }
        let Some(file) = &pipelines.file else { return };
        let partial = file.with_extension(format!("{}.partial", std::process::id()));
        if let Some(url) = NSURL::from_file_path(&partial)
            && file.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok())
            && pipelines.archive.serializeToURL_error(&url).is_ok()
        {
            let _ = fs::rename(partial, file);
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("device", &self.device.name()).finish_non_exhaustive()
    }
}

/// The library that the device compiles from `text`: as `build.rs` compiles it, with the arithmetic that is written.
fn compile(device: &ProtocolObject<dyn MTLDevice>, text: &str) -> Result<Object<dyn MTLLibrary>, GpuError> {
    let options = MTLCompileOptions::new();
    options.setLanguageVersion(MTLLanguageVersion::Version3_2);
    options.setMathMode(MTLMathMode::Safe);
    options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Fast);
    let library = device.newLibraryWithSource_options_error(&NSString::from_str(text), Some(&options));
    library.map_err(|error| failed_to_start(format!("the kernels do not compile: {}", describe(&error))))
}

fn archive(
    device: &ProtocolObject<dyn MTLDevice>,
    file: Option<&Path>,
) -> Result<Object<dyn MTLBinaryArchive>, Retained<NSError>> {
    let descriptor = MTLBinaryArchiveDescriptor::new();
    descriptor.setUrl(file.and_then(NSURL::from_file_path).as_deref());
    device.newBinaryArchiveWithDescriptor_error(&descriptor)
}

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

/// The kernels of a step.
struct Program {
    dispatches: Vec<Dispatch>,
    indirect: Option<Indirect>,
}

/// A launch, ready to be encoded.
struct Dispatch {
    pipeline: Pipeline,
    params: Vec<u64>,
    groups: MTLSize,
    threads: MTLSize,
    group_bytes: usize,
    /// Whether it waits for those before it.
    waits: bool,
}

/// The same as the device keeps it.
struct Indirect {
    commands: Object<dyn MTLIndirectCommandBuffer>,
    params: Buffer,
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
        buffer.ok_or(DriverError::OutOfMemory { bytes })
    }

    /// The allocation that `address` is in, and where in it.
    fn find(&self, address: Address, len: usize) -> (&Buffer, usize) {
        let found = self.allocations.range(..=address.0).next_back();
        let (start, buffer) = found.expect("addresses are those that were allocated");
        let offset = (address.0 - start) as usize;
        assert!(offset + len <= buffer.length(), "{len} bytes at {address:?} are not allocated");
        (buffer, offset)
    }

    /// `launch`, with its kernel.
    fn prepare(&mut self, launch: &Launch, waits: bool) -> Result<Dispatch, DriverError> {
        let (pipeline, made) = self.context.pipeline(launch.kernel)?;
        self.counters.look_ups += u64::from(made);
        // Group memory comes in pieces of 16 bytes.
        let group_bytes = (launch.group_bytes as usize).next_multiple_of(16);
        let most = self.context.device.maxThreadgroupMemoryLength();
        let fits = launch.threads as usize <= pipeline.maxTotalThreadsPerThreadgroup()
            && pipeline.staticThreadgroupMemoryLength() + group_bytes <= most
            && size_of_val(&launch.params[..]) <= PARAMS_MAX
            && pipeline.threadExecutionWidth() == 32;
        if !fits || launch.cluster > 1 || !launch.maps.is_empty() {
            return Err(DriverError::Failed(format!(
                "kernel `{}` cannot run here: groups of {} threads with {} + {} bytes, of at most {} and {most}",
                launch.kernel,
                launch.threads,
                pipeline.staticThreadgroupMemoryLength(),
                launch.group_bytes,
                pipeline.maxTotalThreadsPerThreadgroup(),
            )));
        }
        let [width, height, depth] = launch.groups.map(|n| n as usize);
        Ok(Dispatch {
            pipeline,
            params: launch.params.clone(),
            groups: MTLSize { width, height, depth },
            threads: MTLSize { width: launch.threads as usize, height: 1, depth: 1 },
            group_bytes,
            waits,
        })
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
    fn encode(&self, commands: &CommandBuffer, kernels: Kernels<'_>) -> Result<(), DriverError> {
        let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        let encoder = encoder.ok_or_else(|| DriverError::Failed("Metal gives no compute encoder".to_owned()))?;
        encoder.waitForFence(&self.fence);
        match kernels {
            Kernels::Indirect(Indirect { commands, .. }, len) => {
                // SAFETY: it has so many commands, and lives as long as the program that it is of.
                unsafe { encoder.executeCommandsInBuffer_withRange(commands, NSRange::new(0, len)) };
            }
            Kernels::Direct(dispatches) => dispatches.iter().for_each(|dispatch| dispatch.encode(&encoder)),
        }
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
        // SAFETY: inside both, as `find` and `Slot::reserve` see to, and both outlive the step.
        unsafe { encoder.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(from, from_at, to, to_at, len) };
        encoder.updateFence(&self.fence);
        encoder.endEncoding();
        Ok(())
    }

    /// Runs kernels outside of a step.
    fn submit(&mut self, dispatches: &[Dispatch]) -> Result<CommandBuffer, DriverError> {
        let commands = self.command_buffer()?;
        self.encode(&commands, Kernels::Direct(dispatches))?;
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

    /// The kernels of a step as an indirect command buffer.
    fn indirect(&self, dispatches: &[Dispatch]) -> Result<Indirect, DriverError> {
        let descriptor = MTLIndirectCommandBufferDescriptor::new();
        descriptor.setCommandTypes(MTLIndirectCommandType::ConcurrentDispatch);
        descriptor.setInheritPipelineState(false);
        descriptor.setInheritBuffers(false);
        descriptor.setMaxKernelBufferBindCount(1);
        // SAFETY: one is within any bounds.
        unsafe { descriptor.setMaxKernelThreadgroupMemoryBindCount(1) };
        let lengths =
            dispatches.iter().map(|dispatch| size_of_val(&dispatch.params[..]).next_multiple_of(PARAMS_ALIGN));
        let params = self.buffer(lengths.clone().sum::<usize>() as u64)?;
        // SAFETY: a number of launches that a step has.
        let commands = unsafe {
            self.context.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options(
                &descriptor,
                dispatches.len().max(1),
                options(),
            )
        };
        let commands = commands.ok_or_else(|| DriverError::Failed("Metal gives no indirect commands".to_owned()))?;
        let mut at = 0;
        for (index, (dispatch, len)) in dispatches.iter().zip(lengths).enumerate() {
            let bytes: &[u8] = bytemuck::cast_slice(&dispatch.params);
            // SAFETY: the buffer has room for the parameters of all, and nothing uses it yet.
            unsafe { params.contents().cast::<u8>().add(at).copy_from(NonNull::from(bytes).cast(), bytes.len()) };
            // SAFETY: one of the commands that were made.
            let command = unsafe { commands.indirectComputeCommandAtIndex(index) };
            command.setComputePipelineState(&dispatch.pipeline);
            // SAFETY: inside the buffer, which lives as long as the commands.
            unsafe { command.setKernelBuffer_offset_atIndex(&params, at, 0) };
            if dispatch.group_bytes > 0 {
                // SAFETY: index 0 is the one that there is.
                unsafe { command.setThreadgroupMemoryLength_atIndex(dispatch.group_bytes, 0) };
            }
            if dispatch.waits {
                command.setBarrier();
            }
            command.concurrentDispatchThreadgroups_threadsPerThreadgroup(dispatch.groups, dispatch.threads);
            at += len;
        }
        self.resident.addAllocation(ProtocolObject::from_ref(&*params));
        self.resident.addAllocation(ProtocolObject::from_ref(&*commands));
        self.resident.commit();
        Ok(Indirect { commands, params })
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
        let kernels = match &program.indirect {
            Some(indirect) => Kernels::Indirect(indirect, program.dispatches.len()),
            None => Kernels::Direct(&program.dispatches),
        };
        self.encode(&commands, kernels)?;
        if let Some(output) = output.as_ref().filter(|_| output_bytes > 0) {
            self.copy(&commands, self.find(from, output_bytes), (output, 0), output_bytes)?;
        }
        commands.encodeSignalEvent_value(ProtocolObject::from_ref(&*self.event), *value);
        commands.commit();
        Ok(commands)
    }
}

/// What an encoder is given.
enum Kernels<'a> {
    Direct(&'a [Dispatch]),
    /// And how many they are.
    Indirect(&'a Indirect, usize),
}

impl Dispatch {
    fn encode(&self, encoder: &ProtocolObject<dyn MTLComputeCommandEncoder>) {
        if self.waits {
            encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        }
        encoder.setComputePipelineState(&self.pipeline);
        let params: &[u8] = bytemuck::cast_slice(&self.params);
        // SAFETY: the kernel takes one struct, of the size and layout that `params` has (`layout_assertions`), and Metal
        // copies it. Kernels touch only their operands: the simulator checks that.
        unsafe { encoder.setBytes_length_atIndex(NonNull::from(params).cast(), params.len(), 0) };
        if self.group_bytes > 0 {
            // SAFETY: index 0 is the one that there is.
            unsafe { encoder.setThreadgroupMemoryLength_atIndex(self.group_bytes, 0) };
        }
        encoder.dispatchThreadgroups_threadsPerThreadgroup(self.groups, self.threads);
    }
}

impl Slot {
    /// Makes `place` a buffer of `bytes` at least; returns how many allocations that took.
    fn reserve(driver: &MetalDriver, place: &mut Option<Buffer>, bytes: usize) -> Result<u64, DriverError> {
        if bytes == 0 || place.as_ref().is_some_and(|buffer| buffer.length() >= bytes) {
            return Ok(0);
        }
        *place = Some(driver.buffer(bytes.next_power_of_two().max(4096) as u64)?);
        Ok(1)
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
            self.submit(&[dispatch]).map(drop)
        })
    }

    /// Each op is a command buffer of its own, since that is what Metal times on every device. So what lies between two is
    /// counted to the first of them.
    fn time(&mut self, ops: &[&[Launch]]) -> Result<Vec<u64>, DriverError> {
        autoreleasepool(|_| {
            let mut timed = Vec::with_capacity(ops.len());
            for launches in ops {
                let dispatches = self.prepare_all(launches)?;
                timed.push(self.submit(&dispatches)?);
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
        let grown = Slot::reserve(self, &mut slot.input, input_bytes)
            .and_then(|grown| Ok(grown + Slot::reserve(self, &mut slot.output, output_bytes)?));
        slot.num_words = num_words;
        slot.value = self.counters.steps + 1;
        if let Some(staged) = slot.input.as_ref().filter(|_| grown.is_ok()) {
            // SAFETY: the buffer is as long as was just reserved, and the step that used it last was collected.
            unsafe { staged.contents().cast::<i32>().copy_from(NonNull::from(input).cast(), input.len()) };
        }
        self.slots[place] = slot;
        self.counters.allocations += grown?;

        let context = self.context.clone();
        let capture = context.capture.as_deref().filter(|_| self.counters.steps == CAPTURED_STEP);
        capture.map_or(Ok(()), |file| self.begin_capture(file))?;
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
            if commands.status() == MTLCommandBufferStatus::Error {
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

/// Waits for a command buffer that was submitted.
fn ended(commands: &CommandBuffer) -> Result<(), DriverError> {
    commands.waitUntilCompleted();
    if commands.status() == MTLCommandBufferStatus::Error { Err(command_error(commands)) } else { Ok(()) }
}

/// Why a command buffer failed.
fn command_error(commands: &CommandBuffer) -> DriverError {
    let Some(error) = commands.error() else {
        return DriverError::Failed("the GPU failed, and Metal does not say why".to_owned());
    };
    let what = match MTLCommandBufferError(error.code().unsigned_abs()) {
        MTLCommandBufferError::OutOfMemory => "has no room for all that a step uses: use a smaller --ctx-size or model",
        MTLCommandBufferError::Timeout => "took so long that the system stopped it",
        MTLCommandBufferError::PageFault => "touched memory that is not there",
        MTLCommandBufferError::AccessRevoked => "may not be used any more, after earlier errors",
        MTLCommandBufferError::NotPermitted => "may not be used by this program now",
        MTLCommandBufferError::InvalidResource => "was given memory that is no more",
        MTLCommandBufferError::DeviceRemoved => "was removed",
        MTLCommandBufferError::StackOverflow => "has no stack left",
        _ => "failed",
    };
    DriverError::Failed(format!("the GPU {what} ({})", describe(&error)))
}

fn failed_to_start(reason: String) -> GpuError {
    GpuError::Metal { reason }
}

/// The error's domain, number and words.
fn describe(error: &NSError) -> String {
    format!("{} {}: {}", error.domain(), error.code(), error.localizedDescription())
}
