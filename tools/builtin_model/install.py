"""Copies what export.py wrote to where it is shipped and recorded, with its provenance.

    python install.py --from work
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHIPPED = HERE.parent.parent / "crates" / "cli" / "builtin"
SHIPPED_FILES = ["config.json", "generation_config.json", "golden.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
RECORDS = ["eval.json", "loss.csv", "loss_curve.svg", "run.json"]
LIMIT = 12_000_000  # bytes


def main() -> None:
    """Installs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    args = parser.parse_args()
    size = sum((args.source / name).stat().st_size for name in SHIPPED_FILES)
    if size > LIMIT:
        raise SystemExit(f"the model takes {size} bytes, and may take {LIMIT}")
    for names, target in ((SHIPPED_FILES, SHIPPED), (RECORDS, HERE)):
        for name in names:
            (target / name).unlink(missing_ok=True)
            (target / name).write_bytes((args.source / name).read_bytes())
    golden = json.loads((args.source / "golden.json").read_text())
    lines = [
        'checkpoint = "the built-in model, trained from nothing on text that tools/builtin_model writes"',
        f'tool = "{golden["made_by"]}"',
        'command = "see tools/builtin_model/README.md"',
        f'date = "{datetime.date.today().isoformat()}"',
        'license = "MIT OR Apache-2.0: generated and trained by this project"',
        "",
        "[sha256]",
    ]
    lines += [f'"{name}" = "{hashlib.sha256((SHIPPED / name).read_bytes()).hexdigest()}"' for name in SHIPPED_FILES]
    (SHIPPED / "source.toml").write_text("\n".join(lines) + "\n")
    print(f"{size} bytes installed")


if __name__ == "__main__":
    main()
