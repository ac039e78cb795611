"""A framework's operators (PyTorch's `aten::linear`, …): host time, GPU time, and what the backward pass adds to each.

`tree` nests the operators of each thread, `autograd` links backward operators to forward ones, `places` names the part
of the program (module, annotation, operator, Python function) that GPU work belongs to, `statistics` and `overhead` are
the answers. New questions about operators go here; what knows no operators belongs one level up. May import the rest of
`warplens.analysis` and `warplens.profile`.
"""

from __future__ import annotations

from warplens.analysis.operators.autograd import AutogradLinks, autograd_links
from warplens.analysis.operators.overhead import FrameworkOverhead, framework_overhead
from warplens.analysis.operators.statistics import (
    GROUPINGS,
    OPERATOR_SCHEMA,
    OperatorCoverage,
    operator_coverage,
    operators_by,
)
from warplens.analysis.operators.tree import OperatorTree, operator_tree

__all__ = [
    "GROUPINGS",
    "OPERATOR_SCHEMA",
    "AutogradLinks",
    "FrameworkOverhead",
    "OperatorCoverage",
    "OperatorTree",
    "autograd_links",
    "framework_overhead",
    "operator_coverage",
    "operator_tree",
    "operators_by",
]
