"""A framework's operators (PyTorch's `aten::linear`, …): host time, GPU time, and what the backward pass adds to each.

`autograd` nests the operators of each thread and links backward operators to forward ones, `places` names the part of
the program (module, annotation, operator, Python function) that GPU work belongs to, `program` and `statistics` are
the answers. New questions about operators go here; what knows no operators belongs one level up. May import the rest of
`warplens.analysis` and `warplens.profile`.
"""

from __future__ import annotations

from warplens.analysis.operators.places import AutogradLinks, OperatorTree, autograd_links, operator_tree
from warplens.analysis.operators.program import OPERATORS
from warplens.analysis.operators.statistics import (
    GROUPINGS,
    FrameworkOverhead,
    OperatorCoverage,
    framework_overhead,
    operator_coverage,
    operators_by,
)

__all__ = [
    "GROUPINGS",
    "OPERATORS",
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
