"""The kernels of a window as a program: in order, with what names and grids tell, and the patterns that rules look for.

Both kinds of profile have this: a trace that records shapes and a capture that does not. What a kernel's name marks is
declared here once (`MARKS`); what a sequence of kernels means is for the rules.
"""

from __future__ import annotations

import re
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.frames import running_sum
from warplens.analysis.headroom import names
from warplens.analysis.intervals import edges_until
from warplens.analysis.operators.statistics import LEVELS, levels_of_work
from warplens.analysis.trees import NO_RANGE
from warplens.profile.schema import Bools, Float64s, Int64s, name_categories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from warplens.analysis.frames import Spent
    from warplens.diagnosis.facts import Facts

Int32s = npt.NDArray[np.int32]
_Value = TypeVar("_Value", bound=np.generic)

#: What a kernel's full name marks it as. A new library's name for the same thing goes into its line here.
MARKS: Final = {
    **names.MARKS,
    "log-softmax": r"LogSoftMax|log_softmax|softmax_warp_(?:forward|backward)<[^>]*, *(?:\(bool\))?(?:1|true)\b",
    "backward": r"(?i:backward|bprop|dgrad|wgrad|_bwd)|Bwd",
    # Of these, what no forward pass launches: a transposed convolution is the gradient of another's input.
    "differentiating": r"(?i:backward|bprop|wgrad|_bwd)|Bwd",
    "layout-conversion": r"(?i)nchwtonhwc|nhwctonchw|nchwtofolded|foldednhwc|addpadding|transpose_readwrite",
    "channels-last": r"(?i)nhwc|channels_last",
    # Operands widened to what a kernel takes, by the compiler.
    "padding": r"constant_pad",
    "concatenation": r"CatArrayBatchedCopy|cat_kernel",
    "rolling": r"roll_cuda_kernel",
    # Positions, which are made of nothing else.
    "counting": r"arange_cuda_out|linspace_cuda_out",
    # One step of a recurrent network in kernels of its own.
    "recurrent-cell": r"(?i)(?:lstm|gru)_cell",
    # Fourier transforms of a length with a large prime factor.
    "bluestein": r"(?i)bluestein",
    "foreach": r"multi_tensor_apply_kernel",
    # PyTorch's, and those of Apex, DeepSpeed and Transformer Engine: one functor makes the whole update.
    "fused-optimizer": r"FusedOptimizer|FusedAdam|FusedSgd|fused_adam|fused_sgd"
    r"|(?<!\w)(?:Adam|Adagrad|LAMB|Lion|NovoGrad|SGD)\w*Functor",
    "depthwise": r"(?i)depthwise|dgrad2d_grouped|grouped_direct|conv2d_c1_k1|dw_conv",
    "adding-rows": r"indexFunc|index_add|index_put|index_copy|scatter|indexing_backward",
    # Whether any number of a tensor is none: it differs from itself. Tokens are compared with one number.
    "any-of": r"or_kernel_cuda",
    "of-itself": r"BinaryFunctor<(?:float|double|c10::BFloat16|c10::Half), .*CompareEqFunctor",
    # Rows that are added in the order of their sorted indices, and what prepares these: checks, sorts, arithmetic.
    "sorted-adding": r"indexing_backward_kernel",
    "on-indices": r"RadixSort|DeviceScan|_assert_async|arange_cuda_out|[<(, ]long(?: long)?[>,]",
    # The keys of a sort: its first type that is no number of a template.
    "triangle": r"triu_tril_kernel",
    "sorting-long-rows": r"Device(?:Segmented)?RadixSort",
    "sorting-values": r"(?i)sort\w*<(?:(?:\(int\))?-?\d+, |[\w:]*policy_hub<)*(?:float|double|c10::(?:BF|H)\w+)\b",
    "embedding-gradient": r"(?i)embedding\w*(?:backward|grad)|compute_grad_weight|sum_and_scatter",
    # What no sum or product with a constant is: a turn of a loop with it needs the one before, or is a layer.
    "nonlinear": r"(?i)tanh|sigmoid|gelu|silu|mish|relu|clamp|threshold|hardswish|softplus|lstm_cell|gru_cell|"
    r"exp\d?_kernel|log_kernel|log\d+p?_kernel|sqrt|reciprocal|pow_|MaxOps|MinOps|ArgM(?:ax|in)|maximum|minimum|erf",
    "filling": r"FillFunctor",
    "clearing": r"ZeroFunctor|foreach_zero",
    "adding": r"CUDAFunctor_add<|[: ]AddFunctor<",
    "adding-floats": r"CUDAFunctor_add<float>",
    "weight-gradient": r"(?i)wgrad",
    "choosing": r"where_kernel_impl",
    # Rows of scores of which a mask leaves nothing.
    "unseen-rows": r"isneginf",
    # From 32 bits to 16: what autocast does with weights and inputs; before PyTorch 2.3, copies that load others.
    "narrowing": r"(?<!\w)b?float16_copy_kernel|direct_copy_kernel.*lambda\(c10::(?:BFloat16|Half)\).*LoadWithCast",
    # Operands of 16 bits, by the first type of the template: what multiplies them may be in 32.
    "narrow-operands": r"^[^<(]*<(?:__nv_bfloat16|__half|c10::BFloat16|c10::Half)\b",
    # Operands in 8 bits or fewer.
    "quantized": r"(?i)fp4|e2m1|fp8(?!kv)|e4m3|e5m2|float8|int8|s8s8|w[48]a(?:8|16)|awq|gptq|marlin",
    "selecting": r"DeviceSelect|nonzero|flagged_select",
    # By a compiler: Inductor, XLA, TensorRT.
    "generated": r"^triton_|^(?:\w+_)?fusion(?:_\w+)?$|^wrapped_|^__myl_|generatedNative",
    "vector-product": r"(?i)gemv|split_?kreduce|dot_kernel|nvjet_\w+?_(?:\d+x(?:8|16)|(?:8|16)x\d+)_|gemmSN|gemmk1",
    "strided": r"(?<![a-z_])elementwise_kernel<",
}


@cache
def _pattern(mark: str) -> re.Pattern[str]:
    return re.compile(MARKS[mark])


def _fixed(values: Bools) -> Bools:
    """The array, which several rules get, so that none of them may change it."""
    values.flags.writeable = False
    return values


class Program:
    """The pieces of work of a window in the order of their streams. Arrays are alongside `Facts.work`.

    Attributes:
        facts: the window.
        order: rows of `Facts.work`, by device, stream and begin.
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
        self._asked: dict[tuple[str, ...], Bools] = {}  # answers of `marked`, `labelled` and `having`
        self._matches: dict[str, Bools] = {}  # of each mark, the names of kernels that match it

    def in_order(self, values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        """Values of the pieces in the order of their streams; where that is the order of `Facts.work`, as they are."""
        return values if self._in_order else values[self.order]

    def _ordered(self) -> Int64s:
        if self._whole is not None:  # a part keeps the order of the whole
            if self._whole._in_order:
                return np.arange(len(self.facts.part))
            place = np.full(len(self._whole.order), -1, dtype=np.int64)
            place[self.facts.part] = np.arange(len(self.facts.part))
            kept = place[self._whole.order]
            return kept[kept >= 0]
        work = self.facts.work
        stream, device = work["stream"].to_numpy(), work["device"].to_numpy()
        if len(stream) and (stream == stream[0]).all() and (device == device[0]).all():
            return np.arange(len(stream))  # work is gathered in order of time, device by device
        return np.lexsort((stream, device))

    def _steps(self) -> Int32s:
        """How many steps have begun with each piece."""
        if self._whole is not None:
            return self._whole.step[self.facts.part]
        steps = np.array([step.start_ns for step in self.facts.window.steps], dtype=np.int64)
        return edges_until(steps, self.facts.work["start_ns"].to_numpy()).astype(np.int32)

    @property
    def _kernel_row(self) -> Int64s:
        """The row of `Trace.kernels` of each piece; 0 for what is no kernel."""
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
        """For each piece the place of its kernel's name among them."""
        return self._names_and_codes[1]

    def marked(self, mark: str) -> Bools:
        """Which kernels have a name that matches one of `MARKS`."""
        if ("mark", mark) not in self._asked:
            found = self._names_with(mark)
            self._asked["mark", mark] = (
                _fixed(found.take(self.name_codes) & self.is_kernel) if found.any() else self._none
            )
        return self._asked["mark", mark]

    def _names_with(self, mark: str) -> Bools:
        """Which names of kernels match one of `MARKS`."""
        if self._whole is not None:
            return self._whole._names_with(mark)
        if mark not in self._matches:
            texts = self.full_names()
            self._matches[mark] = np.array([_pattern(mark).search(text) is not None for text in texts], dtype=np.bool_)
        return self._matches[mark]

    def give_up(self) -> None:
        """Gives up what was found of single pieces, but for what the programs of phases ask for."""
        _ = self._names_and_codes, self._launch_kind  # found now, if nothing asked yet: phases take their columns over
        self._asked.clear()

    def labelled(self, *labels: str) -> Bools:
        """Which pieces are kernels of these categories."""
        if labels not in self._asked:
            found = self._with_value("label", labels)
            found &= self.is_kernel
            self._asked[labels] = _fixed(found) if found.any() else self._none
        return self._asked[labels]

    def having(self, column: str, *values: str) -> Bools:
        """Which pieces have one of these values in a column of `Facts.work` that is an enumeration."""
        asked = (column, *values)
        if asked not in self._asked:
            found = self._with_value(column, values)
            self._asked[asked] = _fixed(found) if found.any() else self._none
        return self._asked[asked]

    def _with_value(self, column: str, values: tuple[str, ...]) -> Bools:
        """The same, made anew. A few comparisons of small codes take less than to look each code up."""
        given = self.facts.work[column]
        categories = name_categories(given).to_list()
        codes = given.to_physical()
        if codes.null_count():
            codes = codes.fill_null(len(categories))
        numbers = codes.to_numpy()
        wanted = [categories.index(value) for value in values if value in categories]
        found: Bools = numbers == wanted[0] if wanted else np.zeros(len(numbers), dtype=np.bool_)
        for code in wanted[1:]:
            found |= numbers == code
        return found

    @cached_property
    def _none(self) -> Bools:
        """No piece: what most names mark is not there."""
        return _fixed(np.zeros(len(self.own_ns), dtype=np.bool_))

    def blocks(self, rows: Int64s) -> Float64s:
        """Blocks of the grid of each of these pieces; nan where it is no kernel, or not recorded."""
        return self._of_kernels(pl.col("blocks"), rows)

    def threads(self, rows: Int64s) -> Float64s:
        """Threads of the grid of each, likewise."""
        return self._of_kernels(pl.col("blocks") * pl.col("threads"), rows)

    @property
    def stacked(self) -> Bools:
        """Kernels whose grid has several layers (z); not where grids were not recorded.

        A library's product of a matrix and a vector has one; a batch of them has a layer for each matrix.
        """
        kernels = self.facts.timeline.trace.kernels
        if not kernels.height:
            return self._none
        several = (kernels["grid_z"] > 1).fill_null(value=False).to_numpy()
        return np.asarray(self.is_kernel & several[self._kernel_row], dtype=np.bool_)

    def _of_kernels(self, size: pl.Expr, rows: Int64s) -> Float64s:
        """An expression of the sizes of launches for each of these pieces of work."""
        kinds = self.facts.timeline.launch_kinds.table
        # The last stands for what is no kernel.
        sizes = np.append(kinds.select(size.cast(pl.Float64).fill_null(float("nan"))).to_series().to_numpy(), np.nan)
        found: Float64s = sizes[self._launch_kind[rows]]
        return found

    @cached_property
    def _launch_kind(self) -> Int32s:
        """For each piece the row of its kernel in `LaunchKinds.table`; −1 for what is no kernel."""
        if self._whole is not None:
            return self._whole._launch_kind[self.facts.part]
        of_kernel = self.facts.timeline.launch_kinds.of_kernel
        if not len(of_kernel):
            return np.full(len(self.own_ns), -1, dtype=np.int32)
        return np.where(self.is_kernel, of_kernel[self._kernel_row], np.int32(-1))

    @cached_property
    def breaks(self) -> Bools:
        """In `order`: whether a piece is of another stream, device or step than the one before it."""
        step = self.in_order(self.step)
        new = np.ones(len(step), dtype=np.bool_)
        np.not_equal(step[1:], step[:-1], out=new[1:])
        for lane in ("device", "stream"):
            number = self.in_order(self.facts.work[lane].to_numpy())
            new[1:] |= number[1:] != number[:-1]
        return new

    def names(self) -> Int64s:
        """A number for each piece, the same for kernels of the same short name; of other work its label's."""
        kernels = self.facts.timeline.trace.kernels["name"]
        codes = (
            kernels.to_physical().to_numpy()[self._kernel_row].astype(np.int64) if kernels.len() else self._kernel_row
        )
        others = self.facts.work["label"].to_physical().to_numpy().astype(np.int64)
        return np.where(self.is_kernel, codes, -1 - others)

    def launched_as(self, rows: Int64s) -> Int64s:
        """A number for each of these pieces, the same for kernels of the same full name and grid."""
        kinds = self.facts.timeline.launch_kinds.table
        keys = kinds["full_name"].to_physical().to_numpy().astype(np.int64) * 1_000_003
        keys += kinds["blocks"].fill_null(0).to_numpy()
        found: Int64s = np.append(keys, -1)[self._launch_kind[rows]]
        return found

    @cached_property
    def thread(self) -> Int32s:
        """The thread that launched each piece; −1 where that is not known."""
        if self._whole is not None:
            return self._whole.thread[self.facts.part]
        threads = self.facts.timeline.work["thread"].fill_null(-1).to_numpy()
        return np.asarray(threads[self.facts.rows], dtype=np.int32)

    def shapes(self) -> pl.Series:
        """The shapes that the innermost operator around each piece recorded, as JSON; null where there are none."""
        timeline = self.facts.timeline
        if not timeline.has_operators:
            return pl.repeat(None, len(self.own_ns), dtype=pl.String, eager=True)
        rows = pl.DataFrame({"range": timeline.places.operator[self.facts.rows]})
        table = timeline.trace.operators.select("range", pl.col("input_shapes").cast(pl.String))
        return rows.join(table, on="range", how="left", maintain_order="left")["input_shapes"]

    def places(self, spent: Spent, most: int = 3) -> tuple[str, ...]:
        """Where most of these amounts come from: lines of Python, else modules, else nothing."""
        timeline = self.facts.timeline
        if not timeline.has_operators or not timeline.trace.python_functions.height:
            return ()
        found, texts = timeline.places, timeline.trace.python_functions["name"]
        names: dict[str, float] = {}
        levels = levels_of_work(timeline, found)
        amounts = spent.ns.astype(np.float64)
        rows = self.facts.rows[spent.at]
        for at, amount in zip(rows[amounts > 0].tolist(), amounts[amounts > 0].tolist(), strict=True):
            row = int(levels.row[at]) if LEVELS[int(levels.level[at])] == "module" else int(found.function[at])
            if row != NO_RANGE:
                name = str(texts[row])
                names[name] = names.get(name, 0.0) + amount
        return tuple(sorted(names, key=lambda name: (-names[name], name))[:most])

    @cached_property
    def gap_next(self) -> Int32s:
        """For each pause the row of `Facts.work` that ended it; −1 for none."""
        work, gaps = self.facts.work, self.facts.gaps  # both in order of time, device by device
        if len(self.facts.budgets) == 1:
            # Of the first work behind each pause the next that owns time, and is of this phase.
            budget = self.facts.budgets[0]
            owning, ended_by = budget.owned_ns > 0, budget.gaps.ended_by
            if self._whole is not None:
                rows, ended_by = np.flatnonzero(owning)[self.facts.part], ended_by[self.facts.gap_part]
                owning = np.zeros(len(owning), dtype=np.bool_)
                owning[rows] = True
            following = running_sum(owning)[ended_by]
            following[following == work.height] = -1
            return np.asarray(following, dtype=np.int32)
        found = np.full(gaps.height, -1, dtype=np.int32)
        for device in gaps["device"].unique():
            mine = np.flatnonzero((work["device"] == device).to_numpy())
            pauses = np.flatnonzero((gaps["device"] == device).to_numpy())
            starts = work["start_ns"].to_numpy()[mine]
            at = np.searchsorted(starts, gaps["end_ns"].to_numpy()[pauses], side="left")
            found[pauses] = np.append(mine, -1)[at]
        return found

    def of_gaps(self, values: Float64s | Bools) -> Float64s:
        """For each pause the value of the piece that ended it; 0 for none."""
        return np.append(values, 0.0)[self.gap_next]

    def by_step(self) -> Iterator[Int64s]:
        """The rows of `Facts.work` of each step, in order."""
        step = self.in_order(self.step)
        order = self.order
        if (step[1:] < step[:-1]).any():
            places = np.argsort(step, kind="stable")
            step, order = step[places], order[places]
        edges = np.flatnonzero(np.r_[len(step) > 0, step[1:] != step[:-1]])
        for begin, end in pairwise((*edges.tolist(), len(step))):
            yield order[begin:end]

    def runs(self, inside: Bools, *holding: tuple[Bools, int]) -> Iterator[Int64s]:
        """Unbroken sequences (rows of `Facts.work`, in order) of pieces for which this holds.

        Args:
            inside: which pieces.
            holding: only sequences with at least so many of these pieces among them.
        """
        begins, ends = self.edges(inside)
        for which, least in holding:
            places = np.flatnonzero(self.in_order(which))
            enough = np.searchsorted(places, ends) - np.searchsorted(places, begins) >= least
            begins, ends = begins[enough], ends[enough]
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            yield self.order[begin:end]

    def edges(self, inside: Bools) -> tuple[Int64s, Int64s]:
        """The same sequences as begins and ends in `order`."""
        held = self.in_order(inside)
        if not held.any():
            return np.empty(0, np.int64), np.empty(0, np.int64)
        firsts = np.flatnonzero(self.breaks | np.r_[True, held[1:] != held[:-1]])
        ends = np.r_[firsts[1:], len(held)]
        return firsts[held[firsts]], ends[held[firsts]]
