"""The rules: one finding a module, each a function from facts and claims to a finding or nothing.

A rule says when a cause is one (beyond the time that it claims), how sure it is, which numbers show it, what to do
about it and which experiment would refute it. How much it could gain, and so how severe it is, follows from its claim.
A new rule is a module here, a line in `RULES`, an id in `findings.FINDING_IDS`, and its claim in `claims`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from warplens.diagnosis.rules.allocator_churn import allocator_churn
from warplens.diagnosis.rules.bank_conflicts import bank_conflicts
from warplens.diagnosis.rules.blocking_copy import blocking_copy
from warplens.diagnosis.rules.divergence import divergence
from warplens.diagnosis.rules.exposed_communication import exposed_communication
from warplens.diagnosis.rules.graph_opaque import graph_opaque
from warplens.diagnosis.rules.host_stall import host_stall
from warplens.diagnosis.rules.host_sync import host_sync
from warplens.diagnosis.rules.launch_overhead import launch_overhead
from warplens.diagnosis.rules.memory_bandwidth import memory_bandwidth
from warplens.diagnosis.rules.occupancy import occupancy
from warplens.diagnosis.rules.precision import precision
from warplens.diagnosis.rules.saturated import saturated
from warplens.diagnosis.rules.small_kernels import small_kernels
from warplens.diagnosis.rules.tensor_compute import tensor_compute
from warplens.diagnosis.rules.uncoalesced import uncoalesced
from warplens.diagnosis.rules.unfused_optimizer import unfused_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.diagnosis.claims import Claims
    from warplens.diagnosis.facts import Facts
    from warplens.diagnosis.findings import Finding

    Rule: TypeAlias = Callable[[Facts, Claims], Finding | None]

__all__ = ["RULES"]

#: Every rule of a window whose profile can answer. `incomplete_profile` is asked before them.
RULES: Final[tuple[Rule, ...]] = (
    launch_overhead,
    host_sync,
    host_stall,
    blocking_copy,
    allocator_churn,
    unfused_optimizer,
    exposed_communication,
    precision,
    small_kernels,
    memory_bandwidth,
    occupancy,
    uncoalesced,
    bank_conflicts,
    divergence,
    tensor_compute,
    graph_opaque,
    saturated,
)
