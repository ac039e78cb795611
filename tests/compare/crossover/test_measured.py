"""Crossovers of token reduction on an H200, against what the table of the same measurements says cell by cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.compare.measured import token_reduction
from warplens.studies.sweeps.payoff import PaysOff, crossovers


def line(attention: str, axis: str, **others: Any) -> PaysOff:
    (found,) = (item for item in crossovers(token_reduction(attention), axis) if item.others == others)
    return found


def test_at_224_the_eager_form_never_pays_up_to_a_batch_of_16() -> None:
    answer = line("explicit", "batch", input_size=224, execution="eager")
    assert answer.answer == "none-in-range"
    assert answer.line["ratio"].min() > 1.1  # type: ignore[operator]


@pytest.mark.parametrize("size", [224, 448])
def test_as_a_cuda_graph_it_always_pays(size: int) -> None:
    assert line("explicit", "batch", input_size=size, execution="graph").answer == "always"


def test_at_448_the_eager_form_pays_from_a_batch_of_3_or_4_on() -> None:
    answer = line("explicit", "batch", input_size=448, execution="eager")
    (crossing,) = answer.crossings
    assert crossing.bracket == (2, 4)
    assert crossing.pays == "above"
    assert crossing.low is not None
    assert crossing.high is not None
    assert 2 < crossing.low < crossing.at < crossing.high < 4


@pytest.mark.parametrize(
    ("batch", "answer"), [(1, "none-in-range"), (2, "none-in-range"), (4, "crosses"), (8, "crosses"), (16, "crosses")]
)
def test_eager_larger_batches_pay_at_some_input_size_between_224_and_448(batch: int, answer: str) -> None:
    found = line("explicit", "input_size", batch=batch, execution="eager")
    assert found.answer == answer
    assert all(crossing.bracket == (224, 448) for crossing in found.crossings)


def test_against_fused_attention_it_pays_late_or_not_at_all() -> None:
    assert line("fused", "batch", input_size=224, execution="eager").answer == "none-in-range"
    brackets = {
        (size, execution): line("fused", "batch", input_size=size, execution=execution).crossings[0].bracket
        for size, execution in ((224, "graph"), (448, "eager"), (448, "graph"))
    }
    assert brackets == {(224, "graph"): (8, 16), (448, "eager"): (8, 16), (448, "graph"): (4, 8)}


@pytest.mark.parametrize(
    ("attention", "size", "execution", "left_out"),
    [
        ("explicit", 448, "eager", 4),
        ("explicit", 448, "eager", 2),
        ("fused", 448, "graph", 8),
        ("fused", 448, "eager", 8),
    ],
)
def test_without_a_neighbour_the_interval_still_holds_the_estimate_with_it(
    attention: str, size: int, execution: str, left_out: int
) -> None:
    sweep = token_reduction(attention)
    whole = line(attention, "batch", input_size=size, execution=execution).crossings[0]
    thinned = replace(sweep, points=tuple(point for point in sweep.points if point.settings["batch"] != left_out))
    others = {"input_size": size, "execution": execution}
    (found,) = (item for item in crossovers(thinned, "batch") if item.others == others)
    (crossing,) = found.crossings
    assert crossing.low is not None
    assert crossing.high is not None
    assert crossing.low <= whole.at <= crossing.high
