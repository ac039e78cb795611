"""Why token reduction, which does two thirds less arithmetic, is slower for one image."""

from pathlib import Path

import warplens
from warplens.compare.difference import explanation, step_difference
from warplens.compare.host import Side

CAPTURES = Path(warplens.__file__).parent / "data" / "captures"


def side(name: str) -> Side:
    timeline = warplens.Timeline(warplens.read(CAPTURES / f"{name}.sqlite.xz"))
    return Side(name, timeline, timeline.window("steady"))


difference = step_difference(side("deit224_bs1_baseline"), side("deit224_bs1_topk0.1"))
found = explanation(difference)
print(f"{found.direction} by {found.change_ns / 1e6:+.3f} ms a step ({found.ratio:.3f}×); cause: {found.cause}")
