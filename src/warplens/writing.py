"""Atomic writing of files, text cells that are safe in CSV, and counts with their nouns."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

_NUMBERS: Final = count()

#: How Rust's libraries, Polars among them, end the text of an operating-system error without an `errno`.
_SYSTEM_ERROR: Final = re.compile(r"\(os error (\d+)\)")


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A new, empty file beside `target` to be filled; it replaces `target` at the end.

    On any failure, an interruption included, `target` is left unchanged and the new file is removed. Targets that are
    not regular files (`/dev/stdout`) are written to directly. A link stays a link, to the new content.

    Raises:
        OSError: it cannot be written; also raised for operating-system errors reported by libraries in Rust.
    """
    resolved = target.resolve()
    # Not named after the target, whose name may already have the greatest length.
    partial = resolved.with_name(f".warplens-{os.getpid()}-{next(_NUMBERS)}.partial")
    try:
        if resolved.exists() and not resolved.is_file():
            yield resolved
            return
        partial.open("xb").close()
        yield partial
        if resolved.exists():
            partial.chmod(resolved.stat().st_mode & 0o777)
        partial.replace(resolved)
    except Exception as error:
        if getattr(error, "errno", None) is None and (system_error := _SYSTEM_ERROR.search(str(error))):
            raise OSError(int(system_error[1]), os.strerror(int(system_error[1])), str(target)) from None
        if isinstance(error, OSError):
            error.filename = str(target)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def made(*folders: Path) -> Iterator[None]:
    """Create folders, with missing parents; on failure, those it created are removed again if empty."""
    created: list[Path] = []
    for folder in folders:
        missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        created = [*missing, *created]
    try:
        yield
    except BaseException:
        for folder in created:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        raise


def write_whole(target: Path, content: str | bytes) -> None:
    """Write a file atomically: text as UTF-8, line ends unchanged."""
    with unfinished(target) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


#: Characters that control a terminal, or that reverse the reading direction.
_CONTROL: Final = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"

#: Texts that a spreadsheet treats as a formula: https://owasp.org/www-community/attacks/CSV_Injection. Not numbers.
_FORMULA: Final = r"^([=@\t\r]|[+-](?:[^\d.\s]|.*[^\d.eE+_\s-]))"


def harmless(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame for CSV: no control characters in texts, an apostrophe before texts that look like a formula."""
    import polars as pl

    frame = frame.with_columns(pl.col(name).cast(pl.String) for name, kind in frame.schema.items() if kind == pl.Enum)
    texts = pl.col(pl.String).str.replace_all(_CONTROL, "\N{REPLACEMENT CHARACTER}").str.replace(_FORMULA, "'$1")
    return frame.with_columns(texts)


def plural(number: int, one: str, several: str | None = None) -> str:
    """A count with its noun, or noun and verb, in the singular or plural: `1 row`, `1,200 rows`."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
