"""Spelling of kernel names: their parts, their short names, and one spelling across tools.

Names come demangled, mangled or plain, from CUPTI, Nsight Systems, Nsight Compute and ROCm, each with its own spelling
of the unnamed namespace, literals, lambdas and parameters. The work that a name reveals is determined by
`warplens.analysis.kernel_names` and `warplens.analysis.categories`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warplens.patterns import lazy_pattern

#: The unnamed namespace as CUPTI, nsys and ncu write it; it carries no information, and its brackets are not those of a
#: template.
_UNNAMED = lazy_pattern(r"\(anonymous namespace\)::|<unnamed>::|\bunnamed>::")
#: ncu drops a bracket where the unnamed namespace begins the template arguments: `Copy<unnamed>::Type<2>` opens two.
_UNNAMED_ARGUMENT = lazy_pattern(r"(?<=\w)<unnamed>::")
_BRACKET = lazy_pattern(r"operator\s*(?:\(\)|<<|>>|<=|>=|->|[<>])|[<>() ]")
_SCOPE = lazy_pattern(r"operator\s*(?:\(\)|<<|>>|<=|>=|->|[<>])|::|[<>()]")
#: Functions that only their namespace or class tells apart.
_UNTOLD: Final = {"kernel", "run", "operator", "main", "impl", "launch", "execute", "device", "entry", "func", "fn"}
_WORD = lazy_pattern(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

#: In a mangled name: literals (`Li128E`), back references (`S5_`) and built-in types, whose digits are not lengths;
#: then lengths.
_MANGLED_ITEM = lazy_pattern(r"L[a-z]n?\d+E|[ST][0-9A-Z]*_|(?P<builtin>DF16b|DF16_|Dh)|(?P<length>\d+)")
_MANGLED_BUILTINS = {"DF16b": "__bf16", "DF16_": "_Float16", "Dh": "__half"}
_MANGLED_QUALIFIERS = "NKVO"
_MOST_LENGTH_DIGITS = 9


@dataclass(frozen=True)
class NameParts:
    """A kernel's name, split into parts."""

    function: str  #: the qualified function, without return type, template arguments and parameters
    template: str  #: its template arguments, as written; empty where it has none
    parameters: str  #: its parameter list, as written; tools that print `T1 *` reveal no type there
    #: the function in lower-case words: `at::native::GammaBetaBackwardCUDAKernel` → `at native gamma beta backward cuda
    #: kernel`, so that a rule for `norm` does not match `normal`
    words: str

    @property
    def short(self) -> str:
        """The function alone, without its namespaces; empty where no function is found."""
        begin = depth = 0
        for scope in _SCOPE.finditer(self.function):
            mark = scope.group()
            if mark == "::":
                begin = begin if depth else scope.end()
            else:
                depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(mark, 0)
        return self.function[begin:]

    @property
    def own_words(self) -> str:
        """The words of the function alone: a namespace names a library or a topic, not what a kernel does.

        With its namespaces where it is just called a kernel (`gemvx::kernel`).
        """
        own = _words(self.short)
        return self.words if _UNTOLD.issuperset(own.split()) else own


def _words(function: str) -> str:
    return " ".join(_WORD.findall(function)).lower()


def split_name(name: str) -> NameParts:
    """Split a demangled, mangled or plain kernel name into its parts.

    >>> split_name("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 3>(float*)").function
    'at::native::CatArrayBatchedCopy'
    """
    name = name.removesuffix(".kd")  # ROCm's kernel descriptors
    if name.startswith("_Z"):
        function, template, parameters = _split_mangled(name)
    else:
        if "unnamed" in name or "anonymous" in name:
            name = _UNNAMED.sub("", _UNNAMED_ARGUMENT.sub("<", name))
        function, template, parameters = _split_demangled(name)
    return NameParts(function, template, parameters, _words(function))


def _split_demangled(name: str) -> tuple[str, str, str]:
    """Function, its template arguments, and the rest of a demangled name."""
    begin = 0
    opened = closed = None  # the brackets of the function's own template arguments
    end = len(name)
    angles = parentheses = 0
    for match in _BRACKET.finditer(name):
        mark, position = match.group(), match.start()
        if mark == "<" and not parentheses:
            if not angles:
                opened, closed = position, None
            angles += 1
        elif mark == ">" and not parentheses:
            # Inside parentheses it may be a comparison; their content is balanced.
            angles -= 1
            if not angles:
                closed = position
                if name.startswith("::", position + 1):
                    opened = closed = None  # those were the enclosing class's
        elif mark == "(":
            if not angles and not parentheses:
                end = position
                break
            parentheses += 1
        elif mark == ")":
            parentheses -= 1
        elif mark == " " and not angles and not parentheses:
            begin, opened, closed = position + 1, None, None  # the part before was the return type
    if opened is None:
        return name[begin:end], "", name[end:]
    return name[begin:opened], name[opened + 1 : closed], name[end:]


def _split_mangled(name: str) -> tuple[str, str, str]:
    """Function and types of a mangled name; the rest is empty."""
    # Enough of the Itanium scheme to find identifiers: the first run of them is the function, the others are types.
    position = len("_Z")
    is_nested = name.startswith("N", position)
    while position < len(name) and name[position] in _MANGLED_QUALIFIERS:
        position += 1
    function: list[str] = []
    types: list[str] = []
    function_end = position
    while (item := _MANGLED_ITEM.search(name, position)) is not None:
        position = item.end()
        if item["builtin"]:
            types.append(_MANGLED_BUILTINS[item["builtin"]])
        elif item["length"]:
            # No identifier is longer than the name, whatever number a damaged one holds.
            length = int(item["length"]) if len(item["length"]) <= _MOST_LENGTH_DIGITS else len(name)
            position = min(position + length, len(name))
            identifier = name[item.end() : position]
            if item.start() == function_end and (is_nested or not function):
                function.append(identifier)
                function_end = position
            else:
                types.append(identifier)
    return "::".join(function), ", ".join(types), ""


def short_name(full_name: str) -> str:
    """The function alone: without return type, namespaces, template arguments and parameters.

    Nsight Systems records both names; Kineto and Nsight Compute record the full one only.

    >>> short_name("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, 3>(float*)")
    'CatArrayBatchedCopy'
    """
    return split_name(full_name).short or full_name


# --- One spelling, to match launches of the same kernel across tools and pages of a tool ---
#
# The function with its template arguments. Literals occur with or without their type (`(int)4`, `2ul`, `false`),
# `const` before or after its type, lambdas as `{lambda()#3}` or `[lambda() (instance 3)]`, parameters by type or as
# `T1`.

_LAMBDA = lazy_pattern(r"\[lambda\([^()]*\) \(instance (\d+)\)\]|\{lambda\([^()]*\)#(\d+)\}")
#: Innermost parentheses: parameter lists, and the types of literals.
_PARENTHESES = lazy_pattern(r"\([^()]*\)")
_LITERAL_SUFFIX = lazy_pattern(r"(?<=\d)[uUlL]+\b")
_RETURN_TYPE = lazy_pattern(r"\bvoid (?=[\w:]+<)")
_CONST = lazy_pattern(r"\bconst\b")
_TRUTH: Final = {"false": "0", "true": "1"}
_TRUTH_WORD = lazy_pattern(r"\b(?:false|true)\b")
#: Parts that some pages of Nsight Compute omit: the type of a literal, and common namespaces.
_UNPRINTED = lazy_pattern(r"\((?:un)?(?:signed )?(?:int|long|long long|short|char|bool)\)(?=-?\w)|\b(?:\w+::)+")


def spelled_for_all_tools(full_name: str) -> str:
    """The function with its template arguments, without differences between tools.

    >>> spelled_for_all_tools("void at::native::reduce<(int)128, (bool)0>(T1)")
    'at::native::reduce<128,0>'
    >>> spelled_for_all_tools("void at::native::reduce<128, false>(int)")
    'at::native::reduce<128,0>'
    """
    parts = split_name(full_name)
    text = f"{parts.function}<{parts.template}>" if parts.template else parts.function
    text = _LAMBDA.sub(lambda found: "{lambda#" + (found[1] or found[2]) + "}", text)
    replaced = 1
    while replaced:
        text, replaced = _PARENTHESES.subn("", text)
    return _with_plain_literals(_RETURN_TYPE.sub("", _CONST.sub("", text)))


def spelled_for_all_pages(full_name: str) -> str:
    """The same for names of one tool: lambdas keep the types of their parameters, namespaces are dropped."""
    parts = split_name(full_name)
    return _with_plain_literals(_UNPRINTED.sub("", f"{parts.function}<{parts.template}>"))


def _with_plain_literals(text: str) -> str:
    text = _LITERAL_SUFFIX.sub("", text)
    return _TRUTH_WORD.sub(lambda word: _TRUTH[word.group()], text).replace(" ", "")
