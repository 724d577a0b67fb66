//! Links the targets with the functions of `compares.rs` in place of libFuzzer's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The option is one of the linkers for ELF.
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    for function in ["cmp1", "cmp2", "const_cmp1", "const_cmp2"] {
        println!("cargo::rustc-link-arg-bins=-Wl,--wrap=__sanitizer_cov_trace_{function}");
    }
}
