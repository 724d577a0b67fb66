//! Which format a matrix gets: one for all, or the mixtures that llama.cpp's quantiser has, by their names.

use std::str::FromStr;

use plan::Plan;
use tensor::WeightFormat;

/// What `--format` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    name: &'static str,
    /// What most matrices become.
    pub(crate) base: WeightFormat,
    rules: Rules,
    /// The number that llama.cpp gives such a file.
    pub(crate) file_type: u32,
}

/// Which matrices become something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    /// At less than six bits, the embeddings and the output matrix are Q6_K: what every token passes through.
    Ends,
    /// llama.cpp's, which gives more bits to some layers of what loses most.
    Named(Size),
}

/// S, M or L of a mixture's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Small,
    Medium,
    Large,
}

const fn plain(name: &'static str, base: WeightFormat, file_type: u32) -> Mix {
    Mix { name, base, rules: Rules::Ends, file_type }
}

const fn mixed(name: &'static str, base: WeightFormat, size: Size, file_type: u32) -> Mix {
    Mix { name, base, rules: Rules::Named(size), file_type }
}

/// Every name.
pub(crate) const MIXES: [Mix; 24] = {
    use Size::{Large, Medium, Small};
    use WeightFormat as W;
    [
        plain("f32", W::F32, 0),
        plain("f16", W::F16, 1),
        plain("bf16", W::BF16, 32),
        plain("q8_0", W::Q8_0, 7),
        plain("q6_k", W::Q6_K, 18),
        plain("q5_k", W::Q5_K, 16),
        plain("q5_1", W::Q5_1, 9),
        plain("q5_0", W::Q5_0, 8),
        plain("q4_k", W::Q4_K, 14),
        plain("q4_1", W::Q4_1, 3),
        plain("q4_0", W::Q4_0, 2),
        plain("iq4_nl", W::IQ4_NL, 25),
        plain("iq4_xs", W::IQ4_XS, 30),
        plain("mxfp4", W::MXFP4, 38),
        plain("nvfp4", W::NVFP4, 39),
        plain("q3_k", W::Q3_K, 11),
        plain("q2_k", W::Q2_K, 10),
        mixed("q5_k_m", W::Q5_K, Medium, 17),
        mixed("q5_k_s", W::Q5_K, Small, 16),
        mixed("q4_k_m", W::Q4_K, Medium, 15),
        mixed("q4_k_s", W::Q4_K, Small, 14),
        mixed("q3_k_l", W::Q3_K, Large, 13),
        mixed("q3_k_m", W::Q3_K, Medium, 12),
        mixed("q3_k_s", W::Q3_K, Small, 11),
    ]
};

impl FromStr for Mix {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mix = MIXES.into_iter().find(|mix| mix.name.eq_ignore_ascii_case(name));
        mix.ok_or_else(|| format!("expected one of {}", MIXES.map(|mix| mix.name).join(", ")))
    }
}

/// What the rules ask of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Model {
    /// Layers.
    pub(crate) layers: usize,
    /// Whether the embeddings are the output matrix, too.
    pub(crate) tied: bool,
}

impl Model {
    /// What they ask of the model that `plan` computes.
    pub(crate) fn of(plan: &Plan) -> Self {
        let tied = plan.weights.iter().all(|weight| weight.name != "lm_head.weight");
        Self { layers: plan.kv_layers.len(), tied }
    }
}

impl Mix {
    /// The name, as `--format` takes it.
    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// What the matrix with this GGUF name becomes: a format of shorter blocks where those of its own do not divide its rows,
    /// F16 where those do not, either.
    pub(crate) fn format_of_rows(self, name: &str, model: Model, row_len: usize) -> Option<WeightFormat> {
        let format = self.format_of(name, model);
        let formats = [format, in_short_blocks(format), WeightFormat::F16];
        formats.into_iter().find(|format| row_len.is_multiple_of(format.block_len()))
    }

    fn format_of(self, name: &str, model: Model) -> WeightFormat {
        use WeightFormat::{Q4_K, Q5_K, Q6_K};
        let is_output = name == "output.weight";
        let is_embedding = name == "token_embd.weight";
        let bits = |format: WeightFormat| format.block_bytes() * 8 / format.block_len();
        let size = match self.rules {
            Rules::Ends if (is_output || is_embedding) && bits(self.base) < bits(Q6_K) => return Q6_K,
            Rules::Ends => return self.base,
            Rules::Named(_) if is_output || is_embedding && model.tied => return Q6_K,
            Rules::Named(size) => size,
        };
        let Some((layer, kind)) = layer_of(name) else { return self.base };
        let layers = model.layers;
        // The first and the last eighth, and every third between.
        let is_chosen = layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
        match (self.base, size, kind) {
            (Q4_K | Q5_K, Size::Medium, "attn_v" | "ffn_down") if is_chosen => Q6_K,
            (Q4_K, Size::Small, "attn_v") if layer < 4 => Q5_K,
            (Q4_K, Size::Small, "ffn_down") if layer < layers / 8 => Q5_K,
            (WeightFormat::Q3_K, Size::Medium, "attn_v") => {
                if layer < 2 {
                    Q5_K
                } else {
                    Q4_K
                }
            }
            (WeightFormat::Q3_K, Size::Medium, "ffn_down") if layer < layers / 16 => Q5_K,
            (WeightFormat::Q3_K, Size::Medium, "ffn_down") if is_chosen => Q4_K,
            (WeightFormat::Q3_K, Size::Medium, "attn_output") => Q4_K,
            (WeightFormat::Q3_K, Size::Large, "attn_v" | "ffn_down" | "attn_output") => Q5_K,
            (base, ..) => base,
        }
    }
}

/// What llama.cpp's quantiser takes instead of blocks of 256: blocks of 32, of as many bits or a few more.
fn in_short_blocks(format: WeightFormat) -> WeightFormat {
    use WeightFormat::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_K, Q5_0, Q5_1, Q5_K, Q8_0};
    match format {
        Q2_K | Q3_K => Q4_0,
        IQ4_XS => IQ4_NL,
        Q4_K => Q5_0,
        Q5_K => Q5_1,
        // Of Q6_K, and what llama.cpp has nothing for.
        _ => Q8_0,
    }
}

/// Layer and kind of a matrix: `blk.3.ffn_down.weight`.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest.strip_suffix(".weight")?))
}

#[cfg(test)]
mod tests {
    use formats::gguf::GgmlType;

    use super::*;

    #[test]
    fn mixtures_are_those_that_llama_cpp_makes() {
        use WeightFormat::{Q3_K, Q4_K, Q5_K, Q6_K};
        let of = |mix: &str, name: &str, tied| mix.parse::<Mix>().unwrap().format_of(name, Model { layers: 32, tied });
        // Of 32 layers: 0 to 3, 6, 9, …, 27, and 28 to 31.
        let chosen = |layer: usize| !(4..28).contains(&layer) || layer.is_multiple_of(3);
        for layer in 0..32 {
            let name = |kind: &str| format!("blk.{layer}.{kind}.weight");
            let expected = if chosen(layer) { Q6_K } else { Q4_K };
            assert_eq!(of("q4_k_m", &name("ffn_down"), false), expected, "{layer}");
            assert_eq!(of("Q4_K_M", &name("attn_v"), false), expected, "{layer}");
            assert_eq!(of("q4_k_m", &name("attn_q"), false), Q4_K);
            assert_eq!(of("q4_k_s", &name("ffn_down"), false), if layer < 4 { Q5_K } else { Q4_K });
            assert_eq!(of("q3_k_m", &name("attn_output"), false), Q4_K);
            assert_eq!(of("q3_k_l", &name("attn_v"), false), Q5_K);
            assert_eq!(of("q3_k_s", &name("attn_v"), false), Q3_K);
        }
        assert_eq!(of("q4_k_m", "output.weight", false), Q6_K);
        assert_eq!(of("q4_k_m", "token_embd.weight", false), Q4_K);
        assert_eq!(of("q4_k_m", "token_embd.weight", true), Q6_K);
        assert_eq!(of("q4_0", "token_embd.weight", false), Q6_K);
        assert_eq!(of("q8_0", "token_embd.weight", false), WeightFormat::Q8_0);
        assert!("q4_k_xl".parse::<Mix>().unwrap_err().contains("q4_k_m"));
    }

    #[test]
    fn rows_that_blocks_of_256_do_not_divide_have_shorter_blocks_of_about_as_many_bits() {
        use WeightFormat::{F16, IQ4_NL, NVFP4, Q4_0, Q4_K, Q5_0, Q5_1, Q8_0};
        let of = |mix: &str, name: &str, row_len| {
            let model = Model { layers: 24, tied: true };
            mix.parse::<Mix>().unwrap().format_of_rows(name, model, row_len).unwrap()
        };
        let name = "blk.3.attn_q.weight";
        let shorter =
            [("q2_k", Q4_0), ("q3_k", Q4_0), ("iq4_xs", IQ4_NL), ("q4_k", Q5_0), ("q5_k", Q5_1), ("q6_k", Q8_0)];
        for (mix, format) in shorter {
            assert_eq!(of(mix, name, 896), format, "{mix}");
            assert_eq!(of(mix, name, 900), F16, "{mix}");
        }
        assert_eq!((of("q4_k", name, 1024), of("q4_0", name, 896), of("nvfp4", name, 896)), (Q4_K, Q4_0, NVFP4));
        assert_eq!((of("q4_k", "token_embd.weight", 896), of("nvfp4", name, 96)), (Q8_0, Q8_0));
    }

    #[test]
    fn every_format_of_gguf_can_be_asked_for() {
        for format in WeightFormat::ALL.into_iter().filter(|&format| GgmlType::holding(format).is_some()) {
            assert_eq!(format.name().parse::<Mix>().unwrap().base, format);
        }
    }
}
