//! Compresses the images of `kernels/cuda` for the binary, and writes the kernel text for Metal as one file. On macOS,
//! with the feature `built_kernels`: compiles it with Apple's compiler. With the feature `sim`: compiles the text as C++
//! for the simulator, as CUDA sees it and as Metal does.

#[path = "src/flatten.rs"]
mod flatten;
#[path = "src/params.rs"]
mod params;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

#[cfg(feature = "sim")]
use flatten::OF_SM90;

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=src/flatten.rs");
    println!("cargo::rerun-if-changed=src/params.rs");
    println!("cargo::rerun-if-env-changed={READY_METALLIB}");
    println!("cargo::rustc-check-cfg=cfg(metallib)");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    if let Err(why) = compress_images(Path::new("kernels/cuda"), &out) {
        println!("cargo::error={why}");
    }
    let metal = out.join("kernels.metal");
    match flatten::metal(Path::new("kernels")) {
        Ok(text) => fs::write(&metal, text).expect("OUT_DIR is writable"),
        Err((path, error)) => println!("cargo::error=cannot read `{}`: {error}", path.display()),
    }
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|target| target == "macos") && cfg!(feature = "built_kernels") {
        let library = out.join("kernels.metallib");
        let made = match env::var_os(READY_METALLIB) {
            Some(ready) => fs::copy(&ready, &library).map(drop).map_err(|error| {
                format!("{READY_METALLIB} is `{}`, which cannot be read: {error}", Path::new(&ready).display())
            }),
            None => compile_metal(&metal, &library),
        };
        match made {
            Ok(()) => println!("cargo::rustc-cfg=metallib"),
            Err(why) if cfg!(feature = "src_kernels") && env::var_os(READY_METALLIB).is_none() => {
                println!("cargo::warning=kernels are compiled at start, and not now: {why}");
            }
            Err(why) => println!("cargo::error={why}"),
        }
    }
    println!("cargo::rerun-if-env-changed={NOT_LINKED}");
    #[cfg(feature = "sim")]
    if env::var_os(NOT_LINKED).is_none() {
        compile_simulator();
    }
}

/// The highest of zstd's levels that takes seconds: 19 MB of 125 in 3. The next ones give 2 % and take twice as long or more.
const PACKING_LEVEL: i32 = 9;

/// Compresses every image, each on a thread of its own. In the tree they are as the compiler wrote them, because git then
/// stores of a changed image what changed.
fn compress_images(folder: &Path, out: &Path) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("cannot read `{}`: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(unreadable)?.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let compress = |image: PathBuf| {
        let Some(name) = image.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        let bytes = fs::read(&image).map_err(|error| format!("cannot read `{}`: {error}", image.display()))?;
        let packed = out.join(format!("{name}.zst"));
        zstd::bulk::compress(&bytes, PACKING_LEVEL)
            .and_then(|bytes| fs::write(&packed, bytes))
            .map_err(|error| format!("cannot write `{}`: {error}", packed.display()))
    };
    let is_image = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "cubin" || ending == "ptx");
    std::thread::scope(|scope| {
        let images = entries.iter().map(fs::DirEntry::path).filter(is_image);
        let compress = &compress;
        let threads: Vec<_> = images.map(|image| scope.spawn(move || compress(image))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it panics at nothing"))
    })
}

/// The environment variable for lints and documentation, which link nothing, and so need no simulator. Cargo runs this
/// script for them apart from that for tests, because a crate that it is made of is then compiled with other options.
const NOT_LINKED: &str = "HOTMETAL_NOT_LINKED";

/// The environment variable with a library of kernels that was compiled elsewhere.
const READY_METALLIB: &str = "HOTMETAL_METALLIB";

/// As the device compiles the text at start (`driver/metal.rs`), with the same arithmetic.
fn compile_metal(source: &Path, library: &Path) -> Result<(), String> {
    let object = source.with_extension("air");
    let mut compiler = Command::new("xcrun");
    compiler.args(["-sdk", "macosx", "metal", "-std=metal3.2", "-mmacosx-version-min=15.0", "-O2"]);
    compiler.args(["-fmetal-math-mode=safe", "-fmetal-math-fp32-functions=fast"]);
    run(compiler.arg("-c").arg(source).arg("-o").arg(&object))?;
    run(Command::new("xcrun").args(["-sdk", "macosx", "metallib"]).arg(object).arg("-o").arg(library))
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("xcrun cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    // Cargo shows one line.
    let words = String::from_utf8_lossy(&output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    Err(format!("xcrun failed: {words}"))
}

#[cfg(feature = "sim")]
fn compile_simulator() {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    std::fs::write(out.join("layout.h"), params::layout_assertions(|name| !OF_SM90.contains(&name)))
        .expect("OUT_DIR is writable");
    let mut all = cc::Build::new();
    // An array at the end of a struct has its bounds too.
    let is_gnu = all.cpp(true).get_compiler().is_like_gnu();
    let bounds = if is_gnu { "bounds-strict" } else { "bounds" };
    if !is_gnu {
        all.flag_if_supported("-fstrict-flex-arrays=3");
    }
    let is_asan = cfg!(feature = "asan");
    if is_asan {
        link_address_sanitizer(&all.get_compiler());
        all.flag("-fsanitize=address").flag("-fno-omit-frame-pointer");
    }
    all.std("c++17")
        .include("kernels")
        .include(out)
        // Fast enough to run a suite, whatever the profile; and each check calls back into sim.h.
        .opt_level(2)
        // Only the address sanitizer's report takes lines from debug information. What the checks of the simulator
        // report has its line in the text. Of both texts, debug information is 68 MB, which each test binary would have
        // again.
        .debug(is_asan)
        .flag(format!("-fsanitize={bounds},signed-integer-overflow,shift,integer-divide-by-zero"))
        .flag("-fno-sanitize-recover=all")
        // What a kernel rounds is rounded.
        .flag("-ffp-contract=off")
        // Else each fused multiply-add is two calls, a sixth of all time. The simulator is run where it was built.
        .flags(has_multiply_add().then_some("-mfma"))
        // Kernel functions take what their kind of kernel is given, needed or not.
        .flag("-Wno-unused-parameter")
        .warnings_into_errors(true);
    let mut metal = all.clone();
    all.file("kernels/sim.cpp");
    metal
        .file("kernels/sim_metal.cpp")
        .include("kernels/port/metal_sim")
        // Each access is a call: port/metal_sim/runtime.h has what is called, and nothing of the sanitizer is linked. Of two
        // such sanitizers the compiler takes one.
        .flag(if is_asan { "-fsanitize=alignment" } else { "-fsanitize=thread,alignment" })
        .flag("-fno-exceptions")
        // Memory is looked at in other units.
        .flag("-fno-strict-aliasing")
        // Attributes and pragmas of Metal's compiler.
        .flag(if is_gnu { "-Wno-attributes" } else { "-Wno-unknown-attributes" })
        .flag("-Wno-unknown-pragmas");
    // Each is one unit, so one processor compiles it.
    std::thread::scope(|scope| {
        scope.spawn(|| all.compile("hotmetal_sim_kernels"));
        metal.compile("hotmetal_sim_metal_kernels");
    });
}

/// Whether this machine has instructions for fused multiply-adds that its compiler does not use by itself.
#[cfg(feature = "sim")]
fn has_multiply_add() -> bool {
    #[cfg(target_arch = "x86_64")]
    let here = is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let here = false;
    here && std::env::var("TARGET") == std::env::var("HOST")
}

/// Before every other library, so that its allocator is the one that all of the program has.
#[cfg(feature = "sim")]
fn link_address_sanitizer(compiler: &cc::Tool) {
    let library = "libasan.so";
    let asked = compiler.to_command().arg(format!("-print-file-name={library}")).output();
    let path = asked.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())).unwrap_or_default();
    // The compiler says the bare name of what it does not have.
    match path.parent() {
        Some(folder) if compiler.is_like_gnu() && path.is_absolute() => {
            println!("cargo::rustc-link-search=native={}", folder.display());
            println!("cargo::rustc-link-lib=dylib=asan");
        }
        _ => println!("cargo::error=the feature `asan` needs g++ with its {library} (Debian: apt-get install g++)"),
    }
}
