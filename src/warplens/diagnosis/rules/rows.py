"""Rule for rows that are gathered from a table and added to it, and for gradients as large as the table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, NamedTuple

import numpy as np
import polars as pl

from warplens.analysis.headroom.shapes import tensors_of
from warplens.diagnosis.claims import Claims
from warplens.diagnosis.facts import Facts
from warplens.diagnosis.findings import USUAL, Finding, Remedy, Variant
from warplens.diagnosis.frameworks import framework_of
from warplens.diagnosis.rule import Limit, first_of, remembered
from warplens.diagnosis.structure import StructureRule, gathered_operands, time_beside, time_of
from warplens.profile.schema import Bools, Float64s, Int64s

#: Elements per block of kernels on lists of tensors.
OF_A_BLOCK: Final = 65_536
#: Elements per thread of other kernels. Newer PyTorch kernels take twice as many; the memory's rate shows which.
_OF_A_THREAD: Final = 4
_FP32_BYTES: Final = 4
#: Dimensions of the operands of a batched product.
_BATCHED: Final = ("matrix", "row", "column")


@dataclass(frozen=True, eq=False)
class Dense:
    """Gradients of whole tables of which a step used few rows."""

    share: Float64s  #: share of each piece of work that goes away if the gradient has only the used rows
    calls: Float64s  #: share of the host's time for issuing each piece that goes away
    used_share: float  #: upper limit of the used rows, of those written


class ScatteredAccess(StructureRule):
    """Gathers, scatters, index operations and gradients of embeddings."""

    id = "scattered-access"
    question = "Does the time go into gathering and scattering rows, or into gradients of unused rows?"
    limiter = "gathers, scatters and gradients of embeddings"
    cause = (
        "gather, scatter, indexing, embedding gradients with the sorts that they need, and dense gradients of "
        "large tables"
    )
    raised_when = (
        "they take a quarter of the time, or gradients of whole tables are written and applied although a step "
        "uses few of their rows; and it costs 2 %"
    )
    claimed = (
        "all but one access of rows that are gathered and scattered without a matrix product in between, the "
        "passes over them, and sorts of indices; matrices that are gathered for a batched product, and its repeated "
        "reading of them; the share of unused rows of dense gradients and their optimizer"
    )
    headline = (
        "Limited by scattered memory access: {share} of the time could be saved if rows were not copied out or "
        "added one by one"
    )
    title = "Rows are gathered and scattered one by one through memory"
    dense: ClassVar = Variant(
        "Gradients of whole embedding tables are written and applied, although a step uses few rows",
        refutation="Freeze the table in a test (table.weight.requires_grad_(False)): if the step is not faster, its "
        "dense gradient was not the limit.",
    )
    matrices: ClassVar = Variant(
        "A matrix is copied for each row, and a batched product reads the copies",
        "Limited by matrices, such as weights of experts, that are copied for each row: {share} of the time could be "
        "saved if products read them where they lie",
        "Sort a few rows by their matrix and multiply each group by one copy of it: if that is not faster, "
        "the copies were not the limit.",
    )
    evidence: ClassVar = {
        "scattered_per_step": "gathers, scatters and sorts of a step",
        "used_rows_share": "upper limit of the rows used per step, of the rows of tables with dense gradients",
    }
    refutation = (
        "Replace the indices with 0, 1, 2, … in a test: if the kernels are as slow, the number of bytes is the "
        "limit, not their order."
    )
    thresholds = ("bandwidth_kernel_ns",)
    least_share = Limit(0.25, "Every network looks up embeddings; below a quarter of its time they are not the limit.")
    saved_share = Limit(
        0.66,
        "An embedding bag reads and sums rows in one access instead of writing copies of rows and reading them again.",
    )
    added_saved_share = Limit(
        0.8,
        "Rows are read, written, read again, and added to rows that are read and written: a sparse product makes "
        "one of these five accesses.",
    )
    over_peak = Limit(
        2, "A sum over sorted rows takes this many times what its bytes take at the peak rate of the memory."
    )
    sorted_saved_share = Limit(
        1 / 3,
        "A selection of the largest few (topk) reads all numbers once for each digit, as the sort does; it saves the "
        "sort's writes in between.",
    )
    selected_saved_share = Limit(
        6 / 7,
        "A sort of long rows goes through memory once for each digit: it counts the keys (4 bytes), reads and writes "
        "them with their places (24). A selection of the largest few only counts.",
    )
    over_sorted_share = Limit(
        0.01, "Least share of such a sort's time that a pass over its keys takes: it moves 4 of some 150 bytes."
    )
    needed_share = Limit(
        1 / 16,
        "A matrix product that gathers or scatters the rows itself still moves them once, at the rate of the "
        "memory at best; it cannot take less than this share of the time of the gather.",
    )
    reach = Limit(4, "Matrix products of a backward pass come in pairs, with partial sums and fills between them.")
    most_used_share = Limit(0.5, "If half of the rows are used, a sparse gradient moves as many bytes as a dense one.")
    near = Limit(
        24, "At most this many launches between the fill of a dense gradient and the kernels that add rows to it."
    )
    most_rows = Limit(16, "A product of more rows with each matrix computes longer than it reads.")
    least_matrix_bytes = Limit(
        65_536, "A matrix of 128 × 256 in 16 bits; rows of activations and of embeddings are shorter."
    )
    least_read_share = Limit(
        0.25,
        "A copy is read and written, and the product reads it once more: half of the time, or a little less from the "
        "cache.",
    )
    freed_calls_share = Limit(0.75, "Share of the launches of a dense gradient that go away: sorts, scans and fills.")

    def makes_launches(self, finding: Finding) -> bool:
        """Whether indices are sorted and checked, with many launches each."""
        return UNSORTED in finding.remedies

    def share(self, facts: Facts) -> Float64s:
        """All but one access of rows that need not be copied, and the unused rows of dense gradients."""
        program = facts.program
        scattered = self._scattered(facts)
        # They are what the remedies advise.
        scattered = scattered & ~program.marked("selecting-largest") & ~program.marked("summing-rows")
        share = np.zeros(facts.work.height)
        least_ns = self.least_share * min(facts.wall_ns, facts.unprofiled_ns())
        if scattered.any() and time_of(program, scattered) >= least_ns:
            share = self._copied(facts, scattered)
            share[self._preparing(facts)] = 1.0
            share = np.maximum(share, self._matrices(facts))
        dense = self._dense(facts)
        return share if dense is None else np.maximum(share, dense.share)

    @remembered
    def _scattered(self, facts: Facts) -> Bools:
        """Gathers and scatters, and PyTorch's sorts: of indices beside them, and of values for a selection.

        A program that sorts by itself, as CUB and Thrust do, needs the sort.
        """
        program = facts.program
        rows = program.labelled("gather-scatter")
        sorts = program.labelled("sort-topk")
        if not sorts.any() or framework_of(facts) != "pytorch":
            return rows
        of_indices = rows.any() or program.marked("embedding-gradient").any()
        return rows | (sorts if of_indices else sorts & program.marked("sorting-values"))

    @remembered
    def _preparing(self, facts: Facts) -> Bools:
        """Kernels that check and sort indices right before rows are added in sorted order; atomics need none."""
        program = facts.program
        preparing = np.zeros(facts.work.height, dtype=np.bool_)
        if not program.marked("sorted-adding").any():
            return preparing
        helping = (program.marked("on-indices") & ~program.marked("sorted-adding")) | ~program.is_kernel
        sorts = program.labelled("sort-topk")
        for run, _ in program.runs_before(helping, program.marked("sorted-adding")):
            preparing[run] = sorts[run].any()
        return preparing

    def _copied(self, facts: Facts, scattered: Bools) -> Float64s:
        """Share saved of gathers and scatters; 0 if a product reads the gathered rows or makes the scattered ones."""
        program = facts.program
        order = program.order
        share = np.zeros(facts.work.height)
        pieces = _Scattered.of(facts, scattered)
        products_ns = program.own_ns * program.products
        reach = int(self.reach)
        begins, ends = program.edges(~program.products)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            run = order[begin:end]
            places = np.flatnonzero(scattered[run])
            if not len(places):
                continue
            around = order[max(begin - reach, 0) : begin], order[end : end + reach]
            before, after = (int(products_ns[rows].max(initial=0)) for rows in around)
            for place in places.tolist():
                share[run[place]] = self._saved_of(pieces, run, place, before, after)
            sorted_values = np.flatnonzero((pieces.values & pieces.long_rows)[run])
            if len(sorted_values):
                share[self._over_sorted(facts, run, sorted_values)] = 1.0
        freed = share > 0
        beside = (time_beside(program, scattered & freed & ~pieces.sorts, reach=2) > 0) & ~scattered
        share[beside] = self.saved_share
        return share

    def _saved_of(self, pieces: _Scattered, run: Int64s, place: int, before: int, after: int) -> float:
        """Share saved of a gather, a scatter or a sort.

        Args:
            run: rows of the work between two products.
            place: of the piece in `run`.
            before, after: time of the longest product near the begin and the end of `run`.
        """
        piece = run[place]
        own = pieces.own_ns
        if pieces.sorts[piece]:
            return self._saved_of_sort(pieces, piece)
        least = self.needed_share * own[piece]
        if pieces.adds[piece]:
            gathers = (pieces.scattered & ~pieces.adds & ~pieces.sorts)[run[:place]] & (own[run[:place]] >= least)
            if gathers.any():
                return self.added_saved_share
            # Many atomic additions to few rows wait for each other: a sum over sorted rows does not.
            summed_ns = self.over_peak * pieces.at_peak_ns[piece]
            return max(self.saved_share, 1 - summed_ns / max(own[piece], 1)) if before < least else 0.0
        later = run[place + 1 :]
        summing = later[pieces.sums[later] & (own[later] >= least)]
        if len(summing):
            return self.added_saved_share if pieces.adds[summing[0]] else self.saved_share
        return self.saved_share if after < least else 0.0

    def _saved_of_sort(self, pieces: _Scattered, piece: int) -> float:
        """Share saved of a sort: of indices, of values, or of values in long rows."""
        if not pieces.values[piece]:
            return self.saved_share
        return self.selected_saved_share if pieces.long_rows[piece] else self.sorted_saved_share

    @remembered
    def _matrices(self, facts: Facts) -> Float64s:
        """Share saved of gathers that copy a matrix for each row, and of the batched products that read the copies.

        Shapes show it: the product has more matrices than the table from which they were gathered, and multiplies few
        rows with each, so that reading is its cost. A product grouped by matrix reads each matrix once. Without such
        shapes, as in a CUDA graph, the structure shows the copies, but not how often a product reads a matrix.
        """
        share = self._copied_matrices(facts).copies.astype(np.float64)
        shapes = facts.program.shapes()
        gathers, products = gathered_operands(facts)
        for gather, product, table, read in zip(
            gathers.tolist(), products.tolist(), shapes.gather(gathers), shapes.gather(products), strict=True
        ):
            repeats = _repeats(table, read, int(self.most_rows))
            if repeats > 1:
                share[gather] = 1.0
                share[product] = 1 - 1 / repeats
        return share

    @remembered
    def _copied_matrices(self, facts: Facts) -> _Copied:
        """Gathers of matrices, later copies of their results, and the products of few rows that read these.

        A picked row is as large as a matrix. As many products as there were gathers in a row follow, and each takes as
        long as reading a copy, of the time that making it takes. A softmax behind them would make them attention, and
        the matrices keys and values.
        """
        program, order = facts.program, facts.program.order
        found = _Copied(*np.zeros((2, len(order)), dtype=np.bool_))
        own = program.own_ns
        long = own >= facts.thresholds.bandwidth_kernel_ns
        narrow = program.labelled("gemm") & program.marked("vector-product")
        moving = program.labelled("copy-cast") & long
        softmax = program.labelled("softmax")
        begins, ends = program.edges(program.picking(int(self.least_matrix_bytes)) & long)
        products = np.append(np.flatnonzero(program.in_order(program.products)), len(order))
        firsts = np.searchsorted(products, ends)
        for begin, end, first in zip(begins.tolist(), ends.tolist(), firsts.tolist(), strict=True):
            *places, after = products[first : first + end - begin + 1]
            gathers, reading = order[begin:end], order[places]
            making_ns = float(np.median(own[gathers]))
            as_long = (own[reading] >= self.least_read_share * making_ns) & (own[reading] <= making_ns)
            is_read = len(reading) == len(gathers) and (narrow[reading] & as_long).all()
            if not is_read or program.breaks[end : places[-1] + 1].any() or softmax[order[end:after]].any():
                continue
            between = order[end : places[-1]]
            found.copies[gathers] = True
            found.copies[between[moving[between] & (own[between] >= self.least_read_share * making_ns)]] = True
            found.products[reading] = True
        return found

    def _over_sorted(self, facts: Facts, run: Int64s, sorts: Int64s) -> Int64s:
        """Passes over all sorted numbers after the last of these sorts, up to the scatter back to their places.

        After a selection, they would go over a few numbers only.
        """
        program = facts.program
        later = run[sorts[-1] + 1 :]
        scatters = np.flatnonzero(program.labelled("gather-scatter")[later])
        later = later[: scatters[0]] if len(scatters) else later
        least = self.over_sorted_share * program.own_ns[run[sorts]].sum()
        over = program.passes[later] & (program.own_ns[later] >= least)
        return np.asarray(later[over], dtype=np.int64)

    @remembered
    def _dense(self, facts: Facts) -> Dense | None:
        """Fills of whole gradients near kernels that add a few rows, and the optimizer's work on these tables."""
        program = facts.program
        adding = program.marked("embedding-gradient")
        if not adding.any():
            return None
        gradient, written, used = self._dense_gradients(facts, adding)
        if not gradient.any():
            return None
        kept = used / written
        share = np.where(gradient, 1 - kept, 0.0)
        applied, unneeded = self._applied(facts, written / facts.steps)
        share = np.maximum(share, applied * (1 - kept))
        freed = (adding | program.labelled("sort-topk")) & ~gradient
        calls = np.where(share > 0, unneeded * share, np.where(freed, float(self.freed_calls_share), 0.0))
        return Dense(share, calls, kept)

    def _dense_gradients(self, facts: Facts, adding: Bools) -> tuple[Bools, float, float]:
        """Fills of gradients of which few rows are used, the numbers that they write, and a limit of those used.

        Args:
            adding: kernels that add rows to gradients.
        """
        program = facts.program
        order = program.order
        fills = program.marked("filling") | program.having("kind", "memset")
        long = facts.lengths >= facts.thresholds.bandwidth_kernel_ns
        places = np.flatnonzero(program.in_order(fills & long))
        at = np.flatnonzero(program.in_order(adding))
        first = np.searchsorted(at, places - int(self.near))
        stop = np.searchsorted(at, places + int(self.near), side="right")
        beside = stop > first
        pieces = order[places[beside]]
        threads = program.threads(order[at])
        gradient = np.zeros(len(order), dtype=np.bool_)
        written = used = 0.0
        elements = _elements(facts, pieces)
        for piece, numbers, begin, end in zip(pieces, elements, first[beside], stop[beside], strict=True):
            touched = float(threads[begin:end].max())
            if not touched <= self.most_used_share * numbers:  # nan, if grids are not recorded, is not
                continue
            gradient[piece] = True
            written += float(numbers)
            used += touched
        return gradient, written, used

    def _applied(self, facts: Facts, tables: float) -> tuple[Float64s, Float64s]:
        """Share of the numbers of each optimizer kernel that belong to tables of so many numbers per step.

        With it, the share of the launches of its operation that could go away: all but one, as the operation goes over
        a list of tensors in parts.
        """
        program = facts.program
        lists = program.marked("foreach")
        applying = program.optimizing | lists
        applied, unneeded = np.zeros((2, len(applying)))
        rows = np.flatnonzero(applying)
        if not len(rows):
            return applied, unneeded
        numbers = np.where(lists[rows], np.nan_to_num(program.blocks(rows)) * OF_A_BLOCK, _elements(facts, rows))
        # One operation goes over all parameters, in one launch or several.
        frame = pl.DataFrame({"name": program.name_codes[rows], "numbers": np.nan_to_num(numbers)})
        per_step = frame.select(pl.col("numbers").sum().over("name"), launches=pl.len().over("name")) / facts.steps
        of_operation = per_step["numbers"].to_numpy()
        # No numbers are known of an operation without a recorded grid.
        large = (of_operation > 0) & (of_operation >= tables / 2)
        applied[rows[large]] = np.minimum(tables / of_operation[large], 1.0)
        in_parts = large & lists[rows]
        unneeded[rows[in_parts]] = 1 - 1 / np.maximum(per_step["launches"].to_numpy()[in_parts], 1)
        return applied, unneeded

    def _shown(self, facts: Facts, claims: Claims) -> Finding | None:
        """The finding: on copied matrices, on dense gradients, or on other scattered rows."""
        program = facts.program
        claimed = claims.of_work(self.id).to_numpy() > 0
        dense = self._dense(facts)
        # Work that goes away is not launched either.
        calls = dense.calls if dense is not None else (self._preparing(facts) & claimed).astype(np.float64)
        matrices = bool((self._matrices(facts) > 0)[claimed].any())
        scattered = self._scattered(facts)
        reading = self._copied_matrices(facts).products
        passes_ns = int(0.97 * time_of(program, claimed | scattered | reading | program.passes))
        return self.seen(
            facts,
            claims,
            variant=first_of((matrices, self.matrices), (dense is not None, self.dense), default=USUAL),
            confidence="medium",
            evidence={
                "scattered_per_step": int(scattered.sum()) / facts.steps,
                "used_rows_share": None if dense is None else dense.used_share,
            },
            bound_ns=passes_ns + (facts.own_idle_ns if matrices else 0),
            replayed=facts.replayed(time=self.share(facts), calls=calls) if calls.any() else None,
            remedies=(_GROUPED,) if matrices else self._remedies(facts, claimed),
        )

    def _remedies(self, facts: Facts, claimed: Bools) -> tuple[Remedy | None, ...]:
        """The remedies of the claimed work, if it copies no matrices."""
        sorted_values = claimed & facts.program.marked("sorting-values")
        return (
            None if self._dense(facts) is None else _SPARSE,
            UNSORTED if (self._preparing(facts) & claimed).any() else None,
            _SELECTED if sorted_values.any() else None,
            *_SUMMED,
        )


class _Copied(NamedTuple):
    """Matrices that are copied for products, as rows of `Facts.work`."""

    copies: Bools  #: gathers of matrices, and later copies of their results
    products: Bools  #: that read them


@dataclass(frozen=True, eq=False)
class _Scattered:
    """Pieces of work that gather, scatter or sort rows, and what they are for."""

    scattered: Bools  #: all of them
    adds: Bools  #: which work adds rows to others
    sorts: Bools  #: which work sorts
    values: Bools  #: which of them sort values, not indices
    long_rows: Bools  #: which work sorts long rows
    sums: Bools  #: which work sums up or adds rows
    own_ns: Int64s  #: time of each piece of work
    at_peak_ns: Float64s  #: time of its bytes at the peak rate of the memory

    @classmethod
    def of(cls, facts: Facts, scattered: Bools) -> _Scattered:
        """Those pieces of work."""
        program = facts.program
        adds = program.marked("adding-rows")
        at_peak = pl.col("theoretical_ns").fill_null(pl.col("owned_ns"))
        return cls(
            scattered=scattered,
            adds=adds,
            sorts=program.labelled("sort-topk"),
            values=program.marked("sorting-values") & scattered,
            long_rows=program.marked("sorting-long-rows"),
            sums=program.labelled("reduction") | adds,
            own_ns=program.own_ns,
            at_peak_ns=facts.at_roof.select(at_peak).to_series().to_numpy(),
        )


@lru_cache(maxsize=1024)
def _repeats(table: str | None, read: str | None, most_rows: int) -> float:
    """How often a batched product reads each matrix of the table that was gathered for it; 0 if it reads others.

    Args:
        table, read: input shapes of the gather and of the product, as JSON lists.
        most_rows: 0 as well if the product multiplies more rows with each matrix.
    """
    gathered = next(iter(tensors_of(table)), ())
    operands = tensors_of(read)[:2]
    if len(operands) < 2 or any(len(shape) != len(_BATCHED) for shape in (gathered, *operands)):
        return 0.0
    for matrices, rows in (operands, operands[::-1]):
        if sorted(matrices[1:]) == sorted(gathered[1:]) and min(rows[1:]) <= most_rows < min(gathered[1:]):
            return matrices[0] / max(gathered[0], 1)
    return 0.0


def _elements(facts: Facts, rows: Int64s) -> Float64s:
    """Numbers that each of these kernels or fills writes, if it writes fp32; nan if grids are not recorded.

    Kernels write vectors of numbers.
    """
    rates = [peaks.bytes_per_s for peaks in facts.peaks if peaks.bytes_per_s]
    written = facts.program.threads(rows) * _OF_A_THREAD
    if rates:
        twice = 2 * written * _FP32_BYTES <= max(rates) / 1e9 * facts.program.own_ns[rows]
        written = np.where(twice, 2 * written, written)
    fills = np.flatnonzero((facts.work["kind"].gather(rows) == "memset").to_numpy())
    if len(fills):
        written[fills] = facts.at_roof["bytes"].gather(rows[fills]).fill_null(0).to_numpy() / _FP32_BYTES
    return written


#: For matrices that are gathered for a batched product.
_GROUPED: Final = Remedy(
    "Group the rows by their matrix",
    "counts = (expert[:, None] == torch.arange(experts, device=x.device)).sum(0)  # torch.bincount would wait\n"
    "ends, order = counts.cumsum(0, dtype=torch.int32), expert.argsort()\n"
    "y = torch.nn.functional.grouped_mm(x[order], weights, offs=ends)  # rows sorted by expert, a matrix read once\n"
    "# before PyTorch 2.10: torch._grouped_mm\n"
    "# rows that choose most matrices: multiply all by all, where they lie, and weigh what was not chosen with 0\n"
    "# transformers: model.set_experts_implementation('grouped_mm'); adapters: one product for each",
    "no matrix is copied, and each is read once",
)

#: For indices that are sorted in order to add rows in their order.
UNSORTED: Final = Remedy(
    "Add rows without sorting their indices",
    "torch.use_deterministic_algorithms(False)  # scatter_add and index_add use atomics then\n"
    "x.index_select(0, index)  # instead of x[index], whose gradient sorts",
    "no checks, sorts and scans of the indices, nor their launches; sums then differ in their last bits",
)

#: For sorts of numbers other than indices.
_SELECTED: Final = Remedy(
    "Select the largest instead of sorting all",
    "values, index = x.topk(20)  # instead of x.argsort(descending=True)[..., :20]",
    "unused numbers are not sorted; a selection still reads all numbers",
)

#: For rows that are copied out, or added one by one.
_SUMMED: Final = (
    Remedy(
        "Sum rows where they are read",
        "# nn.EmbeddingBag instead of nn.Embedding and a mean\n"
        "# a sparse matrix (CSR) times the rows instead of gather and scatter_add over edges\n"
        "# torch.segment_reduce(rows, 'sum', lengths=counts) over sorted rows",
        "no row is copied and read again",
    ),
    Remedy(
        "Sort or deduplicate the indices once",
        "rows, inverse = index.unique(return_inverse=True)  # waits for the GPU; or sorted edges\n"
        "x.index_select(0, index)  # instead of x[index], whose gradient sorts to add in a fixed order\n"
        "# smaller or narrower tables",
        "fewer rows, and neighbouring ones next to each other",
    ),
)

#: For gradients of whole tables.
_SPARSE: Final = Remedy(
    "Keep gradients of used rows only",
    "nn.Embedding(rows, width, sparse=True)  # or nn.EmbeddingBag, with SGD, Adagrad or SparseAdam, no weight_decay\n"
    "# SparseAdam leaves the moments of other rows alone, which changes the training a little\n"
    "# not if the output layer shares its weights (a tied lm_head): then all rows have gradients\n"
    "# torchrec or fbgemm apply them in the backward pass",
    "gradient traffic in proportion to the rows used, not to the table",
)
