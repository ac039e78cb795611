"""`warplens PATH…`: whatever the paths hold, the answer to it, on any terminal."""

from __future__ import annotations

import json
import lzma
import re
import shlex
import shutil
import webbrowser
from pathlib import Path

import pytest

import warplens as package
from tests.cli.conftest import Run, run_in_process
from tests.shipped import capture, files
from warplens.cli.main import with_shipped_profiles
from warplens.cli.process import DONE, UNUSABLE
from warplens.diagnosis.findings import times
from warplens.errors import UsageError

BASELINE, VARIANT = "demo:deit224_bs1_baseline", "demo:deit224_bs1_topk0.1"
PLANTED_COUNTERS = Path(package.__file__).parent / "data" / "counters" / "planted_h200.ncu-rep.xz"
RANKS = files("planted", "ddp_straggler-gpu_rank*.json.xz")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Runs kept for the tests of this module that only read what was printed: most of a run is writing its report."""
    kept: dict[tuple[str, ...], Run] = {}

    def run(*arguments: str) -> Run:
        if arguments not in kept:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path_factory.mktemp("door"))
                kept[arguments] = run_in_process(*arguments)
        return kept[arguments]

    return run


def labels(text: str) -> list[str]:
    """The labels on the left, in order, each once."""
    found = (line[:12].strip() for line in text.splitlines() if re.match(r"(limited by|\w+) {2,}\S", line))
    return list(dict.fromkeys(label for label in found if label))


def test_one_profile_is_answered_in_five_lines_and_a_report(warplens, answers, tmp_path):
    run = warplens(BASELINE)

    diagnosis = answers("diagnose", BASELINE, "--format", "json").data
    finding = diagnosis["findings"][0]
    assert run.code == DONE
    assert labels(run.out) == ["limited by", "where", "gain", "do", "sure", "next", "report"]
    assert f"[{diagnosis['verdict']}]" in run.out
    assert all(times(number) in run.out for number in (finding["expected"], *finding["expected_interval"]))
    assert finding["remedies"][0]["action"] in run.out
    assert f"warplens compare {BASELINE} AFTER" in run.out
    assert "\x1b" not in run.out
    assert "<html" in (tmp_path / "warplens-report" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("paths", "shown", "documents"),
    [
        (
            (BASELINE, VARIANT),
            ["baseline", "variant", "verdict", "detail", "sure", "next", "report"],
            {"compare", "report"},
        ),
        (("demo:lm_small_ctx128_forward", "demo:lm_small_ctx256_train"), ["report"], {"grid", "report"}),
        pytest.param(
            ("demo:deit448_bs8_baseline", "demo:planted_h200"),
            ["limited by", "sure", "report"],
            {"counters", "report"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two", "grid", "counters"],
)
def test_several_paths_get_what_fits_them(paths, shown, documents, warplens, tmp_path):
    run = warplens(*paths, "-o", tmp_path / "out")

    assert run.code == DONE
    assert set(shown) <= set(labels(run.out))
    assert {path.stem for path in (tmp_path / "out").iterdir()} == documents


def folder_of_ranks(tmp_path: Path) -> Path:
    """The two ranks of a run in which more work was planted in rank 1."""
    folder = tmp_path / "run"
    folder.mkdir()
    for path in RANKS:
        (folder / path.name).symlink_to(path)
    return folder


def test_a_folder_of_ranks_is_answered_by_the_time_they_wait_for_each_other(warplens, tmp_path):
    folder = folder_of_ranks(tmp_path)

    run = warplens(folder, "-o", tmp_path / "out")

    assert "Rank 1 is late and the others wait for it" in run.out
    assert "[straggler]" in run.out
    assert {"limited by", "gain", "do", "sure", "next", "report"} <= set(labels(run.out))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.index("Rank 1 is late") < page.index("Each rank separately")
    told = warplens(folder, "--format", "json").out
    assert told == warplens("diagnose", folder, "--format", "json").out
    assert json.loads(told)["data"]["verdict"] == "straggler"


def test_options_may_stand_before_the_paths_and_the_report_is_opened(warplens, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: bool(opened.append(address) or True))

    assert warplens("--open", "-o", tmp_path / "out", BASELINE).code == DONE
    assert opened == [(tmp_path / "out" / "report.html").as_uri()]


def test_a_busy_gpu_without_a_cause_is_told_how_much_its_roofs_leave(warplens):
    path = Path(__file__).parents[2] / "data/pairs/development/healthy_bert_encoding__before.pt.trace.json.gz"
    finding = warplens("diagnose", str(path), "--format", "json").data["findings"][0]
    room = times(1 / (1 - finding["evidence"]["to_roof_share"]))

    assert finding["id"] == "below-roof"
    assert f"Up to {room}: if its kernels reached their practical roofs (modelled)" in warplens(str(path)).out


def test_a_gain_names_what_it_refers_to(answers):
    def gain(*words):
        return next(line for line in answers(*words).out.splitlines() if line.startswith("gain"))

    finding = answers("diagnose", BASELINE, "--format", "json").data
    share = finding["headline_share"]
    # Without the recorded pauses the step would be 5.3 times as fast, with the remedy and no profiler 2.9 times.
    assert 1 / (1 - share) > finding["findings"][0]["expected"] * 1.1
    assert f"without a profiler, whose cost is part of the {100 * share:.1f} %" in gain(BASELINE)
    assert "whose cost" not in gain("demo:lm_small_ctx256_train")
    assert "Not known: what the graphs run was not recorded" in gain("demo:deit224_bs1_graph_whole")
    # Ranges that were profiled as one, without the metrics that tell a bound.
    ranges = Path(__file__).parents[1] / "readers/data/counter_modes/app_ranges.ncu-rep.xz"
    assert "Not known" in gain(str(ranges))


def test_two_profiles_have_the_cautions_of_their_comparison(answers):
    cautions = [line[12:] for line in answers(BASELINE, VARIANT).out.splitlines() if line.startswith("caution")]
    compared = answers("compare", BASELINE, VARIANT).err

    assert cautions
    assert all(caution.rstrip(".") in compared for caution in cautions)


@pytest.mark.parametrize("command", ["counters", "roofline"])
def test_a_command_on_counters_takes_the_folder_that_the_answer_names(warplens, tmp_path, command):
    shutil.copy(PLANTED_COUNTERS, tmp_path)
    run = warplens(command, tmp_path, "--format", "json")
    assert run.code == DONE
    assert json.loads(run.out)["source"] == [PLANTED_COUNTERS.name]


@pytest.mark.parametrize("command", [(), ("counters",), ("roofline",)])
def test_a_report_cut_before_its_first_launch_is_refused_by_every_command(warplens, tmp_path, command):
    cut = tmp_path / "cut.ncu-rep"
    cut.write_bytes(lzma.decompress(PLANTED_COUNTERS.read_bytes())[:2000])
    run = warplens(*command, cut)
    assert run.code == UNUSABLE
    assert re.fullmatch(r"error: cut\.ncu-rep: .*without a complete launch.*\n", run.err)


def test_counters_alone_are_answered_in_the_same_lines(warplens, tmp_path):
    run = warplens("demo:planted_h200", "-o", tmp_path / "out")

    # Of the kernels with planted faults the costliest is the grid of four blocks on 132 multiprocessors.
    assert labels(run.out) == ["verdict", "gain", "do", "next", "report"]
    assert "Grid too small, in tiny_grid" in run.out
    assert "tiny_grid: 4 blocks, 132 multiprocessors" in run.out
    page = (tmp_path / "out" / "counters.html").read_text("utf-8").replace("\N{NO-BREAK SPACE}", " ")
    assert run.out.splitlines()[1].removeprefix("verdict").strip() in page


def test_counters_beside_a_profile_are_answered_too_and_joined_only_with_its_kernels(warplens):
    """The planted kernels are not those of the profile."""
    alone, both = warplens("demo:planted_h200").out, warplens(BASELINE, "demo:planted_h200").out
    verdict = next(line for line in alone.splitlines() if line.startswith("verdict"))

    assert "[launch-overhead]" in both
    assert verdict in both
    assert "warplens counters demo:planted_h200" in both
    assert "--counters" not in both


@pytest.mark.parametrize(
    ("name", "given", "only_measured"),
    [
        ("small_kernels_graph__baseline", "--gpu MI300X --window all --range step", ""),
        ("tiny_elementwise__baseline", "--gpu 'H100 PCIe'", " --step-time 3ms"),
    ],
)
def test_the_next_commands_repeat_the_options_of_the_answer(warplens, name, given, only_measured):
    profile = str(files("planted", f"{name}.json.xz")[0])
    run = warplens(profile, *shlex.split(given + only_measured))

    commands = [line[12:].split("  #")[0].strip() for line in run.out.splitlines() if "  # " in line]
    assert f"warplens diagnose {profile} {given}{only_measured}" in commands
    assert f"warplens compare {profile} AFTER {given}" in commands


def test_the_next_command_on_two_profiles_repeats_the_options(warplens):
    sides = [str(files("planted", f"{name}__baseline.json.xz")[0]) for name in ("tiny_elementwise", "deep_mlp_bs1")]
    run = warplens(*sides, "--window", "all", "--gpu", "H200")
    assert f"warplens compare {' '.join(sides)} --gpu H200 --window all  # the difference" in run.out


def test_diagnose_gives_the_gpu_to_every_rank(warplens):
    assert "--gpu 'Foo': no such GPU is known" in warplens("diagnose", *RANKS, "--gpu", "Foo").err


def test_a_path_that_begins_with_a_dash_may_follow_two(warplens, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(capture("deit224_bs1_baseline"), "-p.sqlite.xz")
    assert "./-p.sqlite.xz" in warplens("-q", "--", "-p.sqlite.xz").out


def test_options_of_the_program_may_stand_before_a_command(warplens, answers):
    asked = ("kernels", BASELINE, "--format", "csv")

    assert warplens("--memory", "4GB", *asked).out == warplens("--memory=4GB", "-q", *asked).out == warplens(*asked).out
    assert labels(warplens("--memory", "4GB", BASELINE).out)[0] == labels(answers(BASELINE).out)[0]


def test_programs_get_what_the_command_of_the_question_prints(warplens, answers, tmp_path):
    for form in ("json", "csv"):
        assert warplens(BASELINE, "--format", form).out == answers("diagnose", BASELINE, "--format", form).out
    assert (
        warplens(BASELINE, VARIANT, "--format", "json").out
        == warplens("compare", BASELINE, VARIANT, "--format", "json").out
    )
    assert not list(tmp_path.iterdir())


def test_report_says_the_same_lines_before_its_paths(warplens, answers):
    answer = answers(BASELINE).out.splitlines()
    report = warplens("report", BASELINE, "--format", "html").out.splitlines()

    lines = answer[1 : next(place for place, line in enumerate(answer) if line.startswith("next"))]
    assert report[: len(lines)] == lines
    assert report[-1] == "warplens-report/report.html"


def test_a_terminal_gets_colour_and_lines_of_its_width(warplens, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    coloured = warplens("report", BASELINE, "--format", "json", "-o", "out").out
    monkeypatch.setenv("NO_COLOR", "1")
    plain = warplens("report", BASELINE, "--format", "json", "-o", "out").out

    assert "\x1b[31m" in coloured.replace("\x1b[1;31m", "\x1b[31m")
    assert not re.search(r"\x1b\[[\d;]*3\d", plain)
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", coloured).splitlines())) <= 80


def test_a_window_without_gpu_work_says_where_there_is_some(warplens):
    run = warplens("kernels", BASELINE, "--window", "1s:1.1s")

    assert run.code == DONE
    (span,) = re.findall(r"caution: No GPU work begins in this window.*--window (\S+s:\S+s)", run.err)
    assert warplens("kernels", BASELINE, "--window", span, "--format", "json").data["rows"]


@pytest.mark.parametrize(("words", "shown"), [(("help",), "diagnose"), (("help", "budget"), "Usage: warplens budget")])
def test_help_is_a_word_as_well(words, shown, warplens):
    run = warplens(*words)

    assert run.code == DONE
    assert shown in run.out


def test_shipped_profiles_are_named_anywhere_but_in_ranges_and_other_programs():
    path = str(capture("deit224_bs1_baseline"))

    assert with_shipped_profiles(["budget", BASELINE]) == ["budget", path]
    assert with_shipped_profiles(["headroom", "x", f"--with={BASELINE}"]) == ["headroom", "x", f"--with={path}"]
    for left in (["budget", "x", "--range", "demo:step"], ["collect", "nsys", "--", "python", BASELINE]):
        assert with_shipped_profiles(left) == left
    with pytest.raises(UsageError, match="similar"):
        with_shipped_profiles(["budget", "demo:deit224"])


def test_every_shipped_profile_is_listed(warplens):
    listed = {line.split()[0] for line in warplens("demo:").out.splitlines()}

    assert {BASELINE, VARIANT, "demo:planted_h200", "demo:policies/token_reduction"} <= listed
    assert all(with_shipped_profiles(["budget", name])[1] != name for name in listed)


def test_a_folder_of_two_runs_is_compared_and_says_which_is_the_baseline(warplens, tmp_path):
    for name, file in (("fewer_tokens", "deit224_bs1_topk0.1"), ("tokens_before", "deit224_bs1_baseline")):
        (tmp_path / f"{name}.sqlite.xz").symlink_to(capture(file))
    lines = warplens(tmp_path).out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith(("baseline", "variant"))] == [
        "tokens_before.sqlite.xz",
        "fewer_tokens.sqlite.xz",
    ]
    assert any("not the ranks of one run" in line for line in lines)
    assert any(line.strip().endswith("# the other way round") for line in lines)
