//! Real processes that lose the file under their mapping. Each test starts this same binary again as the victim.
#![cfg(unix)]

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    process::{Command, Output},
};

const MIB: u64 = 1 << 20;

/// Runs the ignored test `victim` in a process of its own.
fn run_victim(what: &str) -> Output {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(MIB).unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--ignored", "--nocapture"])
        .env("VICTIM_FILE", file.path())
        .env("VICTIM_DOES", what)
        .output()
        .unwrap()
}

#[test]
#[ignore = "started by the other tests in a process of its own"]
fn victim() {
    let path = std::env::var_os("VICTIM_FILE").expect("the parent names the file");
    let does = std::env::var("VICTIM_DOES").expect("the parent says what to do");
    if does != "truncate without the handler" {
        mapped::install_sigbus_message().unwrap();
        mapped::install_sigbus_message().unwrap(); // a second call changes nothing
    }
    let bytes = mapped::map(path.as_ref()).unwrap();
    if does == "raise" {
        // SAFETY: `raise` has no preconditions.
        unsafe { libc::raise(libc::SIGBUS) };
    }
    fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    std::hint::black_box(bytes[bytes.len() - 1]);
    panic!("the last byte should be gone");
}

#[test]
fn reading_a_truncated_file_ends_with_a_message_and_code_72() {
    let output = run_victim("truncate");
    assert_eq!(output.status.code(), Some(mapped::TRUNCATED_EXIT_CODE), "{output:?}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("error: a model file was truncated or became unreadable while in use\n\nhint: "),
        "{stderr}"
    );
}

#[test]
fn without_the_handler_the_process_dies_of_the_signal() {
    let output = run_victim("truncate without the handler");
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
fn a_bus_error_elsewhere_is_not_called_a_truncated_file() {
    let output = run_victim("raise");
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
    assert!(!String::from_utf8_lossy(&output.stderr).contains("truncated"));
}
