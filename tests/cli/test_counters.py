"""`warplens counters` on reports of real GPUs; skipped where they are not at hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import warplens
from tests.analysis.counters.builders import SHARED, needs_reports
from warplens.cli.commands.counters import counters
from warplens.errors import UsageError

pytestmark = needs_reports

H200 = SHARED / "h200_deit448_bs8.ncu-rep"
A10G = SHARED / "a10g_sgemm_4.ncu-rep"
EXPORT = SHARED / "h200_topk_reduction.raw.csv"


def run(*arguments: object) -> tuple[str, str]:
    """Standard output and standard error of the command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(counters)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_each_kernel_gets_its_bound_and_the_reason():
    out, err = run(A10G)

    assert out.startswith("a10g_sgemm_4.ncu-rep · Nsight Compute 2023.1.1.0 · NVIDIA A10G\n")
    assert "memory (L1)" in out
    assert "issue slots at 87.6 % of peak" in out
    assert "shared memory" in out
    assert "caution: 1 of 4 launches have no duration" in err


def test_json_is_one_object_with_every_number():
    out, err = run(H200, EXPORT, "--format", "json")

    answer = json.loads(out)
    assert (answer["schema"], err) == ("warplens.counters/1", "")
    assert answer["source"] == [H200.name, EXPORT.name]
    assert [report["launches"] for report in answer["data"]["reports"]] == [30, 8]
    rows = answer["data"]["rows"]
    assert {row["source"] for row in rows} == {H200.name, EXPORT.name}
    assert sum(row["launches"] for row in rows) == 38
    assert {row["bound"] for row in rows} == {"small", "latency"}
    assert str(SHARED) not in out
    assert "idle" not in out


def test_csv_has_a_column_for_a_metric_that_was_asked_for():
    out, _ = run(H200, "--by", "launch", "--metric", "dram__bytes.sum.per_second", "--format", "csv", "--limit", "5")

    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == 5
    assert float(rows[0]["dram__bytes.sum.per_second"]) == pytest.approx(1.475627e12, rel=1e-6)
    assert rows[0]["launch"] == "0"


def test_a_metric_that_was_not_collected_is_refused():
    with pytest.raises(UsageError, match="was not collected"):
        run(H200, "--metric", "dram__bytes.sum.per_secnd")


TRACE = Path(warplens.__file__).parent / "data" / "captures" / "deit224_bs1_topk0.1.sqlite.xz"


def test_a_trace_tells_what_was_covered_and_what_to_collect_next():
    out, err = run(EXPORT, "--trace", TRACE)

    assert "matched: 7 of 8 profiled launches occur in the window" in out
    assert "Coverage of the window" in out
    assert "sample: unknown" in out
    assert "\n    ncu -k 'regex:^(" in out
    assert "How much of the program" not in err


def test_json_holds_coverage_ranking_and_the_next_run():
    data = json.loads(run(EXPORT, H200, "--trace", TRACE, "--ncu-version", "2024.1", "--format", "json")[0])["data"]

    assert [item["source"] for item in data["coverage"]] == [EXPORT.name, H200.name]
    covered = data["coverage"][0]
    assert covered["launches_matched"] == 7
    assert covered["exact_share"] == pytest.approx(sum(row["share"] for row in data["ranking"][0]["rows"]))
    assert [item["ncu_version"] for item in data["next_run"]] == ["2024.1.0", "2024.1.0"]
