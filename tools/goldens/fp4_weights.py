"""FP4 in safetensors: numbers of E2M1 with a scale in F16 for each group, and what they stand for, by ml_dtypes.

    pip install ml_dtypes==0.6.0 safetensors numpy
    python tools/goldens/fp4_weights.py crates/formats/tests/golden/quantized

Writes folders as quantized_weights.py does; nobody has published a decoder of this layout, so the meaning is the formula below.
"""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

ROWS, COLS = 4, 512
NAME = "model.layers.0.mlp.up_proj"


def case(folder: Path, group: int, least: float) -> None:
    """All codes, with scales of both signs from `least` on."""
    rng = np.random.default_rng(group)
    codes = rng.integers(0, 16, (ROWS, COLS), dtype=np.uint8)
    sizes = np.exp2(rng.uniform(np.log2(least), 3, (ROWS, COLS // group)))
    scales = (sizes * rng.choice([-1, 1], sizes.shape)).astype(np.float16)
    scales[0, 0] = 0
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    expected = numbers * scales.astype(np.float32).repeat(group, 1)
    weights = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": group, "symmetric": True, "dynamic": False}
    config = {"quant_method": "compressed-tensors", "format": "fp4-pack-quantized", "quantization_status": "compressed",
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "none", "quantization_config": config}) + "\n")
    # The first of two in the lower half.
    tensors = {"weight_packed": codes[:, 0::2] | codes[:, 1::2] << 4, "weight_scale": scales}
    save_file({f"{NAME}.{end}": np.ascontiguousarray(tensor) for end, tensor in tensors.items()}, folder / "model.safetensors")
    save_file({f"{NAME}.weight": expected}, folder / "expected.safetensors")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for group in [32, 64, 128, 256]:
        case(folder / f"fp4_group_{group}", group, 2.0**-13)
    # Half of the smallest scales is not in F16.
    case(folder / "fp4_small_scales", 64, 2.0**-24)
