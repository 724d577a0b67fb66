//! With the feature `sim`: compiles the kernel text as C++ for the simulator, as CUDA sees it and as Metal does. Otherwise
//! nothing.

#[cfg(feature = "sim")]
#[path = "src/params.rs"]
mod params;

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=src/params.rs");
    #[cfg(feature = "sim")]
    compile_simulator();
}

/// Structs of kernels that the simulator cannot run (`kernels/sm90`).
#[cfg(feature = "sim")]
const OF_SM90: [&str; 3] = ["ActivationParams", "GemmSegment", "GemmParams"];

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
    all.std("c++17")
        .include("kernels")
        .include(out)
        // Fast enough to run a suite, whatever the profile; and each check calls back into sim.h.
        .opt_level(2)
        .flag(format!("-fsanitize={bounds},signed-integer-overflow,shift,integer-divide-by-zero"))
        .flag("-fno-sanitize-recover=all")
        // What a kernel rounds is rounded.
        .flag("-ffp-contract=off")
        // Kernel functions take what their kind of kernel is given, needed or not.
        .flag("-Wno-unused-parameter")
        .warnings_into_errors(true);
    all.clone().file("kernels/sim.cpp").compile("hotmetal_sim_kernels");
    all.file("kernels/sim_metal.cpp")
        .include("kernels/port/metal_sim")
        // Each access is a call: port/metal_sim/runtime.h has what is called, and nothing of the sanitizer is linked.
        .flag("-fsanitize=thread,alignment")
        .flag("-fno-exceptions")
        // Memory is looked at in other units.
        .flag("-fno-strict-aliasing")
        // Attributes and pragmas of Metal's compiler.
        .flag(if is_gnu { "-Wno-attributes" } else { "-Wno-unknown-attributes" })
        .flag("-Wno-unknown-pragmas")
        .compile("hotmetal_sim_metal_kernels");
}
