"""What the result messages of an Nsight Compute report say besides metrics: the launch, its NVTX ranges, ncu's rules.

The field numbers are those of the message descriptions that NVIDIA ships with Nsight Compute (`extras/FileFormat`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from warplens.readers.ncu_rep_wire import Message

__all__ = ["METRICS", "Launch", "Rule", "launch_of", "plain_text", "rules_of", "value_of", "without_folders"]

#: Field with the metrics, by kind of result.
METRICS: Mapping[str, int] = {"kernel": 13, "range": 4, "cmdlist": 4, "graph": 4}


@dataclass(frozen=True)
class _Numbers:
    """Where a kind of result keeps what the kinds have in common; 0 where it does not."""

    thread: int = 1
    context: int = 11
    stream: int = 12
    sections: int = 7
    unsupported: int = 9
    nvtx: int = 10
    clocks: int = 13
    rules: int = 0


_NUMBERS: Mapping[str, _Numbers] = {
    "kernel": _Numbers(context=22, stream=23, sections=17, unsupported=20, nvtx=21, clocks=25, rules=19),
    "range": _Numbers(stream=0, clocks=12),
    "cmdlist": _Numbers(rules=21),
    "graph": _Numbers(),
}

_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1


class Launch(NamedTuple):
    """One result without its metrics; the fields of the table `launches`, and what the session is told by.

    Attributes:
        sizes: grid x, y, z and block x, y, z.
        nvtx: open ranges, outermost first; None where NVTX was not recorded.
        clocks: whether locking the clocks was asked for, and whether it was done.
        unsupported: whether ncu says that it does not (fully) support the GPU.
    """

    name: str
    full_name: str
    context: int | None
    stream: int | None
    sizes: tuple[int | None, ...]
    nvtx: list[str] | None
    sections: tuple[str, ...]
    clocks: tuple[bool, bool] | None
    unsupported: bool


def launch_of(kind: str, result: Message) -> Launch | None:
    """The facts about one result; None where it lacks the name that every profiled kernel has."""
    numbers = _NUMBERS[kind]
    short, full = kind, kind
    sizes: tuple[int | None, ...] = (None,) * 6
    if kind == "kernel":
        function = result.text(6) or result.text(7) or result.text(5)
        if not function:
            return None
        short, full = function, result.text(7) or function
        sizes = (*_xyz(result.message(10)), *_xyz(result.message(11)))
    elif kind == "cmdlist":
        short = full = result.text(18) or kind
    state = result.message(numbers.nvtx)
    clocks = result.message(numbers.clocks)
    return Launch(
        name=short,
        full_name=full,
        context=_at_most(_MAX_INT64, result.integer(numbers.context)),
        stream=_at_most(_MAX_INT64, result.integer(numbers.stream)),
        sizes=sizes,
        nvtx=None if state is None else _open_ranges(state, result.integer(numbers.thread)),
        sections=tuple(section.text(1) or "" for section in result.messages(numbers.sections)),
        clocks=None if clocks is None else (bool(clocks.integer(1)), bool(clocks.integer(2))),
        unsupported=bool(result.integer(numbers.unsupported)),
    )


def _xyz(size: Message | None) -> tuple[int | None, int | None, int | None]:
    if size is None:
        return None, None, None
    x, y, z = (_at_most(_MAX_INT32, size.integer(number)) for number in (1, 2, 3))
    return x, y, z


def _at_most(limit: int, value: int | None) -> int | None:
    return value if value is not None and value <= limit else None


def _open_ranges(state: Message, thread: int | None) -> list[str]:
    """Names of the NVTX ranges that were open, outermost first.

    Push-pop ranges belong to threads: those of the launching one count. Start-end ranges belong to the process. Each
    range carries the number of the last CUDA call before it, which orders ranges of several domains; where it is
    absent, the ranges stand in the order of the file, start-end ranges first.
    """
    found: list[tuple[int, str]] = []
    for domain in state.messages(3):
        found += [(item.integer(4) or 0, item.text(2) or "") for item in domain.messages(3)]
    for owner in state.messages(2):
        if owner.integer(1) == thread:
            for domain in owner.messages(2):
                found += [(item.integer(3) or 0, item.text(1) or "") for item in domain.messages(3)]
    return [name for _, name in sorted(found, key=lambda item: item[0])]


_RULE_KINDS = {0: "none", 1: "ok", 2: "warning", 3: "error", 4: "optimization"}
_SPEEDUP_KINDS = {1: "local", 2: "global"}

#: Links in the text of a rule: `@url:words:https://…@`, `@section:identifier:words@`.
_LINK = re.compile(r"@(\w+):([^:@]*):([^@]*)@")

Rule = tuple[str, str, "str | None", str, str, "str | None", "float | None"]


#: Rules that failed name the files of ncu they failed in, under the folders of whoever ran it.
_FOLDERS = re.compile(r"(?<![\w:/.])(?:[A-Za-z]:\\|/)(?:[^\s\\/:\"'][^\n\\/:\"']*[\\/])+(?=[^\s\\/])")


def rules_of(kind: str, result: Message) -> Iterator[Rule]:
    """What ncu's rules said: rule, name, section, kind, message, kind of speedup, speedup (%).

    A rule that found nothing to say has no row, one that said three things has three.
    """
    number = _NUMBERS[kind].rules
    for rule in result.messages(number) if number else ():
        body = rule.message(3)
        for item in body.messages(1) if body else ():
            said = item.message(1)
            if said is None:
                continue
            speedup = item.message(10)
            yield (
                rule.text(1) or "",
                rule.text(2) or "",
                rule.text(4),
                _RULE_KINDS.get(said.integer(2) or 0, "none"),
                without_folders(plain_text(said.text(1) or "")),
                _SPEEDUP_KINDS.get(speedup.integer(1) or 0) if speedup else None,
                speedup.double(2) if speedup else None,
            )


def without_folders(message: str) -> str:
    """The text without the folders of the paths in it; the names of the files stay."""
    return _FOLDERS.sub("", message)


def plain_text(message: str) -> str:
    """The text of a rule without its links, as ncu prints it: the words, and an address in brackets behind them."""
    return _LINK.sub(lambda link: f"{link[2]} ({link[3]})" if link[1] == "url" else link[3], message)


def value_of(value: Message | None) -> int | float | str | None:
    """A value of a metric: text, a number of 4 or 8 bytes, or an unsigned one."""
    if value is None:
        return None
    for number in (5, 4):
        if (integer := value.integer(number)) is not None:
            return integer
    for number in (3, 2):
        if (real := value.double(number)) is not None:
            return real
    return value.text(1)
