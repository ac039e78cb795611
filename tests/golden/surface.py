"""What `import warplens` offers to programs: names, signatures, fields and methods, a line each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any


def surface() -> str:
    """The public names of the package in the order that it lists them, and what they take."""
    import warplens

    lines = []
    for name in sorted(warplens.__all__):
        if name.startswith("__"):
            lines.append(name)
            continue
        try:
            value = getattr(warplens, name)
        except ImportError:  # what runs programs needs PyTorch
            lines.append(name)
            continue
        # A class of PyTorch has a hundred methods that are not ours, and is there only where PyTorch is.
        lines += [name] if name == "AdaptiveModule" else _described(name, value)
    return "\n".join(lines) + "\n"


def _described(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}"
        return
    parents = ", ".join(parent.__name__ for parent in value.__bases__)
    yield f"class {name}({parents}){_signature(value)}"
    for member in dir(value):
        if member.startswith("_"):
            continue
        found = inspect.getattr_static(value, member)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
        yield f"    {name}.{member}{_signature(found) if inspect.isfunction(found) else ''}"


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value)).replace("'", "")  # versions of Python differ in what they quote
    except (TypeError, ValueError):
        return ""
