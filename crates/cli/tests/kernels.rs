//! `hotmetal kernels` as a user meets it: real processes, each output read back.

use std::process::{Command, Output, Stdio};

use process::{output, succeed, text};
use serde_json::Value;

mod process;

/// Runs `kernels dump` where programs are found in `path` and `cuda_home` alone.
fn dump_with(path: &str, cuda_home: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hotmetal"));
    command.args(["kernels", "dump"]).args(args).env("PATH", path).env("CUDA_HOME", cuda_home);
    command.stdin(Stdio::null()).output().expect("the binary starts")
}

/// What a command that fails says; it prints nothing on stdout.
fn refusal(output: &Output) -> String {
    let stderr = text(&output.stderr);
    assert!(!output.status.success() && !stderr.contains("panicked"), "{stderr}");
    assert_eq!(text(&output.stdout), "");
    stderr
}

#[test]
fn kernels_are_listed_by_target_with_what_they_take() {
    let list: Value = serde_json::from_str(&succeed(&["kernels", "-o", "json"])).unwrap();
    let targets = list["targets"].as_array().unwrap();
    assert!(targets.len() >= 2, "{} targets", targets.len());
    for target in targets {
        let kernels = target["kernels"].as_array().unwrap();
        let norm = kernels.iter().find(|kernel| kernel["name"] == "rms_norm_f32").expect("it is in every target");
        if target["is_machine_code"] == true {
            assert!(norm["registers"].as_u64().is_some_and(|count| (1..=255).contains(&count)), "{norm}");
            assert!(norm["shared_bytes"].as_u64() > Some(0) && norm["code_bytes"].as_u64() > Some(0), "{norm}");
            let sample = kernels.iter().find(|kernel| kernel["name"] == "sample_f32").unwrap();
            assert!(sample["local_bytes"].as_u64() > Some(0), "{sample}");
        } else {
            assert_eq!(target["target"], "compute_80");
        }
    }
    let table = succeed(&["kernels", "--target", "sm_80", "--only", "rms_norm_f32"]);
    assert!(table.starts_with("sm_80, machine code for compute capability 8.0: 1 kernel\n  kernel"), "{table}");
    let row: Vec<_> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert!(row[0] == "rms_norm_f32" && row.len() == 5, "{table}");
    assert!(refusal(&output(&["kernels", "--only", "nosuch"])).contains("no kernel has `nosuch` in its name"));
    assert!(refusal(&output(&["kernels", "--target", "sm_42"])).contains("expected one of sm_80, "));
}

#[test]
fn the_ptx_of_a_kernel_is_printed() {
    for args in [&["kernels", "dump", "rms_norm_f32"][..], &["kernels", "dump", "--ptx", "rms_norm_f32"]] {
        let ptx = succeed(args);
        assert!(ptx.starts_with(".version ") && ptx.contains(".target sm_80\n"), "{ptx}");
        assert_eq!(ptx.matches(".entry ").count(), 1, "{ptx}");
        assert!(ptx.contains(".visible .entry rms_norm_f32(") && ptx.ends_with("}\n"), "{ptx}");
    }
    let refused = refusal(&output(&["kernels", "dump", "prompt_attention_d128"]));
    assert!(
        refused.contains("there is no PTX of `prompt_attention_d128`, because it is for sm_90a alone"),
        "{refused}"
    );
    assert!(refused.contains("--isa"), "{refused}");
}

#[test]
fn an_unknown_kernel_is_refused_with_near_names_and_how_to_see_those_of_the_cpu() {
    for flags in [&["rms_nrom_f32"][..], &["--isa", "rms_nrom_f32"]] {
        let refused = refusal(&output(&[&["kernels", "dump"][..], flags].concat()));
        assert!(
            refused.contains("there is no GPU kernel `rms_nrom_f32` in this program; near it: rms_norm_f32"),
            "{refused}"
        );
        assert!(refused.contains("hint: kernels of the CPU") && refused.contains("objdump -d"), "{refused}");
    }
    let refused = refusal(&output(&["kernels", "dump", "--isa", "--target", "sm_80", "prompt_attention_d128"]));
    assert!(refused.contains("there is no `prompt_attention_d128` for sm_80; it is for sm_90a"), "{refused}");
    let refused = refusal(&output(&["kernels", "dump", "--isa", "--target", "compute_80", "rms_norm_f32"]));
    assert!(refused.contains("compute_80 is PTX: --ptx prints it"), "{refused}");
}

#[test]
fn without_a_disassembler_the_message_says_what_to_install() {
    let empty = tempfile::tempdir().unwrap();
    let refused = refusal(&dump_with("", empty.path().to_str().unwrap(), &["--isa", "rms_norm_f32"]));
    assert!(refused.contains("--isa needs nvdisasm or cuobjdump"), "{refused}");
    assert!(
        refused.contains("`pip install nvidia-cuda-nvdisasm`") && refused.contains("--ptx needs neither"),
        "{refused}"
    );
}

/// A program of the CUDA toolkit in `folder` that runs this text of a shell.
#[cfg(unix)]
fn stand_in(folder: &std::path::Path, name: &str, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(folder).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[cfg(unix)]
#[test]
fn a_disassembler_is_found_and_given_the_kernel_and_its_file_is_removed() {
    let home = tempfile::tempdir().unwrap();
    let bin = home.path().join("bin");
    let dump = |path: &str, cuda_home: &str, args: &[&str]| {
        let output = dump_with(path, cuda_home, args);
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    // What it prints are its arguments, once the file that it is given is there.
    stand_in(&bin, "cuobjdump", r#"[ -s "$4" ] && echo "code: $*""#);
    let printed = dump("", home.path().to_str().unwrap(), &["--isa", "rms_norm_f32"]);
    let words: Vec<_> = printed.split_whitespace().collect();
    assert_eq!(words[..4], ["code:", "--dump-sass", "--function", "rms_norm_f32"], "{printed}");
    assert!(!std::path::Path::new(words[4]).exists(), "{printed}");
    // nvdisasm, which is told the symbol, comes first, and PATH will do.
    stand_in(&bin, "nvdisasm", r#"[ -s "$4" ] && echo "rms_norm_f32: $*""#);
    let printed = dump(bin.to_str().unwrap(), "", &["--isa", "--target", "sm_80", "rms_norm_f32"]);
    let words: Vec<_> = printed.split_whitespace().collect();
    assert_eq!(words[..3], ["rms_norm_f32:", "--print-code", "--cuda-function-index"], "{printed}");
    assert!(words[3].parse::<u32>().is_ok() && !std::path::Path::new(words[4]).exists(), "{printed}");
    // One that fails, or that does not find the kernel.
    for script in ["echo too old >&2; exit 3", "echo headers"] {
        stand_in(&bin, "nvdisasm", script);
        let refused = refusal(&dump_with(bin.to_str().unwrap(), "", &["--isa", "rms_norm_f32"]));
        assert!(refused.contains("did not disassemble `rms_norm_f32`"), "{refused}");
        assert!(refused.contains("too old") || script.starts_with("echo headers"), "{refused}");
    }
}
