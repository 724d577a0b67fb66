//! A wheel: the program as Python's installers take it, so that `pip install` and `uvx` find it. It holds no Python.
//!
//! The form is that of packaging.python.org, "Binary distribution format" and "Core metadata specifications" 2.4; the
//! tag `manylinux_X_Y` says the version of glibc (PEP 600), and the folder `sboms` is that of PEP 770.

use std::io::{Cursor, Write};

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::archive::File;
use super::contents::Contents;

/// The wheel, with its file name.
pub(super) fn wheel(contents: &Contents) -> Result<File> {
    let version = &contents.version;
    let (major, minor) = contents.needs.glibc()?;
    let tag = format!("py3-none-manylinux_{major}_{minor}_{}", contents.needs.machine.name());
    let info = |name: &str| format!("hotmetal-{version}.dist-info/{name}");
    let mut files = vec![File::program(format!("hotmetal-{version}.data/scripts/hotmetal"), &contents.program)];
    files.extend(
        contents.licences.iter().map(|file| File::new(info(&format!("licenses/{}", file.path)), &file.bytes[..])),
    );
    files.push(File::new(info("sboms/hotmetal.cdx.json"), &contents.bill[..]));
    files.push(File::new(info("METADATA"), metadata(contents)));
    let wheel =
        format!("Wheel-Version: 1.0\nGenerator: cargo xtask package {version}\nRoot-Is-Purelib: false\nTag: {tag}\n");
    files.push(File::new(info("WHEEL"), wheel));
    let record = record(&files, &info("RECORD"));
    files.push(File::new(info("RECORD"), record));
    Ok(File::new(format!("hotmetal-{version}-{tag}.whl"), zip(&files)?))
}

/// What the package is, and its README.
fn metadata(contents: &Contents) -> String {
    let mut lines = vec![
        "Metadata-Version: 2.4".to_owned(),
        "Name: hotmetal".to_owned(),
        format!("Version: {}", contents.version),
        format!("Summary: {}", super::SUMMARY),
        format!("Author: {}", author(&contents.copyright)),
        format!("License-Expression: {}", super::LICENCE),
    ];
    lines.extend(contents.licences.iter().map(|file| format!("License-File: {}", file.path)));
    lines.push("Requires-Python: >=3.8".to_owned());
    lines.push("Description-Content-Type: text/markdown".to_owned());
    format!("{}\n\n{}", lines.join("\n"), contents.readme)
}

/// `2026 The Hotmetal authors` → `The Hotmetal authors`.
fn author(copyright: &str) -> &str {
    copyright.trim_start_matches(|c: char| c.is_ascii_digit() || "-, ".contains(c))
}

/// The list of all files with their digests, and of itself without one.
fn record(files: &[File], own_path: &str) -> String {
    let line = |file: &File| {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(&file.bytes));
        format!("{},sha256={digest},{}\n", file.path, file.bytes.len())
    };
    files.iter().map(line).collect::<String>() + own_path + ",,\n"
}

fn zip(files: &[File]) -> Result<Vec<u8>> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for file in files {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(DateTime::default())
            .unix_permissions(file.mode());
        archive.start_file(&file.path, options)?;
        archive.write_all(&file.bytes)?;
    }
    Ok(archive.finish()?.into_inner())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::contents::tests::small;
    use super::*;

    /// What is in a wheel: path, mode, bytes.
    fn unpacked(wheel: &File) -> Vec<(String, u32, Vec<u8>)> {
        let mut archive = zip::ZipArchive::new(Cursor::new(&wheel.bytes)).unwrap();
        let count = archive.len();
        let file = |index| {
            let mut file = archive.by_index(index).unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            (file.name().unwrap().into_owned(), file.unix_mode().unwrap() & 0o777, bytes)
        };
        (0..count).map(file).collect()
    }

    #[test]
    fn a_wheel_holds_the_program_and_lists_each_file_with_its_digest() {
        let contents = small();
        let wheel = wheel(&contents).unwrap();
        assert_eq!(wheel.path, "hotmetal-1.2.3-py3-none-manylinux_2_34_x86_64.whl");
        let files = unpacked(&wheel);
        let program = ("hotmetal-1.2.3.data/scripts/hotmetal".to_owned(), 0o755, contents.program);
        assert_eq!(files[0], program);
        let (path, _, record) = files.last().unwrap();
        assert_eq!(path, "hotmetal-1.2.3.dist-info/RECORD");
        let record = String::from_utf8(record.clone()).unwrap();
        assert_eq!(record.lines().count(), files.len());
        for ((path, _, bytes), line) in files.iter().zip(record.lines()) {
            let fields: Vec<&str> = line.split(',').collect();
            assert_eq!(fields[0], path);
            if path.ends_with("RECORD") {
                assert_eq!(fields[1..], ["", ""]);
                continue;
            }
            let digest = URL_SAFE_NO_PAD.decode(fields[1].strip_prefix("sha256=").unwrap()).unwrap();
            assert_eq!((digest.as_slice(), fields[2]), (&Sha256::digest(bytes)[..], &*bytes.len().to_string()));
        }
        let licences = files.iter().filter(|(path, ..)| path.contains(".dist-info/licenses/"));
        assert_eq!(licences.count(), 3);
    }

    #[test]
    fn its_metadata_name_the_licences_and_what_it_runs_on() {
        let files = unpacked(&wheel(&small()).unwrap());
        let text = |name: &str| {
            let (.., bytes) = files.iter().find(|(path, ..)| path.ends_with(&format!(".dist-info/{name}"))).unwrap();
            String::from_utf8(bytes.clone()).unwrap()
        };
        let metadata = text("METADATA");
        let (fields, readme) = metadata.split_once("\n\n").unwrap();
        assert_eq!(readme, small().readme);
        for field in [
            "Metadata-Version: 2.4",
            "Name: hotmetal",
            "Version: 1.2.3",
            "Author: The Hotmetal authors",
            "License-Expression: MIT OR Apache-2.0",
            "License-File: LICENSE-MIT",
            "License-File: THIRD_PARTY_LICENSES.txt",
        ] {
            assert!(fields.lines().any(|line| line == field), "{field}: {fields}");
        }
        assert!(text("WHEEL").contains("\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_34_x86_64\n"));
    }

    #[test]
    fn twice_it_has_the_same_bytes_and_a_static_program_has_none() {
        assert_eq!(wheel(&small()).unwrap().bytes, wheel(&small()).unwrap().bytes);
        let mut contents = small();
        contents.needs.glibc = None;
        assert!(wheel(&contents).unwrap_err().to_string().contains("cargo xtask package musl"));
    }
}
