//! Kernels that a user forces: taken for an op wherever they can be, whatever `ops` would choose.

use std::fmt;
use std::str::FromStr;

/// A kernel that may be forced: the file of that name in `kernels/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Linear,
    LinearStream,
    LinearBatch,
    Gemm,
    GemmMma,
    Attention,
    AttentionF16,
    AttentionTiles,
}

impl Kernel {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::LinearStream => "linear_stream",
            Self::LinearBatch => "linear_batch",
            Self::Gemm => "gemm",
            Self::GemmMma => "gemm_mma",
            Self::Attention => "attention",
            Self::AttentionF16 => "attention_f16",
            Self::AttentionTiles => "attention_tiles",
        }
    }
}

/// Ops with more than one kernel, as plans name them.
const OPS: [&str; 6] = ["linear", "norm_linear", "linear_residual", "norm_glu", "logits", "attention"];

/// The kernels among which one is chosen for the op of that name, on one device or another; none where there is no
/// choice. First the one that computes all that the op can ask for.
pub(crate) fn kernels_of(op: &str) -> &'static [Kernel] {
    match op {
        "attention" => &[Kernel::Attention, Kernel::AttentionF16, Kernel::AttentionTiles],
        op if OPS.contains(&op) => {
            &[Kernel::Linear, Kernel::LinearStream, Kernel::LinearBatch, Kernel::Gemm, Kernel::GemmMma]
        }
        _ => &[],
    }
}

/// Names, for a message.
pub(crate) fn names(kernels: &[Kernel]) -> String {
    kernels.iter().map(|kernel| kernel.name()).collect::<Vec<_>>().join(", ")
}

/// One op, and the kernel that is to compute it: `norm_glu=gemm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForcedVariant {
    op: usize,
    kernel: Kernel,
}

/// Why a text names no variant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ForcedVariantError(String);

impl FromStr for ForcedVariant {
    type Err = ForcedVariantError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((op, kernel)) = text.split_once('=') else {
            return Err(ForcedVariantError(format!("`{text}`: expected OP=KERNEL, for example norm_glu=linear")));
        };
        let Some(index) = OPS.iter().position(|known| *known == op) else {
            let known = OPS.join(", ");
            return Err(ForcedVariantError(format!("`{op}` is no op with several kernels; those are: {known}")));
        };
        let known = kernels_of(op);
        match known.iter().find(|known| known.name() == kernel) {
            Some(&kernel) => Ok(Self { op: index, kernel }),
            None => Err(ForcedVariantError(format!("`{op}` has no kernel `{kernel}`; it has: {}", names(known)))),
        }
    }
}

/// What is forced for each op; of two for one op the later counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForcedVariants([Option<Kernel>; OPS.len()]);

impl ForcedVariants {
    /// Nothing.
    pub const NONE: Self = Self([None; OPS.len()]);

    /// Of every op the kernel that there is for all devices, formats and rows. It has no matrix instructions: it rounds no
    /// operand, and a row has the same bits in every launch.
    pub fn plain() -> Self {
        Self(OPS.map(|op| kernels_of(op).first().copied()))
    }

    /// For the op of that name.
    pub(crate) fn of(&self, op: &str) -> Option<Kernel> {
        OPS.iter().position(|known| *known == op).and_then(|index| self.0[index])
    }

    /// Each op with its kernel.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, Kernel)> {
        OPS.into_iter().zip(self.0).filter_map(|(op, kernel)| Some((op, kernel?)))
    }
}

impl FromIterator<ForcedVariant> for ForcedVariants {
    fn from_iter<I: IntoIterator<Item = ForcedVariant>>(variants: I) -> Self {
        let mut all = Self::NONE;
        variants.into_iter().for_each(|ForcedVariant { op, kernel }| all.0[op] = Some(kernel));
        all
    }
}

/// `norm_glu=gemm, attention=attention`
impl fmt::Display for ForcedVariants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variants: Vec<_> = self.iter().map(|(op, kernel)| format!("{op}={}", kernel.name())).collect();
        f.write_str(&variants.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_not_is_refused_with_what_there_is() {
        let error = |text: &str| text.parse::<ForcedVariant>().unwrap_err().to_string();
        assert_eq!(error("norm_glu"), "`norm_glu`: expected OP=KERNEL, for example norm_glu=linear");
        assert!(
            error("embed=linear").starts_with("`embed` is no op with several kernels; those are: linear, norm_linear")
        );
        assert_eq!(
            error("logits=attention"),
            "`logits` has no kernel `attention`; it has: linear, linear_stream, linear_batch, gemm, gemm_mma"
        );
        assert_eq!(
            error("attention=gemm"),
            "`attention` has no kernel `gemm`; it has: attention, attention_f16, attention_tiles"
        );
    }

    #[test]
    fn plain_kernels_are_forced_for_every_op() {
        let all = "linear=linear, norm_linear=linear, linear_residual=linear, norm_glu=linear, logits=linear, \
                   attention=attention";
        assert_eq!(ForcedVariants::plain().to_string(), all);
    }

    #[test]
    fn the_later_of_two_counts() {
        let texts = ["logits=gemm", "attention=attention", "logits=linear"];
        let forced: ForcedVariants = texts.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(forced.to_string(), "logits=linear, attention=attention");
        assert_eq!((forced.of("logits"), forced.of("norm_glu")), (Some(Kernel::Linear), None));
        assert_eq!(ForcedVariants::NONE.to_string(), "");
    }
}
