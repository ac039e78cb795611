"""Comparison of tools that answer the same questions on one input: table, limit of our time, and broken promises."""

from __future__ import annotations

import json
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.measure import Measurement, machine, measure

__all__ = ["RESULTS", "Comparison", "disturbed", "footer", "taker", "warplens_command"]

RESULTS = Path(__file__).with_name("results")

_PACKAGES = ("warplens", "polars", "numpy", "adbc-driver-sqlite")


@dataclass(frozen=True)
class Comparison:
    """All sides on one input."""

    name: str  #: of its files in `results/`
    title: str  #: description of the input
    rows: Mapping[str, Measurement]  #: name of a command → its measurement, in the table's order
    ours: str  #: key of our row
    peer: Measurement | None  #: the peer's measurement of the same task; None where the peer is absent
    bound: str  #: sentence on the limit of our time
    missed: Sequence[str]  #: sentences on promises that were not kept
    peer_version: Mapping[str, str]  #: name of the peer → its version; empty where it is absent
    facts: Mapping[str, Any]  #: further stored data: sizes, stages

    @property
    def ratio(self) -> float | None:
        """The peer's time / our time; None without a peer."""
        return self.peer.median_s / self.rows[self.ours].median_s if self.peer else None

    def table(self) -> str:
        """The measurements as a Markdown table, with the limit of our time."""
        ours_s = self.rows[self.ours].median_s
        lines = [
            self.title,
            "",
            "| what | wall time | against ours | processor time | peak memory |",
            "|---|---:|---:|---:|---:|",
            *(
                f"| {name} | {one.median_s:.2f} s | {one.median_s / ours_s:.2f} × | {one.median_cpu_s:.2f} s "
                f"| {one.peak_mb:,.0f} MB |"
                for name, one in self.rows.items()
            ),
            *disturbed(self.rows.values()),
            "",
            self.bound,
            "",
            footer(self.peer_version),
        ]
        return "\n".join(lines)

    def store(self) -> Path:
        """Writes the measurements as JSON and the table as Markdown into `results/`; returns the former."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{self.name}.json"
        stored = {**self.facts, "rows": {name: asdict(one) for name, one in self.rows.items()}, "ratio": self.ratio}
        path.write_text(json.dumps(stored | {"footer": footer(self.peer_version)}, indent=2) + "\n")
        path.with_suffix(".md").write_text(self.table() + "\n")
        return path


def disturbed(measured: Iterable[Measurement]) -> list[str]:
    """A warning if other work on the machine may have affected the times; else nothing."""
    other_cores = [one.other_cores for one in measured if one.is_disturbed]
    if not other_cores:
        return []
    return ["", f"**Disturbed**: other processes kept up to {max(other_cores):.1f} cores busy meanwhile."]


def footer(more: Mapping[str, str] | None = None) -> str:
    """Machine, versions and day."""
    versions = {"python": platform.python_version()} | {name: metadata.version(name) for name in _PACKAGES}
    listed = ", ".join(f"{name} {version}" for name, version in {**versions, **(more or {})}.items())
    return f"{machine()}; {listed}; {datetime.now(timezone.utc).date().isoformat()}."


def taker(subject: str, runs: int, patience_s: float) -> Callable[..., Measurement]:
    """A function that measures a command and reports the progress: `take("our report", "warplens", …, runs=1)`."""

    def take(doing: str, *command: str, runs: int = runs) -> Measurement:
        print(f"… {subject}: {doing}", file=sys.stderr, flush=True)
        return measure(command, runs=runs, patience_s=patience_s)

    return take


def warplens_command() -> str:
    """The program `warplens` of this environment."""
    beside = Path(sysconfig.get_path("scripts")) / "warplens"
    return str(beside) if beside.exists() else shutil.which("warplens") or "warplens"
