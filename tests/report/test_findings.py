"""The study told end to end: every sentence and row follows from the evidence."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import polars as pl
import pytest

from tests.report.evidence import evidence as shipped
from warplens.cli.commands.report import TITLE
from warplens.report.document import Notes, Paragraph
from warplens.report.html import render_html
from warplens.studies.reports.findings import findings_document
from warplens.studies.reports.remedies import best_ways, predicted_times
from warplens.studies.sweeps.breakeven import BreakEven


@pytest.fixture(scope="module")
def evidence():
    return shipped()


@pytest.fixture(scope="module")
def document(evidence):
    return findings_document(evidence, TITLE)


def _section(document, identity):
    return next(section for section in document.sections if section.id == identity)


def _texts(section):
    return [block.text for block in section.all_blocks() if isinstance(block, Paragraph)]


def _table(document, identity):
    return next(table for table in document.tables() if table.id == identity)


def test_the_lead_counts_the_verdicts_of_the_table(evidence, document):
    for name, numbers in evidence.sweeps.items():
        counted = Counter(_table(document, f"points-{name}").rows["verdict"].to_list())
        assert sum(counted.values()) == len(numbers.points)
        for verdict, count in counted.items():
            assert re.search(rf"{name}[^;]*{verdict} at {count}\b", document.lead, re.IGNORECASE)


def test_each_hypothesis_is_listed_with_its_standing(evidence, document):
    rows = {(row["id"], row["point"]): row["standing"] for row in _table(document, "hypotheses-table").rows.to_dicts()}
    judged = {(item.id, pair.title): item.standing for pair in evidence.pairs for item in pair.hypotheses}
    assert rows == judged
    assert {rows["H1", "input size 224, batch 1"], rows["H2", "input size 224, batch 1"]} == {"confirmed"}
    assert {rows[name, "input size 448, batch 8"] for name in ("H1", "H2", "H3", "H4")} == {"refuted"}
    said = _texts(_section(document, "hypotheses"))[0]
    assert said == "At input size 224, batch 1: H1, H2 confirmed; H2c, H4c not judged; H3 partly confirmed; H4 refuted."


def test_predictions_are_compared_with_measurements(evidence, document):
    rows = _table(document, "predicted").rows
    assert rows.equals(predicted_times(evidence))
    assert rows.height == 4
    cells = evidence.measurements.cells
    for row in rows.iter_rows(named=True):
        assert row["error"] == row["predicted_ns"] / row["measured_ns"] - 1
        assert abs(row["error"]) < 0.1
        assert row["measured_ns"] in cells["latency_ns"].to_list()


def test_an_undecided_pair_of_profiles_is_shown_with_the_decided_measurement(document):
    first, second = _texts(_section(document, "evidence"))[:2]
    assert "without a profiler (eager), the variant is slower: 0.84× as fast (0.81 to 0.87)" in first
    assert second.startswith("In the profiles: whether the variant is faster or slower is undecided")


def test_where_the_model_contradicts_a_measurement_the_report_says_so(evidence, document):
    told = [text for text in _texts(_section(document, "cause")) if "the model names" in text]
    assert len(told) == len(evidence.sweeps)
    for text, numbers in zip(told, evidence.sweeps.values(), strict=True):
        model = numbers.breakeven
        assert isinstance(model, BreakEven)
        decided = [item for item in numbers.points if item.comparison.verdict in ("faster", "slower")]
        ratios = {tuple(settings.items()): ratio for settings, ratio in model.ratios}
        wrong = sum(
            (ratios[tuple(item.point.settings.items())] > 1) != (item.comparison.ratio.estimate > 1) for item in decided
        )
        assert text.startswith(f"At {wrong} of {len(decided)} points" if wrong else f"At all {len(decided)} points")


def test_an_answer_that_all_lines_share_is_given_once(document):
    graph = [text for text in _texts(_section(document, "cause")) if "faster at all measured values" in text]
    assert len(graph) == 2
    assert all(text.startswith("Measured: at every ") for text in graph)


def test_the_policys_sentences_are_its_regrets(evidence, document):
    said = _texts(_section(document, "policy"))
    for text, reasons in zip(said, (("measured",), ("interpolated", "outside")), strict=True):
        found = [regret for regret in evidence.regrets if regret.reason in reasons]
        assert text.startswith(f"At {len(found)} points")
        right = sum(regret.chosen == regret.best for regret in found)
        assert ("every time" in text) == (right == len(found))


def test_a_policy_that_was_wrong_is_not_praised(evidence):
    first, *rest = evidence.regrets
    other = next(name for name in ("method=none", "method=topk") if name != first.best)
    worse = replace(first, chosen=other, share=0.25)
    said = _texts(_section(findings_document(replace(evidence, regrets=[worse, *rest]), TITLE), "policy"))
    assert any("at most 25.0 % slower" in text for text in said)


def test_figures_of_two_runs_are_not_passed_off_as_one(document):
    quiet = _texts(_section(document, "remedies"))[-1]
    assert "another run than the grid above" in quiet
    assert "took 4.15 ms here and 3.74 ms there" in quiet


def test_a_limit_of_all_profiles_is_listed_once(document):
    blocks = list(_section(document, "limits").all_blocks())
    texts = [note.text for block in blocks if isinstance(block, Notes) for note in block.notes]
    assert len(texts) == len(set(texts))
    assert all(text[0].isupper() and text.endswith(".") for text in texts)


def test_no_id_stands_twice_in_the_page(document):
    ids = re.findall(r'\sid="([^"]+)"', render_html(document))
    assert {name: count for name, count in Counter(ids).items() if count > 1} == {}


@pytest.mark.parametrize(
    ("without", "lacking"),
    [
        pytest.param({"pairs": ()}, {"evidence", "hypotheses", "predictions"}, marks=pytest.mark.slow),
        pytest.param({"policy": None, "regrets": ()}, {"policy"}, marks=pytest.mark.slow),
        ({"pairs": (), "policy": None, "regrets": ()}, None),
    ],
)
def test_what_there_is_no_evidence_for_is_left_out(evidence, without, lacking):
    found = {section.id for section in findings_document(replace(evidence, **without), TITLE).sections}
    assert {"answer", "problem", "cause", "limits", "files"} <= found
    if lacking is None:
        assert found == {"answer", "problem", "cause", "growth", "remedies", "best", "limits", "files"}
    else:
        assert not found & lacking


def test_run_in_its_best_way_the_variant_is_faster_at_every_point_of_the_grid(evidence, document):
    rows = best_ways(evidence)
    cells = evidence.grid.cells.filter(pl.col("status") == "measured")
    for row in rows.iter_rows(named=True):
        here = cells.filter((pl.col("input_size") == row["input_size"]) & (pl.col("batch") == row["batch"]))
        assert row["baseline_ns"] == here.filter(pl.col("method") == "none")["latency_ns"].min()
        kept = here.filter((pl.col("method") != "none") & (pl.col("keep") == 0.1))
        assert row["variant_ns"] == kept["latency_ns"].min()
        assert row["low"] > 1
    assert set(rows["verdict"]) == {"faster"}
    assert rows.height == 20
    assert "the variant is faster at 20 of 20 points" in " ".join(_texts(_section(document, "answer")))
