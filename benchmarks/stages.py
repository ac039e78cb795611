"""What the time of a report is made of, stage by stage in one process: `python -m benchmarks.stages CAPTURE OUT`.

Writes one JSON object to OUT, seconds of wall time by stage in their order.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

__all__ = ["STAGES", "stages"]

#: The stages in the order in which a report goes through them.
STAGES = ("import", "read", "join host and device", "find the window", "analyse", "write JSON")


def stages(capture: Path) -> dict[str, float]:
    """Seconds that each of `STAGES` takes for a report on this capture."""
    marks = [time.perf_counter()]
    import warplens
    from warplens.report.overview.numbers import examine
    from warplens.report.write import report_json

    marks.append(time.perf_counter())
    trace = warplens.read(capture)
    marks.append(time.perf_counter())
    timeline = warplens.Timeline(trace)
    _ = timeline.work  # made when first asked for
    marks.append(time.perf_counter())
    window = timeline.window("steady")
    marks.append(time.perf_counter())
    numbers = examine(timeline, window)
    marks.append(time.perf_counter())
    report_json([numbers])
    marks.append(time.perf_counter())
    return {stage: end - begin for stage, begin, end in zip(STAGES, marks, marks[1:], strict=False)}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(stages(Path(sys.argv[1]))) + "\n")
