//! NVIDIA GPUs, through the CUDA driver, which is loaded when the first device is asked for: the binary needs no toolkit,
//! and starts on machines without one.
//!
//! A step is one graph launch. Its kernels may start before the one ahead has ended (programmatic dependent launch), up
//! to where they wait for it.

pub(crate) mod cublaslt;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError as CudaError};
use cudarc::driver::sys;

use backend::Counters;

use super::{Driver, DriverError, HostMemory, Recording, STEPS_MAX};
use crate::kernel_source;
use crate::launch::{Element, Launch, TileMap};
use crate::params::Address;
use crate::{GpuError, check_simd_width};

/// A device that was found.
#[derive(Clone, Debug)]
pub(crate) struct CudaDevice {
    context: Arc<Context>,
    pub(crate) name: String,
    /// What nobody used when it was found.
    pub(crate) memory_bytes: u64,
    /// Compute capability.
    pub(crate) capability: (u32, u32),
    pub(crate) multiprocessors: u32,
    /// The versions of the driver, where it says them.
    pub(crate) driver: Option<String>,
}

impl CudaDevice {
    /// How many there are. Loads the driver.
    pub(crate) fn count() -> Result<usize, GpuError> {
        // SAFETY: opens and closes the driver's library, whose initialisers are the driver's own.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::NoDriver);
        }
        let failed = |error: CudaError| GpuError::Driver { reason: describe(error) };
        result::init().map_err(failed)?;
        Ok(usize::try_from(result::device::get_count().map_err(failed)?).unwrap_or(0))
    }

    /// The device of this number, as the driver counts, with the kernels that `image` has for it.
    pub(crate) fn find(ordinal: usize, image: &kernel_source::ImageOf<'_>) -> Result<Self, GpuError> {
        let found = Self::count()?;
        let failed = |error: CudaError| GpuError::Driver { reason: describe(error) };
        let Some(number) = i32::try_from(ordinal).ok().filter(|_| ordinal < found) else {
            return Err(GpuError::NoDevice { ordinal, found });
        };
        let device = result::device::get(number).map_err(failed)?;
        let attribute = |attribute| {
            // SAFETY: the device was just found.
            let value = unsafe { result::device::get_attribute(device, attribute) };
            value.map(|value| u32::try_from(value).unwrap_or(0)).map_err(failed)
        };
        use sys::CUdevice_attribute as Attribute;
        let name = result::device::get_name(device).map_err(failed)?;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        check_simd_width(&name, attribute(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?)?;
        let Some(image) = image((major, minor))? else {
            return Err(GpuError::TooOld { name, major, minor });
        };
        let context = Arc::new(Context::new(device, &image).map_err(failed)?);
        let (free_bytes, _) = result::mem_get_info().map_err(failed)?;
        Ok(Self {
            context,
            name,
            memory_bytes: free_bytes as u64,
            capability: (major, minor),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            driver: driver_versions(),
        })
    }

    /// Bytes of group memory that a group may have.
    pub(crate) fn group_bytes_max(&self) -> u32 {
        u32::try_from(self.context.group_memory_bytes).unwrap_or(0)
    }
}

/// `driver 580.95.05, CUDA 13.0`: the kernel module's version, which only Linux shows, and the newest CUDA that it knows.
fn driver_versions() -> Option<String> {
    let module = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let is_version = |word: &&str| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let module = module.as_deref().and_then(|text| text.lines().next()?.split_whitespace().find(is_version));
    let mut cuda = 0;
    // SAFETY: the driver writes one number to where the pointer leads.
    let answer = unsafe { sys::cuDriverGetVersion(&mut cuda) };
    // 13000 is 13.0, 12090 is 12.9.
    let cuda = (answer == sys::CUresult::CUDA_SUCCESS && cuda > 0)
        .then(|| format!("CUDA {}.{}", cuda / 1000, cuda % 1000 / 10));
    let words: Vec<_> = module.map(|version| format!("driver {version}")).into_iter().chain(cuda).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// A device's context with the kernels in it: it takes a third of a second to make, and all models share it.
struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
    module: sys::CUmodule,
    /// Whether kernels may start before the one ahead has ended.
    early_start: bool,
    /// Group memory that a group can have.
    group_memory_bytes: i32,
}

// SAFETY: the handles are only read, and the driver accepts them from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn new(device: sys::CUdevice, image: &kernel_source::LoadedImage) -> Result<Self, CudaError> {
        // SAFETY: the device exists; the context is released in `drop`.
        let handle = unsafe { result::primary_ctx::retain(device) }?;
        let most = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let mut context = Self {
            device,
            handle,
            module: ptr::null_mut(),
            early_start: image.has_early_start,
            // SAFETY: the device exists.
            group_memory_bytes: unsafe { result::device::get_attribute(device, most) }?,
        };
        context.enter()?;
        // SAFETY: a whole image, which the driver checks and copies; PTX ends with NUL.
        context.module = unsafe { result::module::load_data(image.bytes.as_ptr().cast()) }?;
        Ok(context)
    }

    /// Lets `function` have all group memory that a group can have, and the multiprocessors keep as much of their first
    /// cache for group memory as they can, whatever kernel it is: they have to be idle to change that, and then no kernel
    /// could start before the one ahead has ended.
    fn give_group_memory(&self, function: sys::CUfunction) -> Result<(), CudaError> {
        use sys::CUfunction_attribute as Attribute;
        // SAFETY: the function is the caller's, of a module that lives.
        unsafe {
            let declared =
                result::function::get_function_attribute(function, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
            let most = self.group_memory_bytes - declared;
            let dynamic = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            result::function::set_function_attribute(function, dynamic, most)?;
            let preferred = Attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            result::function::set_function_attribute(function, preferred, 100)
        }
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: retained until `drop`.
        unsafe { result::ctx::set_current(self.handle) }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = self.enter();
        // SAFETY: each was made in `new`, and is not used again. A lost device fails these calls, and then there is
        // nothing to give back.
        unsafe {
            if !self.module.is_null() {
                let _ = result::module::unload(self.module);
            }
            let _ = result::primary_ctx::release(self.device);
        }
    }
}

/// One model's use of a device.
pub(crate) struct CudaDriver {
    context: Arc<Context>,
    stream: sys::CUstream,
    functions: HashMap<&'static str, sys::CUfunction>,
    allocations: HashSet<Address>,
    recordings: Vec<Recorded>,
    /// Whether a step submits each of its launches by itself, and not a graph of them.
    eager: bool,
    /// Behind each upload that was begun, the oldest first.
    uploads: VecDeque<sys::CUevent>,
    /// Of the steps under way; others are free.
    slots: [Slot; STEPS_MAX],
    /// The slot of the oldest step under way.
    oldest: usize,
    under_way: usize,
    counters: Counters,
}

/// The launches of a step, as they are submitted.
#[derive(Clone)]
enum Recorded {
    /// All at once.
    Graph(sys::CUgraphExec),
    /// One by one.
    Launches(Arc<[Launch]>),
}

/// Where the host's side of a step is.
struct Slot {
    input: Pinned,
    output: Pinned,
    num_words: usize,
    /// Behind the last copy.
    done: sys::CUevent,
}

impl Default for Slot {
    fn default() -> Self {
        Self { input: Pinned::default(), output: Pinned::default(), num_words: 0, done: ptr::null_mut() }
    }
}

impl Slot {
    /// Makes it ready for a step with so many bytes; returns how many allocations that took.
    fn reserve(&mut self, input_bytes: usize, output_bytes: usize) -> Result<u64, DriverError> {
        if self.done.is_null() {
            let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
            self.done = result::event::create(flags).map_err(failed)?;
        }
        Ok(u64::from(self.input.reserve(input_bytes)?) + u64::from(self.output.reserve(output_bytes)?))
    }
}

// SAFETY: the handles belong to this value alone, and the driver accepts them from any thread: each method makes the
// context current on the thread that calls it.
unsafe impl Send for CudaDriver {}

impl CudaDriver {
    pub(crate) fn open(device: &CudaDevice) -> Result<Self, DriverError> {
        device.context.enter().map_err(failed)?;
        Ok(Self {
            context: device.context.clone(),
            stream: result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed)?,
            functions: HashMap::new(),
            allocations: HashSet::new(),
            recordings: vec![],
            eager: false,
            uploads: VecDeque::new(),
            slots: Default::default(),
            oldest: 0,
            under_way: 0,
            counters: Counters::default(),
        })
    }

    /// Submits each launch of a step by itself, if `eager` says so.
    pub(crate) fn set_eager(&mut self, eager: bool) {
        self.eager = eager;
    }

    /// Makes the context current on this thread.
    fn enter(&self) -> Result<(), DriverError> {
        self.context.enter().map_err(failed)
    }

    fn function(&mut self, kernel: &'static str) -> Result<sys::CUfunction, DriverError> {
        if let Some(&function) = self.functions.get(kernel) {
            return Ok(function);
        }
        self.counters.look_ups += 1;
        let name = CString::new(kernel).expect("kernel names hold no NUL");
        // SAFETY: the module is loaded as long as the context lives.
        let function = unsafe { result::module::get_function(self.context.module, name) }
            .map_err(|error| DriverError::Failed(format!("kernel `{kernel}`: {}", describe(error))))?;
        self.context.give_group_memory(function).map_err(failed)?;
        self.functions.insert(kernel, function);
        Ok(function)
    }

    fn enqueue_kernel(&mut self, launch: &Launch) -> Result<(), DriverError> {
        let function = self.function(launch.kernel)?;
        let [x, y, z] = launch.groups;
        let mut attributes = [
            sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue {
                    programmaticStreamSerializationAllowed: (self.context.early_start && launch.early_start).into(),
                },
            },
            sys::CUlaunchAttribute {
                id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                pad: [0; 4],
                value: sys::CUlaunchAttributeValue {
                    clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: launch.cluster, y: 1, z: 1 },
                },
            },
        ];
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.group_bytes,
            hStream: self.stream,
            attrs: attributes.as_mut_ptr(),
            // Devices without an early start have no clusters either.
            numAttrs: if launch.cluster > 1 { 2 } else { self.context.early_start.into() },
        };
        let mut filled = launch.params.clone();
        for map in &launch.maps {
            let words = map.at / size_of::<u64>();
            filled[words..words + 16].copy_from_slice(&encode(map)?);
        }
        let mut params = [filled.as_mut_ptr().cast::<c_void>()];
        // SAFETY: the kernel takes one struct, of the size and layout that `params` has (`layout_assertions`); the driver
        // copies it before the call returns. Kernels touch only their operands: the simulator checks
        // that, and compute-sanitizer of those in `kernels/sm90`.
        let launched =
            unsafe { sys::cuLaunchKernelEx(&raw const config, function, params.as_mut_ptr(), ptr::null_mut()) };
        launched
            .result()
            .map_err(|error| DriverError::Failed(format!("launch of `{}`: {}", launch.kernel, describe(error))))
    }

    /// Queues a step whose host side is in the slot at `place`.
    fn submit(
        &mut self,
        place: usize,
        recorded: &Recorded,
        (to, input): (Address, &[i32]),
        (from, num_words): (Address, usize),
    ) -> Result<(), DriverError> {
        let stream = self.stream;
        // SAFETY: the slot's last step was collected, or failed and was waited for, so no copy from or to it is under way.
        let staged = unsafe { self.slots[place].input.slice_mut(input.len()) };
        staged.copy_from_slice(input);
        // SAFETY: to the allocation of the step input; the memory is left alone until the step is collected.
        unsafe { result::memcpy_htod_async(to.0, staged, stream) }.map_err(failed)?;
        match recorded {
            // SAFETY: made by `record`.
            Recorded::Graph(graph) => unsafe { result::graph::launch(*graph, stream) }.map_err(failed)?,
            Recorded::Launches(launches) => {
                self.counters.launches += launches.len() as u64;
                launches.iter().try_for_each(|launch| self.enqueue_kernel(launch))?;
            }
        }
        let slot = &mut self.slots[place];
        if num_words > 0 {
            // SAFETY: as for the input.
            let found = unsafe { slot.output.slice_mut::<u32>(num_words) };
            // SAFETY: from an allocation, as lowering laid it out; left alone until the step is collected.
            unsafe { result::memcpy_dtoh_async(found, from.0, stream) }.map_err(failed)?;
        }
        // SAFETY: `reserve` made the event, and the stream lives.
        unsafe { result::event::record(slot.done, stream) }.map_err(failed)
    }

    /// Makes a graph of what `enqueue` puts into the stream, ready to be launched.
    fn capture(
        &mut self,
        enqueue: impl FnOnce(&mut Self) -> Result<(), DriverError>,
    ) -> Result<sys::CUgraphExec, DriverError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives until `drop`.
        unsafe { result::stream::begin_capture(self.stream, mode) }.map_err(failed)?;
        let enqueued = enqueue(self);
        // SAFETY: as above; the capture ends whatever happened.
        let graph = unsafe { result::stream::end_capture(self.stream) };
        enqueued?;
        let graph = graph.map_err(failed)?;
        // SAFETY: the graph was just made.
        let instantiated = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: the graph is not needed any more.
        unsafe { result::graph::destroy(graph) }.map_err(failed)?;
        instantiated.map_err(failed)
    }

    /// How long a graph of `launches` takes on the device, from its begin to the end of its last kernel: the median of
    /// [`TIMED_REPLAYS`], in nanoseconds.
    fn time_replay(&mut self, launches: &[&Launch], edges: &Events) -> Result<u64, DriverError> {
        let graph = self.capture(|driver| {
            edges.pass(0, driver.stream)?;
            for (place, launch) in launches.iter().enumerate() {
                // Only behind a kernel can a kernel begin early.
                let early_start = launch.early_start && place > 0;
                driver.enqueue_kernel(&Launch { early_start, ..(*launch).clone() })?;
            }
            edges.pass(1, driver.stream)
        })?;
        let mut replay = || {
            // SAFETY: just made, on a stream that lives.
            unsafe { result::graph::launch(graph, self.stream) }.map_err(failed)?;
            self.synchronize()?;
            Ok(edges.edges_ns()?[1])
        };
        let times: Result<Vec<u64>, DriverError> = (0..TIMED_REPLAYS).map(|_| replay()).collect();
        // SAFETY: made above, and not used again; it is not running, or the context is lost.
        let destroyed = unsafe { result::graph::exec_destroy(graph) }.map_err(failed);
        let mut times = times?;
        destroyed?;
        times.sort_unstable();
        Ok(times[times.len() / 2])
    }

    fn synchronize(&mut self) -> Result<(), DriverError> {
        self.counters.waits += 1;
        // SAFETY: the stream lives until `drop`.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed)
    }
}

impl Driver for CudaDriver {
    fn allocate(&mut self, bytes: u64) -> Result<Address, DriverError> {
        self.enter()?;
        let size = usize::try_from(bytes.max(1)).map_err(|_| no_room(bytes))?;
        // SAFETY: plain memory; whoever reads it has written it before.
        match unsafe { result::malloc_sync(size) } {
            Ok(address) => {
                self.counters.allocations += 1;
                self.allocations.insert(Address(address));
                Ok(Address(address))
            }
            Err(OUT_OF_MEMORY) => Err(no_room(bytes)),
            Err(error) => Err(failed(error)),
        }
    }

    fn free(&mut self, address: Address) {
        assert!(self.allocations.remove(&address), "only what was allocated is freed");
        // An error of the device is reported by the call that needs it next.
        // SAFETY: allocated by `allocate`, and no longer known; the call waits for work that still uses it.
        let _ = self.enter().and_then(|()| unsafe { result::free_sync(address.0) }.map_err(failed));
    }

    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: inside an allocation, as lowering lays things out. From pageable memory the driver copies to its own
        // staging memory before the call returns.
        unsafe { result::memcpy_htod_async(to.0, bytes, self.stream) }.map_err(failed)
    }

    fn staging(&mut self, bytes: usize) -> Box<dyn HostMemory> {
        let mut memory = Staging { context: self.context.clone(), pinned: Pinned::default(), bytes };
        match self.enter().and_then(|()| memory.pinned.reserve(bytes)) {
            Ok(_) => Box::new(memory),
            // Slower, and the same.
            Err(_) => Box::new(vec![0; bytes]),
        }
    }

    fn begin_upload(&mut self, parts: &[(Address, &[u8])]) -> Result<(), DriverError> {
        self.enter()?;
        for (to, bytes) in parts {
            // SAFETY: inside an allocation, as lowering lays things out; the bytes are left alone until `end_upload`.
            unsafe { result::memcpy_htod_async(to.0, bytes, self.stream) }.map_err(failed)?;
        }
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING).map_err(failed)?;
        self.uploads.push_back(event);
        // SAFETY: the event was just made, and the stream lives.
        unsafe { result::event::record(event, self.stream) }.map_err(failed)
    }

    fn end_upload(&mut self) -> Result<(), DriverError> {
        self.enter()?;
        let event = self.uploads.pop_front().expect("an upload was begun");
        // SAFETY: made and recorded in `begin_upload`.
        let ended = unsafe { result::event::synchronize(event) };
        // SAFETY: as above, and not used again.
        unsafe { result::event::destroy(event) }.and(ended).map_err(failed)
    }

    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), DriverError> {
        self.enter()?;
        // SAFETY: inside an allocation; nothing touches `bytes` before the wait below.
        unsafe { result::memcpy_dtoh_async(bytes, from.0, self.stream) }.map_err(failed)?;
        self.synchronize()
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DriverError> {
        self.enter()?;
        self.counters.launches += 1;
        self.enqueue_kernel(launch)
    }

    fn time(&mut self, ops: &[&[Launch]]) -> Result<Vec<u64>, DriverError> {
        self.enter()?;
        let mut events = Events(Vec::with_capacity(ops.len() + 1));
        events.mark(self.stream)?;
        for launches in ops {
            launches.iter().try_for_each(|launch| self.enqueue_kernel(launch))?;
            events.mark(self.stream)?;
        }
        self.synchronize()?;
        events.edges_ns()
    }

    fn time_in_replay(&mut self, ops: &[&[Launch]]) -> Result<Option<Vec<u64>>, DriverError> {
        if self.eager {
            return Ok(None);
        }
        self.enter()?;
        let edges_of_replay = Events::new(2)?;
        let mut launches = vec![];
        let mut edges = vec![self.time_replay(&launches, &edges_of_replay)?];
        for op in ops {
            launches.extend(*op);
            let last = edges[edges.len() - 1];
            edges.push(if op.is_empty() { last } else { self.time_replay(&launches, &edges_of_replay)?.max(last) });
        }
        Ok(Some(edges))
    }

    fn record(&mut self, launches: &[Launch]) -> Result<Recording, DriverError> {
        self.enter()?;
        if self.eager {
            // A kernel that the module lacks is an error now, as it is where launches are captured.
            launches.iter().try_for_each(|launch| self.function(launch.kernel).map(drop))?;
            self.recordings.push(Recorded::Launches(launches.into()));
            return Ok(Recording(self.recordings.len() - 1));
        }
        let recording = self.capture(|driver| launches.iter().try_for_each(|launch| driver.enqueue_kernel(launch)))?;
        self.recordings.push(Recorded::Graph(recording));
        // SAFETY: just made, on a stream that lives.
        unsafe { result::graph::upload(recording, self.stream) }.map_err(failed)?;
        Ok(Recording(self.recordings.len() - 1))
    }

    fn forget_recordings(&mut self) {
        // What cannot be done here is reported by the call that needs the device next.
        let _ = self.enter().and_then(|()| self.synchronize());
        for recorded in self.recordings.drain(..) {
            if let Recorded::Graph(graph) = recorded {
                // SAFETY: made by `record`, not running, and no longer known.
                let _ = unsafe { result::graph::exec_destroy(graph) };
            }
        }
    }

    fn enqueue(
        &mut self,
        recording: Recording,
        input: (Address, &[i32]),
        output: (Address, usize),
    ) -> Result<(), DriverError> {
        self.enter()?;
        assert!(self.under_way < STEPS_MAX, "no more steps are under way than there is room for");
        let place = (self.oldest + self.under_way) % STEPS_MAX;
        let slot = &mut self.slots[place];
        self.counters.allocations += slot.reserve(size_of_val(input.1), output.1 * size_of::<u32>())?;
        slot.num_words = output.1;
        let recorded = self.recordings[recording.0].clone();
        if let Err(error) = self.submit(place, &recorded, input, output) {
            // The slot counts as free, so the copies that this step had submitted must finish before the next step writes the
            // slot's memory. If the wait fails too, the context is lost, and no copy runs any more.
            // SAFETY: the stream lives until `drop`.
            let _ = unsafe { result::stream::synchronize(self.stream) };
            return Err(error);
        }
        self.under_way += 1;
        self.counters.steps += 1;
        Ok(())
    }

    fn collect(&mut self) -> Result<&[u32], DriverError> {
        self.enter()?;
        assert!(self.under_way > 0, "a step is under way");
        let slot = &mut self.slots[self.oldest];
        self.oldest = (self.oldest + 1) % STEPS_MAX;
        self.under_way -= 1;
        self.counters.waits += 1;
        // SAFETY: the event was recorded behind the step.
        unsafe { result::event::synchronize(slot.done) }.map_err(failed)?;
        // SAFETY: the copy has ended.
        Ok(unsafe { slot.output.slice_mut(slot.num_words) })
    }

    fn num_under_way(&self) -> usize {
        self.under_way
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        self.forget_recordings();
        let allocations: Vec<_> = self.allocations.iter().copied().collect();
        allocations.into_iter().for_each(|address| self.free(address));
        for slot in &mut self.slots {
            slot.input.free();
            slot.output.free();
            if !slot.done.is_null() {
                // SAFETY: made in `reserve`, and not used again.
                let _ = unsafe { result::event::destroy(slot.done) };
            }
        }
        for event in self.uploads.drain(..) {
            // SAFETY: made in `begin_upload`, and not used again.
            let _ = unsafe { result::event::destroy(event) };
        }
        // SAFETY: made in `open`, and not used again; where the device is lost, there is nothing to give back.
        let _ = unsafe { result::stream::destroy(self.stream) };
    }
}

/// Marks in a queue, each with the time at which the device passed it.
struct Events(Vec<sys::CUevent>);

impl Events {
    /// So many marks that are nowhere yet.
    fn new(count: usize) -> Result<Self, DriverError> {
        let mut events = Self(Vec::with_capacity(count));
        for _ in 0..count {
            events.0.push(result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed)?);
        }
        Ok(events)
    }

    /// Puts mark `index` at the end of what `stream` captures: each launch of the graph passes it.
    fn pass(&self, index: usize, stream: sys::CUstream) -> Result<(), DriverError> {
        let is_of_graph = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: the event lives until `drop`, and graphs that pass it are not launched after that.
        unsafe { sys::cuEventRecordWithFlags(self.0[index], stream, is_of_graph) }.result().map_err(failed)
    }

    /// Adds a mark at the end of `stream`.
    fn mark(&mut self, stream: sys::CUstream) -> Result<(), DriverError> {
        self.0.push(result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(failed)?);
        // SAFETY: the event was just made, and the stream lives.
        unsafe { result::event::record(self.0[self.0.len() - 1], stream) }.map_err(failed)
    }

    /// When each was passed, in nanoseconds since the first. All have been.
    fn edges_ns(&self) -> Result<Vec<u64>, DriverError> {
        let since_first = |&event: &sys::CUevent| {
            // SAFETY: both events were made and recorded, and live.
            let ms = unsafe { result::event::elapsed(self.0[0], event) }.map_err(failed)?;
            Ok((f64::from(ms) * 1e6) as u64)
        };
        self.0.iter().map(since_first).collect()
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        for &event in &self.0 {
            // SAFETY: made in `mark`, and not used again.
            let _ = unsafe { result::event::destroy(event) };
        }
    }
}

/// The tensor map of `map`, as copies take it.
fn encode(map: &TileMap) -> Result<[u64; 16], DriverError> {
    use sys::CUtensorMapDataType as Type;
    use sys::CUtensorMapSwizzle as Swizzle;
    let rank = map.dims.len();
    assert!(rank <= 5 && map.strides.len() + 1 == rank && map.tile.len() == rank, "one length for each dimension");
    let element = match map.element {
        Element::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        Element::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Element::I8 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
    };
    let swizzle = if map.swizzled { Swizzle::CU_TENSOR_MAP_SWIZZLE_128B } else { Swizzle::CU_TENSOR_MAP_SWIZZLE_NONE };
    let steps = [1u32; 5];
    let mut encoded = sys::CUtensorMap { opaque: [0; 16] };
    // SAFETY: every array has as many lengths as the tensor has dimensions; nothing is read of the tensor itself.
    let done = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut encoded,
            element,
            rank as u32,
            map.address.0 as *mut c_void,
            map.dims.as_ptr(),
            map.strides.as_ptr(),
            map.tile.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    done.result().map_err(|error| DriverError::Failed(format!("tensor map {map:?}: {}", describe(error))))?;
    Ok(encoded.opaque)
}

/// Page-locked host memory, which copies go to and from at full speed.
#[derive(Default)]
struct Pinned {
    address: usize,
    bytes: usize,
}

impl Pinned {
    /// Room for `bytes`; what was there is lost where it grows. Returns whether it did.
    fn reserve(&mut self, bytes: usize) -> Result<bool, DriverError> {
        let grows = bytes > self.bytes;
        if grows {
            self.free();
            let size = bytes.next_power_of_two().max(4096);
            // SAFETY: plain memory.
            self.address = unsafe { result::malloc_host(size, 0) }.map_err(failed)? as usize;
            self.bytes = size;
            // SAFETY: just allocated, this long: initialised before it is seen as a slice.
            unsafe { (self.address as *mut u8).write_bytes(0, size) };
        }
        Ok(grows)
    }

    /// The first `len` elements.
    ///
    /// # Safety
    /// No copy from or to the memory is under way.
    unsafe fn slice_mut<T: bytemuck::Pod>(&mut self, len: usize) -> &mut [T] {
        if len == 0 {
            return &mut [];
        }
        assert!(len * size_of::<T>() <= self.bytes, "inside the memory");
        // SAFETY: page-aligned, as long as just checked, initialised, borrowed as `self` is; any bytes are a `T`.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut T, len) }
    }

    fn free(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated in `reserve`, and no longer known.
            let _ = unsafe { result::free_host(self.address as *mut c_void) };
            *self = Self::default();
        }
    }
}

/// Page-locked memory that lives as long as its holder wants it.
struct Staging {
    context: Arc<Context>,
    pinned: Pinned,
    bytes: usize,
}

impl HostMemory for Staging {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: copies from it are the holder's, who has ended them before it asks again.
        unsafe { self.pinned.slice_mut(self.bytes) }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Where a copy could not be begun, others may not have ended; where the device is lost, there is nothing to wait for.
        let _ = self.context.enter().and_then(|()| result::ctx::synchronize());
        self.pinned.free();
    }
}

/// How often a part of a step is replayed to find out how long it takes.
const TIMED_REPLAYS: usize = 3;

const OUT_OF_MEMORY: CudaError = CudaError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);

/// The error of an allocation, with what is free now; the context is current.
fn no_room(bytes: u64) -> DriverError {
    let free_bytes = result::mem_get_info().ok().map(|(free, _)| free as u64);
    DriverError::OutOfMemory { bytes, free_bytes }
}

fn failed(error: CudaError) -> DriverError {
    let words = describe(error);
    // Calls that allocate on their own account, as those that make a graph do, know no size.
    let free = if error == OUT_OF_MEMORY { result::mem_get_info().ok() } else { None };
    DriverError::Failed(match free {
        Some((free, total)) => {
            format!("{words}; {} MiB of the device's {} MiB are free, and a step needs more", free >> 20, total >> 20)
        }
        None => words,
    })
}

/// The driver's own name for the error, and its words.
fn describe(error: CudaError) -> String {
    let text = |text: Result<&CStr, CudaError>| text.map(|text| text.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Ok(name), Ok(words)) => format!("{name}: {words}"),
        _ => format!("CUDA error {}", error.0 as u32),
    }
}
