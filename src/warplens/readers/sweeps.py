"""Files that hold a sweep: measurements of `warplens`, or a published table of results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from warplens.errors import UnreadableInputError
from warplens.readers.compressed import UNPACKERS
from warplens.readers.detect import compression, kind_of
from warplens.readers.measurements import MEASUREMENTS_SCHEMA_NAME, measurements_of, read_measurements
from warplens.readers.published import published_of, read_published

if TYPE_CHECKING:
    from warplens.profile.measurements import Measurements

__all__ = ["read_sweep"]


def read_sweep(path: Path | str) -> Measurements:
    """Measurements, whichever of the two kinds of file they stand in.

    Raises:
        UnreadableInputError: it is neither, or one that cannot be read.
    """
    source = Path(path)
    if source.is_dir():
        raise UnreadableInputError(source, "it is a folder", "Give the file that `warplens sweep run` wrote")
    if compression(kind_of(source)) in UNPACKERS:
        return read_measurements(source)
    try:
        document = orjson.loads(source.read_bytes())
    except orjson.JSONDecodeError:
        return read_published(source)
    if isinstance(document, dict) and document.get("schema") == MEASUREMENTS_SCHEMA_NAME:
        return measurements_of(document, source)
    return published_of(document, source)
