"""A process that drives several GPUs: what one waits for another one is told apart from what the host costs.

Programs of a host and several GPUs, each recorded as both profilers record it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import warplens
from tests.analysis import builders
from tests.diagnosis.programs import judged
from tests.readers import kineto_traces as kineto
from tests.readers.exports import THREAD, Export, global_tid
from warplens.analysis.timebudget import time_budgets
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import Diagnosis
from warplens.diagnosis.facts import gather
from warplens.diagnosis.structure import backward_work
from warplens.profile import Trace

MS, STEPS = 1_000, 6  # µs
CALL, START, BETWEEN, RETURN = 6, 3, 1, 2
IDS = ("uneven-gpus", "gpus-in-turn", "data-parallel-threads")
NCCL = "ncclDevKernel_"
BROADCAST, REDUCE, ALL_REDUCE = f"{NCCL}Broadcast_RING_LL", f"{NCCL}Reduce_Sum_f32_RING_LL", f"{NCCL}AllReduce_RING_LL"
OF_PYTORCH = "at::native::vectorized_elementwise_kernel"
OF_GRADIENTS = "at::native::elementwise_backward_kernel"
FUSED_ADAM = "at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>"


class Gpus:
    """Host threads of which one runs at a time, and GPUs that run their work in order; times are microseconds."""

    def __init__(self, count: int) -> None:
        self.host, self.correlation = 0, 0
        self.free = [0] * count
        self.thread = 0  #: that runs
        self.work: list[tuple[str, int, int, int, int]] = []
        self.calls: list[tuple[str, int, int, int, int]] = []
        self.ranges: list[tuple[str, int, int]] = []

    def launch(self, gpu: int, length: int, times: int = 1, *, after: int = 0, kind: str = "kernel") -> int:
        """Work on a GPU, which also waits for this time; returns its end."""
        for _ in range(times):
            self._call("cudaMemcpyPeerAsync" if kind == "copy" else "cudaLaunchKernel", CALL)
            start = max(self.host + START, self.free[gpu] + BETWEEN, after)
            self.free[gpu] = start + length
            self.work.append((kind, gpu, start, start + length, self.correlation))
        return self.free[gpu]

    def wait(self, *gpus: int) -> None:
        """Until these GPUs, or all, have done all."""
        ends = [self.free[gpu] for gpu in gpus or range(len(self.free))]
        self._call("cudaStreamSynchronize" if gpus else "cudaDeviceSynchronize", max(*ends, 0) + RETURN - self.host, 2)

    def _call(self, name: str, length: int, least: int = 0) -> None:
        self.host += 4
        self.correlation += 1
        self.calls.append((name, self.host, self.host + max(length, least), self.correlation, self.thread))
        self.host += max(length, least)

    @contextmanager
    def step(self) -> Iterator[None]:
        begin = self.host
        yield
        self.host += 1
        self.ranges.append(("step", begin, self.host))

    def as_kineto(self, folder: Path) -> Trace:
        return warplens.read(kineto.written(folder / "gpus.json", self.events()))

    def events(self, thread: int = 101) -> list[object]:
        events = [kineto.annotation(name, start, end - start) for name, start, end in self.ranges]
        for name, start, end, correlation, number in self.calls:
            place = {"process": 100, "thread": thread + number}
            events.append(kineto.event("cuda_runtime", name, start, end - start, **place, correlation=correlation))
        for kind, gpu, start, end, correlation in self.work:
            if kind != "copy":
                row = kineto.kernel(start, end - start, correlation, device=gpu)
                row["name"] = row["name"] if kind == "kernel" else kind
            else:
                name = "Memcpy PtoP (Device -> Device)"
                args = {"device": gpu, "stream": 7, "correlation": correlation, "bytes": 1 << 25}
                row = kineto.event("gpu_memcpy", name, start, end - start, process=gpu, thread=7, **args)
            events.append(row)
        return events

    def as_nsys(self, folder: Path) -> Trace:
        export = Export()
        for name, start, end in self.ranges:
            export.range(start * 1_000, end * 1_000, name)
        for name, start, end, correlation, number in self.calls:
            thread = global_tid(THREAD + number)
            export.call(start * 1_000, end * 1_000, f"{name}_v7000", correlation, globalTid=thread)
        for kind, gpu, start, end, correlation in self.work:
            times = (start * 1_000, end * 1_000)
            if kind != "copy":
                name = "gemm" if kind == "kernel" else kind
                export.kernel(*times, name, correlation=correlation, deviceId=gpu)
            else:
                export.copy(*times, kind=10, correlation=correlation, deviceId=gpu, bytes=1 << 25, srcKind=2)
        export.write(folder / "gpus.sqlite")
        return warplens.read(folder / "gpus.sqlite")


Step = Callable[[Gpus], None]


def uneven(gpus: Gpus) -> None:
    """GPU 0 has three times the work of the three others."""
    for _ in range(12):
        for gpu in range(4):
            gpus.launch(gpu, 900 if gpu == 0 else 300)
    gpus.wait()


def uneven_without_waits(gpus: Gpus) -> None:
    """The same with a host that never waits."""
    for _ in range(12):
        for gpu in range(4):
            gpus.launch(gpu, 900 if gpu == 0 else 300)


def uneven_and_stalled(gpus: Gpus) -> None:
    """GPU 0 works for 10.8 ms, GPU 1 for 3.6 ms, and then the host does something else for 5 ms."""
    for _ in range(12):
        gpus.launch(0, 900)
        gpus.launch(1, 300)
    gpus.wait()
    gpus.host += 5 * MS


def uneven_in_phases(gpus: Gpus) -> None:
    """Forward and backward pass, uneven as before."""
    for phase in ("forward", "backward"):
        begin = gpus.host
        uneven_without_waits(gpus)
        gpus.host += 1
        gpus.ranges.append((phase, begin, gpus.host))
    gpus.wait()


def in_turn(gpus: Gpus) -> None:
    """Layers on GPU 0, a copy, layers on GPU 1."""
    gpus.launch(0, 800, times=10)
    sent = gpus.launch(0, 100, kind="copy")
    gpus.launch(1, 800, after=sent, times=10)
    gpus.wait()


def unevenly_in_turn(gpus: Gpus) -> None:
    """The same with fewer layers on GPU 1."""
    gpus.launch(0, 800, times=15)
    sent = gpus.launch(0, 100, kind="copy")
    gpus.launch(1, 800, after=sent, times=5)
    gpus.wait()


def waited_in_turn(gpus: Gpus) -> None:
    """The host uses one GPU, waits for it, and uses the next."""
    for gpu in range(2):
        gpus.launch(gpu, 800, times=10)
        gpus.wait(gpu)


def balanced(gpus: Gpus) -> None:
    """Equal work on two GPUs."""
    for _ in range(20):
        for gpu in range(2):
            gpus.launch(gpu, 500)
    gpus.wait()


def balanced_and_stalled(gpus: Gpus) -> None:
    """Equal work of 10 ms, and then the host does something else for 5 ms."""
    balanced(gpus)
    gpus.host += 5 * MS


def pipeline(gpus: Gpus) -> None:
    """Four micro-batches through two GPUs."""
    for _ in range(4):
        sent = gpus.launch(0, 2_000)
        gpus.launch(1, 2_000, after=sent)
    gpus.wait()


def stray(gpus: Gpus) -> None:
    """One GPU works, and a tensor was left on another one."""
    gpus.launch(1, 5)
    gpus.launch(0, 500, times=20)
    gpus.wait()


def launch_bound(gpus: Gpus) -> None:
    """Short kernels, now on one GPU, now on the other."""
    for _ in range(20):
        for gpu in range(2):
            gpus.launch(gpu, 5, times=10)
    gpus.wait()


def in_threads(gpus: Gpus, *, first: int, kind: str = OF_PYTORCH) -> None:
    """A thread for each GPU launches 10 ms of work; one runs until it lets go of the interpreter's lock."""
    for gpu in range(2):
        gpus.thread = first + gpu
        gpus.host += 3 * MS
        gpus.launch(gpu, 500, times=20, kind=kind)
    gpus.thread = 0


def copied_model(gpus: Gpus) -> None:
    """The main thread copies the model onto both GPUs."""
    for gpu in range(2):
        gpus.launch(gpu, 50, times=4, kind=BROADCAST)
    gpus.host += 4 * MS


def data_parallel(gpus: Gpus) -> None:
    """Both GPUs: a copy of the model, 10 ms forward, and 10 ms backward, then gradients to GPU 0, and its update."""
    copied_model(gpus)
    in_threads(gpus, first=1)
    gpus.wait()
    in_threads(gpus, first=3, kind=OF_GRADIENTS)
    for gpu in range(2):
        gpus.launch(gpu, 100, kind=REDUCE)
    gpus.launch(0, 500, kind=FUSED_ADAM)
    gpus.wait()


def data_parallel_without_gradients(gpus: Gpus) -> None:
    copied_model(gpus)
    in_threads(gpus, first=1)
    gpus.wait()


def data_parallel_with_slow_input(gpus: Gpus) -> None:
    """The same; the input takes 20 ms."""
    gpus.host += 20 * MS
    gpus.launch(0, 5)
    data_parallel_without_gradients(gpus)


def in_threads_without_copies(gpus: Gpus) -> None:
    """Each GPU keeps its model."""
    in_threads(gpus, first=1)
    gpus.wait()


def in_threads_with_sums(gpus: Gpus) -> None:
    """Each GPU keeps its model, and its thread sums up gradients with the others, as in JAX."""
    in_threads(gpus, first=1)
    in_threads(gpus, first=1, kind=ALL_REDUCE)
    gpus.wait()


def copied_in_turn(gpus: Gpus) -> None:
    """One thread copies the model, and launches all of the work."""
    copied_model(gpus)
    in_turn(gpus)


def recorded(step: Step, count: int, form: str, folder: Path) -> Trace:
    gpus = Gpus(count)
    for _ in range(STEPS):
        with gpus.step():
            step(gpus)
    gpus.wait()
    return gpus.as_kineto(folder) if form == "kineto" else gpus.as_nsys(folder)


@pytest.fixture(params=["kineto", "nsys"])
def seen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Step, int], Diagnosis]:
    return lambda step, count=2: judged(recorded(step, count, request.param, tmp_path))


@pytest.mark.parametrize("step", [uneven, uneven_without_waits])
def test_the_busiest_gpu_sets_the_pace_and_no_wait_of_the_host(seen, step):
    found = seen(step, 4)
    finding = found.findings[0]
    assert found.verdict == "uneven-gpus"
    assert "GPU 0 has 3 times" in finding.title
    assert finding.expected == pytest.approx(4 * 900 / (900 + 3 * 300), rel=0.02)
    assert finding.bound <= 2.001
    assert found.finding("host-sync") is None
    assert found.finding("incomplete-profile") is None


def test_each_phase_has_its_part_of_the_waiting(seen):
    found = seen(uneven_in_phases, 4)
    assert found.verdict == "uneven-gpus"
    assert {part.phase for part in found.per_phase} == {"forward", "backward"}
    assert {part.verdict for part in found.per_phase} >= {"uneven-gpus"}
    assert all(part.expected is None or part.expected <= part.gain_ceiling for part in found.per_phase)


@pytest.mark.parametrize(("step", "gain"), [(in_turn, 2.0), (unevenly_in_turn, 4 / 3)])
def test_gpus_that_take_turns_gain_no_more_than_all_work_over_the_longest(seen, step, gain):
    found = seen(step)
    finding = found.findings[0]
    assert found.verdict == "gpus-in-turn"
    assert finding.bound == pytest.approx(gain, rel=0.02)
    assert 1.1 < finding.expected < finding.bound
    assert finding.evidence["peer_copies_per_step"] == pytest.approx(1, abs=0.2)
    assert "micro-batches" in finding.remedies[0].action
    assert [other.id for other in found.findings if other.severity != "info"] == ["gpus-in-turn"]


def test_a_host_that_waits_for_one_gpu_before_it_uses_the_next_is_said_to(seen):
    finding = seen(waited_in_turn).findings[0]
    assert finding.id == "gpus-in-turn"
    assert "the host waits" in finding.title
    assert finding.expected == pytest.approx(2.0, rel=0.02)


def test_equal_work_on_all_gpus_is_accused_of_nothing(seen):
    found = seen(balanced)
    assert not {finding.id for finding in found.findings} & {*IDS}
    assert all(finding.severity == "info" for finding in found.findings)


def test_a_stray_tensor_on_another_gpu_is_no_warning(seen):
    assert all(finding.severity == "info" for finding in seen(stray).findings)


def test_a_stall_of_all_gpus_is_the_hosts(seen):
    found = seen(balanced_and_stalled)
    assert found.verdict == "host-stall"
    assert found.findings[0].expected == pytest.approx(15 / 10, rel=0.03)
    assert not {finding.id for finding in found.findings} & {*IDS}


def test_beside_uneven_work_a_stall_gains_the_idle_time_of_the_busiest_gpu(seen):
    found = seen(uneven_and_stalled)
    stall, uneven_work = found.finding("host-stall"), found.finding("uneven-gpus")
    assert stall.expected == pytest.approx(15.8 / 10.8, rel=0.03)
    assert uneven_work.expected == pytest.approx(15.8 / (15.8 - 3.6), rel=0.03)
    assert found.coverage.claimed_ns <= found.coverage.wall_ns


def test_a_pipeline_is_told_what_its_filling_costs(seen):
    finding = seen(pipeline).finding("gpus-in-turn")
    assert "fills and drains" in finding.title
    assert finding.bound == pytest.approx(5 / 4, rel=0.02)
    assert finding.evidence["gpus_at_once_count"] == pytest.approx(8 / 5, rel=0.02)


def test_a_host_that_issues_too_slowly_for_all_gpus_is_the_limit(seen):
    found = seen(launch_bound)
    assert found.verdict == "launch-overhead"
    assert not {finding.id for finding in found.findings} & {*IDS}


def test_the_budget_of_an_idle_gpu_says_that_it_waits_for_another_one(tmp_path):
    timeline = Timeline(recorded(uneven, 4, "kineto", tmp_path))
    busiest, *others = time_budgets(timeline, timeline.window())
    for budget in others:
        causes = budget.gaps.totals
        assert causes["dependency"] >= 0.95 * (busiest.busy_ns - budget.busy_ns)
        assert causes["synchronization"] < 0.01 * budget.idle_ns
        assert sum(causes.values()) == budget.idle_ns


def test_gpus_with_a_thread_for_each_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Each thread waits for its own GPU; that the other one works meanwhile is chance."""
    first, second = Gpus(2), Gpus(2)
    second.host, second.correlation = 1_100, 10_000
    for gpu, gpus in enumerate((first, second)):
        for _ in range(STEPS):
            with gpus.step():
                for _ in range(4):
                    gpus.launch(gpu, MS)
                    gpus.wait(gpu)
                    gpus.host += MS
    second.ranges.clear()
    trace = warplens.read(kineto.written(tmp_path / "gpus.json", [*first.events(), *second.events(102)]))
    assert not {finding.id for finding in judged(trace).findings} & set(IDS)


def test_threads_for_replicas_of_a_model_are_told_as_such_before_all_else(seen):
    found = seen(data_parallel)
    finding = found.findings[0]
    assert found.verdict == "data-parallel-threads"
    # 4 calls of the main thread, 4 ms, 3 ms for each thread, and the work of the last one, twice.
    step = 4 + 2 * (2 * 3 + 10)
    assert finding.expected == pytest.approx(step / 20.6, rel=0.04)
    assert finding.expected_interval[0] < finding.expected < finding.bound
    assert finding.evidence["replications_per_step"] == pytest.approx(1)
    assert "DistributedDataParallel" in finding.remedies[0].how
    assert not {other.id for other in found.findings[1:] if other.severity != "info"}
    assert not {other.id for other in found.findings[1:]} & {"uneven-gpus", "gpus-in-turn", "recomputation"}
    assert found.coverage.claimed_ns <= found.coverage.wall_ns


def test_replicas_without_gradients_are_found_as_well(seen):
    found = seen(data_parallel_without_gradients)
    finding, step = found.findings[0], 4 + 2 * 3 + 10
    assert found.verdict == "data-parallel-threads"
    assert finding.expected == pytest.approx(step / 10, rel=0.05)
    one = next(remedy for remedy in finding.remedies if "one GPU" in remedy.action)
    assert one.gain == pytest.approx(1.0, abs=0.05)
    assert "inputs[" in finding.remedies[0].how


def test_a_process_for_each_gpu_waits_for_the_input_as_well(seen):
    found = seen(data_parallel_with_slow_input)
    finding, stall = found.finding("data-parallel-threads"), found.finding("host-stall")
    assert finding.expected == pytest.approx(40 / 30, rel=0.05)
    assert stall.expected == pytest.approx(40 / 20, rel=0.1)
    assert found.verdict == "host-stall"


@pytest.mark.parametrize("step", [in_threads_without_copies, in_threads_with_sums, copied_in_turn, in_turn, pipeline])
def test_programs_that_keep_the_model_on_each_gpu_or_have_one_thread_have_no_replicas(seen, step):
    assert seen(step).finding("data-parallel-threads") is None


def test_autograd_has_a_thread_for_each_gpu(tmp_path: Path) -> None:
    timeline = Timeline(recorded(data_parallel, 2, "nsys", tmp_path))
    facts = gather(timeline, timeline.window())
    backward = facts.work.filter(backward_work(facts)).group_by("device").len().sort("device")
    assert backward["len"].to_list() == [20 * STEPS, 20 * STEPS]


def test_two_gpus_without_any_pause_have_a_diagnosis() -> None:
    kernels = [builders.kernel(100, 10**6, device=device, correlation=device + 1) for device in (0, 1)]
    calls = [builders.launch(50 * device, 50 * device + 10, device + 1) for device in (0, 1)]
    found = judged(builders.trace(kernels, calls))
    assert found.coverage.gpus == 2
    assert found.coverage.idle_ns == 0
