"""The memory limit of a run (`--memory`), and the share of a large profile that fits in it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from warplens.cli.process import State
from warplens.errors import UsageError
from warplens.report.text import data_size


class Peak(NamedTuple):
    """Peak memory of a kind of answer, in bytes per event of the profile, besides `_FIXED_BYTES`."""

    work: int  #: per kernel, copy or fill
    searched: int  #: the same if calls or ranges were not recorded, so that steps are searched in the kernels
    ranges: int
    others: int  #: per API call or other event
    texts: int  #: per distinct name, besides its characters
    printed: int = 0  #: per character of the names that are printed, those of `report.write.MOST_ROWS` names at most

    def bytes_of(self, events: Mapping[str, int]) -> int:
        """Peak memory in bytes for a profile with this number of rows in each table of the trace."""
        from warplens.profile.trace import TEXT_BYTES, TEXTS, WORK_TABLES
        from warplens.report.write import MOST_ROWS

        work = self.work if events.get("ranges") and events.get("api_calls") else self.searched
        bytes_per_row = dict.fromkeys(WORK_TABLES, work) | {
            "ranges": self.ranges,
            TEXTS: self.texts,
            TEXT_BYTES: _BYTES_PER_CHARACTER + self.printed * min(1, MOST_ROWS / max(events.get(TEXTS, 0), 1)),
        }
        return _FIXED_BYTES + round(sum(rows * bytes_per_row.get(table, self.others) for table, rows in events.items()))


#: Peaks of a table, and of a diagnosis or a report. Measured on exports of 0.1, 1 and 10 M kernels; for 1 M also
#: without calls, ranges or kernels (docs/explanation/speed.md). From 1 M events on, the model is between 5 % below and
#: 6 % above the measured peak.
TABLE: Final = Peak(work=230, searched=490, ranges=200, others=60, texts=160)
REPORT: Final = Peak(work=440, searched=620, ranges=300, others=150, texts=620, printed=77)
#: Peaks of a side of a comparison, and of the summary of a rank; measured with 1 M kernels.
COMPARED: Final = Peak(work=360, searched=620, ranges=300, others=110, texts=160)
RANK: Final = Peak(work=260, searched=520, ranges=220, others=70, texts=160)

#: Memory for each character of a distinct name, which several libraries hold. Measured with 500,000 names of 30
#: characters and 800 of 33,000.
_BYTES_PER_CHARACTER: Final = 13

#: Memory of Python, its libraries and Warplens' own modules.
_FIXED_BYTES: Final = 170_000_000

_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """A size such as `2GB`, `500MB` or `1.5GiB` in bytes.

    Raises:
        UsageError: it is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None or not float(match[1]):
        raise UsageError(f"{text!r} is not an amount of memory: write it as 2GB or 500MB")
    unit = match[2].upper()
    binary = 1024 ** "KMGT".find(unit) * 1024 if unit else 1
    return int(float(match[1]) * (binary if match[3] else _UNITS[unit]))


def limit_to(size: str) -> None:
    """Set the value of `--memory` for this run."""
    State.memory = parse_size(size)


def limit_bytes() -> int | None:
    """The memory limit in bytes: `--memory`, or half of the free memory; None if that is not known."""
    if State.memory is not None:
        return State.memory
    free = _free_bytes()
    return None if free is None else free // 2


def _free_bytes() -> int | None:
    """Available memory of the machine, or of the container if that is less."""
    available = []
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        available += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    except (OSError, ValueError):
        if hasattr(os, "sysconf") and "SC_AVPHYS_PAGES" in os.sysconf_names:
            available.append(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        maximum, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii")) for name in ("max", "current"))
        available.append(max(maximum - used, 0))
    except (OSError, ValueError):  # no such control group, or one without a limit
        pass
    return min(available, default=None)


def needed_beyond_limit(profile: Path, peak: Peak) -> int | None:
    """The bytes needed for the whole profile if they exceed the limit, else None.

    Folders of tables are read without a check, as are reports that only an installed nsys can read.
    """
    from warplens.readers import events_in

    limit = limit_bytes()
    events = None if limit is None or not profile.is_file() else events_in(profile, limit)
    if events is None or limit is None:
        return None
    needed = peak.bytes_of(events)
    return needed if needed > limit else None


def share_that_fits(profile: Path, peak: Peak, *, steady: bool) -> float:
    """The share of a profile, around its middle, that fits in the memory limit; 1 for all of it.

    Args:
        profile: the file.
        peak: memory model of the answer.
        steady: whether the answer is about steady steps, for which a part of the profile suffices.

    Raises:
        UsageError: the whole profile is needed, or too little of it would fit.
    """
    needed, limit = needed_beyond_limit(profile, peak), limit_bytes() or 0
    if needed is None:
        return 1.0
    share = _SAFE_SHARE * (limit - _FIXED_BYTES - _READING_BYTES) / (needed - _FIXED_BYTES)
    if steady and share >= _LEAST_SHARE:
        return share
    raise _refusal(profile.name, needed, limit, _ADVICE)


def check_work_alone(profile: Path) -> None:
    """Check that GPU work and API calls fit, for a profile from which they can be read alone.

    Raises:
        UsageError: they do not.
    """
    from warplens.profile.trace import WORK_TABLES
    from warplens.readers import events_in

    limit = limit_bytes() or 0
    events = events_in(profile, limit) or {}
    needed = _FIXED_BYTES + _READING_BYTES + _ALONE * sum(events.get(name, 0) for name in (*WORK_TABLES, "api_calls"))
    needed = min(needed, TABLE.bytes_of(events))
    if needed > limit:
        advice = "Ask about the steady steps (--window steady), allow more, or record less"
        raise _refusal(profile.name, needed, limit, advice)


def check_together(profiles: Sequence[Path]) -> None:
    """Check that the profiles of a comparison fit, all of which are in memory at a time.

    Raises:
        UsageError: they do not.
    """
    peaks = _peaks_of(profiles, COMPARED, at_a_time=len(profiles))
    needed, limit = sum(peaks.values()) - (len(peaks) - 1) * _FIXED_BYTES, limit_bytes() or 0
    if peaks and needed > limit:
        name = " and ".join(profile.name for profile in profiles[:2]) + (", …" if len(profiles) > 2 else "")
        raise _refusal(name + " together" * (len(profiles) > 1), needed, limit, "Allow more, or record fewer steps")


def workers_that_fit(profiles: Sequence[Path], workers: int | None, peak: Peak) -> int:
    """How many processes may read these profiles at a time: at most `workers`, or one per core.

    Raises:
        UsageError: one profile alone does not fit.
    """
    from warplens.ranks import default_workers

    workers = max(min(workers or default_workers(), len(profiles)), 1)
    peaks, limit = _peaks_of(profiles, peak, at_a_time=workers), limit_bytes() or 0
    largest = sorted(peaks, key=lambda profile: peaks[profile], reverse=True)
    if largest and peaks[largest[0]] > limit:
        raise _refusal(largest[0].name, peaks[largest[0]], limit, "Allow more, or record fewer steps")
    return next(n for n in range(workers, 0, -1) if n == 1 or sum(peaks[file] for file in largest[:n]) <= limit)


def _peaks_of(profiles: Sequence[Path], peak: Peak, at_a_time: int) -> dict[Path, int]:
    """Peak memory of the profiles of which it is known; none if each needs no more than an equal share of the limit."""
    from warplens.readers import events_in

    share = (limit_bytes() or sys.maxsize) // max(at_a_time, 1)
    events = {profile: events_in(profile, share) for profile in profiles if profile.is_file()}
    if any(events.values()):
        events = {profile: rows or events_in(profile, 0) for profile, rows in events.items()}
    return {profile: peak.bytes_of(rows) for profile, rows in events.items() if rows}


def _refusal(name: str, needed: int, limit: int, advice: str) -> UsageError:
    return UsageError(
        f"{name}: needs about {data_size(needed)} of memory, and {data_size(limit)} are "
        f"allowed (--memory; half of what is free unless given). {advice}"
    )


#: Bytes for a kernel, copy, fill or API call of a trace that is read without its other events, with the names of both:
#: with 4 and 16 M events, 1.7 times this (a row of a trace counts as so many rows) was up to 5 % above the peak.
_ALONE: Final = 130


#: Safety margin: the share counts GPU work, and the part may have a larger share of the other events.
_SAFE_SHARE: Final = 0.9
#: Memory for rows that are read and discarded, some hundred thousand at a time, or for pieces of a text.
_READING_BYTES: Final = 120_000_000
#: A smaller share of a recording is not representative.
_LEAST_SHARE: Final = 0.02

_ADVICE: Final = (
    "warplens kernels, copies and api answer in slices for --window all or START:END, and everything else for the "
    "steady steps in the middle of the recording, where these fit; else allow more, or record less"
)
