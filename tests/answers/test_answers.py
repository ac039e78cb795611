"""What Python gets when it asks: the same as the command line, as typed values, from whatever holds a profile."""

from __future__ import annotations

import doctest
import inspect
import json
import pickle
import re
import shutil
import subprocess
import sys
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import warplens
import warplens.answers
from tests.cli.rank_files import write_ranks
from tests.shipped import capture, files
from warplens.cli.catalogue import COMMANDS
from warplens.cli.main import app
from warplens.diagnosis.findings import times

BASELINE, VARIANT, TRAINING = "demo:deit224_bs1_baseline", "demo:deit224_bs1_topk0.1", "demo:lm_small_ctx256_train"
COUNTERS = "demo:planted_h200"


class Profiler:
    """As much of torch.profiler.profile as there is to it once its `with` block is over: one export, no second."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace
        self.exports = 0

    def export_chrome_trace(self, path: str) -> None:
        self.exports += 1
        if self.exports > 1:
            raise RuntimeError("Trace is already saved.")
        shutil.copy(self.trace, path)


@pytest.fixture(scope="module")
def torch_trace():
    return next(path for path in files("planted", "deep_mlp_bs1__baseline.json.xz"))


def commands_json(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, [*map(str, arguments), "--format", "json", "--quiet"])
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("ask", "arguments"),
    [
        (lambda: warplens.diagnose(BASELINE), ("diagnose", BASELINE)),
        (lambda: warplens.headroom(BASELINE), ("headroom", BASELINE)),
        (lambda: warplens.budget(BASELINE), ("budget", BASELINE)),
        (lambda: warplens.kernels(BASELINE, by="category"), ("kernels", BASELINE, "--by", "category")),
        (lambda: warplens.operators(BASELINE), ("operators", BASELINE)),
        (lambda: warplens.ranges(TRAINING, window="all"), ("ranges", TRAINING, "--window", "all")),
        (lambda: warplens.compare(BASELINE, VARIANT), ("compare", BASELINE, VARIANT)),
        (lambda: warplens.steps(TRAINING), ("steps", TRAINING)),
        (lambda: warplens.phases(TRAINING), ("phases", TRAINING)),
        (lambda: warplens.launches(BASELINE, by=["api"]), ("launches", BASELINE, "--by", "api")),
        (lambda: warplens.api(BASELINE, by=("name", "thread")), ("api", BASELINE, "--by", "name,thread")),
        (lambda: warplens.flops(TRAINING), ("flops", TRAINING)),
        (lambda: warplens.memory(TRAINING), ("memory", TRAINING)),
        (lambda: warplens.copies(BASELINE, by="direction"), ("copies", BASELINE, "--by", "direction")),
        (lambda: warplens.code(BASELINE), ("code", BASELINE)),
        (lambda: warplens.roofline(COUNTERS), ("roofline", COUNTERS)),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_python_and_the_command_line_give_the_same_json(ask, arguments):
    answer = ask()

    said = commands_json(*arguments)

    assert json.loads(answer.to_json()) == said
    assert answer.to_dict() == said["data"]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return write_ranks(tmp_path_factory.mktemp("run"), 2)


@pytest.fixture(scope="module")
def diagnosed(ranks):
    return warplens.diagnose(ranks)


def test_the_ranks_of_a_run_are_those_of_the_command_line_from_files_and_from_traces(ranks, diagnosed):
    answer = warplens.ranks(ranks)

    assert answer.to_dict() == commands_json("ranks", *ranks)["data"]
    assert "rank" in answer.headline
    traces = warplens.ranks([warplens.read(path) for path in ranks])
    assert traces.frame.equals(answer.frame)
    assert answer.findings == traces.findings == diagnosed.findings
    assert "straggler" in [finding.id for finding in answer.findings]


def test_several_profiles_are_judged_as_the_ranks_of_one_run(ranks, diagnosed):
    assert diagnosed.to_dict() == commands_json("diagnose", *ranks)["data"]
    assert (diagnosed.verdict, list(diagnosed.ranks)) == (diagnosed.findings[0].id, [0, 1])
    report = warplens.report(ranks)
    assert report.to_dict() == commands_json("report", *ranks)["data"]
    assert report.run.headline == diagnosed.headline
    with pytest.raises(warplens.UsageError, match="not the ranks of one run"):
        warplens.diagnose(["demo:deit224_bs1_baseline", "demo:deit224_bs1_topk0.1"])


def test_a_profile_may_be_a_path_a_trace_a_timeline_or_a_live_profiler(torch_trace):
    trace = warplens.read(torch_trace)
    profiler = Profiler(torch_trace)
    expected = warplens.kernels(torch_trace).frame

    for given in (str(torch_trace), trace, warplens.Timeline(trace), profiler):
        assert warplens.kernels(given).frame.equals(expected)
    assert warplens.diagnose(profiler).sources == ("torch.profiler",)
    assert profiler.exports == 1


def test_a_profiler_that_was_exported_before_is_refused_in_one_line(torch_trace, tmp_path):
    profiler = Profiler(torch_trace)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))

    with pytest.raises(warplens.UsageError, match="already saved") as refused:
        warplens.budget(profiler)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", [3, None, b"x", dict, ["no-such-file", 3], {"a": 1}])
@pytest.mark.parametrize("name", ["read", "diagnose", "report", "headroom", "budget", "kernels", "ranks", "counters"])
def test_what_is_no_profile_is_refused_at_the_call(name, given):
    with pytest.raises(TypeError, match=rf"^warplens\.{name}\(\) takes a path.* not [^\n]+$"):
        getattr(warplens, name)(given)


@pytest.mark.parametrize("name", ["read", "diagnose", "report", "headroom", "kernels", "ranks"])
def test_an_empty_path_is_not_the_current_folder(name, tmp_path, monkeypatch):
    """A variable that is not set must not lead to an answer about whatever lies there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(warplens.UsageError, match="empty text"):
        getattr(warplens, name)("")


def test_a_timeline_is_made_of_nothing_but_a_trace():
    with pytest.raises(TypeError, match=r"takes a Trace .* not str"):
        warplens.Timeline("profile.sqlite")


def test_a_diagnosis_has_its_verdict_findings_and_five_lines():
    answer = warplens.diagnose(BASELINE)

    assert answer.verdict == answer.findings[0].id == "launch-overhead"
    assert answer.frame["id"].to_list() == [finding.id for finding in answer.findings]
    assert [line.label for line in answer.lines] == ["limited by", "where", "gain", "do", "sure"]
    low, high = answer.findings[0].expected_interval or (0.0, 0.0)
    assert all(times(number) in answer.lines[2].text for number in (answer.findings[0].expected or 0.0, low, high))
    with pytest.raises(AttributeError):
        answer.window = answer.window


@pytest.mark.parametrize(
    "ask",
    [
        lambda: warplens.diagnose(BASELINE),
        lambda: warplens.budget(BASELINE),
        lambda: warplens.counters(COUNTERS),
        pytest.param(lambda: warplens.report([BASELINE, VARIANT]), marks=pytest.mark.slow),
    ],
)
def test_an_answer_has_a_repr_of_one_line_and_is_saved_as_what_the_suffix_says(ask, tmp_path):
    answer = ask()

    assert "\n" not in repr(answer)
    assert len(repr(answer)) < 200
    assert len(str(answer).splitlines()) > 2
    assert json.loads(answer.save(tmp_path / "a.json").read_text("utf-8"))["data"] == answer.to_dict()
    assert pl.read_parquet(answer.save(tmp_path / "a.parquet")).equals(answer.frame)
    assert "<html" in answer.save(tmp_path / "a.html").read_text("utf-8")
    assert answer.sources[0] in answer.save(tmp_path / "a.md").read_text("utf-8")
    with pytest.raises(warplens.UsageError, match=r"saved as \.json"):
        answer.save(tmp_path / "a.pdf")


def test_a_trace_says_in_one_line_what_it_holds():
    assert repr(warplens.read(capture("copies_and_syncs"))).count("\n") == 0
    assert "247 kernels, 142 copies" in repr(warplens.read(capture("copies_and_syncs")))


class Card(HTMLParser):
    """The tags, texts and bar of a card."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.shares: list[float] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        style = dict(attrs).get("style") or ""
        if style.startswith("flex:"):
            self.shares.append(float(style[5:].split()[0]))


def test_the_card_of_a_notebook_shows_the_whole_budget_and_loads_nothing():
    text = warplens.diagnose(BASELINE)._repr_html_()
    card = Card(text)

    assert sum(card.shares) == pytest.approx(1.0, abs=1e-3)
    assert not {"script", "link", "img", "iframe", "object"} & set(card.tags)
    assert "http" not in text
    assert "torch.compile" in text


def test_the_card_draws_the_step_of_median_length_as_recorded():
    """The lane of the stream shows each kernel where the table has it, to a part of six hundred of the step."""
    answer = warplens.diagnose(BASELINE)
    text = answer._repr_html_()
    step = sorted(answer.window.steps, key=lambda each: each.duration_ns)[(len(answer.window.steps) - 1) // 2]
    work = answer.timeline.work.filter((pl.col("end_ns") > step.start_ns) & (pl.col("start_ns") < step.end_ns))

    assert f"Step {step.index}, of median length, as recorded" in text
    lane = re.search(r"aria-label='stream 7: (\d+) events'.*?</svg>", text)
    assert int(lane[1]) == work.height
    part = step.duration_ns / 600
    begins = [float(at) for at in re.findall(r"M([\d.e-]+) 0h", lane[0])]
    assert min(begins) == pytest.approx((work["start_ns"].min() - step.start_ns) / part, abs=0.1)
    drawn = sum(float(wide) for wide in re.findall(r"0h([\d.e-]+)v", lane[0]))
    busy = (work["end_ns"] - work["start_ns"]).sum() / part
    assert busy * 0.99 <= drawn <= busy * 1.25, "merged neighbours hide pauses shorter than a part of the step"


def test_names_of_a_profile_become_no_markup_on_a_card(tmp_path):
    path = tmp_path / "<img src=x>.sqlite.xz"
    shutil.copy(capture("deit224_bs1_baseline"), path)

    assert "<img" not in warplens.diagnose(path)._repr_html_()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("", marks=pytest.mark.slow),
        "import warplens.report.text, warplens.compare, warplens.ranks, warplens.cli.main",
    ],
)
def test_packages_with_the_name_of_a_question_answer_it_whoever_loaded_them_first(before):
    program = f"{before}\nimport warplens\nimport warplens.report.text as text\nassert text.duration(1500)\n"
    program += f"print(warplens.compare({BASELINE!r}, {VARIANT!r}).verdict, warplens.report({BASELINE!r}).frame.height)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "undecided 1\n"


def test_every_command_for_one_table_is_a_function_of_its_name():
    sections = ("One table of one profile", "Hardware counters")
    tables = {name: command for name, command in COMMANDS.items() if command.section in sections}
    assert tables.keys() <= set(warplens.__all__)
    for name, command in tables.items():
        assert inspect.getdoc(getattr(warplens, name)), name
        if command.module.startswith("questions.") and name != "budget":
            assert inspect.getdoc(getattr(warplens, name)).startswith(command.summary)


def test_a_package_that_answers_has_the_signature_and_help_of_its_function():
    for name in ("compare", "ranks", "report"):
        package, function = getattr(warplens, name), getattr(warplens.answers, name)
        assert inspect.signature(package) == inspect.signature(function)
        assert package.__doc__ == function.__doc__


def test_the_example_in_the_help_of_the_package_is_true():
    examples = doctest.DocTestParser().get_doctest(warplens.__doc__, {}, "warplens", None, 0)
    assert doctest.DocTestRunner(verbose=False).run(examples) == (0, 4)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: warplens.diagnose(BASELINE),
        lambda: warplens.kernels(BASELINE),
        lambda: warplens.headroom(BASELINE),
        lambda: warplens.counters(COUNTERS),
        lambda: warplens.compare(BASELINE, VARIANT),
        lambda: warplens.report(BASELINE),
    ],
)
def test_an_answer_can_be_sent_to_another_process(ask):
    answer = ask()
    said = answer.to_json()
    assert pickle.loads(pickle.dumps(answer)).to_json() == said


def test_the_answer_on_a_run_can_be_sent_with_its_diagnosis(ranks):
    for profiles in (ranks, [warplens.read(path) for path in ranks]):
        answer = warplens.ranks(profiles)
        sent = pickle.loads(pickle.dumps(answer))
        assert sent.to_json() == answer.to_json()
        assert sent.findings == answer.findings


def test_a_sent_diagnosis_still_draws_its_card_and_keeps_the_measured_step():
    timed = warplens.diagnose(BASELINE, step_time_ns=2_000_000)
    sent = pickle.loads(pickle.dumps(timed))
    assert sent.timeline.host_share == timed.timeline.host_share
    assert sent._repr_html_() == timed._repr_html_()


def test_a_process_pool_can_be_given_every_question():
    for name in ("kernels", "steps", "diagnose", "roofline"):
        assert pickle.loads(pickle.dumps(getattr(warplens, name))) is getattr(warplens, name)


@pytest.mark.parametrize(
    "name", [name for name in warplens.__all__ if name.endswith("Answer") or name in ("Finding", "Remedy")]
)
def test_the_page_names_every_attribute_of_an_answer(name):
    page = (Path(__file__).parents[2] / "docs/how-to/python.md").read_text("utf-8")
    assert f"`{name}`" in page
    for type_ in getattr(warplens, name).__mro__[:-1]:
        computed = {key for key, value in vars(type_).items() if isinstance(value, (property, cached_property))}
        attributes = computed | vars(type_).get("__annotations__", {}).keys()
        assert not {key for key in attributes if not key.startswith("_") and f"`{key}`" not in page}


def test_demo_names_every_file_that_is_shipped_and_no_other():
    from warplens.readers.shipped import located, shipped

    assert {located(f"demo:{name}") for name in shipped()} == set(shipped().values())
    assert capture("deit224_bs1_baseline") == located(BASELINE)
    with pytest.raises(warplens.UsageError, match="similar: demo:deit224_bs1_baseline"):
        located("demo:deit224_bs1_base")


def test_help_and_completion_name_nothing_that_cannot_be_loaded(monkeypatch):
    assert set(warplens.__all__) - set(dir(warplens)) <= {"AdaptiveModule"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert set(warplens.__all__) - set(dir(warplens)) == {"AdaptiveModule"}


def test_a_module_that_needs_pytorch_says_so_without_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "warplens.studies.policies.adaptive", raising=False)
    with pytest.raises(ImportError, match="AdaptiveModule needs PyTorch, which is not installed: pip install"):
        _ = warplens.AdaptiveModule
