//! The program that is packed: which machine it is for, and which libraries it needs of that machine.

use anyhow::{Context, Result, bail, ensure};
use object::elf::{self, FileHeader64};
use object::read::elf::FileHeader as _;
use object::{Endianness, StringTable};

/// The libraries of glibc that a program of Rust is linked to.
const GLIBC: [&str; 7] = [
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
];
/// GCC's library, which unwinds the stack after a panic.
const LIBGCC: &str = "libgcc_s.so.1";

/// The machine that a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    X86_64,
    Aarch64,
}

impl Machine {
    /// As Rust, Python and Linux call it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As Debian calls it.
    pub(super) fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }
}

/// What a program needs of the machine that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Needs {
    pub(super) machine: Machine,
    /// The newest version of glibc of which it uses a function; `None` if it is linked to no library at all.
    pub(super) glibc: Option<(u32, u32)>,
    /// Whether it needs GCC's library.
    pub(super) libgcc: bool,
}

impl Needs {
    /// Reads them from a program for Linux.
    ///
    /// # Errors
    /// Bytes that are no such program, and one that needs a library that no package here asks for.
    pub(super) fn of(program: &[u8]) -> Result<Self> {
        let header = FileHeader64::<Endianness>::parse(program)
            .ok()
            .context("this is no 64-bit ELF program: a wheel, a Debian package and `musl` need one built for Linux")?;
        Self::read(header, program).context("the program's ELF tables are damaged")?
    }

    /// The outer error is about the file, the inner one about what it needs.
    fn read(header: &FileHeader64<Endianness>, program: &[u8]) -> object::Result<Result<Self>> {
        let endian = header.endian()?;
        let sections = header.sections(endian, program)?;
        let mut libraries = Vec::new();
        let dynamic = sections.dynamic_table(endian, program)?;
        for entry in dynamic.iter().filter(|entry| entry.tag == elf::DT_NEEDED) {
            libraries.push(String::from_utf8_lossy(dynamic.string(entry)?).into_owned());
        }
        let mut versions = Vec::new();
        if let Some((mut needs, link)) = sections.gnu_verneed(endian, program)? {
            let strings: StringTable<'_> = sections.strings(endian, program, link)?;
            while let Some((_, mut of_library)) = needs.next()? {
                while let Some(version) = of_library.next()? {
                    versions.push(String::from_utf8_lossy(version.name(endian, strings)?).into_owned());
                }
            }
        }
        Ok(Self::from_names(header.e_machine(endian), &libraries, &versions))
    }

    fn from_names(machine: elf::Machine, libraries: &[String], versions: &[String]) -> Result<Self> {
        let machine = match machine {
            elf::EM_X86_64 => Machine::X86_64,
            elf::EM_AARCH64 => Machine::Aarch64,
            other => bail!("the program is for ELF machine {other:?}; packages are made for x86_64 and aarch64"),
        };
        let is_known = |library: &&String| GLIBC.contains(&library.as_str()) || *library == LIBGCC;
        if let Some(library) = libraries.iter().find(|library| !is_known(library)) {
            bail!(
                "the program needs {library}, which no package here asks for: build it with \
                 `cargo build --release --locked`, without `--features sim`"
            );
        }
        let glibc = versions.iter().filter_map(|version| glibc_version(version)).max();
        ensure!(libraries.is_empty() || glibc.is_some(), "the program needs glibc, but says no version of it");
        Ok(Self { machine, glibc, libgcc: libraries.iter().any(|library| library == LIBGCC) })
    }

    /// The version of glibc, for packages of a program that is linked to it.
    pub(super) fn glibc(&self) -> Result<(u32, u32)> {
        self.glibc.context(
            "the program is linked to no library: `cargo xtask package musl` packs such a program, and a wheel or a Debian \
             package holds one that is linked to glibc",
        )
    }
}

/// `GLIBC_2.34` → (2, 34); a third number changes nothing.
fn glibc_version(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn the_newest_version_is_the_one_that_is_needed() {
        let libraries = owned(&["libgcc_s.so.1", "libm.so.6", "libc.so.6", "ld-linux-x86-64.so.2"]);
        let versions = owned(&["GCC_4.2.0", "GLIBC_2.9", "GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.3", "GLIBC_PRIVATE"]);
        let needs = Needs::from_names(elf::EM_X86_64, &libraries, &versions).unwrap();
        assert_eq!(needs, Needs { machine: Machine::X86_64, glibc: Some((2, 34)), libgcc: true });
        let alone = Needs::from_names(elf::EM_AARCH64, &[], &[]).unwrap();
        assert_eq!(alone, Needs { machine: Machine::Aarch64, glibc: None, libgcc: false });
        assert!(alone.glibc().unwrap_err().to_string().contains("cargo xtask package musl"));
    }

    #[test]
    fn what_cannot_be_packed_is_refused_by_name() {
        let refused = |libraries: &[&str], machine| {
            Needs::from_names(machine, &owned(libraries), &owned(&["GLIBC_2.34"])).unwrap_err().to_string()
        };
        assert!(refused(&["libc.so.6", "libstdc++.so.6"], elf::EM_X86_64).contains("needs libstdc++.so.6"));
        assert!(refused(&["libc.so.6"], elf::EM_RISCV).contains("x86_64 and aarch64"));
        for bytes in
            [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]]
        {
            assert!(Needs::of(bytes).unwrap_err().to_string().contains("no 64-bit ELF program"));
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn a_real_program_is_read_and_a_damaged_one_is_an_error() {
        // This one, which has the simulator of GPUs in it where the tests of all crates are built together.
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        match Needs::of(&program) {
            Ok(needs) => {
                assert_eq!(needs.machine.name(), std::env::consts::ARCH);
                assert!(needs.libgcc && needs.glibc.unwrap() >= (2, 17), "{needs:?}");
            }
            Err(error) => {
                let error = error.to_string();
                assert!(
                    error.contains("needs libstdc++.so.6") && error.contains("without `--features sim`"),
                    "{error}"
                );
            }
        }
        for len in [64, 100, program.len() / 2] {
            assert!(Needs::of(&program[..len]).is_err());
        }
    }
}
