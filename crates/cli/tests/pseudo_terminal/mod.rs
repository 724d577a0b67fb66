//! A terminal for the program, as a person at a keyboard has one.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// How long the program may be silent: it loads a model in a test build, beside other tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a command on a terminal of so many columns. For each pair of `script`, it waits until the first text is shown, and
/// types the second. Returns the exit code and all that was shown, with the terminal's own ends of lines.
pub(crate) fn talk(command: &mut Command, columns: u16, script: &[(&str, &str)]) -> (Option<i32>, String) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal can be had");
    grantpt(&ours).expect("the terminal is ours");
    unlockpt(&ours).expect("the terminal is ours");
    let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&ours, size).expect("a terminal has a size");
    let name = ptsname(&ours, Vec::new()).expect("a terminal has a name");
    let path = std::ffi::OsStr::from_bytes(name.as_bytes());
    let theirs = OpenOptions::new().read(true).write(true).open(path).expect("the other end opens");
    let end = || theirs.try_clone().expect("a file can be had twice");
    let mut child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("the binary starts");
    // Ours must be the last, so that the end of the program is the end of what it shows.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    drop(theirs);

    let mut keyboard = File::from(ours);
    let mut screen = keyboard.try_clone().expect("a file can be had twice");
    let (sender, shown) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut buffer = [0; 4096];
        // On Linux the end is an error.
        while let Ok(count @ 1..) = screen.read(&mut buffer) {
            if sender.send(buffer[..count].to_vec()).is_err() {
                break;
            }
        }
    });
    let (mut text, mut seen) = (Vec::new(), 0);
    for (awaited, typed) in script {
        let awaited = awaited.as_bytes();
        loop {
            if let Some(at) = text[seen..].windows(awaited.len()).position(|window| window == awaited) {
                seen += at + awaited.len();
                break;
            }
            match shown.recv_timeout(PATIENCE) {
                Ok(bytes) => text.extend(bytes),
                Err(error) => panic!(
                    "`{}` is not shown ({error}): {}",
                    String::from_utf8_lossy(awaited),
                    String::from_utf8_lossy(&text)
                ),
            }
        }
        keyboard.write_all(typed.as_bytes()).expect("the terminal takes what is typed");
    }
    while let Ok(bytes) = shown.recv_timeout(PATIENCE) {
        text.extend(bytes);
    }
    let code = child.wait().expect("the program ends").code();
    reader.join().expect("the reader ends");
    (code, String::from_utf8_lossy(&text).into_owned())
}
