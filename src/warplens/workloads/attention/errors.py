"""How far each attention kernel is from float64, cell by cell, and from what the formula gives in its own format."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

from warplens.analysis.numerics import ATTENTION_ERRORS, Tensor, numeric_differences
from warplens.errors import UsageError
from warplens.workloads.attention.measurement import outcome_of
from warplens.workloads.attention.problem import KERNELS, AttentionShape, Comparison, compared

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from warplens.workloads.settings import AttentionCell


def attention_errors(cells: Sequence[AttentionCell], device: str) -> pl.DataFrame:
    """What each kernel computes on fresh random inputs, against float64 (`problem.reference`), times nothing.

    Args:
        cells: problems; a cell of mode `forward` has its output compared, others the gradients as well.
        device: as PyTorch names it; float64 is computed there, too.

    Returns:
        `ATTENTION_ERRORS`, a row a tensor; of a kernel that cannot run a cell one row with the reason.

    Raises:
        UsageError: there is no such kernel.
    """
    rows: list[dict[str, Any]] = []
    for cell in cells:
        if cell.kernel not in KERNELS:
            raise UsageError(f"{cell.kernel!r} is no attention kernel; known are {', '.join(KERNELS)}")
        kernel, shape = KERNELS[cell.kernel], AttentionShape(cell.batch, cell.heads, cell.seq_len, cell.head_dim)
        mask = "causal" if cell.causal else "no mask"
        head = {
            "implementation": cell.kernel,
            "shapes": f"{shape}, {cell.dtype}, {mask}, {cell.mode}",
            "tokens": cell.seq_len,
        }
        if (refusal := kernel.refusal(shape, cell.dtype, device)) is not None:
            rows.append({**head, "status": "unsupported", "reason": refusal})
            continue
        try:
            found = compared(kernel, shape, cell.dtype, causal=cell.causal, mode=cell.mode, device=device)  # type: ignore[arg-type]
        except Exception as error:  # a kernel may fail in any way; its row says how, and the table goes on
            status, reason = outcome_of(error)
            rows.append({**head, "status": status, "reason": reason})
        else:
            rows += [{**head, **row} for row in _rows(found, cell.dtype)]
    return ATTENTION_ERRORS.conform(pl.DataFrame(rows, schema=ATTENTION_ERRORS.schema))


def _rows(found: Comparison, dtype: str) -> list[dict[str, Any]]:
    exact = {name: _tensor(tensor, "float64") for name, tensor in zip(found.names, found.exact, strict=True)}
    own = {name: _tensor(tensor, dtype) for name, tensor in zip(found.names, found.computed, strict=True)}
    checks = {error.tensor: asdict(error) for error in found.errors}
    return [
        {
            **row,
            "status": "compared",
            "formula_relative": checks[row["tensor"]]["trusted_norm"],
            "near_enough": checks[row["tensor"]]["passed"],
        }
        for row in numeric_differences(own, exact, "").drop("pair").iter_rows(named=True)
    ]


def _tensor(values: torch.Tensor, dtype: str) -> Tensor:
    """The numbers on the host; NumPy has no bfloat16, which float32 holds exactly."""
    held = values.detach().cpu()
    return Tensor((held.float() if dtype == "bfloat16" else held).numpy(), dtype)
