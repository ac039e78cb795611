"""Makes the reports that come with Warplens from what was captured: without identities, and compressed.

    python captures/pack_counters.py OUT            of capture_counters.sh: into src/warplens/data/counters
    python captures/pack_counters.py --modes OUT    of capture_counter_modes.sh: into tests/readers/data/counter_modes

A report holds the machine's and the program's names, command line and environment, and the machine code of each kernel;
`warplens.scrub` leaves them out and compares the copy with its original. ncu's own CSV of a report is the reference for
a reader and stays as ncu wrote it, if it names nobody. What cannot be shipped stops the packing.
"""

from __future__ import annotations

import argparse
import lzma
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from warplens.scrub import scrub
from warplens.secrets import FORBIDDEN

ROOT: Final = Path(__file__).resolve().parents[1]
SHIPPED: Final = ROOT / "src" / "warplens" / "data" / "counters"
FOR_TESTS: Final = ROOT / "tests" / "readers" / "data" / "counter_modes"
NAME: Final = "planted_h200.ncu-rep"
MODES: Final = "counter_modes.tar.xz"


def main() -> None:
    """Packs the reports and prints their sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", action="store_true", help="pack what capture_counter_modes.sh wrote")
    parser.add_argument("out", type=Path, help="folder that the capture script wrote")
    options = parser.parse_args()
    if not options.modes:
        _pack_report(options.out / NAME, SHIPPED)
        return
    FOR_TESTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(options.out / MODES) as archive:
        archive.extractall(folder, filter="data")
        for file in sorted(Path(folder).rglob("*")):
            if file.name.endswith(".ncu-rep"):
                _pack_report(file, FOR_TESTS)
            elif file.name.endswith(".raw.csv"):
                _pack_reference(file, FOR_TESTS)


def _pack_report(report: Path, folder: Path) -> None:
    target = folder / f"{report.name}.xz"
    target.unlink(missing_ok=True)
    scrub(report, target)
    print(f"{target.stat().st_size:9,}  {target.name} ({report.stat().st_size:,} captured)")


def _pack_reference(csv: Path, folder: Path) -> None:
    content = csv.read_bytes()
    if forbidden := FORBIDDEN.search(content):
        raise SystemExit(f"{csv.name} cannot be shipped: {forbidden.group()!r}")
    target = folder / f"{csv.name}.xz"
    target.write_bytes(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    print(f"{target.stat().st_size:9,}  {target.name} ({len(content):,} captured)")


if __name__ == "__main__":
    main()
