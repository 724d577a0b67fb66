//! The GPU backend: plans lowered to kernel launches, recorded once for each step shape and replayed.
//!
//! The kernels (`kernels/`) are one text in the common subset of CUDA C++ and the Metal Shading Language; a header for
//! each compiler (`kernels/port/`) makes up the difference, and a third one compiles the text for the processor, as a
//! simulator that checks every access, barrier and shuffle. Everything above the drivers is shared: lowering, memory,
//! the step input that is uploaded in one copy, and the replay.
//!
//! Knows nothing of models, files, flags or the environment.

mod cubin;
mod driver;
mod executable;
#[cfg(any(test, target_os = "macos"))]
mod flatten;
mod forced;
#[macro_use]
mod formats;
mod glu_bounds;
pub mod kernel_source;
mod kernels;
mod kv_cache;
mod launch;
pub mod metal_source;
pub mod nvrtc;
mod ops;
mod params;
mod profile;
mod roofline;
#[cfg(test)]
mod same_launches;
mod self_test;
mod site;
mod step_input;
mod target;
mod vendor;
mod weights;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use backend::{Backend, BackendError, Claims, Copied, DeviceInfo, Executable, Footprint, check_load};
use plan::{CacheLayer, KvFormat, KvLayout, LatentLayer, Op, Plan, StepShape};
use tensor::{ActivationRounding, Tensor, WeightFormat};

use driver::cuda::{CudaDevice, CudaDriver};
#[cfg(target_os = "macos")]
use driver::metal::{MetalDevice, MetalDriver};
use driver::{Driver, DriverError};
use formats::DeviceFormat;
use kernel_source::ImageOf;
use kernels::{mla_attention, route};
use target::{Matrix, MemorySpeed, Target};
use weights::DeviceWeights;

pub use backend::Tuned;
pub use cubin::{CubinKernel, cubin_kernels, ptx_kernels, ptx_of};
pub use forced::{ForcedVariant, ForcedVariantError, ForcedVariants};
pub use kernel_source::KernelSource;
pub use roofline::{Bandwidth, Cost, Peak, Roofline};
pub use vendor::{Numbers, Product, Vendor, VendorError, VendorTimes};

#[cfg(feature = "sim")]
pub use driver::sim::{SimDialect, SimFault, SimFaults, ThreadOrder};

/// Whether this build has [`GpuBackend::simulated`].
pub const HAS_SIMULATOR: bool = cfg!(feature = "sim");

/// The name of NVIDIA GPUs in flags and reports.
const CUDA: &str = "cuda";
/// The name of Apple GPUs in flags and reports.
#[cfg(target_os = "macos")]
const METAL: &str = "metal";
/// The simulator's name in flags and reports.
#[cfg(feature = "sim")]
const SIM: &str = "sim";
/// The same of the simulator of Metal.
#[cfg(feature = "sim")]
const METAL_SIM: &str = "metal-sim";
#[cfg(feature = "sim")]
fn sim_name(dialect: SimDialect) -> &'static str {
    match dialect {
        SimDialect::Cuda => SIM,
        SimDialect::Metal => METAL_SIM,
    }
}

/// Memory of the simulator where nobody says how much: for small models, as larger ones would take days.
#[cfg(feature = "sim")]
const SIMULATED_BYTES: u64 = 4 << 30;

/// Threads of a SIMD group, in every kernel: `SIMD` in `kernels/port`.
const SIMD_WIDTH: u32 = 32;

/// Refuses a device on which shuffles and sums over a SIMD group would be of other threads.
fn check_simd_width(name: &str, width: u32) -> Result<(), GpuError> {
    if width == SIMD_WIDTH { Ok(()) } else { Err(GpuError::SimdWidth { name: name.to_owned(), width }) }
}

/// The widest head that the attention kernels hold in registers.
const HEAD_DIM_MAX: usize = 256;

/// A GPU, or the simulator of one.
#[derive(Clone, Debug)]
pub struct GpuBackend {
    device: DeviceInfo,
    options: GpuOptions,
    system: System,
}

/// How a GPU computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuOptions {
    /// A token's results do not depend on the tokens beside it, bit for bit: kernels are chosen by what a matrix is, and
    /// not by how many rows meet it. Mixtures of experts and latent attention do without matrix instructions then.
    pub batch_invariant: bool,
    /// Kernels that are taken wherever they can be, for whoever compares them.
    pub forced: ForcedVariants,
    /// What was measured best on this device.
    pub tuned: Tuned,
    /// The host submits each launch of a step by itself, and records none. A benchmark compares the two.
    pub eager: bool,
    /// Bytes per nanosecond that this device reads of its memory, where that was measured: cost models reckon with it, in
    /// steps that noise does not cross, instead of with that of an H200.
    pub read_bytes_per_ns: Option<u32>,
}

impl GpuOptions {
    /// What cost models reckon with. Where a row must have the same bits beside others, they choose nothing that the
    /// memory has a part in, and are told nothing of it.
    fn memory(&self) -> MemorySpeed {
        let measured = self.read_bytes_per_ns.filter(|_| !self.batch_invariant);
        measured.map_or(MemorySpeed::FITTED, MemorySpeed::next_to)
    }
}

/// What only Apple GPUs are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetalOptions {
    /// A folder with the kernels as text (`port/metal.h` and the files of `all.h`), which are compiled now in place of
    /// those that the binary carries: for whoever works on them.
    pub source: Option<PathBuf>,
    /// A folder where compiled kernels are kept from one start to the next; nowhere without it.
    pub cache: Option<PathBuf>,
    /// Whether a step is replayed from an indirect command buffer, and not encoded each time.
    pub indirect: bool,
    /// Whether weights are copied even where the device could read them in the file's mapping.
    pub copied: bool,
    /// A file that gets a trace of one step, for Xcode. Needs `MTL_CAPTURE_ENABLED=1` in the environment.
    pub capture: Option<PathBuf>,
}

/// What runs the kernels.
#[derive(Clone, Debug)]
enum System {
    Cuda(CudaDevice),
    #[cfg(target_os = "macos")]
    Metal(MetalDevice),
    #[cfg(feature = "sim")]
    Sim(SimDialect, ThreadOrder, SimFaults),
}

impl System {
    /// What it is to a person, and what is forced, measured, tuned and eager, so that every report says so.
    fn description(&self, options: GpuOptions) -> String {
        let GpuOptions { forced, tuned, eager, .. } = options;
        let mut device = match self {
            Self::Cuda(CudaDevice { name, capability: (major, minor), multiprocessors, .. }) => {
                format!("{name}, compute capability {major}.{minor}, {multiprocessors} multiprocessors")
            }
            #[cfg(target_os = "macos")]
            Self::Metal(MetalDevice { name, cores, kernels, .. }) => {
                format!("{name}, {cores} cores or more, kernels {kernels}")
            }
            #[cfg(feature = "sim")]
            Self::Sim(SimDialect::Cuda, order, _) => format!("GPU simulator, threads {order:?}"),
            #[cfg(feature = "sim")]
            Self::Sim(SimDialect::Metal, order, _) => format!("GPU simulator of Metal, threads {order:?}"),
        };
        if forced != ForcedVariants::NONE {
            device.push_str(&format!(", forced: {forced}"));
        }
        if options.memory() != MemorySpeed::FITTED {
            let bytes_per_ns = options.memory().bytes_per_ns();
            device.push_str(&format!(", cost models for {bytes_per_ns} GB/s"));
        }
        if let Some(shapes) = tuned.num_choices() {
            device.push_str(&format!(", tuned for {shapes} shapes"));
        }
        if eager {
            device.push_str(", eager: steps are not recorded");
        }
        device
    }
}

/// Why there is no GPU to compute on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// No NVIDIA driver on this machine.
    #[error("this machine has no NVIDIA driver (libcuda was not found); use --device cpu")]
    NoDriver,
    /// Fewer devices than asked for.
    #[error("there is no CUDA device {ordinal}: the driver shows {found}")]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// Devices that there are.
        found: usize,
    },
    /// A device from before what kernels are compiled for.
    #[error("`{name}` has compute capability {major}.{minor}, and 8.0 is the least; use --device cpu")]
    TooOld {
        /// The device.
        name: String,
        /// Its compute capability.
        major: u32,
        /// Its compute capability.
        minor: u32,
    },
    /// A device whose SIMD groups are not what kernels are written for.
    #[error("`{name}` has SIMD groups of {width} threads, and the kernels are written for 32; use --device cpu")]
    SimdWidth {
        /// The device.
        name: String,
        /// Threads that it runs in step.
        width: u32,
    },
    /// Kernels that are to be compiled from source, and cannot be read.
    #[error("cannot read the kernel source `{}`: {reason}", path.display())]
    KernelSource {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Kernels that are to be compiled from source, and cannot be.
    #[error(transparent)]
    Compiler(#[from] nvrtc::NvrtcError),
    /// A kernel is forced that this device lacks, or that it must not use as it is to compute.
    #[error("`{kernel}` cannot compute `{op}` on `{device}` as it is to; what can: {known}")]
    NoVariant {
        /// The device.
        device: String,
        /// The op.
        op: &'static str,
        /// The kernel.
        kernel: &'static str,
        /// Kernels that can.
        known: String,
    },
    /// Not a machine of Apple's.
    #[error("metal: only on macOS, and this is not; use --device cpu")]
    NotMacos,
    /// Fewer Apple GPUs than asked for.
    #[error("there is no Metal device {ordinal}: the system shows {found}; use --device cpu")]
    NoMetalDevice {
        /// The number asked for.
        ordinal: usize,
        /// Devices that there are.
        found: usize,
    },
    /// The device or the system lacks something, or the kernels do not compile.
    #[error("metal: {reason}")]
    Metal {
        /// What is wrong.
        reason: String,
    },
    /// The simulator, in a program without it.
    #[error(
        "sim: this program was built without the simulator of GPUs, which is for those who work on kernels; with a C++ compiler \
         (Debian: apt-get install g++), `cargo build --release --package hotmetal --features sim` makes one that has it"
    )]
    NoSimulator,
    /// A table of tuned kernels that cannot be used.
    #[error("{reason}")]
    Table {
        /// Why.
        reason: String,
    },
    /// The driver does not answer.
    #[error("the NVIDIA driver failed: {reason}")]
    Driver {
        /// What it said.
        reason: String,
    },
}

impl GpuBackend {
    /// The NVIDIA GPU of this number, as the driver counts. Loads the driver and the kernels.
    pub fn cuda(ordinal: usize, options: GpuOptions) -> Result<Self, GpuError> {
        Self::cuda_with(ordinal, options, &kernel_source::image)
    }

    /// As [`GpuBackend::cuda`], with kernels that are compiled now, from the files in a folder: for whoever works on
    /// them.
    pub fn cuda_from_source(ordinal: usize, options: GpuOptions, source: &KernelSource) -> Result<Self, GpuError> {
        Self::cuda_with(ordinal, options, &|capability| source.image(capability))
    }

    fn cuda_with(ordinal: usize, options: GpuOptions, image: &ImageOf<'_>) -> Result<Self, GpuError> {
        let found = CudaDevice::find(ordinal, image)?;
        let (memory_bytes, driver) = (found.memory_bytes, found.driver.clone());
        let device = DeviceInfo { name: CUDA.to_owned(), description: String::new(), memory_bytes, driver };
        Self { device, options: GpuOptions::default(), system: System::Cuda(found) }.with_options(options)
    }

    /// Every NVIDIA GPU of this machine, by its number, or why it cannot be used.
    pub fn all_cuda(options: GpuOptions) -> Result<Vec<Result<Self, GpuError>>, GpuError> {
        Ok((0..CudaDevice::count()?).map(|ordinal| Self::cuda(ordinal, options)).collect())
    }

    /// The Apple GPU of this number, as the system counts. Loads the kernels, or compiles them.
    #[cfg(target_os = "macos")]
    pub fn metal(ordinal: usize, options: GpuOptions, metal: &MetalOptions) -> Result<Self, GpuError> {
        let found = MetalDevice::find(ordinal, metal)?;
        let memory_bytes = found.memory_bytes;
        let device = DeviceInfo { name: METAL.to_owned(), description: String::new(), memory_bytes, driver: None };
        Self { device, options: GpuOptions::default(), system: System::Metal(found) }.with_options(options)
    }

    /// The Apple GPU of this number: there is none here.
    #[cfg(not(target_os = "macos"))]
    pub fn metal(_ordinal: usize, _options: GpuOptions, _metal: &MetalOptions) -> Result<Self, GpuError> {
        Err(GpuError::NotMacos)
    }

    /// Every Apple GPU of this machine, by its number, or why it cannot be used.
    pub fn all_metal(options: GpuOptions, metal: &MetalOptions) -> Result<Vec<Result<Self, GpuError>>, GpuError> {
        #[cfg(target_os = "macos")]
        let count = MetalDevice::count();
        #[cfg(not(target_os = "macos"))]
        let count = Err(GpuError::NotMacos);
        Ok((0..count?).map(|ordinal| Self::metal(ordinal, options, metal)).collect())
    }

    /// The same device, computing in another way. What is forced must be something that it can do.
    pub fn with_options(self, options: GpuOptions) -> Result<Self, GpuError> {
        let mut backend = Self { options, ..self };
        let target = backend.target();
        for (op, kernel) in options.forced.iter() {
            let known = target.kernels_of(op);
            if !known.contains(&kernel) {
                let (device, known) = (backend.device.name.clone(), forced::names(&known));
                return Err(GpuError::NoVariant { device, op, kernel: kernel.name(), known });
            }
        }
        #[cfg(target_os = "macos")]
        if options.eager && matches!(backend.system, System::Metal(_)) {
            let reason = "each launch of a step is encoded by itself already, unless steps are indirect".to_owned();
            return Err(GpuError::Metal { reason });
        }
        let tuned = if options.batch_invariant { Tuned::NONE } else { options.tuned };
        backend.device.description = backend.system.description(GpuOptions { tuned, ..options });
        Ok(backend)
    }

    /// What the device is to a person, whatever its options.
    pub fn untuned_description(&self) -> String {
        self.system.description(GpuOptions::default())
    }

    /// The simulator as a device that flags name: thousands of times slower than a GPU, and strict.
    pub fn simulated(options: GpuOptions) -> Result<Self, GpuError> {
        #[cfg(feature = "sim")]
        return Self::simulator(ThreadOrder::Forward, SIMULATED_BYTES, GpuOptions::default()).with_options(options);
        #[cfg(not(feature = "sim"))]
        {
            let _ = options;
            Err(GpuError::NoSimulator)
        }
    }

    /// The simulator, with `memory_bytes` of device memory.
    #[cfg(feature = "sim")]
    pub fn simulator(order: ThreadOrder, memory_bytes: u64, options: GpuOptions) -> Self {
        Self::simulator_of(SimDialect::Cuda, order, memory_bytes, options)
    }

    /// As [`GpuBackend::simulator`], of the kernel text in one dialect or the other.
    #[cfg(feature = "sim")]
    pub fn simulator_of(dialect: SimDialect, order: ThreadOrder, memory_bytes: u64, options: GpuOptions) -> Self {
        let system = System::Sim(dialect, order, SimFaults::default());
        let name = sim_name(dialect).to_owned();
        let description = system.description(options);
        let device = DeviceInfo { name, description, memory_bytes, driver: None };
        Self { device, options, system }
    }

    /// The simulator, with faults that can be planted while it runs.
    #[cfg(feature = "sim")]
    pub fn with_faults(self, faults: SimFaults) -> Self {
        match self.system {
            System::Sim(dialect, order, _) => Self { system: System::Sim(dialect, order, faults), ..self },
            System::Cuda(_) => self,
            #[cfg(target_os = "macos")]
            System::Metal(_) => self,
        }
    }

    fn open(&self) -> Result<Box<dyn Driver>, DriverError> {
        match self.system {
            System::Cuda(ref device) => {
                let mut driver = CudaDriver::open(device)?;
                driver.set_eager(self.options.eager);
                Ok(Box::new(driver))
            }
            #[cfg(target_os = "macos")]
            System::Metal(ref device) => Ok(Box::new(MetalDriver::open(device)?)),
            #[cfg(feature = "sim")]
            System::Sim(dialect, order, ref faults) => {
                let (memory_bytes, faults) = (self.device.memory_bytes, faults.clone());
                let mut driver = driver::sim::SimDriver::new(dialect, order, memory_bytes, faults);
                driver.set_eager(self.options.eager);
                Ok(Box::new(driver))
            }
        }
    }

    fn target(&self) -> Target {
        let GpuOptions { batch_invariant, forced, tuned, eager: _, read_bytes_per_ns: _ } = self.options;
        // What is measured are kernels that round; where a row must have the same bits beside others, there is no choice.
        let tuned = if batch_invariant { Tuned::NONE } else { tuned };
        let target = match self.system {
            System::Cuda(ref device) => Target {
                multiprocessors: device.multiprocessors as usize,
                bulk_copies: device.capability >= (9, 0),
                matrix: if device.capability.0 == 9 { Matrix::FourSimdGroups } else { Matrix::SimdGroup },
                groups_meet: true,
                group_bytes_max: device.group_bytes_max(),
                batch_invariant,
                forced,
                kernel: None,
                tuned: Tuned::NONE,
                memory: MemorySpeed::FITTED,
            },
            #[cfg(target_os = "macos")]
            System::Metal(ref device) => {
                Target::metal(device.cores as usize, device.group_bytes_max, batch_invariant, forced)
            }
            // Few, so that small models have more work than groups.
            #[cfg(feature = "sim")]
            System::Sim(SimDialect::Metal, ..) => Target::metal(3, 32 << 10, batch_invariant, forced),
            #[cfg(feature = "sim")]
            System::Sim(SimDialect::Cuda, ..) => Target {
                multiprocessors: 3,
                bulk_copies: true,
                matrix: Matrix::SimdGroup,
                groups_meet: false,
                group_bytes_max: 227 << 10,
                batch_invariant,
                forced,
                kernel: None,
                tuned: Tuned::NONE,
                memory: MemorySpeed::FITTED,
            },
        };
        Target { tuned, memory: self.options.memory(), ..target }
    }

    /// An error of the driver, about `what` where it is one of memory.
    fn error(&self, what: &'static str) -> impl Fn(DriverError) -> BackendError {
        executable::device_error(self.device.name.clone(), what)
    }
}

impl Backend for GpuBackend {
    fn device(&self) -> &DeviceInfo {
        &self.device
    }

    fn supports(&self, op: &Op, formats: &[WeightFormat]) -> bool {
        // There are kernels for every op; formats without any become one that has them when they are uploaded. A match
        // without a wildcard, so that a new op is decided here.
        match op {
            // One kernel computes both.
            Op::NormGlu { gate, .. } => {
                let up = formats[2 + usize::from(gate.bias.is_some())];
                DeviceFormat::of(up) == DeviceFormat::of(formats[1])
            }
            Op::Embed { .. }
            | Op::NormLinear { .. }
            | Op::Linear { .. }
            | Op::LinearResidual { .. }
            | Op::Logits { .. }
            | Op::RmsNorm { .. }
            | Op::Rope { .. }
            | Op::KvWrite { .. }
            | Op::Attention { .. }
            | Op::Add { .. }
            | Op::GatherColumns { .. }
            | Op::SelectOutputs { .. }
            | Op::RopeKvWrite { .. }
            | Op::LatentWrite { .. }
            | Op::LatentRopeWrite { .. }
            | Op::MlaAttention { .. }
            | Op::Glu { .. }
            | Op::Combine { .. }
            | Op::GateRows { .. } => true,
            Op::Route { router, .. } | Op::MoeRoute { router, .. } => {
                router.slots() <= route::SLOTS_MAX
                    && router.groups.is_none_or(|groups| groups.count <= route::GROUPS_MAX)
            }
            // One kernel reads all experts of a stack, at equal distances, and gate and up together.
            Op::ExpertLinear { experts, .. } | Op::HeadLinear { heads: experts, .. } => {
                are_alike(&formats[..experts.count])
            }
            Op::MoeDown { down, .. } => are_alike(&formats[..down.count]),
            Op::MoeGlu { gate, up, .. } => {
                let gates = &formats[1..=gate.count];
                let ups = &formats[1 + gate.weights().count()..][..up.count];
                are_alike(gates) && are_alike(ups) && DeviceFormat::of(gates[0]) == DeviceFormat::of(ups[0])
            }
        }
    }

    fn claims(&self) -> Claims {
        let arithmetic = match self.system {
            System::Cuda(_) => CUDA,
            #[cfg(target_os = "macos")]
            System::Metal(_) => METAL,
            #[cfg(feature = "sim")]
            System::Sim(dialect, ..) => sim_name(dialect),
        };
        // Matrix instructions round what they multiply; so does the kernel that streams Q8_0 for one row. Matrices of 8
        // by 8 are of f32.
        let GpuOptions { batch_invariant, .. } = self.options;
        let has_matrix = self.target().matrix >= Matrix::SimdGroup;
        let exact = batch_invariant && !has_matrix || self.target().matrix == Matrix::EightByEight;
        let activations: fn(WeightFormat) -> ActivationRounding =
            if exact { |_| ActivationRounding::F32 } else { |format| DeviceFormat::of(format).facts().rounding };
        // So does attention of many rows of a sequence.
        let attention: fn(KvFormat) -> ActivationRounding = if batch_invariant && !has_matrix {
            |_| ActivationRounding::F32
        } else {
            |format| match format {
                KvFormat::F32 => ActivationRounding::F32,
                KvFormat::F16 => ActivationRounding::F16,
            }
        };
        Claims {
            // Those with kernels: others are rounded to them.
            formats: WeightFormat::ALL
                .into_iter()
                .filter(|&known| DeviceFormat::of(known).weight_format() == known)
                .collect(),
            activations,
            attention,
            bit_exact: batch_invariant,
            same_bits: Some(arithmetic),
            ..Claims::default()
        }
    }

    fn footprint(&self, plan: &Plan, weights: &[Tensor], kv: &KvLayout, largest: StepShape) -> Option<Footprint> {
        Some(executable::footprint(self.target(), plan, weights, *kv, largest))
    }

    fn weight_bytes(&self, weights: &[Tensor]) -> Vec<u64> {
        DeviceWeights::bytes_of_each(weights)
    }

    fn load(&self, plan: Arc<Plan>, weights: Vec<Tensor>, kv: KvLayout) -> Result<Box<dyn Executable>, BackendError> {
        self.load_watched(plan, weights, kv, &mut |_, _| ())
    }

    fn load_watched(
        &self,
        plan: Arc<Plan>,
        weights: Vec<Tensor>,
        kv: KvLayout,
        copied: Copied<'_>,
    ) -> Result<Box<dyn Executable>, BackendError> {
        check_load(self, &plan, &weights)?;
        self.check_sizes(&plan, &weights, &kv)?;
        let driver = self.open().map_err(self.error("a context"))?;
        Ok(Box::new(executable::GpuExecutable::load(
            self.device.name.clone(),
            driver,
            self.target(),
            plan,
            &weights,
            kv,
            copied,
        )?))
    }
}

/// Whether matrices in these formats are in one on the device.
fn are_alike(formats: &[WeightFormat]) -> bool {
    formats.iter().all(|&format| DeviceFormat::of(format) == DeviceFormat::of(formats[0]))
}

impl GpuBackend {
    /// What kernels take for granted: heads that fit their registers, and indices of 32 bits where they use them.
    fn check_sizes(&self, plan: &Plan, weights: &[Tensor], kv: &KvLayout) -> Result<(), BackendError> {
        let refuse = |reason: String| Err(BackendError::Device { device: self.device.name.clone(), reason });
        let rope_heads = plan.ops.iter().filter_map(|op| match *op {
            Op::RopeKvWrite { rope, .. } => Some(plan.ropes[rope].head_dim),
            _ => None,
        });
        let heads: HashSet<_> =
            plan.kv_layers.iter().filter_map(|layer| Some(layer.heads()?.head_dim)).chain(rope_heads).collect();
        if let Some(head_dim) = heads.into_iter().find(|&head_dim| head_dim > HEAD_DIM_MAX) {
            return refuse(format!("its attention is for heads of up to {HEAD_DIM_MAX} features, not {head_dim}"));
        }
        for LatentLayer { dim, rope } in plan.kv_layers.iter().copied().filter_map(CacheLayer::latent) {
            if dim > mla_attention::DIM_MAX || dim + rope > mla_attention::ROW_MAX {
                return refuse(format!(
                    "its latent attention is for rows of up to {} latent numbers, and {} with those that turn; not {dim} \
                     and {}",
                    mla_attention::DIM_MAX,
                    mla_attention::ROW_MAX,
                    dim + rope
                ));
            }
        }
        if let Some(odd) = plan.ropes.iter().map(|rope| rope.head_dim).find(|head_dim| !head_dim.is_multiple_of(2)) {
            return refuse(format!("it turns heads of an even number of features, not of {odd}"));
        }
        let experts = plan.ops.iter().filter_map(|op| match *op {
            Op::Route { logits, .. } => Some(plan.value(logits).width),
            Op::MoeRoute { gate, .. } => Some(plan.weight(gate.weight).shape[0]),
            _ => None,
        });
        if let Some(experts) = experts.into_iter().find(|&experts| experts > route::EXPERTS_MAX) {
            return refuse(format!("it chooses among up to {} experts, not {experts}", route::EXPERTS_MAX));
        }
        let small = |n: usize| i32::try_from(n).is_ok();
        if let Some(index) = weights.iter().position(|weight| !small(weight.num_rows()) || !small(weight.row_len())) {
            return refuse(format!("weight `{}` has a dimension over 2^31", plan.weights[index].name));
        }
        if !kv.num_blocks.checked_mul(kv.block_len).is_some_and(small) {
            return Err(BackendError::OutOfMemory {
                device: self.device.name.clone(),
                what: "a KV cache",
                needed_bytes: kv_cache::KvCache::bytes(&plan.kv_layers, kv).unwrap_or(u64::MAX),
                free_bytes: Some(self.device.memory_bytes),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use plan::{AnyShape, BuildError, Graph, Rope, RopeScaling};

    use super::*;

    #[test]
    fn a_device_of_another_simd_width_is_refused() {
        assert_eq!(check_simd_width("a device", 32), Ok(()));
        for width in [0, 16, 64] {
            let expected = format!(
                "`a device` has SIMD groups of {width} threads, and the kernels are written for 32; use --device cpu"
            );
            assert_eq!(check_simd_width("a device", width).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn heads_of_an_odd_number_of_features_are_not_turned() {
        let rope = Rope { head_dim: 5, dims: 4, theta: 100.0, scaling: RopeScaling::None, attention_factor: 1.0 };
        let plan = Graph::build("rope", 8, &AnyShape, |g, w| {
            let x = g.embed(w.get("embed", [8, 5])?, 5);
            let y = g.rope(x, &rope);
            Ok::<_, BuildError>(g.select_outputs(y))
        })
        .unwrap();
        let weights = vec![Tensor::from_f32(WeightFormat::F32, vec![8, 5], &[0.5; 40]).unwrap()];
        let kv = KvLayout { format: KvFormat::F16, block_len: 16, num_blocks: 1 };
        let simulated = GpuBackend::simulated(GpuOptions::default()).expect("tests have it");
        let error = simulated.load(Arc::new(plan), weights, kv).err().expect("it is refused");
        assert!(error.to_string().ends_with("it turns heads of an even number of features, not of 5"), "{error}");
    }

    #[test]
    fn a_program_without_the_simulator_says_how_to_make_one_with_it() {
        assert_eq!(
            GpuError::NoSimulator.to_string(),
            "sim: this program was built without the simulator of GPUs, which is for those who work on kernels; with a C++ \
             compiler (Debian: apt-get install g++), `cargo build --release --package hotmetal --features sim` makes one \
             that has it"
        );
        let simulated = GpuBackend::simulated(GpuOptions::default()).expect("tests have it");
        assert_eq!((simulated.device().name.as_str(), simulated.device().memory_bytes), (SIM, SIMULATED_BYTES));
    }
}
