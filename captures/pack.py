"""Makes the captures that the package ships from what `capture_all.sh` left: scrubbed and compressed.

    python captures/pack.py OUT

For each profile in `src/warplens/data/captures/INDEX.json` it takes the .sqlite of that name in OUT, leaves out what
identifies people and machines, and compresses it with xz, which makes these files a quarter smaller than Zstandard's
highest level does. Names of kinds of calls and of events that say nothing of the program are left out, too. The timings
(CSV) are copied.
"""

from __future__ import annotations

import argparse
import json
import lzma
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from warplens.scrub import scrub

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = (ROOT / "src" / "warplens" / "data" / "captures", ROOT / "data" / "captures")

#: Names of the kinds of calls, the same in each export of a version; nothing reads them.
UNREAD = "ENUM_NSYS_EVENT_CLASS"
#: Names of kinds of events, 150 in each export, of which a capture has a few.
EVENT_TYPES, EVENTS = "ENUM_NSYS_EVENT_TYPE", "NVTX_EVENTS"

#: Literal context, literal position and position bits of LZMA: which packs an export best differs from one to the next.
BITS = ((3, 0, 2), (3, 0, 0), (4, 0, 0), (0, 0, 0), (0, 2, 2))


def smallest(content: bytes) -> bytes:
    """The content, compressed with the most effective settings."""
    preset = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}
    filters = [preset | {"lc": lc, "lp": lp, "pb": pb, "nice_len": nice} for lc, lp, pb in BITS for nice in (64, 273)]
    return min((lzma.compress(content, filters=[each]) for each in filters), key=len)


def pack(export: Path, target: Path) -> None:
    """Writes the scrubbed, compressed copy of one export, replacing an earlier one."""
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "scrubbed.sqlite"
        scrub(export, clean)
        with closing(sqlite3.connect(clean)) as database:
            database.execute(f"DROP TABLE IF EXISTS {UNREAD}")
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            used = f"WHERE id NOT IN (SELECT eventType FROM {EVENTS})" if EVENTS in tables else ""
            database.execute(f"DELETE FROM {EVENT_TYPES} {used}")
            database.commit()
            database.execute("VACUUM")
        target.write_bytes(smallest(clean.read_bytes()))


def main() -> None:
    """Packs every file of the index and prints their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder that capture_all.sh wrote")
    options = parser.parse_args()
    total = 0
    for folder in SHIPPED:
        index = json.loads((folder / "INDEX.json").read_text(encoding="utf-8"))
        for name in [entry["file"] for entry in index["profiles"] + index.get("timings", [])]:
            if name.endswith(".csv"):
                shutil.copyfile(options.out / name, folder / name)
            else:
                pack(options.out / name.removesuffix(".xz"), folder / name)
            size = (folder / name).stat().st_size
            total += size
            print(f"{size:9,}  {name}")
    print(f"{total:9,}  together")


if __name__ == "__main__":
    main()
