"""Batch norms of inference that could be part of the convolutions before them.

With running statistics, a batch norm is a scale and a shift for each channel, which the weights of the convolution (or
linear layer) before it can include. Models that are trained with parallel branches (RepVGG, MobileOne, FastViT) add the
results of several norms; merged, their branches are one convolution.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from warplens.analysis.frames import once
from warplens.diagnosis.facts import Facts
from warplens.profile.schema import Float64s

#: In a text of products (P), norms (N), additions (A) and other work: branches, of which one may be a norm alone.
_BRANCHES: Final = re.compile(r"(?:P?NA?){2,}A*")
#: Additions of such branches: a residual network adds once after two norms, if its shortcut has a norm.
_LEAST_ADDITIONS: Final = 2


@once
def folded(facts: Facts) -> Float64s:
    """Share saved of batch norms after convolutions or products, and of branches that are one convolution when merged.

    Norms in the channels-first format are left out: in the other format they take a third of the time.
    """
    program, own = facts.program, facts.program.own_ns
    share = np.zeros(facts.work.height)
    norms = program.marked("inferring-norm") & ~program.marked("channels-first")
    if facts.trains or not norms.any() or program.marked("batch-statistics").any():
        return share
    long = program.in_order(own >= facts.thresholds.bandwidth_kernel_ns)  # short kernels prepare a norm
    rows, section = program.order[long], np.cumsum(program.breaks)[long]
    sums = program.marked("adding") | program.marked("adding-a-number")  # a sum of branches may begin with zero
    kinds = np.select([norms[rows], program.products[rows], sums[rows]], ["N", "P", "A"], "-")
    edges = np.flatnonzero(np.r_[True, section[1:] != section[:-1]])
    for begin, end in zip(edges, (*edges[1:], len(rows)), strict=True):
        text, pieces = "".join(kinds[begin:end]), rows[begin:end]
        share[pieces[[found.end() - 1 for found in re.finditer("PN", text)]]] = 1.0
        for found in _BRANCHES.finditer(text):
            branches = pieces[found.start() : found.end()]
            if found.group().count("A") < _LEAST_ADDITIONS:
                continue
            products = branches[program.products[branches]]
            share[branches] = 1.0
            if len(products):
                share[products[np.argmax(own[products])]] = 0.0  # the merged convolution
    return share
