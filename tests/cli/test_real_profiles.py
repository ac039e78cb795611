"""Every table command on every profile at hand: an answer or one clear line, never a traceback."""

from __future__ import annotations

import json

import pytest

from tests.oracle.captures import THIRD_PARTY
from tests.tiers import thinned
from warplens.cli.catalogue import COMMANDS

READABLE = (
    "h200_lm_small_train.sqlite",
    "h200_lm_small_lost_kernels.sqlite",
    "a100_lm2p7b_nvtx.sqlite",
    "a100_lm2p7b_cudagraph.sqlite",
    "a100_lm_small_no_nvtx.sqlite",
    "rtx5000_lm_small_windows.sqlite",
    "h100x2_before.sqlite",
    "wsl2_no_cuda_tables.sqlite",
    "empty_capture_old.sqlite",
    "gtx1060_streams_2022.sqlite",
    "a100_tiny_2021.sqlite",
    "minimal_schema.sqlite",
)
#: Whole programs, of which the shipped captures are others.
LARGE = (
    "h100x2_before.sqlite",
    "h200_lm_small_train.sqlite",
    "a100_lm2p7b_nvtx.sqlite",
    "rtx5000_lm_small_windows.sqlite",
)
#: Without any work of a GPU, or with hardly any that was recorded.
HOLLOW = ("h200_lm_small_lost_kernels.sqlite", "wsl2_no_cuda_tables.sqlite", "empty_capture_old.sqlite")
TABLES = [command.name for command in COMMANDS.values() if command.section.startswith("One table")]


@pytest.fixture(scope="module", autouse=True)
def _profiles_are_here():
    if not THIRD_PARTY.is_dir():
        pytest.skip("the profiles of other people are not here")


@pytest.mark.parametrize("name", thinned(READABLE, slow=LARGE))
def test_every_table_of_every_profile(name, warplens):
    for command in TABLES:
        run = warplens(command, THIRD_PARTY / name, "--format", "json")

        assert (run.code, run.err) == (0, "")
        answer = json.loads(run.out)
        assert answer["source"] == name
        assert str(THIRD_PARTY) not in run.out


@pytest.mark.parametrize("name", READABLE)
def test_the_budget_of_each_device_adds_up_to_the_window(name, warplens):
    data = warplens("budget", THIRD_PARTY / name, "--format", "json").data

    for device in data["devices"]:
        parts = [row["time_ns"] for row in data["rows"] if row["device"] == device["device"]]
        assert sum(parts) == device["duration_ns"] == data["window"]["duration_ns"]


@pytest.mark.parametrize("name", HOLLOW)
def test_a_hollow_profile_says_what_is_missing_and_how_to_record_it(name, warplens):
    run = warplens("kernels", THIRD_PARTY / name)

    assert run.code == 0
    assert run.err.startswith("missing: ")
    assert "nsys" in run.err


def test_time_inside_graphs_is_busy_and_declared_hidden(warplens):
    run = warplens("budget", THIRD_PARTY / "a100_lm2p7b_cudagraph.sqlite")

    assert "hidden inside CUDA graphs" in run.out
    assert "--cuda-graph-trace=node" in run.err


def test_a_database_that_is_no_profile_is_one_line(warplens):
    run = warplens("kernels", THIRD_PARTY / "not_an_nsys_file.sqlite")

    assert (run.code, run.out) == (2, "")
    assert run.err.startswith("error: not_an_nsys_file.sqlite: ")
    assert run.err.count("\n") == 1
