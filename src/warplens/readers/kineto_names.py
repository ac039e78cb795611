"""Short names of kernels, copies' directions and similar words, from the texts that Kineto writes."""

from __future__ import annotations

import re

__all__ = ["copy_words", "memset_memory", "short_kernel_name", "wait_kind"]

_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
_MARK = re.compile(r"operator\s*(?:\(\)|<<|>>|<=|>=|->|[<>])|::|[<>() ]")
_MANGLED_LENGTH = re.compile(r"\d{1,9}")

_DIRECTIONS = {
    "htod": "host-to-device",
    "dtoh": "device-to-host",
    "htoa": "host-to-array",
    "atoh": "array-to-host",
    "atoa": "array-to-array",
    "atod": "array-to-device",
    "dtoa": "device-to-array",
    "dtod": "device-to-device",
    "htoh": "host-to-host",
    "ptop": "peer-to-peer",
}
_MEMORIES = {
    "pageable": "pageable",
    "pinned": "pinned",
    "device": "device",
    "array": "array",
    "managed": "managed",
    "device static": "device-static",
    "managed static": "managed-static",
}
_COPY = re.compile(
    r"(?i)\b(?P<direction>[hdap]to[hdap])\b(?:\s*\(\s*(?P<source>[\w ]+?)\s*->\s*(?P<destination>[\w ]+?)\s*\))?"
)
_MEMSET = re.compile(r"\(\s*([\w ]+?)\s*\)")
_WAITS = (
    ("stream wait", "stream-wait-event"),
    ("stream", "stream"),
    ("event", "event"),
    ("context", "context"),
    ("device", "context"),
)


def short_kernel_name(full_name: str) -> str:
    """The function alone: without return type, namespaces, template arguments and parameters.

    Nsight Systems records both names; Kineto records the full one only.

    >>> short_kernel_name("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 3>(float*)")
    'CatArrayBatchedCopy'
    """
    name = full_name.removesuffix(".kd")  # ROCm's kernel descriptors
    short = _mangled(name) if name.startswith("_Z") else _demangled(_UNNAMED.sub("", name))
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


def copy_words(name: str) -> tuple[str, str | None, str | None]:
    """Direction, source and destination memory of a copy named like `Memcpy HtoD (Pageable -> Device)`."""
    found = _COPY.search(name)
    if found is None:
        return "unknown", None, None
    source, destination = found["source"], found["destination"]
    return _DIRECTIONS.get(found["direction"].lower(), "unknown"), _memory(source), _memory(destination)


def memset_memory(name: str) -> str | None:
    """The kind of memory that is filled, of a name like `Memset (Device)`."""
    found = _MEMSET.search(name)
    return _memory(found.group(1)) if found else None


def _memory(text: str | None) -> str | None:
    return None if text is None else _MEMORIES.get(text.lower())


def wait_kind(name: str) -> str:
    """What a wait (`Stream Wait Event`, `Event Sync`, …) waits for, in the words of the schema."""
    lowered = name.lower()
    return next((kind for text, kind in _WAITS if text in lowered), "context")
