"""Cells of a grid: recognition from file names, the modelled work of their models, and the programs' own times.

Modelled work (parameters, FLOPs, bytes) is that of the transformer language models of Stanford's CS336 assignments; it
follows from shapes alone. A FLOP is one multiplication or one addition: a matrix product of [m, k] and [k, n] takes
2·m·k·n FLOPs (m·k·n multiply-accumulates).

The model: separate q, k, v and output projections, hand-written attention over full (not causal) score matrices, SwiGLU
with three matrices, RMSNorm, untied head, no biases. Vocabulary 10,000. Sizes: assignment 2, editions of spring 2025
(`xl` with d_model 1600 and `2.7B`) and spring 2026 (`xl` with d_model 2560, which is the older `2.7B`, and `10B`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import polars as pl

from warplens.errors import UsageError
from warplens.studies.grid.passes import Spread
from warplens.workloads.settings import LM_SIZES, LMSize

#: Maximum, subtraction, exponential, sum and division: one each for every score.
SOFTMAX_FLOPS_PER_SCORE: Final = 5

#: Launches that the assignment's AdamW makes for one parameter tensor in a step: decay 2, first moment 4, second
#: moment 5, update 5; two of them are fills, from the `zeros_like` that `state.get(…, zeros_like(p))` always evaluates.
REFERENCE_ADAMW_LAUNCHES_PER_TENSOR: Final = 16

#: Bytes that those launches move for one fp32 parameter, caches not counted: 33 reads and writes of the arithmetic and
#: 2 writes of the fills, 4 bytes each.
REFERENCE_ADAMW_BYTES_PER_PARAMETER: Final = (33 + 2) * 4

#: Name of a size in the assignments → the models of that name, sizes from small to large. Where two editions differ
#: (`xl`: d_model 1600 in 2025, 2560 in 2026), the more widespread model comes first.
MODEL_SIZES: Final[Mapping[str, tuple[LMSize, ...]]] = {
    name: tuple(size for key, size in LM_SIZES.items() if key.removesuffix("-2026") == name)
    for name in LM_SIZES
    if name not in ("tiny", "xl-2026")
}

_BILLIONS = re.compile(r"^(\d+)(?:[._p-](\d+))?b$")


def canonical_model(text: str) -> str | None:
    """The key of a size in `MODEL_SIZES` (`2p7b`, `2_7B` → `2.7B`; `SMALL` → `small`); None for any other text."""
    lowered = text.strip().lower()
    if billions := _BILLIONS.match(lowered):
        lowered = f"{'.'.join(filter(None, billions.groups()))}b"
    return next((name for name in MODEL_SIZES if name.lower() == lowered), None)


def model_size(name: str, layers: int | None = None) -> LMSize | None:
    """The widths of a model of `MODEL_SIZES`: of the edition with this many layers, or of the first for None.

    None for a name that is not in the table, or if no model of that name has this many layers.
    """
    return next((size for size in MODEL_SIZES.get(name, ()) if layers in (None, size.layers)), None)


def model_rank(name: str) -> tuple[int, int, str]:
    """Sort key of model names: known models by number of parameters, then all others by name."""
    size = model_size(name)
    return (0, size.parameters, name) if size else (1, 0, name)


def attention_matmul_flops(batch: int, heads: int, context: int, d_head: int) -> int:
    """FLOPs of one of the two matrix products of one attention layer (q·kᵀ, or weights·v): 2·B·H·S²·d."""
    return 2 * batch * heads * context**2 * d_head


def softmax_flops(batch: int, heads: int, context: int) -> int:
    """FLOPs of the softmax of one attention layer: 5·B·H·S²."""
    return SOFTMAX_FLOPS_PER_SCORE * batch * heads * context**2


def flop_ratio(d_head: int) -> float:
    """FLOPs of both attention products over those of the softmax: 2·2·d / 5, whatever batch, heads and context are."""
    return 2 * 2 * d_head / SOFTMAX_FLOPS_PER_SCORE


#: Kinds of steps of a profiled program, from the least work to the most.
MODES: Final = ("forward", "forward+backward", "train")

_SUFFIXES = (".sqlite", ".sqlite3", ".db", ".nsys-rep", ".qdrep", ".json", ".zst", ".gz", ".xz")

_NOT_BEFORE, _NOT_AFTER = r"(?<![a-z0-9])", r"(?![a-z0-9])"
_MODEL = re.compile(rf"{_NOT_BEFORE}(?:small|medium|large|xl|2[._p-]7b|10b){_NOT_AFTER}")
_CONTEXT = re.compile(rf"{_NOT_BEFORE}(?:ctx|context|seq|sequence)(?:[_-]?len(?:gth)?)?[_=-]?(\d+){_NOT_AFTER}")
_BATCH = re.compile(rf"{_NOT_BEFORE}(?:b|bs|batch(?:[_-]?size)?)[_=-]?(\d+){_NOT_AFTER}")

#: A bare number is a context length unless the word before it says that it counts something else.
_COUNTED = ("steps", "run", "warmup", "iters", "iter", "rank", "seed", "gpu", "gpus", "job", "layers", "heads")
_PLAIN_NUMBER = re.compile(rf"{_NOT_BEFORE}{''.join(f'(?<!{word}[_-])' for word in _COUNTED)}(\d+){_NOT_AFTER}")
#: Bare numbers must be multiples of 16 (tensor-core tiles) like all common context lengths; others are dates, versions
#: and counters.
_LEAST_CONTEXT, _MOST_CONTEXT, _CONTEXT_MULTIPLE = 16, 1 << 20, 16

#: Pattern of words in file names → mode. Tried in this order; each match is removed before the next pattern is tried,
#: so that `fwd_bwd` does not count as a forward pass as well.
_MODE_WORDS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\b(?:fwd|forward)[ +]?(?:and )?(?:bwd|backward)[ +]?(?:and )?opt(?:im(?:izer)?)?\b"), "train"),
    (re.compile(r"\b(?:fwd|forward)[ +]?(?:and )?(?:bwd|backward)\b"), "forward+backward"),
    (re.compile(r"\b(?:train(?:ing)?(?: step)?|full(?: step)?)\b"), "train"),
    (re.compile(r"\b(?:forward(?: only| pass)?|fwd|inference|infer)\b"), "forward"),
)


@dataclass(frozen=True)
class CellName:
    """Model, context length, kind of step (`MODES`), and batch; the latter two None where not stated."""

    model: str
    context: int
    mode: str | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Unplaced:
    """A profile that belongs to no cell, and the reason."""

    source: str
    reason: str


def recognise_cell(file_name: str) -> CellName | Unplaced:
    """The cell that a file name describes: `small_ctx512.sqlite`, `lm_2p7b_training_step_1024.sqlite.zst`.

    Case-insensitive; a name that states two different values is rejected.
    """
    source = PurePath(file_name).name
    text = plain_name(file_name).lower()
    models = {model for match in _MODEL.findall(text) if (model := canonical_model(match))}
    rest = _MODEL.sub(" ", text)
    batches = {int(number) for number in _BATCH.findall(rest)}
    rest = _BATCH.sub(" ", rest)
    contexts = {int(number) for number in _CONTEXT.findall(rest)} or {
        int(number) for number in _PLAIN_NUMBER.findall(rest) if _is_context(int(number))
    }
    modes = _modes(text)
    if not models or not contexts:
        missing = [part for part, values in (("model", models), ("context length", contexts)) if not values]
        return Unplaced(source, f"its name tells no {' and no '.join(missing)}; {_advice(source)}")
    stated: dict[str, Set[object]] = {"model": models, "context length": contexts, "mode": modes, "batch": batches}
    for part, values in stated.items():
        if len(values) > 1:
            listed = ", ".join(sorted(map(str, values)))
            return Unplaced(source, f"its name tells more than one {part} ({listed}); {_advice(source)}")
    return CellName(models.pop(), contexts.pop(), next(iter(modes), None), next(iter(batches), None))


def parse_cell(text: str) -> tuple[str, CellName]:
    """Parses `NAME=model,context[,mode]`, where NAME is that of a profile, with or without its suffix.

    The model may be any word; FLOPs and layers are known for those in the table only.

    Raises:
        UsageError: the text is not of that form.
    """
    name, separator, cell = text.rpartition("=")
    parts = [part.strip() for part in cell.split(",")]
    if not separator or not name.strip() or len(parts) not in (2, 3) or not parts[0]:
        raise UsageError(f"cell {text!r} is not NAME=model,context[,mode] (for example run7=small,512,train)")
    number = re.fullmatch(r"(?:ctx|seq)?_?(\d+)", parts[1].lower())
    if number is None or int(number[1]) < 1:
        raise UsageError(f"cell {text!r}: {parts[1]!r} is not a context length (for example 512)")
    mode: str | None = None
    if len(parts) == 3:
        mode = mode_of_text(parts[2])
        if mode is None:
            raise UsageError(f"cell {text!r}: {parts[2]!r} is not a kind of step; use {', '.join(MODES)}")
    return name.strip(), CellName(canonical_model(parts[0]) or parts[0], int(number[1]), mode)


def assign_cells(
    file_names: Iterable[str], given: Mapping[str, CellName] | None = None
) -> tuple[dict[str, CellName], tuple[Unplaced, ...]]:
    """The cell of each profile, and the profiles that have none.

    Cells that the user stated (`parse_cell`), by file name with or without suffix, take precedence.

    Raises:
        UsageError: a stated name matches no profile.
    """
    names, stated = list(file_names), dict(given or {})
    cells: dict[str, CellName] = {}
    unplaced: list[Unplaced] = []
    used: set[str] = set()
    for file_name in names:
        keys = (file_name, PurePath(file_name).name, plain_name(file_name))
        found = [key for key in keys if key in stated][:1]
        used.update(found)
        cell = stated[found[0]] if found else recognise_cell(file_name)
        if isinstance(cell, Unplaced):
            unplaced.append(cell)
        else:
            cells[file_name] = cell
    if unknown := [name for name in stated if name not in used]:
        known = ", ".join(sorted({plain_name(name) for name in names})[:5]) or "none"
        raise UsageError(f"--cell names {', '.join(map(repr, unknown))}, which is none of the profiles: {known}")
    return cells, tuple(unplaced)


def mode_of_text(text: str) -> str | None:
    """The kind of step that a text names (`fwd` → `forward`); None if it names none or several."""
    modes = _modes(text.lower())
    return modes.pop() if len(modes) == 1 else None


def plain_name(file_name: str) -> str:
    """The file's name without folders and without the suffixes of profiles and compression."""
    name = PurePath(file_name).name
    while (suffix := next((suffix for suffix in _SUFFIXES if name.lower().endswith(suffix)), None)) is not None:
        name = name[: -len(suffix)]
    return name


def _modes(text: str) -> set[str]:
    words = re.sub(r"[^a-z0-9+]+", " ", text)
    found = set()
    for pattern, mode in _MODE_WORDS:
        if pattern.search(words):
            found.add(mode)
            words = pattern.sub(" ", words)
    return found


def _is_context(number: int) -> bool:
    return _LEAST_CONTEXT <= number <= _MOST_CONTEXT and number % _CONTEXT_MULTIPLE == 0


def _advice(source: str) -> str:
    return f"say it with --cell {plain_name(source)}=MODEL,CONTEXT[,MODE]"


@dataclass(frozen=True)
class PythonTime:
    """A time by the program's own clock: statistics of its measurements, computed or as stated in the file."""

    centre_ns: float  #: median of the measurements, or the median or mean in the file
    statistic: str  #: `median` or `mean`: kind of `centre_ns`
    #: minimum_ns, maximum_ns: least and greatest; None where the file lacks them
    minimum_ns: float | None
    maximum_ns: float | None
    deviation_ns: float | None  #: standard deviation; None where the file lacks it
    count: int | None  #: number of measurements; None where not known


def python_time(
    timings: pl.DataFrame, model: str, context: int, mode: str, phase: str, batch: int | None = None
) -> PythonTime | None:
    """The program's own time of one phase in one cell; None where the file (`readers.timings`) holds none.

    Rows without a mode match every mode. A batch excludes rows with another batch; without one, rows of several batches
    are the times of different steps, and none is chosen.
    """
    rows = _rows_of(timings, model, context, batch).filter(pl.col("phase") == phase)
    if not rows.height or (batch is None and len(python_batches(timings, model, context)) > 1):
        return None
    modes = {text: text is None or mode_of_text(text) == mode for text in rows["mode"].unique().to_list()}
    rows = rows.filter(pl.Series([modes[text] for text in rows["mode"]]))
    samples = Spread.of(rows.filter(pl.col("statistic") == "sample")["time_ns"])
    if samples is not None:
        return PythonTime(samples.median, "median", samples.minimum, samples.maximum, None, samples.count)
    stated = dict(rows.select(pl.col("statistic").cast(pl.String), pl.col("time_ns").cast(pl.Float64)).rows())
    centre = next((name for name in ("median", "mean") if name in stated), None)
    if centre is None:
        return None
    least, most, deviation = (stated.get(name) for name in ("minimum", "maximum", "deviation"))
    return PythonTime(stated[centre], centre, least, most, deviation, next(iter(rows["samples"].drop_nulls()), None))


def python_batches(timings: pl.DataFrame, model: str, context: int) -> list[int]:
    """The batch sizes that the file states for a cell, rising."""
    return sorted(map(int, _rows_of(timings, model, context, None)["batch"].drop_nulls().unique()))


def _rows_of(timings: pl.DataFrame, model: str, context: int, batch: int | None) -> pl.DataFrame:
    names = [text for text in timings["model"].unique().to_list() if (canonical_model(text) or text) == model]
    matches = pl.col("model").is_in(names) & (pl.col("context") == context)
    if batch is not None:
        matches &= pl.col("batch").is_null() | (pl.col("batch") == batch)
    return timings.filter(matches)
