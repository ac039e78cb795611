"""Programs with one planted cause, and healthy ones, as functions that run one step on a `Machine`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from tests.diagnosis.machine import ADD, ADDCDIV, FP32_GEMM, MS, NCCL, US, Machine
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import Diagnosis, diagnose

if TYPE_CHECKING:
    from collections.abc import Callable

    from warplens.profile import Trace

    Step = Callable[[Machine], None]

STEPS = 6


def record(step: Step, machine: Machine | None = None) -> Trace:
    """Some repetitions of the step, each in a range."""
    return _recorded(step) if machine is None else _on(machine, step)


@lru_cache(maxsize=64)
def _recorded(step: Step) -> Trace:
    return _on(Machine(), step)


def _on(machine: Machine, step: Step) -> Trace:
    for _ in range(STEPS):
        with machine.step():
            step(machine)
    return machine.trace()


def verdict(step: Step, machine: Machine | None = None) -> Diagnosis:
    """What is said about it."""
    return judged(record(step, machine))


def judged(profile: Trace) -> Diagnosis:
    """What is said about a trace."""
    timeline = Timeline(profile)
    return diagnose(timeline, timeline.window())


def launch_bound(machine: Machine) -> None:
    """Kernels of 3 µs, launched every 8 µs."""
    machine.launch(3 * US, times=200)
    machine.wait()


def item_per_layer(machine: Machine) -> None:
    """The GPU has far more to do than the host, which drains it 12 times a step."""
    for _ in range(12):
        machine.launch(60 * US, times=2)
        machine.item()
        machine.think(40 * US)


def launch_bound_with_items(machine: Machine) -> None:
    """Kernels far shorter than their launches; the waits find the GPU idle and cost next to nothing."""
    for _ in range(12):
        machine.launch(2 * US, times=20)
        machine.item()


def stalled_input(machine: Machine) -> None:
    """5 ms without a CUDA call before 5 ms of GPU work."""
    machine.think(5 * MS)
    machine.launch(100 * US, times=50)
    machine.wait()


def pageable_input(machine: Machine) -> None:
    """4 ms of a pageable copy before 8 ms of work."""
    machine.copy(4 * MS, 40_000_000, pinned=False)
    machine.launch(100 * US, times=80)


def pieces_sent_one_by_one(machine: Machine) -> None:
    """Forty pageable copies of 64 KiB in a row, with a wait for each, before 1 ms of work."""
    for _ in range(40):
        machine.copy(6 * US, 1 << 16, pinned=False)
        machine.wait()
        machine.think(20 * US)
    machine.launch(100 * US, times=10)


def copy_in_the_way(machine: Machine) -> None:
    """A pinned copy in the stream of the kernels."""
    machine.copy(3 * MS, 150_000_000, pinned=True)
    machine.launch(100 * US, times=60)


def allocating(machine: Machine) -> None:
    """Memory obtained and released around each of 20 kernels."""
    for _ in range(20):
        machine.allocate(150 * US)
        machine.launch(100 * US)
        machine.free(60 * US)


def fp32_products(machine: Machine) -> None:
    """Products beside the tensor cores on a busy GPU."""
    machine.launch(400 * US, FP32_GEMM, times=20)


def four_blocks(machine: Machine) -> None:
    """Long kernels of four blocks, back to back."""
    machine.launch(80 * US, "cunn_SoftMaxForward", grid=(4, 1, 1), times=40)


def elementwise_chain(machine: Machine) -> None:
    """Large elementwise kernels in a row, and one product."""
    machine.launch(100 * US, ADD, times=30)
    machine.launch(100 * US)


def unfused_optimizer(machine: Machine) -> None:
    """40 tensors, 14 kernels for each, after a short forward and backward pass."""
    with machine.range("forward"):
        machine.launch(30 * US, times=20)
    with machine.range("backward"):
        machine.launch(30 * US, times=40)
    with machine.range("optimizer"):
        for _ in range(40):
            machine.launch(2 * US, ADD, times=13)
            machine.launch(2 * US, ADDCDIV)
    machine.wait()


def exposed_collectives(machine: Machine) -> None:
    """A third of the time in collectives that nothing hides."""
    machine.launch(200 * US, times=20)
    machine.launch(2 * MS, NCCL)


def whole_graph(machine: Machine) -> None:
    """A CUDA graph traced as one interval."""
    machine.graph(5 * MS)


def large_products(machine: Machine) -> None:
    """Products that keep the GPU busy; the host is ahead."""
    machine.launch(500 * US, times=12)


def training_with_log(machine: Machine) -> None:
    """A busy step with one `.item()` at its end."""
    with machine.range("forward"):
        machine.launch(150 * US, times=30)
        machine.launch(15 * US, ADD, times=20)
    with machine.range("backward"):
        machine.launch(150 * US, times=60)
    with machine.range("optimizer"):
        machine.launch(200 * US, "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata>", times=4)
    machine.item()


def many_short_kernels(machine: Machine) -> None:
    """Kernels twice as long as a launch: never waited for, with a microsecond between them."""
    machine.launch(18 * US, times=300)


def small_normalisation(machine: Machine) -> None:
    """A little work in small grids between large products, as in any network."""
    for _ in range(20):
        machine.launch(200 * US)
        machine.launch(4 * US, "cunn_SoftMaxForward", grid=(16, 1, 1))


def copies_hidden(machine: Machine) -> None:
    """Products, with a copy of few bytes that nobody notices."""
    machine.copy(20 * US, 100_000, pinned=True)
    machine.launch(300 * US, times=20)
