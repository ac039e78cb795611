"""Steps without ranges: the recordings of the repository, read with their marks hidden."""

from __future__ import annotations

import pytest
from benchmarks.steps_scorecard import FOLDERS, REPOSITORY, RESULTS, Case, judged, misses, recordings, scorecard

#: Training, inference, CUDA graphs, experts chosen anew, a loop over tokens, layers of a single step, a denoiser.
_SAMPLE = {
    "data/captures/lm_medium_ctx128_train.sqlite.xz": "right",
    "data/planted/vit_bs1__cuda-graph.json.xz": "right",
    "data/planted/healthy_input_pipeline__baseline.sqlite.xz": "right",
    "data/pairs/development/qwen_expert_loop__before.sqlite.xz": "right",
    "data/pairs/development/healthy_vit_inference__before.pt.trace.json.gz": "right",
    "data/pairs/development/bert_empty_cache__before.pt.trace.json.gz": "right",
    "data/planted/synchronize_per_layer__baseline.sqlite.xz": "unsure",
    "benchmarks/diagnosis/held_out/tolist_per_token__baseline.json.xz": "unsure",
}


@pytest.mark.parametrize("path", _SAMPLE)
def test_steps_are_those_that_were_marked(path: str) -> None:
    case = judged(REPOSITORY / path)
    assert case is not None
    assert case.answer == _SAMPLE[path], case.line()


@pytest.mark.slow
def test_the_scorecard_is_the_stored_one_and_what_is_called_a_step_is_one() -> None:
    cases: list[Case] = [case for path in recordings() if (case := judged(path)) is not None]
    assert len(cases) > 250, f"recordings in {', '.join(FOLDERS)}"
    sure = [case for case in cases if case.answer != "unsure"]
    assert sum(case.answer == "right" for case in sure) >= 0.95 * len(sure)
    assert RESULTS.read_text("utf-8") == f"{scorecard(cases)}\n{misses(cases)}"
