"""Repetition: rhythms that are nested, chance that is no rhythm, and what looks like a step."""

import numpy as np
import pytest

from warplens.analysis.repetition import (
    is_structured,
    largest_drop,
    longest_repetition,
    repetitions_per_step,
    stand_out,
)


def pauses(repeats: int, length: int, inside: int = 10, after: int = 200, seed: int = 0) -> np.ndarray:
    """Pauses before each repetition but the first; a step has `length` of them, and a longer pause follows each."""
    noise = np.random.default_rng(seed).integers(0, 8, repeats)
    return np.array([after if place % length == 0 else inside for place in range(repeats)])[1:] + noise[1:]


@pytest.mark.parametrize(("repeats", "length"), [(60, 12), (400, 80), (36, 6), (1000, 25)])
def test_layers_make_a_step_where_the_pauses_between_steps_stand_out(repeats, length):
    assert repetitions_per_step(pauses(repeats, length)) == (length, 0)


def test_the_first_whole_step_is_found_where_a_slice_begins_within_one():
    assert repetitions_per_step(pauses(120, 12)[5:]) == (12, 7)


def test_nested_rhythms_give_the_coarsest():
    layers = np.array([2000 if i % 48 == 0 else 200 if i % 12 == 0 else 10 for i in range(480)])[1:]
    assert repetitions_per_step(layers)[0] == 48


def test_one_outlier_or_pure_noise_is_no_rhythm():
    noise = np.random.default_rng(1).exponential(100, (200, 60)).astype(np.int64)
    assert sum(repetitions_per_step(row) != (1, 0) for row in noise) <= 1, (
        "one in two hundred is the limit that it is asked to keep"
    )
    even = np.full(60, 100)
    even[17] = 100_000
    assert repetitions_per_step(even) == (1, 0)


def test_few_turns_are_no_evidence():
    assert repetitions_per_step(np.array([10, 12, 10, 12, 10])) == (1, 0)


def test_pauses_stand_out_of_nothing_only_where_there_is_something():
    assert not stand_out(np.array([100]), np.array([], dtype=np.int64))
    assert stand_out(np.array([100, 120]), np.arange(10))


def test_a_step_has_layers_and_a_layer_has_none():
    layer = [1, 2, 3, 4, 5, 6]
    step = [7, *layer * 4, 8, 9]
    assert longest_repetition(np.array(step * 5)) == (len(step), 0, 5 * len(step))
    assert longest_repetition(np.array([], dtype=np.int64)) == (0, 0, 0)
    assert is_structured(np.array(step * 5), len(step))
    assert not is_structured(np.array(layer * 20), len(layer))


@pytest.mark.parametrize(
    ("distances", "limit"),
    [([1, 1, 1], 1), ([6, 6, 6], 1), ([1, 3, 900, 2, 905, 1], 3), ([1, 2, 300, 1, 3000, 310], 2), ([], 1)],
)
def test_places_form_groups_where_their_distances_are_of_two_kinds(distances, limit):
    assert largest_drop(np.array(distances, dtype=np.int64)) == limit


@pytest.mark.parametrize(
    ("pauses", "length"), [([60, 109, 60, 108, 61, 112, 58], 2), ([38, 53, 36, 46, 31, 72, 33], 1)]
)
def test_few_turns_are_evidence_where_their_pauses_are_of_two_kinds(pauses, length):
    assert repetitions_per_step(np.array(pauses))[0] == length
