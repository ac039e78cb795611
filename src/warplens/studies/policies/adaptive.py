"""`AdaptiveModule`: runs the side that a policy chooses for each input shape, with weights shared between the sides."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

try:
    import torch
    from torch import nn
except ImportError:
    advice = 'pip install "warplens[gpu]", or install PyTorch as pytorch.org says'
    raise ModuleNotFoundError(f"AdaptiveModule needs PyTorch, which is not installed: {advice}", name="torch") from None

from warplens.errors import UsageError
from warplens.studies.policies.choosing import Policy
from warplens.studies.policies.files import read_policy
from warplens.workloads.launching import CopyNode, recorded_with_copy, run_aside

#: Shape of an input → its settings, by names of the policy's axes.
Features: TypeAlias = Callable[[Sequence[int]], Mapping[str, Any]]

#: Setting → dimension of the shape that it names: images are [batch, channels, height, width], texts [batch, tokens] or
#: [batch, tokens, width].
_DIMENSIONS: Final = {
    "batch": 0,
    "batch_size": 0,
    "height": -2,
    "width": -1,
    "input_size": -1,
    "resolution": -1,
    "tokens": 1,
    "context": 1,
    "seq_len": 1,
    "sequence_length": 1,
}

#: The setting that is known without a dimension: how the call reaches the GPU.
EXECUTION: Final = "execution"


def features_of(policy: Policy, fixed: Mapping[str, Any]) -> Features:
    """The function that derives a policy's settings from an input shape.

    Fixed settings, such as `{"mode": "forward"}`, take precedence over it.

    Raises:
        UsageError: an axis is neither fixed nor a known dimension, or a fixed setting is unknown to the policy.
    """
    names = [axis.name for axis in policy.axes]
    if strange := [name for name in fixed if name not in names and name not in policy.shared]:
        raise UsageError(f"the policy knows no setting {strange[0]!r}; it chooses by {', '.join(names)}")
    read = {name: _DIMENSIONS[name] for name in names if name in _DIMENSIONS and name not in fixed}
    if unknown := [name for name in names if name not in read and name not in fixed and name != EXECUTION]:
        raise UsageError(
            f"no dimension of an input is known to be {unknown[0]!r}, which the policy chooses by: give it in settings "
            "if it is always the same, or give a function features(shape)"
        )
    return _FromShape(tuple(read.items()), dict(fixed))


@dataclass(frozen=True)
class _FromShape:
    """Reads dimensions of a shape; a class, so that modules holding one can be pickled."""

    read: tuple[tuple[str, int], ...]
    fixed: Mapping[str, Any]

    def __call__(self, shape: Sequence[int]) -> dict[str, Any]:
        for name, dimension in self.read:
            if not -len(shape) <= dimension < len(shape):
                raise UsageError(f"an input of shape {tuple(shape)} has no dimension {dimension}, the policy's {name}")
        return {name: int(shape[dimension]) for name, dimension in self.read} | dict(self.fixed)


@dataclass(frozen=True)
class Recorded:
    """The recorded graph of a shape."""

    side: str
    input: torch.Tensor  #: static input; a caller who writes inputs into it and passes it saves a copy
    output: Any  #: static output, overwritten by every call
    graph: torch.cuda.CUDAGraph
    #: the graph's node that copies the input of a call; None where inputs are copied before the replay
    copy: CopyNode | None = None


class GraphedModule:
    """Calls an adaptive module by replaying a CUDA graph where there is one for the shape.

    Sides are chosen for execution as a graph, which may differ from eager execution where that is launch-bound. The
    output of a replay is overwritten by the next one of that shape: copy it to keep it. Graphs share their memory, and
    a graph has one input: calls must not overlap, neither on several streams nor in several threads.

    Graphs hold the addresses of the weights at recording. They see weights changed in place, but not weights moved or
    replaced. By default, inputs have the type of the module's weights.

    Raises:
        UsageError: the module is in training mode or on no GPU.
    """

    def __init__(
        self, module: AdaptiveModule, shapes: Sequence[Sequence[int]], dtype: torch.dtype | None = None
    ) -> None:
        device = module._device()
        if module.training:
            raise UsageError("a graph replays one pass of inference: call eval() before graphed()")
        if device.type != "cuda":
            raise UsageError(f"a CUDA graph needs a CUDA device, and the module is on {device}")
        weights = [tensor for tensor in module.baseline.parameters() if tensor.is_floating_point()]
        self.module = module
        self.recorded: dict[Sequence[int], Recorded] = {}
        pool = None
        for shape in shapes:
            recorded = _record(module, shape, dtype or weights[0].dtype, device, pool)
            pool = pool or recorded.graph.pool()
            self.recorded[torch.Size(shape)] = recorded

    def __call__(self, x: torch.Tensor) -> Any:
        """The output of the side chosen for the input's shape; a shape without a graph runs as usual."""
        recorded = self.recorded.get(x.shape)
        if recorded is None:
            return self.module(x)
        if x is recorded.input:
            if recorded.copy is not None:
                recorded.copy.skip()
        elif recorded.copy is None or not recorded.copy.read(x):
            recorded.input.copy_(x.detach() if x.requires_grad else x)
            if recorded.copy is not None:
                recorded.copy.skip()
        recorded.graph.replay()
        return recorded.output


def _record(
    module: AdaptiveModule, shape: Sequence[int], dtype: torch.dtype, device: torch.device, pool: Any
) -> Recorded:
    side = module._explained(torch.Size(shape), device, "graph").side
    chosen = module.get_submodule(module._child_of[side])
    # Created outside of inference mode, since inference tensors cannot be written to outside of it.
    example = torch.zeros(*shape, dtype=dtype, device=device)
    with torch.cuda.device(device), torch.inference_mode():
        run_aside(lambda: chosen(example))
        graph, output, copy = recorded_with_copy(chosen, example, pool)
    return Recorded(side, example, output, graph, copy)


#: Which weights of a side are replaced by the baseline's: those of the same name with equal values, all of the same
#: name, shape, type and device, or none.
Share: TypeAlias = Literal["equal", "all", "none"]


def shared_names(baseline: nn.Module, side: nn.Module, share: Share) -> list[str]:
    """Names of a side's parameters and buffers that can be shared with the baseline."""
    if share == "none":
        return []
    of_baseline = dict(_tensors(baseline))
    return [name for name, tensor in _tensors(side) if name in of_baseline and _fits(of_baseline[name], tensor, share)]


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _fits(own: torch.Tensor, other: torch.Tensor, share: Share) -> bool:
    if own is other:
        return True
    alike = own.shape == other.shape and own.dtype == other.dtype and own.device == other.device
    if not alike or isinstance(own, torch.nn.Parameter) != isinstance(other, torch.nn.Parameter):
        return False
    return share == "all" or (not own.is_meta and torch.equal(own, other))


def tie(baseline: nn.Module, side: nn.Module, names: Sequence[str]) -> None:
    """Replace the side's tensors of these names by the baseline's."""
    for name in names:
        path, _, last = name.rpartition(".")
        source, target = baseline.get_submodule(path), side.get_submodule(path)
        if last in source._parameters:
            target._parameters[last] = source._parameters[last]
        else:
            target._buffers[last] = source._buffers[last]


#: Names of the sides as children; the prefix of a variant's own tensors in the state.
_BASELINE: Final = "baseline"
_VARIANT: Final = "variant"

Elsewhere: TypeAlias = Literal["fallback", "policy"]


@dataclass(frozen=True)
class Explanation:
    """The side that runs for an input, and the reason."""

    side: str  #: name of the side in the policy
    reason: str  #: a `choosing.Reason`, or `training`: a module in training mode runs its baseline
    settings: Mapping[str, Any]  #: settings passed to the policy
    #: measured or estimated time of each side; empty where nothing is known
    times_ns: Mapping[str, float] = field(default_factory=dict)


class AdaptiveModule(nn.Module):
    """Runs the side that a policy expects to be fastest for the shape of the input.

    The choice is cached per shape. Outside the range of the policy, and on another GPU than it was fitted on, the
    policy's fallback (by default the baseline) runs. In training mode the baseline runs, since policies are fitted to
    inference.

    The sides must accept the same inputs. They need not give the same outputs (a token reduction approximates), so
    outputs may depend on which side is faster.

    Weights that the sides have in common are stored once. The state (`state_dict`) is that of the baseline under the
    baseline's own names, so that checkpoints of the plain model load; a variant's own tensors are added as `variant.…`.

    Under `torch.compile` the choice is made while tracing, and every shape is traced separately; see
    `torch._dynamo.config.recompile_limit`. With CUDA graphs, see `graphed`.

    Thread-safe: two threads that meet a new shape make the same choice twice.

    Args:
        baseline: the policy's baseline.
        variant: the other side; for a policy of more than two, a mapping from the names of its sides to modules.
        policy: or the path of its file.
        features: from a shape to the policy's settings; by default, sizes are read from the shape by their names
            (docs/how-to/policy.md).
        settings: constant settings of the policy that are not in the shape. `execution` need not be given: `eager`,
            `compile` while PyTorch traces, `graph` in `graphed`.
        share: which weights the sides have in common, see `Share`.
        elsewhere: on another GPU than the policy's, run its fallback or apply the policy anyway.

    Raises:
        UsageError: the policy has other sides, or an axis has no value.
        UnreadableInputError: the policy file cannot be read.
    """

    def __init__(
        self,
        baseline: nn.Module,
        variant: nn.Module | Mapping[str, nn.Module],
        policy: Policy | Path | str,
        features: Features | None = None,
        *,
        settings: Mapping[str, Any] | None = None,
        share: Share = "equal",
        elsewhere: Elsewhere = "fallback",
    ) -> None:
        """Takes the sides as parts of this module, and ties the weights that they have in common (`share`)."""
        super().__init__()
        self.policy = policy if isinstance(policy, Policy) else read_policy(policy)
        self.elsewhere = elsewhere
        self._fixed = dict(settings or {})
        self._features = features or features_of(self.policy, self._fixed)
        self._child_of = {self.policy.baseline: _BASELINE}
        self._shared: dict[str, list[str]] = {}
        self._chosen: dict[Sequence[int], str] = {}
        self._policies: dict[torch.device, Policy] = {}
        self._warned = False
        self.baseline = baseline
        for number, (name, module) in enumerate(self._variants(variant).items()):
            child = _VARIANT if number == 0 else f"{_VARIANT}_{number + 1}"
            self._child_of[name] = child
            self._shared[child] = shared_names(baseline, module, share)
            tie(baseline, module, self._shared[child])
            self.add_module(child, module)
        taken = {name.partition(".")[0] for name in baseline.state_dict()}
        if clash := sorted(taken & set(self._shared)):
            raise UsageError(f"the baseline has a part called {clash[0]!r}, which names a side here: rename it")
        self.register_load_state_dict_pre_hook(_rename_before_loading)
        # Loading with `assign=True` gives each side a tensor of its own.
        self.register_load_state_dict_post_hook(_tie_after_loading)

    def _variants(self, variant: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
        names = [side.name for side in self.policy.sides[1:]]
        if isinstance(variant, nn.Module):
            if len(names) > 1:
                raise UsageError(f"the policy has more than one variant: give a module for each of {', '.join(names)}")
            return {names[0]: variant}
        if set(variant) != set(names):
            raise UsageError(f"the policy's variants are {', '.join(names)}, not {', '.join(variant)}")
        return {name: variant[name] for name in names}

    # ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The output of the side chosen for the shape of the first input, positional or keyword.

        Raises:
            UsageError: the first input is not a tensor.
        """
        x = args[0] if args else next(iter(kwargs.values()), None)
        if not isinstance(x, torch.Tensor):
            wrong = type(x).__name__
            raise UsageError(f"the shape of the first input decides which side runs, but it is not a tensor: {wrong}")
        if torch.compiler.is_compiling():
            return getattr(self, self._child_traced(x))(*args, **kwargs)
        child = self._chosen.get(x.shape)
        if child is None:
            child = self._chosen[x.shape] = self._child_of[self.explain(x).side]
        return self._modules[child](*args, **kwargs)

    def _child_traced(self, x: torch.Tensor) -> str:
        # `index` turns a symbolic size into a constant: each shape is traced separately.
        return str(self._child_compiled(tuple([index(size) for size in x.shape]), self.training, str(x.device)))

    def _child_compiled(self, shape: tuple[int, ...], training: bool, device: str) -> str:
        """The child to run, evaluated while PyTorch traces, which adds guards on the shape and the mode.

        A method, because PyTorch before 2.12 refuses modules among the arguments of functions with a constant result.
        """
        return self._child_of[self._explained(shape, torch.device(device), "compile").side]

    # Equivalent to `torch.compiler.assume_constant_result`, which would import the compiler (seconds) into programs
    # that never compile.
    _child_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def explain(self, x: torch.Tensor | Sequence[int], execution: str | None = None) -> Explanation:
        """The side that runs for an input, or for a shape on the device of the module's weights, and the reason.

        The call reaches the GPU as `eager` (the default), `compile` or `graph`.
        """
        shape, device = (x.shape, x.device) if isinstance(x, torch.Tensor) else (tuple(x), self._device())
        return self._explained(shape, device, execution or "eager")

    def _explained(self, shape: Sequence[int], device: torch.device, execution: str) -> Explanation:
        settings = dict(self._features(shape))
        if any(axis.name == EXECUTION for axis in self.policy.axes):
            settings.setdefault(EXECUTION, execution)
        if self.training:
            return Explanation(self.policy.baseline, "training", settings)
        choice = self._policy_on(device).choose(**settings)
        return Explanation(choice.side, choice.reason, settings, choice.times_ns)

    def _device(self) -> torch.device:
        for tensor in self.baseline.parameters():
            return tensor.device
        return torch.device("cpu")

    def _policy_on(self, device: torch.device) -> Policy:
        if device not in self._policies:
            self._policies[device] = self._applied_on(_device_name(device))
        return self._policies[device]

    def _applied_on(self, device: str) -> Policy:
        """The policy as applied on a device; warns once if it was fitted on another one."""
        here = self.policy.on(device)
        if here.elsewhere and not self._warned:
            self._warned = True
            used = self.elsewhere == "policy"
            outcome = "the policy is used all the same" if used else f"its fallback {self._fallback()!r} runs"
            warnings.warn(
                f"the policy was fitted on {self.policy.environment['device']}, and this is {device}: {outcome}. Fit "
                "one here with `warplens policy fit`",
                UserWarning,
                stacklevel=5,
            )
        return self.policy if self.elsewhere == "policy" else here

    def _fallback(self) -> str:
        return self.policy.sides[self.policy.fallback].name

    def graphed(self, shapes: Sequence[Sequence[int]], dtype: torch.dtype | None = None) -> GraphedModule:
        """Records the side chosen for each of these shapes as a CUDA graph; other shapes run as usual.

        By default, inputs have the type of the module's weights.

        Raises:
            UsageError: the module is in training mode or not on a GPU, or the policy knows no graphs.
        """
        return GraphedModule(self, shapes, dtype)

    # ── weights, modes, devices ───────────────────────────────────────────────────────────────────────────────────────

    def train(self, mode: bool = True) -> AdaptiveModule:
        """Switches between training mode, in which the baseline runs, and evaluation."""
        self._chosen.clear()
        super().train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> AdaptiveModule:
        # Moves and conversions treat each child separately, which would duplicate shared buffers.
        super()._apply(fn, recurse)
        self._tie()
        self._chosen.clear()
        return self

    def _tie(self) -> None:
        for child, names in self._shared.items():
            tie(self.baseline, self.get_submodule(child), names)

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """The state of the baseline under its own names, and a variant's own tensors under `variant.…`."""
        # PyTorch still accepts these as positional arguments, in this order.
        positional = [*args, *(destination, prefix, keep_vars)[len(args) :]]
        destination, prefix, keep_vars = positional[0], str(positional[1]), bool(positional[2])
        state = self.baseline.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        for child, shared in self._shared.items():
            own = self.get_submodule(child).state_dict(prefix=f"{prefix}{child}.", keep_vars=keep_vars)
            start = len(prefix) + len(child) + 1
            state.update({name: value for name, value in own.items() if name[start:] not in shared})
        return state

    def extra_repr(self) -> str:
        """The axes and the fallback, for `print(module)`."""
        return f"by {', '.join(axis.name for axis in self.policy.axes)}; fallback {self._fallback()}"


def _rename_before_loading(module: AdaptiveModule, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Rename the state's entries to the names of the children, which PyTorch expects."""
    own = {name[len(prefix) :]: state.pop(name) for name in list(state) if name.startswith(prefix)}
    for name, value in own.items():
        if name.partition(".")[0] in module._shared:
            state[prefix + name] = value
            continue
        state[f"{prefix}{_BASELINE}.{name}"] = value
        for child, shared in module._shared.items():
            if name in shared:
                state[f"{prefix}{child}.{name}"] = value


def _tie_after_loading(module: AdaptiveModule, _: Any) -> None:
    module._tie()


def _device_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type.upper()
