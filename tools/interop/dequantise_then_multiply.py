#!/usr/bin/env python3
"""What one row of x costs where FP4 weights are first dequantised to F16 and then multiplied, on an NVIDIA GPU.

    python3 tools/interop/dequantise_then_multiply.py hotmetal

The other way is one kernel that dequantises in registers: `hotmetal bench kernels --format mxfp4 --rows 1`, which is run
beside it and whose times are printed in the same table. Matrices are those of Llama-3.1-8B in MXFP4: codes of E2M1, two a
byte, and an exponent for 32. Dequantised by a Triton kernel (autotuned), multiplied by cuBLAS; both recorded in a CUDA
graph, over copies that do not fit the second-level cache together. Medians of 50. Needs PyTorch and Triton.
"""

import json
import statistics
import subprocess
import sys

import torch
import triton
import triton.language as tl

# Rows and columns by the op and shape that `bench kernels` calls them by.
MATRICES = {
    ("norm_glu", "4096 → 2 × 14336"): (28672, 4096),
    ("linear_residual", "14336 → 4096"): (4096, 14336),
    ("linear_residual", "4096 → 4096"): (4096, 4096),
}
REPETITIONS = 50
# Of one graph, so that what starting it costs does not count.
LAUNCHES = 8


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (512, 1024, 2048, 4096) for w in (4, 8)], key=["n"])
@triton.jit
def dequantise(codes, exponents, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < n
    byte = tl.load(codes + at, here, other=0).to(tl.int32)
    scale = tl.exp2(tl.load(exponents + at // 16, here, other=127).to(tl.float32) - 127.0)

    low, high = byte & 15, byte >> 4
    # 0, .5, 1, 1.5, 2, 3, 4, 6: a bit of mantissa, two of exponent, the smallest of which is subnormal.
    low_exponent, high_exponent = (low >> 1) & 3, (high >> 1) & 3
    low_half, high_half = (low & 1).to(tl.float32) * 0.5, (high & 1).to(tl.float32) * 0.5
    low_value = tl.where(low_exponent == 0, low_half, (1.0 + low_half) * tl.exp2(low_exponent.to(tl.float32) - 1.0))
    high_value = tl.where(high_exponent == 0, high_half, (1.0 + high_half) * tl.exp2(high_exponent.to(tl.float32) - 1.0))
    low_value = tl.where((low & 8) != 0, -low_value, low_value) * scale
    high_value = tl.where((high & 8) != 0, -high_value, high_value) * scale
    pair = tl.interleave(low_value, high_value).to(tl.float16)
    both = tl.program_id(0) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    tl.store(out + both, pair, both < 2 * n)


def check():
    """The kernel means what E2M1 means."""
    codes = torch.arange(256, dtype=torch.uint8, device="cuda").repeat(4)
    exponents = torch.full((64,), 128, dtype=torch.uint8, device="cuda")
    out = torch.empty(2048, dtype=torch.float16, device="cuda")
    dequantise[lambda meta: (triton.cdiv(1024, meta["BLOCK"]),)](codes, exponents, out, 1024)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device="cuda")
    table = 2 * torch.cat([table, -table])
    expected = torch.stack([table[(codes & 15).long()], table[(codes >> 4).long()]], 1).flatten()
    assert torch.equal(out.float(), expected), "E2M1 is dequantised wrongly"


def microseconds(n, k, dequantises):
    copies = max(2, min(LAUNCHES, (256 << 20) // (n * k // 2)))
    codes = [torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda") for _ in range(copies)]
    exponents = torch.full((n, k // 32), 120, dtype=torch.uint8, device="cuda")
    outs = [torch.randn(n, k, dtype=torch.float16, device="cuda") for _ in range(copies)]
    x = torch.randn(k, dtype=torch.float16, device="cuda")

    def once():
        for launch in range(LAUNCHES):
            out = outs[launch % copies]
            if dequantises:
                grid = lambda meta: (triton.cdiv(n * k // 2, meta["BLOCK"]),)
                dequantise[grid](codes[launch % copies], exponents, out, n * k // 2)
            torch.mv(out, x)

    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    times = []
    for _ in range(REPETITIONS + 5):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / LAUNCHES)
    return statistics.median(times[5:])


def fused(hotmetal):
    """Microseconds of one row of x by op and shape, from `hotmetal bench kernels`."""
    command = [hotmetal, "bench", "kernels", "--shape", "llama-3.1-8b", "--format", "mxfp4", "--rows", "1"]
    found = subprocess.run([*command, "--device", "cuda", "-r", "20", "-o", "json"], capture_output=True, check=True, text=True)
    return {(row["op"], row["shape"]): row["time_us"]["median"] for row in json.loads(found.stdout)["rows"]}


def main():
    check()
    print(f"{torch.cuda.get_device_name(0)}, microseconds\n")
    print("| matrix | dequantise, multiply | of that multiply | fused | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    ours = fused(sys.argv[1])
    for name, (n, k) in MATRICES.items():
        both, alone = microseconds(n, k, True), microseconds(n, k, False)
        print(f"| {n} x {k} | {both:.1f} | {alone:.1f} | {ours[name]:.1f} | {both / ours[name]:.1f} |")


main()
