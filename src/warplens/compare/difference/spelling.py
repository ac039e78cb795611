"""One spelling for the kernel names of all tools, so that profiles of different tools can be matched by name.

CUPTI's demangler and that of Nsight Systems write the same function differently: literals with or without their type
(`(int)4`, `false`), `const` before or behind what it is said of, lambdas (`{lambda()#3}`, `[lambda() (instance 3)]`),
parameters by their type or as `T1`.
"""

from __future__ import annotations

import re
from typing import Final

from warplens.analysis.kernel_names import split_name

__all__ = ["spelled"]

_LAMBDA: Final = re.compile(r"\[lambda\([^()]*\) \(instance (\d+)\)\]|\{lambda\([^()]*\)#(\d+)\}")
_UNNAMED: Final = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
#: Innermost parentheses: parameter lists, and the types of literals.
_PARENTHESES: Final = re.compile(r"\([^()]*\)")
_LITERAL_SUFFIX: Final = re.compile(r"(?<=\d)[uUlL]+\b")
_RETURN_TYPE: Final = re.compile(r"\bvoid (?=[\w:]+<)")
_CONST: Final = re.compile(r"\bconst\b")
_WORDS: Final = {"false": "0", "true": "1"}
_WORD: Final = re.compile(r"\b(?:false|true)\b")


def spelled(full_name: str) -> str:
    """The function with its template arguments, without what tools write in different ways.

    >>> spelled("void at::native::reduce<(int)128, (bool)0>(T1)")
    'at::native::reduce<128,0>'
    >>> spelled("void at::native::reduce<128, false>(int)")
    'at::native::reduce<128,0>'
    """
    parts = split_name(full_name)
    text = f"{parts.function}<{parts.template}>" if parts.template else parts.function
    text = _LAMBDA.sub(lambda found: "{lambda#" + (found[1] or found[2]) + "}", _UNNAMED.sub("", text))
    replaced = 1
    while replaced:
        text, replaced = _PARENTHESES.subn("", text)
    text = _LITERAL_SUFFIX.sub("", _RETURN_TYPE.sub("", _CONST.sub("", text)))
    return _WORD.sub(lambda word: _WORDS[word.group()], text).replace(" ", "")
