"""One question, three sources: measurements, a model of them, and a policy fitted to them."""

from __future__ import annotations

import pytest

from tests.compare.measured import token_reduction
from warplens.errors import UsageError
from warplens.studies.policies import fit_policy
from warplens.studies.sweeps.breakeven_fit import fit_breakeven
from warplens.studies.sweeps.payoff import pays_off


@pytest.fixture(scope="module")
def sweep():
    return token_reduction("explicit")


def test_measurements_and_their_policy_name_the_same_bracket(sweep) -> None:
    measured = {tuple(found.others.values()): found for found in pays_off(sweep, "batch")}
    chosen = {tuple(found.others.values()): found for found in pays_off(fit_policy(sweep), "batch")}
    assert measured.keys() == chosen.keys()
    decided = [key for key, found in measured.items() if found.answer == "crosses"]
    assert decided
    for key in decided:
        (crossing,) = measured[key].crossings
        (choice,) = chosen[key].crossings
        assert choice.pays == crossing.pays
        low, high = choice.bracket
        assert low <= crossing.bracket[1]
        assert high >= crossing.bracket[0]


def test_a_model_answers_along_items_and_size_with_intervals(sweep) -> None:
    model = fit_breakeven(sweep)
    for axis in ("items", "size"):
        answers = pays_off(model, axis)
        assert {found.evidence for found in answers} == {"modelled"}
        for found in answers:
            for crossing in found.crossings:
                assert crossing.low is None or crossing.low <= crossing.high
    assert len(pays_off(model, "items")) + len(pays_off(model, "size")) == model.thresholds.height


def test_an_axis_that_the_evidence_does_not_have_is_refused(sweep) -> None:
    for evidence in (sweep, fit_policy(sweep), fit_breakeven(sweep, draws=10)):
        with pytest.raises(UsageError, match="depth"):
            pays_off(evidence, "depth")
