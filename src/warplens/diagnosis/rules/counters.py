"""Rules for faults inside kernels, which only hardware counters show."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import polars as pl

from warplens.analysis.categories import class_table
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts, kernel_names
from warplens.diagnosis.findings import Confidence, Finding, Remedy
from warplens.diagnosis.rule import Rule
from warplens.profile.schema import Float64s

#: Library names of products that the user can change: none, or a compiler's.
_OWN: Final = ("", "triton")


class CounterRule(Rule):
    """A fault inside kernels.

    A fault that costs the share g of a kernel's time costs g times the kernel's share of the window (Amdahl's law).
    """

    faults: ClassVar[tuple[str, ...]]  #: its names in `analysis.counters`
    remedies: ClassVar[tuple[Remedy, ...]]  #: what to do about it
    raised_when = "counters only"
    claimed = "the fault's share of the kernel's time, for kernels other than a library's products"
    precedence = "measured"
    thresholds = ("counters_share", "counters_complete_share")
    evidence: ClassVar = {
        "lost_ns": "cost of the fault",
        "kernels_share": "their share of the window",
        "lost_of_their_time_share": "of the time of the kernels that have it",
        "counters_of_kernel_time_share": "of the kernel time, with counters",
    }

    def claim(self, facts: Facts) -> Float64s | None:
        """Share of the time of each kernel that the fault costs; 0 for a library's products.

        Users cannot change a library's products: the choice of its kernel follows from sizes, layouts and number
        formats, or from a missing fused operator, which have findings of their own.
        """
        if facts.work["fault"].null_count() == facts.work.height:
            return None
        has_fault = facts.work["fault"].is_in(self.faults).fill_null(value=False).to_numpy()
        library = class_table(facts.timeline.trace.kernels["full_name"])["library"].cast(pl.String).fill_null("")
        is_library = ~library.is_in(_OWN).to_numpy()
        fixed = facts.program.products & is_library[facts.program.name_codes]
        return np.where(has_fault & ~fixed, facts.work["fault_share"].fill_null(0.0).to_numpy(), 0.0)

    def title_for(self, facts: Facts, claims: Claims) -> str:
        """A more specific title; empty for `title`."""
        return ""

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if there are counters and the fault costs enough of the window."""
        claimed = claims.busy_ns(self.id)
        if not claimed:
            return None
        claimed_of_work = claims.of_work(self.id)
        affected = int(facts.work["own_ns"].filter(claimed_of_work > 0).sum())
        measured = facts.own_ns(pl.col("bound").is_not_null())
        kernels = facts.own_ns_having("kind", "kernel")
        covered = measured / kernels if kernels else 0.0
        limits = facts.thresholds
        confidence: Confidence = "medium" if covered >= limits.counters_share else "low"
        confidence = "high" if covered >= limits.counters_complete_share else confidence
        return self.raised(
            facts,
            claimed,
            title=self.title_for(facts, claims),
            confidence=confidence,
            evidence={
                "lost_ns": claimed,
                "kernels_share": affected / facts.wall_ns if facts.wall_ns else None,
                "lost_of_their_time_share": claimed / max(1, affected),
                "counters_of_kernel_time_share": covered,
            },
            where=kernel_names(facts, claimed_of_work),
            remedies=self.remedies,
            on_gpu=True,
            claims=claims,
        )


class Occupancy(CounterRule):
    """Kernels far from every roof whose occupancy is low and limited by registers, shared memory or block size."""

    id = "occupancy"
    question = "Do kernels wait because too few warps are resident to hide latency?"
    limiter = "kernels with too few warps to hide latency"
    cause = "kernels with too few resident warps to hide latency; the limiter is named"
    headline = "Limited by low occupancy: it costs {share} of the time"
    refutation = (
        "Build the kernel with fewer registers per thread: if it is as fast as before, independent instructions "
        "within a warp already hide the latency."
    )
    faults = ("occupancy",)
    remedies = (
        Remedy(
            "Use fewer registers per thread, or less shared memory per block",
            "# __launch_bounds__(threads, blocks) or -maxrregcount\n"
            "# Triton: a smaller BLOCK size, num_stages or num_warps",
        ),
        Remedy(
            "Choose another block size",
            "# one that divides the warps of a multiprocessor: 128 to 256 threads",
        ),
    )

    def title_for(self, facts: Facts, claims: Claims) -> str:
        """The title, with the limiter of occupancy in most of the kernels."""
        limiters = facts.work.filter(claims.of_work(self.id) > 0)["limiter"].drop_nulls()
        limiter = str(limiters.mode().sort().first()) if limiters.len() else None
        return "Kernels have too few resident warps to hide latency" + (f" (limited by {limiter})" if limiter else "")


class Uncoalesced(CounterRule):
    """Kernels that move more sectors than their threads use."""

    id = "uncoalesced"
    question = "Is part of every memory transaction unused?"
    limiter = "uncoalesced memory accesses: part of each transaction is unused"
    cause = "uncoalesced memory accesses"
    headline = "Limited by uncoalesced memory accesses: they cost {share} of the time"
    title = "Kernels move memory sectors of which they use only a part"
    refutation = (
        "Count sectors per request after the change (ncu --section MemoryWorkloadAnalysis_Tables): if there are "
        "fewer and the kernel is as slow, the traffic was not the limit."
    )
    faults = ("uncoalesced",)
    remedies = (
        Remedy(
            "Let neighbouring threads access neighbouring addresses",
            "# structures of arrays; transpose once (x.t().contiguous()), not in every access\n"
            "# Triton: the fastest index of tl.arange along the contiguous dimension",
        ),
        Remedy("Load vectors", "# float4 or half8 loads from addresses aligned to 16 bytes"),
    )


class BankConflicts(CounterRule):
    """Kernels whose shared-memory requests take more cycles than they need to."""

    id = "bank-conflicts"
    question = "Do threads of a warp access the same shared-memory bank?"
    limiter = "conflicts in shared memory"
    cause = "conflicts in shared memory"
    headline = "Limited by shared-memory bank conflicts: they cost {share} of the time"
    title = "Threads of a warp conflict on shared-memory banks"
    refutation = (
        "Count conflicts after the change (ncu --section MemoryWorkloadAnalysis_Tables): if there are none and the "
        "kernel is as slow, shared memory was not the limit."
    )
    faults = ("bank-conflicts",)
    remedies = (
        Remedy("Pad the tile", "__shared__ float tile[32][33];  // instead of [32][32]"),
        Remedy("Swizzle it", "# index column ^ (row % 32); CUTLASS: a swizzled shared-memory layout"),
    )


class Divergence(CounterRule):
    """Kernels whose instructions serve few threads each: branches that differ inside a warp, or blocks of odd sizes."""

    id = "divergence"
    question = "Do warps run with only some of their threads active?"
    limiter = "divergent warps: few active threads"
    cause = "few active threads in a warp"
    headline = "Limited by warp divergence: it costs {share} of the time"
    title = "Instructions execute for only some of each warp's threads"
    refutation = (
        "Count active threads per instruction after the change (ncu --section WarpStateStats): if there are more "
        "and the kernel is as slow, instruction issue was not the limit."
    )
    faults = ("divergence", "partial-warps")
    remedies = (
        Remedy(
            "Group similar work",
            "# sort or bucket items by the branch that they take, one kernel for each case",
        ),
        Remedy(
            "Use whole warps",
            "# block sizes in multiples of 32; loop bounds that do not depend on the thread",
        ),
    )
