"""Many ranks in bounded memory: `python -m benchmarks.ranks_64 [--ranks 64] [--events 200000] [--workers N]`.

Writes one generated Kineto trace a rank, runs `warplens ranks` on the folder with local processes, then on a Dask
cluster of two workers on this machine, and compares the two answers byte for byte. The traces are one program's, each
with its own rank and a clock that is wrong by a known amount, so that the answer can be checked: no rank waits, and
every clock error is found.

Memory is the resident size of the whole process tree, sampled 20 times a second: `RSS` adds up what each process has
resident (shared pages counted in each), `PSS` divides shared pages among those that share them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.generate_kineto import generate

__all__ = ["main", "write_ranks"]

#: By how much the clock of rank n is wrong, in nanoseconds for each n.
CLOCK_ERROR_NS = 1_000

_SAMPLE_S = 0.05


def write_ranks(folder: Path, ranks: int, events: int) -> int:
    """Writes one trace per rank, `rank<n>.json.gz`, keeping existing files; the number of events in each."""
    names = [folder / f"rank{rank}.json.gz" for rank in range(ranks)]
    marker = folder / f"written-{ranks}-{events}"
    if marker.exists():
        return int(marker.read_text("utf-8"))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        plain = Path(place, "one.json")
        count = generate(events, plain, rank=0, ranks=ranks)
        text = plain.read_bytes()
    head, _, rest = text.partition(b'"traceEvents"')
    base = re.search(rb'"baseTimeNanoseconds": (\d+)', head)
    assert base is not None
    for rank, name in enumerate(names):
        own = head.replace(b'"rank": 0', b'"rank": %d' % rank)
        own = own.replace(base[0], b'"baseTimeNanoseconds": %d' % (int(base[1]) + rank * CLOCK_ERROR_NS))
        name.write_bytes(gzip.compress(own + b'"traceEvents"' + rest, compresslevel=1, mtime=0))
    marker.write_text(str(count), "utf-8")
    return count


@dataclass
class TreeMemory:
    """Memory of a process tree, sampled while it runs; sizes in bytes."""

    root: int
    rss: int = 0
    pss: int = 0
    largest: int = 0
    processes: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Sample until stopped."""
        while not self._over.wait(_SAMPLE_S):
            sizes = [_memory(process) for process in _tree(self.root)]
            self.rss = max(self.rss, sum(rss for rss, _ in sizes))
            self.pss = max(self.pss, sum(pss for _, pss in sizes))
            self.largest = max([self.largest, *(rss for rss, _ in sizes)])
            self.processes = max(self.processes, len(sizes))

    def stop(self) -> None:
        """Stop sampling."""
        self._over.set()


def _tree(root: int) -> Iterator[int]:
    yield root
    try:
        tasks = list(Path(f"/proc/{root}/task").iterdir())
        children = [int(pid) for task in tasks for pid in (task / "children").read_text("ascii").split()]
    except (OSError, ValueError):
        return
    for child in children:
        yield from _tree(child)


def _memory(process: int) -> tuple[int, int]:
    """Resident and proportional size of a process; zeros if it has ended."""
    try:
        text = Path(f"/proc/{process}/smaps_rollup").read_text("ascii")
    except OSError:
        return 0, 0
    sizes = {key: int(kb) * 1024 for key, kb in re.findall(r"^(Rss|Pss):\s+(\d+) kB", text, re.MULTILINE)}
    return sizes.get("Rss", 0), sizes.get("Pss", 0)


def _run(arguments: Sequence[str], also: int | None = None) -> tuple[bytes, float, TreeMemory]:
    """The answer of `warplens ranks`, its time, and the memory of its process tree (and that of process `also`)."""
    began = time.monotonic()
    with subprocess.Popen([sys.executable, "-m", "warplens", "ranks", *arguments], stdout=subprocess.PIPE) as process:
        memory = TreeMemory(also if also is not None else process.pid)
        thread = threading.Thread(target=memory.watch, daemon=True)
        thread.start()
        answer, _ = process.communicate()
        taken = time.monotonic() - began
        memory.stop()
        thread.join()
    if process.returncode:
        raise SystemExit(f"warplens ranks ended with {process.returncode}")
    return answer, taken, memory


def _checked(answer: bytes, ranks: int) -> None:
    rows = json.loads(answer)["data"]["rows"]
    assert [row["rank"] for row in rows] == list(range(ranks))
    assert [row["shift_ns"] for row in rows] == [-rank * CLOCK_ERROR_NS for rank in range(ranks)], "a clock is off"
    assert all(row["wait_ns"] == 0 and row["matched"] == row["collectives"] for row in rows), "somebody waits"


def _print_row(title: str, taken: float, memory: TreeMemory) -> None:
    sizes = " · ".join(
        f"{name} {size / 1e6:,.0f} MB"
        for name, size in (("RSS of all", memory.rss), ("PSS of all", memory.pss), ("largest process", memory.largest))
    )
    print(f"{title}: {taken:.1f} s · {sizes} · {memory.processes} processes", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the traces if necessary, runs both ways, and compares their answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=200_000, help="events of each rank")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)), help="local processes")
    parser.add_argument("--folder", type=Path, help="where the traces go, and stay; a temporary folder unless named")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        count = write_ranks(folder, options.ranks, options.events)
        size = sum(path.stat().st_size for path in folder.glob("rank*.json.gz"))
        print(f"{options.ranks} ranks × {count:,} events, {size / 1e6:,.0f} MB compressed", flush=True)
        ask = [str(folder), "--window", "all", "--format", "json", "--quiet"]
        answer, taken, memory = _run([*ask, "--workers", str(options.workers)])
        _checked(answer, options.ranks)
        _print_row(f"{options.workers} local processes", taken, memory)
        try:
            from distributed import LocalCluster
        except ImportError:
            print("Dask's distributed is not installed: the cluster is left out")
            return 0
        with LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=0, silence_logs=50
        ) as cluster:
            again, taken, memory = _run([*ask, "--scheduler", cluster.scheduler_address], also=os.getpid())
        _print_row("Dask, 2 workers (with this benchmark's own process)", taken, memory)
        print("the answers are identical" if again == answer else "THE ANSWERS DIFFER")
        return int(again != answer)


if __name__ == "__main__":
    sys.exit(main())
