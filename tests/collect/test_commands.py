"""The commands of nsys and ncu hold only options that the tools have; the manifest says what was done."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from warplens.analysis.counters.nextrun import OPTIONS
from warplens.collect.commands import (
    ADDITIONS,
    PRESETS,
    SETS,
    TARGETS,
    Capture,
    Recording,
    Schedule,
    export_command,
    kernel_pattern,
    parse_capture,
    record_command,
    wrapped_command,
)
from warplens.collect.compute import (
    LIGHT,
    OLDEST,
    TARGETED,
    Profiling,
    Selection,
    cost,
    profile_command,
    select_kernels,
)
from warplens.collect.machine import Tool
from warplens.collect.recording import add_run, known_failure, without_paths
from warplens.errors import UsageError

NSYS = Tool("nsys", "nsys", (2023, 4, 4, 54))
NCU = Tool("ncu", "ncu", (2024, 1, 1, 0))
PROGRAM = ["python", "train.py", "--steps", "5"]
CAPTURES = [Capture(), Capture("cuda-profiler"), Capture("nvtx", "step")]

#: Options of `--help`, of the versions whose help was read.
NSYS_HELP = {
    "profile": {
        *("--trace", "--sample", "--cpuctxsw", "--cuda-graph-trace", "--cuda-memory-usage", "--capture-range"),
        *("--capture-range-end", "--nvtx-capture", "--env-var", "--force-overwrite", "--output", "--export", "--stats"),
        *("--python-sampling", "--python-backtrace", "--cudabacktrace", "--gpu-metrics-device"),
        *("--duration", "--delay", "--wait", "--kill", "--backtrace", "--session-new", "--inherit-environment"),
    },
    "export": {"--append", "--force-overwrite", "--lazy", "--output", "--quiet", "--separate-strings", "--type"},
}
NCU_HELP = {
    *("--target-processes", "--replay-mode", "--section", "--set", "--nvtx", "--nvtx-include", "--nvtx-exclude", "-k"),
    *("--kernel-name", "--kernel-name-base", "--launch-count", "--launch-skip", "--profile-from-start", "--export"),
    *("--cache-control", "--clock-control", "--force-overwrite", "--import", "--metrics", "--graph-profiling"),
    "--filter-mode",
}

REAL_NSYS = os.environ.get("WARPLENS_NSYS") or shutil.which("nsys") or ""
REAL_NCU = os.environ.get("WARPLENS_NCU") or shutil.which("ncu") or ""


def nsys_commands() -> Iterator[list[str]]:
    for capture, graphs, memory, force in itertools.product(CAPTURES, ("node", "graph"), (False, True), (False, True)):
        yield record_command(NSYS, Recording(capture, graphs, memory, force), "out/run", PROGRAM)
    for addition in ADDITIONS:
        yield record_command(NSYS, Recording(also=(addition,)), "out/run", PROGRAM)


def ncu_commands() -> Iterator[list[str]]:
    selections = (Selection(), Selection(("gemm", "softmax"), 3, 5), Selection((), 7, 2, each=True))
    for capture, selection, force in itertools.product(CAPTURES, selections, (False, True)):
        for replay_mode, clocks in itertools.product(("kernel", "application"), ("none", "base")):
            profiling = Profiling(TARGETED, replay_mode, clocks, "all", force)
            yield profile_command(NCU, profiling, selection, capture, "out/run", PROGRAM)
    for preset in PRESETS.values():
        profiling = Profiling(preset.sections, cache_control=preset.cache_control, metrics=preset.metrics)
        yield profile_command(NCU, profiling, Selection(pattern="gemm"), Capture(), "out/run", PROGRAM)
    yield profile_command(NCU, Profiling((), set_name="full"), Selection(), Capture(), "out/run", PROGRAM)


def options_of(command: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in command if re.match(r"--?[a-z]", word)}


def used_options(commands: Iterator[list[str]]) -> set[str]:
    """All options of some commands, without those of the program that they end with."""
    options: set[str] = set()
    for command in commands:
        assert command[-len(PROGRAM) :] == PROGRAM
        options |= options_of(command[: -len(PROGRAM)])
    return options


def test_every_option_of_nsys_is_in_its_help():
    assert used_options(nsys_commands()) <= NSYS_HELP["profile"]
    assert options_of(export_command(NSYS, "out/run", force=True)) <= NSYS_HELP["export"]


def test_every_option_of_ncu_is_in_its_help():
    assert set(OPTIONS) <= used_options(ncu_commands()) <= NCU_HELP


@pytest.mark.oracle
@pytest.mark.skipif(not Path(REAL_NSYS).is_file(), reason="nsys is neither in WARPLENS_NSYS nor on the PATH")
@pytest.mark.parametrize("subcommand", ["profile", "export"])
def test_the_installed_nsys_has_every_option(subcommand):
    text = subprocess.run([REAL_NSYS, subcommand, "--help"], capture_output=True, text=True, check=False).stdout
    there = set(re.findall(r"--[a-z][a-z-]+", text))

    assert NSYS_HELP[subcommand] <= there


@pytest.mark.oracle
@pytest.mark.skipif(not Path(REAL_NCU).is_file(), reason="ncu is neither in WARPLENS_NCU nor on the PATH")
def test_the_installed_ncu_has_every_option_and_section():
    text = subprocess.run([REAL_NCU, "--help"], capture_output=True, text=True, check=False).stdout
    there = set(re.findall(r"^ {2}(-\w)|(--[a-z][a-z-]+)", text, re.MULTILINE))
    words = {word for pair in there for word in pair if word}
    sections = subprocess.run([REAL_NCU, "--list-sections"], capture_output=True, text=True, check=False).stdout

    assert words >= NCU_HELP
    used = {section for preset in PRESETS.values() for section in preset.sections}
    assert {*LIGHT, *TARGETED, *used} <= {line.split(" ")[0] for line in sections.splitlines()}


@pytest.mark.oracle
@pytest.mark.skipif(not Path(REAL_NCU).is_file(), reason="ncu is neither in WARPLENS_NCU nor on the PATH")
def test_the_installed_ncu_knows_every_metric_and_set_of_the_presets():
    metrics = sorted({name for preset in PRESETS.values() for name in preset.metrics})
    query = ["--query-metrics", "--query-metrics-mode", "suffix", "--chips", "gh100", "--csv"]
    bases = ",".join(sorted({name.partition(".")[0] for name in metrics}))
    text = subprocess.run([REAL_NCU, *query, "--metrics", bases], capture_output=True, text=True, check=False).stdout
    sets = subprocess.run([REAL_NCU, "--list-sets"], capture_output=True, text=True, check=False).stdout

    assert [name for name in metrics if not re.search(rf'(^|"){re.escape(name)}("|\s|,)', text, re.MULTILINE)] == []
    assert set(SETS) <= {line.split(" ")[0] for line in sets.splitlines()}


def test_more_is_recorded_only_where_this_nsys_can():
    command = record_command(NSYS, Recording(also=("osrt", "cublas", "cpu", "python")), "run", PROGRAM)

    assert command[2:6] == [
        *("--trace=cuda,nvtx,osrt,cublas", "--sample=process-tree", "--cpuctxsw=process-tree"),
        "--python-sampling=true",
    ]
    newer = Tool("nsys", "nsys", (2025, 3, 2))
    assert "--gpu-metrics-devices=all" in record_command(newer, Recording(also=("gpu-metrics",)), "run", PROGRAM)
    with pytest.raises(UsageError, match=r"2022\.4\.2 cannot record python; install 2023\.1"):
        record_command(Tool("nsys", "nsys", (2022, 4, 2)), Recording(also=("python",)), "run", PROGRAM)
    with pytest.raises(UsageError, match="--also takes osrt, cudnn"):
        record_command(NSYS, Recording(also=("gpu",)), "run", PROGRAM)


#: Kernels of the kinds that people look for, as they are called in profiles of several GPUs.
NAMED = {
    "gemm": (
        "turing_fp16_s1688gemm_fp16_128x128",
        "nvjet_sm90_hsh_64x8",
        "sm80_xmma_gemm_f32f32",
        "splitKreduce_kernel",
    ),
    "attention": ("softmax_warp_forward", "cunn_SoftMaxForward", "flash_fwd_kernel", "fmha_cutlassF_f16"),
    "token-reduction": (
        "gatherTopK",
        "bitonicSortKVInPlace",
        "radixSortKVInPlace",
        "index_elementwise_kernel",
        "gather",
    ),
    "convolution": ("cutlass_tensorop_f16_s16816fprop_optimized", "implicit_convolve_sgemm", "nchwToNhwcKernel"),
    "normalisation": ("vectorized_layer_norm_kernel", "cuApplyLayerNorm", "batch_norm_collect"),
}


@pytest.mark.parametrize("kind", TARGETS)
def test_kernels_of_a_kind_are_found_by_their_names(kind):
    pattern = kernel_pattern([kind], [])
    assert pattern
    assert [name for name in NAMED[kind] if not re.search(pattern, name)] == []
    assert not re.search(pattern, "vectorized_elementwise_kernel")


def test_an_expression_that_is_none_is_refused():
    assert kernel_pattern([], ["gemm", "top[kK]"]) == "gemm|top[kK]"
    assert kernel_pattern([], []) is None
    with pytest.raises(UsageError, match="--target takes gemm, attention"):
        kernel_pattern(["topk"], [])
    with pytest.raises(UsageError, match="--kernel takes a regular expression"):
        kernel_pattern([], ["gemm("])


def test_a_choice_costs_its_sections_and_its_metrics_and_a_preset_what_was_measured():
    memory = PRESETS["memory"]
    chosen = Profiling(memory.sections, metrics=memory.metrics)

    assert cost(chosen, Selection(launches=2)).passes_each == 3 * 4 + 2
    assert cost(replace(chosen, passes=memory.passes), Selection(launches=2)).passes == 2 * 35
    assert cost(Profiling((), set_name="basic"), Selection(launches=1)).passes_each == 12


def test_a_recording_of_the_steady_steps_stops_with_them():
    command = record_command(NSYS, Recording(Capture("cuda-profiler")), "run", PROGRAM)

    assert "--capture-range=cudaProfilerApi" in command
    assert "--capture-range-end=stop" in command


def test_a_range_of_pytorch_starts_the_recording_though_its_string_is_not_registered():
    command = record_command(NSYS, Recording(parse_capture("nvtx:train@home")), "run", PROGRAM)

    assert "--nvtx-capture=train\\@home" in command
    assert "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0" in command


@pytest.mark.parametrize("text", ["", "nvtx", "nvtx:", "all:x", "cudaProfilerApi"])
def test_other_captures_are_refused(text):
    with pytest.raises(UsageError, match="--capture takes"):
        parse_capture(text)


def test_tools_that_are_too_old_are_refused_by_name():
    with pytest.raises(UsageError, match=r"Nsight Systems 2021\.1\.3\.14 is too old"):
        record_command(Tool("nsys", "nsys", (2021, 1, 3, 14)), Recording(), "run", PROGRAM)
    with pytest.raises(UsageError, match=r"Nsight Compute 2020\.3\.1\.0 is too old"):
        profile_command(Tool("ncu", "ncu", (2020, 3, 1, 0)), Profiling(), Selection(), Capture(), "run", PROGRAM)


def test_names_of_kernels_are_matched_as_a_whole():
    selection = Selection(("void gemm<1>", "add"), 4, 6)

    command = profile_command(NCU, Profiling(), selection, Capture(), "run", PROGRAM)

    pattern = command[command.index("-k") + 1].removeprefix("regex:")
    assert re.fullmatch(pattern, "add")
    assert re.fullmatch(pattern, "void gemm<1>")
    assert not re.fullmatch(pattern, "add_bias")
    assert command[command.index("--launch-skip") + 1] == "4"


def test_a_range_that_ncu_would_read_as_a_filter_of_its_own_is_refused():
    with pytest.raises(UsageError, match="cannot filter by a range"):
        profile_command(NCU, Profiling(), Selection(), Capture("nvtx", "a/b"), "run", PROGRAM)


def test_inside_a_capture_nothing_is_skipped_twice():
    command = profile_command(NCU, Profiling(), Selection((), 7, 2), Capture("cuda-profiler"), "run", PROGRAM)

    assert "--launch-skip" not in command
    assert command[command.index("--profile-from-start") + 1] == "off"


def test_the_kernels_that_matter_take_four_fifths_of_the_time():
    names = ["gemm", "add", "softmax", "gemm", "copy"]

    chosen = select_kernels(names, [400, 20, 250, 300, 30])

    assert chosen.names == ("gemm", "softmax")
    assert chosen.share == pytest.approx(0.95)


def test_two_launches_of_each_kernel_that_matters_are_enough():
    names = ["gemm", "add", "softmax", "gemm", "gemm", "softmax", "gemm"]
    durations = [10, 1, 9, 10, 10, 9, 10]

    chosen = select_kernels(names, durations)

    # Up to the second softmax: gemm softmax gemm gemm softmax.
    assert chosen.launches == 5
    assert chosen.busy_ns == 10 + 9 + 10 + 10 + 9


def test_the_price_grows_with_launches_and_sections():
    light = cost(Profiling(LIGHT), Selection(launches=10, busy_ns=1_000_000_000))

    assert (light.passes_each, light.passes) == (9, 90)
    assert light.least_s == pytest.approx(9 * 1.0 + 90 * 0.005)
    assert cost(Profiling(LIGHT), Selection()).passes is None
    assert cost(Profiling(TARGETED), Selection(launches=10)).passes_each == 27


def test_a_python_program_runs_under_the_wrapper_in_its_own_interpreter():
    words = wrapped_command(["python3.11", "-u", "-W", "ignore", "train.py", "-m"], "t.json", Schedule(2, 1, 3))

    assert words[:4] == ["python3.11", "-u", "-W", "ignore"]
    assert Path(words[4]).name == "torch_run.py"
    assert words[5:] == ["--trace", "t.json", "--schedule", "2,1,3", "--shapes", "--", "train.py", "-m"]


@pytest.mark.parametrize("program", [["./a.out"], ["python"], ["python", "-c", "print(1)"], ["torchrun", "x.py"]])
def test_what_is_no_python_script_cannot_run_under_the_wrapper(program):
    with pytest.raises(UsageError, match="collect torch"):
        wrapped_command(program, "t.json")


def test_the_oldest_ncu_is_that_of_the_youngest_option():
    assert max(since for since, _ in OPTIONS.values()) == OLDEST


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("/home/someone/bin/nsys", "nsys"),
        ("--output=/scratch/someone/out/run", "--output=run"),
        ("~/models/small.pt", "small.pt"),
        ("../data/train.py", "train.py"),
        ("C:\\Users\\someone\\train.py", "train.py"),
        ("https://host.example/models/x", "https:x"),
        ("/home/John Doe/train.py", "train.py"),
        ("--data=/home/John Doe/set", "--data=set"),
        ("--master=10.1.2.3:8786", "--master=[removed]:8786"),
        ("someone@host.example:x", "[removed]:x"),
        ("--steps", "--steps"),
        ("regex:^(a/b)$", "regex:^(a/b)$"),
        ("step/", "step/"),
    ],
)
def test_folders_are_left_out(word, kept):
    assert without_paths([word]) == [kept]


def test_values_that_sound_secret_are_left_out():
    words = ["train.py", "--hf-token", "abc", "--api_key=xyz", "PASSWORD=q", "--steps", "5"]

    kept = without_paths(words)

    assert kept == ["train.py", "--hf-token", "[removed]", "--api_key=[removed]", "PASSWORD=[removed]", "--steps", "5"]


def test_a_folder_keeps_the_runs_of_several_tools_and_a_repeated_one_once(tmp_path):
    for name in ("a.sqlite", "b.ncu-rep"):
        (tmp_path / name).write_bytes(b"1234")

    for tool, name, code in (("nsys", "a.sqlite", 1), ("ncu", "b.ncu-rep", 0), ("nsys", "a.sqlite", 0)):
        add_run(tmp_path, tool=tool, version="1", commands=[["x"]], files=[tmp_path / name], exit_code=code)

    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["schema"] == "warplens.collection/1"
    assert [(run["tool"], run["exit_code"]) for run in content["runs"]] == [("ncu", 0), ("nsys", 0)]
    assert content["runs"][0]["files"] == [{"name": "b.ncu-rep", "bytes": 4}]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
            " on the target device 0.",
            "NVreg_RestrictProfilingToAdminUsers=0",
        ),
        ("==WARNING== No kernels were profiled.", "no kernel passed the filters"),
        ("==ERROR== Nsight Compute failed to connect to the CUDA driver", "warplens doctor"),
        ("Importer error status: The importer binary and its dependencies were not found.", "install all of"),
    ],
)
def test_known_failures_come_with_their_fix(line, advice):
    assert advice in (known_failure(line) or "")


def test_other_lines_are_no_failure():
    assert known_failure("step 5: loss 3.2") is None
