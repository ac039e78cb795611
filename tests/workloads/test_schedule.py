"""Token counts that follow from shares, against the chains that the study's documents print."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the workloads compute with PyTorch")

from warplens.workloads.token_reduction.choosing import (
    compounded_chain,
    merges,
    most_merges,
    topk_chain,
)


@pytest.mark.parametrize(
    ("patches", "share", "chain"),
    [
        (196, 0.1, [20, 2, 1]),
        (196, 0.25, [49, 13, 4]),
        (196, 0.5, [98, 49, 25]),
        (196, 0.7, [138, 97, 68]),
        (196, 0.9, [177, 160, 144]),
        (784, 0.1, [79, 8, 1]),
    ],
)
def test_topk_keeps_a_share_of_what_there_is_rounded_up(patches, share, chain):
    assert topk_chain(patches, [share] * 3) == chain


def test_dynamicvit_keeps_a_share_of_what_there_was_rounded_down():
    assert compounded_chain(196, [0.7] * 3) == [137, 96, 67]
    assert compounded_chain(196, [0.1] * 3) == [19, 1, 1]


def test_tome_aims_at_what_topk_drops_and_merges_at_most_half():
    assert merges(196, [0.1] * 3) == [176, 18, 1]
    left = 197
    chain = []
    for wanted in merges(196, [0.1] * 3):
        left -= min(wanted, most_merges(left))
        chain.append(left)
    assert chain == [99, 81, 80]
