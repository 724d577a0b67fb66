//! CUDA's compiler, NVRTC, loaded at run time where it is asked for: by `cargo xtask kernels`, and to run kernels from
//! source. Users need neither it nor a GPU for the one, and not it for the other.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use cudarc::nvrtc::sys;

use crate::cubin::{CubinKernel, cubin_kernels};

/// Why nothing was compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NvrtcError {
    /// The library is not on this machine.
    #[error(
        "NVRTC (libnvrtc.so.12) was not found: `pip install nvidia-cuda-nvrtc-cu12==12.9.86`, and set LD_LIBRARY_PATH to the \
         folder `nvidia/cuda_nvrtc/lib` in site-packages"
    )]
    Missing,
    /// The text is wrong, or the target unknown.
    #[error("the kernels do not compile for {target}: {reason}\n{log}")]
    Refused {
        /// What it was compiled for.
        target: String,
        /// NVRTC's name for the error.
        reason: String,
        /// What the compiler said.
        log: String,
    },
}

/// What the compiler made.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code, or PTX that ends with NUL.
    pub image: Vec<u8>,
    /// What the compiler said, with what spills.
    pub log: String,
}

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The entry point's name.
    pub kernel: String,
    /// Of each thread.
    pub registers: u32,
    /// Bytes of registers that a thread stores to memory because there are too few.
    pub spilled_bytes: u32,
    /// Whether matrix instructions of four SIMD groups run one by one, each waited for: their registers do not suffice, or
    /// are read too soon. The compiler says so in passing, and it is up to a fifth of such a kernel's time.
    pub is_serialized: bool,
}

/// Compiles `text` for `target`: `sm_90` for machine code, `compute_80` for PTX.
pub fn compile(text: &str, target: &str) -> Result<Compiled, NvrtcError> {
    // SAFETY: opens and closes the library, whose initialisers are its own.
    if !unsafe { sys::is_culib_present() } {
        return Err(NvrtcError::Missing);
    }
    let mut program = Program(ptr::null_mut());
    let refused = |log: String| {
        let target = target.to_owned();
        move |error: cudarc::nvrtc::result::NvrtcError| NvrtcError::Refused {
            target,
            reason: format!("{:?}", error.0),
            log,
        }
    };
    let text = CString::new(text).map_err(|_| NvrtcError::Refused {
        target: target.to_owned(),
        reason: "the text holds NUL".to_owned(),
        log: String::new(),
    })?;
    // SAFETY: the text ends with NUL and outlives the call; there are no headers.
    let created = unsafe {
        sys::nvrtcCreateProgram(&raw mut program.0, text.as_ptr(), c"kernels.cu".as_ptr(), 0, ptr::null(), ptr::null())
    };
    created.result().map_err(refused(String::new()))?;
    let architecture = CString::new(format!("--gpu-architecture={target}")).unwrap_or_default();
    let options = [architecture.as_c_str(), c"--std=c++14", c"--ptxas-options=--warn-on-spills"];
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the program exists, and the options outlive the call.
    let compiled = unsafe { sys::nvrtcCompileProgram(program.0, pointers.len() as i32, pointers.as_ptr()) };
    let log = read(
        // SAFETY: the program exists.
        |size| unsafe { sys::nvrtcGetProgramLogSize(program.0, size) },
        // SAFETY: the program exists, and the buffer has the size that it gave.
        |buffer| unsafe { sys::nvrtcGetProgramLog(program.0, buffer) },
    );
    let log = log.map_err(refused(String::new()))?;
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
    compiled.result().map_err(refused(log.clone()))?;
    let image = if target.starts_with("sm_") {
        read(
            // SAFETY: the program exists and was compiled.
            |size| unsafe { sys::nvrtcGetCUBINSize(program.0, size) },
            // SAFETY: as above, and the buffer has the size that it gave.
            |buffer| unsafe { sys::nvrtcGetCUBIN(program.0, buffer) },
        )
    } else {
        read(
            // SAFETY: the program exists and was compiled.
            |size| unsafe { sys::nvrtcGetPTXSize(program.0, size) },
            // SAFETY: as above, and the buffer has the size that it gave.
            |buffer| unsafe { sys::nvrtcGetPTX(program.0, buffer) },
        )
    };
    Ok(Compiled { image: image.map_err(refused(log.clone()))?, log })
}

impl Compiled {
    /// What each kernel takes; nothing for PTX.
    pub fn usages(&self) -> Vec<Usage> {
        let of = |CubinKernel { name: kernel, registers, .. }: CubinKernel| {
            let said = || self.log.lines().filter(|line| line.contains(&format!("'{kernel}'")));
            // `…in function 'NAME', 12 bytes spill stores, …`
            let spilled =
                said().find_map(|line| line.split_once(" bytes spill stores")?.0.rsplit(' ').next()?.parse().ok());
            // `…wgmma.mma_async instructions are serialized due to … in the function 'NAME'`
            let is_serialized = said().any(|line| line.contains("are serialized"));
            Usage { spilled_bytes: spilled.unwrap_or(0), is_serialized, kernel, registers }
        };
        cubin_kernels(&self.image).unwrap_or_default().into_iter().map(of).collect()
    }
}

/// Given back when it is dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by `nvrtcCreateProgram`, and not used again.
            let _ = unsafe { sys::nvrtcDestroyProgram(&raw mut self.0) };
        }
    }
}

/// What `get` writes, once `size` has said how much that is.
fn read(
    size: impl Fn(*mut usize) -> sys::nvrtcResult,
    get: impl Fn(*mut c_char) -> sys::nvrtcResult,
) -> Result<Vec<u8>, cudarc::nvrtc::result::NvrtcError> {
    let mut len = 0;
    size(&raw mut len).result()?;
    let mut bytes = vec![0u8; len];
    get(bytes.as_mut_ptr().cast()).result()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_source;

    #[test]
    fn a_cubin_says_how_many_registers_its_kernels_take() {
        let image = kernel_source::image((9, 0)).unwrap().unwrap().bytes;
        let log = "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to \
                   insufficient register resources for the function 'gemm_narrow_q4_0_t8'\n\
                   ptxas warning : Registers are spilled to local memory in function 'rms_norm_f32', 12 bytes spill stores, \
                   8 bytes spill loads"
            .to_owned();
        let usages = Compiled { image, log }.usages();
        let spilling: Vec<_> = usages.iter().filter(|usage| usage.spilled_bytes > 0).collect();
        let [Usage { kernel, registers, spilled_bytes: 12, is_serialized: false }] = &spilling[..] else {
            panic!("{usages:?}")
        };
        assert_eq!(kernel, "rms_norm_f32");
        assert!((8..=255).contains(registers), "{registers}");
        let serialized: Vec<_> = usages.iter().filter(|usage| usage.is_serialized).collect();
        let [Usage { kernel, spilled_bytes: 0, .. }] = &serialized[..] else { panic!("{serialized:?}") };
        assert_eq!(kernel, "gemm_narrow_q4_0_t8");
        assert!(usages.iter().all(|usage| (1..=255).contains(&usage.registers)), "{usages:?}");
        assert!(usages.len() > 40, "{}", usages.len());
    }
}
