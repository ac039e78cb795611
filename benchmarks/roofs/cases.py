"""What is measured: each case is one operation at one size, with the operations or bytes that it has to do.

Rates count what the mathematics needs: of a product two operations a multiply-add, of a memory-bound operation each
input read once and each output written once. An operation that moves more than that has a lower rate, as it should.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["DATA_SHEET", "Case", "Sizes", "cases"]

Run = Callable[[], object]

#: Data sheets of the H200 and the H100 (SXM), which differ in their memory: dense rates in FLOP/s, bytes/s.
DATA_SHEET = {
    "bf16": 989.4e12,
    "fp16": 989.4e12,
    "tf32": 494.7e12,
    "fp8": 1978.9e12,
    "fp32": 66.9e12,
    "memory": 4.8e12 if not torch.cuda.is_available() or "H200" in torch.cuda.get_device_name() else 3.35e12,
    "host_link": 64e9,
}
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "tf32": torch.float32,
    "fp32": torch.float32,
    "fp8": torch.float8_e4m3fn,
}
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp8": 1}


@dataclass(frozen=True)
class Case:
    """One operation at one size.

    Attributes:
        kind: what kind of kernel it is.
        op: which operation of that kind.
        dtype: of its operands; `tf32` is fp32 by tensor cores.
        sizes: by name.
        work: floating-point operations, or bytes.
        unit: "FLOP" or "B".
        make: makes one set of operands and gives the function that runs the operation on them.
        held: bytes of one set; several sets are visited in turn, so that they do not all stay in the cache.
    """

    kind: str
    op: str
    dtype: str
    sizes: dict[str, Any]
    work: float
    unit: str
    make: Callable[[], Run]
    held: float


class Sizes:
    """The device, and whether sizes are for trying the script without a GPU."""

    def __init__(self, device: str, *, tiny: bool) -> None:
        self.device, self.tiny = torch.device(device), tiny

    def __call__(self, full: int) -> int:
        """The size itself, or a small one of the same alignment."""
        return min(full, 32 + full % 8) if self.tiny else full

    def random(self, *shape: int, dtype: str = "bf16") -> Tensor:
        """Random operands: zeros would be faster than what real programs have."""
        return torch.randn(*shape, device=self.device).to(DTYPES[dtype])

    def integers(self, high: int, *shape: int) -> Tensor:
        """Random indices."""
        return torch.randint(high, shape, device=self.device)


def cases(sizes: Sizes) -> Iterator[Case]:
    """All of them."""
    for part in (
        dense,
        batched,
        attention,
        convolution,
        elementwise,
        reduction,
        rows,
        norms,
        optimizer,
        indices,
        sorts,
    ):
        yield from part(sizes)


# ---- products -------------------------------------------------------------------------------------------------------

#: Width of outputs and inputs of the layers of common transformers, output layers included.
LAYERS = [
    *((768, 768), (2304, 768), (3072, 768), (768, 3072), (1024, 1024), (4096, 1024), (1024, 4096), (2048, 2048)),
    *((8192, 2048), (2048, 8192), (4096, 4096), (14336, 4096), (4096, 14336)),
    *((30522, 768), (50257, 768), (50304, 768), (32000, 4096), (128256, 4096)),
]


def dense(size: Sizes) -> Iterator[Case]:
    """`linear` (x Wᵀ) and its two gradients: squares, and layers of transformers."""
    for side in (512, 1024, 2048, 4096, 8192, 16384):
        yield _product(size, "bf16", side, side, side)
    for side in (1024, 4096, 8192):
        for dtype in ("fp16", "tf32", "fp32", "fp8"):
            yield _product(size, dtype, side, side, side)
    for n, k in LAYERS:
        for m in (1024, 8192):
            yield _product(size, "bf16", m, n, k)
    for n, k in ((2304, 768), (3072, 768), (4096, 4096), (14336, 4096)):
        for dtype in ("fp16", "tf32", "fp32", "fp8"):
            yield _product(size, dtype, 8192, n, k)
    for n, k in ((3072, 768), (4096, 4096), (14336, 4096), (50257, 768), (50304, 768)):
        for op in ("grad_input", "grad_weight"):
            yield _product(size, "bf16", 8192, n, k, op)


def few_rows(size: Sizes) -> Iterator[Case]:
    """`linear` of few rows, as in decoding."""
    for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        for n, k in ((2048, 2048), (4096, 4096), (14336, 4096), (4096, 14336)):
            yield _product(size, "bf16", m, n, k)
    for m in (1, 16, 128):
        yield _product(size, "bf16", m, 128256, 4096)
        yield _product(size, "fp32", m, 4096, 4096)
        if m > 1:
            yield _product(size, "fp8", m, 4096, 4096)


def unaligned(size: Sizes) -> Iterator[Case]:
    """`linear` of sizes that tensor cores do not like."""
    for dtype in ("bf16", "fp16"):
        for off in (1, 2, 4, 8):
            yield _product(size, dtype, 4096, 4096 + off, 4096)
            yield _product(size, dtype, 4096, 4096, 4096 + off)
    yield _product(size, "bf16", 4097, 4096, 4096)
    yield _product(size, "tf32", 8192, 50257, 768)
    yield _product(size, "tf32", 8192, 50304, 768)


def _product(size: Sizes, dtype: str, m: int, n: int, k: int, op: str = "linear") -> Case:
    m, n, k = (value if value < 512 else size(value) for value in (m, n, k))

    def make() -> Run:
        if dtype == "fp8":
            return _scaled(size, m, n, k)
        shapes = {"linear": ((m, k), (n, k)), "grad_input": ((m, n), (n, k)), "grad_weight": ((m, n), (m, k))}[op]
        a, b = (size.random(*shape, dtype=dtype) for shape in shapes)
        if op == "linear":
            return lambda: functional.linear(a, b)
        return (lambda: a @ b) if op == "grad_input" else (lambda: a.t() @ b)

    held = BYTES[dtype] * (m * k + n * k)
    return Case("gemm", op, dtype, {"m": m, "n": n, "k": k}, 2.0 * m * n * k, "FLOP", make, held)


def _scaled(size: Sizes, m: int, n: int, k: int) -> Run:
    a, b = size.random(m, k).to(torch.float8_e4m3fn), size.random(n, k).to(torch.float8_e4m3fn)
    one = torch.ones((), device=size.device)
    return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def batched(size: Sizes) -> Iterator[Case]:
    """Batched products: of attention written out, and of experts."""
    shapes = [
        *((768, 1024, 1024, 64), (768, 1024, 64, 1024), (96, 4096, 4096, 64), (96, 4096, 64, 4096)),
        *((64, 2048, 2048, 128), (64, 2048, 128, 2048), (192, 577, 577, 64), (192, 577, 64, 577)),
        *((64, 128, 1408, 2048), (64, 128, 2048, 1408), (8, 1024, 14336, 4096), (32, 64, 4096, 1024)),
    ]
    for b, m, n, k in shapes:
        for dtype in ("bf16", "tf32", "fp32") if k in (64, 1024) and m <= 1024 else ("bf16",):
            yield _batched(size, dtype, b if not size.tiny else 2, size(m), size(n), size(k))


def _batched(size: Sizes, dtype: str, b: int, m: int, n: int, k: int) -> Case:
    def make() -> Run:
        x, y = size.random(b, m, k, dtype=dtype), size.random(b, k, n, dtype=dtype)
        return lambda: torch.bmm(x, y)

    shape, held = {"b": b, "m": m, "n": n, "k": k}, BYTES[dtype] * b * (m * k + k * n)
    return Case("batched_gemm", "bmm", dtype, shape, 2.0 * b * m * n * k, "FLOP", make, held)


# ---- attention ------------------------------------------------------------------------------------------------------

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def attention(size: Sizes) -> Iterator[Case]:
    """Fused attention of 16,384 tokens in 16 heads, forward and backward; one query against a long cache."""
    for backend in ("flash", "cudnn"):
        for d in (64, 128):
            for s in (512, 1024, 2048, 4096, 8192):
                if backend == "cudnn" and s in (512, 2048):
                    continue
                for causal in (False, True):
                    for op in ("forward", "backward"):
                        yield _attention(size, backend, op, 16384 // s, 16, s, d, causal=causal)
    for d in (72, 80, 96, 256):
        for op in ("forward", "backward"):
            yield _attention(size, "flash", op, 8, 16, 2048, d, causal=True)
    for d in (65, 64):
        for op in ("forward", "backward"):
            yield _attention(size, "efficient", op, 8, 16, 2048, d, causal=False)
    for b, s in ((1, 4096), (16, 4096), (64, 2048), (64, 4096)):
        yield _cached(size, b, 32, s, 128)


def _attention(size: Sizes, backend: str, op: str, b: int, h: int, s: int, d: int, *, causal: bool) -> Case:
    if size.tiny:
        b, h, s = 1, 2, 32
    is_backward = op == "backward"

    def make() -> Run:
        q, k, v = (size.random(b, h, s, d).requires_grad_(is_backward) for _ in range(3))

        def forward() -> Tensor:
            if size.device.type == "cpu":
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            with sdpa_kernel(BACKENDS[backend]):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        if not is_backward:
            return forward
        out = forward()
        slope = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), slope, retain_graph=True)

    # Causal: half of the products. Backward: five products of which the forward pass has two.
    work = 4.0 * b * h * s * s * d * (0.5 if causal else 1) * (2.5 if is_backward else 1)
    shape = {"b": b, "h": h, "s": s, "d": d, "causal": causal, "backend": backend}
    return Case("attention", op, "bf16", shape, work, "FLOP", make, 6.0 * b * h * s * d)


def _cached(size: Sizes, b: int, h: int, s: int, d: int) -> Case:
    if size.tiny:
        b, h, s = 1, 2, 32

    def make() -> Run:
        q, k, v = size.random(b, h, 1, d), size.random(b, h, s, d), size.random(b, h, s, d)
        return lambda: functional.scaled_dot_product_attention(q, k, v)

    shape = {"b": b, "h": h, "s": s, "d": d}
    return Case("attention", "one_query", "bf16", shape, 4.0 * b * h * s * d, "B", make, 4.0 * b * h * s * d)


# ---- convolutions ---------------------------------------------------------------------------------------------------

#: batch, channels in and out, side, kernel, stride, groups
CONVOLUTIONS = [
    *(
        (128, 3, 64, 224, 7, 2, 1),
        (128, 64, 64, 56, 3, 1, 1),
        (128, 64, 256, 56, 1, 1, 1),
        (128, 128, 128, 28, 3, 1, 1),
    ),
    *((128, 512, 128, 28, 1, 1, 1), (128, 256, 256, 14, 3, 1, 1), (128, 1024, 256, 14, 1, 1, 1)),
    *((128, 512, 512, 7, 3, 1, 1), (16, 320, 320, 64, 3, 1, 1), (16, 640, 640, 32, 3, 1, 1)),
    *((16, 1280, 1280, 16, 3, 1, 1), (64, 96, 96, 56, 7, 1, 96), (64, 384, 384, 14, 7, 1, 384)),
    *((128, 144, 144, 56, 3, 1, 144), (64, 3, 768, 224, 16, 16, 1)),
]


def convolution(size: Sizes) -> Iterator[Case]:
    """Convolutions of ResNets, U-Nets, ConvNeXts and patch embeddings, in both memory formats."""
    for shape in CONVOLUTIONS:
        for layout in ("nhwc", "nchw"):
            for dtype in ("bf16", "tf32", "fp32"):
                if dtype != "bf16" and shape[3] not in (56, 28, 64) and shape[1] != 512:
                    continue
                for op in ("forward", "backward"):
                    if not (op == "backward" and dtype == "fp32"):
                        yield _convolution(size, shape, layout, dtype, op)


def _convolution(size: Sizes, shape: tuple[int, ...], layout: str, dtype: str, op: str) -> Case:
    b, inner, outer, side, kernel, stride, groups = shape
    if size.tiny:
        b, side = 1, 32
    padding = kernel // 2 if stride < kernel - 1 or kernel == 7 else 0
    after = (side + 2 * padding - kernel) // stride + 1
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    is_backward = op == "backward"

    def make() -> Run:
        x = size.random(b, inner, side, side, dtype=dtype).to(memory_format=form).requires_grad_(is_backward)
        weight = size.random(outer, inner // groups, kernel, kernel, dtype=dtype).to(memory_format=form)
        weight.requires_grad_(is_backward)

        def forward() -> Tensor:
            return functional.conv2d(x, weight, stride=stride, padding=padding, groups=groups)

        if not is_backward:
            return forward
        out = forward()
        slope = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (x, weight), slope, retain_graph=True)

    work = 2.0 * b * outer * after * after * (inner // groups) * kernel * kernel * (2 if is_backward else 1)
    named = {"b": b, "in": inner, "out": outer, "side": side, "kernel": kernel, "stride": stride, "groups": groups}
    held = BYTES[dtype] * b * (inner * side * side + outer * after * after)
    return Case("convolution", op, dtype, {**named, "layout": layout}, work, "FLOP", make, held)


# ---- memory-bound work ----------------------------------------------------------------------------------------------


def elementwise(size: Sizes) -> Iterator[Case]:
    """One pass over tensors, from a megabyte that moves to four gigabytes."""
    operations: list[tuple[str, str, int, Callable[..., Run]]] = [
        ("copy", "fp32", 2, lambda x, y, z: lambda: z.copy_(x)),
        ("copy", "bf16", 2, lambda x, y, z: lambda: z.copy_(x)),
        ("add", "fp32", 3, lambda x, y, z: lambda: torch.add(x, y, out=z)),
        ("add", "bf16", 3, lambda x, y, z: lambda: torch.add(x, y, out=z)),
        ("gelu", "bf16", 2, lambda x, y, z: lambda: functional.gelu(x)),
        ("multiply_scalar_", "bf16", 2, lambda x, y, z: lambda: x.mul_(1.0)),
        ("fill", "fp32", 1, lambda x, y, z: z.zero_),
    ]
    for op, dtype, passes, run in operations:
        for megabytes in (1, 4, 16, 64, 256, 1024, 4096):
            if megabytes == 4096 and op not in ("copy", "add"):
                continue
            yield _pass(size, op, dtype, megabytes, passes, run)
    for megabytes in (16, 256, 1024):
        yield _cast(size, megabytes)
        yield _dropout(size, megabytes)


def _pass(size: Sizes, op: str, dtype: str, megabytes: int, passes: int, run: Callable[..., Run]) -> Case:
    count = (megabytes << 20) // passes // BYTES[dtype] if not size.tiny else 1000

    def make() -> Run:
        x, z = size.random(count, dtype=dtype), torch.empty(count, device=size.device, dtype=DTYPES[dtype])
        return run(x, size.random(count, dtype=dtype) if passes == 3 else x, z)

    work = float(count * passes * BYTES[dtype])
    return Case("elementwise", op, dtype, {"elements": count}, work, "B", make, work)


def _cast(size: Sizes, megabytes: int) -> Case:
    count = (megabytes << 20) // 6 if not size.tiny else 1000

    def make() -> Run:
        x = size.random(count)
        return x.float

    return Case("elementwise", "cast_to_fp32", "bf16", {"elements": count}, 6.0 * count, "B", make, 6.0 * count)


def _dropout(size: Sizes, megabytes: int) -> Case:
    count = (megabytes << 20) // 5 if not size.tiny else 1000

    def make() -> Run:
        x = size.random(count)
        return lambda: torch.native_dropout(x, 0.1, True)

    return Case("elementwise", "dropout", "bf16", {"elements": count}, 5.0 * count, "B", make, 5.0 * count)


def reduction(size: Sizes) -> Iterator[Case]:
    """Sums of everything, of rows, of columns; norms of many tensors at once."""
    for dtype in ("bf16", "fp32"):
        for rows_, columns in ((1024, 1024), (8192, 1024), (8192, 4096), (65536, 4096), (262144, 4096)):
            rows_n, columns_n = size(rows_), size(columns)
            held = float(rows_n * columns_n * BYTES[dtype])
            for op, axis in (("sum", None), ("sum_rows", -1), ("sum_columns", 0)):
                make = _reducing(size, rows_n, columns_n, dtype, axis)
                yield Case("reduction", op, dtype, {"rows": rows_n, "columns": columns_n}, held, "B", make, held)
    for tensors, length in ((150, 7_000_000), (400, 250_000)):
        count = tensors * (length if not size.tiny else 100)
        yield Case("reduction", "foreach_norm", "fp32", {"tensors": tensors, "elements": count}, 4.0 * count, "B",
                   _norms_of(size, tensors, count // tensors), 4.0 * count)  # fmt: skip


def _reducing(size: Sizes, rows_n: int, columns_n: int, dtype: str, axis: int | None) -> Callable[[], Run]:
    def make() -> Run:
        x = size.random(rows_n, columns_n, dtype=dtype)
        return x.sum if axis is None else (lambda: x.sum(axis))

    return make


def _norms_of(size: Sizes, tensors: int, length: int) -> Callable[[], Run]:
    def make() -> Run:
        values = [size.random(length, dtype="fp32") for _ in range(tensors)]
        return lambda: torch._foreach_norm(values)

    return make


#: Number and width of rows: of attention written out, and of output layers.
SOFTMAX_ROWS = [(1 << 20, 128), (131072, 1024), (32768, 4096), (8192, 32000), (8192, 50257), (8192, 50304)]


def rows(size: Sizes) -> Iterator[Case]:
    """Softmax and cross entropy."""
    for dtype in ("bf16", "fp32"):
        for count, width in (
            (1 << 20, 128),
            (131072, 1024),
            (32768, 4096),
            (8192, 32000),
            (8192, 50257),
            (8192, 50304),
        ):
            count_n, width_n = size(count), size(width)
            total, shape = count_n * width_n * BYTES[dtype], {"rows": count_n, "columns": width_n}
            for op, passes in (("softmax", 2.0), ("log_softmax", 2.0), ("softmax_backward", 3.0)):
                if op == "log_softmax" and width < 32000:
                    continue
                make = _softmax(size, op, count_n, width_n, dtype)
                yield Case("softmax", op, dtype, shape, passes * total, "B", make, passes * total)


def _softmax(size: Sizes, op: str, count: int, width: int, dtype: str) -> Callable[[], Run]:
    def make() -> Run:
        x = size.random(count, width, dtype=dtype)
        if op == "log_softmax":
            return lambda: functional.log_softmax(x, -1)
        if op == "softmax":
            return lambda: functional.softmax(x, -1)
        x.requires_grad_()
        out = functional.softmax(x, -1)
        slope = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, x, slope, retain_graph=True)

    return make


def norms(size: Sizes) -> Iterator[Case]:
    """Layer norm, RMS norm, group norm and batch norm."""
    for dtype in ("bf16", "fp32"):
        for count, width in ((65536, 768), (32768, 1024), (16384, 2048), (16384, 4096), (8192, 8192), (2048, 768)):
            for op in ("layer_norm", "rms_norm"):
                for is_backward in (False, True):
                    if dtype == "bf16" or op == "layer_norm":
                        yield _norm(size, op, dtype, size(count), size(width), is_backward=is_backward)
    for b, c, side in ((16, 320, 64), (128, 256, 56), (128, 512, 28)):
        for layout in ("nhwc", "nchw"):
            for op in ("group_norm", "batch_norm"):
                for is_backward in (False, True):
                    yield _image_norm(
                        size, op, b if not size.tiny else 2, c, size(side), layout, is_backward=is_backward
                    )


def _norm(size: Sizes, op: str, dtype: str, count: int, width: int, *, is_backward: bool) -> Case:
    def make() -> Run:
        x = size.random(count, width, dtype=dtype).requires_grad_(is_backward)
        weight = size.random(width, dtype=dtype).requires_grad_(is_backward)

        def forward() -> Tensor:
            if op == "rms_norm":
                return functional.rms_norm(x, (width,), weight, 1e-6)
            return functional.layer_norm(x, (width,), weight, weight)

        if not is_backward:
            return forward
        out = forward()
        slope = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (x, weight), slope, retain_graph=True)

    work = count * width * BYTES[dtype] * (3.0 if is_backward else 2.0)
    name = f"{op}_backward" if is_backward else op
    return Case("norm", name, dtype, {"rows": count, "columns": width}, work, "B", make, work)


def _image_norm(size: Sizes, op: str, b: int, c: int, side: int, layout: str, *, is_backward: bool) -> Case:
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format

    def make() -> Run:
        x = size.random(b, c, side, side).to(memory_format=form).requires_grad_(is_backward)
        weight = size.random(c, dtype="fp32").requires_grad_(is_backward)
        slope = torch.randn_like(x)
        mean, variance = torch.zeros_like(weight), torch.ones_like(weight)
        if op == "group_norm":
            weight = weight.to(x.dtype).detach().requires_grad_(is_backward)

        def forward() -> Tensor:
            if op == "group_norm":
                return functional.group_norm(x, 32, weight, weight)
            return functional.batch_norm(x, mean.detach(), variance.detach(), weight, weight, training=True)

        if not is_backward:
            return forward
        out = forward()
        return lambda: torch.autograd.grad(out, (x, weight), slope, retain_graph=True)

    # Training needs the mean before the first value is written: two reads and a write; backward: four reads and one.
    work = b * c * side * side * 2 * (5.0 if is_backward else 3.0)
    shape = {"b": b, "channels": c, "side": side, "layout": layout}
    return Case("norm", f"{op}_backward" if is_backward else op, "bf16", shape, work, "B", make, work)


def optimizer(size: Sizes) -> Iterator[Case]:
    """AdamW over all parameters: seven passes of four bytes."""
    for tensors, length in ((100, 100_000), (150, 700_000), (300, 1_200_000), (150, 7_000_000)):
        for op in ("fused_adamw", "foreach_adamw"):
            yield _adamw(size, op, tensors, length if not size.tiny else 100)


def _adamw(size: Sizes, op: str, tensors: int, length: int) -> Case:
    def make() -> Run:
        parameters = [size.random(length, dtype="fp32").requires_grad_() for _ in range(tensors)]
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        chosen = {"fused": True} if op == "fused_adamw" else {"foreach": True}
        return torch.optim.AdamW(parameters, lr=1e-6, **chosen).step

    count = tensors * length
    return Case("optimizer", op, "fp32", {"tensors": tensors, "elements": count}, 28.0 * count, "B", make, 28.0 * count)


def indices(size: Sizes) -> Iterator[Case]:
    """Rows that are picked, and rows that are added to."""
    tables = [
        (50304, 768, 8192),
        (50304, 768, 65536),
        (128256, 4096, 8192),
        (1_000_000, 64, 1 << 20),
        (10_000_000, 64, 1 << 20),
    ]
    for table, width, count in tables:
        table_n, width_n, count_n = size(table), size(width), size(count)
        for dtype in ("bf16", "fp32"):
            for op in ("embedding", "embedding_backward"):
                yield _embedding(size, op, dtype, table_n, width_n, count_n)
    for nodes, edges, width in ((100_000, 2_000_000, 64), (100_000, 2_000_000, 128), (1_000_000, 4_000_000, 64)):
        for op in ("index_select", "index_add", "index_add_sorted", "scatter_add", "gather"):
            yield _graph(size, op, size(nodes), size(edges), size(width))


def _embedding(size: Sizes, op: str, dtype: str, table: int, width: int, count: int) -> Case:
    is_backward = op == "embedding_backward"

    def make() -> Run:
        weight, picked = size.random(table, width, dtype=dtype).requires_grad_(is_backward), size.integers(table, count)
        if not is_backward:
            return lambda: functional.embedding(picked, weight)
        out = functional.embedding(picked, weight)
        slope = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, weight, slope, retain_graph=True)

    # Backward writes the whole gradient of the table, and reads and writes what is added.
    work = BYTES[dtype] * width * (float(table + 2 * count) if is_backward else 2.0 * count) + 8.0 * count
    held = BYTES[dtype] * width * float(table + count)
    return Case("index", op, dtype, {"table": table, "width": width, "indices": count}, work, "B", make, held)


def _graph(size: Sizes, op: str, nodes: int, edges: int, width: int) -> Case:
    def make() -> Run:
        state, index = size.random(nodes, width, dtype="fp32"), size.integers(nodes, edges)
        sent = size.random(edges, width, dtype="fp32")
        if op == "index_add_sorted":
            index = index.sort().values
        if op == "index_select":
            return lambda: state.index_select(0, index)
        wide = index[:, None].expand(-1, width)
        if op == "gather":
            return lambda: state.gather(0, wide)
        return (
            (lambda: state.scatter_add_(0, wide, sent))
            if op == "scatter_add"
            else (lambda: state.index_add_(0, index, sent))
        )

    # Adding reads what is sent, and reads and writes each node at least once.
    passes = 2.0 * edges if op in ("index_select", "gather") else edges + 2.0 * nodes
    held = 4.0 * width * (edges + nodes)
    shape, work = {"rows": nodes, "indices": edges, "width": width}, 4 * width * passes + 8.0 * edges
    return Case("index", op, "fp32", shape, work, "B", make, held)


def sorts(size: Sizes) -> Iterator[Case]:
    """Sorting, the largest k, running sums, positions of what is not zero."""
    for count, width in ((1, 1 << 20), (1, 1 << 24), (64, 50257), (8192, 64), (512, 128256)):
        count_n, width_n = count if count < 512 else size(count), size(width)
        total = count_n * width_n * 4.0
        operations: list[tuple[str, float, Callable[[Tensor], Run]]] = [
            ("sort", 4.0, lambda x: lambda: x.sort(-1)),
            ("topk", 1.0, lambda x: lambda: x.topk(8, -1)),
            ("cumsum", 2.0, lambda x: lambda: x.cumsum(-1)),
            ("argmax", 1.0, lambda x: lambda: x.argmax(-1)),
        ]
        for op, passes, run in operations:
            make = _sorting(size, count_n, width_n, run)
            yield Case("sort", op, "fp32", {"rows": count_n, "columns": width_n}, passes * total, "B", make, total)


def _sorting(size: Sizes, count: int, width: int, run: Callable[[Tensor], Run]) -> Callable[[], Run]:
    return lambda: run(size.random(count, width, dtype="fp32"))


def sets_of(held: float, most_bytes: float = 256e6, most: int = 32) -> int:
    """How many sets of operands are visited in turn."""
    return max(1, min(most, math.ceil(most_bytes / max(held, 1))))
