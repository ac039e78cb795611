"""From the shape of an input to the settings that a policy chooses by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from warplens.errors import UsageError

if TYPE_CHECKING:
    from warplens.compare.policy import Policy

__all__ = ["EXECUTION", "Features", "features_of", "known_dimensions"]

#: Settings of an input of this shape, by name of the policy's axes.
Features: TypeAlias = Callable[[Sequence[int]], Mapping[str, Any]]

#: Where the settings that name a size stand in a shape: images are [batch, channels, height, width], texts
#: [batch, tokens] or [batch, tokens, width].
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

#: The one setting that is no size and yet known: how the call reaches the GPU.
EXECUTION: Final = "execution"


def known_dimensions() -> dict[str, int]:
    """Dimension of the input that each setting is read from where the user gives no function."""
    return dict(_DIMENSIONS)


def features_of(policy: Policy, fixed: Mapping[str, Any]) -> Features:
    """The function that reads a policy's axes off a shape.

    Args:
        policy: whose axes are needed.
        fixed: settings that no shape shows, such as `{"mode": "forward"}`; they go before the shape.

    Raises:
        UsageError: an axis that is neither fixed nor a dimension of an input, or a fixed setting that is no axis.
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
    """Reads dimensions off a shape; a class, so that modules that hold one can be pickled."""

    read: tuple[tuple[str, int], ...]
    fixed: Mapping[str, Any]

    def __call__(self, shape: Sequence[int]) -> dict[str, Any]:
        for name, dimension in self.read:
            if not -len(shape) <= dimension < len(shape):
                raise UsageError(f"an input of shape {tuple(shape)} has no dimension {dimension}, the policy's {name}")
        return {name: int(shape[dimension]) for name, dimension in self.read} | dict(self.fixed)
