"""Turns checkpoint.pt into the shipped Hugging Face checkpoint, and measures exactly that.

    python export.py --tokenizer work --run work --out work

Writes config.json, generation_config.json and model.safetensors (bf16); golden.json (logits and
greedy tokens that transformers computes in f32 on the CPU from the bf16 weights); eval.json
(perplexity and sums on the held-out split, samples); loss_curve.svg.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import shutil
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen3ForCausalLM

import talk
import train

GOLDEN_PROMPTS = [  # (kind, text, whether it is a chat message): the two of each kind with the clearest choices are kept
    *(
        ("raw_story", text, False)
        for text in (
            "Once upon a time", "One day, a little fox found a lantern in the forest. He", "Once upon a time, in a village, there lived a boy named Tom",
            "Long ago, in a deep forest, lived a bear named Bruno", "In a small village by the sea, there lived a girl named Lily. She", "There was once a clever crow",
        )
    ),
    *(
        ("chat_story", text, True)
        for text in (
            "Once upon a time", "Tell me a story about a rabbit and a bell.", "Tell me a story about a fox and a lantern.", "Write a story about a girl named Anna.",
            "Tell me a story about sharing.", "Write a short story about a bear and a drum.",
        )
    ),
    *(("chat_answer", text, True) for text in ("How do I download a model?", "Who are you?", "What is GGUF?", "What does /regen do?")),
    *(("chat_sum", text, True) for text in ("What is 47 plus 38?", "What is 81 minus 24?", "Count from 1 to 10.")),
]
KEPT = 2
SAMPLE_PROMPTS = [
    ("Once upon a time", False),
    ("In a small village by the sea, there lived a girl named", False),
    ("Once upon a time", True),
    ("Tell me a story about a fox and a lantern.", True),
    ("Tell me a story about a brave little mouse called Pip who is afraid of the dark", True),
    ("Write a story about sharing.", True),
    ("One day, a little fox", True),
    ("There once was", True),
    ("Once upon a time, in a village by the sea,", True),
    ("The old lighthouse keeper looked out over the", True),
    ("Tell me a story about a whale and a spaceship", True),
    ("Tell me a story about a girl named Zuleika and a telescope.", True),
    ("Who are you?", True),
    ("how big a model can I run?", True),
    ("I want JSON output", True),
    ("How do I remove an old model?", True),
    ("What is 2+2?", True),
    ("What is 1234 + 99?", True),
    ("Who was Abraham Lincoln?", True),
    ("How do I see what is inside a model file?", True),
    ("What does --temp do?", True),
    ("what is a KV cache", True),
    ("What is 58 + 27?", True),
    ("Nora has 34 apples. She gives 9 of them to Tom. How many apples does Nora have left?", True),
    ("Which day comes after Friday?", True),
    ("What is the opposite of slow?", True),
    ("Can you explain relativity to me?", True),
    ("hello!", True),
]


def write_checkpoint(run: Path, out: Path) -> None:
    """model.safetensors in bf16 with Hugging Face's names, and the two configurations."""
    state = torch.load(run / "checkpoint.pt", map_location="cpu", weights_only=True)
    tensors = {f"model.{name}": value.to(torch.bfloat16).contiguous() for name, value in state.items()}
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    shape = json.loads((run / "run.json").read_text())["config"]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "model_type": "qwen3",
        "rope_scaling": None,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        **shape,
    }
    generation = {"do_sample": True, "eos_token_id": [2, 0], "pad_token_id": 0, "temperature": 0.7, "top_p": 0.95}
    (out / "config.json").write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def prompt_ids(tokenizer: transformers.PreTrainedTokenizerBase, text: str, chat: bool) -> list[int]:
    """The prompt as the model is given it."""
    if chat:
        text = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@torch.no_grad()
def golden(model: Qwen3ForCausalLM, ids: list[int], tokens: int) -> dict[str, object]:
    """Last-position logits and greedy tokens up to the first end token (included), with each top-2 margin."""
    step = model(torch.tensor([ids]), use_cache=True)
    logits = step.logits[0, -1]
    shown = {*logits.topk(32).indices.tolist(), *range(0, logits.numel(), 256)}
    greedy: list[int] = []
    margins: list[float] = []
    while len(greedy) < tokens and not (greedy and greedy[-1] in (0, 2)):
        two = step.logits[0, -1].topk(2)
        greedy.append(int(two.indices[0]))
        margins.append(round(float(two.values[0] - two.values[1]), 4))
        step = model(torch.tensor([[greedy[-1]]]), past_key_values=step.past_key_values, use_cache=True)
    return {
        "prompt_token_ids": ids,
        "logits": {str(i): float(logits[i]) for i in sorted(shown)},
        "logits_l2_norm": float(logits.double().norm()),
        "greedy_token_ids": greedy,
        "greedy_margins": margins,
    }


def goldens(model: Qwen3ForCausalLM, tokenizer: transformers.PreTrainedTokenizerBase, tokens: int = 160) -> list[dict[str, object]]:
    """For each kind of prompt, those whose closest choice between two tokens is the clearest.

    A choice that is nearly a tie could fall either way in another order of summation, and would
    test that order and not the model.
    """
    found: list[dict[str, object]] = []
    for kind in dict.fromkeys(kind for kind, _, _ in GOLDEN_PROMPTS):
        made = [
            {"name": kind, "text": text, "chat": chat, **golden(model, prompt_ids(tokenizer, text, chat), tokens)}
            for k, text, chat in GOLDEN_PROMPTS
            if k == kind
        ]
        made.sort(key=lambda g: -min(g["greedy_margins"]))
        found += made[:KEPT]
    for g in found:
        print(g["name"], repr(g["text"]), len(g["greedy_token_ids"]), "tokens, closest choice", min(g["greedy_margins"]), flush=True)
    return found


@torch.no_grad()
def answer(model: Qwen3ForCausalLM, ids: list[int], temperature: float, tokens: int, seed: int = 0) -> list[int]:
    """Generated ids up to an end token."""
    torch.manual_seed(seed)
    step = model(torch.tensor([ids], device=model.device), use_cache=True)
    out: list[int] = []
    while len(out) < tokens:
        logits = step.logits[0, -1].float()
        token = int(logits.argmax()) if temperature == 0 else int(torch.multinomial((logits / temperature).softmax(-1), 1))
        if token in (0, 2):
            break
        out.append(token)
        step = model(torch.tensor([[token]], device=model.device), past_key_values=step.past_key_values, use_cache=True)
    return out


@torch.no_grad()
def answers_at_once(model: Qwen3ForCausalLM, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """Greedy answers to many prompts, those of one length together (no padding needed)."""
    out: list[list[int]] = [[] for _ in prompts]
    by_length: dict[int, list[int]] = {}
    for i, ids in enumerate(prompts):
        by_length.setdefault(len(ids), []).append(i)
    for members in by_length.values():
        step = model(torch.tensor([prompts[i] for i in members], device=model.device), use_cache=True)
        for _ in range(tokens):
            token = step.logits[:, -1].argmax(-1)
            for i, t in zip(members, token.tolist()):
                out[i].append(t)
            step = model(token[:, None], past_key_values=step.past_key_values, use_cache=True)
    return [ids[: next((k for k, t in enumerate(ids) if t in (0, 2)), len(ids))] for ids in out]


@torch.no_grad()
def perplexity(model: Qwen3ForCausalLM, rows: np.ndarray) -> float:
    """Per-token perplexity of packed rows."""
    total = count = 0.0
    for part in torch.from_numpy(rows.astype(np.int64)).to(model.device).split(8):
        logits = model(part[:, :-1]).logits.float()
        total += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
        count += part[:, 1:].numel()
    return math.exp(total / count)


def story_rows(tokenizer: Path, split: str, count: int, length: int) -> np.ndarray:
    """Plain stories of a split, packed."""
    tok = Tokenizer.from_file(str(tokenizer))
    ids: list[int] = []
    index = 0
    while len(ids) < count * (length + 1):
        ids += tok.encode(talk.any_story(random.Random(f"stories/{split}/{index}"), split == "test").text() + "<|endoftext|>").ids
        index += 1
    return np.array(ids[: count * (length + 1)], dtype=np.uint16).reshape(count, length + 1)


def sums(model: Qwen3ForCausalLM, tokenizer: transformers.PreTrainedTokenizerBase, count: int) -> dict[str, object]:
    """Greedy accuracy on sums that training never showed, by how they are asked."""
    rng = random.Random("sums")
    asked, expected, labels = [], [], []
    for _ in range(count):
        op, a, b, result = talk.draw_sum(rng, test=True)
        word = {"+": "plus", "-": "minus"}[op]
        for label, text, chat, want in (
            ("chat_words", f"What is {a} {word} {b}?", True, f"{a} {word} {b} is {result}."),
            ("chat_signs", f"{a} {op} {b} =", True, f"{a} {op} {b} = {result}"),
            ("plain", f"1 + 1 = 2\n{a} {op} {b} =", False, f" {result}"),
        ):
            asked.append(prompt_ids(tokenizer, text, chat))
            expected.append(want)
            labels.append(label)
    given = [tokenizer.decode(ids) for ids in answers_at_once(model, asked, 14)]
    wrong = [f"{label}: {want!r} but {got!r}" for label, want, got in zip(labels, expected, given) if not _right(label, got, want)]
    scores = {
        label: sum(_right(label, g, e) for lab, g, e in zip(labels, given, expected) if lab == label) / count for label in dict.fromkeys(labels)
    }
    return {"questions_per_form": count, "accuracy": scores, "first_wrong": wrong[:8]}


def _right(label: str, got: str, want: str) -> bool:
    return got.split("\n")[0] == want if label == "plain" else got == want


def plot(run: Path, out: Path) -> None:
    """loss_curve.svg from loss.csv."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot

    with open(run / "loss.csv") as file:
        table = list(csv.DictReader(file))
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.plot([int(r["tokens"]) / 1e6 for r in table], [float(r["train_loss"]) for r in table], label="training", linewidth=1)
    held = [r for r in table if r["held_out_loss"]]
    axes.plot([int(r["tokens"]) / 1e6 for r in held], [float(r["held_out_loss"]) for r in held], label="held-out combinations", marker=".")
    axes.set(xlabel="tokens (millions)", ylabel="cross-entropy (nats per token)", yscale="log", title="Built-in model: loss")
    axes.legend()
    axes.grid(alpha=0.3, which="both")
    figure.tight_layout()
    figure.savefig(out / "loss_curve.svg", metadata={"Date": None})


def main() -> None:
    """Exports, then measures what was exported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="directory with checkpoint.pt, run.json and loss.csv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sums", type=int, default=500, help="held-out sums to ask in each form")
    parser.add_argument("--sample-tokens", type=int, default=420)
    args = parser.parse_args()
    write_checkpoint(args.run, args.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if args.tokenizer != args.out:
            shutil.copy(args.tokenizer / name, args.out / name)
    plot(args.run, args.out)

    tokenizer = AutoTokenizer.from_pretrained(args.out)
    model = Qwen3ForCausalLM.from_pretrained(args.out, dtype=torch.float32, attn_implementation="eager").eval()
    own = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    for text in ("Once upon a time, 47 + 38 = 85.\n\n\"Héllo!\" <|im_start|>user\n  don't", "naïve 12,345 — ok"):
        if tokenizer(text, add_special_tokens=False)["input_ids"] != own.encode(text).ids:
            raise SystemExit(f"transformers tokenizes {text!r} otherwise than tokenizer.json")
    record = {
        "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}: f32 arithmetic on the CPU, bf16 weights upcast",
        "prompts": goldens(model, tokenizer),
    }
    (args.out / "golden.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")

    if torch.cuda.is_available():
        model = model.to("cuda")
    length = train.Config().max_position_embeddings
    path = args.out / "tokenizer.json"
    report = {
        "run": json.loads((args.run / "run.json").read_text()),
        "perplexity": {
            "mix_held_out": perplexity(model, train.dataset(path, "test", 2, 64 * 4 * length, length)),
            "mix_fresh_text_of_training_combinations": perplexity(model, train.dataset(path, "train", 2, 64 * 4 * length, length)),
            "stories_held_out": perplexity(model, story_rows(path, "test", 64, length)),
            "stories_fresh_text_of_training_combinations": perplexity(model, story_rows(path, "train", 64, length)),
        },
        "held_out_sums": sums(model, tokenizer, args.sums),
        "samples": [
            {"prompt": text, "chat": chat, "temperature": t, "text": tokenizer.decode(answer(model, prompt_ids(tokenizer, text, chat), t, args.sample_tokens))}
            for text, chat in SAMPLE_PROMPTS
            for t in ((0.0, 0.7) if len(text) > 12 or not chat else (0.0,))
        ],
    }
    (args.out / "eval.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps({k: report[k] for k in ("perplexity", "held_out_sums")}, indent=1))
    for sample in report["samples"]:
        print(f"=== {sample['prompt']!r} chat={sample['chat']} temp={sample['temperature']}\n{sample['text']}")


if __name__ == "__main__":
    main()
