"""Golden files of every architecture: tiny random checkpoints and what Hugging Face transformers computes from them.

Each case becomes a folder under `crates/models/tests/golden/`:

    config.json        written by transformers, or in the older spelling that most published checkpoints carry
    model.safetensors  f32 weights from a fixed seed, spread so that a wrong bias, norm or rotation shows;
                       named and cut as in published checkpoints, so one tensor per expert where those have that
    golden.json        logits at every position of a prompt; 128 greedy tokens of a short one, with margins;
                       which experts each token of the prompt had, where there are any
    source.toml        provenance: versions, command, date, sha256 of each file, license

Run it from the root of the repository:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch transformers
    /tmp/goldens/bin/python tools/goldens/tiny_models.py
    /tmp/goldens/bin/python tools/goldens/tiny_models.py --checkpoint FOLDER --name stories260K

The second form reads an existing checkpoint, which is not copied: only `golden.json` and `source.toml` are written.

A golden must be able to fail, so the script checks before it writes:
- transformers agrees with itself: greedy with its cache equals greedy without, and the reloaded folder equals the model;
- each property that the case is there for (a bias, a window, a rotation) moves the logits when it is taken away;
- every greedy step is decided by a margin far above rounding, and the tokens do not fall into a short cycle;
- every choice of an expert is, too: seeds are tried until the prompt is so, and prompts until the greedy text is.

`routing` in golden.json has an object for each mixture-of-experts layer, for the pass over the prompt: `layer`; `ids`,
the experts of each token in descending order of the score that chose them; `weights`, by which their results are
multiplied, in the same order; `margin`, the least difference of any token between the scores of the last expert chosen
and the next (null where all are chosen); and `group_margin`, the same for groups, where experts are chosen in groups.
The score that chooses is the probability of a softmax over all experts (Mixtral, Qwen, DeepSeek-V2), the logit
(gpt-oss), or the sigmoid plus the correction bias (GLM, DeepSeek-V3).
"""

import argparse
import copy
import hashlib
import json
import shlex
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

GOLDEN = Path("crates/models/tests/golden")
GREEDY_TOKENS = 128
MARGIN_MIN = 0.01  # logits are of the order of 1 to 10; f32 rounding moves them by about 1e-5
DISTINCT_MIN = 24  # of 128 greedy tokens
NOISE_MAX = 1e-5  # what f32 instead of f64 may change, relative to the largest logit
TEETH_MIN = 0.05  # the least change of some logit when a property is taken away
ROUTING_MIN = 1e-4  # the least difference between scores that decides which experts a token has, and in which order
SEEDS = 1000  # how many are tried for a prompt whose experts are all chosen by that much, and for a greedy text


@dataclass
class Case:
    """One checkpoint: what its configuration says, and which parts of it must matter."""

    name: str
    model_type: str
    config: dict
    prompt_len: int
    # Whether config.json is rewritten in the spelling of transformers 4 (`rope_theta`, `rope_scaling`,
    # `torch_dtype`), as almost all published checkpoints have it; otherwise it stays as version 5 saves it.
    published_spelling: bool = True
    # Keys that the published spelling has in other words than transformers 5, and keys that it does not have.
    published: dict = field(default_factory=dict)
    unpublished: list = field(default_factory=list)
    # Spread of the router's logits: enough that tokens differ in their experts.
    router_gain: float = 2.0
    # Whether experts are packed as MXFP4 and all else is bf16, as OpenAI publishes.
    mxfp4: bool = False
    # Taken away one at a time: a config override, a substring of tensor names to be made neutral, or, under a name,
    # what a function changes in the model.
    teeth_config: list = field(default_factory=list)
    teeth_tensors: list = field(default_factory=list)
    teeth_code: dict = field(default_factory=dict)


LLAMA3_ROPE = {
    "rope_type": "llama3",
    # With theta 1000 and head_dim 12 the six wavelengths are 6.3 (kept: under 64/4), 20 and 63 (blended), 199, 628
    # and 1987 (over 64: divided by the factor), so all three bands occur, and positions beyond 64 are tested.
    "rope_theta": 1000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN_ROPE = {
    "rope_type": "yarn",
    # With theta 1000 and head_dim 16 the eight pairs turn 5.1, 2.1, 0.9, 0.4… times in 32 positions: the first is kept,
    # those from the fourth on are divided by the factor, and those between are blended. Scores grow by 1.14².
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
}

DEEPSEEK_YARN = {
    "rope_type": "yarn",
    # With theta 1000 and 10 turned features the range to correct is 0.2 to 1.7, rounded to 0 and 2: pair 0 is kept,
    # pair 1 is blended, the others are divided. Cosines and sines grow by 1.064, and scores by 1.083² beside that.
    "rope_theta": 1000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "mscale": 1.1,
    "mscale_all_dim": 0.6,
}

GPT_OSS_YARN = {
    "rope_type": "yarn",
    # With theta 150 and head_dim 16 the range to correct is 0.39 to 3.71: pair 0 is kept, 1 to 3 are blended, 4 to 7
    # are divided. Truncated, it would be 0 to 4.
    "rope_theta": 150.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
    "truncate": False,
}


def reweigh(weights):
    """The teeth of a router: its chosen experts count by `weights(router, logits, ids)`."""
    def change(model):
        for _, router in routers(model):
            router.register_forward_hook(lambda m, _, out: (out[0], weights(m, out[0], out[2]), out[2]))
    return change


def softmax_over_all(router, logits, ids):
    return logits.softmax(-1).gather(1, ids)


def biased_sigmoids(router, logits, ids):
    chosen = (logits.sigmoid() + router.e_score_correction_bias).gather(1, ids)
    return chosen / chosen.sum(-1, keepdim=True) * router.routed_scaling_factor


def rescale_attention(scale):
    """The teeth of what scores are multiplied by: `scale(attention)` in its place."""
    def change(model):
        for layer in model.model.layers:
            layer.self_attn.scaling = scale(layer.self_attn)
    return change


def gate_with(gate):
    """The teeth of the activation of gpt-oss: `gate(experts, gate_up)` in its place."""
    def change(model):
        for module in model.modules():
            if type(module).__name__ == "GptOssExperts":
                module._apply_gate = lambda gate_up, module=module: gate(module, gate_up)
    return change


def clamped_glu(experts, gate, up, shift=1.0):
    gate = gate.clamp(max=experts.limit)
    return (up.clamp(-experts.limit, experts.limit) + shift) * gate * torch.sigmoid(experts.alpha * gate)


def change_experts(change):
    """The teeth of the weights of gpt-oss: `change(weight)` in their place."""
    def changed(model):
        for name, parameter in model.named_parameters():
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                parameter.data.copy_(change(parameter.data))
    return changed


GPT_OSS_TEETH = dict(
    teeth_config=[
        {"rope_parameters": {"rope_type": "default", "rope_theta": 150.0}},
        {"rope_parameters": {**GPT_OSS_YARN, "truncate": True}},
        {"rope_parameters": {**GPT_OSS_YARN, "attention_factor": 1.0}},
        {"rope_parameters": {**GPT_OSS_YARN, "beta_fast": 2.0}},
        {"rope_parameters": {**GPT_OSS_YARN, "beta_slow": 0.25}},
        {"layer_types": ["full_attention", "full_attention"]},
        {"layer_types": ["sliding_attention", "sliding_attention"]},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": 7},
        {"sliding_window": 9},
        {"num_experts_per_tok": 1},
        {"num_experts_per_tok": 3},
        {"swiglu_alpha": 1.0},
        {"swiglu_limit": 100.0},
    ],
    teeth_tensors=["sinks", "q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias", "router.bias",
                   "gate_up_proj_bias", "down_proj_bias"],
    teeth_code={
        "the softmax over the chosen only": reweigh(softmax_over_all),
        "1 added to up": gate_with(lambda m, x: clamped_glu(m, x[..., ::2], x[..., 1::2], shift=0.0)),
        "gate and up in turn": gate_with(lambda m, x: clamped_glu(m, *x.chunk(2, -1))),
        "gate before up": gate_with(lambda m, x: clamped_glu(m, x[..., 1::2], x[..., ::2])),
    },
)

CASES = [
    Case(
        "llama_gqa",
        "llama",
        dict(vocab_size=131, hidden_size=32, intermediate_size=53, num_attention_heads=4, num_key_value_heads=2),
        prompt_len=29,
        teeth_tensors=["input_layernorm", "post_attention_layernorm", "model.norm", "lm_head"],
    ),
    Case(
        "llama_mha_tied",
        "llama",
        dict(vocab_size=127, hidden_size=36, intermediate_size=45, num_attention_heads=3, num_key_value_heads=3,
             tie_word_embeddings=True, rms_norm_eps=1e-5),
        prompt_len=31,
        published_spelling=False,
        teeth_config=[{"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}],
    ),
    Case(
        "llama3_rope",
        "llama",
        dict(vocab_size=89, hidden_size=36, intermediate_size=57, num_attention_heads=3, num_key_value_heads=1,
             rms_norm_eps=1e-5, rope_parameters=LLAMA3_ROPE),
        prompt_len=40,
        teeth_config=[
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
            {"rope_parameters": {**LLAMA3_ROPE, "low_freq_factor": 2.0}},
            {"rope_parameters": {**LLAMA3_ROPE, "high_freq_factor": 8.0}},
            {"rope_parameters": {**LLAMA3_ROPE, "original_max_position_embeddings": 32}},
        ],
    ),
    Case(
        "llama_head_dim",
        "llama",
        dict(vocab_size=109, hidden_size=30, intermediate_size=64, num_attention_heads=6, num_key_value_heads=2,
             head_dim=10),
        prompt_len=29,
        published_spelling=False,
    ),
    Case(
        "llama_bias",
        "llama",
        dict(vocab_size=101, hidden_size=40, intermediate_size=51, num_attention_heads=5, num_key_value_heads=1,
             attention_bias=True, mlp_bias=True),
        prompt_len=27,
        teeth_tensors=[f"{name}_proj.bias" for name in ("q", "k", "v", "o", "gate", "up", "down")],
    ),
    Case(
        "mistral",
        "mistral",
        dict(vocab_size=111, hidden_size=33, intermediate_size=60, num_attention_heads=4, num_key_value_heads=2,
             head_dim=16, sliding_window=None, rms_norm_eps=1e-5,
             rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        prompt_len=32,
        teeth_config=[{"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}],
    ),
    Case(
        "mistral_window",
        "mistral",
        dict(vocab_size=107, hidden_size=40, intermediate_size=54, num_attention_heads=4, num_key_value_heads=2,
             head_dim=10, sliding_window=8, rms_norm_eps=1e-5),
        prompt_len=36,
        teeth_config=[{"sliding_window": None}, {"sliding_window": 7}, {"sliding_window": 9}],
    ),
    Case(
        "qwen2",
        "qwen2",
        dict(vocab_size=141, hidden_size=42, intermediate_size=47, num_attention_heads=7, num_key_value_heads=1,
             tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        prompt_len=34,
        teeth_tensors=["q_proj.bias", "k_proj.bias", "v_proj.bias"],
    ),
    Case(
        "qwen2_untied",
        "qwen2",
        dict(vocab_size=103, hidden_size=40, intermediate_size=55, num_attention_heads=4, num_key_value_heads=2),
        prompt_len=25,
        published_spelling=False,
        teeth_tensors=["q_proj.bias", "k_proj.bias", "v_proj.bias", "lm_head"],
    ),
    Case(
        "qwen3",
        "qwen3",
        dict(vocab_size=137, hidden_size=37, intermediate_size=59, num_attention_heads=4, num_key_value_heads=2,
             head_dim=14, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        prompt_len=35,
        teeth_tensors=["q_norm", "k_norm"],
    ),
    Case(
        "qwen3_untied_gqa",
        "qwen3",
        dict(vocab_size=97, hidden_size=40, intermediate_size=49, num_attention_heads=8, num_key_value_heads=1,
             head_dim=8),
        prompt_len=30,
        published_spelling=False,
        teeth_tensors=["q_norm", "k_norm", "lm_head"],
    ),
    Case(
        "smollm3",
        "smollm3",
        dict(vocab_size=103, hidden_size=36, intermediate_size=50, num_attention_heads=6, num_key_value_heads=2,
             num_hidden_layers=4, tie_word_embeddings=True, no_rope_layers=[1, 0, 1, 0], bos_token_id=None,
             eos_token_id=None, pad_token_id=None,
             rope_parameters={"rope_type": "default", "rope_theta": 5000.0}),
        prompt_len=33,
        teeth_config=[{"no_rope_layers": [1, 1, 1, 0]}, {"no_rope_layers": [0, 0, 1, 0]}],
    ),
    Case(
        "llama_gelu",
        "llama",
        dict(vocab_size=113, hidden_size=36, intermediate_size=52, num_attention_heads=4, num_key_value_heads=2,
             head_dim=10, hidden_act="gelu_pytorch_tanh"),
        prompt_len=31,
        teeth_config=[{"hidden_act": "silu"}, {"hidden_act": "relu"}],
    ),
    Case(
        "qwen2_relu",
        "qwen2",
        dict(vocab_size=107, hidden_size=40, intermediate_size=53, num_attention_heads=5, num_key_value_heads=1,
             hidden_act="relu"),
        prompt_len=28,
        teeth_config=[{"hidden_act": "silu"}, {"hidden_act": "gelu_pytorch_tanh"}],
    ),
    Case(
        "llama_yarn",
        "llama",
        dict(vocab_size=97, hidden_size=36, intermediate_size=56, num_attention_heads=3, num_key_value_heads=1,
             head_dim=16, max_position_embeddings=128, rope_parameters=YARN_ROPE),
        prompt_len=60,
        teeth_config=[
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
            {"rope_parameters": {**YARN_ROPE, "attention_factor": 1.0}},
            {"rope_parameters": {**YARN_ROPE, "beta_fast": 2.0}},
            {"rope_parameters": {**YARN_ROPE, "beta_slow": 0.25}},
            {"rope_parameters": {**YARN_ROPE, "original_max_position_embeddings": 64}},
        ],
    ),
    Case(
        "mixtral",
        "mixtral",
        dict(vocab_size=101, hidden_size=36, intermediate_size=29, num_attention_heads=6, num_key_value_heads=2,
             num_local_experts=8, num_experts_per_tok=2, sliding_window=None, rms_norm_eps=1e-5,
             rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        prompt_len=31,
        unpublished=["head_dim"],
        teeth_config=[{"num_experts_per_tok": 1}, {"num_experts_per_tok": 3}, {"sliding_window": 8},
                      {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}],
        teeth_code={"weights that add up to 1": reweigh(softmax_over_all)},
    ),
    Case(
        "mixtral_top1",
        "mixtral",
        dict(vocab_size=97, hidden_size=30, intermediate_size=23, num_attention_heads=3, num_key_value_heads=1,
             num_local_experts=5, num_experts_per_tok=1, sliding_window=None, rms_norm_eps=1e-5),
        prompt_len=28,
        unpublished=["head_dim"],
        teeth_config=[{"num_experts_per_tok": 2}],
        teeth_code={"weights that are 1": reweigh(softmax_over_all)},
    ),
    Case(
        "mixtral_all",
        "mixtral",
        dict(vocab_size=103, hidden_size=33, intermediate_size=35, num_attention_heads=4, num_key_value_heads=2,
             head_dim=10, num_local_experts=4, num_experts_per_tok=4, sliding_window=8, rms_norm_eps=1e-5),
        prompt_len=33,
        published_spelling=False,
        teeth_config=[{"num_experts_per_tok": 3}, {"sliding_window": None}, {"sliding_window": 7},
                      {"sliding_window": 9}],
        teeth_code={"weights that differ": reweigh(lambda router, logits, ids: torch.full(ids.shape, 0.25))},
    ),
    Case(
        "qwen3_moe",
        "qwen3_moe",
        dict(vocab_size=103, hidden_size=37, intermediate_size=41, moe_intermediate_size=19, num_attention_heads=4,
             num_key_value_heads=2, head_dim=14, num_experts=16, num_experts_per_tok=4, norm_topk_prob=True,
             rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        prompt_len=30,
        published={"num_experts": 16},
        unpublished=["num_local_experts"],
        teeth_config=[{"norm_topk_prob": False}, {"num_experts_per_tok": 3}, {"num_experts_per_tok": 5}],
        teeth_tensors=["q_norm", "k_norm", "lm_head"],
    ),
    Case(
        "qwen3_moe_mixed",
        "qwen3_moe",
        # Of the layers 1 and 3, which the step of 2 makes sparse, the list takes the second: only layer 1 has experts.
        dict(vocab_size=101, hidden_size=34, intermediate_size=43, moe_intermediate_size=21, num_attention_heads=5,
             num_key_value_heads=1, head_dim=12, num_experts=12, num_experts_per_tok=3, norm_topk_prob=False,
             num_hidden_layers=4, decoder_sparse_step=2, mlp_only_layers=[3], tie_word_embeddings=True),
        prompt_len=29,
        published_spelling=False,
        teeth_config=[{"norm_topk_prob": True}, {"num_experts_per_tok": 2}, {"num_experts_per_tok": 4}],
        teeth_tensors=["q_norm", "k_norm"],
    ),
    Case(
        "qwen2_moe",
        "qwen2_moe",
        dict(vocab_size=107, hidden_size=40, intermediate_size=31, moe_intermediate_size=17,
             shared_expert_intermediate_size=23, num_attention_heads=5, num_key_value_heads=1, num_experts=8,
             num_experts_per_tok=3, norm_topk_prob=False,
             rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
        prompt_len=30,
        # As in Qwen1.5-MoE-A2.7B. A window is given and not used.
        published={"sliding_window": 8, "max_window_layers": 1},
        unpublished=["layer_types", "qkv_bias", "mlp_only_layers"],
        teeth_config=[{"norm_topk_prob": True}, {"num_experts_per_tok": 2}, {"num_experts_per_tok": 4}],
        teeth_tensors=["q_proj.bias", "k_proj.bias", "v_proj.bias", "shared_expert_gate", "shared_expert.down_proj"],
    ),
    Case(
        "glm4_moe",
        "glm4_moe",
        # Three experts in a group, so that the two best of a group are neither all of it nor its best.
        dict(vocab_size=101, hidden_size=34, intermediate_size=45, moe_intermediate_size=15, num_attention_heads=6,
             num_key_value_heads=2, head_dim=12, num_hidden_layers=3, n_routed_experts=12, num_experts_per_tok=3,
             n_shared_experts=1, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=1.8,
             first_k_dense_replace=1, attention_bias=True, use_qk_norm=True, rms_norm_eps=1e-5,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
        prompt_len=29,
        router_gain=1.5,
        teeth_config=[
            {"n_group": 1, "topk_group": 1},
            {"topk_group": 1},
            {"topk_group": 3},
            {"num_experts_per_tok": 2},
            {"num_experts_per_tok": 4},
            {"routed_scaling_factor": 1.0},
            {"norm_topk_prob": False},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}},
        ],
        teeth_tensors=["e_score_correction_bias", "q_proj.bias", "k_proj.bias", "v_proj.bias", "q_norm", "k_norm",
                       "shared_experts.down_proj"],
        teeth_code={"weights without the correction bias": reweigh(biased_sigmoids)},
    ),
    Case(
        "glm4_moe_plain",
        "glm4_moe",
        dict(vocab_size=97, hidden_size=30, intermediate_size=41, moe_intermediate_size=5, num_attention_heads=3,
             num_key_value_heads=1, head_dim=16, n_routed_experts=128, num_experts_per_tok=8, n_shared_experts=2,
             n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=1,
             attention_bias=False, use_qk_norm=False, rms_norm_eps=1e-5,
             rope_parameters={"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5}),
        prompt_len=26,
        router_gain=1.5,
        teeth_config=[
            {"num_experts_per_tok": 7},
            {"num_experts_per_tok": 9},
            {"routed_scaling_factor": 1.0},
            {"norm_topk_prob": False},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 1.0}},
        ],
        teeth_tensors=["e_score_correction_bias", "shared_experts.down_proj"],
        teeth_code={"weights without the correction bias": reweigh(biased_sigmoids)},
    ),
    Case(
        "gpt_oss",
        "gpt_oss",
        dict(vocab_size=97, hidden_size=32, intermediate_size=64, num_attention_heads=3, num_key_value_heads=1,
             head_dim=16, num_local_experts=8, num_experts_per_tok=2, sliding_window=8, rms_norm_eps=1e-5,
             max_position_embeddings=128, rope_parameters=GPT_OSS_YARN),
        prompt_len=32,
        published={"experts_per_token": 2, "initial_context_length": 32},
        unpublished=["swiglu_alpha", "bos_token_id"],
        **GPT_OSS_TEETH,
    ),
    Case(
        "gpt_oss_mxfp4",
        "gpt_oss",
        dict(vocab_size=103, hidden_size=64, intermediate_size=96, num_attention_heads=6, num_key_value_heads=2,
             head_dim=16, num_local_experts=8, num_experts_per_tok=2, sliding_window=8, rms_norm_eps=1e-5,
             max_position_embeddings=128, rope_parameters=GPT_OSS_YARN),
        prompt_len=41,
        published={
            "experts_per_token": 2,
            "initial_context_length": 32,
            "quantization_config": {
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                           "model.embed_tokens", "lm_head"],
                "quant_method": "mxfp4",
            },
        },
        unpublished=["swiglu_alpha", "bos_token_id", "torch_dtype"],
        mxfp4=True,
        **{**GPT_OSS_TEETH, "teeth_code": {
            **GPT_OSS_TEETH["teeth_code"],
            "the low half of a byte first": change_experts(lambda w: w.unflatten(1, (-1, 2)).flip(2).flatten(1, 2)),
            "scales": change_experts(lambda w: w / w.unflatten(1, (-1, 32)).abs().amax(2).repeat_interleave(32, 1)),
        }},
    ),
    Case(
        "glm4_moe_lite",
        "glm4_moe_lite",
        dict(vocab_size=101, hidden_size=34, intermediate_size=45, moe_intermediate_size=15, num_attention_heads=5,
             num_key_value_heads=5, num_hidden_layers=3, q_lora_rank=22, kv_lora_rank=18, qk_nope_head_dim=10,
             qk_rope_head_dim=6, v_head_dim=14, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=1,
             n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8, rms_norm_eps=1e-5,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        prompt_len=29,
        router_gain=1.5,
        published={"first_k_dense_replace": 1, "topk_method": "noaux_tc"},
        unpublished=["mlp_layer_types"],
        teeth_config=[
            {"num_experts_per_tok": 2},
            {"num_experts_per_tok": 4},
            {"routed_scaling_factor": 1.0},
            {"norm_topk_prob": False},
            {"rope_interleave": False},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        ],
        teeth_tensors=["e_score_correction_bias", "q_a_layernorm", "kv_a_layernorm", "shared_experts.down_proj"],
        teeth_code={
            "weights without the correction bias": reweigh(biased_sigmoids),
            "a scale by the whole head": rescale_attention(lambda a: a.qk_nope_head_dim ** -0.5),
        },
    ),
    Case(
        "deepseek_v2_lite",
        "deepseek_v2",
        dict(vocab_size=97, hidden_size=33, intermediate_size=41, moe_intermediate_size=13, num_attention_heads=3,
             num_key_value_heads=3, num_hidden_layers=3, q_lora_rank=None, kv_lora_rank=20, qk_nope_head_dim=12,
             qk_rope_head_dim=8, v_head_dim=9, n_routed_experts=10, num_experts_per_tok=3, n_shared_experts=2,
             n_group=1, topk_group=1, topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.5,
             first_k_dense_replace=1, rms_norm_eps=1e-6,
             rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
        prompt_len=31,
        published={"scoring_func": "softmax", "moe_layer_freq": 1},
        unpublished=["head_dim", "mlp_bias"],
        teeth_config=[
            {"num_experts_per_tok": 2},
            {"num_experts_per_tok": 4},
            {"routed_scaling_factor": 1.0},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        ],
        teeth_tensors=["kv_a_layernorm", "shared_experts.down_proj"],
        teeth_code={"a scale by the whole head": rescale_attention(lambda a: a.qk_nope_head_dim ** -0.5)},
    ),
    Case(
        "deepseek_v2",
        "deepseek_v2",
        # Three experts in a group, so that the best of a group is not the sum of its two best.
        dict(vocab_size=103, hidden_size=35, intermediate_size=43, moe_intermediate_size=11, num_attention_heads=5,
             num_key_value_heads=5, num_hidden_layers=3, q_lora_rank=16, kv_lora_rank=24, qk_nope_head_dim=8,
             qk_rope_head_dim=10, v_head_dim=12, n_routed_experts=12, num_experts_per_tok=3, n_shared_experts=1,
             n_group=4, topk_group=2, topk_method="group_limited_greedy", norm_topk_prob=False, routed_scaling_factor=4.0,
             first_k_dense_replace=1, attention_bias=True, max_position_embeddings=128, rms_norm_eps=1e-6,
             rope_parameters=DEEPSEEK_YARN),
        prompt_len=53,
        published={"scoring_func": "softmax", "moe_layer_freq": 1},
        unpublished=["head_dim", "mlp_bias"],
        teeth_config=[
            {"topk_method": "greedy"},
            {"topk_group": 1},
            {"topk_group": 3},
            {"routed_scaling_factor": 1.0},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
            {"rope_parameters": {**DEEPSEEK_YARN, "mscale": 0.6}},
            {"rope_parameters": {**DEEPSEEK_YARN, "beta_fast": 1.0}},
            {"rope_parameters": {**DEEPSEEK_YARN, "original_max_position_embeddings": 64}},
        ],
        teeth_tensors=["q_a_layernorm", "kv_a_layernorm", "q_a_proj.bias", "kv_a_proj_with_mqa.bias",
                       "shared_experts.down_proj"],
        teeth_code={"scores that grow by mscale²": rescale_attention(lambda a: a.qk_head_dim ** -0.5)},
    ),
    Case(
        "deepseek_v3",
        "deepseek_v3",
        dict(vocab_size=107, hidden_size=35, intermediate_size=47, moe_intermediate_size=12, num_attention_heads=7,
             num_key_value_heads=7, num_hidden_layers=3, q_lora_rank=20, kv_lora_rank=22, qk_nope_head_dim=14,
             qk_rope_head_dim=10, v_head_dim=6, n_routed_experts=12, num_experts_per_tok=4, n_shared_experts=1,
             n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=1,
             max_position_embeddings=128, rms_norm_eps=1e-6,
             rope_parameters={**DEEPSEEK_YARN, "mscale": 1.0, "mscale_all_dim": 1.0}),
        prompt_len=47,
        router_gain=1.5,
        published={"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1},
        unpublished=["head_dim", "qk_head_dim", "rope_interleave"],
        teeth_config=[
            {"n_group": 1, "topk_group": 1},
            {"topk_group": 1},
            {"topk_group": 3},
            {"num_experts_per_tok": 3},
            {"routed_scaling_factor": 1.0},
            {"norm_topk_prob": False},
            {"rope_interleave": False},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
        ],
        teeth_tensors=["e_score_correction_bias", "q_a_layernorm", "kv_a_layernorm", "shared_experts.down_proj"],
        teeth_code={
            "weights without the correction bias": reweigh(biased_sigmoids),
            "scores that grow by mscale²": rescale_attention(lambda a: a.qk_head_dim ** -0.5),
        },
    ),
]

COMMON = dict(num_hidden_layers=2, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False,
              bos_token_id=1, eos_token_id=2, pad_token_id=None, dtype="float32")


def randomise(model, seed, router_gain):
    """Fills every parameter: projections keep the scale of their input, attention is peaked, nothing is neutral."""
    gains = {"q_proj": 1.8, "q_b_proj": 1.8, "k_proj": 1.8, "kv_a_proj_with_mqa": 1.8, "lm_head": 3.0,
             "gate": router_gain, "router": router_gain}
    generator = torch.Generator().manual_seed(seed)
    seen = set()
    for name, parameter in model.named_parameters():
        if parameter.data_ptr() in seen:
            continue  # tied
        seen.add(parameter.data_ptr())
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            value = 1.0 + 0.3 * noise
        elif name.endswith("bias"):
            value = 0.4 * noise
        elif "embed_tokens" in name:
            value = 0.5 * noise
        elif name.endswith("sinks"):
            value = noise
        else:
            # Experts of one layer are one tensor: (experts, in, out) in gpt-oss, (experts, out, in) elsewhere.
            fan_in = parameter.shape[1 if model.config.model_type == "gpt_oss" else -1]
            value = gains.get(name.split(".")[-2], 1.2) * noise / fan_in ** 0.5
            if model.config.model_type == "gpt_oss" and "experts" in name:
                # Gates and ups beyond the limit of 7, of which nothing is left beyond it behind the experts.
                value *= 5.0 if name.endswith("gate_up_proj") else 0.2
        parameter.data.copy_(value)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))


E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def to_mxfp4(weight):
    """Blocks of 16 bytes, and a scale for each, of (experts, out, in): the nearest of E2M1 under a power of two."""
    groups = weight.unflatten(-1, (-1, 32))
    exponents = torch.frexp(groups.abs().amax(-1)).exponent - 3  # the largest falls into 4 to 8, of which 6 is the last
    codes = (torch.ldexp(groups.abs(), -exponents[..., None])[..., None] - E2M1).abs().argmin(-1) + 8 * (groups < 0)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8), (exponents + 127).to(torch.uint8)


def from_mxfp4(blocks, scales):
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).int()
    return torch.ldexp(torch.cat([E2M1, -E2M1])[codes], scales[..., None].int() - 127).flatten(-2)


def pack_mxfp4(model, seed):
    """Rounds experts to MXFP4 and all else to bf16, in place. The tensors are named as OpenAI publishes them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, parameter in model.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = parameter.data.bfloat16()
            parameter.data.copy_(tensors[name])
            continue
        weight = parameter.data.transpose(1, 2)
        # Blocks of one size would all have the same scale.
        spread = torch.randint(-2, 2, (*weight.shape[:2], weight.shape[2] // 32), generator=generator)
        blocks, scales = to_mxfp4(torch.ldexp(weight, spread.repeat_interleave(32, 2)))
        assert len(scales.unique()) > 3 and len((blocks & 15).unique()) == len((blocks >> 4).unique()) == 16
        weight = from_mxfp4(blocks, scales).transpose(1, 2)
        assert torch.equal(weight, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
        parameter.data.copy_(weight)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return tensors


def published_tensors(model):
    """All tensors as `save_pretrained` writes them: it undoes what transformers 5 does to experts when it loads."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def load(folder, **overrides):
    if "quantization_config" in json.loads((Path(folder) / "config.json").read_text()):
        overrides["quantization_config"] = Mxfp4Config(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        local_files_only=True, **overrides).eval()


@torch.no_grad()
def logits(model, prompt):
    """All positions in one pass, shape (tokens, vocab_size)."""
    return model(torch.tensor([prompt]), use_cache=False).logits[0]


def routers(model):
    """The number of each mixture-of-experts layer, and its router."""
    return [(int(name.split(".")[2]), module) for name, module in model.named_modules()
            if type(module).__name__.lower().endswith("topkrouter")]


@contextmanager
def watched_routers(model):
    """A list that grows by (layer, router, logits, weights, ids) whenever a router has run."""
    seen = []
    hooks = [router.register_forward_hook(lambda m, _, output, layer=layer: seen.append((layer, m, *output)))
             for layer, router in routers(model)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def gap(ranked, chosen):
    """The least difference of any row between the last that is chosen and the next."""
    return (ranked[:, chosen - 1] - ranked[:, chosen]).min().item() if chosen < ranked.shape[1] else None


# Routers that choose by the sigmoid of the logit plus the correction bias.
SIGMOID_ROUTERS = ("Glm4MoeTopkRouter", "Glm4MoeLiteTopkRouter", "DeepseekV3TopkRouter")


def choice(router, router_logits, best_of_group=None):
    """Experts of each token from the best to the worst, their scores in this order, and how clear groups were.

    A group counts as much as so many of its best experts together: two, or the one where scores are a softmax.
    """
    kind = type(router).__name__
    is_softmax = kind == "DeepseekV2TopkRouter"
    if kind == "GptOssTopKRouter":
        scores, group_margin = router_logits, None
    elif kind in SIGMOID_ROUTERS or is_softmax and router.topk_method == "group_limited_greedy":
        best_of_group = best_of_group or (1 if is_softmax else 2)
        scores = router_logits.softmax(-1) if is_softmax else router_logits.sigmoid() + router.e_score_correction_bias
        groups = scores.unflatten(1, (router.num_group, -1))
        group_scores = groups.sort(descending=True).values[..., :best_of_group].sum(-1)
        ranked = group_scores.sort(descending=True).values
        group_margin = gap(ranked, router.topk_group)
        taken = group_scores >= ranked[:, router.topk_group - 1, None]
        scores = groups.masked_fill(~taken[..., None], -torch.inf).flatten(1)
    else:
        scores, group_margin = router_logits.float().softmax(-1), None
    order = scores.argsort(descending=True, stable=True)  # of equals, the lowest index first
    return order, scores.gather(1, order), group_margin


def least_margin(seen):
    """How clear the least clear choice of an expert or a group was."""
    least = torch.inf
    for _, router, router_logits, _, _ in seen:
        _, ranked, group_margin = choice(router, router_logits)
        margins = [group_margin, gap(ranked, router.top_k)]
        least = min([least] + [margin for margin in margins if margin is not None])
    return least


def routing(model, prompt):
    """What golden.json says of each mixture-of-experts layer, and how clear the order of any two experts was.

    It is not clear at all if few experts are at work, or if groups could have been chosen in another way.
    """
    with watched_routers(model) as seen:
        logits(model, prompt)
    layers, least = [], least_margin(seen)
    for layer, router, router_logits, weights, ids in seen:
        k = router.top_k
        order, ranked, group_margin = choice(router, router_logits)
        ranked = ranked[:, :k]
        assert torch.equal(order[:, :k].sort().values, ids.sort().values), "not the experts that transformers chose"
        least = min([least] + [gap(ranked, chosen) for chosen in range(1, k)])
        if group_margin is not None:
            for wrong in (2 if type(router).__name__ == "DeepseekV2TopkRouter" else 1, router.num_experts):
                other = choice(router, router_logits, best_of_group=wrong)[0][:, :k].sort().values
                least = 0.0 if torch.equal(other, ids.sort().values) else least
        if len(ids.unique()) < min(0.6 * router.num_experts, 40):
            least = 0.0
        by_expert = torch.zeros(router_logits.shape, dtype=weights.dtype).scatter(1, ids, weights)
        layers.append({
            "layer": layer, "ids": order[:, :k].tolist(), "weights": by_expert.gather(1, order[:, :k]).tolist(),
            "margin": gap(choice(router, router_logits)[1], k),
        } | ({"group_margin": group_margin} if group_margin is not None else {}))
    return layers, least


@torch.no_grad()
def greedy(model, prompts, use_cache):
    """For each of some prompts of one length, GREEDY_TOKENS most likely tokens and how far each was ahead of the next;
    end tokens do not stop it."""
    tokens, margins, cache = torch.tensor(prompts), [], None
    for step in range(GREEDY_TOKENS):
        if use_cache:
            output = model(tokens[:, -1:] if step else tokens, use_cache=True, past_key_values=cache)
            cache = output.past_key_values
        else:
            output = model(tokens, use_cache=False)
        best = output.logits[:, -1].topk(2)
        tokens = torch.cat([tokens, best.indices[:, :1]], 1)
        margins.append(best.values[:, 0] - best.values[:, 1])
    return tokens[:, -GREEDY_TOKENS:].tolist(), torch.stack(margins, 1).tolist()


def decided_greedy(model, vocab_size, generator):
    """The first random short prompt whose 128 greedy steps are all well decided and varied, or None."""
    def decided(tokens, margins, slack=1.0):
        return min(margins) >= slack * MARGIN_MIN and len(set(tokens)) >= DISTINCT_MIN

    for _ in range(8):
        prompts = [torch.randint(3, vocab_size, (5,), generator=generator).tolist() for _ in range(250)]
        for prompt, tokens, margins in zip(prompts, *greedy(model, prompts, use_cache=True)):
            if not decided(tokens, margins, slack=0.9):  # alone, it is rounded in another way
                continue
            with watched_routers(model) as seen:
                (tokens,), (margins,) = greedy(model, [prompt], use_cache=True)
            if decided(tokens, margins) and least_margin(seen) >= ROUTING_MIN:
                return prompt
    return None


NEUTRAL = {"sinks": -30.0, "shared_expert_gate": 0.0, "shared_expert.down_proj": 0.0, "shared_experts.down_proj": 0.0}


def check_teeth(case, folder, prompt, expected):
    """Each property of the case changes the logits when it is taken away."""
    def require(what, model):
        change = (logits(model, prompt) - expected).abs().max().item()
        print(f"  without {what}: max |Δlogit| {change:.2f}")
        if change < TEETH_MIN:
            raise SystemExit(f"{case.name}: the golden does not see {what}")

    for overrides in case.teeth_config:
        require(overrides, load(folder, **overrides))
    for part in case.teeth_tensors:
        model = load(folder)
        touched = [p for name, p in [*model.named_parameters(), *model.named_buffers()] if part in name]
        assert touched, f"{case.name} has no {part}"
        for parameter in touched:
            if part == "lm_head":
                parameter.data.copy_(model.model.embed_tokens.weight)
            else:
                parameter.data.fill_(NEUTRAL.get(part, 0.0 if part.endswith("bias") else 1.0))
        require(part, model)
    for what, change in case.teeth_code.items():
        model = load(folder)
        change(model)
        require(what, model)


def publish_spelling(path, case):
    """Rewrites config.json of transformers 5 as version 4 wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    for key in case.unpublished:
        del config[key]
    config |= case.published
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def f32(x):
    """The shortest decimal that reads back as the same f32."""
    return str(torch.tensor(x).numpy())


def routing_json(layers):
    """The field `routing`, one layer after the other, or nothing where there are no experts."""
    def number(x):
        return "null" if x is None else f32(x)

    def layer_json(layer):
        weights = ", ".join("[" + ",".join(map(f32, row)) + "]" for row in layer["weights"])
        margins = "".join(f', "{key}": {number(layer[key])}' for key in ("margin", "group_margin") if key in layer)
        return (f'  {{"layer": {layer["layer"]},\n   "ids": {json.dumps(layer["ids"], separators=(",", ":"))},\n'
                f'   "weights": [{weights}]{margins}}}')

    return ',\n "routing": [\n' + ",\n".join(map(layer_json, layers)) + "\n ]" if layers else ""


def write_golden(path, prompt, prompt_logits, greedy_prompt, tokens, margins, layers=()):
    """Rows of logits one to a line, in decimals that read back as the same f32."""
    rows = ",\n".join("  [" + ",".join(map(f32, row.tolist())) + "]" for row in prompt_logits)
    path.write_text(
        "{\n"
        f' "prompt_token_ids": {json.dumps(prompt)},\n'
        f' "logits": [\n{rows}\n ],\n'
        ' "greedy": {\n'
        f'  "prompt_token_ids": {json.dumps(greedy_prompt)},\n'
        f'  "token_ids": {json.dumps(tokens)},\n'
        f'  "margins": [{", ".join(map(f32, margins))}]\n'
        f" }}{routing_json(layers)}\n}}\n")


def write_source(folder, what, checkpoint_files, notes=""):
    files = checkpoint_files + [folder / "golden.json"]
    sums = "\n".join(f'"{f.name}" = "{hashlib.sha256(f.read_bytes()).hexdigest()}"' for f in files)
    command = shlex.join(["python", *sys.argv])
    (folder / "source.toml").write_text(
        f'checkpoint = "{what}"\n'
        f'tool = "transformers {transformers.__version__}, torch {torch.__version__}, CPU, f32, eager attention"\n'
        f'command = "{command}"\n'
        f'date = "{datetime.now(timezone.utc):%Y-%m-%d}"\n'
        f"{notes}"
        f"\n[sha256]\n{sums}\n")


def make(case, first_seed):
    print(case.name)
    config = AutoConfig.for_model(case.model_type, **{**COMMON, **case.config})
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager").eval()
    for seed in range(first_seed, first_seed + 1000 * SEEDS, 1000):
        generator = torch.Generator().manual_seed(seed + 1)
        randomise(model, seed, case.router_gain)
        packed = pack_mxfp4(model, seed) if case.mxfp4 else None
        prompt = torch.randint(3, config.vocab_size, (case.prompt_len,), generator=generator).tolist()
        layers, routing_margin = routing(model, prompt)
        greedy_prompt = routing_margin >= ROUTING_MIN and decided_greedy(model, config.vocab_size, generator)
        if greedy_prompt:
            break
    else:
        raise SystemExit(f"{case.name}: no seed gives clear choices of experts and a well decided greedy text")
    expected = logits(model, prompt)

    noise = (logits(copy.deepcopy(model).double(), prompt) - expected).abs().max().item()
    if noise > NOISE_MAX * expected.abs().max():
        raise SystemExit(f"{case.name}: rounding alone moves the logits by {noise}")

    folder = GOLDEN / case.name
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if case.published_spelling:
        publish_spelling(folder / "config.json", case)
    save_file(packed or published_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})

    model = load(folder)
    if not torch.equal(logits(model, prompt), expected):
        raise SystemExit(f"{case.name}: the saved folder does not give the model's logits")
    check_teeth(case, folder, prompt, expected)
    (tokens,), (margins,) = greedy(model, [greedy_prompt], use_cache=True)
    if greedy(model, [greedy_prompt], use_cache=False)[0] != [tokens]:
        raise SystemExit(f"{case.name}: greedy with and without cache differ")
    write_golden(folder / "golden.json", prompt, expected, greedy_prompt, tokens, margins, layers)
    what = f"random weights, seed {seed}" + (", experts rounded to MXFP4 and all else to bf16" if case.mxfp4 else "")
    write_source(folder, what, [folder / "config.json", folder / "model.safetensors"],
                 f'license = "MIT OR Apache-2.0: generated by this project"\nf64_max_abs_difference = {noise:.1e}\n')
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"  {size / 1000:.0f} kB, logits {expected.min():.1f}…{expected.max():.1f}, "
          f"f64 differs by {noise:.1e}, least margin {min(margins):.3f}, {len(set(tokens))} distinct tokens"
          + (f", experts by {routing_margin:.1e}" if layers else ""))


def make_from_checkpoint(checkpoint, name, text, origin, license):
    """Goldens of a real checkpoint: its prompt is text, its greedy text is kept readable in source.toml."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    model = load(checkpoint)
    bos = model.config.bos_token_id
    encode = lambda s: [bos] + tokenizer.encode(s, add_special_tokens=False).ids  # noqa: E731
    prompt, greedy_prompt = encode(text)[:24], encode("Once upon a time")
    (tokens,), (margins,) = greedy(model, [greedy_prompt], use_cache=True)
    if greedy(model, [greedy_prompt], use_cache=False)[0] != [tokens]:
        raise SystemExit(f"{name}: greedy with and without cache differ")
    folder = GOLDEN / name
    folder.mkdir(parents=True, exist_ok=True)
    write_golden(folder / "golden.json", prompt, logits(model, prompt), greedy_prompt, tokens, margins)
    written = tokenizer.decode(tokens)
    write_source(folder, origin, sorted(f for f in checkpoint.iterdir() if f.is_file()),
                 f'license = "{license}"\ngreedy_text = {json.dumps(written)}\n')
    print(f"{name}: least margin {min(margins):.3f}\n  {written}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", help="make this case only")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--checkpoint", type=Path, help="make goldens of this folder instead")
    parser.add_argument("--name", help="name of the golden folder for --checkpoint")
    parser.add_argument("--text", default="Once upon a time, there was a little girl named Lily. She loved to play outside.")
    parser.add_argument("--origin", default="karpathy/tinyllamas stories260K, as a Hugging Face folder")
    parser.add_argument("--license", default="MIT; the checkpoint is not copied here")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # one summation order on every machine
    if args.checkpoint:
        make_from_checkpoint(args.checkpoint, args.name or args.checkpoint.name, args.text, args.origin, args.license)
        return
    for index, case in enumerate(CASES):
        if args.case in (None, case.name):
            make(case, args.seed + 2 * index)


if __name__ == "__main__":
    main()
