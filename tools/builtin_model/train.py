"""Trains the built-in model: a small Qwen3 on generated text, on one GPU.

    python train.py --tokenizer work --out work --minutes 7.5

Generates and tokenizes the text on all cores, measures the speed, sets the number of steps that
fit into the time (or takes ``--steps``), trains, and writes checkpoint.pt, loss.csv and run.json.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import multiprocessing
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

import generate


@dataclass(frozen=True)
class Config:
    """The model's shape, named as in a Hugging Face config.json."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 7
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 64
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 2048


class Norm(nn.Module):
    """RMSNorm, in f32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with RMSNorm on each head's query and key, then RoPE."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * c.head_dim, c.hidden_size, bias=False)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.rms_norm_eps), Norm(c.head_dim, c.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE in the half-split layout of Hugging Face checkpoints."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each behind a norm and around a residual."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps), Norm(c.hidden_size, c.rms_norm_eps)
        self.self_attn, self.mlp = Attention(c), Mlp(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    """Qwen3 with tied embeddings; parameter names are the checkpoint's, less the prefix "model."."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 0.02 / math.sqrt(2 * c.num_hidden_layers) if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                nn.init.normal_(parameter, std=scale * (1.5 if "embed" not in name else 1.0))
        inverse = c.rope_theta ** (-torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        angle = torch.outer(torch.arange(c.max_position_embeddings, dtype=torch.float64), inverse)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy; ids and targets are [batch, length]."""
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        logits = F.linear(self.norm(x), self.embed_tokens.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def rows(job: tuple[str, str, int, int, int, int]) -> np.ndarray:
    """Documents ``start..`` packed into ``count`` rows of ``length`` + 1 tokens.

    A row begins with the beginning of a document, as a prompt does, and its last one is cut.
    """
    tokenizer_path, split, seed, start, count, length = job
    tokenizer = Tokenizer.from_file(tokenizer_path)
    out = np.zeros((count, length + 1), dtype=np.uint16)
    index = start
    for row in out:
        filled = 0
        while filled < length + 1:
            ids = tokenizer.encode(generate.document(split, seed, index) + generate.END).ids
            index += 1
            ids = ids[: length + 1 - filled]
            row[filled : filled + len(ids)] = ids
            filled += len(ids)
    return out


def dataset(tokenizer: Path, split: str, seed: int, tokens: int, length: int) -> np.ndarray:
    """About ``tokens`` tokens of ``split`` as rows, made on all cores."""
    per_job = 64
    jobs = max(1, tokens // (per_job * length))
    stride = per_job * length  # more documents than a job can use, so that none is used twice
    work = [(str(tokenizer), split, seed, i * stride, per_job, length) for i in range(jobs)]
    with multiprocessing.get_context("fork").Pool() as pool:
        return np.concatenate(pool.map(rows, work, chunksize=1))


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True, help="directory with tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=250_000_000, help="distinct training tokens")
    parser.add_argument("--minutes", type=float, default=7.0, help="time to train in, once the text is made")
    parser.add_argument("--steps", type=int, help="exactly so many steps, whatever they take")
    parser.add_argument("--batch", type=int, default=48, help="rows per step")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    config = Config()
    length = config.max_position_embeddings

    began = time.time()
    tokenizer = args.tokenizer / "tokenizer.json"
    data = dataset(tokenizer, "train", args.seed, args.tokens, length)
    held = dataset(tokenizer, "test", args.seed, 1_000_000, length)
    made = time.time() - began
    print(f"text: {data.size / 1e6:.1f} M training tokens in {made:.0f} s", flush=True)

    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    rng = np.random.default_rng(args.seed)
    train_rows = torch.from_numpy(data.astype(np.int32)).to(device)
    held_rows = torch.from_numpy(held.astype(np.int32)).to(device)[: args.batch * 4]
    model = Model(config).to(device)
    compiled = torch.compile(model)
    decay = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.95), fused=True
    )

    def loss_of(batch: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return compiled(batch[:, :-1].long(), batch[:, 1:].long())

    def held_out_loss() -> float:
        with torch.no_grad():
            return sum(loss_of(part).item() for part in held_rows.split(args.batch)) / max(1, len(held_rows.split(args.batch)))

    held_out_loss()
    order = np.empty(0, dtype=np.int64)
    steps = args.steps or 10**9
    warmup, log, epoch = 200, [], 0
    started = time.time()
    timed_from = 0.0
    for step in range(10**9):
        if step == 20:
            torch.cuda.synchronize()
            timed_from = time.time()
        if step == 80 and args.steps is None:
            torch.cuda.synchronize()
            per_step = (time.time() - timed_from) / 60
            steps = int((args.minutes * 60 - (time.time() - started)) / (per_step * 1.02)) + step
            print(f"{per_step * 1e3:.1f} ms a step, {args.batch * length / per_step / 1e6:.2f} M tokens/s: {steps} steps", flush=True)
        if step >= steps:
            break
        if len(order) < args.batch:
            order, epoch = rng.permutation(len(train_rows)), epoch + 1
        pick, order = order[: args.batch], order[args.batch :]
        progress = step / steps
        rate = args.lr * min(1.0, (step + 1) / warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(train_rows[torch.from_numpy(pick).to(device)])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == steps - 1:
            held_now = held_out_loss() if step % 250 == 0 or step == steps - 1 else float("nan")
            log.append((step, (step + 1) * args.batch * length, loss.item(), held_now, rate))
            if step % 250 == 0 or step == steps - 1:
                print(f"step {step} loss {loss.item():.4f} held-out {held_now:.4f} epoch {epoch} {time.time() - started:.0f} s", flush=True)
    torch.cuda.synchronize()
    seconds = time.time() - started

    torch.save({k: v.to("cpu", torch.bfloat16) for k, v in model.state_dict().items()}, args.out / "checkpoint.pt")
    with open(args.out / "loss.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "tokens", "train_loss", "held_out_loss", "learning_rate"])
        writer.writerows([s, t, f"{a:.4f}", "" if b != b else f"{b:.4f}", f"{r:.6f}"] for s, t, a, b, r in log)
    run = {
        "config": asdict(config),
        "parameters": sum(p.numel() for p in model.parameters()),
        "distinct_training_tokens": int(data.size),
        "steps": steps,
        "tokens_per_step": args.batch * length,
        "epochs": round(steps * args.batch / len(train_rows), 2),
        "learning_rate": args.lr,
        "seed": args.seed,
        "seconds_making_text": round(made),
        "seconds_training": round(seconds),
        "final_train_loss": log[-1][2],
        "final_held_out_loss": log[-1][3],
        "hardware": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    (args.out / "run.json").write_text(json.dumps(run, indent=2) + "\n")
    print(json.dumps(run), flush=True)


if __name__ == "__main__":
    main()
