"""Stores the present output as what is expected from now on, and says for each case what changes.

python -m tests.golden.update                     all cases
python -m tests.golden.update --only 'tables/*'   those whose id matches; may be repeated
python -m tests.golden.update --dry-run           only says what would change
python -m tests.golden.update --lines 200         shows more of each change
"""

from __future__ import annotations

import argparse
import sys
import time
from fnmatch import fnmatch

from tests.golden.cases import CASES
from tests.golden.running import run
from tests.golden.stored import differences, expected, store


def main() -> int:
    """1 if something changes."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.update", description="Store expected output anew.")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="ids of cases, as in 'tables/*'")
    parser.add_argument("--dry-run", action="store_true", help="store nothing")
    parser.add_argument("--quick", action="store_true", help="leave out the slow cases")
    parser.add_argument("--lines", type=int, default=12, metavar="N", help="lines shown of each change (12)")
    asked = parser.parse_args()
    chosen = [
        case
        for case in CASES
        if not (asked.quick and case.slow) and (not asked.only or any(fnmatch(case.id, p) for p in asked.only))
    ]
    outputs = {group: dict(expected(group)) for group in sorted({case.group for case in chosen})}
    changed = []
    began = time.process_time()
    for case in chosen:
        before, after = outputs[case.group].get(case.id), run(case)
        lines = ["is new"] if before is None else list(differences(before, after))
        if lines:
            changed.append(case.id)
            sys.stdout.write(f"{case.id}\n" + "".join(f"    {line}\n" for line in lines[: asked.lines]))
            if len(lines) > asked.lines:
                sys.stdout.write(f"    … {len(lines) - asked.lines} more lines\n")
            outputs[case.group][case.id] = after
    took = time.process_time() - began
    sys.stdout.write(f"{len(changed)} of {len(chosen)} cases changed ({took:.0f} s of processor time)\n")
    order = [case.id for case in CASES]
    for group, found in outputs.items():
        kept = {name: found[name] for name in order if name in found}
        if not asked.dry_run and kept != expected(group):
            sys.stdout.write(f"stored {group}: {len(kept)} cases, {store(group, kept) / 1000:.0f} kB\n")
    return int(bool(changed))


if __name__ == "__main__":
    sys.exit(main())
