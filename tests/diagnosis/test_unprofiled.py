"""The host's pace from a step that was measured without a profiler, against machines whose pace is known."""

from __future__ import annotations

import json

import pytest

import warplens
from tests.cli.conftest import run_in_process
from tests.diagnosis.machine import MS, US, Machine
from tests.diagnosis.programs import large_products, launch_bound, record, stalled_input
from tests.shipped import capture
from warplens.analysis.timeline import Timeline
from warplens.diagnosis import diagnose
from warplens.diagnosis.unprofiled import HostSpeed, Pace, with_step_time
from warplens.errors import UsageError


def timed(timeline: Timeline, step_ns: float) -> Timeline:
    return with_step_time(timeline, timeline.window(), round(step_ns))


def step_of(machine: Machine) -> float:
    """Time of a launch-bound step on this machine."""
    window = Timeline(record(launch_bound, machine)).window()
    return window.duration_ns / len(window.steps)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_the_share_of_the_host_is_that_of_the_machine_that_was_timed(share: float) -> None:
    call_ns, recorded_ns = 4 * US, 36 * US
    recorded = Timeline(record(launch_bound, Machine(python_ns=recorded_ns - call_ns)))
    measured = step_of(Machine(python_ns=round(share * recorded_ns) - call_ns))

    found = timed(recorded, measured)

    assert found.host_share.usual == pytest.approx(share, rel=0.02)
    least, most = found.host_share.limits or (0.0, 0.0)
    assert (least, most) == (pytest.approx(0.9 * share, rel=0.03), pytest.approx(min(1.1 * share, 1.0), rel=0.03))
    assert recorded.host_share.step_ns is None  # the profile itself is as before
    pace = Pace.of(found, found.window())
    assert pace is not None
    assert pace.duration_ns(HostSpeed.USUAL) / pace.steps == pytest.approx(measured, rel=0.02)


def test_a_host_that_is_ahead_keeps_its_usual_pace() -> None:
    recorded = Timeline(record(large_products))
    window = recorded.window()

    found = timed(recorded, window.duration_ns / len(window.steps))

    assert found.host_share.usual == recorded.host_share.usual
    assert found.host_share.limits is not None
    assert found.host_share.limits[0] < 0.6 * found.host_share.usual  # its pace does not show


def test_pauses_that_were_longer_when_they_were_recorded_get_shorter() -> None:
    recorded = Timeline(record(stalled_input))
    window = recorded.window()
    pace = Pace.of(recorded, window)
    assert pace is not None
    modelled = pace.duration_ns(HostSpeed.USUAL) / pace.steps

    found = timed(recorded, 0.7 * modelled)

    assert found.host_share.pauses < 0.9
    pace = Pace.of(found, window)
    assert pace is not None
    assert pace.duration_ns(HostSpeed.USUAL) / pace.steps == pytest.approx(0.7 * modelled, rel=0.02)


def test_a_step_shorter_than_the_work_of_the_gpu_is_refused() -> None:
    recorded = Timeline(record(large_products))
    with pytest.raises(UsageError, match=r"a step of 0\.05 ms does not fit to .*: there, its GPU work and copies"):
        timed(recorded, 50 * US)


def test_without_steps_there_is_nothing_to_compare_with() -> None:
    recorded = Timeline(record(large_products))
    window = recorded.window("1ms:2ms")
    with pytest.raises(UsageError, match="it has none in this window"):
        with_step_time(recorded, window, MS)


def test_an_answer_tells_the_measured_step_and_narrows_its_interval() -> None:
    path = capture("deit224_bs1_baseline")
    modelled = warplens.diagnose(path).diagnosis
    step = modelled.without_profiler
    assert step is not None
    assert not step.measured
    assert step.low_ns < step.step_ns < step.high_ns

    run = run_in_process("diagnose", path, "--step-time", f"{step.step_ns}ns", "-f", "json")
    told = json.loads(run.out)["data"]

    assert told["without_profiler"] == {
        "step_ns": step.step_ns,
        "low_ns": step.step_ns,
        "high_ns": step.step_ns,
        "measured": True,
        "host_share": step.host_share,
    }
    first, before = told["findings"][0], modelled.findings[0]
    assert first["expected"] == pytest.approx(before.expected)
    assert before.expected_interval is not None
    low, high = first["expected_interval"]
    assert before.expected_interval[0] < low < first["expected"] < high < before.expected_interval[1]


@pytest.mark.parametrize("command", ["diagnose", "report", "answer"])
def test_a_step_time_is_that_of_one_profile(command: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [capture(name) for name in ("deit224_bs1_baseline", "deit224_bs1_topk0.1")]
    run = run_in_process(command, *paths, "--step-time", "3ms")
    assert run.code == 2
    assert "--step-time" in run.err
    assert "one profile" in run.err
    run = run_in_process(command, paths[0], "--step-time", "soon")
    assert run.code == 2
    assert "--step-time: 'soon' is not a time" in run.err


def test_a_step_that_took_longer_than_the_recorded_one_does_not_make_the_host_slow() -> None:
    recorded = Timeline(record(large_products))
    window = recorded.window()
    step_ns = window.duration_ns / len(window.steps)
    asis, slower = timed(recorded, step_ns).host_share, timed(recorded, 1.2 * step_ns)

    assert (slower.host_share.usual, slower.host_share.limits) == (asis.usual, asis.limits)
    told = diagnose(slower, window).without_profiler
    assert told is not None
    assert (told.step_ns, told.host_share) == (round(1.2 * step_ns), None)
    with pytest.raises(UsageError, match=r"does not fit to .* ms, with the profiler"):
        timed(recorded, 2 * step_ns)


def test_a_measured_step_is_told_as_it_was_given_although_the_gpu_worked_longer() -> None:
    recorded = Timeline(record(large_products))
    window = recorded.window()
    step_ns = round(0.95 * window.duration_ns / len(window.steps))

    told = diagnose(timed(recorded, step_ns), window).without_profiler

    assert told is not None
    assert told.step_ns == told.low_ns == told.high_ns == step_ns


@pytest.mark.parametrize("given", [float("nan"), float("inf"), 0, -1])
def test_a_step_takes_some_time(given: float) -> None:
    with pytest.raises(UsageError, match="step_time_ns is a time in nanoseconds"):
        warplens.diagnose(capture("deit224_bs1_baseline"), step_time_ns=given)


def test_a_measured_time_may_have_parts_of_a_nanosecond() -> None:
    found = warplens.diagnose(capture("deit224_bs1_baseline"), step_time_ns=3e6 + 0.3).diagnosis.without_profiler
    assert found is not None
    assert found.step_ns == 3_000_000


@pytest.mark.parametrize(("options", "why"), [(("3",), "has no unit"), (("3ms", "--range", "warmup"), "not a whole")])
def test_what_a_step_time_lacks_is_named(options: tuple[str, ...], why: str) -> None:
    run = run_in_process("diagnose", capture("deit224_bs1_baseline"), "--step-time", *options)
    assert run.code == 2
    assert why in run.err


def test_a_step_without_the_pauses_that_the_profiler_makes_on_the_gpu_is_taken() -> None:
    recorded = Timeline(record(large_products, Machine(between_ns=MS)))
    window = recorded.window()
    step_ns = window.duration_ns / len(window.steps) - 2 * MS

    found = timed(recorded, step_ns).host_share

    assert (found.usual, found.shows, found.step_ns) == (recorded.host_share.usual, False, round(step_ns))
