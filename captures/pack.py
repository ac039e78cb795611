"""Makes the captures that the package ships from what `capture_all.sh` left: scrubbed and compressed.

    python captures/pack.py OUT

For each profile in `src/warplens/data/captures/INDEX.json` it takes the .sqlite of that name in OUT, leaves out what
identifies people and machines, and compresses it with xz, which makes these files a quarter smaller than Zstandard's
highest level does. The timings (CSV) are copied.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import tempfile
from pathlib import Path

from warplens.scrub import scrub

SHIPPED = Path(__file__).resolve().parents[1] / "src" / "warplens" / "data" / "captures"


def pack(export: Path, target: Path) -> None:
    """Writes the scrubbed, compressed copy of one export in place of an earlier one."""
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "scrubbed.sqlite"
        scrub(export, clean)
        target.write_bytes(lzma.compress(clean.read_bytes(), preset=9 | lzma.PRESET_EXTREME))


def main() -> None:
    """Packs every file of the index and prints their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder that capture_all.sh wrote")
    options = parser.parse_args()
    index = json.loads((SHIPPED / "INDEX.json").read_text(encoding="utf-8"))
    total = 0
    for name in [entry["file"] for entry in index["profiles"] + index["timings"]]:
        if name.endswith(".csv"):
            shutil.copyfile(options.out / name, SHIPPED / name)
        else:
            pack(options.out / name.removesuffix(".xz"), SHIPPED / name)
        size = (SHIPPED / name).stat().st_size
        total += size
        print(f"{size:9,}  {name}")
    print(f"{total:9,}  together")


if __name__ == "__main__":
    main()
