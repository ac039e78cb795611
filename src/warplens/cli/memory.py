"""How much memory a run may take, and what it says of a profile that needs more."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from warplens.cli import edge
from warplens.errors import UsageError
from warplens.report.text import data_size


class Peak(NamedTuple):
    """What a kind of answer takes at its peak: bytes for each event of the profile, besides `_FIXED_BYTES`."""

    work: int  #: a kernel, copy or fill
    searched: int  #: the same where calls or ranges were not recorded, so that steps are sought in the kernels
    ranges: int
    others: int  #: an API call, or another event

    def bytes_of(self, events: Mapping[str, int]) -> int:
        """Of a profile with so many rows in each table of the trace."""
        from warplens.profile.trace import WORK_TABLES

        work = self.work if events.get("ranges") and events.get("api_calls") else self.searched
        each = dict.fromkeys(WORK_TABLES, work) | {"ranges": self.ranges}
        return _FIXED_BYTES + sum(rows * each.get(table, self.others) for table, rows in events.items())


#: Of a table, and of a verdict or a report. Measured on exports of 0.1, 1 and 10 M kernels, that of 1 M also without
#: its calls, ranges or kernels (docs/explanation/speed.md). From 1 M events on they say 5 % less to 6 % more than was
#: taken.
TABLE: Final = Peak(work=230, searched=490, ranges=200, others=60)
REPORT: Final = Peak(work=440, searched=620, ranges=300, others=150)

#: Of Python, its libraries and our own modules.
_FIXED_BYTES: Final = 170_000_000

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """The bytes that a size such as `2GB`, `500MB` or `1.5GiB` names.

    Raises:
        UsageError: it names none.
    """
    found = _SIZE.fullmatch(text)
    if found is None or not float(found[1]):
        raise UsageError(f"{text!r} is not an amount of memory: write it as 2GB or 500MB")
    unit = found[2].upper()
    binary = 1024 ** "KMGT".find(unit) * 1024 if unit else 1
    return int(float(found[1]) * (binary if found[3] else _UNITS[unit]))


def limit_to(size: str) -> None:
    """Take the value of `--memory` for this run."""
    edge.State.memory = parse_size(size)


def limit_bytes() -> int | None:
    """What `--memory` allows, else half of what is free; None where the system does not tell."""
    if edge.State.memory is not None:
        return edge.State.memory
    free = _free_bytes()
    return None if free is None else free // 2


def _free_bytes() -> int | None:
    """Memory that this process could still get: of the machine, and of the container that it runs in."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    except (OSError, ValueError):
        if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
            found.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii")) for name in ("max", "current"))
        found.append(max(most - used, 0))
    except (OSError, ValueError):  # no such group, or one without a limit
        pass
    return min(found, default=None)


def needed_beyond_limit(profile: Path, peak: Peak) -> int | None:
    """The bytes that reading this profile whole may take, if that is more than is allowed; None if it is not.

    Only SQLite exports can tell; others are read as they are.
    """
    from warplens.readers import events_in

    limit = limit_bytes()
    events = None if limit is None or not profile.is_file() else events_in(profile)
    if events is None or limit is None:
        return None
    needed = peak.bytes_of(events)
    return needed if needed > limit else None


def share_that_fits(profile: Path, peak: Peak, *, steady: bool) -> float:
    """The share of a profile that can be read with the memory that is allowed, from its middle; 1 for all of it.

    Args:
        profile: the file.
        peak: what the answer takes.
        steady: whether steps are asked about, which a part of them answers for as well; else all of it is needed.

    Raises:
        UsageError: all of it is needed, or too little would fit; says how much it takes, and what can be done.
    """
    needed, limit = needed_beyond_limit(profile, peak), limit_bytes() or 0
    if needed is None:
        return 1.0
    share = _SAFE_SHARE * (limit - _FIXED_BYTES - _READING_BYTES) / (needed - _FIXED_BYTES)
    if steady and share >= _LEAST_SHARE:
        return share
    raise UsageError(
        f"{profile.name}: needs about {data_size(needed)} of memory, and {data_size(limit)} are "
        f"allowed (--memory; half of what is free unless given). {_ADVICE}"
    )


#: A part takes at most what is allowed: the share is that of GPU work, of which other events need not be as many.
_SAFE_SHARE: Final = 0.9
#: Rows that are read and left out again, some hundred thousand at a time.
_READING_BYTES: Final = 60_000_000
#: Less of a recording says too little about the rest.
_LEAST_SHARE: Final = 0.02

_ADVICE: Final = (
    "warplens kernels, copies and api answer in slices for --window all or START:END, and everything else for the "
    "steady steps in the middle of the recording, where these fit; else allow more, or record less"
)
