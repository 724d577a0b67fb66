//! SmolLM3: a Llama-style decoder in which every fourth layer does without rotary positions (NoPE), so that attention
//! there depends on content alone. Reference: the checkpoint's published modelling code.

use plan::{Graph, Plan, Value, WeightSource, Weights};
use serde_json::json;

use crate::architecture::{Architecture, GgufNames};
use crate::config::{Decoder, Fields, HeadSizes, Mlp, Windows, invalid};
use crate::rope::Rotary;
use crate::{ConfigError, ModelError, blocks};

pub(crate) const ARCHITECTURE: Architecture = Architecture {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    gguf: GgufNames { architectures: &[("smollm3", None)], pairs_rows: true, ..GgufNames::SHARED },
};

struct Config {
    decoder: Decoder,
    heads: HeadSizes,
    mlp: Mlp,
    rotary: Rotary,
    attention_bias: bool,
    windows: Windows,
    /// For each layer, whether q and k are rotated.
    rotates: Vec<bool>,
}

impl Config {
    fn read(config: &serde_json::Value) -> Result<Self, ConfigError> {
        let defaults = json!({
            "num_key_value_heads": 4, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-6, "rope_theta": 2_000_000.0,
            "tie_word_embeddings": true,
        });
        let fields = Fields::new(config, &defaults)?;
        let decoder = Decoder::read(&fields)?;
        let heads = HeadSizes::read(&fields, decoder.hidden_size)?;
        Ok(Self {
            mlp: Mlp::read(&fields, fields.flag("mlp_bias")?)?,
            rotary: Rotary::read(&fields, heads.head_dim)?,
            attention_bias: fields.flag("attention_bias")?,
            windows: Windows::read(&fields, decoder.num_hidden_layers)?,
            rotates: rotating_layers(config, decoder.num_hidden_layers)?,
            decoder,
            heads,
        })
    }

    /// Without `layer_types`, the layers that do not rotate are the ones that slide, if any do.
    fn window_of_layer(&self, index: usize) -> Result<Option<usize>, ConfigError> {
        match self.windows.layer_types {
            Some(_) => self.windows.of_layer(index),
            None => Ok(self.windows.window.filter(|_| !self.rotates[index])),
        }
    }
}

pub(crate) fn plan(config: &serde_json::Value, source: &dyn WeightSource) -> Result<Plan, ModelError> {
    let cfg = Config::read(config)?;
    Graph::build(ARCHITECTURE.model_type, cfg.rotary.context_len, source, |g, w| {
        blocks::decoder(g, w, &cfg.decoder, |g, w, index, x| {
            blocks::pre_norm_layer(g, w, &cfg.decoder, &cfg.mlp, x, |g, w, h| attention(g, w, &cfg, index, h))
        })
    })
}

fn attention(g: &mut Graph, w: &Weights<'_>, cfg: &Config, index: usize, x: Value) -> Result<Value, ModelError> {
    let Config { heads, rotary, .. } = cfg;
    let (hidden, bias) = (cfg.decoder.hidden_size, cfg.attention_bias);
    let (q_width, kv_width) = (heads.q_width(), heads.kv_width());
    let q = g.linear(x, w.linear("q_proj", q_width, hidden, bias)?, q_width);
    let k = g.linear(x, w.linear("k_proj", kv_width, hidden, bias)?, kv_width);
    let v = g.linear(x, w.linear("v_proj", kv_width, hidden, bias)?, kv_width);
    let (q, k) = if cfg.rotates[index] { (g.rope(q, &rotary.rope), g.rope(k, &rotary.rope)) } else { (q, k) };
    let o = g.attention(q, k, v, heads.attention(cfg.window_of_layer(index)?));
    Ok(g.linear(o, w.linear("o_proj", hidden, q_width, bias)?, hidden))
}

/// Which layers rotate: `no_rope_layers` holds a 1 for those that do (sic), or else all but every
/// `no_rope_layer_interval`-th do.
fn rotating_layers(config: &serde_json::Value, num_hidden_layers: usize) -> Result<Vec<bool>, ConfigError> {
    let field = "no_rope_layers";
    let given = config.get(field).filter(|value| !value.is_null());
    let Some(given) = given else {
        let interval = config.get("no_rope_layer_interval").map_or(Some(4), serde_json::Value::as_u64);
        let interval = interval.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        let interval = interval.ok_or_else(|| {
            invalid("no_rope_layer_interval", &config["no_rope_layer_interval"], "an integer above 0")
        })?;
        return Ok((1..=num_hidden_layers).map(|layer| !layer.is_multiple_of(interval)).collect());
    };
    let flags = given.as_array().map(|list| list.iter().map(|flag| flag.as_u64().filter(|&flag| flag <= 1)).collect());
    match flags {
        Some(Some(flags)) if Vec::len(&flags) >= num_hidden_layers => Ok(flags.iter().map(|&flag| flag == 1).collect()),
        _ => {
            let expected = format!("a list of at least {num_hidden_layers} zeros and ones, one for each layer");
            Err(invalid(field, crate::config::show(given), expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fourth_layer_does_without_rotation_unless_the_list_says_otherwise() {
        assert_eq!(rotating_layers(&json!({}), 5), Ok(vec![true, true, true, false, true]));
        assert_eq!(rotating_layers(&json!({ "no_rope_layer_interval": 2 }), 3), Ok(vec![true, false, true]));
        assert_eq!(rotating_layers(&json!({ "no_rope_layers": [0, 1, 1] }), 2), Ok(vec![false, true, true]));
    }

    #[test]
    fn a_list_that_is_none_is_refused_by_name() {
        for wrong in [json!([1]), json!([1, 2]), json!("1,0"), json!([1, true])] {
            let error = rotating_layers(&json!({ "no_rope_layers": wrong }), 2).unwrap_err().to_string();
            assert!(error.starts_with("config.json: `no_rope_layers` is "), "{error}");
        }
        assert!(rotating_layers(&json!({ "no_rope_layer_interval": 0 }), 2).is_err());
    }
}
