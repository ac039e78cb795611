"""The parts of a kernel's name, whichever tool wrote it and however that tool spells C++."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NameParts", "split_name"]

#: The unnamed namespace as CUPTI, nsys and ncu write it; it says nothing, and its brackets are not those of a template.
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\bunnamed>::")
#: ncu drops a bracket where the unnamed namespace begins the template arguments: `Copy<unnamed>::Type<2>` opens two.
_UNNAMED_ARGUMENT = re.compile(r"(?<=\w)<unnamed>::")
_BRACKET = re.compile(r"operator\s*(?:\(\)|<<|>>|<=|>=|->|[<>])|[<>() ]")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

#: In a mangled name: literals (`Li128E`), back references (`S5_`) and built-in types, whose digits are no lengths; then
#: lengths.
_MANGLED_ITEM = re.compile(r"L[a-z]n?\d+E|[ST][0-9A-Z]*_|(?P<builtin>DF16b|DF16_|Dh)|(?P<length>\d+)")
_MANGLED_BUILTINS = {"DF16b": "__bf16", "DF16_": "_Float16", "Dh": "__half"}
_MANGLED_QUALIFIERS = "NKVO"
_MOST_LENGTH_DIGITS = 9


@dataclass(frozen=True)
class NameParts:
    """A kernel's name, taken apart.

    Attributes:
        function: the qualified function, without return type, template arguments and parameters.
        template: its template arguments, as written; empty where it has none.
        parameters: its parameter list, as written; tools that print `T1 *` reveal no type there.
        words: the function in lower-case words: `at::native::GammaBetaBackwardCUDAKernel` → `at native gamma beta
            backward cuda kernel`. So a rule for `norm` does not take `normal` for a normalisation.
    """

    function: str
    template: str
    parameters: str
    words: str


def split_name(name: str) -> NameParts:
    """Takes a demangled, mangled or plain kernel name apart.

    >>> split_name("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 3>(float*)").function
    'at::native::CatArrayBatchedCopy'
    """
    name = name.removesuffix(".kd")  # ROCm's kernel descriptors
    if name.startswith("_Z"):
        function, template, parameters = _split_mangled(name)
    else:
        function, template, parameters = _split_demangled(_UNNAMED.sub("", _UNNAMED_ARGUMENT.sub("<", name)))
    return NameParts(function, template, parameters, " ".join(_WORD.findall(function)).lower())


def _split_demangled(name: str) -> tuple[str, str, str]:
    begin = 0
    opened = closed = None  # the brackets of the function's own template arguments
    end = len(name)
    angles = parentheses = 0
    for found in _BRACKET.finditer(name):
        mark, at = found.group(), found.start()
        if mark == "<" and not parentheses:
            if not angles:
                opened, closed = at, None
            angles += 1
        elif (
            mark == ">" and not parentheses
        ):  # inside parentheses it may be a comparison; what stands there is balanced
            angles -= 1
            if not angles:
                closed = at
                if name.startswith("::", at + 1):
                    opened = closed = None  # they were those of the enclosing class
        elif mark == "(":
            if not angles and not parentheses:
                end = at
                break
            parentheses += 1
        elif mark == ")":
            parentheses -= 1
        elif mark == " " and not angles and not parentheses:
            begin, opened, closed = at + 1, None, None  # that was the return type
    if opened is None:
        return name[begin:end], "", name[end:]
    return name[begin:opened], name[opened + 1 : closed], name[end:]


def _split_mangled(name: str) -> tuple[str, str, str]:
    # Enough of the Itanium scheme to find identifiers: the first run of them is the function, the others are types.
    at = len("_Z")
    is_nested = name.startswith("N", at)
    while at < len(name) and name[at] in _MANGLED_QUALIFIERS:
        at += 1
    function: list[str] = []
    types: list[str] = []
    function_end = at
    while (found := _MANGLED_ITEM.search(name, at)) is not None:
        at = found.end()
        if found["builtin"]:
            types.append(_MANGLED_BUILTINS[found["builtin"]])
        elif found["length"]:
            # No identifier is longer than the name, whatever number a damaged one holds.
            length = int(found["length"]) if len(found["length"]) <= _MOST_LENGTH_DIGITS else len(name)
            at = min(at + length, len(name))
            identifier = name[found.end() : at]
            if found.start() == function_end and (is_nested or not function):
                function.append(identifier)
                function_end = at
            else:
                types.append(identifier)
    return "::".join(function), ", ".join(types), ""
