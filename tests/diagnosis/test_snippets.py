"""Code of remedies: its Python parses, its names and arguments exist in PyTorch, and so do its commands."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from warplens.cli.catalogue import COMMANDS
from warplens.cli.main import app
from warplens.diagnosis import fitting, rule

#: Files with remedies for PyTorch.
_FILES: Final = (rule, fitting)
#: Lines that are no Python: commands, environment variables, and code of CUDA C++.
_OTHER: Final = re.compile(
    r"(?:export |[A-Z_]+=\S+ python |nsys |ncu |nvidia-smi |numactl |py-spy |rocprof|torchrun |warplens |vllm |//|"
    r"cuda[A-Z]|__)"
)
#: Short names in that code → where they come from.
_NAMES: Final = {
    "F": "torch.nn.functional",
    "nn": "torch.nn",
    "dist": "torch.distributed",
    "aten": "torch.ops.aten",
    "DataLoader": "torch.utils.data.DataLoader",
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "scaled_dot_product_attention": "torch.nn.functional.scaled_dot_product_attention",
    "create_block_mask": "torch.nn.attention.flex_attention.create_block_mask",
    "flex_attention": "torch.nn.attention.flex_attention.flex_attention",
    "fully_shard": "torch.distributed.fsdp.fully_shard",
    "checkpoint": "torch.utils.checkpoint.checkpoint",
    "create_selective_checkpoint_contexts": "torch.utils.checkpoint.create_selective_checkpoint_contexts",
}


def _strings(node: ast.AST, constants: dict[str, ast.expr]) -> Iterator[str]:
    """Each text that an expression can be, with the name of a class for what is computed inside of it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        text = ""
        for part in node.values:  # behind a bracket, it is a comment
            text += str(part.value) if isinstance(part, ast.Constant) else "" if text.endswith(")") else "AdamW"
        yield text
    elif isinstance(node, ast.IfExp):
        yield from (*_strings(node.body, constants), *_strings(node.orelse, constants))
    elif isinstance(node, ast.BinOp):
        yield from (left + right for left in _parts(node.left, constants) for right in _parts(node.right, constants))
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from _strings(constants[node.id], {})


def _parts(node: ast.AST, constants: dict[str, ast.expr]) -> list[str]:
    return [*_strings(node, constants)] or [""]


def _code() -> Iterator[str]:
    """The code of all remedies that a module states, in full or as texts that functions put together."""
    folder = Path(rule.__file__).parent
    for path in (*sorted((folder / "rules").glob("*.py")), *(Path(str(module.__file__)) for module in _FILES)):
        tree = ast.parse(path.read_text("utf-8"))
        constants = {
            node.target.id: node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Remedy" and len(node.args) > 1:
                yield from _strings(node.args[1], constants)
            elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("code", "how"):
                yield from _strings(node.value, constants)


CODE: Final = tuple(dict.fromkeys(_code()))


def _python(code: str) -> str:
    return "\n".join(line for line in code.split("\n") if not _OTHER.match(line))


def _of(name: str) -> Any:
    """The object of a dotted name; AttributeError if there is none."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


def _full_name(node: ast.expr) -> str | None:
    """Full name of what is called, if it is PyTorch's."""
    match node:
        case ast.Name():
            return _NAMES.get(node.id, node.id if node.id == "torch" else None)
        case ast.Attribute():
            owner = _full_name(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
    return None


def test_the_code_of_most_remedies_is_found() -> None:
    assert len(CODE) > 150
    assert sum("torch." in code for code in CODE) > 60


@pytest.mark.parametrize("code", CODE, ids=lambda code: code.split("\n")[0][:50])
def test_python_in_remedies_parses(code: str) -> None:
    ast.parse(_python(code))


def test_names_of_pytorch_in_remedies_exist() -> None:
    pytest.importorskip("torch")
    names = {name for code in CODE for name in re.findall(r"\btorch(?:\.[a-zA-Z_]\w*)+(?!\w*\*)", code)}
    assert len(names) > 50
    assert not [name for name in sorted(names) if not _exists(name)]


def test_functions_of_pytorch_take_the_arguments_that_remedies_give_them() -> None:
    pytest.importorskip("torch")
    given = list(_arguments())
    assert len(given) > 40
    assert not [(name, wrong) for name, used in given if (wrong := used - _taken(name))]


def _exists(name: str) -> bool:
    try:
        _of(name)
    except AttributeError:
        return False
    return True


def _arguments() -> Iterator[tuple[str, set[str]]]:
    """Name and named arguments of each call of PyTorch in the code of remedies, if it tells what it takes."""
    for node in (node for code in CODE for node in ast.walk(ast.parse(_python(code)))):
        name = _full_name(node.func) if isinstance(node, ast.Call) else None
        if name is not None and isinstance(node, ast.Call) and "*" not in _taken(name):
            yield name, {keyword.arg or "" for keyword in node.keywords}


def _taken(name: str) -> set[str]:
    """Arguments that a function takes; `*` if it takes any, or does not tell."""
    try:
        parameters = inspect.signature(_of(name)).parameters.values()
    except ValueError:  # written in C
        return {"*"}
    return {"*" if each.kind is inspect.Parameter.VAR_KEYWORD else each.name for each in parameters}


def test_commands_in_remedies_exist_with_their_options() -> None:
    group: Any = typer.main.get_command(app)
    lines = [line for code in CODE for line in code.split("\n")]
    commands = [line.partition("#")[0].partition(" -- ")[0].split() for line in lines if line.startswith("warplens ")]
    assert len(commands) > 8
    for _, name, *words in commands:
        assert name in COMMANDS
        context = group.make_context("warplens", [name])
        command: Any = group.resolve_command(context, [name])[1]
        nested = (command, *getattr(command, "commands", {}).values())
        options = {option for each in nested for param in each.params for option in param.opts}
        assert {word for word in words if word.startswith("--")} <= options, (name, words)


def test_gradients_stay_apart_only_if_the_forward_pass_is_inside_as_well() -> None:
    """DistributedDataParallel decides in the forward pass whether it reduces the gradients of the backward pass."""
    blocks = [line for code in CODE for line in code.split("\n") if re.search(r"with \w+\.no_sync\(\):", line)]
    assert blocks
    assert all(re.search(r"no_sync\(\): model\(", line) for line in blocks)
