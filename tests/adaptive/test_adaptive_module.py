from __future__ import annotations

import copy
import io
import threading
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn

from tests.adaptive.policies import SIDES, Adds, Scaled, policy, ran
from warplens.errors import UsageError
from warplens.studies.policies.adaptive import AdaptiveModule
from warplens.studies.policies.choosing import Side
from warplens.studies.policies.files import write_policy
from warplens.studies.policies.fitting import PointTimes, fit_points

BASELINE, VARIANT = 0.0, 1.0


def images(batch: int, size: int = 32) -> torch.Tensor:
    return torch.zeros(batch, 3, size, size)


def adaptive(**options: object) -> AdaptiveModule:
    return AdaptiveModule(Adds(BASELINE), Adds(VARIANT), policy(), **options).eval()


@pytest.mark.parametrize(
    ("batch", "side", "reason"),
    [
        (1, BASELINE, "measured"),
        (4, BASELINE, "measured"),
        (8, VARIANT, "measured"),
        (3, BASELINE, "interpolated"),
        (12, VARIANT, "interpolated"),
        (64, BASELINE, "outside"),
    ],
)
def test_the_side_that_the_policy_names_runs(batch, side, reason):
    module = adaptive()
    assert ran(module(images(batch))) == side
    explained = module.explain(images(batch))
    assert (explained.reason, explained.side) == (reason, SIDES[int(side)].name)
    assert explained.settings == {"batch": batch, "input_size": 32}
    assert module.explain((batch, 3, 32, 32)) == explained


def test_a_shape_is_looked_up_once():
    asked = []

    def features(shape):
        asked.append(tuple(shape))
        return {"batch": shape[0], "input_size": shape[-1]}

    module = adaptive(features=features)
    for _ in range(3):
        module(images(8))
        module(images(2))
    assert asked == [(8, 3, 32, 32), (2, 3, 32, 32)]


def test_a_module_in_training_runs_its_baseline():
    module = adaptive()
    assert ran(module(images(8))) == VARIANT
    module.train()
    assert ran(module(images(8))) == BASELINE
    assert module.explain(images(8)).reason == "training"
    module.eval()
    assert ran(module(images(8))) == VARIANT


def test_on_another_gpu_the_baseline_runs_with_a_single_warning():
    module = AdaptiveModule(Adds(BASELINE), Adds(VARIANT), policy("NVIDIA H200")).eval()
    with pytest.warns(UserWarning, match="fitted on NVIDIA H200, and this is CPU: its fallback 'method=none' runs"):
        assert ran(module(images(8))) == BASELINE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ran(module(images(16))) == BASELINE
        assert module.explain(images(16)).reason == "other-machine"


def test_a_policy_of_another_gpu_can_be_trusted():
    module = AdaptiveModule(Adds(BASELINE), Adds(VARIANT), policy("NVIDIA H200"), elsewhere="policy").eval()
    with pytest.warns(UserWarning, match="used all the same"):
        assert ran(module(images(8))) == VARIANT


def test_settings_that_no_shape_shows_are_given_or_the_module_is_refused():
    by_mode = fit_points(
        [PointTimes({"mode": mode, "batch": batch}, (2.0, 1.0)) for mode in ("a", "b") for batch in (1, 2)],
        sides=SIDES, axes=("mode", "batch"), source="test", workload="test",
    )  # fmt: skip
    with pytest.raises(UsageError, match="'mode'"):
        AdaptiveModule(Adds(0), Adds(1), by_mode)
    with pytest.raises(UsageError, match="'depth'"):
        AdaptiveModule(Adds(0), Adds(1), by_mode, settings={"mode": "a", "depth": 3})
    module = AdaptiveModule(Adds(0), Adds(1), by_mode, settings={"mode": "a"}).eval()
    assert ran(module(images(2))) == VARIANT


def test_execution_is_known_unless_it_is_given():
    by_execution = policy(axes=("batch", "input_size", "execution"))
    module = AdaptiveModule(Adds(0), Adds(1), by_execution).eval()
    assert module.explain(images(8)).settings["execution"] == "eager"
    assert module.explain(images(8), execution="graph").reason == "outside"
    fixed = AdaptiveModule(Adds(0), Adds(1), by_execution, settings={"execution": "eager"}).eval()
    assert fixed.explain(images(8), execution="graph").reason == "measured"


def test_an_input_without_the_dimension_is_refused():
    by_tokens = fit_points(
        [PointTimes({"tokens": tokens}, (2.0, 1.0)) for tokens in (1, 2)],
        sides=SIDES, axes=("tokens",), source="test", workload="test",
    )  # fmt: skip
    module = AdaptiveModule(Adds(0), Adds(1), by_tokens).eval()
    with pytest.raises(UsageError, match="no dimension 1"):
        module(torch.zeros(32))


def test_the_policy_may_be_a_file(tmp_path):
    write_policy(policy(), tmp_path / "policy.json")
    module = AdaptiveModule(Adds(BASELINE), Adds(VARIANT), tmp_path / "policy.json").eval()
    assert ran(module(images(8))) == VARIANT


def test_more_than_one_variant_is_given_by_name():
    sides = [Side(name, {"method": name}) for name in ("none", "topk", "tome")]
    times = {1: (3.0, 2.0, 5.0), 2: (3.0, 2.0, 5.0), 4: (3.0, 5.0, 1.0), 8: (3.0, 5.0, 1.0)}
    three = fit_points(
        [PointTimes({"batch": batch}, taken) for batch, taken in times.items()],
        sides=sides, axes=("batch",), source="test", workload="test",
    )  # fmt: skip
    with pytest.raises(UsageError, match="more than one variant"):
        AdaptiveModule(Adds(0), Adds(1), three)
    with pytest.raises(UsageError, match="topk, tome"):
        AdaptiveModule(Adds(0), {"topk": Adds(1)}, three)
    module = AdaptiveModule(Adds(0), {"tome": Adds(2), "topk": Adds(1)}, three).eval()
    assert [ran(module(images(batch))) for batch in (1, 8, 32)] == [1, 2, 0]


def test_threads_that_meet_new_shapes_together_all_get_the_right_side():
    module, wrong = adaptive(), []

    def call() -> None:
        batches = [1, 8, 2, 16, 4, 32, 3, 12] * 10
        wrong.extend(batch for batch in batches if ran(module(images(batch))) != (VARIANT if batch >= 8 else BASELINE))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_equal_weights_are_held_once():
    baseline = Adds(0)
    weights = sum(parameter.numel() for parameter in baseline.parameters())
    module = AdaptiveModule(baseline, Adds(1), policy())
    assert sum(parameter.numel() for parameter in module.parameters()) == weights
    assert module.variant.layer.weight is baseline.layer.weight
    assert module.variant.calls is baseline.calls


def test_weights_that_differ_are_kept_apart_unless_the_user_says_otherwise():
    apart = AdaptiveModule(Adds(0), Adds(1, seed=1), policy())
    assert apart.variant.layer.weight is not apart.baseline.layer.weight
    together = AdaptiveModule(Adds(0), Adds(1, seed=1), policy(), share="all")
    assert together.variant.layer.weight is together.baseline.layer.weight
    none = AdaptiveModule(Adds(0), Adds(1), policy(), share="none")
    assert none.variant.layer.weight is not none.baseline.layer.weight


MOVES = {
    "double": lambda module: module.double(),
    "bfloat16": lambda module: module.to(torch.bfloat16),
    "meta": lambda module: module.to_empty(device="meta"),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_moves_and_conversions_keep_weights_and_buffers_together(move):
    module = move(adaptive())
    assert module.variant.layer.weight is module.baseline.layer.weight
    assert module.variant.calls is module.baseline.calls


def test_the_state_is_the_baselines_and_loads_from_and_into_the_plain_model():
    module = AdaptiveModule(Adds(0), Adds(1), policy())
    state = module.state_dict()
    assert set(state) == {"layer.weight", "layer.bias", "calls"}
    plain = Adds(0, seed=3)
    assert not torch.equal(plain.layer.weight, module.variant.layer.weight)
    module.load_state_dict(plain.state_dict())
    assert torch.equal(module.variant.layer.weight, plain.layer.weight)
    plain.load_state_dict(state)


def test_tensors_of_the_variant_alone_are_in_the_state_under_its_name():
    module = nn.Sequential(AdaptiveModule(Adds(0), Scaled(1), policy()))
    with torch.no_grad():
        module[0].variant.scale.fill_(7)
    assert set(module.state_dict()) == {"0.layer.weight", "0.layer.bias", "0.calls", "0.variant.scale"}
    other = nn.Sequential(AdaptiveModule(Adds(0, seed=5), Scaled(1, seed=5), policy()))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other[0].variant.scale, torch.full((32,), 7.0))
    assert torch.equal(other[0].variant.layer.weight, module[0].baseline.layer.weight)


def test_a_state_with_strange_or_missing_names_is_refused():
    module = AdaptiveModule(Adds(0), Scaled(1), policy())
    with pytest.raises(RuntimeError, match=r"Missing key.*scale"):
        module.load_state_dict(Adds(0).state_dict())
    with pytest.raises(RuntimeError, match="Unexpected key"):
        module.load_state_dict(module.state_dict() | {"layer.other": torch.zeros(1)})


def test_a_baseline_with_a_part_called_variant_is_refused():
    class Named(Adds):
        def __init__(self) -> None:
            super().__init__(0)
            self.variant = nn.Linear(1, 1)

    with pytest.raises(UsageError, match="'variant'"):
        AdaptiveModule(Named(), Adds(1), policy())


def test_copies_and_pickles_hold_their_own_weights_once():
    module = adaptive()
    module(images(8))
    copied = copy.deepcopy(module)
    assert copied.variant.layer.weight is copied.baseline.layer.weight is not module.baseline.layer.weight
    assert ran(copied(images(8))) == VARIANT
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert loaded.variant.layer.weight is loaded.baseline.layer.weight
    assert ran(loaded(images(8))) == VARIANT


def test_an_optimizer_sees_each_weight_once():
    module = AdaptiveModule(Adds(0), Adds(1), policy()).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    assert len(optimizer.param_groups[0]["params"]) == 2


@pytest.fixture
def _no_traces():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_no_traces")
@pytest.mark.parametrize("dynamic", [None, False])
def test_every_shape_is_traced_as_one_graph_with_its_own_side(dynamic):
    module = adaptive()
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=dynamic)
    for batch in (1, 8, 2, 16, 3, 12, 1, 8):
        assert ran(compiled(images(batch))) == (VARIANT if batch >= 8 else BASELINE)


@pytest.mark.usefixtures("_no_traces")
def test_a_compiled_module_follows_its_mode():
    module = adaptive()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert ran(compiled(images(8))) == VARIANT
    module.train()
    assert ran(compiled(images(8))) == BASELINE


@pytest.mark.usefixtures("_no_traces")
def test_a_compiled_call_chooses_for_execution_compile():
    module = AdaptiveModule(Adds(0), Adds(1), policy(axes=("batch", "input_size", "execution"))).eval()
    assert ran(module(images(8))) == VARIANT
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert ran(compiled(images(8))) == BASELINE, "nothing compiled was measured"
    assert module.explain(images(8), execution="compile").reason == "outside"


def test_graphs_are_refused_where_there_can_be_none():
    with pytest.raises(UsageError, match="CUDA device"):
        adaptive().graphed([(8, 3, 32, 32)])
    with pytest.raises(UsageError, match=r"eval\(\)"):
        adaptive().train().graphed([(8, 3, 32, 32)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_each_shape_replays_its_own_side():
    fitted = policy(torch.cuda.get_device_name())
    module = AdaptiveModule(Adds(BASELINE), Adds(VARIANT), fitted).eval().cuda()
    graphed = module.graphed([(batch, 3, 32, 32) for batch in (1, 8)])
    for batch in (1, 8, 16, 8, 1):
        assert ran(graphed(images(batch).cuda())) == (VARIANT if batch >= 8 else BASELINE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("given", ["new", "strided", "half", "in place", "new after in place"])
def test_a_graph_reads_the_input_of_the_call_however_it_is_laid_out(given):
    class Echo(Adds):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + x

    fitted = policy(torch.cuda.get_device_name())
    module = AdaptiveModule(Echo(BASELINE), Echo(VARIANT), fitted).eval().cuda()
    graphed = module.graphed([(8, 3, 32, 32)])
    own = graphed.recorded[torch.Size((8, 3, 32, 32))].input
    x = torch.randn(8, 3, 32, 32, device="cuda")
    if "in place" in given:
        own.copy_(x)
        torch.testing.assert_close(graphed(own), x + VARIANT)
    if given != "in place":
        x = {"strided": x.transpose(2, 3), "half": x.half()}.get(given, x + 1)
        torch.testing.assert_close(graphed(x), x.float() + VARIANT)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.usefixtures("_no_traces")
def test_compiled_for_a_gpu_each_shape_runs_its_own_side():
    fitted = policy(torch.cuda.get_device_name())
    module = AdaptiveModule(Adds(BASELINE), Adds(VARIANT), fitted).eval().cuda()
    compiled = torch.compile(module, fullgraph=True)
    for batch in (1, 8, 16, 8, 1):
        assert ran(compiled(images(batch).cuda())) == (VARIANT if batch >= 8 else BASELINE)


def test_the_first_input_may_be_given_by_name():
    module = adaptive()
    assert ran(module(x=images(8))) == VARIANT
    assert ran(module(x=images(2))) == BASELINE


@pytest.mark.parametrize("wrong", [(), ([1, 2],), ("text",)])
def test_an_input_without_a_shape_is_refused(wrong):
    with pytest.raises(UsageError, match="it is not a tensor"):
        adaptive()(*wrong)


def test_a_state_that_is_assigned_leaves_the_sides_one_set_of_weights():
    module = adaptive()
    assert module.load_state_dict(module.state_dict(), assign=True).missing_keys == []
    assert module.baseline.layer.weight is module.variant.layer.weight
    assert len(list(module.parameters())) == 2


def test_a_replica_for_another_device_runs_the_same_side():
    assert ran(adaptive()._replicate_for_data_parallel()(images(8))) == VARIANT
