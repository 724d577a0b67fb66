//! The disassemblers of the CUDA toolkit, run as programs: the form of a GPU's instructions is NVIDIA's own.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use gpu::CubinKernel;

/// The programs, the one with the plainer output first.
const PROGRAMS: [&str; 2] = ["nvdisasm", "cuobjdump"];

/// The instructions of `kernel` of the machine code `image`, as text.
pub(super) fn disassemble(image: &[u8], kernel: &CubinKernel) -> Result<String> {
    let Some(program) = find() else {
        bail!(
            "--isa needs nvdisasm or cuobjdump of the CUDA toolkit, and neither is on PATH or in $CUDA_HOME/bin: \
             `pip install nvidia-cuda-nvdisasm` brings nvdisasm (add the folder `nvidia/cu13/bin` in site-packages to \
             PATH), and so does the CUDA toolkit; --ptx needs neither"
        );
    };
    let file = Temporary::with(image)?;
    let is_nvdisasm = program.file_stem().is_some_and(|name| name == PROGRAMS[0]);
    let mut command = Command::new(&program);
    match is_nvdisasm {
        true => command.arg("--print-code").arg("--cuda-function-index").arg(kernel.symbol.to_string()),
        false => command.arg("--dump-sass").arg("--function").arg(&kernel.name),
    };
    let output = command.arg(&file.path).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run `{}`", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    // cuobjdump fails at nothing: of a kernel that it does not find it prints the headers alone.
    if !output.status.success() || !text.contains(&kernel.name) {
        bail!(
            "`{}` did not disassemble `{}` ({}): {}; it may be older than the kernels, which need CUDA 12.9 or later",
            program.display(),
            kernel.name,
            output.status,
            said.trim()
        );
    }
    Ok(text.into_owned())
}

/// The first of [`PROGRAMS`] on PATH or in `$CUDA_HOME/bin`.
fn find() -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = std::env::var_os("PATH").iter().flat_map(std::env::split_paths).collect();
    folders
        .extend(std::env::var_os("CUDA_HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join("bin")));
    // An empty entry of PATH is the folder that the program was started in, whose files nobody meant.
    folders.retain(|folder| !folder.as_os_str().is_empty());
    let candidates = |name| {
        let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
        folders.iter().map(move |folder| folder.join(&name)).collect::<Vec<_>>()
    };
    PROGRAMS.into_iter().flat_map(candidates).find(|path| path.is_file())
}

/// A file that is removed when it is dropped: the programs read no standard input.
struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn with(bytes: &[u8]) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("hotmetal-{}.cubin", std::process::id()));
        let failed = || format!("cannot write `{}`", path.display());
        // Made new, so that nobody else's file or link is written to.
        let mut out = File::create_new(&path).with_context(failed)?;
        let written = out.write_all(bytes);
        let temporary = Self { path: path.clone() };
        written.with_context(failed)?;
        Ok(temporary)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // What cannot be removed lies in a folder that the system empties.
        let _ = fs::remove_file(&self.path);
    }
}
