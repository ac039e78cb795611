"""Packs the measured tables of `data/roofs` for the package: `python -m benchmarks.roofs.pack`.

The package needs the rates alone, and none of copies and launches. Their spread and the names of kernels stay
behind; of the names, the package keeps whether they are those of an older generation of tensor cores.
"""

from __future__ import annotations

import json
import lzma
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "data" / "roofs"
TARGET = ROOT / "src" / "warplens" / "data" / "roofs.json.xz"

#: What the package leaves out.
_LEFT_OUT = ("peak_share", "low", "high", "kernels")
_OLDER = re.compile(r"cutlass_7\d_|s1688|s884")


def packed(table: dict[str, Any]) -> dict[str, Any]:
    """The table as the package has it."""
    used = [entry for entry in table["entries"] if entry["kind"] not in ("launch", "transfer")]
    entries = [{key: value for key, value in entry.items() if key not in _LEFT_OUT} for entry in used]
    for entry, whole in zip(entries, used, strict=True):
        if _OLDER.search(" ".join(whole.get("kernels", ()))):
            entry["legacy"] = True
    return {**{key: table[key] for key in ("schema", "gpu", "date", "torch")}, "entries": entries}


if __name__ == "__main__":
    tables = [packed(json.loads(lzma.decompress(path.read_bytes()))) for path in sorted(SOURCE.glob("*.json.xz"))]
    text = json.dumps(tables, separators=(",", ":")).replace("},{", "},\n{")
    TARGET.write_bytes(lzma.compress(text.encode(), check=lzma.CHECK_CRC32, preset=9 | lzma.PRESET_EXTREME))
