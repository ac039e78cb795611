"""Which pieces of work are equal, in one profile and in two, whichever tool wrote their kernels' names.

Kernels of the same name, grid and block had equal work. Tools spell names differently (`(int)128`, `128`; `T1`, the
type itself), so that the sets of words in function and template arguments are compared.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from warplens.analysis.kernel_names import split_name

#: Kernels of the same work, in one profile as in another.
KERNEL: Final = ("words", "blocks", "threads")

_WORD: Final = re.compile(r"[A-Za-z_]\w*|\d+")
#: What one tool writes and another does not: casts of literals, dependent types, namespaces, words of the demangler.
_DROPPED: Final = re.compile(
    r"^(int|unsigned|long|bool|char|short|ul|u|l|lambda|instance|const|void|anonymous|namespace|unnamed|operator|at|native|T\d+)$"
)
_LITERALS: Final = {"true": "1", "false": "0"}


@lru_cache(maxsize=65_536)
def words_of(full_name: str) -> str:
    """The words of a kernel's function and template arguments, as a set that tools agree on.

    >>> words_of("void f<(int)4, float>(T1 *)") == words_of("void f<4, float>(float*)")
    True
    """
    parts = split_name(full_name)
    words = {_LITERALS.get(word, word) for word in _WORD.findall(f"{parts.function} {parts.template}")}
    return " ".join(sorted(word for word in words if not _DROPPED.match(word)))
