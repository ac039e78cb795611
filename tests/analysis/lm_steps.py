"""A tiny language-model program as a synthetic profile: forward, backward on autograd's thread, optimizer."""

from __future__ import annotations

from collections.abc import Sequence

from tests.analysis.builders import AUTOGRAD_THREAD, MAIN_THREAD, call, kernel, launch, memset, nvtx, trace
from warplens.analysis.timeline import Timeline
from warplens.studies.grid.answers import GridCell

#: Phase → its kernels (name, duration) in one whole step.
WHOLE = {
    "forward_pass": (("sgemm_tn", 300), ("elementwise_kernel", 100)),
    "backward_pass": (("sgemm_nt", 350), ("sgemm_nn", 350), ("elementwise_kernel", 100)),
    "optimizer_step": (("multi_tensor_apply_kernel", 60), ("multi_tensor_apply_kernel", 60)),
}


class Program:
    """Records steps one after the other; every launch takes 10 ns, and its work begins when it is over."""

    def __init__(self) -> None:
        self.at = 0
        self.kernels: list[dict] = []
        self.memsets: list[dict] = []
        self.calls: list[dict] = []
        self.ranges: list[dict] = []

    def step(
        self,
        phases: dict[str, Sequence[tuple[str, int]]] | None = None,
        *,
        name: str | None = "step",
        wait: str = "step",
        pause: int = 0,
    ) -> Program:
        """One step. `wait`: the host waits for the GPU at the end of each `phase` or of the `step`; `pause`: ns of
        host work before every launch."""
        begin = self.at
        free = self.at
        for phase, works in (WHOLE if phases is None else phases).items():
            opened = self.at
            thread = AUTOGRAD_THREAD if phase == "backward_pass" else MAIN_THREAD
            for kernel_name, duration in works:
                self.at += pause
                correlation = len(self.calls) + 1
                self.calls.append(launch(self.at, self.at + 10, correlation, thread=thread))
                self.at += 10
                start = max(self.at, free)
                free = start + duration
                if kernel_name == "fill":
                    self.memsets.append(memset(start, free, correlation=correlation))
                else:
                    self.kernels.append(kernel(start, free, kernel_name, correlation=correlation))
            if wait == "phase":
                self._wait(free)
            self.at += 5
            self.ranges.append(nvtx(opened, self.at, phase))
        if wait == "step":
            self._wait(free)
        self.at += 5
        if name is not None:
            self.ranges.append(nvtx(begin, self.at, name))
        self.at += 20
        return self

    def _wait(self, until: int) -> None:
        begin = self.at
        self.at = max(self.at, until) + 5
        self.calls.append(call(begin, self.at, "cudaDeviceSynchronize"))

    def timeline(self) -> Timeline:
        return Timeline(trace(self.kernels, self.calls, self.ranges, memsets=self.memsets))

    def cell(self, model: str = "small", context: int = 512, mode: str | None = "train", source: str = "x") -> GridCell:
        return GridCell(model, context, mode, source, self.timeline())


def forward_only(**phases: Sequence[tuple[str, int]]) -> dict[str, Sequence[tuple[str, int]]]:
    return {"forward_pass": WHOLE["forward_pass"], **phases}
