"""What block formats stand for, by the published decoders: the `gguf` package, and `ml_dtypes` for FP8 and NVFP4.

    pip install gguf==0.19.0 ml_dtypes==0.6.0 numpy
    python tools/goldens/packed_formats.py crates/tensor/tests/golden

Writes FORMAT.bin: blocks of random bits (scales made finite), then the weights that they stand for, as f32. NVFP4.bin has the
blocks of this program, GGUF_NVFP4.bin those of GGUF. E4M3.bin has the number of each of the 256 codes, as f32. FORMAT_packed.bin:
weights as f32, then the blocks that the published packer makes of them.
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType, GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

# Where a block has its f16 numbers.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
}
BLOCKS = 6
# Whose published packers take plain scales.
PACKED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


def blocks_of(name: str, halves: list, rng) -> bytes:
    """Blocks with random codes, and their weights."""
    kind = GGMLQuantizationType[name]
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (BLOCKS, size), dtype=np.uint8)
    for at in halves:
        # Of usual sizes, of the smallest, and zero.
        scales = (rng.standard_normal(BLOCKS) * 0.01).astype(np.float16)
        scales[1], scales[2] = 0.0, np.float16(6e-8)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    if name == "MXFP4":
        blocks[:, 0] = [127, 0, 1, 100, 140, 118]
    return blocks.tobytes() + dequantize(blocks, kind).astype(np.float32).tobytes()


def packed(name: str, rng) -> bytes:
    """Weights of usual kinds and the extremes, and what becomes of them."""
    weights = (rng.standard_normal((16, 32)) * 0.02).astype(np.float32)
    weights[1], weights[2], weights[3] = 0.0, 0.01, -0.01
    # One far from the others; halves between two codes; only positive; of every size.
    weights[4, 7], weights[5] = 3.0, np.arange(32) / 64 - 0.25
    weights[6], weights[7] = np.abs(weights[6]), weights[7] * 2.0 ** -np.arange(32)
    blocks = quantize(weights, GGMLQuantizationType[name])
    return weights.tobytes() + np.ascontiguousarray(blocks).tobytes()


def fp8(rng) -> bytes:
    """Every code but the two that are no numbers, times a scale of 2^-8."""
    codes = rng.permutation(256).astype(np.uint8).reshape(8, 32)
    codes[codes & 0x7F == 0x7F] = 0
    scales = (rng.standard_normal(8) * 0.5).astype(np.float16)
    # The smallest, the largest, and zero.
    scales[1], scales[2], scales[3] = 0.0, np.float16(6e-8), np.float16(65504)
    blocks = np.concatenate([scales.view(np.uint8).reshape(8, 2), codes], axis=1)
    numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    weights = (scales.astype(np.float64)[:, None] * numbers / 256).astype(np.float32)
    return blocks.tobytes() + weights.tobytes()


def nvfp4(rng) -> bytes:
    """Every code with scales of every size: as ModelOpt has it, each product rounded to f32."""
    codes = rng.integers(0, 16, (8, 64), dtype=np.uint8)
    codes[0] = np.arange(64) % 16
    scales = rng.integers(0, 127, (8, 4), dtype=np.uint8)
    scale = (rng.standard_normal(8) * 1e-3).astype(np.float32)
    scale[1], scale[2], scale[3] = 0.0, np.float32(1e-30), np.float32(40)
    # Of each 32 codes those of weights j and j + 16 share a byte.
    low, high = codes.reshape(8, 2, 2, 16).transpose(2, 0, 1, 3)
    packed = (low | high << 4).reshape(8, 32)
    blocks = np.concatenate([scale.view(np.uint8).reshape(8, 4), scales, packed], axis=1)
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32).reshape(8, 4, 16)
    groups = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale[:, None]
    return blocks.tobytes() + (numbers * groups[:, :, None]).astype(np.float32).tobytes()


def gguf_nvfp4(rng) -> bytes:
    """Scales of every size, with a first bit that means nothing, and the one that is no number."""
    kind = GGMLQuantizationType.NVFP4
    blocks = rng.integers(0, 256, (BLOCKS, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    scales = rng.permutation(255).astype(np.uint8)[: 4 * BLOCKS].reshape(BLOCKS, 4)
    scales[0] = [0, 0x7F, 0x7E, 1]
    blocks[:, :4] = scales
    return blocks.tobytes() + dequantize(blocks, kind).astype(np.float32).tobytes()


def main(folder: Path) -> None:
    rng = np.random.default_rng(4)
    folder.mkdir(parents=True, exist_ok=True)
    for name, halves in HALVES.items():
        (folder / f"{name}.bin").write_bytes(blocks_of(name, halves, rng))
    (folder / "FP8.bin").write_bytes(fp8(rng))
    (folder / "NVFP4.bin").write_bytes(nvfp4(rng))
    (folder / "GGUF_NVFP4.bin").write_bytes(gguf_nvfp4(rng))
    numbers = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    (folder / "E4M3.bin").write_bytes(numbers.tobytes())
    # Made later than the others, whose numbers stay what they were.
    rng = np.random.default_rng(5)
    (folder / "Q8_0.bin").write_bytes(blocks_of("Q8_0", [0], rng))
    for name in PACKED:
        (folder / f"{name}_packed.bin").write_bytes(packed(name, rng))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
