//! The kernels as Metal sees them: clang checks the text with address spaces as attributes, so that every pointer's space
//! is spelled and none goes where it may not. No Apple compiler is needed; a machine without clang skips the check.

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Compilers that know the vector types of the check, newest first.
const CLANGS: [&str; 4] = ["clang++-22", "clang++-19", "clang++-18", "clang++"];

/// The first clang of this machine that has `__bf16`.
fn clang() -> Option<&'static str> {
    CLANGS.into_iter().find(|name| {
        let checked = check(name, "__bf16 half_of(__bf16 x) { return x + x; }\n", false);
        checked.is_ok_and(|errors| errors.is_empty())
    })
}

/// What the compiler says against the kernels with `appended` at their end, or against `appended` alone.
fn check(clang: &str, appended: &str, with_kernels: bool) -> std::io::Result<String> {
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let mut command = Command::new(clang);
    command.args(["-x", "c++", "-std=c++17", "-fsyntax-only", "-nostdinc", "-Wno-everything"]);
    command.arg("-I").arg(kernels.join("port/metal_check")).arg("-I").arg(&kernels).arg("-");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let text = if with_kernels { "#include \"port/metal.h\"\n#include \"all.h\"\n" } else { "" };
    child.stdin.take().expect("it is a pipe").write_all(format!("{text}{appended}").as_bytes())?;
    let output = child.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(if output.status.success() { String::new() } else { errors })
}

#[test]
fn every_pointer_of_the_kernels_has_its_address_space() {
    let Some(clang) = clang() else {
        println!("skipped: no clang with __bf16 is installed ({})", CLANGS.join(", "));
        return;
    };
    let errors = check(clang, "", true).unwrap();
    assert!(errors.is_empty(), "{errors}");
    let faults = [
        (
            "a device pointer where none is said",
            "FN f32 f(const f32* p) { return *p; }\nFN f32 g(CONST RmsNormParams& p) { return f(scalars(p.x)); }\n",
        ),
        (
            "parameters without CONST",
            "FN i32 f(RmsNormParams& p) { return p.width; }\nFN i32 g(CONST RmsNormParams& p) { return f(p); }\n",
        ),
        (
            "group memory without GROUP",
            "FN f32 f(SumGroup& g) { return g.part[0]; }\nFN f32 h(GROUP SumGroup& g) { return f(g); }\n",
        ),
        ("a write to what is read", "FN void f(CONST EmbedParams& p) { p.ids[0] = 1; }\n"),
        ("a keyword as a name", "FN i32 f() { const i32 thread = 1; return thread; }\n"),
    ];
    for (what, fault) in faults {
        assert!(check(clang, fault, true).unwrap().contains("error"), "{what} is not found");
    }
}
