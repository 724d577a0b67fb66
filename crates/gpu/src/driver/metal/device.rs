//! Apple GPUs that there are, and the kernels for them: from the binary or from source, as pipeline states that are made
//! once and kept in an archive.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use dispatch2::DispatchData;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSError, NSOperatingSystemVersion, NSProcessInfo, NSString, NSURL};
use objc2_metal::{
    MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLCompileOptions, MTLComputePipelineDescriptor, MTLCopyAllDevices,
    MTLDevice, MTLGPUFamily, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode,
    MTLPipelineOption,
};

use super::error::describe;
use super::{Device, DriverError, Object, Pipeline};
use crate::metal_source::MetalKernels;
use crate::{GpuError, MetalOptions};

// A program without a window has the default device only with this framework in it.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

/// The least version of macOS: the first with version 3.2 of the language, whose fences kernels need, and residency sets.
const MACOS_MIN: isize = 15;

/// A device that was found, with the kernels for it.
#[derive(Clone, Debug)]
pub(crate) struct MetalDevice {
    pub(super) context: Arc<Context>,
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
pub(super) struct Context {
    pub(super) device: Device,
    library: Object<dyn MTLLibrary>,
    pipelines: Mutex<Pipelines>,
    pub(super) indirect: bool,
    /// Whether no weights are used in place.
    pub(super) copied: bool,
    /// Where a trace goes that nobody has begun.
    capture: Mutex<Option<PathBuf>>,
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
        // A damaged or outdated archive is not used, and neither is a link that somebody put in its place.
        let file = options.cache.as_ref().map(|cache| cache.join(format!("{:016x}-{how}.metalarchive", found.hash())));
        let kept = file
            .as_deref()
            .filter(|file| file.symlink_metadata().is_ok_and(|found| found.is_file()))
            .and_then(|file| archive(&device, Some(file)).ok());
        let archive =
            kept.map_or_else(|| archive(&device, None), Ok).map_err(|error| failed_to_start(describe(&error)))?;
        let pipelines = Mutex::new(Pipelines { made: HashMap::new(), archive, file, grown: false });
        let &MetalOptions { indirect, copied, .. } = options;
        Ok((
            Self { device, library, pipelines, indirect, copied, capture: Mutex::new(options.capture.clone()) },
            kernels,
        ))
    }

    /// The kernel of that name, and whether it was made now.
    pub(super) fn pipeline(&self, kernel: &'static str) -> Result<(Pipeline, bool), DriverError> {
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

    /// Where a trace goes, if one is asked for: once.
    pub(super) fn take_capture(&self) -> Option<PathBuf> {
        self.capture.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Writes the archive, if it has grown. That it cannot be kept is no error.
    pub(super) fn keep_pipelines(&self) {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::take(&mut pipelines.grown) {
            return;
        }
        let Some(file) = &pipelines.file else { return };
        let partial = file.with_extension(format!("{}.partial", std::process::id()));
        // Metal would write through a link that somebody put there.
        let _ = fs::remove_file(&partial);
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

fn failed_to_start(reason: String) -> GpuError {
    GpuError::Metal { reason }
}
