//! What several architectures share word for word. What differs stays in their files.

use plan::{BuildError, Graph, Linear, Value, Weights};

use crate::config::{Decoder, Mlp};

/// `mlp`: down(act(gate(x)) · up(x)), (tokens, hidden).
pub(crate) fn gated_mlp(
    g: &mut Graph,
    w: &Weights<'_>,
    mlp: &Mlp,
    hidden: usize,
    x: Value,
) -> Result<Value, BuildError> {
    let &Mlp { intermediate_size: intermediate, bias, .. } = mlp;
    let gate = w.linear("gate_proj", intermediate, hidden, bias)?;
    let up = w.linear("up_proj", intermediate, hidden, bias)?;
    let down = w.linear("down_proj", hidden, intermediate, bias)?;
    Ok(gated_mlp_of(g, mlp, hidden, [gate, up, down], x))
}

/// The same, of the projections gate, up and down.
pub(crate) fn gated_mlp_of(g: &mut Graph, mlp: &Mlp, hidden: usize, [gate, up, down]: [Linear; 3], x: Value) -> Value {
    let (gate, up) = (g.linear(x, gate, mlp.intermediate_size), g.linear(x, up, mlp.intermediate_size));
    let h = g.glu(gate, up, mlp.hidden_act);
    g.linear(h, down, hidden)
}

/// A pre-norm layer: x + attention(norm(x)), then x + mlp(norm(x)), (tokens, hidden_size). `attention` gets the weights
/// of `self_attn` and the normalised rows.
pub(crate) fn pre_norm_layer<E: From<BuildError>>(
    g: &mut Graph,
    w: &Weights<'_>,
    decoder: &Decoder,
    mlp: &Mlp,
    x: Value,
    attention: impl FnOnce(&mut Graph, &Weights<'_>, Value) -> Result<Value, E>,
) -> Result<Value, E> {
    layer(g, w, decoder, x, attention, |g, x, h| {
        let h = gated_mlp(g, &w.at("mlp"), mlp, decoder.hidden_size, h)?;
        Ok(g.add(x, h))
    })
}

/// A pre-norm layer whose second half is `feed_forward`: it gets the residual stream and what the second norm makes of
/// it, each (tokens, hidden_size), and returns the stream with its own part added.
pub(crate) fn layer<E: From<BuildError>>(
    g: &mut Graph,
    w: &Weights<'_>,
    decoder: &Decoder,
    x: Value,
    attention: impl FnOnce(&mut Graph, &Weights<'_>, Value) -> Result<Value, E>,
    feed_forward: impl FnOnce(&mut Graph, Value, Value) -> Result<Value, E>,
) -> Result<Value, E> {
    let &Decoder { hidden_size: hidden, rms_norm_eps: eps, .. } = decoder;
    let h = g.rms_norm(x, w.norm("input_layernorm", hidden, eps)?);
    let h = attention(g, &w.at("self_attn"), h)?;
    let x = g.add(x, h);
    let h = g.rms_norm(x, w.norm("post_attention_layernorm", hidden, eps)?);
    feed_forward(g, x, h)
}

/// `model.embed_tokens`, then `layer` for each of `model.layers.N`, then `model.norm` and `lm_head` (the embedding table
/// again where they are tied) on the rows whose logits are wanted: (outputs, vocab_size).
pub(crate) fn decoder<E: From<BuildError>>(
    g: &mut Graph,
    w: &Weights<'_>,
    decoder: &Decoder,
    layer: impl Fn(&mut Graph, &Weights<'_>, usize, Value) -> Result<Value, E>,
) -> Result<Value, E> {
    let &Decoder { hidden_size: hidden, vocab_size: vocab, rms_norm_eps: eps, .. } = decoder;
    let model = w.at("model");
    let embed_tokens = model.get("embed_tokens.weight", [vocab, hidden])?;
    let mut x = g.embed(embed_tokens, hidden);
    for index in 0..decoder.num_hidden_layers {
        x = layer(g, &model.at(format_args!("layers.{index}")), index, x)?;
    }
    let x = g.rms_norm(x, model.norm("norm", hidden, eps)?);
    let x = g.select_outputs(x);
    let lm_head = match decoder.tie_word_embeddings {
        true => Linear { weight: embed_tokens, bias: None },
        false => w.linear("lm_head", vocab, hidden, false)?,
    };
    Ok(g.linear(x, lm_head, vocab))
}
