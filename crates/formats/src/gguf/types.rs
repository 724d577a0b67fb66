//! The tensor types of GGUF: every published id, with its name and block size.
//!
//! Source    `enum ggml_type` and the block structs of ggml, as of November 2026. Ids are never reused. All sizes but
//!           one also agree with the `gguf` Python package (0.19); Q8_1 has 40 bytes there and 36 in ggml itself, and
//!           is in no published file.

use tensor::WeightFormat;

/// A published tensor type.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GgmlType(&'static Row);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Row {
    id: u32,
    name: &'static str,
    block_len: u64,
    block_bytes: u64,
}

const fn row(id: u32, name: &'static str, block_len: u64, block_bytes: u64) -> Row {
    Row { id, name, block_len, block_bytes }
}

static TYPES: [Row; 35] = [
    row(0, "F32", 1, 4),
    row(1, "F16", 1, 2),
    row(2, "Q4_0", 32, 18),
    row(3, "Q4_1", 32, 20),
    row(6, "Q5_0", 32, 22),
    row(7, "Q5_1", 32, 24),
    row(8, "Q8_0", 32, 34),
    row(9, "Q8_1", 32, 36),
    row(10, "Q2_K", 256, 84),
    row(11, "Q3_K", 256, 110),
    row(12, "Q4_K", 256, 144),
    row(13, "Q5_K", 256, 176),
    row(14, "Q6_K", 256, 210),
    row(15, "Q8_K", 256, 292),
    row(16, "IQ2_XXS", 256, 66),
    row(17, "IQ2_XS", 256, 74),
    row(18, "IQ3_XXS", 256, 98),
    row(19, "IQ1_S", 256, 50),
    row(20, "IQ4_NL", 32, 18),
    row(21, "IQ3_S", 256, 110),
    row(22, "IQ2_S", 256, 82),
    row(23, "IQ4_XS", 256, 136),
    row(24, "I8", 1, 1),
    row(25, "I16", 1, 2),
    row(26, "I32", 1, 4),
    row(27, "I64", 1, 8),
    row(28, "F64", 1, 8),
    row(29, "IQ1_M", 256, 56),
    row(30, "BF16", 1, 2),
    row(34, "TQ1_0", 256, 54),
    row(35, "TQ2_0", 256, 66),
    row(39, "MXFP4", 32, 17),
    row(40, "NVFP4", 64, 36),
    row(41, "Q1_0", 128, 18),
    row(42, "Q2_0", 64, 18),
];

/// Ids that files once had and the format has dropped.
static REMOVED: [(u32, &str); 8] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

/// The types that weights are computed from, as a message lists them.
pub(crate) const COVERED: &str =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q6_K, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q5_K, IQ4_NL, IQ4_XS, MXFP4, NVFP4";

impl GgmlType {
    /// Every published type, by id.
    pub fn all() -> impl Iterator<Item = Self> {
        TYPES.iter().map(Self)
    }

    /// The type with this id.
    pub fn from_id(id: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.id == id).map(Self)
    }

    /// The name of a type that was removed from the format.
    pub fn removed_name(id: u32) -> Option<&'static str> {
        REMOVED.iter().find(|(removed, _)| *removed == id).map(|(_, name)| *name)
    }

    /// The id in files.
    pub fn id(self) -> u32 {
        self.0.id
    }

    /// The published name.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Elements in one block.
    pub fn block_len(self) -> u64 {
        self.0.block_len
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u64 {
        self.0.block_bytes
    }

    /// The format that weights of this type are computed from, if there is one yet.
    pub fn weight_format(self) -> Option<WeightFormat> {
        WeightFormat::from_name(self.name()).filter(|&format| self.is_nvfp4() || self.has_blocks_of(format))
    }

    /// The type that stores this weight format in the same blocks; `None` for FP8, which GGUF has not, and NVFP4, which it has in
    /// others: [`GgmlType::holding`].
    pub fn of(format: WeightFormat) -> Option<Self> {
        TYPES.iter().map(Self).find(|ggml| ggml.name() == format.name() && ggml.has_blocks_of(format))
    }

    /// The type that stores this weight format, in the same blocks or, of NVFP4, in those of [`crate::gguf::nvfp4`]; `None` for
    /// FP8.
    pub fn holding(format: WeightFormat) -> Option<Self> {
        TYPES.iter().map(Self).find(|ggml| ggml.weight_format() == Some(format))
    }

    /// Bytes that a tensor of this type takes; `None` where rows are no whole number of blocks, or the size overflows.
    pub fn byte_len(self, shape: &[u64]) -> Option<u64> {
        let row_len = shape.last().copied().unwrap_or(1);
        let row_bytes = (row_len / self.block_len()).checked_mul(self.block_bytes());
        let row_bytes = row_bytes.filter(|_| row_len.is_multiple_of(self.block_len()));
        shape.iter().rev().skip(1).try_fold(row_bytes?, |bytes, &dim| bytes.checked_mul(dim))
    }

    /// Whether a second tensor may hold a scale of the whole matrix.
    pub(crate) fn is_nvfp4(self) -> bool {
        self.name() == WeightFormat::NVFP4.name()
    }

    fn has_blocks_of(self, format: WeightFormat) -> bool {
        self.block_len() == format.block_len() as u64 && self.block_bytes() == format.block_bytes() as u64
    }
}

impl std::fmt::Debug for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn computed_types_agree_with_the_tensor_crate() {
        let formats = WeightFormat::ALL.map(|format| (format, GgmlType::of(format)));
        let without: Vec<_> = formats.iter().filter(|(_, ggml)| ggml.is_none()).map(|(format, _)| *format).collect();
        assert_eq!(without, [WeightFormat::FP8, WeightFormat::NVFP4]);
        for (format, ggml) in formats.iter().filter_map(|&(format, ggml)| Some((format, ggml?))) {
            assert_eq!(ggml.weight_format(), Some(format));
        }
        assert_eq!(GgmlType::holding(WeightFormat::FP8), None);
        let nvfp4 = GgmlType::holding(WeightFormat::NVFP4).unwrap();
        assert!(nvfp4.is_nvfp4() && nvfp4.block_bytes() == crate::gguf::nvfp4::BLOCK_BYTES as u64);
        assert_eq!(nvfp4.byte_len(&[3, 5, 128]), Some(3 * 5 * 72));
        assert_eq!((nvfp4.byte_len(&[5, 96]), nvfp4.byte_len(&[1 << 60, 1 << 20])), (None, None));
        let holding = WeightFormat::ALL.map(GgmlType::holding);
        let names: Vec<_> = holding.iter().filter_map(|ggml| Some(ggml.as_ref()?.name())).collect();
        assert_eq!(COVERED, names.join(", "));
    }

    #[test]
    fn every_id_up_to_the_newest_is_known_or_known_to_be_removed() {
        for id in 0..=42 {
            assert!(GgmlType::from_id(id).is_some() != GgmlType::removed_name(id).is_some(), "{id}");
        }
        assert!(GgmlType::from_id(43).is_none());
    }

    #[test]
    fn block_sizes_give_the_published_bits_per_weight() {
        let bits = |name: &str| {
            let found = GgmlType::all().find(|t| t.name() == name).unwrap();
            found.block_bytes() as f64 * 8.0 / found.block_len() as f64
        };
        let published = [
            ("Q4_0", 4.5),
            ("Q4_1", 5.0),
            ("Q5_0", 5.5),
            ("Q5_1", 6.0),
            ("Q8_0", 8.5),
            ("Q2_K", 2.625),
            ("Q3_K", 3.4375),
            ("Q4_K", 4.5),
            ("Q5_K", 5.5),
            ("Q6_K", 6.5625),
            ("IQ2_XXS", 2.0625),
            ("IQ2_XS", 2.3125),
            ("IQ2_S", 2.5625),
            ("IQ3_XXS", 3.0625),
            ("IQ3_S", 3.4375),
            ("IQ1_S", 1.5625),
            ("IQ1_M", 1.75),
            ("IQ4_NL", 4.5),
            ("IQ4_XS", 4.25),
            ("TQ1_0", 1.6875),
            ("TQ2_0", 2.0625),
            ("MXFP4", 4.25),
            ("NVFP4", 4.5),
        ];
        for (name, expected) in published {
            assert_eq!(bits(name), expected, "{name}");
        }
    }
}
