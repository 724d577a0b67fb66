//! The kernels for Apple GPUs: as text that the device compiles at start, or as `build.rs` had Apple's compiler compile it.

#[cfg(any(test, target_os = "macos"))]
use std::path::Path;

#[cfg(any(test, target_os = "macos"))]
use crate::{GpuError, flatten, kernel_source};

/// The text that this program was built from: every kernel in the Metal Shading Language, version 3.2, self-contained but
/// for Metal's own library, with the checks of struct layouts.
pub fn carried() -> &'static str {
    include_str!(concat!(env!("OUT_DIR"), "/kernels.metal"))
}

/// The kernels, one way or the other.
#[cfg(any(test, target_os = "macos"))]
pub(crate) enum MetalKernels {
    Text(String),
    Built(&'static [u8]),
}

#[cfg(any(test, target_os = "macos"))]
impl MetalKernels {
    /// Those in `folder`, or else those that the binary carries.
    pub(crate) fn load(folder: Option<&Path>) -> Result<Self, GpuError> {
        #[cfg(metallib)]
        let built: Option<&'static [u8]> = Some(include_bytes!(concat!(env!("OUT_DIR"), "/kernels.metallib")));
        #[cfg(not(metallib))]
        let built = None;
        match (folder, built) {
            (Some(folder), _) => {
                let text = flatten::metal(folder);
                let unreadable = |(path, error): (_, std::io::Error)| (path, error.to_string());
                let text = text.map_err(unreadable);
                text.map(Self::Text).map_err(|(path, reason)| GpuError::KernelSource { path, reason })
            }
            (None, Some(built)) => Ok(Self::Built(built)),
            (None, None) if cfg!(feature = "src_kernels") => Ok(Self::Text(carried().to_owned())),
            (None, None) => Err(GpuError::Metal { reason: "this build has no kernels: see docs/metal.md".to_owned() }),
        }
    }

    /// What tells these kernels from others.
    pub(crate) fn hash(&self) -> u64 {
        kernel_source::hash(match self {
            Self::Text(text) => text.as_bytes(),
            Self::Built(bytes) => bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_kernel_once() {
        let includes: Vec<_> = carried().lines().filter(|line| line.starts_with("#include")).collect();
        assert_eq!(includes, ["#include <metal_stdlib>"]);
        assert!(!carried().contains("#pragma once"));
        for shared in include_str!("../kernels/all.h").lines().filter_map(|line| line.strip_prefix("#include \"")) {
            let begins = format!("#line 1 \"{}\n", shared);
            assert_eq!(carried().matches(&begins).count(), 1, "{shared}");
        }
        assert!(carried().contains("KERNEL(rms_norm_f32,") && carried().contains("sizeof(LinearParams)"));
        assert!(!carried().contains("sizeof(GemmParams)"), "that is CUDA's");
    }

    #[test]
    fn kernels_are_those_of_a_folder_or_those_of_the_binary() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let of_folder = MetalKernels::load(Some(&folder)).unwrap();
        assert!(matches!(&of_folder, MetalKernels::Text(text) if text == carried()));
        let Err(error) = MetalKernels::load(Some(&folder.join("nowhere"))) else { panic!("there is no such folder") };
        assert!(error.to_string().contains("nowhere/metal.h`"), "{error}");
        match MetalKernels::load(None) {
            Ok(MetalKernels::Built(bytes)) => assert!(bytes.starts_with(b"MTLB")),
            Ok(text) => assert_eq!(text.hash(), of_folder.hash()),
            Err(_) if !cfg!(feature = "src_kernels") => {}
            Err(error) => panic!("{error}"),
        }
    }
}
