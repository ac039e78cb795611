"""The numbers of many ranks for programs: `data` of the JSON with the schema `warplens.ranks/1`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from warplens.report.jsonout import envelope, window_data
from warplens.report.ranks.tables import rank_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.ranks.across import RanksResult
    from warplens.profile import Note

__all__ = ["ranks_data", "ranks_json"]


def ranks_json(result: RanksResult, sources: Sequence[str], warnings: Sequence[Note | str]) -> bytes:
    """The whole JSON object."""
    return envelope("ranks", list(sources), ranks_data(result), warnings)


def ranks_data(result: RanksResult) -> dict[str, Any]:
    """Every number, exact; frames under `rows`."""
    alignment, balance, placing = result.alignment, result.balance, result.placing
    return {
        "rows": rank_rows(result),
        "world_size": placing.world_size,
        "missing": list(placing.missing),
        "placed_by": list(placing.how),
        "windows": [window_data(summary.window) for summary in result.summaries],
        "imbalance": {"ratio": balance.imbalance, "how": balance.how},
        "budget": {"rows": balance.parts},
        "rank_budgets": {"rows": balance.budget},
        "steps": {"rows": balance.step_balance},
        "rank_steps": {"rows": balance.steps},
        "clocks": {
            "method": alignment.method,
            "residual_median_ns": alignment.residual_median_ns,
            "residual_max_ns": alignment.residual_max_ns,
            "warning": alignment.warning,
        },
        "matching": {"rows": result.matching},
        "waits": {"tolerance_ns": result.waits.tolerance_ns},
        "groups": {"rows": result.groups},
        "collectives": {"rows": result.waits.collectives},
    }
