"""What kind of work a kernel does, read from its name: category, library, precision, tensor cores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import polars as pl

from warplens.analysis.category_rules import RULES
from warplens.analysis.kernel_names import LIBRARY_NAMES, PRECISIONS, arithmetic_of, library_of, split_name
from warplens.profile.columns import column, table
from warplens.profile.schema import once_a_dictionary

#: The kinds of work, in the order in which people expect to read them.
CATEGORIES = (
    "gemm",
    "attention",
    "softmax",
    "normalization",
    "elementwise",
    "reduction",
    "gather-scatter",
    "sort-topk",
    "copy-cast",
    "convolution",
    "recurrence",
    "optimizer",
    "communication",
    "random",
    "triton",
    "other",
)

#: The category of what no rule recognises.
OTHER = "other"


@dataclass(frozen=True)
class KernelClass:
    """What a kernel's name says."""

    category: str  #: one of `CATEGORIES`
    #: where the kernel comes from (`cublas`, `nvjet`, `at-native`, …); None where the name does not show it
    library: str | None
    #: format of the operands, one of `kernel_precision.PRECISIONS`; None where the name does not reveal it
    precision: str | None
    tensor_cores: bool | None  #: whether tensor cores do the arithmetic; None where the name does not reveal it
    rule: str | None  #: the rule that decided the category; None for `other` by default


CLASSES = table(
    "what a kernel's name says",
    "One kernel. `warplens.analysis.categories.classify_names`.",
    column("category").but(dtype=pl.Enum(CATEGORIES)),
    column("library").but(dtype=pl.Enum(LIBRARY_NAMES)),
    column("precision").but(dtype=pl.Enum(PRECISIONS)),
    "tensor_cores",
)

#: Names read so far are kept, up to a number that only generated code exceeds.
_REMEMBERED_NAMES = 65_536


def classify(name: str, full_name: str | None = None) -> KernelClass:
    """What a kernel is, judged by its name alone.

    Args:
        name: short name, as profilers shorten it.
        full_name: demangled name with template arguments; the short name says too little of PyTorch's kernels.
    """
    return _classified(full_name or name)


@lru_cache(maxsize=_REMEMBERED_NAMES)
def _classified(name: str) -> KernelClass:
    parts = split_name(name)
    rule = next((rule for rule in RULES if rule.holds(parts)), None)
    category = OTHER if rule is None else rule.category
    arithmetic = arithmetic_of(parts, category)
    return KernelClass(
        category, library_of(parts), arithmetic.precision, arithmetic.tensor_cores, rule.name if rule else None
    )


def classify_names(frame: pl.DataFrame) -> pl.DataFrame:
    """The class of the kernel of each row: the columns of `CLASSES`, in the order of the rows.

    Each distinct name is read once; a row costs a look-up of its code.

    Args:
        frame: has the dictionary-encoded column `full_name`, as `Trace.kernels` does.
    """
    return class_table(frame["full_name"]).select(pl.all().gather(frame["full_name"].to_physical()))


def categories_of(full_names: pl.Series) -> pl.Series:
    """The category alone of each of these dictionary-encoded full names, at a quarter of the cost."""
    return class_table(full_names)["category"].gather(full_names.to_physical())


@once_a_dictionary
def class_table(full_names: pl.Series) -> pl.DataFrame:
    """The class of each text of the dictionary, in its order, whether a row has that name or not."""
    classes = [_classified(text) for text in full_names]
    return pl.DataFrame(
        {column: [getattr(found, column) for found in classes] for column in CLASSES.names}, CLASSES.schema
    )
