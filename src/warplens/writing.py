"""Files that are written whole or not at all, and cells of CSV that nothing takes for more than text."""

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

#: How Rust's libraries, Polars among them, end the text of an error of the system that they give no number with.
_SYSTEM_ERROR: Final = re.compile(r"\(os error (\d+)\)")


@contextmanager
def unfinished(target: Path) -> Iterator[Path]:
    """A new, empty file beside `target` to be filled; it takes the place of `target` at the end.

    Whatever happens meanwhile, an interruption included, `target` stays as it was and the new file goes. What is no
    regular file (`/dev/stdout`) is written to as it is. A link stays a link, to the new content.

    Raises:
        OSError: it cannot be written; what a library in Rust says of that as an error of its own included.
    """
    place = target.resolve()
    # Not named after the target, whose name may be as long as names can be.
    partial = place.with_name(f".warplens-{os.getpid()}-{next(_NUMBERS)}.partial")
    try:
        if place.exists() and not place.is_file():
            yield place
            return
        partial.open("xb").close()
        yield partial
        if place.exists():
            partial.chmod(place.stat().st_mode & 0o777)
        partial.replace(place)
    except Exception as error:
        if getattr(error, "errno", None) is None and (found := _SYSTEM_ERROR.search(str(error))):
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(target)) from None
        if isinstance(error, OSError):
            error.filename = str(target)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def made(*folders: Path) -> Iterator[None]:
    """Makes folders, with those above them; whatever fails meanwhile, of those that it made no empty one is left."""
    new: list[Path] = []
    for folder in folders:
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        new = [*missing, *new]
    try:
        yield
    except BaseException:
        for folder in new:
            with suppress(OSError):  # there is something in it
                folder.rmdir()
        raise


def write_whole(target: Path, content: str | bytes) -> None:
    """Writes a file in one go: text as UTF-8, lines ended as they are."""
    with unfinished(target) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


#: Characters that a terminal obeys, or that reverse what is read.
_OBEYED: Final = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"

#: What a spreadsheet takes for a formula: https://owasp.org/www-community/attacks/CSV_Injection. Numbers are none.
_FORMULA: Final = r"^([=@\t\r]|[+-](?:[^\d.\s]|.*[^\d.eE+_\s-]))"


def harmless(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame as it goes into CSV: no control characters in texts, an apostrophe before what looks like a formula."""
    import polars as pl

    frame = frame.with_columns(pl.col(name).cast(pl.String) for name, kind in frame.schema.items() if kind == pl.Enum)
    texts = pl.col(pl.String).str.replace_all(_OBEYED, "\N{REPLACEMENT CHARACTER}").str.replace(_FORMULA, "'$1")
    return frame.with_columns(texts)
