"""Golden numbers of every kind of rotary embedding: what Hugging Face transformers computes from a config.json.

Writes `crates/models/tests/golden/rope.json`, a list of cases: the configuration, the length of the text that the kind is
computed for, the frequencies of the pairs of a head in f32, and what cosines and sines are multiplied by.

Run it from the root of the repository, with the packages that `tiny_models.py` names:

    /tmp/goldens/bin/python tools/goldens/rope.py
"""

import json
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

GOLDEN = Path("crates/models/tests/golden/rope.json")

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SHORT = [1.0, 1.02, 1.05, 1.05, 1.08, 1.1, 1.2, 1.3]
LONG = [1.0, 1.3, 1.9, 3.1, 6.0, 12.5, 30.0, 41.2]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG,
            "original_max_position_embeddings": 4096}

# Fields of the configuration beside the common ones, and the length of the text.
CASES = [
    (dict(rope_scaling=None), 100),
    (dict(rope_scaling={"rope_type": "linear", "factor": 2.5}), 100),
    (dict(rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192}, rope_theta=500000.0), 100),
    # As Qwen's cards say to add it.
    (dict(rope_scaling=YARN, rope_theta=1000000.0, max_position_embeddings=40960, head_dim=128), 100),
    (dict(rope_scaling={**YARN, "beta_fast": 16, "beta_slow": 2.5}, head_dim=64), 100),
    (dict(rope_scaling={**YARN, "attention_factor": 1.25}, head_dim=64), 100),
    # As gpt-oss has it.
    (dict(rope_scaling={"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
                        "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}, rope_theta=150000.0, head_dim=64), 100),
    # As DeepSeek has it.
    (dict(rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.707}, head_dim=64), 100),
    (dict(rope_scaling={**YARN, "mscale": 0.707}, head_dim=64), 100),
    # A trained context so short that pairs are all stretched, and one so long that all are kept.
    (dict(rope_scaling={**YARN, "original_max_position_embeddings": 8}), 100),
    (dict(rope_scaling={**YARN, "original_max_position_embeddings": 100000000}, rope_theta=100.0), 100),
    (dict(rope_scaling={"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=2048), 2000),
    (dict(rope_scaling={"rope_type": "dynamic", "factor": 4.0}, max_position_embeddings=2048), 5000),
    (dict(rope_scaling={"type": "dynamic", "factor": 2.0}, max_position_embeddings=2048, head_dim=128), 2049),
    (dict(rope_scaling=LONGROPE, max_position_embeddings=131072), 4096),
    (dict(rope_scaling=LONGROPE, max_position_embeddings=131072), 4097),
    (dict(rope_scaling={**LONGROPE, "attention_factor": 1.5}, max_position_embeddings=131072), 9000),
    (dict(rope_scaling={**LONGROPE, "factor": 16.0}, max_position_embeddings=131072), 9000),
    # As Phi-3 has it: the trained context beside the parameters.
    (dict(rope_scaling={"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
          original_max_position_embeddings=4096, max_position_embeddings=131072), 9000),
]
COMMON = dict(vocab_size=16, hidden_size=64, intermediate_size=12, num_hidden_layers=1, num_attention_heads=4,
              head_dim=16, max_position_embeddings=131072, rope_theta=10000.0)


def f32(value):
    """The shortest decimal that reads back as the same f32."""
    return float(str(torch.tensor(value, dtype=torch.float32).numpy()))


def main():
    lines = []
    for fields, length in CASES:
        config = {**COMMON, **fields}
        kind = (config["rope_scaling"] or {}).get("rope_type") or (config["rope_scaling"] or {}).get("type", "default")
        given = json.loads(json.dumps(config))  # transformers writes into what it is given
        if kind == "default":
            dims = config["head_dim"]
            frequencies = 1.0 / (config["rope_theta"] ** (torch.arange(0, dims, 2).float() / dims))
            factor = 1.0
        else:
            frequencies, factor = ROPE_INIT_FUNCTIONS[kind](LlamaConfig(**given), device="cpu", seq_len=length)
        lines.append(json.dumps({
            "config": {"model_type": "llama", "rms_norm_eps": 1e-6, **config}, "length": length,
            "frequencies": [f32(value) for value in frequencies.tolist()], "attention_factor": float(factor),
        }))
    text = ",\n  ".join(lines)
    made_by = f"tools/goldens/rope.py, transformers {transformers.__version__}, torch {torch.__version__}"
    GOLDEN.write_text(f'{{"made_by": {json.dumps(made_by)}, "cases": [\n  {text}\n]}}\n')
    print(f"{len(lines)} cases in {GOLDEN}")


if __name__ == "__main__":
    main()
