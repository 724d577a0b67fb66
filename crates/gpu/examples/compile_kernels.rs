//! Compiles the kernels for every CUDA architecture that the binary carries, and writes them to `kernels/cuda`.
//!
//! Needs NVRTC 12.9 and no GPU: `pip download nvidia-cuda-nvrtc-cu12==12.9.86`, unpack the wheel, and
//!
//! ```sh
//! LD_LIBRARY_PATH=nvidia/cuda_nvrtc/lib cargo run -p gpu --example compile_kernels
//! ```
//!
//! With `--check` nothing is written: it fails where the files would change. `--source` prints the text that is compiled.

#![expect(clippy::print_stdout, reason = "a tool that reports")]

use std::error::Error;
use std::ffi::{CStr, CString, c_char};
use std::path::Path;

use cudarc::nvrtc::sys;
use gpu::kernel_source::{ARCHITECTURES, Image, SOURCE_HASH_FILE, cuda, source_hash};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--source") {
        print!("{}", cuda());
        return Ok(());
    }
    let check = arguments.iter().any(|argument| argument == "--check");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/cuda");
    let mut total = 0;
    for &architecture in ARCHITECTURES {
        let image = compile(architecture)?;
        let packed = miniz_oxide::deflate::compress_to_vec(&image, 9);
        println!("{}: {} bytes, {} packed", architecture.file, image.len(), packed.len());
        total += packed.len();
        write(&folder.join(architecture.file), &packed, check)?;
    }
    println!("together {total} bytes");
    write(&folder.join(SOURCE_HASH_FILE), format!("{:016x}\n", source_hash()).as_bytes(), check)
}

fn write(path: &Path, bytes: &[u8], check: bool) -> Result<(), Box<dyn Error>> {
    if !check {
        return Ok(std::fs::write(path, bytes)?);
    }
    if std::fs::read(path)? != bytes {
        return Err(format!("{} is not what the kernels compile to: run without --check", path.display()).into());
    }
    Ok(())
}

/// Bytes of registers that a kernel may store to memory. Only `attention_f32` does, for one architecture.
const SPILL_BUDGET: u32 = 32;

/// The most that any kernel spills: `…, 20 bytes spill stores, …`.
fn spilled_bytes(log: &str) -> u32 {
    let spills = log.lines().filter_map(|line| line.split_once(" bytes spill stores"));
    let bytes = spills.filter_map(|(before, _)| before.rsplit(' ').next()?.parse().ok());
    bytes.max().unwrap_or(0)
}

/// Machine code of one architecture, or PTX.
fn compile(architecture: Image) -> Result<Vec<u8>, Box<dyn Error>> {
    let text = CString::new(cuda())?;
    let mut program = std::ptr::null_mut();
    // SAFETY: the text ends with NUL and outlives the call; there are no headers.
    let created = unsafe {
        sys::nvrtcCreateProgram(
            &raw mut program,
            text.as_ptr(),
            c"kernels.cu".as_ptr(),
            0,
            std::ptr::null(),
            std::ptr::null(),
        )
    };
    created.result().map_err(|error| format!("{error:?}"))?;
    let target = CString::new(format!("--gpu-architecture={}", architecture.target))?;
    let options = [target.as_c_str(), c"--std=c++14", c"--ptxas-options=--warn-on-spills"];
    let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
    // SAFETY: the program exists, and the options outlive the call.
    let compiled = unsafe { sys::nvrtcCompileProgram(program, pointers.len() as i32, pointers.as_ptr()) };
    let log = read(
        // SAFETY: the program exists.
        |size| unsafe { sys::nvrtcGetProgramLogSize(program, size) },
        // SAFETY: the program exists, and the buffer has the size that it gave.
        |buffer| unsafe { sys::nvrtcGetProgramLog(program, buffer) },
    )?;
    let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy().into_owned();
    compiled.result().map_err(|error| format!("{}: {error:?}\n{log}", architecture.target))?;
    if spilled_bytes(&log) > SPILL_BUDGET {
        return Err(format!("{}: kernels spill over {SPILL_BUDGET} bytes\n{log}", architecture.target).into());
    }
    if !log.trim().is_empty() {
        println!("{}:\n{log}", architecture.target);
    }
    let image = if architecture.is_machine_code() {
        read(
            // SAFETY: the program exists and was compiled.
            |size| unsafe { sys::nvrtcGetCUBINSize(program, size) },
            // SAFETY: as above, and the buffer has the size that it gave.
            |buffer| unsafe { sys::nvrtcGetCUBIN(program, buffer) },
        )?
    } else {
        read(
            // SAFETY: the program exists and was compiled.
            |size| unsafe { sys::nvrtcGetPTXSize(program, size) },
            // SAFETY: as above, and the buffer has the size that it gave.
            |buffer| unsafe { sys::nvrtcGetPTX(program, buffer) },
        )?
    };
    // SAFETY: the program exists and is not used again.
    unsafe { sys::nvrtcDestroyProgram(&raw mut program) }.result().map_err(|error| format!("{error:?}"))?;
    Ok(image)
}

/// What `get` writes, once `size` has said how much that is.
fn read(
    size: impl Fn(*mut usize) -> sys::nvrtcResult,
    get: impl Fn(*mut c_char) -> sys::nvrtcResult,
) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut len = 0;
    size(&raw mut len).result().map_err(|error| format!("{error:?}"))?;
    let mut bytes = vec![0u8; len];
    get(bytes.as_mut_ptr().cast()).result().map_err(|error| format!("{error:?}"))?;
    Ok(bytes)
}
