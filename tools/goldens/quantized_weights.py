"""Quantised weights in safetensors, and what the published decoders make of them.

    pip install torch compressed-tensors==0.20.0 transformers==5.23.0 safetensors ml_dtypes numpy
    python tools/goldens/quantized_weights.py crates/formats/tests/golden/quantized

Writes a folder a case: config.json and model.safetensors as a checkpoint has them, and expected.safetensors with the same
weights as f32. compressed-tensors decodes its own formats and transformers those of gpt-oss; GPTQ, AWQ, fp8 and ModelOpt are
decoded by the formulas of AutoGPTQ, AutoAWQ, transformers and ModelOpt, written out below, over codes that are random bits.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

ROWS, COLS = 32, 128
NAME = "model.layers.0.mlp.up_proj"
generator = torch.Generator().manual_seed(6)


def integers(low, high, shape, dtype=torch.int32):
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int64).to(dtype)


def scales(shape, dtype):
    return (torch.rand(shape, generator=generator) * 0.02 + 1e-3).to(dtype)


def words(shape):
    return integers(-(2**31), 2**31, shape)


def stream(packed, bits, count):
    """Codes along the last axis of words, from the lowest bit on."""
    packed = packed.numpy().astype(np.uint32)
    at = np.arange(count) * bits
    low = packed[..., at // 32] >> (at % 32).astype(np.uint32)
    next_word = packed[..., np.minimum(at // 32 + 1, packed.shape[-1] - 1)]
    spill = np.where(at % 32 + bits > 32, next_word << ((32 - at % 32) % 32).astype(np.uint32), 0)
    return torch.from_numpy(((low | spill) & ((1 << bits) - 1)).astype(np.int64))


def gptq(bits, group, v2=False, act_order=False, symmetric=False, scale_type=torch.float16):
    """AutoGPTQ: weight = scales[g_idx] * (code - ((stored + 1) & mask)); v2 stores zeros as they are."""
    groups = COLS // group
    qweight, qzeros = words((COLS * bits // 32, ROWS)), words((groups, ROWS * bits // 32))
    if symmetric:
        zero = (1 << (bits - 1)) - (0 if v2 else 1)
        codes = torch.full((ROWS, groups), zero - (1 << (bits - 1)), dtype=torch.int8)
        qzeros = pack_to_int32(codes, bits, packed_dim=0).T.contiguous()
    of = scales((groups, ROWS), scale_type)
    order = torch.arange(COLS, dtype=torch.int32) // group
    if act_order:
        order = order[torch.randperm(COLS, generator=generator)]
    codes = stream(qweight.T.contiguous(), bits, COLS)
    zeros = stream(qzeros, bits, ROWS)
    if not v2:
        zeros = (zeros + 1) & ((1 << bits) - 1)
    expected = of.float()[order.long()].T * (codes - zeros[order.long()].T).float()
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": act_order, "sym": symmetric,
              "checkpoint_format": "gptq_v2" if v2 else "gptq"}
    tensors = {"qweight": qweight, "qzeros": qzeros, "scales": of, "g_idx": order}
    return config, tensors, expected


def awq(group):
    """AutoAWQ: nibble i of a word is column [0, 2, 4, 6, 1, 3, 5, 7][i] of eight."""
    groups, order = COLS // group, torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    qweight, qzeros = words((COLS, ROWS // 8)), words((groups, ROWS // 8))
    of = scales((groups, ROWS), torch.float16)
    unpack = lambda packed: stream(packed.unsqueeze(-1), 4, 8)[..., order].reshape(packed.shape[0], ROWS)
    codes, zeros = unpack(qweight), unpack(qzeros)
    expected = ((codes - zeros.repeat_interleave(group, 0)).float() * of.float().repeat_interleave(group, 0)).T
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return config, {"qweight": qweight, "qzeros": qzeros, "scales": of}, expected


def compressed_config(args, kind):
    weights = json.loads(QuantizationArgs(**args).model_dump_json())
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {"quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed",
            "config_groups": {"group_0": group}, "ignore": ["lm_head"]}


def scale_shape(args, rows=ROWS, cols=COLS):
    return {
        "tensor": lambda: (1,),
        "channel": lambda: (rows, 1),
        "group": lambda: (rows, cols // args.group_size),
        "block": lambda: (-(-rows // args.block_structure[0]), -(-cols // args.block_structure[1])),
    }[str(args.strategy)]()


def packed(scale_type, rows=ROWS, cols=COLS, **kwargs):
    args = QuantizationArgs(type="int", **kwargs)
    limit = 1 << (args.num_bits - 1)
    codes = integers(-limit, limit, (rows, cols), torch.int8)
    of = scales(scale_shape(args, rows, cols), scale_type)
    tensors = {"weight_packed": pack_to_int32(codes, args.num_bits), "weight_scale": of,
               "weight_shape": torch.tensor([rows, cols])}
    if not args.symmetric:
        zeros = integers(-limit, limit, tuple(of.shape), torch.int8)
        tensors["weight_zero_point"] = pack_to_int32(zeros, args.num_bits, packed_dim=0).contiguous()
    # In f32, since products are rounded to the type of the scales.
    state = {**tensors, "weight_scale": of.float()}
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    expected = PackedQuantizationCompressor.decompress(state, scheme)["weight"]
    return compressed_config({"type": "int", **kwargs}, "pack-quantized"), tensors, expected


def plain(kind, scale_type, **kwargs):
    """Codes in a type of their own: int8 and E4M3."""
    args = QuantizationArgs(**kwargs)
    if args.type == "int":
        codes = integers(-128, 128, (ROWS, COLS), torch.int8)
    else:
        # Every code but the two NaN.
        bits = integers(0, 255, (ROWS, COLS), torch.uint8)
        codes = torch.where(bits == 127, 0, bits).to(torch.uint8).view(torch.float8_e4m3fn)
    of, zeros = scales(scale_shape(args), scale_type), None
    tensors = {"weight": codes, "weight_scale": of}
    if not args.symmetric:
        zeros = integers(-128, 128, tuple(of.shape), torch.int8)
        tensors["weight_zero_point"] = zeros
    expected = dequantize(codes, of.float(), None if zeros is None else zeros.float(), args=args, dtype=torch.float32)
    return compressed_config(kwargs, kind), tensors, expected


def fp8(block):
    """transformers: weight.to(f32) * scale_inv of its block."""
    bits = integers(0, 127, (ROWS, COLS), torch.uint8)
    codes = bits.view(torch.float8_e4m3fn)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
    if block is None:
        of = torch.tensor(0.0123)
        return config, {"weight": codes, "weight_scale": of, "input_scale": torch.tensor(1.0)}, codes.float() * of
    config["weight_block_size"] = list(block)
    of = scales((-(-ROWS // block[0]), -(-COLS // block[1])), torch.float32)
    full = of.repeat_interleave(block[0], 0)[:ROWS].repeat_interleave(block[1], 1)[:, :COLS]
    return config, {"weight": codes, "weight_scale_inv": of}, codes.float() * full


def e4m3_scales():
    return (torch.rand((ROWS, COLS // 16), generator=generator) * 400).to(torch.float8_e4m3fn)


def nvfp4():
    args = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
    tensors = {"weight_packed": integers(0, 256, (ROWS, COLS // 2), torch.uint8), "weight_scale": e4m3_scales(),
               "weight_global_scale": torch.tensor([5321.5]), "input_global_scale": torch.tensor([1.5])}
    # In f32: the compressor decodes to bf16, and rounds on the way.
    numbers = unpack_fp4_from_uint8(tensors["weight_packed"], ROWS, COLS, dtype=torch.float32)
    of, divisor = tensors["weight_scale"].float(), tensors["weight_global_scale"]
    expected = dequantize(numbers, of, args=QuantizationArgs(**args), dtype=torch.float32, global_scale=divisor)
    return compressed_config(args, "nvfp4-pack-quantized"), tensors, expected


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nvfp4_modelopt():
    """ModelOpt: weight = number * (weight_scale * weight_scale_2), the first of two numbers in the lower half."""
    codes, of, second = integers(0, 256, (ROWS, COLS // 2), torch.uint8), e4m3_scales(), torch.tensor(1.7e-4)
    numbers = E2M1[torch.stack([codes & 15, codes >> 4], -1).reshape(ROWS, COLS).long()]
    expected = numbers * (of.float() * second).repeat_interleave(16, 1)
    config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    tensors = {"weight": codes, "weight_scale": of, "weight_scale_2": second, "input_scale": torch.tensor(0.5)}
    return config, tensors, expected


def mxfp4():
    args = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "symmetric": True}
    exponents = integers(110, 130, (ROWS, COLS // 32), torch.uint8)
    tensors = {"weight_packed": integers(0, 256, (ROWS, COLS // 2), torch.uint8), "weight_scale": exponents}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**args))
    expected = MXFP4PackedCompressor.decompress(dict(tensors), scheme)["weight"].float()
    return compressed_config(args, "mxfp4-pack-quantized"), tensors, expected


def gpt_oss(exponents):
    experts, groups = 2, COLS // 32
    blocks = integers(0, 256, (experts, ROWS, groups, 16), torch.uint8)
    of = integers(*exponents, (experts, ROWS, groups), torch.uint8)
    # It is stored transposed, and transformers turns it.
    expected = convert_moe_packed_tensors(blocks, of, dtype=torch.float32).transpose(1, 2).contiguous()
    return {"quant_method": "mxfp4"}, {"_blocks": blocks, "_scales": of}, expected


f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
CASES = {
    "gptq_int4": lambda: gptq(4, 32),
    "gptq_int4_symmetric": lambda: gptq(4, 64, symmetric=True),
    "gptq_int4_v2": lambda: gptq(4, 128, v2=True),
    "gptq_int4_act_order": lambda: gptq(4, 32, act_order=True),
    "gptq_int4_f32_scales": lambda: gptq(4, 32, symmetric=True, scale_type=f32),
    "gptq_int2": lambda: gptq(2, 32),
    "gptq_int3_symmetric": lambda: gptq(3, 32, symmetric=True, v2=True),
    "gptq_int8_symmetric": lambda: gptq(8, 128, symmetric=True),
    "gptq_int8": lambda: gptq(8, 128),
    "awq_int4": lambda: awq(64),
    "packed_int4_group": lambda: packed(bf16, num_bits=4, strategy="group", group_size=32, symmetric=True),
    "packed_int4_zeros": lambda: packed(bf16, num_bits=4, strategy="group", group_size=64, symmetric=False),
    "packed_int4_channel": lambda: packed(f16, num_bits=4, strategy="channel", symmetric=True),
    "packed_int4_narrow": lambda: packed(f16, cols=60, num_bits=4, strategy="channel", symmetric=True),
    "packed_int4_group_16": lambda: packed(f16, num_bits=4, strategy="group", group_size=16, symmetric=True),
    "packed_int8_group": lambda: packed(bf16, num_bits=8, strategy="group", group_size=128, symmetric=True),
    "int8_channel": lambda: plain("int-quantized", bf16, num_bits=8, type="int", strategy="channel", symmetric=True),
    "int8_channel_zeros": lambda: plain("int-quantized", f16, num_bits=8, type="int", strategy="channel", symmetric=False),
    "fp8_tensor": lambda: plain("float-quantized", f32, num_bits=8, type="float", strategy="tensor", symmetric=True),
    "fp8_channel": lambda: plain("float-quantized", bf16, num_bits=8, type="float", strategy="channel", symmetric=True),
    "fp8_block": lambda: plain("float-quantized", bf16, num_bits=8, type="float", strategy="block",
                               block_structure=[16, 64], symmetric=True),
    "fp8_transformers_block": lambda: fp8((24, 48)),
    "fp8_transformers_tensor": lambda: fp8(None),
    "nvfp4": nvfp4,
    "nvfp4_modelopt": nvfp4_modelopt,
    "mxfp4": mxfp4,
    "mxfp4_gpt_oss": lambda: gpt_oss((104, 144)),
    "mxfp4_gpt_oss_wide": lambda: gpt_oss((40, 200)),
    # Last, so that the random bits of those above stay. Rows that do not fill the last word of zero points.
    "packed_int4_group_128": lambda: packed(f16, 37, 384, num_bits=4, strategy="group", group_size=128, symmetric=True),
    "packed_int4_group_128_zeros": lambda: packed(bf16, 37, 384, num_bits=4, strategy="group", group_size=128,
                                                  symmetric=False),
}


def main(folder: Path) -> None:
    for case, make in CASES.items():
        config, tensors, expected = make()
        path = folder / case
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps({"model_type": "none", "quantization_config": config}) + "\n")
        is_module = "_blocks" not in tensors
        name = lambda end: f"{NAME}.{end}" if is_module else f"{NAME}{end}"
        save_file({name(end): tensor.contiguous() for end, tensor in tensors.items()}, path / "model.safetensors")
        save_file({f"{NAME}.weight" if is_module else NAME: expected.contiguous()}, path / "expected.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
