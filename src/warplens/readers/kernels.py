"""What readers of traces share about kernels: short names, from the demangled full ones, and launches without one."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from warplens.profile import NoteLevel

#: What compilers call a namespace without a name.
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")

#: Since 2024 ncu leaves out the first sign of `<unnamed>::`; one that stands before it then belongs to a template.
_HALF_UNNAMED = re.compile(r"(?<!\w)unnamed>::")

_MARK = re.compile(r"operator\s*(?:\(\)|<<|>>|<=|>=|->|[<>])|::|[<>() ]")
_MANGLED_LENGTH = re.compile(r"\d{1,9}")


def short_kernel_name(full_name: str) -> str:
    """The function alone: without return type, namespaces, template arguments and parameters.

    Nsight Systems records both names; Kineto and Nsight Compute record the full one only.

    >>> short_kernel_name("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 3>(float*)")
    'CatArrayBatchedCopy'
    """
    name = full_name.removesuffix(".kd")  # ROCm's kernel descriptors
    short = _mangled(name) if name.startswith("_Z") else _demangled(_without_unnamed(name))
    return short or full_name


def _demangled(name: str) -> str:
    begin, end = 0, len(name)
    template = None  # where the function's own template arguments open
    angles = parentheses = 0
    for found in _MARK.finditer(name):
        mark, at = found.group(), found.start()
        if mark == "(":
            if not angles and not parentheses:
                end = at
                break
            parentheses += 1
        elif mark == ")":
            parentheses -= 1
        elif parentheses:
            continue  # angle brackets inside parentheses may be comparisons
        elif mark == "<":
            template = at if not angles else template
            angles += 1
        elif mark == ">":
            angles -= 1
        elif mark in ("::", " ") and not angles:
            begin, template = found.end(), None
    return name[begin : end if template is None else template]


def _mangled(name: str) -> str:
    """The last identifier of the function's nested name, by the lengths that the Itanium scheme writes before each."""
    at = len("_Z")
    while at < len(name) and name[at] in "NKVO":
        at += 1
    identifier = ""
    while (length := _MANGLED_LENGTH.match(name, at)) is not None:
        identifier = name[length.end() : length.end() + int(length.group())]
        at = length.end() + int(length.group())
        if not name.startswith("N", len("_Z")):
            break
    return identifier


def _without_unnamed(name: str) -> str:
    text = _UNNAMED.sub("", name)
    if text.count("<") < text.count(">") - text.count("->"):
        text = _HALF_UNNAMED.sub("", name)
    return text


#: Above this share of launches without any work, times and idle shares are wrong by as much: no answer is better.
LOST_SHARE_BLOCKING: Final = 0.05

#: Fewer than this change no ranking: launches at the edges of a recording, whose work fell out of it.
LOST_SHARE_WARNING: Final = 0.01


def lost_level(share: float) -> NoteLevel:
    """How much it limits the answers that this share of the launches has no work."""
    if share >= LOST_SHARE_BLOCKING:
        return NoteLevel.BLOCKING
    return NoteLevel.WARNING if share >= LOST_SHARE_WARNING else NoteLevel.INFO


def still_queued(unmatched: pl.DataFrame, launches: pl.DataFrame, work: pl.DataFrame) -> pl.Series:
    """Which launches without work would begin after the end of the recording if they queued as long as others did.

    Args:
        unmatched: column `start_ns`, the launches in question.
        launches: columns `correlation` and `start_ns`, all of their process.
        work: the same of its GPU work.
    """
    pairs = launches.join(work, on="correlation", suffix="_work")
    waits = pairs["start_ns_work"].to_numpy() - pairs["start_ns"].to_numpy()
    # The recording went on at least until the last launch, and until the last piece of work began.
    ended = max(int(table["start_ns"].to_numpy().max(initial=0)) for table in (launches, work))
    return unmatched["start_ns"] + int(waits.max(initial=-1)) >= ended
