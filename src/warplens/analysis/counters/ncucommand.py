"""The `ncu` command of a run: which options and sections it may hold from which version on, and what it costs."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warplens.analysis.counters.metrics import measured
from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.profile.counters import KernelCounters

__all__ = ["OPTIONS", "Choice", "NextRun", "no_run", "run_for"]

Version = tuple[int, ...]

#: Every option that a command here can hold: the version from which it means what is meant here, and where that is
#: documented. All of them are in the manual and `--help` of 2024.1.1. `-k regex:` replaced an older option in 2021.1.0,
#: which still took a bare `-k` for it ("Release Notes", 2021.1 and 2021.1.1).
OPTIONS: Final[dict[str, tuple[Version, str]]] = {
    "--profile-from-start": ((2019, 1), "Nsight Compute CLI 2024.1, Table 3"),
    "--clock-control": ((2019, 1), "Release Notes, 2019.1"),
    "--nvtx": ((2019, 1), "Release Notes, 2019.1"),
    "--nvtx-include": ((2019, 1), "Release Notes, 2019.1"),
    "--section": ((2019, 1), "Nsight Compute CLI 2024.1, Table 3"),
    "--launch-skip": ((2019, 1), "Nsight Compute CLI 2024.1, Table 4"),
    "--launch-count": ((2019, 1), "Nsight Compute CLI 2024.1, Table 4"),
    "--export": ((2019, 1), "Nsight Compute CLI 2024.1, Table 7"),
    "--cache-control": ((2019, 5), "Release Notes, 2019.5"),
    "--replay-mode": ((2020, 2), "Release Notes, 2020.2"),
    "-k": ((2021, 1, 1), "Release Notes, 2021.1.1"),
}

_OLDEST: Final = max(version for version, _ in OPTIONS.values())

#: Stated where neither the user nor the report names a version: the one whose help was read.
_READ_VERSION: Final = "2024.1.1"

#: Passes that a section costs, where the report does not tell: an A10G took 9 for three sections, an H200 19 for six.
_PASSES_PER_SECTION: Final = 3.0

_PROGRAM: Final = ("python", "your_program.py")


@dataclass(frozen=True)
class NextRun:
    """What to collect next.

    Attributes:
        command: for a shell; None where nothing is missing that would be worth a run.
        reason: why this, one sentence.
        ncu_version: the version of Nsight Compute that it is valid for, as are all later ones up to 2024.1 at least.
        kernels: short names that it asks for.
        launches: how many it profiles.
        gap_share: of the window's kernel time, what has no counters, or what kernels not understood could gain.
        covered_share: of the window's kernel time, the part of the gap that it closes.
        passes: that it takes, by a model.
        passes_how: the model, one sentence.
    """

    command: str | None
    reason: str
    ncu_version: str
    kernels: tuple[str, ...] = ()
    launches: int | None = None
    gap_share: float | None = None
    covered_share: float | None = None
    passes: int | None = None
    passes_how: str | None = None


@dataclass(frozen=True)
class Choice:
    """Which launches to profile: the options that select them, how many, and what part of the gap they close."""

    names: tuple[str, ...]
    filters: tuple[str, ...]
    launches: int
    worth: float


def no_run(counters: KernelCounters, version: str | None, reason: str) -> NextRun:
    """No command, and why; for the version that the user or the report names.

    Raises:
        UsageError: the version cannot be read.
    """
    return NextRun(None, reason, _valid_version(version or counters.capture.tool_version or _READ_VERSION)[0])


def run_for(
    counters: KernelCounters,
    chosen: Choice,
    sections: tuple[str, ...],
    reason: str,
    gap_share: float,
    version: str | None,
    replay_mode: str,
) -> NextRun:
    """The command that profiles the chosen launches with these sections, collected as the report was.

    Raises:
        UsageError: the version cannot be read.
    """
    valid_for, remark = _valid_version(version or counters.capture.tool_version or _READ_VERSION)
    session = counters.session
    arguments = [
        *("-k", f"regex:^({'|'.join(re.escape(name) for name in chosen.names)})$"),
        *chosen.filters,
        *("--launch-count", str(chosen.launches)),
        *(part for section in sections for part in ("--section", section)),
        *("--replay-mode", replay_mode),
        *("--clock-control", session.clock_control or "base"),
        *("--cache-control", session.cache_control or "all"),
        *("--export", "next_run"),
    ]
    each, how = _passes_each(counters, len(sections))
    return NextRun(
        command=shlex.join(("ncu", *arguments, *_PROGRAM)),
        reason=reason + remark,
        ncu_version=valid_for,
        kernels=chosen.names,
        launches=chosen.launches,
        gap_share=gap_share,
        covered_share=chosen.worth,
        passes=each * chosen.launches,
        passes_how=how,
    )


def _valid_version(stated: str) -> tuple[str, str]:
    """The version that the command is for, and what to say if the stated one is too old for it."""
    numbers = re.match(r"\s*(\d{4})\.(\d+)(?:\.(\d+))?", stated)
    if numbers is None:
        raise UsageError(f"{stated!r} is no version of Nsight Compute; one is written like {_READ_VERSION}")
    version = tuple(int(number or 0) for number in numbers.groups())
    if version >= _OLDEST:
        return ".".join(map(str, version)), ""
    oldest = ".".join(map(str, _OLDEST))
    return oldest, f"; ncu {stated} is too old for it, use {oldest} or later"


def _passes_each(counters: KernelCounters, sections: int) -> tuple[int, str]:
    """Passes that a launch takes with so many sections, and how that was estimated."""
    passes, had = measured(counters, "profiler__replayer_passes").max(), len(counters.session.sections)
    if isinstance(passes, float) and had:
        each = max(1, round(sections * passes / had))
        return each, f"modelled: {each} a launch for {sections} sections, as this report took {passes:.0f} for {had}"
    each = max(1, round(sections * _PASSES_PER_SECTION))
    return each, f"modelled: {each} a launch, {_PASSES_PER_SECTION:.0f} for each of {sections} sections"
