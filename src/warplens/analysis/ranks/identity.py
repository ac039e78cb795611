"""Which profile is of which rank: as the file records it, else by its name, else in the order given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from warplens.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from warplens.analysis.ranks.summary import RankSummary

__all__ = ["Placing", "place_ranks", "rank_in_name"]

#: `rank0`, `rank_12`, `rank-3`, `rank=3`, `global_rank07`; and the short `_r3`, `.r3`, which must end a word.
_NAMED: Final = (
    re.compile(r"(?<![a-z])(?:global[_-]?)?rank[\s_.=-]?(\d+)", re.IGNORECASE),
    re.compile(r"(?:^|[_.-])r(\d+)(?=[_.-]|$)", re.IGNORECASE),
)


@dataclass(frozen=True)
class Placing:
    """The ranks of some summaries.

    Attributes:
        ranks: the rank of each summary, in their order.
        how: `file` (recorded), `name` (read from the file's name) or `order`, for each.
        world_size: ranks of the whole run as the files record it; None where none does.
        missing: ranks of the run without a profile; () where the size of the run is not known.
    """

    ranks: tuple[int, ...]
    how: tuple[str, ...]
    world_size: int | None
    missing: tuple[int, ...]


def rank_in_name(name: str) -> int | None:
    """The rank that a file's name tells (`trace_rank12.json.gz` → 12); None where it tells none."""
    for pattern in _NAMED:
        if found := pattern.findall(name):
            return int(found[-1])
    return None


def place_ranks(summaries: Sequence[RankSummary]) -> Placing:
    """The rank of each summary.

    A file with several ranks in it cannot name them: those, and files that tell no rank, are numbered in the order
    given. Numbers are not mixed: if only some of the files tell their rank, that is an error, since any number given to
    the others could be another file's.

    Raises:
        UsageError: two profiles claim the same rank, or only some tell theirs.
    """
    told = [_told(summary) for summary in summaries]
    sizes = {summary.world_size for summary in summaries if summary.world_size is not None}
    if len(sizes) > 1:
        raise UsageError(
            f"the profiles are of different runs: they record world sizes of {', '.join(map(str, sorted(sizes)))}. "
            "Give the files of one run"
        )
    if any(found is None for found, _ in told):
        if known := [summary.source for (found, _), summary in zip(told, summaries, strict=True) if found is not None]:
            unknown = next(summary.label for (found, _), summary in zip(told, summaries, strict=True) if found is None)
            raise UsageError(
                f"{unknown} does not tell its rank, but {known[0]} does: name every file after its rank (…rank0…, "
                "…rank1…), or none"
            )
        told = [(place, "order") for place in range(len(summaries))]
    ranks = [found for found, _ in told if found is not None]
    for place, rank in enumerate(ranks):
        if rank in ranks[:place]:
            first, second = summaries[ranks.index(rank)].label, summaries[place].label
            raise UsageError(
                f"{first} and {second} are both rank {rank}. Give one profile of each rank, all of one run; where the "
                "files' own record is wrong, analyse them apart"
            )
    size = sizes.pop() if sizes else None
    present = set(ranks)
    missing = tuple(rank for rank in range(size) if rank not in present) if size is not None else ()
    return Placing(tuple(ranks), tuple(how for _, how in told), size, missing)


def _told(summary: RankSummary) -> tuple[int | None, str]:
    if summary.parts > 1:
        return None, "order"
    if summary.rank is not None:
        return summary.rank, "file"
    named = rank_in_name(summary.source)
    return (named, "name") if named is not None else (None, "order")
