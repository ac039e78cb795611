"""Functions that a program writes out in several operators, although one fused operator computes them.

The sequence of kernels shows them: no kernel of a fused operator looks like a mean followed by a reciprocal root.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np

from warplens.analysis.frames import once
from warplens.diagnosis.facts import Facts
from warplens.profile.schema import Int64s


class Form(NamedTuple):
    """A function as it is written out, and what computes it in one pass."""

    kind: str  #: for titles
    operators: str  #: a comment in the code of the remedy
    pattern: re.Pattern[str]  #: its kernels, as letters of `_LETTERS`


#: Letter → kernels, by their names. Other letters: K for copies and casts, L for the logarithm of a softmax, G for
#: gathers and scatters.
_LETTERS: Final = {
    "P": r"pow_tensor_scalar",
    "R": r"sqrt_kernel",
    "M": r"(?:Mul|Div)Functor",
    "I": r"CUDAFunctorOnSelf_add<",  # adds a number
    "A": r"CUDAFunctor_add<",
    "U": r"MeanOps",
    "S": r"reduce_kernel.*sum_functor",
    "V": r"WelfordOps",
    "T": r"(?<!\w)tanh_kernel",
    "E": r"(?<!\w)erf_kernel",
    "N": r"neg_kernel",
    "C": r"CatArrayBatchedCopy|cat_kernel",
    "F": r"FillFunctor",
}
_LETTER: Final = re.compile("|".join(f"(?P<{letter}>{pattern})" for letter, pattern in _LETTERS.items()))


def _with_copies(pattern: str) -> re.Pattern[str]:
    """The pattern with any number of copies and casts after each kernel."""
    return re.compile(re.sub(r"\[\w+\]|[A-Z]", r"(?:\g<0>K*)", pattern))


_MEAN_SQUARE: Final = "[PM](?:U|SM)"

#: In this order: a kernel belongs to one form.
FORMS: Final = (
    Form(
        "Norms",
        "# F.layer_norm, F.group_norm or F.batch_norm instead of mean, variance and root",
        _with_copies(f"(?:UA{_MEAN_SQUARE}|U?A?V)U?A?I?A?RM{{1,2}}A?"),
    ),
    Form("Norms", "# F.rms_norm instead of mean square and root", _with_copies(f"{_MEAN_SQUARE}I?RM{{1,2}}")),
    Form(
        "Activations",
        "# F.gelu(x), or F.gelu(x, approximate='tanh'), for a written-out GELU",
        _with_copies("[PM]+[AI]M+TIM{1,2}|MMEIM|MEIMM"),
    ),
    # Labels pick some of the logarithms.
    Form("Losses", "# F.cross_entropy, also with label_smoothing=, liger-kernel", _with_copies("L[AIMNF]{0,3}G")),
    # Halves are exchanged, one of them negated, by a concatenation or copies; or each half is the sum of two products.
    Form(
        "Rotary embeddings",
        "# liger-kernel or flash-attn for rotary embeddings",
        _with_copies("MN[CK]MA|NCMA|MMAMMAC"),
    ),
)


@once
def written_out(facts: Facts) -> tuple[Int64s, ...]:
    """The rows of `Facts.work` that each of `FORMS` consists of."""
    program = facts.program
    found = (_LETTER.search(name) for name in program.full_names())
    of_names = np.array([(match and match.lastgroup) or "-" for match in found] or ["-"])
    letters = np.where(program.is_kernel, of_names[program.name_codes], "-")
    letters[program.labelled("copy-cast") & (letters == "-")] = "K"
    letters[program.having("label", "device-to-device")] = "K"
    letters[program.marked("log-softmax") & ~program.marked("backward")] = "L"
    letters[program.labelled("gather-scatter")] = "G"
    rows = program.order[~program.in_order(program.having("label", "memset"))]
    text, parts = "".join(letters[rows]), []
    for form in FORMS:
        matches = [match.span() for match in form.pattern.finditer(text)]
        parts.append(np.concatenate([rows[:0], *(rows[begin:end] for begin, end in matches)]))
        text = form.pattern.sub(lambda match: "-" * len(match[0]), text)
    return tuple(parts)
