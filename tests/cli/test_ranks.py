"""`warplens ranks` on small files of three ranks, one of them slow."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.cli.rank_files import SLOW_RANK, STEPS, WAIT_US, write_ranks
from warplens import ranks as files
from warplens.ranks import FileSummary, _in_pool, analyse_ranks
from warplens.report.jsonout import envelope
from warplens.report.ranks import ranks_data

RANKS = 3
WAIT_NS = STEPS * WAIT_US * 1000


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    write_ranks(folder, RANKS)
    return folder


@pytest.fixture
def asked(asked, run_folder):
    return lambda *arguments: asked("ranks", run_folder, *arguments)


def test_the_slow_rank_is_last_and_the_others_wait(asked):
    rows = {row["rank"]: row for row in asked("--window", "all")["data"]["rows"]}
    assert {rank: row["last"] for rank, row in rows.items()} == {0: 0, SLOW_RANK: STEPS, 2: 0}
    assert {rank: row["wait_ns"] for rank, row in rows.items()} == {0: WAIT_NS, SLOW_RANK: 0, 2: WAIT_NS}
    assert rows[SLOW_RANK]["delay_ns"] == WAIT_NS


def test_nothing_is_advised_that_the_command_refuses(warplens, tmp_path):
    """A GPU without a name limits no answer about ranks, and there is no --gpu to name it."""
    for path in write_ranks(tmp_path, RANKS, "rank{}.json"):
        trace = json.loads(path.read_text())
        trace.pop("deviceProperties", None)
        path.write_text(json.dumps(trace))
    run = warplens("ranks", tmp_path)
    assert run.code == 0
    assert "does not describe the GPUs" in warplens("kernels", tmp_path / "rank0.json").err
    assert "--gpu" not in run.out + run.err
    named = warplens("--gpu", "H100", "ranks", tmp_path)
    assert (named.code, named.err.count("\n")) == (2, 1)
    assert "ranks has no --gpu" in named.err


def test_the_size_and_group_of_the_collective_are_those_recorded(asked):
    (group,) = asked("--window", "all")["data"]["groups"]["rows"]
    assert (group["kind"], group["group"], group["group_size"], group["size_bytes"]) == (
        "all_reduce",
        "0",
        RANKS,
        4_000_000,
    )
    # 4 MB from the last arrival on: 880 − 800 µs.
    assert group["bus_bytes_per_s"] == pytest.approx(4e6 / 80e-6 * 2 * 2 / 3)


def test_a_defect_in_one_file_is_named_and_does_not_stop_the_others(warplens, run_folder, monkeypatch):
    real = files.read

    def broken(path: str, **how: Any) -> Any:
        if "rank1" in path:
            raise KeyError("stream")
        return real(path, **how)

    monkeypatch.setattr(files, "read", broken)
    run = warplens("ranks", run_folder, "--format", "json")
    assert run.code == 2
    assert [row["rank"] for row in run.data["rows"]] == [0, 2]
    assert "rank1.json.gz: KeyError: 'stream'. This is a bug in Warplens" in run.err


def test_a_single_rank_has_nothing_to_be_compared_with(warplens):
    assert "communicates with no other" in warplens("ranks", "demo:lm_small_ctx256_train").out


def _answer(paths: list[Path], **how: Any) -> bytes:
    run = analyse_ranks(paths, "all", **how)
    return envelope("ranks", run.sources, ranks_data(run.result), run.problems)


def test_several_processes_give_what_one_gives(run_folder, monkeypatch):
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)  # then each process gets its share of the cores
    paths = sorted(run_folder.iterdir())
    assert _answer(paths, workers=2) == _answer(paths, workers=1)


def _threads_of_worker(path: str, window: str) -> FileSummary:
    return FileSummary(str(pl.thread_pool_size()))


def test_each_process_has_one_thread_and_the_callers_environment_stays_as_it_is(monkeypatch):
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    environment = dict(os.environ)
    answers = _in_pool([Path("a"), Path("b")], range(2), "all", 1, _threads_of_worker)
    assert next(answers)[1].source == "1"
    assert dict(os.environ) == environment  # while the rest is not yet asked for
    assert next(answers)[1].source == "1"


def test_without_dask_the_message_says_what_to_install(warplens, run_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    run = warplens("ranks", run_folder, "--scheduler", "tcp://127.0.0.1:1")
    assert run.code == 2
    assert "pip install 'warplens[cluster]'" in run.err


@pytest.mark.slow  # a scheduler and two workers start; that a lost one is one line is tested each time
@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_gives_what_this_machine_gives(run_folder):
    distributed = pytest.importorskip("distributed", reason="Dask's distributed is not installed")
    paths = sorted(run_folder.iterdir())
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        assert _answer(paths, scheduler=cluster.scheduler_address) == _answer(paths, workers=1)


@pytest.mark.filterwarnings("ignore")
def test_an_address_where_no_scheduler_answers_is_one_line(warplens, run_folder, monkeypatch):
    pytest.importorskip("distributed", reason="Dask's distributed is not installed")
    monkeypatch.setattr("warplens.ranks._CONNECT_S", 1)
    run = warplens("ranks", run_folder, "--scheduler", "tcp://127.0.0.1:9")
    assert run.code == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in run.err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lost", ["workers", "scheduler"])
def test_a_cluster_that_is_lost_is_one_line(lost, warplens, run_folder, monkeypatch):
    pytest.importorskip("distributed", reason="Dask's distributed is not installed")
    words = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    scheduler = subprocess.Popen([*words, "--host", "127.0.0.1"], stderr=subprocess.PIPE, text=True)
    try:
        assert scheduler.stderr is not None
        address = next(found[0] for line in scheduler.stderr if (found := re.search(r"tcp://[\d.:]+", line)))
        monkeypatch.setattr("warplens.ranks._ASK_S", 0.5)
        if lost == "workers":
            monkeypatch.setattr("warplens.ranks._ALONE_S", 1.0)
        else:  # as soon as it is asked who works
            monkeypatch.setattr("distributed.Client.nthreads", lambda _: scheduler.kill() or {"one": 1})
        run = warplens("ranks", run_folder, "--scheduler", address)
    finally:
        scheduler.kill()
        scheduler.communicate()

    assert run.code == 2
    said = {"workers": "has had no worker", "scheduler": f"the Dask scheduler at {address} was lost"}[lost]
    assert said in run.err
    assert len(run.err.splitlines()) == 1


def test_of_more_ranks_than_a_page_holds_the_late_one_and_the_first_are_told_in_full(
    warplens, run_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr("warplens.cli.reading._IN_FULL", 2)
    told = warplens("report", run_folder, "-f", "json")
    data = told.data
    assert [profile["source"] for profile in data["profiles"]] == ["rank0.json.gz", f"rank{SLOW_RANK}.json.gz"]
    assert len(data["run"]["ranks"]) == RANKS
    assert "2 of 3 files are told one by one" in told.err
    warplens("report", run_folder, "-o", tmp_path, "-f", "md")
    assert "Of 3 ranks 2 stand here" in (tmp_path / "report.md").read_text("utf-8")
