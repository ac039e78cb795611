"""The recorded Python calls of each thread: which function, and which `torch.nn` module, runs at an instant.

A profiler that records Python stacks writes three kinds of calls: functions (`model.py(12): forward`), built-ins
(`<built-in method linear …>`) and the calls of modules (`nn.Module: Linear_3`), whose number tells instances of a class
apart. Built-ins and module calls have no source line: what they launch belongs to the function that calls them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from warplens.analysis.attribution import RangeForest, range_forest
from warplens.analysis.forest import NO_RANGE, nearest
from warplens.profile.schema import name_categories

__all__ = ["PythonFrames", "module_name", "python_frames"]

Int64s = npt.NDArray[np.int64]

_MODULE = "nn.Module: "


def module_name(name: str) -> str | None:
    """`Linear_3` for `nn.Module: Linear_3`; None for a call of anything else."""
    return name.removeprefix(_MODULE) if name.startswith(_MODULE) else None


@dataclass(frozen=True, eq=False)
class PythonFrames:
    """The Python calls of a profile. Arrays have one entry for each row of `Trace.python_functions`.

    Attributes:
        parent: row of the calling function on the same thread; `NO_RANGE` for none.
        is_module: which calls are calls of modules.
        enclosing_module: itself or the nearest module around it; `NO_RANGE` for none.
        enclosing_function: itself or the nearest call around it that has a source line; `NO_RANGE` for none.
    """

    parent: Int64s
    is_module: npt.NDArray[np.bool_]
    enclosing_module: Int64s
    enclosing_function: Int64s
    _threads: RangeForest

    @property
    def module_parent(self) -> Int64s:
        """For each call the nearest module strictly around it; `NO_RANGE` for none."""
        above: Int64s = np.r_[self.enclosing_module, NO_RANGE][self.parent]
        return above

    @property
    def function_parent(self) -> Int64s:
        """For each call the nearest call with a source line strictly around it; `NO_RANGE` for none."""
        above: Int64s = np.r_[self.enclosing_function, NO_RANGE][self.parent]
        return above

    def running(self, process: Int64s, thread: Int64s, when: Int64s) -> Int64s:
        """The innermost call that runs on each thread at that time; `NO_RANGE` for none."""
        return self._threads.open_on(process, thread, when)

    def waiting(self, process: Int64s, thread: Int64s, when: Int64s) -> Int64s:
        """The same, or the call that a waiting thread of the process is in (`Tensor.backward`), where there is none."""
        return self._threads.attribute(process, thread, when)[0]


def python_frames(calls: pl.DataFrame) -> PythonFrames:
    """The Python calls of a profile; `calls` is the table `python_functions` of a `Trace`."""
    parent = calls["parent"].fill_null(NO_RANGE).to_numpy().copy()
    names = name_categories(calls["name"]).to_list()
    codes = calls["name"].to_physical().to_numpy()
    is_module = np.array([name.startswith(_MODULE) for name in names], dtype=np.bool_)[codes]
    has_line = np.array(["): " in name and not name.startswith("<") for name in names], dtype=np.bool_)[codes]
    own = np.arange(calls.height)
    return PythonFrames(
        parent, is_module, nearest(parent, is_module, own), nearest(parent, has_line, own), range_forest(calls)
    )
