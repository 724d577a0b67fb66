//! What compiled kernels say of themselves: machine code by its ELF file (of 64 bits, little-endian; the records are as
//! `cuobjdump -elf` shows them), and PTX by its text.

use std::collections::BTreeMap;
use std::ffi::CStr;

/// A kernel in a file of machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubinKernel {
    /// The entry point's name.
    pub name: String,
    /// Of each thread.
    pub registers: u32,
    /// Bytes of shared memory that the file gives a group, with those that the system keeps for itself from compute
    /// capability 9.0 on; a launch may ask for more.
    pub shared_bytes: u64,
    /// Bytes of local memory of each thread: registers that are spilled, and arrays that are indexed at run time. The
    /// file does not tell the two apart.
    pub local_bytes: u32,
    /// Bytes of instructions.
    pub code_bytes: u64,
    /// The index of its symbol, by which `nvdisasm` takes a kernel.
    pub symbol: u32,
}

/// The kernels of a file of machine code, by name. `None` where the file is another, or is cut off.
pub fn cubin_kernels(image: &[u8]) -> Option<Vec<CubinKernel>> {
    /// Of a record: its attribute, with a length and that much after it.
    const SIZED: u8 = 4;
    const FRAME_SIZE: u8 = 0x11;
    const REGCOUNT: u8 = 0x2f;
    let elf = Elf::read(image)?;
    let info = elf.section(".nv.info")?;
    let (mut at, end) = (info.start, info.start.checked_add(info.bytes)?);
    let (mut registers, mut frames) = (BTreeMap::new(), BTreeMap::new());
    while at < end {
        let [format, attribute] = *image.get(at..)?.first_chunk()?;
        if format != SIZED {
            at += 4;
            continue;
        }
        let of_attribute = match attribute {
            REGCOUNT => Some(&mut registers),
            FRAME_SIZE => Some(&mut frames),
            _ => None,
        };
        if let Some(values) = of_attribute {
            values.insert(elf.u32_at(at + 4)?, elf.u32_at(at + 8)?);
        }
        at += 4 + elf.u16_at(at + 2)?;
    }
    let bytes = |section: String| elf.section(&section).map_or(0, |section| section.bytes as u64);
    let kernel = |(&symbol, &registers): (&u32, &u32)| {
        let name = elf.symbol_name(symbol)?;
        Some(CubinKernel {
            registers,
            shared_bytes: bytes(format!(".nv.shared.{name}")),
            local_bytes: frames.get(&symbol).copied().unwrap_or(0),
            code_bytes: bytes(format!(".text.{name}")),
            symbol,
            name,
        })
    };
    let mut kernels = registers.iter().map(kernel).collect::<Option<Vec<_>>>()?;
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    Some(kernels)
}

/// An ELF file with its sections by name.
struct Elf<'a> {
    image: &'a [u8],
    sections: BTreeMap<String, Section>,
}

#[derive(Clone, Copy)]
struct Section {
    start: usize,
    bytes: usize,
}

impl<'a> Elf<'a> {
    fn read(image: &'a [u8]) -> Option<Self> {
        if !image.starts_with(b"\x7fELF") {
            return None;
        }
        let mut elf = Self { image, sections: BTreeMap::new() };
        let (headers, header_bytes) = (elf.u64_at(0x28)?, elf.u16_at(0x3a)?);
        let header = |index: usize| headers.checked_add(index * header_bytes);
        let section = |index: usize| {
            let at = header(index)?;
            Some(Section { start: elf.u64_at(at.checked_add(24)?)?, bytes: elf.u64_at(at.checked_add(32)?)? })
        };
        let names = section(elf.u16_at(0x3e)?)?.start;
        let mut sections = BTreeMap::new();
        for index in 0..elf.u16_at(0x3c)? {
            let name = elf.text_at(names.checked_add(elf.u32_at(header(index)?)? as usize)?)?;
            sections.insert(name, section(index)?);
        }
        elf.sections = sections;
        Some(elf)
    }

    fn section(&self, name: &str) -> Option<Section> {
        self.sections.get(name).copied()
    }

    fn symbol_name(&self, symbol: u32) -> Option<String> {
        const SYMBOL_BYTES: usize = 24;
        let (symbols, strings) = (self.section(".symtab")?.start, self.section(".strtab")?.start);
        let name = self.u32_at(symbols.checked_add(symbol as usize * SYMBOL_BYTES)?)?;
        self.text_at(strings.checked_add(name as usize)?)
    }

    fn u16_at(&self, at: usize) -> Option<usize> {
        Some(usize::from(u16::from_le_bytes(*self.image.get(at..)?.first_chunk()?)))
    }

    fn u32_at(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.image.get(at..)?.first_chunk()?))
    }

    fn u64_at(&self, at: usize) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(*self.image.get(at..)?.first_chunk()?)).ok()
    }

    fn text_at(&self, at: usize) -> Option<String> {
        Some(CStr::from_bytes_until_nul(self.image.get(at..)?).ok()?.to_string_lossy().into_owned())
    }
}

/// The kernel that a line of PTX begins: `.visible .entry NAME(`.
fn entry(line: &str) -> Option<&str> {
    let (_, rest) = line.strip_prefix('.')?.split_once(".entry ")?;
    Some(rest.split('(').next().unwrap_or(rest).trim())
}

/// The names of the kernels in PTX, sorted.
pub fn ptx_kernels(ptx: &str) -> Vec<&str> {
    let mut names: Vec<_> = ptx.lines().filter_map(entry).collect();
    names.sort_unstable();
    names
}

/// One kernel of PTX as a module of its own: the module's directives and variables, and the kernel.
pub fn ptx_of(ptx: &str, kernel: &str) -> Option<String> {
    const OF_THE_MODULE: [&str; 5] = [".version", ".target", ".address_size", ".global", ".extern .shared"];
    let mut lines = ptx.lines().skip_while(|line| entry(line) != Some(kernel)).peekable();
    lines.peek()?;
    let shared = ptx.lines().filter(|line| OF_THE_MODULE.iter().any(|directive| line.starts_with(directive)));
    let mut text: String = shared.flat_map(|line| [line, "\n"]).collect();
    text.push('\n');
    for line in lines {
        text.push_str(line);
        text.push('\n');
        if line == "}" {
            return Some(text);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel_source::ARCHITECTURES;

    fn image(target: &str) -> Vec<u8> {
        ARCHITECTURES.iter().find(|image| image.target == target).expect("an image").bytes()
    }

    #[test]
    fn each_image_says_what_its_kernels_take() {
        for image in ARCHITECTURES.iter().filter(|image| image.is_machine_code()) {
            let kernels = cubin_kernels(&image.bytes()).expect("a cubin");
            assert!(kernels.len() > 300, "{}: {}", image.target, kernels.len());
            let is_sane = |kernel: &CubinKernel| {
                (1..=255).contains(&kernel.registers) && kernel.shared_bytes <= 228 << 10 && kernel.code_bytes > 0
            };
            assert!(kernels.iter().all(is_sane), "{}", image.target);
            assert!(kernels.is_sorted_by(|a, b| a.name < b.name), "each once");
            // It holds logits that it draws from in an array.
            let sample = kernels.iter().find(|kernel| kernel.name == "sample_f32").expect("in every image");
            assert!(sample.local_bytes > 0, "{sample:?}");
            let norm = kernels.iter().find(|kernel| kernel.name == "rms_norm_f32").expect("in every image");
            assert!(norm.shared_bytes > 0 && norm.local_bytes == 0, "{norm:?}");
        }
    }

    #[test]
    fn what_is_no_cubin_has_no_kernels() {
        let mut image = image("sm_80");
        for len in [0, 3, 40, 64, 1000] {
            assert!(cubin_kernels(&image[..len]).is_none());
        }
        // The place of the headers beyond the file, and beyond any file.
        for place in [u64::MAX, u64::MAX - 24, 1 << 40] {
            image[0x28..0x30].copy_from_slice(&place.to_le_bytes());
            assert!(cubin_kernels(&image).is_none());
        }
    }

    #[test]
    fn a_kernel_of_ptx_is_a_module_of_its_own() {
        let ptx = String::from_utf8(image("compute_80")).unwrap();
        let names = ptx_kernels(&ptx);
        assert!(names.len() > 300 && names.is_sorted(), "{}", names.len());
        let one = ptx_of(&ptx, "rms_norm_f32").expect("it is there");
        assert!(one.starts_with(".version "), "{}", &one[..100]);
        assert_eq!(ptx_kernels(&one), ["rms_norm_f32"]);
        assert!(one.contains(".target sm_80\n") && one.ends_with("}\n"));
        // A prefix of a name is another kernel.
        assert!(names.contains(&"rms_norm_f32") && ptx_of(&ptx, "rms_norm_f").is_none());
    }
}
