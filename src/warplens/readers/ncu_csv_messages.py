"""What Nsight Compute says around its table (`==ERROR==`, `==WARNING==`, `==PROF==`), told by class and never quoted.

The lines hold paths, command lines and names of processes. Of them only what class of trouble they report leaves this
module, with what to do about it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from warplens.errors import UnreadableInputError
from warplens.profile import Note, NoteLevel

__all__ = ["Messages"]

_LINE = re.compile(r"\s*==(ERROR|WARNING|PROF|LOG)== ?(.*)", re.DOTALL)

#: A message tells its class in its first words; lists of metrics may follow.
_TOLD_BY = 500

_AGAIN = "Run it again, or give the .ncu-rep file"


@dataclass(frozen=True)
class _Class:
    """A class of messages: code of its note, how it is told, what is found, what to do."""

    code: str
    pattern: re.Pattern[str]
    found: str
    remedy: str


def _class(code: str, pattern: str, found: str, remedy: str) -> _Class:
    return _Class(code, re.compile(pattern, re.IGNORECASE), found, remedy)


#: The classes of errors, the more telling ones first: of several lines about one failure the first class is reported.
_ERRORS = (
    _class(
        "no-counter-permission",
        r"ERR_NVGPUCTRPERM|permission to (access|profile)",
        "the user may not read the GPU's performance counters (ERR_NVGPUCTRPERM)",
        "Run ncu as root, start the container with --cap-add=SYS_ADMIN, or have the machine's administrator set the "
        "NVIDIA driver option NVreg_RestrictProfilingToAdminUsers=0",
    ),
    _class(
        "driver-resource",
        r"driver resource|DCGM|resource (was |is )?unavailable",
        "another tool was using the GPU's performance counters",
        "Pause it while profiling (DCGM: dcgmi profile --pause), or end other profilers",
    ),
    _class(
        "no-such-section",
        r"did not match any (section|set|metric|rule)|list-(sections|sets|rules)",
        "an option named a section, set or rule that this ncu does not have",
        "List them with ncu --list-sections; a pattern needs the prefix regex:, as in --section 'regex:SpeedOfLight.*'",
    ),
    _class(
        "no-such-metric",
        r"(failed to find|could not find|unable to find|invalid|unknown) metrics?\b|metrics? .*not (found|available)",
        "an option named a metric that this GPU does not have",
        "List them with ncu --query-metrics --query-metrics-mode suffix --metrics NAME",
    ),
    _class(
        "bad-option",
        r"unrecogni[sz]ed option|option '.*' (is|cannot|requires)|the argument .* is invalid|ambiguous",
        "ncu did not accept its options",
        "Compare them with ncu --help",
    ),
    _class(
        "unsupported-gpu",
        r"(device|gpu|profiling|driver).{0,40}not (supported|compatible)|unsupported (gpu|device)"
        r"|failed to load .*modules",
        "this ncu does not support the GPU or its driver",
        "Use the newest Nsight Compute",
    ),
    _class(
        "lock-file",
        r"lock ?file|InterprocessLock",
        "ncu could not open the lock file that keeps two of it apart",
        "Remove the lock file of another user, or set TMPDIR to a folder of your own",
    ),
    _class(
        "clock-control",
        r"lock .*clock",
        "ncu could not lock the GPU's clocks",
        "Add --clock-control none",
    ),
    _class(
        "out-of-memory",
        r"out of memory|OutOfMemory",
        "memory ran out",
        "Profile fewer kernels, or use --replay-mode application",
    ),
    _class(
        "no-such-program",
        r"(does not exist|no such file|not found|could not (be )?(found|launch)|failed to (launch|start))",
        "the program could not be started",
        "Check the command after ncu's options; a script needs its interpreter: ncu … python script.py",
    ),
    _class("output-exists", r"already exists|force-overwrite", "the output file existed", "Add --force-overwrite"),
    _class(
        "program-failed",
        r"returned an error code|application .*(crash|error|terminated)|LaunchFailed|launch failed|terminated before",
        "the profiled program failed",
        "Make it run without ncu first",
    ),
    _class(
        "profiling-failed",
        r"failed to (profile|prepare)|unknown error on device|error was reported by the driver",
        "ncu failed to profile a kernel",
        "Use the newest Nsight Compute, and profile fewer metrics at once",
    ),
)

_NO_KERNELS = _class(
    "no-launches",
    r"no kernels were profiled",
    "the run profiled no kernel",
    "Check the filters (-k, --launch-skip, --nvtx-include), and add --target-processes all where a child process "
    "launches the kernels",
)

_WARNINGS = (
    _NO_KERNELS,
    _class(
        "unsupported-gpu",
        r"failed to detect compute capability|not (fully )?supported|outdated",
        "The ncu that wrote this did not know the GPU: values may be wrong, and units missing",
        "Export or record again with the newest Nsight Compute",
    ),
    _class(
        "metrics-unavailable",
        r"unable to access the following|metrics? .*(not (available|found)|unavailable)",
        "Some metrics could not be collected on this GPU",
        "They are missing here; others of the same section may still answer",
    ),
    _class(
        "clocks-not-locked",
        r"clock",
        "ncu could not lock the clocks, so that times and rates vary with the clock",
        "Compare cycles rather than times",
    ),
    _class(
        "memory-saved",
        r"back(ing|ed) up device memory|replay might be slow",
        "Memory was saved and restored between passes, which slows the recording down, not the measured kernels",
        "--replay-mode application avoids it",
    ),
)


class Messages:
    """Takes in ncu's own lines and says what they mean for the reader of the table.

    Attributes:
        failed: whether there is an error among them.
        seen: whether there is any.
    """

    def __init__(self) -> None:
        self._errors: Counter[_Class | None] = Counter()
        self._warnings: Counter[_Class | None] = Counter()
        self.seen = False

    @property
    def failed(self) -> bool:
        """Whether ncu reported an error."""
        return bool(self._errors)

    def take(self, line: str) -> bool:
        """Takes in a line if it is one of ncu's own; says whether it was."""
        found = _LINE.match(line)
        if not found:
            return False
        self.seen = True
        level, text = found[1], found[2][:_TOLD_BY]
        if level == "ERROR":
            self._errors[_first(_ERRORS, text)] += 1
        elif level == "WARNING" or _NO_KERNELS.pattern.search(text):
            self._warnings[_first(_WARNINGS, text)] += 1
        return True

    def error(self, known_as: Path) -> UnreadableInputError | None:
        """The error for a file that holds such lines and no table; None where there are no such lines either."""
        if not self.seen:
            return None
        if self.failed:
            kind = self._first_error()
            why = kind.found if kind else "for a reason that this version does not know"
            remedy = (
                kind.remedy if kind else "Read the ==ERROR== lines in the file, mend what they name and run it again"
            )
            joint = ": " if kind else " "
            return UnreadableInputError(known_as, f"a failed run of ncu{joint}{why}; nothing was measured", remedy)
        if _NO_KERNELS in self._warnings:
            return UnreadableInputError(known_as, _NO_KERNELS.found, _NO_KERNELS.remedy)
        found = "it holds only messages of ncu (==PROF==), no table"
        return UnreadableInputError(known_as, found, _AGAIN)

    def notes(self) -> Iterator[Note]:
        """Notes about a file that holds a table as well."""
        if self.failed:
            kind = self._first_error()
            why = f": {kind.found}" if kind else ""
            text = f"ncu reported {sum(self._errors.values())} errors{why}; launches may be missing."
            yield Note("run-failed", NoteLevel.WARNING, text, kind.remedy if kind else _AGAIN)
        for warning in _WARNINGS[1:]:
            if warning in self._warnings:
                level = NoteLevel.INFO if warning.code in ("clocks-not-locked", "memory-saved") else NoteLevel.WARNING
                yield Note(warning.code, level, f"{warning.found}.", warning.remedy)
        if others := self._warnings[None]:
            yield Note(
                "ncu-warnings", NoteLevel.INFO, f"ncu printed {others} warnings that this version does not know."
            )

    def _first_error(self) -> _Class | None:
        return next((kind for kind in _ERRORS if kind in self._errors), None)


def _first(classes: tuple[_Class, ...], text: str) -> _Class | None:
    return next((kind for kind in classes if kind.pattern.search(text)), None)
