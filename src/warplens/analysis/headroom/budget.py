"""The headroom of one device: from the measured step down to the machine's limit, in parts that add up exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from warplens.analysis.frames import numbered
from warplens.analysis.headroom.groups import groups_of, kernels_of_program
from warplens.analysis.headroom.levels import LOSSES, loss_column
from warplens.analysis.headroom.shapes import Rates, rates_of
from warplens.analysis.headroom.work import KNOWN, Pieces, pieces_of
from warplens.analysis.roofs import Roofs, roofs_of
from warplens.analysis.timebudget import TimeBudget, time_budgets
from warplens.analysis.timeline import Timeline
from warplens.analysis.trees import NO_RANGE
from warplens.analysis.window import Window
from warplens.analysis.work.amounts import MATMUL_FAMILIES
from warplens.profile.columns import column, table
from warplens.profile.counters import KernelCounters
from warplens.profile.peaks import VECTOR
from warplens.profile.schema import Column, name_categories

#: The steps down, in order; `limit` is the remainder.
STEPS_DOWN: Final = ("idle", "roof", "avoidable", "precision", "limit")

PARTS: Final = table(
    "headroom",
    "What goes away at one step down from the measured step to the limit, or is left at the limit, of one GPU. "
    "`warplens headroom`; in its JSON and CSV a column `device` stands before these.",
    column(
        "level", help="step down: `idle`, `roof`, `avoidable`, `precision`; `limit` for what is left", title="Step down"
    ),
    "part time_ns step_ns share how confidence",
    Column("owners", pl.List(pl.String()), "operators or kernels that own most of it", title="Mostly"),
    part="idle cause, kernel category, or kind of avoidable work (see [headroom](../explanation/headroom.md))",
    time_ns="of the window; the parts of a GPU sum to the measured time exactly",
    share="share of the measured time",
)  # fmt: skip

GROUPS: Final = table(
    "headroom groups",
    "Equal work of one GPU: calls of one operator with the same shapes, or launches of one kernel. "
    "`data.devices[].groups.rows` of `warplens headroom`; times are of the window.",
    column("name").but(help="operator or kernel"),
    "category kernel",
    column("full_name").but(help="of the kernel that owns most of it; null for copies and fills", nullable=True),
    "input_shapes",
    Column("launch_blocks", pl.Int64, "thread blocks of each launch, where no shapes tell equal work", nullable=True),
    "dtype tensor_cores phase owner",
    column(
        "line", help="Python function and line that most of it comes from; null where none was recorded", kind="text"
    ),
    "calls kernels flops bytes measured_ns theoretical_ns roof_ns",
    Column("limit_ns", pl.Int64, "without what is avoidable, in the format that the tensor cores are made for"),
    *(Column(loss_column(loss), pl.Int64, help_) for loss, help_ in LOSSES.items()),
    column("roof_share", help="`roof_ns` over `measured_ns`", title="Of measured"),
    Column("lacks", pl.String, "why it is above its roof; null where it is close", title="Why above roof"),
    column("known", help=f"how its work is known: {', '.join(f'`{source}`' for source in KNOWN)}"),
    flops="operations of all calls; null where not known",
    bytes="bytes that all calls have to move at least; null where not known",
)  # fmt: skip

#: The step down at which each loss is removed; the others at `avoidable`.
_STEP_OF: Final = {"roof": "roof", "precision": "precision"}
#: Confidence of the avoidable parts: recomputation is observed; a fusion's saving is inferred from neighbouring kernels
#: alone.
_CONFIDENCE: Final = {
    "recomputation": "high", "unfused-attention": "medium", "explicit-mask": "low", "conversion": "medium",
    "fusion": "low", "small-work": "low",
}  # fmt: skip
#: There is no utilisation where the FLOPs of less than this share of the products' time are known.
LEAST_KNOWN: Final = 0.5
#: Where more than this share of the measured time has no model, what is left is not the limit.
MOST_UNMODELLED: Final = 0.1
_NEARLY_ALL: Final = 0.9
_MOST: Final = 0.5
#: Number of owners named by a part.
_OWNERS: Final = 3
#: Least part of the idle time of a cause that an owner named beside it has.
_LEAST_OF_IDLE: Final = 0.1
#: The part of the limit without a model.
NO_MODEL: Final = "no model: counts as measured"
COMMUNICATION: Final = "exposed-communication"
LINKS: Final = "exposed-copies"


@dataclass(frozen=True, eq=False)
class Headroom:
    """The headroom of one device over one window."""

    device: int  #: CUDA ordinal
    window: Window  #: the measured window
    #: steps in the window, with the parts of those that it cuts; 0 without a whole one, and a "step" is then the window
    steps: float
    duration_ns: int  #: measured time of the window; the parts sum to it
    parts: pl.DataFrame  #: `PARTS`, from the top down
    groups: pl.DataFrame  #: `GROUPS`, sorted by possible gain
    pieces: pl.DataFrame  #: `groups.PIECES`
    known_share: float | None  #: share of the busy time whose work (FLOPs, bytes) is known; None without busy time
    product_known_share: float | None  #: the same of products' time; None without products
    #: operations of products, convolutions, attention and recurrent networks as run; `model_flops` excludes recomputed
    #: ones
    flops: int
    model_flops: int
    roofs: Roofs | None  #: the roofs used; None where the GPU is unknown
    rates: Rates  #: throughput of the window, and the floor set by reading its weights

    def after(self, step: str) -> int:
        """Time of the window that remains after a step down (one of `STEPS_DOWN`, or `measured`)."""
        if step == "measured":
            return self.duration_ns
        gone = STEPS_DOWN[: STEPS_DOWN.index(step) + 1]
        removed = self.parts.filter(pl.col("level").is_in(gone) & (pl.col("level") != "limit"))
        return self.duration_ns - int(removed["time_ns"].sum())

    def per_step(self, time_ns: int) -> int:
        """The part of this time per step, in whole nanoseconds."""
        return round(time_ns / max(1, self.steps))

    @property
    def unmodelled_ns(self) -> int:
        """Time of the limit that counts as measured, because nothing tells how fast that work could be."""
        return int(self.parts.filter(pl.col("part") == NO_MODEL)["time_ns"].sum())

    @property
    def unmodelled_share(self) -> float:
        """Share of the measured time for which the limit is not known."""
        return self.unmodelled_ns / self.duration_ns if self.duration_ns else 0.0

    @property
    def limit_known(self) -> bool:
        """Whether what is left after all steps down is the limit: nearly all of the work has a model."""
        return self.unmodelled_share <= MOST_UNMODELLED

    @property
    def to_roof_share(self) -> float | None:
        """Share of the measured time above the practical roof of the kernels that run, idle time included."""
        return 1 - self.after("roof") / self.duration_ns if self.duration_ns else None

    @property
    def peak_format(self) -> str:
        """The format for utilisation: the native one of the tensor cores, or a faster one with most of the FLOPs."""
        if self.roofs is None:
            return "fp32"
        peaks = self.roofs.peaks.flops_per_s
        usual: str = self.roofs.narrow or "fp32"
        by_format = self._products.filter(pl.col("flops") > 0).group_by("dtype").agg(pl.col("flops").sum()).drop_nulls()
        most: list[str] = by_format.sort("flops", "dtype").tail(1)["dtype"].to_list()
        return max([usual, *most], key=lambda name: (peaks.get(name) or 0.0, name == usual))

    @property
    def peak_flops_per_s(self) -> float | None:
        """The peak for utilisation: dense products in `peak_format`.

        None where products are in a format of tensor cores, and no rate of the GPU's tensor cores is known.
        """
        if self.roofs is None or (self.roofs.narrow is None and not self._product_formats <= {*VECTOR}):
            return None
        return self.roofs.peaks.flops_per_s.get(self.peak_format)

    @property
    def _product_formats(self) -> frozenset[str]:
        return frozenset(self._products["dtype"].drop_nulls())

    @property
    def _products(self) -> pl.DataFrame:
        return self.groups.filter(pl.col("category").is_in(MATMUL_FAMILIES))

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation: operations run ÷ (time × peak); None where most products' work is unknown."""
        return self._utilisation(self.flops)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: `hfu` without recomputed operations (PaLM, appendix B)."""
        return self._utilisation(self.model_flops)

    def _utilisation(self, flops: int) -> float | None:
        peak = self.peak_flops_per_s
        if not peak or (self.product_known_share or 0.0) < LEAST_KNOWN or not self.duration_ns:
            return None
        return flops / (self.duration_ns / 1e9) / peak


def headrooms(
    timeline: Timeline,
    window: Window,
    *,
    budgets: Sequence[TimeBudget] | None = None,
    program: Timeline | None = None,
    counters: KernelCounters | None = None,
) -> tuple[Headroom, ...]:
    """One headroom for each device that worked in the window.

    Args:
        timeline: the profile, read with launch configurations.
        window: the part to measure.
        budgets: `time_budgets` of the window, if already computed.
        program: a trace of the same program with shapes; equal kernels give the work of this profile's.
        counters: hardware counters of the same program; measurements replace models.
    """
    budgets = time_budgets(timeline, window) if budgets is None else budgets
    like = next((timeline.trace.capture.device(budget.device) for budget in budgets), None)
    known_kernels = None if program is None else kernels_of_program(program, like)
    return tuple(_headroom(timeline, window, budget, known_kernels, counters) for budget in budgets)


def _headroom(
    timeline: Timeline,
    window: Window,
    budget: TimeBudget,
    known_kernels: pl.DataFrame | None,
    counters: KernelCounters | None,
) -> Headroom:
    """The headroom of the GPU of this time budget."""
    device = timeline.trace.capture.device(budget.device)
    roofs = roofs_of(device)
    pieces = pieces_of(timeline, budget)
    steps = window.step_count
    idle = [*_idle(timeline, budget, pieces)]
    pieces = pieces.only(~pieces.kinds["link"])
    losses, launched = groups_of(
        timeline, pieces, roofs, device, steps=steps, known_kernels=known_kernels, counters=counters
    )
    losses = losses.sort(
        pl.col("measured_ns") - pl.col("limit_ns"), "measured_ns", "name", descending=[True, True, False]
    )
    modelled = [*_losses(losses), *_limit(losses)]
    if roofs is not None and not roofs.measured:
        modelled = [_on_assumed_roofs(part) for part in modelled]
    parts = _parts([*idle, *modelled], budget.duration_ns, steps)
    products = losses.filter(pl.col("category").is_in(MATMUL_FAMILIES))
    flops, recomputed_flops = (int(products[name].sum()) for name in ("flops", "flops_again"))
    groups = GROUPS.conform(losses)
    return Headroom(
        device=budget.device,
        window=window,
        steps=steps,
        duration_ns=budget.duration_ns,
        parts=parts,
        groups=groups,
        pieces=_in_order(timeline, budget, launched),
        known_share=_share(groups, pl.col("known") != "none"),
        product_known_share=_share(products, pl.col("flops") > 0),
        flops=flops,
        model_flops=flops - recomputed_flops,
        roofs=roofs,
        rates=rates_of(timeline, window, groups, roofs),
    )


def _in_order(timeline: Timeline, budget: TimeBudget, launched: pl.DataFrame) -> pl.DataFrame:
    """`PIECES` in the order of the device's work, from the pieces with a roof (named by their `work` row)."""
    rows, piece_rows = timeline.rows_on(budget.device, budget.owned_ns > 0), launched["work"].to_numpy()
    pieces = launched.drop("work")
    if len(rows) == len(piece_rows) and (rows == piece_rows).all():  # one stream and no links
        return pieces
    piece_at = np.full(timeline.work.height, -1, dtype=np.int64)
    piece_at[piece_rows] = np.arange(len(piece_rows))
    index = piece_at[rows]
    piece = pl.Series(index).set(pl.Series(index < 0), None) if (index < 0).any() else pl.Series(index)
    return pieces.select(pl.all().gather(piece))


def _share(table: pl.DataFrame, condition: pl.Expr) -> float | None:
    total = int(table["measured_ns"].sum())
    return int(table.filter(condition)["measured_ns"].sum()) / total if total else None


# --- Parts -----------------------------------------------------------------------------------------------------------

Part = dict[str, Any]


def _part(level: str, part: str, time_ns: int, method: str, confidence: str, owners: list[str]) -> Part:
    return {
        "level": level, "part": part, "time_ns": time_ns, "how": method, "confidence": confidence, "owners": owners,
    }  # fmt: skip


def _on_assumed_roofs(part: Part) -> Part:
    """The part where roofs are the data sheet's times stated factors: models of them are never sure."""
    is_sure = part["how"] == "modelled" and part["confidence"] == "high"
    return {**part, "confidence": "medium"} if is_sure else part


def _idle(timeline: Timeline, budget: TimeBudget, pieces: Pieces) -> Iterator[Part]:
    """Idle time by cause, and the device's other waits: transfers over links that nothing hides.

    A gap belongs to the part of the program that issued the work which ends it, or, where none is known, to that work.
    """
    rows = pieces.rows
    names = name_categories(rows["owner"]).to_list()
    of_piece = rows["owner"].to_physical().cast(pl.Int64).fill_null(NO_RANGE).to_numpy()
    kernels, of_kind = numbered(pieces.kinds.select("name"), ("name",))
    of_piece = np.where(of_piece == NO_RANGE, len(names) + of_kind[pieces.kind], of_piece)
    names += kernels["name"].cast(pl.String).to_list()
    # The name that each row of work belongs to; the last entry stands for none.
    owner = np.full(timeline.work.height + 1, len(names), dtype=np.int64)
    owner[rows["work"].to_numpy()] = of_piece
    issuer = owner[np.r_[timeline.rows_on(budget.device), -1][budget.gaps.ended_by]]
    for cause, cause_ns in budget.gaps.parts.items():
        if cause_ns.total:
            # Whole numbers far below 2⁵³ add up exactly in floating point.
            idle_ns = np.bincount(issuer[cause_ns.at], weights=cause_ns.ns, minlength=len(names))[: len(names)]
            worth_naming = np.flatnonzero(idle_ns >= _LEAST_OF_IDLE * cause_ns.total).tolist()
            longest_first = sorted(worth_naming, key=lambda name: (-idle_ns[name], name))
            yield _part("idle", cause, cause_ns.total, "measured", "high" if cause != "unknown" else "low",
                        [names[name] for name in longest_first[:_OWNERS]])  # fmt: skip
    exposed = pieces.only(pieces.kinds["link"]).wide()
    for name, rows in (
        (COMMUNICATION, exposed.filter(pl.col("kind") == "kernel")),
        (LINKS, exposed.filter(pl.col("kind") != "kernel")),
    ):
        if rows.height:
            yield _part("idle", name, int(rows["owned_ns"].sum()), "measured", "high", _owners(rows, "owned_ns"))


def _losses(table: pl.DataFrame) -> Iterator[Part]:
    for loss in LOSSES:
        column = loss_column(loss)
        lost = table.filter(pl.col(column) > 0)
        if loss in _STEP_OF:
            for (category,), rows in lost.group_by("category", maintain_order=True):
                confidence = _confidence_of(rows, column)
                if loss == "precision" and confidence == "high":  # whether the program allows it, no profile says
                    confidence = "medium"
                yield _part(
                    _STEP_OF[loss], str(category), int(rows[column].sum()), "modelled", confidence,
                    _owners(rows, column),
                )  # fmt: skip
        elif lost.height:
            owners = _owners(lost, column)
            yield _part("avoidable", loss, int(lost[column].sum()), "modelled", _CONFIDENCE[loss], owners)


def _confidence_of(rows: pl.DataFrame, column: str) -> str:
    """High where shapes or counters give nearly all of it, medium where they or another trace give most."""
    total = max(1, int(rows[column].sum()))
    measured_share, known_share = (
        int(rows.filter(pl.col("known").is_in(sources))[column].sum()) / total
        for sources in (["counters", "shapes"], ["counters", "shapes", "trace"])
    )
    return "high" if measured_share > _NEARLY_ALL else "medium" if known_share > _MOST else "low"


def _limit(table: pl.DataFrame) -> Iterator[Part]:
    remaining = table.filter(pl.col("limit_ns") > 0)
    # Of products whose size is not known, the format alone says that they need less than measured.
    is_modelled = (pl.col("known") != "none") | (pl.col("limit_ns") < pl.col("measured_ns"))
    for (category,), rows in remaining.filter(is_modelled).group_by("category", maintain_order=True):
        yield _part("limit", str(category), int(rows["limit_ns"].sum()), "modelled", _confidence_of(rows, "limit_ns"),
                    _owners(rows, "limit_ns"))  # fmt: skip
    unknown = remaining.filter(~is_modelled)
    if unknown.height:
        yield _part("limit", NO_MODEL, int(unknown["limit_ns"].sum()), "measured", "high", _owners(unknown, "limit_ns"))


def _owners(rows: pl.DataFrame, column: str) -> list[str]:
    names = rows.group_by("name").agg(pl.col(column).sum()).sort(column, "name", descending=[True, False])
    return names["name"].head(_OWNERS).to_list()


def _parts(parts: list[Part], duration: int, steps: float) -> pl.DataFrame:
    """The parts in order, with their share and their time per step.

    Times per step are rounded cumulatively, so that they sum to the rounded step.
    """
    order = {level: place for place, level in enumerate(STEPS_DOWN)}
    ranked = sorted(parts, key=lambda part: (order[part["level"]], -part["time_ns"], part["part"]))
    cumulative, step_edges = 0, [0]
    for part in ranked:
        cumulative += part["time_ns"]
        step_edges.append(round(cumulative / max(1, steps)))
    rows: list[Mapping[str, Any]] = [
        {**part, "step_ns": end - begin, "share": part["time_ns"] / duration if duration else 0.0}
        for part, begin, end in zip(ranked, step_edges, step_edges[1:], strict=False)
    ]
    return pl.DataFrame(rows, schema=PARTS.schema)
