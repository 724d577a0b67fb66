//! The text that an Apple GPU compiles at start: one string with everything in it, which clang accepts as it does the files
//! (`metal_text.rs`), with parameter structs laid out as the host fills them. A machine without clang skips the check.

#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What the compiler says against `text`; `None` where there is no such compiler.
fn errors(clang: &str, text: &str) -> Option<String> {
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/port/metal_check");
    let mut command = Command::new(clang);
    command.args(["-x", "c++", "-std=c++17", "-fsyntax-only", "-nostdinc", "-Wno-everything", "-I"]).arg(stand_in);
    let child = command.arg("-").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.ok()?;
    child.stdin.take()?.write_all(text.as_bytes()).ok()?;
    let output = child.wait_with_output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(if output.status.success() { String::new() } else { said })
}

#[test]
fn the_text_in_the_binary_compiles_with_the_layout_of_the_host() {
    let clangs = ["clang++-22", "clang++-19", "clang++-18", "clang++"];
    let knows_bf16 = |clang: &&str| errors(clang, "__bf16 twice(__bf16 x) { return x + x; }\n").as_deref() == Some("");
    let Some(clang) = clangs.into_iter().find(knows_bf16) else {
        println!("skipped: no clang with __bf16 is installed ({})", clangs.join(", "));
        return;
    };
    let text = gpu::metal_source::carried();
    assert_eq!(errors(clang, text).unwrap(), "");
    // It is the layout that is held, and an error is found in the file that it is in.
    let moved = text.replacen("struct EmbedParams {", "struct EmbedParams { i32 moved;", 1);
    let found = errors(clang, &moved).unwrap();
    assert!(found.contains("sizeof(EmbedParams)") && found.contains("params.rs"), "{found}");
    let broken = text.replacen("FN void glu(", "FN void glu(nothing,", 1);
    assert!(errors(clang, &broken).unwrap().contains("elementwise.h:"), "where it is");
}
