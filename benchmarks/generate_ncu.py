"""Makes a large Nsight Compute report out of a small one, by repeating its blocks.

`python -m benchmarks.generate_ncu SMALL LARGE --launches 200 --megabytes 74`: first all that comes before the second
launch (the session, the names of the metrics), then the blocks of launches over and over, and between them, as in
reports of programs with many kernels, the largest block of machine code until the size is reached.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from warplens.readers.ncu.container import Container, content_of

__all__ = ["generate"]


def generate(small: Path, large: Path, *, launches: int, megabytes: float) -> None:
    """Writes a report of so many launches and about so many megabytes (10⁶ bytes), out of one with at least two."""
    with content_of(small, small) as data:
        blocks = [(block.start, len(block.results)) for block in Container(data, small).blocks()]
        content = bytes(data)
    ends = [start for start, _ in blocks[1:]] + [len(content)]
    parts = [(content[start:end], results) for (start, results), end in zip(blocks, ends, strict=True)]
    _, second, *_ = (number for number, (_, results) in enumerate(parts) if results)
    repeated = [part for part, results in parts[second:] if results == 1]
    largest = max((part for part, results in parts if not results), key=len)

    head = content[: ends[second - 1]]
    missing = launches - sum(results for _, results in parts[:second])
    chosen = list(itertools.islice(itertools.cycle(repeated), missing))
    fillings = max(0, round((megabytes * 1e6 - len(head) - sum(map(len, chosen))) / len(largest)))
    with large.open("wb") as file:
        file.write(head)
        for number, part in enumerate(chosen):
            due = fillings * (number + 1) // missing - fillings * number // missing
            file.write(largest * due + part)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generate_ncu", description=__doc__.partition("\n")[0])
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--megabytes", type=float, default=74)
    given = parser.parse_args()
    generate(given.small, given.large, launches=given.launches, megabytes=given.megabytes)
