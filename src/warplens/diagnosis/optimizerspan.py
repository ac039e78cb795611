"""Which work is an optimizer's, where no range says so: Adam written tensor by tensor is known by its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from warplens.profile.schema import name_categories

if TYPE_CHECKING:
    from warplens.analysis.timeline import Timeline
    from warplens.analysis.window import Window

__all__ = ["mark_optimizers", "updates"]

#: Only the update of a parameter by a quotient (Adam and its kin) runs PyTorch's `addcdiv` on a single tensor: once for
#: each parameter.
_UPDATE: Final = "addcdiv"

#: Fewer in a step may be anything.
_LEAST_UPDATES: Final = 16

#: Adam written out launches 8 to 16 kernels a parameter. Where updates are rarer than that among the launches between
#: the first and the last, something else lies between them.
_LEAST_DENSITY: Final = 1 / 24


def updates(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """For each kernel whether it updates one parameter tensor."""
    names = timeline.trace.kernels["full_name"]
    telling = [_UPDATE in name and "multi_tensor" not in name for name in name_categories(names)]
    found: npt.NDArray[np.bool_] = np.array(telling, dtype=np.bool_)[names.to_physical().to_numpy()]
    return found


def mark_optimizers(timeline: Timeline, window: Window) -> npt.NDArray[np.bool_]:
    """For each row of `Timeline.work` whether it lies between the first and the last update of a step of the window."""
    work = timeline.work
    marked = np.zeros(work.height, dtype=np.bool_)
    is_update = np.zeros(work.height, dtype=np.bool_)
    kernel = (work["kind"] == "kernel").to_numpy()
    if not kernel.any():
        return marked
    is_update[kernel] = updates(timeline)[work["row"].to_numpy()[kernel]]
    places = np.flatnonzero(is_update)
    begun = work["start_ns"].to_numpy()
    for step in window.steps:
        inside = places[(begun[places] >= step.start_ns) & (begun[places] < step.end_ns)]
        if len(inside) >= _LEAST_UPDATES and len(inside) >= _LEAST_DENSITY * (inside[-1] - inside[0]):
            marked[inside[0] : inside[-1] + 1] = True
    return marked
