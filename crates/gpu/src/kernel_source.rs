//! The kernel text as one string, for CUDA's compiler, and what that compiler made of it.
//!
//! `examples/compile_kernels.rs` writes the files in `kernels/cuda`, which the binary carries: users need only a driver.

use crate::params::layout_assertions;

/// What is compiled ahead of time for one CUDA architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its name for the compiler: `sm_` for machine code, `compute_` for PTX, which the driver compiles at load.
    pub target: &'static str,
    /// Its compute capability.
    pub capability: (u32, u32),
    /// Its file in `kernels/cuda`, compressed.
    pub file: &'static str,
}

impl Image {
    /// Machine code, or PTX.
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
        const PACKED: &[&[u8]] = &[$(include_bytes!(concat!("../kernels/cuda/", $file))),*];
    };
}

images! {
    "sm_80" 8 0 "sm_80.cubin.z"
    "sm_86" 8 6 "sm_86.cubin.z"
    "sm_89" 8 9 "sm_89.cubin.z"
    "sm_90" 9 0 "sm_90.cubin.z"
    "sm_100" 10 0 "sm_100.cubin.z"
    "sm_120" 12 0 "sm_120.cubin.z"
    "compute_80" 8 0 "compute_80.ptx.z"
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
pub(crate) fn image(capability: (u32, u32)) -> Option<LoadedImage> {
    let (index, image) = choose(capability)?;
    let bytes = miniz_oxide::inflate::decompress_to_vec(PACKED[index]).expect("tests unpack every image");
    Some(LoadedImage { bytes, has_early_start: image.capability >= (9, 0) })
}

fn choose(capability: (u32, u32)) -> Option<(usize, &'static Image)> {
    let images = || ARCHITECTURES.iter().enumerate();
    let (major, minor) = capability;
    let runs = |image: &Image| image.is_machine_code() && image.capability.0 == major && image.capability.1 <= minor;
    let machine_code = images().filter(|(_, image)| runs(image)).max_by_key(|(_, image)| image.capability);
    machine_code.or_else(|| images().find(|(_, image)| !image.is_machine_code() && image.capability <= capability))
}

/// FNV-1a of the text that is compiled.
pub fn source_hash() -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    cuda().bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The files of `kernels/all.h`, in its order.
const KERNELS: [(&str, &str); 7] = [
    ("parts.h", include_str!("../kernels/parts.h")),
    ("embed.h", include_str!("../kernels/embed.h")),
    ("rms_norm.h", include_str!("../kernels/rms_norm.h")),
    ("linear.h", include_str!("../kernels/linear.h")),
    ("rope_kv_write.h", include_str!("../kernels/rope_kv_write.h")),
    ("attention.h", include_str!("../kernels/attention.h")),
    ("elementwise.h", include_str!("../kernels/elementwise.h")),
];

/// Every kernel in CUDA C++, self-contained, with the checks of struct layouts.
pub fn cuda() -> String {
    let port = [("port/cuda.h", include_str!("../kernels/port/cuda.h"))];
    let mut text = String::new();
    for (name, file) in port.iter().chain(&KERNELS) {
        text += &format!("#line 1 \"{name}\"\n{}", file.replace("#pragma once", ""));
    }
    // Structs of kernels that only tests have are not in the text.
    let shipped = |line: &&str| !line.contains("FaultParams");
    text += "#line 1 \"params.rs\"\n";
    layout_assertions().lines().filter(shipped).for_each(|line| text.extend([line, "\n"]));
    text
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
        assert_eq!(recorded, current, "the kernels changed: run `cargo run -p gpu --example compile_kernels`");
    }

    #[test]
    fn every_image_unpacks_and_has_every_kernel() {
        let text = include_str!("../kernels/rms_norm.h");
        assert!(text.contains("KERNEL(rms_norm_f32,"));
        for (image, packed) in ARCHITECTURES.iter().zip(PACKED) {
            let bytes = miniz_oxide::inflate::decompress_to_vec(packed).unwrap();
            assert_eq!(bytes.starts_with(b"\x7fELF"), image.is_machine_code(), "{}", image.target);
            for kernel in ["linear_q8_0_m1", "attention_f16", "rms_norm_f32", "rope_kv_write_f16", "embed_bf16"] {
                let found = bytes.windows(kernel.len()).any(|window| window == kernel.as_bytes());
                assert!(found, "{} lacks `{kernel}`", image.target);
            }
        }
    }

    #[test]
    fn devices_get_code_of_their_generation_and_newer_ones_ptx() {
        let target = |capability| choose(capability).map(|(_, image)| image.target);
        assert_eq!(target((7, 5)), None);
        assert_eq!(target((8, 0)), Some("sm_80"));
        assert_eq!(target((8, 7)), Some("sm_86"));
        assert_eq!(target((8, 9)), Some("sm_89"));
        assert_eq!(target((9, 0)), Some("sm_90"));
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
