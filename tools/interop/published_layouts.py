"""Checks that the published decoders read what `hotmetal quantize --to safetensors` writes as Hotmetal does.

    pip install torch compressed-tensors==0.20.0 transformers==5.23.0 numpy gguf==0.19.0
    pip download autoawq==0.2.9 --no-deps && tar xzf autoawq-0.2.9.tar.gz
    python tools/interop/published_layouts.py [--hotmetal target/release/hotmetal] [--autoawq autoawq-0.2.9] [--model DIR]
        [--layout NAME]

Writes a folder in each layout, has compressed-tensors (transformers for `fp8_block`, AutoAWQ for `awq`: of it one file is read,
and without it that layout is left out) decode every packed matrix in f32, and compares with what Hotmetal reads (`hotmetal quantize -F f32` of the folder, by gguf-py): equal in every bit where Hotmetal holds
the layout exactly, else, for FP8, which is F16 there, off by no more than rounding to it. Exit status 1 where one differs.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from gguf import GGUFReader
from gguf.quants import dequantize as gguf_weights
from safetensors import safe_open
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.utils.quantization_config import FineGrainedFP8Config

ROOT = Path(__file__).resolve().parents[2]
LAYOUTS = [
    "int4_g32", "int4_g64", "int4_g128", "int8_g32", "int8_g64", "int8_g128", "int8", "int4_g32_asym", "int4_g64_asym",
    "int4_g128_asym", "awq", "fp8", "fp8_block", "mxfp4", "nvfp4",
]
# Of names in GGUF files.
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def autoawq(folder: Path):
    """AutoAWQ's decoder. The package imports far more than the one file that it is in."""
    spec = importlib.util.spec_from_file_location("packing_utils", folder / "awq" / "utils" / "packing_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.dequantize_gemm


def decoded(layout: str, tensors: dict, scheme: QuantizationScheme | None, args: argparse.Namespace) -> torch.Tensor:
    """A weight as the published decoder has it, in f32: elsewhere it rounds to the type of the scales."""
    if layout == "awq":
        decode = autoawq(args.autoawq)
        return decode(tensors["qweight"], tensors["qzeros"], tensors["scales"].float(), 4, 128).T.contiguous()
    if layout == "fp8_block":
        decoder = Fp8Dequantize(None)
        return decoder._dequantize_one(tensors["weight"], tensors["weight_scale_inv"], torch.float32)
    if layout == "fp8":
        return dequantize(tensors["weight"], tensors["weight_scale"], args=scheme.weights, dtype=torch.float32)
    if layout == "mxfp4":
        return MXFP4PackedCompressor.decompress(dict(tensors), scheme)["weight"].float()
    if layout == "nvfp4":
        rows, width = tensors["weight_packed"].shape
        numbers = unpack_fp4_from_uint8(tensors["weight_packed"], rows, 2 * width, dtype=torch.float32)
        return dequantize(numbers, tensors["weight_scale"].float(), args=scheme.weights, dtype=torch.float32,
                          global_scale=tensors["weight_global_scale"])
    state = {**tensors, "weight_scale": tensors["weight_scale"].float()}
    return PackedQuantizationCompressor.decompress(state, scheme)["weight"]


def described(layout: str, config: dict) -> QuantizationScheme | None:
    """The scheme of compressed-tensors, where it is one. The published classes must accept what is written."""
    if layout == "fp8_block":
        read = FineGrainedFP8Config(**config)
        assert list(read.weight_block_size) == [128, 128] and read.modules_to_not_convert == ["lm_head"]
        return None
    if layout == "awq":
        expected = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
        assert config == {**expected, "modules_to_not_convert": ["lm_head"]}
        return None
    QuantizationConfig.model_validate(config)
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**config["config_groups"]["group_0"]["weights"]))


def check(args: argparse.Namespace, layout: str, folder: Path) -> str:
    """What is wrong, or nothing."""
    hotmetal, model = args.hotmetal, args.model
    made, exact = folder / layout, folder / "exact.gguf"
    quantize = [hotmetal, "quantize"]
    # Small shards, so that there are several.
    subprocess.run([*quantize, model, "-F", layout, "--to", "safetensors", "-o", made, "--max-shard-size", "2MB"],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*quantize, made, "-F", "f32", "-o", exact, "--force"], check=True, stdout=subprocess.DEVNULL)
    config = json.loads((made / "config.json").read_text())["quantization_config"]
    scheme = described(layout, config)
    index = json.loads((made / "model.safetensors.index.json").read_text())["weight_map"]
    files = {name: safe_open(made / name, "pt") for name in set(index.values())}
    modules: dict[str, dict] = {}
    for name, file in index.items():
        module, part = name.rsplit(".", 1)
        modules.setdefault(module, {})[part] = files[file].get_tensor(name)
    found = {tensor.name: tensor for tensor in GGUFReader(exact).tensors}
    checked = 0
    for module, tensors in modules.items():
        if not {"weight_scale", "weight_scale_inv", "scales"} & tensors.keys():
            continue
        expected = decoded(layout, tensors, scheme, args).numpy()
        _, _, number, kind = module.split(".", 3)
        tensor = found[f"blk.{number}.{NAMES[kind]}.weight"]
        ours = gguf_weights(tensor.data, tensor.tensor_type).reshape(expected.shape)
        same = np.array_equal(ours, expected)
        if layout in ["fp8", "fp8_block"]:
            same = bool(np.all(np.abs(ours - expected) <= np.abs(expected) * 2.0**-11 + 2.0**-25))
        if not same:
            return f"{layout}: {module} differs by up to {np.abs(ours - expected).max()}"
        checked += 1
    if checked == 0:
        return f"{layout}: nothing is packed"
    print(f"{layout}: {checked} matrices in {len(files)} files, read alike", flush=True)
    return ""


def main() -> None:
    """Checks every layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hotmetal", default=ROOT / "target" / "release" / "hotmetal")
    parser.add_argument("--layout", choices=LAYOUTS, action="append", help="these alone")
    parser.add_argument("--model", type=Path, default=ROOT / "crates" / "cli" / "builtin")
    parser.add_argument("--autoawq", type=Path, help="the unpacked source of AutoAWQ")
    args = parser.parse_args()
    layouts = args.layout or LAYOUTS
    if args.autoawq is None:
        layouts = [layout for layout in layouts if layout != "awq"]
        print("--autoawq is not given: awq is left out")
    with tempfile.TemporaryDirectory() as folder:
        wrong = [what for layout in layouts if (what := check(args, layout, Path(folder)))]
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
