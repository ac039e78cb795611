"""Annotations that say what a program is doing: NVTX ranges and `record_function`, so that every profiler sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from warplens.errors import UsageError

#: What is annotated, and the name it bears unless another is given. `{index}` is the layer's number.
RANGE_NAMES: Final = {
    "warmup": "warmup",
    "step": "step",
    "forward_pass": "forward_pass",
    "backward_pass": "backward_pass",
    "optimizer_step": "optimizer_step",
    "layer": "layer_{index}",
    "self_attention": "self_attention",
    "feed_forward": "feed_forward",
    "lm_head": "lm_head",
    "loss": "loss",
    "attention": "scaled_dot_product_attention",
    "scores": "computing_attention_scores",
    "softmax": "computing_softmax",
    "values": "final_matmul",
    "patch_embedding": "patch_embedding",
    "block": "block_{index}",
    "block_attention": "attention",
    "token_reduction": "token_reduction",
    "mlp": "mlp",
    "classifier": "classifier",
}

#: The same with blanks, as the assignment's hand-out writes them.
SPACED_NAMES: Final = {key: name.replace("_", " ") for key, name in RANGE_NAMES.items()}

_NOTHING: Final = nullcontext()


class Ranges:
    """Opens ranges by what they annotate; off by default, and then it costs a call that does nothing.

    Args:
        on: whether to annotate.
        names: other names for some of `RANGE_NAMES`' keys.

    Raises:
        UsageError: a key that nothing is annotated with.
    """

    def __init__(self, on: bool = False, names: Mapping[str, str] | None = None) -> None:
        if unknown := sorted(set(names or {}) - set(RANGE_NAMES)):
            raise UsageError(f"no range is called {', '.join(unknown)}; known are {', '.join(RANGE_NAMES)}")
        self.on = on
        self.names = {**RANGE_NAMES, **(names or {})}

    def __call__(self, key: str, index: int | None = None) -> AbstractContextManager[None]:
        """The range round a block of code; closed also when the block raises."""
        return self._open(self.names[key].format(index=index)) if self.on else _NOTHING

    @contextmanager
    def _open(self, name: str) -> Iterator[None]:
        import torch

        cuda = torch.cuda.is_available()
        with torch.profiler.record_function(name):
            if cuda:
                torch.cuda.nvtx.range_push(name)
            try:
                yield
            finally:
                if cuda:
                    torch.cuda.nvtx.range_pop()

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """The part of the run that a profiler with `--capture-range=cudaProfilerApi` records: the steady steps."""
        import torch

        if not self.on or not torch.cuda.is_available():
            yield
            return
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        try:
            yield
        finally:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


#: No annotations.
OFF: Final = Ranges()
