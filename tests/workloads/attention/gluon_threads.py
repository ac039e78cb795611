"""Runs a Gluon kernel on a CPU: every partition of warps is a thread, shared memory is NumPy, barriers really block.

Whatever a GPU may do late is done as late as the kernel lets it: products read their tiles when they are waited for,
stores of the memory accelerator likewise, and its loads come, in any order, when no partition can go on without. So a
slot given back too early shows as a wrong number, and an arrival forgotten as a `Deadlock`. Layouts mean nothing here.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


class Deadlock(AssertionError):
    """Every partition waits, and nothing is under way."""


class Tensor(np.ndarray):
    """Registers of a partition."""

    def to(self, dtype: Any) -> Tensor:
        return self.astype(dtype)


def _tensor(values: Any) -> Tensor:
    return np.asarray(values).view(Tensor)


@dataclass
class Barrier:
    """An mbarrier: its phase is complete when all have arrived and all expected bytes have come."""

    count: int = 0
    arrived: int = 0
    missing: int = 0
    completed: int = 0

    def note(self, arrivals: int, size: int) -> None:
        self.arrived += arrivals
        self.missing += size
        assert self.arrived <= self.count, "more arrivals than the barrier counts"
        if self.arrived == self.count and self.missing == 0:
            self.arrived = 0
            self.completed += 1


@dataclass
class Shared:
    """A view of shared memory; of barriers, if those are its elements."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def barrier(self) -> Barrier:
        return self.array.flat[0]

    def index(self, number: int) -> Shared:
        return Shared(self.array[number])

    def reshape(self, shape: list[int]) -> Shared:
        return Shared(self.array.reshape(shape))

    def permute(self, order: tuple[int, ...]) -> Shared:
        return Shared(self.array.transpose(order))

    def store(self, values: Tensor) -> None:
        self.array[...] = values


@dataclass
class Descriptor:
    """A tensor in global memory, as the memory accelerator sees it: in blocks of so many rows."""

    array: np.ndarray
    rows: int
    layout: None = None

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def block_shape(self) -> list[int]:
        return [1, self.rows, self.array.shape[2]]

    @property
    def block_type(self) -> SimpleNamespace:
        return SimpleNamespace(nbytes=self.rows * self.array.shape[2] * self.array.itemsize)

    def block(self, at: list[int]) -> np.ndarray:
        return self.array[at[0], at[1] : at[1] + self.rows]


@dataclass
class Pointer:
    """A pointer into global memory, or many."""

    array: np.ndarray
    offset: Any = 0

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.array, self.offset + other)


@dataclass
class Product:
    """A matrix product that was issued."""

    a: Shared | Tensor
    b: Shared
    acc: Tensor | None
    value: Tensor | None = None

    def compute(self) -> None:
        a = self.a.array if isinstance(self.a, Shared) else self.a
        self.value = _tensor(a @ self.b.array + (0 if self.acc is None else self.acc))


@dataclass
class Program:
    """One program of a grid."""

    number: int
    programs: int
    changed: threading.Condition = field(default_factory=threading.Condition)
    loads: list[tuple[Descriptor, list[int], Barrier, np.ndarray]] = field(default_factory=list)
    waiting: dict[int, Callable[[], bool]] = field(default_factory=dict)
    running: int = 0
    failures: list[BaseException] = field(default_factory=list)
    own: threading.local = field(default_factory=threading.local)
    order: random.Random = field(default_factory=lambda: random.Random(0))

    def wait(self, barrier: Barrier, phase: int) -> None:
        def complete() -> bool:
            return barrier.completed % 2 != phase

        with self.changed:
            self.waiting[threading.get_ident()] = complete
            while not complete():
                if self.failures:
                    raise Deadlock
                if len(self.waiting) < self.running or any(ready() for ready in self.waiting.values()):
                    self.changed.wait()
                elif self.loads:
                    self._carry_out(self.loads.pop(self.order.randrange(len(self.loads))))
                else:
                    raise Deadlock
            del self.waiting[threading.get_ident()]

    def _carry_out(self, load: tuple[Descriptor, list[int], Barrier, np.ndarray]) -> None:
        source, at, barrier, target = load
        rows = source.block(at)
        target[...] = 0
        target[0, : len(rows)] = rows
        barrier.note(0, -source.block_type.nbytes)
        self.changed.notify_all()

    def note(self, barrier: Barrier, arrivals: int, size: int) -> None:
        with self.changed:
            barrier.note(arrivals, size)
            self.changed.notify_all()

    def load(self, source: Descriptor, at: list[int], barrier: Shared, target: Shared) -> None:
        with self.changed:
            self.loads.append((source, at, barrier.barrier, target.array))

    def _issued(self, kind: str) -> list[Any]:
        return self.own.__dict__.setdefault(kind, [])

    def store(self, target: Descriptor, at: list[int], source: Shared) -> None:
        self._issued("stores").append((target.block(at), source.array))

    def store_wait(self, outstanding: int) -> None:
        stores = self._issued("stores")
        while len(stores) > outstanding:
            rows, source = stores.pop(0)
            rows[...] = source[0, : len(rows)]

    def multiply(self, a: Any, b: Shared, acc: Tensor, *, is_async: bool, use_acc: bool = True) -> Product:
        assert is_async
        product = Product(a, b, acc if use_acc else None)
        self._issued("products").append(product)
        return product

    def multiplied(self, outstanding: int, deps: list[Any]) -> Any:
        products = self._issued("products")
        while len(products) > outstanding:
            products.pop(0).compute()
        values = [dep.value if isinstance(dep, Product) else dep for dep in deps]
        assert all(value is not None for value in values), "a product is used that was not waited for"
        return values[0] if len(values) == 1 else values

    def specialize(self, partitions: list[Any], warps: list[int], registers: list[int]) -> None:
        assert len(partitions) - 1 == len(warps) == len(registers)

        def run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self.failures.append(error)
            with self.changed:
                self.waiting.pop(threading.get_ident(), None)
                self.running -= 1
                self.changed.notify_all()

        self.running = len(partitions)
        threads = [threading.Thread(target=run, args=partition) for partition in partitions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def names(self) -> dict[str, Any]:
        """What the module of a kernel imports."""

        def allocate(dtype: Any, shape: list[int], layout: Any) -> Shared:
            if dtype is np.int64:
                return Shared(np.array([Barrier() for _ in range(shape[0])], object).reshape(shape))
            return Shared(np.full(shape, np.nan, dtype))

        def store(pointer: Pointer, values: Tensor, mask: Tensor) -> None:
            pointer.array.reshape(-1)[pointer.offset[mask]] = values[mask]

        gl = SimpleNamespace(
            constexpr=lambda value: value,
            static_range=range,
            program_id=lambda axis: self.number,
            num_programs=lambda axis: self.programs,
            allocate_shared_memory=allocate,
            warp_specialize=self.specialize,
            inline_asm_elementwise=lambda text, constraints, args, **_: np.exp2(args[0]),
            zeros=lambda shape, dtype, layout: _tensor(np.zeros(shape, dtype)),
            arange=lambda start, end, layout: _tensor(np.arange(start, end)),
            convert_layout=lambda value, layout: value,
            cast=lambda value, dtype: value,
            max=lambda value, axis: value.max(axis),
            sum=lambda value, axis: value.sum(axis),
            where=lambda condition, yes, no: _tensor(np.where(condition, yes, no)),
            maximum=np.maximum,
            minimum=min,
            log2=np.log2,
            store=store,
            float32=np.float32,
            int64=np.int64,
            **dict.fromkeys(("NVMMADistributedLayout", "DotOperandLayout", "SliceLayout"), lambda *_: None),
        )
        mbarrier = SimpleNamespace(
            MBarrierLayout=lambda: None,
            init=lambda barrier, count: setattr(barrier.barrier, "count", count),
            wait=lambda barrier, phase: self.wait(barrier.barrier, phase),
            arrive=lambda barrier, count: self.note(barrier.barrier, count, 0),
            expect=lambda barrier, size: self.note(barrier.barrier, 1, size),
        )
        tma = SimpleNamespace(
            async_copy_global_to_shared=self.load, async_copy_shared_to_global=self.store, store_wait=self.store_wait
        )
        return {
            "gl": gl, "gluon": SimpleNamespace(jit=lambda function: function), "mbarrier": mbarrier, "tma": tma,
            "warpgroup_mma": self.multiply, "warpgroup_mma_wait": self.multiplied, "fence_async_shared": lambda: None,
        }  # fmt: skip


def launch(source: str, kernel: str, programs: int, **arguments: Any) -> None:
    """Runs a kernel, program after program; `source` is its module's text from behind the imports on."""
    code = compile(f"from __future__ import annotations\n{source}", kernel, "exec")
    for number in range(programs):
        names = Program(number, programs).names()
        exec(code, names)
        names[kernel](**arguments)
