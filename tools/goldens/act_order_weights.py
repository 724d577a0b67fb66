"""Groups of 128 of INT4 in safetensors, act-order among them, by the packages that define their layouts.

    pip install torch transformers==5.23.0 safetensors numpy
    pip install --no-deps compressed-tensors==0.12.2
    pip download --no-deps auto-gptq==0.7.1 && unzip auto_gptq-0.7.1-*.whl -d auto_gptq-0.7.1
    pip download --no-deps autoawq==0.2.9 && tar xzf autoawq-0.2.9.tar.gz
    python tools/goldens/act_order_weights.py crates/formats/tests/golden/quantized auto_gptq-0.7.1 autoawq-0.2.9

Writes folders as quantized_weights.py does. It is a script of its own because of the versions: compressed-tensors decodes
`weight_g_idx` up to 0.12, and no more in 0.20. Of AutoGPTQ and AutoAWQ one file is loaded: the packages import far more.

What is expected is made by their code alone: compressed-tensors and AutoAWQ have a function for it, and AutoGPTQ's module
multiplies the identity, in f32, which adds nothing but zeros. Its zero points are stored less one, and those of 16 are left
out: AutoGPTQ's own modules disagree on what 15 in the file is.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors.quantized_compressors.pack_quantized import (
    PackedQuantizationCompressor, pack_to_int32, unpack_from_int32,
)
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

# Three groups, and rows that do not fill the last word of zero points where a layout permits it.
GROUP, COLS = 128, 384
NAME = "model.layers.0.mlp.up_proj"
generator = torch.Generator().manual_seed(128)


def integers(low, high, shape, dtype=torch.int32):
    return torch.randint(low, high, shape, generator=generator, dtype=torch.int64).to(dtype)


def scales(shape):
    return (torch.rand(shape, generator=generator) * 0.02 + 1e-3).to(torch.float16)


def order():
    """The group of each feature: as many of each as there are in one, anywhere."""
    return (torch.arange(COLS, dtype=torch.int32) // GROUP)[torch.randperm(COLS, generator=generator)]


def module_of(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packed(symmetric):
    rows, given = 37, {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": symmetric,
                       "actorder": "group"}
    args = QuantizationArgs(**given)
    tensors = {"weight_packed": pack_to_int32(integers(-8, 8, (rows, COLS), torch.int8), 4),
               "weight_scale": scales((rows, COLS // GROUP)), "weight_g_idx": order(),
               "weight_shape": torch.tensor([rows, COLS])}
    # In f32, since products are rounded to the type of the scales.
    of = tensors["weight_scale"].float()
    if symmetric:
        # It asks for nothing of the configuration.
        decoder = PackedQuantizationCompressor.__new__(PackedQuantizationCompressor)
        expected = decoder.decompress_weight({**tensors, "weight_scale": of}, args)
    else:
        zeros = integers(-8, 8, tuple(of.shape), torch.int8)
        tensors["weight_zero_point"] = pack_to_int32(zeros, 4, packed_dim=0).contiguous()
        # This version refuses zero points that are packed, in the function that unpacks them; the steps are its own.
        codes = unpack_from_int32(tensors["weight_packed"], 4, torch.Size([rows, COLS]))
        expected = dequantize(codes, of, zeros.float(), g_idx=tensors["weight_g_idx"])
    weights = json.loads(args.model_dump_json())
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
              "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    return config, tensors, expected


def gptq(autogptq: Path):
    rows = 64
    module = module_of(autogptq / "auto_gptq" / "nn_modules" / "qlinear" / "qlinear_cuda.py")
    linear = module.QuantLinear(4, GROUP, COLS, rows, bias=False)
    # Codes of zero points are of -8..8, plus 8.
    zeros = pack_to_int32(integers(-8, 7, (COLS // GROUP, rows), torch.int8), 4)
    tensors = {"qweight": integers(-(2**31), 2**31, (COLS // 8, rows)), "qzeros": zeros,
               "scales": scales((COLS // GROUP, rows)), "g_idx": order()}
    linear.load_state_dict(tensors)
    # Products are rounded to the type of the scales.
    linear.scales = linear.scales.float()
    expected = linear(torch.eye(COLS)).T
    config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": False}
    return config, tensors, expected


def awq(autoawq: Path):
    rows = 40
    module = module_of(autoawq / "awq" / "utils" / "packing_utils.py")
    words = lambda count: integers(-(2**31), 2**31, (count, rows // 8))
    tensors = {"qweight": words(COLS), "qzeros": words(COLS // GROUP), "scales": scales((COLS // GROUP, rows))}
    expected = module.dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"].float(), 4, GROUP).T
    config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    return config, tensors, expected


def main(folder: Path, autogptq: Path, autoawq: Path) -> None:
    cases = {
        "packed_int4_act_order": packed(symmetric=True),
        "packed_int4_act_order_zeros": packed(symmetric=False),
        "gptq_int4_group_128_act_order": gptq(autogptq),
        "awq_int4_group_128": awq(autoawq),
    }
    for case, (config, tensors, expected) in cases.items():
        path = folder / case
        path.mkdir(parents=True, exist_ok=True)
        (path / "config.json").write_text(json.dumps({"model_type": "none", "quantization_config": config}) + "\n")
        save_file({f"{NAME}.{end}": tensor.contiguous() for end, tensor in tensors.items()}, path / "model.safetensors")
        assert expected.dtype == torch.float32
        save_file({f"{NAME}.weight": expected.contiguous()}, path / "expected.safetensors")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
