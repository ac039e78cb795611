"""The kernels of a window as a program: in order, with properties by their names and grids, and the patterns for rules.

It works for profiles with and without recorded shapes. The meaning of a kernel's name is declared here once (`MARKS`);
the meaning of a sequence of kernels is up to the rules.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.frames import numbered, running_sum
from warplens.analysis.headroom import names
from warplens.analysis.intervals import edges_until
from warplens.analysis.kernel_names import PRODUCTS
from warplens.analysis.operators.statistics import LEVELS, levels_of_work
from warplens.analysis.trees import NO_RANGE
from warplens.diagnosis.findings import PASSES
from warplens.profile.schema import Bools, Float64s, Int64s, name_categories, texts_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from warplens.analysis.frames import Spent
    from warplens.diagnosis.facts import Facts

Int32s = npt.NDArray[np.int32]
_Value = TypeVar("_Value", bound=np.generic)

#: Search for the largest or smallest value, with its place.
_CHOOSES: Final = r"ArgM(?:ax|in)"
_SEARCHES: Final = rf"MaxOps|MinOps|{_CHOOSES}"
_JOINS: Final = r"CatArrayBatchedCopy|cat_kernel"

#: Mark → pattern of the full names of kernels that have it. Add names of new libraries here.
MARKS: Final = {
    **names.MARKS,
    "log-softmax": r"LogSoftMax|log_softmax|softmax_warp_(?:forward|backward)<[^>]*, *(?:\(bool\))?(?:1|true)\b",
    "backward": r"(?i:backward|bprop|dgrad|wgrad|_bwd)|Bwd",
    # Backward kernels that no forward pass launches; without dgrad, which transposed convolutions use forward.
    "differentiating": r"(?i:backward|bprop|wgrad|_bwd)|Bwd",
    "layout-conversion": r"(?i)nchwtonhwc|nhwctonchw|nchwtofolded|foldednhwc|addpadding|transpose_readwrite",
    "channels-last": r"(?i)nhwc|channels_last",
    # Operands that the compiler pads for a kernel.
    "padding": r"constant_pad",
    "concatenation": _JOINS,
    # Numbers that are joined to others, or of which the largest is chosen, also in kernels of a compiler.
    "joined-or-chosen": rf"{_JOINS}|{_CHOOSES}|^triton_\w*_(?:cat|argmax|argmin)(?:_|\b)",
    # The sum of a product that was split along its inner side.
    "summing-parts": r"(?i)split_?kreduce",
    # A product that adds the bias of a linear layer.
    "adding-bias": r"^nvjet_\w*_bias_",
    "averaging": r"reduce_kernel.*MeanOps",
    "rolling": r"roll_cuda_kernel",
    # Positions, which are made without any input.
    "counting": r"arange_cuda_out|linspace_cuda_out",
    # One time step of a recurrent network in separate kernels.
    "recurrent-cell": r"(?i)(?:lstm|gru)_cell",
    # Fourier transforms of a length with a large prime factor.
    "bluestein": r"(?i)bluestein",
    "foreach": r"multi_tensor_apply_kernel",
    # Of PyTorch, Apex, DeepSpeed and Transformer Engine: one functor makes the whole update.
    "fused-optimizer": r"FusedOptimizer|FusedAdam|FusedSgd|fused_adam|fused_sgd"
    r"|(?<!\w)(?:Adam|Adagrad|LAMB|Lion|NovoGrad|SGD)\w*Functor",
    "depthwise": r"(?i)depthwise|dgrad2d_grouped|grouped_direct|conv2d_c1_k1|dw_conv",
    "adding-rows": r"indexFunc|index_add|index_put|index_copy|scatter|indexing_backward",
    # Test for NaN: any-of reduces the comparison of a tensor with itself. Tokens, in contrast, are compared with one
    # number.
    "any-of": r"or_kernel_cuda",
    "of-itself": r"BinaryFunctor<(?:float|double|c10::BFloat16|c10::Half), .*CompareEqFunctor",
    # Rows added in the order of their sorted indices, and the checks, sorts and arithmetic that prepare the indices.
    "sorted-adding": r"indexing_backward_kernel",
    "on-indices": r"RadixSort|DeviceScan|_assert_async|arange_cuda_out|[<(, ]long(?: long)?[>,]",
    # Copies of whole rows, 16 bytes at a time.
    "picking-rows": r"vectorized_gather_kernel<(?:\(int\))?16\b",
    "triangle": r"triu_tril_kernel",
    "sorting-long-rows": r"Device(?:Segmented)?RadixSort",
    # Kernels of torch.topk: they select, and sort only what they selected.
    "selecting-largest": r"(?i)topk|radixFind|computeBlock(?:Digit|wise)\w*Counts|computeDigitCumSum",
    # Rows that are summed as they are read: EmbeddingBag, and the tables of FBGEMM, whose backward pass also updates
    # each row as it sums its gradient.
    "summing-rows": r"(?i)embedding_?bag\w*(?:output|forward)|split_embedding",
    # The keys of a sort have the first type among its template arguments.
    "sorting-values": r"(?i)sort\w*<(?:(?:\(int\))?-?\d+, |[\w:]*policy_hub<)*(?:float|double|c10::(?:BF|H)\w+)\b",
    "embedding-gradient": r"(?i)embedding\w*(?:backward|grad)|compute_grad_weight|sum_and_scatter",
    # Nonlinear functions: a turn of a loop with one needs the turn before, or is a layer.
    "nonlinear": r"(?i)tanh|sigmoid|gelu|silu|mish|relu|clamp|threshold|hardswish|softplus|lstm_cell|gru_cell|"
    rf"exp\d?_kernel|log_kernel|log\d+p?_kernel|sqrt|reciprocal|pow_|{_SEARCHES}|maximum|minimum|erf",
    "searching": _SEARCHES,
    "filling": r"FillFunctor",
    "clearing": r"ZeroFunctor|foreach_zero",
    "adding": r"CUDAFunctor_add<|[: ]AddFunctor<",
    # What makes the terms of a sum of products, and the sums: of squares, for norms.
    "multiplying": r"(?:Mul|Div)Functor|pow_tensor_scalar|neg_kernel|masked_fill_kernel",
    "summing-up": r"reduce_kernel.*(?:sum_functor|NormTwoOps)",
    # Batch norms with statistics of training, and those that work out statistics.
    "inferring-norm": r"batch_norm_(?:transform_input|elemt)|bn_fw_inf|BatchNormFwdInfer",
    # A weight from its direction and length.
    "weight-norm": r"weight_norm_fwd",
    "batch-statistics": r"batch_norm_collect_statistics|bn_fw_tr",
    "adding-a-number": r"CUDAFunctorOnSelf_add<",
    "adding-floats": r"CUDAFunctor_add<float>",
    "weight-gradient": r"(?i)wgrad",
    # Sums over rows (for biases) and gradients of a norm's parameters.
    "parameter-sum": r"reduce_kernel<(?:\(int\))?128, *(?:\(int\))?4\b|GammaBeta|batch_norm_backward_reduce|bn_bw",
    # Collectives of programs whose ranks update all parameters that they have: none is gathered or scattered.
    "summed-or-exchanged": r"(?i)all_?reduce|send_?recv|all_?to_?all",
    # Collectives of gradients under data parallelism.
    "summing": r"(?i)all_?reduce|reduce_?scatter",
    # Collectives of parameters that are split over ranks.
    "gathering": r"(?i)all_?gather",
    "choosing": r"where_kernel_impl",
    # Search for rows of scores that are masked completely.
    "unseen-rows": r"isneginf",
    # Casts from 32 to 16 bits, as by autocast of weights and inputs; before PyTorch 2.3, copies that cast on load.
    "narrowing": r"(?<!\w)b?float16_copy_kernel|direct_copy_kernel.*lambda\(c10::(?:BFloat16|Half)\).*LoadWithCast",
    # Operands of 16 bits, by the first type of the template; the product may be in 32 bits.
    "narrow-operands": r"^[^<(]*<(?:__nv_bfloat16|__half|c10::BFloat16|c10::Half)\b",
    # Operands in 8 bits or fewer.
    "quantized": r"(?i)fp4|e2m1|fp8(?!kv)|e4m3|e5m2|float8|int8|s8s8|w[48]a(?:8|16)|awq|gptq|marlin",
    "selecting": r"DeviceSelect|nonzero|flagged_select",
    # Kernels of a compiler: Inductor, XLA, TensorRT.
    "generated": r"^triton_|^(?:\w+_)?fusion(?:_\w+)?$|^wrapped_|^__myl_|generatedNative",
    # Operations of a generated kernel: copies that are no casts (`_to_copy`), and views of fewer numbers.
    "copying": r"^triton_poi_.*(?:(?<!_to)_copy(?:_|\b)|_clone(?:_|\b)|_(?:select|slice)_scatter)",
    "expanding": r"_expand",
    "vector-product": r"(?i)gemv|split_?kreduce|dot_kernel|gemmSN|gemmk1"
    r"|nvjet_(?:[a-z]+\d*_)+(?:\d+x(?:8|16)|(?:8|16)x\d+)_",
    "enlarging": r"upsample",
    "strided": r"(?<![a-z_])elementwise_kernel<",
}


@cache
def _pattern(mark: str) -> re.Pattern[str]:
    return re.compile(MARKS[mark])


def _read_only(values: Bools) -> Bools:
    """The array, made read-only because several rules share it."""
    values.flags.writeable = False
    return values


class Program:
    """The pieces of work of a window in stream order. Arrays have one value per row of `Facts.work`.

    Attributes:
        order: rows of `Facts.work`, by device, stream and start.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._whole = facts.whole.program if facts.whole is not None else None
        work = facts.work
        self.order: Int64s = self._ordered()
        self._in_order = bool((self.order[1:] > self.order[:-1]).all())
        self.own_ns: Int64s = work["own_ns"].to_numpy()
        self.is_kernel: Bools = (work["kind"] == "kernel").to_numpy()
        self.step: Int32s = self._steps()
        self._cached: dict[tuple[str, ...], Bools] = {}  # answers of `marked`, `labelled` and `having`
        self._columns: dict[str, tuple[list[str], npt.NDArray[np.integer[Any]]]] = {}  # answers of `_codes`
        self._matches: dict[str, Bools] = {}  # mark → which names of kernels match it

    def in_order(self, values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        """Values of the pieces in stream order; not a copy if that is the order of `Facts.work`."""
        return values if self._in_order else values[self.order]

    def _ordered(self) -> Int64s:
        if self._whole is not None:  # a part keeps the order of the whole
            if self._whole._in_order:
                return np.arange(len(self.facts.part))
            row_of_part = np.full(len(self._whole.order), -1, dtype=np.int64)
            row_of_part[self.facts.part] = np.arange(len(self.facts.part))
            rows = row_of_part[self._whole.order]
            return rows[rows >= 0]
        work = self.facts.work
        stream, device = work["stream"].to_numpy(), work["device"].to_numpy()
        if len(stream) and (stream == stream[0]).all() and (device == device[0]).all():
            return np.arange(len(stream))  # work is gathered in order of time, device by device
        return np.lexsort((stream, device))

    def _steps(self) -> Int32s:
        """How many steps have begun before each piece, its own included; 0 before the first step."""
        if self._whole is not None:
            return self._whole.step[self.facts.part]
        steps = np.array([step.start_ns for step in self.facts.window.steps], dtype=np.int64)
        return edges_until(steps, self.facts.work["start_ns"].to_numpy()).astype(np.int32)

    @property
    def _kernel_row(self) -> Int64s:
        """Row of `Trace.kernels` of each piece; 0 for other work."""
        return np.where(self.is_kernel, self.facts.work["row"].to_numpy(), 0)

    @cached_property
    def _names_and_codes(self) -> tuple[list[str], Int32s]:
        if self._whole is not None:
            texts, codes = self._whole._names_and_codes
            return texts, codes[self.facts.part]
        names = self.facts.timeline.trace.kernels["full_name"]
        if not names.len():
            return [], np.zeros(len(self.own_ns), dtype=np.int32)
        return name_categories(names).to_list(), names.to_physical().to_numpy()[self._kernel_row].astype(np.int32)

    def full_names(self) -> list[str]:
        """Full names of all kernels of the file."""
        return self._names_and_codes[0]

    @property
    def name_codes(self) -> Int32s:
        """Index in `full_names` of the name of each piece's kernel."""
        return self._names_and_codes[1]

    def marked(self, mark: str) -> Bools:
        """Which kernels have a name that matches one of `MARKS`."""
        names = self._names_with(mark)
        if not names.any():
            return self._none
        return self._remembered(("mark", mark), lambda: names.take(self.name_codes) & self.is_kernel)

    def _names_with(self, mark: str) -> Bools:
        """Which of `full_names` match one of `MARKS`."""
        if self._whole is not None:
            return self._whole._names_with(mark)
        if mark not in self._matches:
            texts = name_categories(self.facts.timeline.trace.kernels["full_name"])
            self._matches[mark] = texts_with(texts, _pattern(mark))
        return self._matches[mark]

    def give_up(self) -> None:
        """Frees cached answers, except those that the programs of phases need."""
        _ = self._names_and_codes, self._launch_kind  # computed now, before phases take over their columns
        self._cached.clear()
        self._columns.clear()

    def labelled(self, *labels: str) -> Bools:
        """Which pieces are kernels of these categories."""
        return self._remembered(labels, lambda: self._with_value("label", labels) & self.is_kernel)

    @property
    def products(self) -> Bools:
        """Kernels of matrix products, attention and convolutions."""
        return self.labelled(*PRODUCTS)

    @property
    def passes(self) -> Bools:
        """Kernels that pass over memory (`PASSES`)."""
        return self.labelled(*PASSES)

    @property
    def optimizing(self) -> Bools:
        """Work of an optimizer, by a range or by the kernel."""
        return self._remembered(("optimizing",), lambda: self.labelled("optimizer") | self.having("phase", "optimizer"))

    def having(self, column: str, *values: str) -> Bools:
        """Which pieces have one of these values in an enumeration column of `Facts.work`."""
        return self._remembered((column, *values), lambda: self._with_value(column, values))

    def _remembered(self, key: tuple[str, ...], find: Callable[[], Bools]) -> Bools:
        """The pieces that are found, read-only because several rules share them."""
        if key not in self._cached:
            found = find()
            self._cached[key] = _read_only(found) if found.any() else self._none
        return self._cached[key]

    def _with_value(self, column: str, values: tuple[str, ...]) -> Bools:
        """`having`, without the cache. A few comparisons of small codes are faster than looking each code up."""
        categories, numbers = self._codes(column)
        wanted = [categories.index(value) for value in values if value in categories]
        found: Bools = numbers == wanted[0] if wanted else np.zeros(len(numbers), dtype=np.bool_)
        for code in wanted[1:]:
            found |= numbers == code
        return found

    def _codes(self, column: str) -> tuple[list[str], npt.NDArray[np.integer[Any]]]:
        """The values of an enumeration column of `Facts.work`, and the position of each piece's; null: their number."""
        if column not in self._columns:
            series = self.facts.work[column]
            categories, codes = name_categories(series).to_list(), series.to_physical()
            self._columns[column] = categories, codes.fill_null(len(categories)).to_numpy()
        return self._columns[column]

    @cached_property
    def _none(self) -> Bools:
        """No piece; shared, because most marks do not occur."""
        return _read_only(np.zeros(len(self.own_ns), dtype=np.bool_))

    def blocks(self, rows: Int64s) -> Float64s:
        """Blocks in the grid of each of these pieces; nan for other work than kernels, and if not recorded."""
        of_rows: Float64s = self._launch_sizes[0][self._launch_kind[rows]]
        return of_rows

    def threads(self, rows: Int64s) -> Float64s:
        """Threads in the grid of each of these pieces; nan like `blocks`."""
        of_rows: Float64s = self._launch_sizes[1][self._launch_kind[rows]]
        return of_rows

    @property
    def stacked(self) -> Bools:
        """Kernels whose grid has several layers (z); none if grids were not recorded.

        A library's product of a matrix and a vector has one layer; a batch of them has a layer per matrix.
        """
        return self._with_grid("grid_z", 2)

    def _with_grid(self, side: str, least: int) -> Bools:
        """Kernels with at least so many blocks along a side of their grid; none if grids were not recorded."""
        kernels = self.facts.timeline.trace.kernels
        if not kernels.height:
            return self._none
        enough = (kernels[side] >= least).fill_null(value=False).to_numpy()
        return np.asarray(self.is_kernel & enough[self._kernel_row], dtype=np.bool_)

    def picking(self, least_bytes: int) -> Bools:
        """Gathers of rows of at least so many bytes, by their grid: PyTorch's vectorized gather copies whole rows.

        Each row has blocks of its own, along y, of which each copies 4 KiB: 256 threads, 16 bytes each.
        """
        return self.marked("picking-rows") & self._with_grid("grid_y", least_bytes // 4096)

    @cached_property
    def _launch_sizes(self) -> Float64s:
        """Blocks and threads in the grid of each row of `LaunchKinds.table`, and nan for work that is no kernel."""
        if self._whole is not None:
            return self._whole._launch_sizes
        sizes = self.facts.timeline.launch_kinds.table.select("blocks", threads=pl.col("blocks") * pl.col("threads"))
        known = sizes.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return np.append(known, [[np.nan, np.nan]], axis=0).T

    @cached_property
    def _launch_kind(self) -> Int32s:
        """Row in `LaunchKinds.table` of each piece's kernel; −1 for other work."""
        if self._whole is not None:
            return self._whole._launch_kind[self.facts.part]
        of_kernel = self.facts.timeline.launch_kinds.of_kernel
        if not len(of_kernel):
            return np.full(len(self.own_ns), -1, dtype=np.int32)
        return np.where(self.is_kernel, of_kernel[self._kernel_row], np.int32(-1))

    def kernels_in_order(self) -> Int64s:
        """The rows of all kernels, in stream order."""
        return self.order[self.in_order(self.is_kernel)]

    @cached_property
    def breaks(self) -> Bools:
        """In `order`: whether a piece has another stream, device or step than the piece before it."""
        step = self.in_order(self.step)
        breaks = np.ones(len(step), dtype=np.bool_)
        np.not_equal(step[1:], step[:-1], out=breaks[1:])
        for column in ("device", "stream"):
            number = self.in_order(self.facts.work[column].to_numpy())
            breaks[1:] |= number[1:] != number[:-1]
        return breaks

    def names(self) -> Int64s:
        """A number for each piece: equal for kernels of the same short name, and for other work of the same label."""
        kernels = self.facts.timeline.trace.kernels["name"]
        codes = (
            kernels.to_physical().to_numpy()[self._kernel_row].astype(np.int64) if kernels.len() else self._kernel_row
        )
        others = self.facts.work["label"].to_physical().to_numpy().astype(np.int64)
        return np.where(self.is_kernel, codes, -1 - others)

    def launched_as(self, rows: Int64s) -> Int64s:
        """A number for each of these pieces: equal for kernels of the same full name and number of blocks."""
        of_rows: Int64s = np.append(self._launch_keys, -1)[self._launch_kind[rows]]
        return of_rows

    @cached_property
    def _launch_keys(self) -> Int64s:
        """A number for each row of `LaunchKinds.table`: equal for the same full name and number of blocks."""
        return numbered(self.facts.timeline.launch_kinds.table, ("full_name", "blocks"))[1]

    @cached_property
    def thread(self) -> Int32s:
        """The thread that launched each piece; −1 if unknown."""
        if self._whole is not None:
            return self._whole.thread[self.facts.part]
        threads = self.facts.timeline.work["thread"].fill_null(-1).to_numpy()
        return np.asarray(threads[self.facts.rows], dtype=np.int32)

    def shapes(self) -> pl.Series:
        """Input shapes of the innermost operator around each piece, as JSON; null if not recorded."""
        return self.recorded("input_shapes")

    def recorded(self, column: Literal["input_shapes", "input_types"]) -> pl.Series:
        """This text of the innermost operator around each piece, as JSON; null if not recorded."""
        timeline = self.facts.timeline
        if not timeline.has_operators:
            return pl.repeat(None, len(self.own_ns), dtype=pl.String, eager=True)
        rows = pl.DataFrame({"range": timeline.places.operator[self.facts.rows]})
        table = timeline.trace.operators.select("range", pl.col(column).cast(pl.String))
        return rows.join(table, on="range", how="left", maintain_order="left")[column]

    def places(self, spent: Spent, most: int = 3) -> tuple[str, ...]:
        """Modules or Python functions with most of this time, the largest first; empty if Python was not recorded."""
        timeline = self.facts.timeline
        if not timeline.has_operators or not timeline.trace.python_functions.height:
            return ()
        places, texts = timeline.places, timeline.trace.python_functions["name"]
        time_by_name: dict[str, float] = {}
        levels = levels_of_work(timeline, places)
        amounts = spent.ns.astype(np.float64)
        rows = self.facts.rows[spent.at]
        for row, amount in zip(rows[amounts > 0].tolist(), amounts[amounts > 0].tolist(), strict=True):
            is_module = LEVELS[int(levels.level[row])] == "module"
            function = int(levels.row[row]) if is_module else int(places.function[row])
            if function != NO_RANGE:
                name = str(texts[function])
                time_by_name[name] = time_by_name.get(name, 0.0) + amount
        return tuple(sorted(time_by_name, key=lambda name: (-time_by_name[name], name))[:most])

    @cached_property
    def gap_next(self) -> Int32s:
        """Row of `Facts.work` that ended each pause; −1 for none."""
        work, gaps = self.facts.work, self.facts.gaps  # both in order of time, device by device
        if len(self.facts.budgets) == 1:
            # From the first work after each pause on, the next that owns time and belongs to this phase.
            budget = self.facts.budgets[0]
            owning, ended_by = budget.owned_ns > 0, budget.gaps.ended_by
            if self._whole is not None:
                rows, ended_by = np.flatnonzero(owning)[self.facts.part], ended_by[self.facts.gap_part]
                owning = np.zeros(len(owning), dtype=np.bool_)
                owning[rows] = True
            following = running_sum(owning)[ended_by]
            following[following == work.height] = -1
            return np.asarray(following, dtype=np.int32)
        ended_by_row = np.full(gaps.height, -1, dtype=np.int32)
        for device in gaps["device"].unique():
            rows = np.flatnonzero((work["device"] == device).to_numpy())
            pauses = np.flatnonzero((gaps["device"] == device).to_numpy())
            starts = work["start_ns"].to_numpy()[rows]
            after = np.searchsorted(starts, gaps["end_ns"].to_numpy()[pauses], side="left")
            ended_by_row[pauses] = np.append(rows, -1)[after]
        return ended_by_row

    def of_gaps(self, values: Float64s | Bools) -> Float64s:
        """The value of the piece that ended each pause; 0 for none."""
        return np.append(values, 0.0)[self.gap_next]

    def by_step(self) -> Iterator[Int64s]:
        """The rows of `Facts.work` of each step, in stream order."""
        step = self.in_order(self.step)
        order = self.order
        if (step[1:] < step[:-1]).any():
            places = np.argsort(step, kind="stable")
            step, order = step[places], order[places]
        edges = np.flatnonzero(np.r_[len(step) > 0, step[1:] != step[:-1]])
        for begin, end in pairwise((*edges.tolist(), len(step))):
            yield order[begin:end]

    def runs(self, inside: Bools, *holding: tuple[Bools, int]) -> Iterator[Int64s]:
        """Unbroken sequences of these pieces, as rows of `Facts.work` in stream order.

        Args:
            holding: pieces, and how many of them a sequence needs at least.
        """
        begins, ends = self.edges(inside)
        for which, least in holding:
            places = np.flatnonzero(self.in_order(which))
            enough = np.searchsorted(places, ends) - np.searchsorted(places, begins) >= least
            begins, ends = begins[enough], ends[enough]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            yield self.order[begin:end]

    def runs_before(
        self, inside: Bools, following: Bools, *, over_memsets: bool = False
    ) -> Iterator[tuple[Int64s, int]]:
        """The sequences of `runs` that one of the following pieces comes right after, and the row of that piece.

        Args:
            inside: pieces of the sequences.
            following: pieces that come after one.
            over_memsets: whether memsets in between do not count. Libraries clear a workspace right before a kernel.
        """
        begins, ends = self.edges(inside | self.having("label", "memset") if over_memsets else inside)
        after = np.minimum(ends, len(self.order) - 1)
        found = (ends < len(self.order)) & following[self.order[after]] & ~self.breaks[after]
        for begin, end in zip(begins[found].tolist(), ends[found].tolist(), strict=True):
            run = self.order[begin:end]
            if len(run := run[inside[run]]):
                yield run, int(self.order[end])

    def edges(self, inside: Bools) -> tuple[Int64s, Int64s]:
        """The sequences of `runs` as begins and ends in `order`."""
        ordered = self.in_order(inside)
        if not ordered.any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        begins = np.flatnonzero(self.breaks | np.r_[True, ordered[1:] != ordered[:-1]])
        ends = np.r_[begins[1:], len(ordered)]
        return begins[ordered[begins]], ends[ordered[begins]]
