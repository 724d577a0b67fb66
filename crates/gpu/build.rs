//! With the feature `sim`: compiles the kernel text as C++ for the simulator. Otherwise nothing.

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
    let mut build = cc::Build::new();
    // An array at the end of a struct has its bounds too.
    let bounds = if build.cpp(true).get_compiler().is_like_gnu() { "bounds-strict" } else { "bounds" };
    build
        .std("c++17")
        .file("kernels/sim.cpp")
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
        .warnings_into_errors(true)
        .compile("hotmetal_sim_kernels");
}
