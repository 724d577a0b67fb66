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
    let text = if with_kernels { "#include \"metal.h\"\n" } else { "" };
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
        (
            "a matrix from group memory that is device memory",
            "FN void f(CONST LinearParams& p, threadgroup f32* g) {\n\
             simdgroup_float8x8 a; g = p.residual; simdgroup_load(a, g); }\n",
        ),
        (
            "a matrix stored where it is only read",
            "FN void f(CONST LinearParams& p) { simdgroup_float8x8 a; simdgroup_store(a, p.residual); }\n",
        ),
        ("a matrix taken apart", "FN f32 f() { simdgroup_float8x8 a; return a.thread_elements()[0]; }\n"),
        (
            "group memory over 32 KiB",
            "struct Big { f32 v[8193]; };\nFN void f(CONST EmbedParams& p, GROUP Big& g, Lane t) {}\n\
             KERNEL(big, EmbedParams, Big, 128, f)\n",
        ),
        (
            "group memory over 32 KiB where the launch says how much",
            "struct Big { f32 v[8193]; };\nFN void f(CONST EmbedParams& p, GROUP Big& g, Lane t) {}\n\
             KERNEL_DYNAMIC(big, EmbedParams, Big, 128, f)\n",
        ),
        (
            "groups of more threads than there are",
            "FN void f(CONST EmbedParams& p, GROUP NoGroup& g, Lane t) {}\nKERNEL(wide, EmbedParams, NoGroup, 1056, f)\n",
        ),
    ];
    // What a fault is like that is none.
    let sound = [
        "struct Big { f32 v[8192]; };\nFN void f(CONST EmbedParams& p, GROUP Big& g, Lane t) {}\n\
         KERNEL(big, EmbedParams, Big, 1024, f)\n",
        "FN void f(CONST EmbedParams& p, GROUP NoGroup& g, Lane t) {}\nKERNEL_DYNAMIC(any, EmbedParams, NoGroup, 128, f)\n",
        "FN void f(CONST LinearParams& p, GROUP f32* g) {\n\
         simdgroup_float8x8 a; simdgroup_load(a, p.residual); simdgroup_store(a, g); }\n",
    ];
    for text in sound {
        let errors = check(clang, text, true).unwrap();
        assert!(errors.is_empty(), "{text}: {errors}");
    }
    for (what, fault) in faults {
        assert!(check(clang, fault, true).unwrap().contains("error"), "{what} is not found");
    }
}

fn text_of(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels").join(file)).unwrap()
}

fn included(file: &str) -> Vec<String> {
    let text = text_of(file);
    let names = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"'));
    names.map(str::to_owned).collect()
}

/// What Metal has alone: no more than its header and its matrix kernels.
const OF_METAL_ALONE: [&str; 3] = ["port/metal.h", "gemm.simdgroup_matrix.h", "attention_prefill.simdgroup_matrix.h"];

#[test]
fn metal_has_every_kernel_file_in_its_order() {
    let of_metal = included("metal.h");
    assert_eq!(of_metal[0], OF_METAL_ALONE[0], "the header comes first");
    assert_eq!(of_metal[of_metal.len() - 2..], OF_METAL_ALONE[1..]);
    assert_eq!(of_metal[1..of_metal.len() - 2], included("all.h"));
}

/// As `kernel_source` holds the common text: what clang does not see.
#[test]
fn pointers_of_the_matrix_kernels_say_where_they_point() {
    for file in &OF_METAL_ALONE[1..] {
        for (index, line) in text_of(file).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            let is_pointer =
                code.contains("32* ") || code.contains("32*)") || code.contains("x4*)") || code.contains("16*)");
            let is_reference =
                code.split_whitespace().any(|word| word.ends_with('&') && word != "&&" && word.len() > 1);
            let is_said = ["GROUP ", "THREAD ", "CONST "].iter().any(|space| code.contains(space));
            assert!(is_said || !(is_pointer || is_reference), "{file}:{}: {line}", index + 1);
            for banned in ["thread_elements", "lambda", "std::", "double", "size_t", "if constexpr", ", 32, gemm"] {
                assert!(!code.contains(banned), "{file}:{}: `{banned}`", index + 1);
            }
        }
    }
}
