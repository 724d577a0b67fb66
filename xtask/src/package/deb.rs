//! A Debian package, as deb(5) and deb-control(5) describe it. It has no script: nothing runs when it is installed.

use anyhow::{Context, Result, ensure};
use md5::{Digest, Md5};

use super::archive::{self, File};
use super::contents::Contents;

/// Who answers for the package, in the form that the field needs. No mail goes to `.invalid` (RFC 2606).
const MAINTAINER: &str = "The Hotmetal authors <maintainers@hotmetal.invalid>";
/// Where the unit in `packaging` has the program, and where packages have it.
const OWN_PLACE: &str = "/usr/local/bin/hotmetal";
const PLACE: &str = "/usr/bin/hotmetal";

/// The package, with its file name.
pub(super) fn deb(contents: &Contents) -> Result<File> {
    let files = files(contents)?;
    let control = [File::new("control", control(contents, &files)?), File::new("md5sums", md5sums(&files))];
    let control = archive::tar_gz(&control, contents.date)?;
    let data = archive::tar_gz(&files, contents.date)?;
    let mut package = ar::Builder::new(Vec::new());
    for (name, bytes) in
        [("debian-binary", &b"2.0\n"[..]), ("control.tar.gz", &control[..]), ("data.tar.gz", &data[..])]
    {
        let mut header = ar::Header::new(name.into(), bytes.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(contents.date);
        package.append(&header, bytes)?;
    }
    let name = format!("hotmetal_{}_{}.deb", contents.version, contents.needs.machine.debian());
    Ok(File::new(name, package.into_inner()?))
}

/// The files at their places in the system.
fn files(contents: &Contents) -> Result<Vec<File>> {
    let document = |name: &str| format!("usr/share/doc/hotmetal/{name}");
    let mut files = vec![File::program(&PLACE[1..], &contents.program)];
    ensure!(
        contents.unit.contains(&format!("ExecStart={OWN_PLACE} ")),
        "packaging/hotmetal.service has no line `ExecStart={OWN_PLACE} …`, whose program a package has elsewhere"
    );
    files.push(File::new("usr/lib/systemd/system/hotmetal.service", contents.unit.replace(OWN_PLACE, PLACE)));
    let folders = [
        "usr/share/bash-completion/completions",
        "usr/share/zsh/vendor-completions",
        "usr/share/fish/vendor_completions.d",
    ];
    files.extend(
        folders
            .iter()
            .zip(&contents.completions)
            .map(|(folder, script)| File { path: format!("{folder}/{}", script.path), ..script.clone() }),
    );
    files.push(File::new(document("changelog.gz"), archive::gzip(&contents.changelog)?));
    files.push(File::new(document("copyright"), copyright(contents)?));
    files.push(File::new(document("hotmetal.cdx.json.gz"), archive::gzip(&contents.bill)?));
    for licence in &contents.licences {
        files.push(File::new(document(&format!("{}.gz", licence.path)), archive::gzip(&licence.bytes)?));
    }
    for page in &contents.pages {
        files.push(File::new(format!("usr/share/man/man1/{}.gz", page.path), archive::gzip(&page.bytes)?));
    }
    Ok(files)
}

/// The fields of the package.
fn control(contents: &Contents, files: &[File]) -> Result<String> {
    let (major, minor) = contents.needs.glibc()?;
    let libgcc = if contents.needs.libgcc { ", libgcc-s1" } else { "" };
    let kib: u64 = files.iter().map(|file| (file.bytes.len() as u64).div_ceil(1024)).sum();
    Ok(format!(
        "Package: hotmetal\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {kib}\n\
         Depends: libc6 (>= {major}.{minor}){libgcc}\n\
         Section: science\n\
         Priority: optional\n\
         Description: {}\n \
         One program, with a small model inside: it needs no Python, and no network\n \
         unless it is asked for a model. It answers on the command line, or as a server\n \
         of OpenAI's, Anthropic's, Ollama's and llama.cpp's interfaces. NVIDIA GPUs need\n \
         their driver and nothing else.\n",
        contents.version,
        contents.needs.machine.debian(),
        super::SUMMARY,
    ))
}

/// The digests by which `dpkg --verify` finds a changed file.
fn md5sums(files: &[File]) -> String {
    let line = |file: &File| {
        let digest: String = Md5::digest(&file.bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{digest}  {}\n", file.path)
    };
    files.iter().map(line).collect()
}

/// The licences in the form that Debian's tools read (DEP 5).
fn copyright(contents: &Contents) -> Result<String> {
    let mit = contents.licences.iter().find(|file| file.path == "LICENSE-MIT");
    let mit = std::str::from_utf8(&mit.context("the package has no LICENSE-MIT")?.bytes)?;
    let (_, words) = mit
        .split_once("\n\n")
        .and_then(|(_, rest)| rest.split_once("\n\n"))
        .context("LICENSE-MIT does not begin with its name and whose it is, each a paragraph")?;
    let words: String =
        words.lines().map(|line| if line.is_empty() { " .\n".to_owned() } else { format!(" {line}\n") }).collect();
    Ok(format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: Hotmetal\n\
         Comment: The crates and libraries that the program is made of have licences of\n \
         their own: THIRD_PARTY_LICENSES.txt.gz has their texts, and\n \
         hotmetal.cdx.json.gz lists them (CycloneDX).\n\
         \n\
         Files: *\n\
         Copyright: {}\n\
         License: MIT or Apache-2.0\n\
         \n\
         License: MIT\n{words}\n\
         License: Apache-2.0\n \
         On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.\n",
        contents.copyright
    ))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::archive::tests::unpacked;
    use super::super::contents::tests::small;
    use super::*;

    /// The members of a package, by name.
    fn members(package: &[u8]) -> Vec<(String, Vec<u8>)> {
        let mut archive = ar::Archive::new(package);
        let mut members = Vec::new();
        while let Some(entry) = archive.next_entry() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            members.push((String::from_utf8(entry.header().identifier().to_vec()).unwrap(), bytes));
        }
        members
    }

    #[test]
    fn a_package_has_its_members_in_order_and_the_same_bytes_twice() {
        let package = deb(&small()).unwrap();
        assert_eq!(package.path, "hotmetal_1.2.3_amd64.deb");
        assert_eq!(package.bytes, deb(&small()).unwrap().bytes);
        let names: Vec<String> = members(&package.bytes).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["debian-binary", "control.tar.gz", "data.tar.gz"]);
        assert_eq!(members(&package.bytes)[0].1, b"2.0\n");
    }

    #[test]
    fn its_control_says_what_it_needs_and_its_sums_are_those_of_its_files() {
        let members = members(&deb(&small()).unwrap().bytes);
        let [(control, _, text), (sums, _, sums_text)] = &unpacked(&members[1].1)[..] else { panic!("two files") };
        assert_eq!((control.as_str(), sums.as_str()), ("control", "md5sums"));
        let text = String::from_utf8(text.clone()).unwrap();
        for field in [
            "Package: hotmetal",
            "Version: 1.2.3",
            "Architecture: amd64",
            "Depends: libc6 (>= 2.34), libgcc-s1",
            "Description: Runs open-weight language models at the speed of memory",
        ] {
            assert!(text.lines().any(|line| line == field), "{field}: {text}");
        }
        // Every line is a field or goes on with one.
        assert!(text.lines().all(|line| line.starts_with(' ') || line.contains(": ")), "{text}");
        let files: Vec<_> = unpacked(&members[2].1).into_iter().filter(|(path, ..)| !path.ends_with('/')).collect();
        let sums_text = String::from_utf8(sums_text.clone()).unwrap();
        assert_eq!(sums_text.lines().count(), files.len());
        for ((path, _, bytes), line) in files.iter().zip(sums_text.lines()) {
            let digest: String = Md5::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(line, format!("{digest}  {path}"));
        }
    }

    #[test]
    fn everything_is_at_its_place() {
        let members = members(&deb(&small()).unwrap().bytes);
        let files = unpacked(&members[2].1);
        let file = |path: &str| files.iter().find(|(found, ..)| found == path).unwrap_or_else(|| panic!("no {path}"));
        assert_eq!((file("usr/bin/hotmetal").1, &file("usr/bin/hotmetal").2), (0o755, &small().program));
        for path in [
            "usr/share/man/man1/hotmetal-run.1.gz",
            "usr/share/bash-completion/completions/hotmetal",
            "usr/share/zsh/vendor-completions/_hotmetal",
            "usr/share/fish/vendor_completions.d/hotmetal.fish",
            "usr/share/doc/hotmetal/copyright",
            "usr/share/doc/hotmetal/LICENSE-MIT.gz",
            "usr/share/doc/hotmetal/THIRD_PARTY_LICENSES.txt.gz",
        ] {
            assert_eq!(file(path).1, 0o644);
        }
        let unit = String::from_utf8(file("usr/lib/systemd/system/hotmetal.service").2.clone()).unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/hotmetal serve ") && !unit.contains("/usr/local/"), "{unit}");
        let mut moved = small();
        moved.unit = "[Service]\nExecStart=/opt/hotmetal serve\n".into();
        assert!(deb(&moved).unwrap_err().to_string().contains("packaging/hotmetal.service has no line"));
    }
}
