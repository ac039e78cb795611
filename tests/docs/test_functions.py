"""Functions are small and described: those that are not are listed here, and the lists only get shorter."""

import ast
from collections import Counter
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src" / "warplens"

MOST_DECISIONS = 20
#: The functions with more decisions, and how many they have.
LARGE = {
    "cli.commands.study:study": 24,
}

#: From this many lines on a function has a docstring.
LINES = 20
#: The longer functions without one, by room.
UNDESCRIBED = {
    "diagnosis": 7,
}

_DECISIONS = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def decisions(function):
    """Branches, loops, handlers, `and`/`or`, conditional expressions and conditions of comprehensions, all inside it.

    Named functions in it are counted by themselves.
    """
    count, nodes = 0, list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        if isinstance(node, _NAMED):
            continue
        nodes.extend(ast.iter_child_nodes(node))
        count += isinstance(node, _DECISIONS)
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
        count += len(node.ifs) if isinstance(node, ast.comprehension) else 0
    return count


def functions(node, name):
    """All functions in a part of a module, with their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _NAMED):
            inner = f"{name}{'' if name.endswith(':') else '.'}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield inner, child
            yield from functions(child, inner)
        else:
            yield from functions(child, name)


def functions_of_the_house():
    for path in sorted(SOURCES.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        yield from functions(ast.parse(path.read_text("utf-8")), f"{module}:")


def test_decisions_are_those_that_a_reader_counts():
    text = """
def f(a, b):
    if a and b or a:
        return [x if x else 1 for x in a if x if b]
    elif b:
        def inner(): return a or b
    for x in a:
        try: g()
        except ValueError: pass
    while a: lambda: a or b
"""
    counted = {name: decisions(function) for name, function in functions(ast.parse(text), "m:")}
    assert counted == {"m:f": sum((3, 3, 1, 0, 1, 1, 2)), "m:f.inner": 1}  # line by line


def test_a_function_has_few_decisions():
    counted = {name: decisions(function) for name, function in functions_of_the_house()}
    large = {name: count for name, count in counted.items() if count > MOST_DECISIONS}
    assert large == LARGE, "divide what grew; lower or remove here what got smaller"


def test_a_long_function_is_described():
    bare = [
        name
        for name, function in functions_of_the_house()
        if function.end_lineno - function.lineno + 1 >= LINES and not ast.get_docstring(function)
    ]
    by_room = Counter(name.partition(":")[0].partition(".")[0] for name in bare)
    assert by_room == UNDESCRIBED, f"describe what is new; lower here what got fewer: {', '.join(bare)}"
