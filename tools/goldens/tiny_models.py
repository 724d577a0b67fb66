"""Golden files of every architecture: tiny random checkpoints and what Hugging Face transformers computes from them.

Each case becomes a folder under `crates/models/tests/golden/`:

    config.json        written by transformers, or in the older spelling that most published checkpoints carry
    model.safetensors  f32 weights from a fixed seed, spread so that a wrong bias, norm or rotation shows
    golden.json        logits at every position of a prompt; 128 greedy tokens of a short one, with margins
    source.toml        provenance: versions, command, date, sha256 of each file, license

Run it from the root of the repository:

    python -m venv /tmp/goldens && /tmp/goldens/bin/pip install torch transformers
    /tmp/goldens/bin/python tools/goldens/tiny_models.py
    /tmp/goldens/bin/python tools/goldens/tiny_models.py --checkpoint FOLDER --name stories260K

The second form reads an existing checkpoint, which is not copied: only `golden.json` and `source.toml` are written.

A golden must be able to fail, so the script checks before it writes:
- transformers agrees with itself: greedy with its cache equals greedy without, and the reloaded folder equals the model;
- each property that the case is there for (a bias, a window, a rotation) moves the logits when it is taken away;
- every greedy step is decided by a margin far above rounding, and the tokens do not fall into a short cycle.
"""

import argparse
import copy
import hashlib
import json
import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

GOLDEN = Path("crates/models/tests/golden")
GREEDY_TOKENS = 128
MARGIN_MIN = 0.01  # logits are of the order of 1 to 10; f32 rounding moves them by about 1e-5
DISTINCT_MIN = 24  # of 128 greedy tokens
NOISE_MAX = 1e-5  # what f32 instead of f64 may change, relative to the largest logit
TEETH_MIN = 0.05  # the least change of some logit when a property is taken away


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
    # Taken away one at a time: a config override, or a substring of tensor names to be made neutral.
    teeth_config: list = field(default_factory=list)
    teeth_tensors: list = field(default_factory=list)


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
]

COMMON = dict(num_hidden_layers=2, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False,
              bos_token_id=1, eos_token_id=2, pad_token_id=None, dtype="float32")


def randomise(model, seed):
    """Fills every parameter: projections keep the scale of their input, attention is peaked, nothing is neutral."""
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
        else:
            gain = {"q_proj": 1.8, "k_proj": 1.8, "lm_head": 3.0}.get(name.split(".")[-2], 1.2)
            value = gain * noise / parameter.shape[1] ** 0.5
        parameter.data.copy_(value)


def load(folder, **overrides):
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, **overrides).eval()


@torch.no_grad()
def logits(model, prompt):
    """All positions in one pass, shape (tokens, vocab_size)."""
    return model(torch.tensor([prompt]), use_cache=False).logits[0]


@torch.no_grad()
def greedy(model, prompt, use_cache):
    """GREEDY_TOKENS most likely tokens and how far each was ahead of the next; end tokens do not stop it."""
    tokens, margins, cache = [], [], None
    for _ in range(GREEDY_TOKENS):
        if use_cache:
            step = tokens[-1:] or prompt
            output = model(torch.tensor([step]), use_cache=True, past_key_values=cache)
            cache = output.past_key_values
        else:
            output = model(torch.tensor([prompt + tokens]), use_cache=False)
        best = output.logits[0, -1].topk(2)
        tokens.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
    return tokens, margins


def decided_greedy(model, vocab_size, generator):
    """The first random short prompt whose 128 greedy steps are all well decided and varied."""
    for _ in range(2000):
        prompt = torch.randint(3, vocab_size, (5,), generator=generator).tolist()
        tokens, margins = greedy(model, prompt, use_cache=True)
        if min(margins) >= MARGIN_MIN and len(set(tokens)) >= DISTINCT_MIN:
            return prompt, tokens, margins
    raise SystemExit("no prompt gives a well decided greedy text: choose another seed")


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
        touched = [p for name, p in model.named_parameters() if part in name]
        assert touched, f"{case.name} has no {part}"
        for parameter in touched:
            if part == "lm_head":
                parameter.data.copy_(model.model.embed_tokens.weight)
            else:
                parameter.data.fill_(0.0 if part.endswith("bias") else 1.0)
        require(part, model)


def publish_spelling(path):
    """Rewrites config.json of transformers 5 as version 4 wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def f32(x):
    """The shortest decimal that reads back as the same f32."""
    return str(torch.tensor(x).numpy())


def write_golden(path, prompt, prompt_logits, greedy_prompt, tokens, margins):
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
        " }\n}\n")


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


def make(case, seed):
    print(case.name)
    generator = torch.Generator().manual_seed(seed + 1)
    config = AutoConfig.for_model(case.model_type, **{**COMMON, **case.config})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomise(model, seed)
    prompt = torch.randint(3, config.vocab_size, (case.prompt_len,), generator=generator).tolist()
    expected = logits(model, prompt)

    noise = (logits(copy.deepcopy(model).double(), prompt) - expected).abs().max().item()
    if noise > NOISE_MAX * expected.abs().max():
        raise SystemExit(f"{case.name}: rounding alone moves the logits by {noise}")

    folder = GOLDEN / case.name
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if case.published_spelling:
        publish_spelling(folder / "config.json")
    tensors = model.state_dict()
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    model = load(folder)
    if not torch.equal(logits(model, prompt), expected):
        raise SystemExit(f"{case.name}: the saved folder does not give the model's logits")
    check_teeth(case, folder, prompt, expected)
    greedy_prompt, tokens, margins = decided_greedy(model, config.vocab_size, generator)
    if greedy(model, greedy_prompt, use_cache=False)[0] != tokens:
        raise SystemExit(f"{case.name}: greedy with and without cache differ")
    write_golden(folder / "golden.json", prompt, expected, greedy_prompt, tokens, margins)
    write_source(folder, f"random weights, seed {seed}", [folder / "config.json", folder / "model.safetensors"],
                 f'license = "MIT OR Apache-2.0: generated by this project"\nf64_max_abs_difference = {noise:.1e}\n')
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"  {size / 1000:.0f} kB, logits {expected.min():.1f}…{expected.max():.1f}, "
          f"f64 differs by {noise:.1e}, least margin {min(margins):.3f}, {len(set(tokens))} distinct tokens")


def make_from_checkpoint(checkpoint, name, text, origin, license):
    """Goldens of a real checkpoint: its prompt is text, its greedy text is kept readable in source.toml."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    model = load(checkpoint)
    bos = model.config.bos_token_id
    encode = lambda s: [bos] + tokenizer.encode(s, add_special_tokens=False).ids  # noqa: E731
    prompt, greedy_prompt = encode(text)[:24], encode("Once upon a time")
    tokens, margins = greedy(model, greedy_prompt, use_cache=True)
    if greedy(model, greedy_prompt, use_cache=False)[0] != tokens:
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
