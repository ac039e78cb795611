"""The launches of an Nsight Compute CSV export: what the columns before the metrics say.

Of these columns the name of the process and of the host are never looked at.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import polars as pl

from warplens.profile.counters import LAUNCHES
from warplens.profile.schema import encode_names

__all__ = ["COLUMNS", "is_fact", "is_nvtx", "launch_table", "open_ranges", "short_name"]

#: Columns that stand before the metrics, in some releases or in all.
COLUMNS = frozenset(
    (
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Kernel Time",
        "Context",
        "Stream",
        "Block Size",
        "Grid Size",
        "Device",
        "CC",
    )
)

_PERSONAL = frozenset(("Process Name", "Host Name"))

_NUMBERS = (
    ("device", "Device", pl.Int32),
    ("context", "Context", pl.Int64),
    ("stream", "Stream", pl.Int64),
    ("process", "Process ID", pl.Int32),
)

_KINDS = ("range", "graph", "cmdlist")

_XYZ = r"^\s*\(?\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)?\s*$"

_OPENING, _CLOSING = "<([{", ">)]}"

#: What compilers call a namespace without a name.
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")

#: Since 2024 ncu leaves out the first sign of `<unnamed>::`; one that stands before it then belongs to a template.
_HALF_UNNAMED = re.compile(r"(?<!\w)unnamed>::")

#: The state of NVTX: a thread, then its ranges in quotes, the outermost first.
_RANGES = re.compile(r'"([^"]*)"')
_OF_ONE_THREAD = re.compile(r'\s*\d*\s*((?:"[^"]*"\s*)+)')

#: A range is its domain and name, then colour, payload and message, each with its type.
_FIELDS_AFTER_NAME = 6


def is_nvtx(column: str) -> bool:
    """Whether a column holds the state of NVTX at the launch."""
    return "Push/Pop_Range" in column or "Start/Stop_Range" in column


def is_fact(column: str) -> bool:
    """Whether a column tells one launch from another; names of processes and hosts do not, and are never read."""
    return (column in COLUMNS and column not in _PERSONAL) or is_nvtx(column)


def launch_table(header: Sequence[str], launches: Sequence[Sequence[str]]) -> pl.DataFrame:
    """`LAUNCHES` of the launches whose fields under this header are given, one after the other."""
    at = {name: position for position, name in enumerate(header)}
    count = len(launches)

    def column(name: str) -> pl.Series:
        if name not in at:
            return pl.Series([None] * count, dtype=pl.String)
        return pl.Series([launch[at[name]] for launch in launches], dtype=pl.String)

    names = column("Kernel Name").fill_null("").to_list()
    short = {name: short_name(name) for name in dict.fromkeys(names)}
    columns: dict[str, Any] = {
        "launch": pl.Series(range(count), dtype=pl.Int64),
        "kind": pl.Series([name if name in _KINDS else "kernel" for name in names], dtype=pl.Enum(["kernel", *_KINDS])),
        "name": _encoded([short[name] for name in names]),
        "full_name": _encoded(names),
    }
    for own, printed, dtype in _NUMBERS:
        columns[own] = column(printed).cast(dtype, strict=False)
    # Of a graph, ncu prints the sizes of one of its kernels.
    of_kernels = columns["kind"].cast(pl.String) == "kernel"
    for own, printed in (("grid", "Grid Size"), ("block", "Block Size")):
        columns |= _sizes(own, column(printed), of_kernels)
    states = [position for position, name in enumerate(header) if is_nvtx(name)]
    # Ranges of the process stand behind those of the thread in a row, but were opened before them as a rule.
    ranges = [[name for at in reversed(states) for name in open_ranges(launch[at])] for launch in launches]
    columns["nvtx"] = pl.Series(ranges if states else [None] * count, dtype=pl.List(pl.String))
    kind = next(declared.dtype for declared in LAUNCHES.columns if declared.name == "kind")
    return LAUNCHES.checked(pl.DataFrame(columns).with_columns(pl.col("kind").cast(pl.String).cast(kind)))


def _encoded(texts: list[str]) -> pl.Series:
    codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    return encode_names(pl.Series([codes[text] for text in texts], dtype=pl.UInt32), codes)


def _sizes(own: str, printed: pl.Series, of_kernels: pl.Series) -> dict[str, pl.Series]:
    """Three columns of a size; none of a launch that failed, printed as `(0, 0, 0)`, nor of several kernels in one."""
    sizes = [printed.str.extract(_XYZ, group).cast(pl.Int32, strict=False) for group in (1, 2, 3)]
    real = (sizes[0] > 0) & of_kernels
    nothing = pl.Series([None], dtype=pl.Int32)
    return {
        f"{own}_{axis}": size.zip_with(real.fill_null(False), nothing) for axis, size in zip("xyz", sizes, strict=True)
    }


def open_ranges(state: str) -> list[str]:
    """Names of the NVTX ranges that were open at a launch, outermost first, from their printed state."""
    thread = _OF_ONE_THREAD.match(state)
    return [_range_name(found) for found in _RANGES.findall(thread[1])] if thread else []


def _range_name(printed: str) -> str:
    name = printed.rsplit(":", _FIELDS_AFTER_NAME)[0]
    domain, colon, rest = name.partition(":")
    return rest if colon else domain


def short_name(full: str) -> str:
    """The name of a kernel's function alone: no return type, namespace, template parameters or arguments."""
    text = _UNNAMED.sub("", full)
    if text.count("<") < text.count(">") - text.count("->"):
        text = _HALF_UNNAMED.sub("", full)
    depth = 0
    begin = 0
    end = template = len(text)
    position = 0
    while position < len(text):
        sign = text[position]
        if depth == 0 and text.startswith("operator", position):
            position = _after_operator(text, position)
            continue
        if sign in _OPENING:
            if depth == 0 and sign == "(" and position > begin:
                end = position
                break
            if depth == 0 and sign == "<":
                template = position
            depth += 1
        elif sign in _CLOSING and text[position - 1 : position] != "-":
            depth = max(depth - 1, 0)
        elif depth == 0 and (sign == " " or text.startswith("::", position)):
            begin = position + (1 if sign == " " else 2)
            template = len(text)
        position += 1
    name = text[begin : min(end, template)].strip(" :*&")
    return name or full


def _after_operator(text: str, position: int) -> int:
    """The position behind the name of an operator, whose signs are neither brackets nor the end of the name."""
    found = re.compile(r"operator\s*(?:\(\)|\[\]|<<=?|>>=?|<=>|->\*?|[<>]=?|[-+*/%^&|=!~]=?)?").match(text, position)
    return found.end() if found and found.end() > position else position + 1
