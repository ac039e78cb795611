"""Kernels that take long: what `make new-finding NAME=long-kernels` starts with, in `diagnosis/rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from warplens.diagnosis.findings import GAIN, Remedy
from warplens.diagnosis.rule import GPU_BUSY_SHARE, Limit, Rule

if TYPE_CHECKING:
    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding
    from warplens.profile.schema import Float64s


class LongKernels(Rule):
    """One kernel takes so long that nothing beside it matters."""

    id = "long-kernels"
    question = "Do some kernels take very long?"
    limiter = "kernels that take very long"
    cause = "kernels of more than a tenth of a second"
    raised_when = "there is one"
    claimed = "the time of such kernels"
    headline = "A few kernels limit this: {share} of the time goes to kernels of more than a tenth of a second"
    title = "Some kernels take more than a tenth of a second each"
    evidence: ClassVar = {**GPU_BUSY_SHARE, "kernels_count": "such kernels in the window"}
    refutation = "Halve the work of one of them (its batch): if the step takes as long, it was not the limit."
    longest_ns = Limit(100_000_000, "TODO: a measurement, a data sheet or a planted cause that the number rests on")

    def claim(self, facts: Facts) -> Float64s:
        """All of the time of each such kernel."""
        length = (facts.work["end_ns"] - facts.work["start_ns"]).to_numpy()
        return (length > self.longest_ns).astype(float)

    def find(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding, if the window has it."""
        return self.raised(
            facts,
            claims.busy_ns(self.id),
            confidence="low",
            evidence={"gpu_busy_share": facts.busy_share, "kernels_count": int(self.claim(facts).sum())},
            where=(),
            remedies=(Remedy("Split them", "warplens kernels PROFILE names them", f"{GAIN}: without these kernels"),),
        )
