"""Short names of kernels, from the full ones that compilers write and tools demangle."""

from __future__ import annotations

import re

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
