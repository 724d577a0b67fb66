//! The kernel text as one string, for CUDA's compiler, and what that compiler made of it.
//!
//! `cargo xtask kernels` writes the files in `kernels/cuda`, which the binary carries: users need only a driver.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use crate::params::layout_assertions;
use crate::{GpuError, nvrtc};

/// What is compiled ahead of time for one CUDA architecture. `sm_90a` has instructions that later ones lack, so it runs on
/// 9.0 alone; there is no 9.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its name for the compiler: `sm_` for machine code, `compute_` for PTX, which the driver compiles at load.
    pub target: &'static str,
    /// Its compute capability.
    pub capability: (u32, u32),
    /// Its file in `kernels/cuda`. `build.rs` compresses it for the binary.
    pub file: &'static str,
}

impl Image {
    fn loaded(&self, bytes: Vec<u8>) -> LoadedImage {
        LoadedImage { bytes, has_early_start: self.capability >= (9, 0) }
    }

    /// What the binary carries: machine code as an ELF file, or PTX as text. Empty for an image that is not one of
    /// [`ARCHITECTURES`].
    pub fn bytes(&self) -> Vec<u8> {
        let index = ARCHITECTURES.iter().position(|image| image == self);
        let packed = index.map(|index| PACKED[index]);
        let unpack = |packed: &[u8]| zstd::decode_all(packed).expect("tests unpack every image");
        packed.map(unpack).unwrap_or_default()
    }

    /// Whether it is machine code, and not PTX.
    pub fn is_machine_code(&self) -> bool {
        self.target.starts_with("sm_")
    }
}

/// Declares each image once: for the compiler, and with the bytes that came of it.
macro_rules! images {
    ($($target:literal $major:literal $minor:literal $file:literal)*) => {
        /// Every image, machine code first.
        pub const ARCHITECTURES: &[Image] =
            &[$(Image { target: $target, capability: ($major, $minor), file: $file }),*];
        const PACKED: &[&[u8]] = &[$(include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".zst"))),*];
    };
}

images! {
    "sm_80" 8 0 "sm_80.cubin"
    "sm_86" 8 6 "sm_86.cubin"
    "sm_89" 8 9 "sm_89.cubin"
    "sm_90a" 9 0 "sm_90a.cubin"
    "sm_100" 10 0 "sm_100.cubin"
    "sm_120" 12 0 "sm_120.cubin"
    "compute_80" 8 0 "compute_80.ptx"
}

/// The file beside the images that says which text they were made of.
pub const SOURCE_HASH_FILE: &str = "source.fnv";

/// The kernels for a device.
pub(crate) struct LoadedImage {
    pub(crate) bytes: Vec<u8>,
    /// Whether its kernels wait for the one ahead themselves, and so may start before that has ended.
    pub(crate) has_early_start: bool,
}

/// The image for a device of this compute capability: machine code of the same generation, the newest that the device
/// runs, or PTX for one that came after them. `None` for devices older than all.
pub(crate) fn image(capability: (u32, u32)) -> Result<Option<LoadedImage>, GpuError> {
    Ok(choose(capability).map(|image| image.loaded(image.bytes())))
}

/// What has the kernels for a device of some compute capability; `None` for devices older than all.
pub(crate) type ImageOf<'a> = dyn Fn((u32, u32)) -> Result<Option<LoadedImage>, GpuError> + 'a;

/// Kernels as text in a folder: `all.h` and what it includes, as in `kernels`.
#[derive(Clone, Debug)]
pub struct KernelSource {
    /// The folder.
    pub folder: PathBuf,
    /// Where what was compiled is kept, by the hash of the text; nowhere without it.
    pub cache: Option<PathBuf>,
    /// Is told for which architecture, before something is compiled: that takes minutes.
    pub compiling: fn(&str),
}

impl KernelSource {
    /// As [`image`], compiled now, or found in the cache.
    pub(crate) fn image(&self, capability: (u32, u32)) -> Result<Option<LoadedImage>, GpuError> {
        let Some(image) = choose(capability) else { return Ok(None) };
        let text = text(&|name| {
            let path = self.folder.join(name);
            fs::read_to_string(&path).map_err(|error| GpuError::KernelSource { path, reason: error.to_string() })
        })?;
        let kept =
            self.cache.as_ref().map(|cache| cache.join(format!("{:016x}-{}", hash(text.as_bytes()), image.target)));
        if let Some(bytes) = kept.as_ref().and_then(|path| read_kept(path).ok()) {
            return Ok(Some(image.loaded(bytes)));
        }
        (self.compiling)(image.target);
        let compiled = nvrtc::compile(&text, image.target)?;
        if let Some(path) = kept {
            // Without a cache it is compiled again next time.
            let _ = keep(&path, &compiled.image);
        }
        Ok(Some(image.loaded(compiled.image)))
    }
}

/// What [`keep`] wrote; a link in its place is refused, because it would put other code there.
fn read_kept(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    mapped::refuse_links(File::options().read(true)).open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes a file that others see whole or not at all, through no link.
fn keep(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    // Of a process that had this number and was ended; where it cannot be removed, the next line says so.
    let _ = fs::remove_file(&partial);
    File::create_new(&partial)?.write_all(bytes)?;
    fs::rename(partial, path)
}

fn choose(capability: (u32, u32)) -> Option<&'static Image> {
    let (major, minor) = capability;
    let runs = |image: &Image| image.is_machine_code() && image.capability.0 == major && image.capability.1 <= minor;
    let machine_code = ARCHITECTURES.iter().filter(|image| runs(image)).max_by_key(|image| image.capability);
    machine_code
        .or_else(|| ARCHITECTURES.iter().find(|image| !image.is_machine_code() && image.capability <= capability))
}

/// The hash of the text that is compiled.
pub fn source_hash() -> u64 {
    hash(cuda().as_bytes())
}

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The files of `kernels/all.h`, in its order.
const KERNELS: [(&str, &str); 24] = [
    ("parts.h", include_str!("../kernels/parts.h")),
    ("operand.h", include_str!("../kernels/operand.h")),
    ("embed.h", include_str!("../kernels/embed.h")),
    ("weight_norms.h", include_str!("../kernels/weight_norms.h")),
    ("rms_norm.h", include_str!("../kernels/rms_norm.h")),
    ("linear.h", include_str!("../kernels/linear.h")),
    ("linear_batch.h", include_str!("../kernels/linear_batch.h")),
    ("gemm_formats.h", include_str!("../kernels/gemm_formats.h")),
    ("gemm_mma.h", include_str!("../kernels/gemm_mma.h")),
    ("route.h", include_str!("../kernels/route.h")),
    ("experts.h", include_str!("../kernels/experts.h")),
    ("head_linear.h", include_str!("../kernels/head_linear.h")),
    ("rope_kv_write.h", include_str!("../kernels/rope_kv_write.h")),
    ("linear_stream.h", include_str!("../kernels/linear_stream.h")),
    ("experts_stream.h", include_str!("../kernels/experts_stream.h")),
    ("experts_rows.h", include_str!("../kernels/experts_rows.h")),
    ("attention.h", include_str!("../kernels/attention.h")),
    ("attention_f16.h", include_str!("../kernels/attention_f16.h")),
    ("attention_tiles.h", include_str!("../kernels/attention_tiles.h")),
    ("mla_attention.h", include_str!("../kernels/mla_attention.h")),
    ("elementwise.h", include_str!("../kernels/elementwise.h")),
    ("choose.h", include_str!("../kernels/choose.h")),
    ("sample.h", include_str!("../kernels/sample.h")),
    ("roofline.h", include_str!("../kernels/roofline.h")),
];

/// Files for one architecture alone, empty for others: beside each of their kernels there is one of all that computes the
/// same.
const SM90_KERNELS: [(&str, &str); 11] = [
    ("sm90/hopper.h", include_str!("../kernels/sm90/hopper.h")),
    ("sm90/activations.h", include_str!("../kernels/sm90/activations.h")),
    ("sm90/gemm.h", include_str!("../kernels/sm90/gemm.h")),
    ("sm90/gemm_experts.h", include_str!("../kernels/sm90/gemm_experts.h")),
    ("sm90/gemm_narrow.h", include_str!("../kernels/sm90/gemm_narrow.h")),
    ("sm90/experts_mma.h", include_str!("../kernels/sm90/experts_mma.h")),
    ("sm90/attention_cluster.h", include_str!("../kernels/sm90/attention_cluster.h")),
    ("sm90/mla_cluster.h", include_str!("../kernels/sm90/mla_cluster.h")),
    ("sm90/prompt_attention.h", include_str!("../kernels/sm90/prompt_attention.h")),
    ("sm90/expanded_attention.h", include_str!("../kernels/sm90/expanded_attention.h")),
    ("sm90/roofline.h", include_str!("../kernels/sm90/roofline.h")),
];

const PORT: (&str, &str) = ("port/cuda.h", include_str!("../kernels/port/cuda.h"));

/// The files of the text, in order.
fn all() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    std::iter::once(&PORT).chain(&KERNELS).chain(&SM90_KERNELS)
}

/// Every kernel in CUDA C++, self-contained, with the checks of struct layouts.
pub fn cuda() -> String {
    let carried = |name: &str| {
        let file = all().find(|(known, _)| *known == name);
        Ok::<_, std::convert::Infallible>(file.expect("`text` asks for these").1.to_owned())
    };
    text(&carried).unwrap_or_else(|never| match never {})
}

/// The same of the files that `read` has.
fn text<E>(read: &dyn Fn(&str) -> Result<String, E>) -> Result<String, E> {
    let mut text = String::new();
    for (name, _) in all() {
        text += &format!("#line 1 \"{name}\"\n{}", read(name)?.replace("#pragma once", ""));
    }
    // Structs of kernels that only tests have are not in the text.
    Ok(text + "#line 1 \"params.rs\"\n" + &layout_assertions(|name| name != "FaultParams"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_all_h_is_in_the_text() {
        let all = include_str!("../kernels/all.h");
        let included: Vec<_> = all.lines().filter_map(|line| line.strip_prefix("#include ")).collect();
        let expected: Vec<_> = KERNELS.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        assert_eq!(included, expected);
        assert!(!cuda().contains("#include"));
    }

    #[test]
    fn the_images_were_made_of_this_text() {
        let recorded = include_str!("../kernels/cuda/source.fnv").trim();
        let current = format!("{:016x}", source_hash());
        assert_eq!(recorded, current, "the kernels changed: run `cargo xtask kernels`");
    }

    #[test]
    fn a_folder_of_kernels_is_the_same_text() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let read = |name: &str| fs::read_to_string(folder.join(name));
        assert!(text(&read).unwrap() == cuda());
        let missing = KernelSource { folder: folder.join("nowhere"), cache: None, compiling: |_| () };
        let Err(error) = missing.image((9, 0)) else { panic!("there is no such folder") };
        assert!(error.to_string().contains("nowhere/port/cuda.h`"), "{error}");
    }

    #[test]
    fn what_was_compiled_from_this_text_is_taken_from_the_cache() {
        let cache = std::env::temp_dir().join(format!("hotmetal-kernels-{}", std::process::id()));
        let image = choose((9, 0)).unwrap();
        keep(&cache.join(format!("{:016x}-{}", source_hash(), image.target)), b"kept").unwrap();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let found = KernelSource { folder, cache: Some(cache.clone()), compiling: |_| panic!("it is there") }
            .image((9, 0))
            .unwrap()
            .unwrap();
        assert_eq!(found.bytes, b"kept");
        #[cfg(unix)]
        {
            let (kept, link) = (cache.join(format!("{:016x}-{}", source_hash(), image.target)), cache.join("link"));
            std::os::unix::fs::symlink(&kept, &link).unwrap();
            assert!(read_kept(&link).is_err());
            std::os::unix::fs::symlink(&kept, link.with_extension(format!("{}.partial", std::process::id()))).unwrap();
            keep(&link, b"new").unwrap();
            assert!(!link.is_symlink() && read_kept(&link).unwrap() == b"new" && read_kept(&kept).unwrap() == b"kept");
        }
        fs::remove_dir_all(cache).unwrap();
    }

    #[test]
    fn every_image_unpacks_and_has_every_kernel() {
        let text = include_str!("../kernels/rms_norm.h");
        assert!(text.contains("KERNEL(rms_norm_f32,"));
        for image in ARCHITECTURES {
            let bytes = image.bytes();
            assert_eq!(bytes.starts_with(b"\x7fELF"), image.is_machine_code(), "{}", image.target);
            for kernel in ["linear_q8_0_m1", "gemm_mma_q4_0_t128", "attention_f16", "rms_norm_f32", "rope_kv_write_f16"]
            {
                let found = bytes.windows(kernel.len()).any(|window| window == kernel.as_bytes());
                assert!(found, "{} lacks `{kernel}`", image.target);
            }
            let has_gemm = bytes.windows(8).any(|window| window == b"gemm_f16");
            assert_eq!(has_gemm, image.target == "sm_90a", "{}", image.target);
        }
    }

    #[test]
    fn devices_get_code_of_their_generation_and_newer_ones_ptx() {
        let target = |capability| choose(capability).map(|image| image.target);
        assert_eq!(target((7, 5)), None);
        assert_eq!(target((8, 0)), Some("sm_80"));
        assert_eq!(target((8, 7)), Some("sm_86"));
        assert_eq!(target((8, 9)), Some("sm_89"));
        assert_eq!(target((9, 0)), Some("sm_90a"));
        assert_eq!(target((10, 3)), Some("sm_100"));
        assert_eq!(target((11, 0)), Some("compute_80"));
        assert_eq!(target((12, 1)), Some("sm_120"));
    }

    /// What the address spaces of Metal allow and C++ does not notice: a pointer or reference without one.
    #[test]
    fn every_pointer_and_reference_says_where_it_points() {
        let mut faults = vec![];
        for (name, text) in KERNELS {
            for (index, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let words: Vec<_> = code.split(|c: char| !(c.is_alphanumeric() || "_&*<>".contains(c))).collect();
                for word in words {
                    let pointer = word.ends_with('*') && word.len() > 1;
                    let reference = word.ends_with('&') && word.len() > 1 && !word.ends_with("&&");
                    let spelled = ["CONST ", "GROUP ", "THREAD "].iter().any(|space| code.contains(space));
                    if pointer || (reference && !spelled) {
                        faults.push(format!("{name}:{}: `{word}`", index + 1));
                    }
                }
                for banned in ["lambda", "std::", "double", "size_t", "long ", "if constexpr"] {
                    if code.contains(banned) {
                        faults.push(format!("{name}:{}: `{banned}`", index + 1));
                    }
                }
            }
        }
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }
}
