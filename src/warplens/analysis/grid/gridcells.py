"""Which cell of a grid of models × context lengths a profile belongs to, told by its file name or by the user."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from warplens.analysis.grid.lm_flops import canonical_model
from warplens.errors import UsageError

__all__ = [
    "MODES",
    "CellName",
    "Unplaced",
    "assign_cells",
    "mode_of_text",
    "parse_cell",
    "plain_name",
    "recognise_cell",
]

#: What one step of a profiled program does, from the least to the most.
MODES: Final = ("forward", "forward+backward", "train")

_SUFFIXES = (".sqlite", ".sqlite3", ".db", ".nsys-rep", ".qdrep", ".json", ".zst", ".gz", ".xz")

_NOT_BEFORE, _NOT_AFTER = r"(?<![a-z0-9])", r"(?![a-z0-9])"
_MODEL = re.compile(rf"{_NOT_BEFORE}(?:small|medium|large|xl|2[._p-]7b|10b){_NOT_AFTER}")
_CONTEXT = re.compile(rf"{_NOT_BEFORE}(?:ctx|context|seq|sequence)(?:[_-]?len(?:gth)?)?[_=-]?(\d+){_NOT_AFTER}")
_BATCH = re.compile(rf"{_NOT_BEFORE}(?:b|bs|batch(?:[_-]?size)?)[_=-]?(\d+){_NOT_AFTER}")

#: A number that stands alone is a context length unless the word before it says that it counts something else.
_COUNTED = ("steps", "run", "warmup", "iters", "iter", "rank", "seed", "gpu", "gpus", "job", "layers", "heads")
_PLAIN_NUMBER = re.compile(rf"{_NOT_BEFORE}{''.join(f'(?<!{word}[_-])' for word in _COUNTED)}(\d+){_NOT_AFTER}")
#: Context lengths in use are multiples of 16 (tensor-core tiles); other numbers are dates, versions and counters.
_LEAST_CONTEXT, _MOST_CONTEXT, _CONTEXT_MULTIPLE = 16, 1 << 20, 16

#: Words of file names → mode. Tried in this order, and each match is taken out before the next is tried, so that
#: `fwd_bwd` is not a forward pass.
_MODE_WORDS: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"\b(?:fwd|forward)[ +]?(?:and )?(?:bwd|backward)[ +]?(?:and )?opt(?:im(?:izer)?)?\b"), "train"),
    (re.compile(r"\b(?:fwd|forward)[ +]?(?:and )?(?:bwd|backward)\b"), "forward+backward"),
    (re.compile(r"\b(?:train(?:ing)?(?: step)?|full(?: step)?)\b"), "train"),
    (re.compile(r"\b(?:forward(?: only| pass)?|fwd|inference|infer)\b"), "forward"),
)


@dataclass(frozen=True)
class CellName:
    """Model, context length, and what one step does (`MODES`; None where that is not said), and the batch if said."""

    model: str
    context: int
    mode: str | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Unplaced:
    """A profile that belongs to no cell, and why."""

    source: str
    reason: str


def recognise_cell(file_name: str) -> CellName | Unplaced:
    """The cell that a file name speaks of: `small_ctx512.sqlite`, `lm_2p7b_training_step_1024.sqlite.zst`.

    Upper and lower case are alike; what the name says twice differently is not guessed.
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
        missing = " and no ".join(
            what for what, found in (("model", models), ("context length", contexts)) if not found
        )
        return Unplaced(source, f"its name tells no {missing}; {_advice(source)}")
    told: dict[str, Set[object]] = {"model": models, "context length": contexts, "mode": modes, "batch": batches}
    for what, found in told.items():
        if len(found) > 1:
            listed = ", ".join(sorted(map(str, found)))
            return Unplaced(source, f"its name tells more than one {what} ({listed}); {_advice(source)}")
    return CellName(models.pop(), contexts.pop(), next(iter(modes), None), next(iter(batches), None))


def parse_cell(text: str) -> tuple[str, CellName]:
    """Reads `NAME=model,context[,mode]`; the name is that of a profile, with or without its suffix.

    The model may be any word; FLOPs and layers are only known of those in the table.

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
            raise UsageError(f"cell {text!r}: {parts[2]!r} is no kind of step; use {', '.join(MODES)}")
    return name.strip(), CellName(canonical_model(parts[0]) or parts[0], int(number[1]), mode)


def assign_cells(
    file_names: Iterable[str], given: Mapping[str, CellName] | None = None
) -> tuple[dict[str, CellName], tuple[Unplaced, ...]]:
    """The cell of each profile, and the profiles that have none.

    Args:
        file_names: names of the profiles.
        given: cells that the user stated (`parse_cell`), by file name with or without suffix; they win over the name.

    Raises:
        UsageError: a stated name is none of the profiles'.
    """
    names = list(file_names)
    stated = dict(given or {})
    cells: dict[str, CellName] = {}
    unplaced: list[Unplaced] = []
    used: set[str] = set()
    for file_name in names:
        keys = (file_name, PurePath(file_name).name, plain_name(file_name))
        key = next((key for key in keys if key in stated), None)
        cell = recognise_cell(file_name) if key is None else stated[key]
        used.update(() if key is None else (key,))
        if isinstance(cell, Unplaced):
            unplaced.append(cell)
        else:
            cells[file_name] = cell
    if unknown := [name for name in stated if name not in used]:
        known = ", ".join(sorted({plain_name(name) for name in names})[:5]) or "none"
        raise UsageError(f"--cell names {', '.join(map(repr, unknown))}, which is none of the profiles: {known}")
    return cells, tuple(unplaced)


def mode_of_text(text: str) -> str | None:
    """The kind of step that a text speaks of (`fwd` → `forward`); None for none, or more than one."""
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
