"""One file becomes the summaries of its ranks. This is what runs in every worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from warplens.analysis.ranks.summary import RankSummary, summarize
from warplens.errors import WarplensError
from warplens.readers import read

__all__ = ["FileSummary", "summarize_file"]


@dataclass(frozen=True, eq=False)
class FileSummary:
    """What became of a file.

    Attributes:
        source: its name, without folders.
        ranks: one summary a rank; () where the file could not be used.
        problem: why not, one line; None where it could.
    """

    source: str
    ranks: tuple[RankSummary, ...] = ()
    problem: str | None = None


def summarize_file(path: str, window: str = "steady") -> FileSummary:
    """Read one profile and reduce it to its ranks. Never raises for a bad file: one must not stop the others.

    Args:
        path: the profile, as the process that reads it can open it.
        window: as `Timeline.window` takes it.
    """
    source = Path(path).name
    try:
        return FileSummary(source, summarize(read(path, launch_configuration=False), window))
    except WarplensError as error:
        text = str(error)
        return FileSummary(source, problem=text if source in text else f"{source}: {text}")
    except MemoryError:
        return FileSummary(source, problem=f"{source}: there is not enough memory for it. Use fewer --workers")
    except OSError as error:
        return FileSummary(source, problem=f"{source}: {error.strerror or type(error).__name__}")
    except Exception as error:  # a defect of ours in one file must not cost the answer on a hundred others
        what = f"{type(error).__name__}: {error}"
        return FileSummary(source, problem=f"{source}: {what}. This is a defect of Warplens: report it, please")
