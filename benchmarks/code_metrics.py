"""What can be counted of the code: lengths, branches, arguments, types, docstrings.

    python benchmarks/code_metrics.py                 # of src/nacre
    python benchmarks/code_metrics.py FOLDER          # of another tree, to compare

Lines of a function are counted from `def` to its end without the docstring; functions within
functions count for themselves and for the one around them. Branches are 1 and one for each `if`,
loop, `except`, condition of a comprehension, `assert`, `case` and operand after an `and` or `or`.
Public is what begins with no underscore; magic methods are the class's story.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "nacre"

Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCHES = (
    ast.If,
    ast.IfExp,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.Assert,
    ast.match_case,
)


@dataclass(frozen=True)
class Measured:
    """One function: where it is and what was counted."""

    place: str
    lines: int
    branches: int
    arguments: int
    typed: int
    returns: bool


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def measure(node: Function, file: str) -> Measured:
    given = node.args
    arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    arguments += [one for one in (given.vararg, given.kwarg) if one]
    arguments = [one for one in arguments if one.arg not in ("self", "cls")]
    return Measured(
        place=f"{file}:{node.lineno} {node.name}",
        lines=lines_without_docstring(node),
        branches=count_branches(node),
        arguments=len(arguments),
        typed=sum(one.annotation is not None for one in arguments),
        returns=node.returns is not None,
    )


def lines_without_docstring(node: Function) -> int:
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node) is None:
        return lines
    docstring = node.body[0]
    assert docstring.end_lineno is not None
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def count_branches(node: Function) -> int:
    count = 1
    for inner in ast.walk(node):
        if isinstance(inner, BRANCHES):
            count += 1
        elif isinstance(inner, ast.BoolOp):
            count += len(inner.values) - 1
        elif isinstance(inner, ast.comprehension):
            count += 1 + len(inner.ifs)
    return count


def public_nodes(body: list[ast.stmt]) -> Iterator[Function | ast.ClassDef]:
    """Yield public classes, functions and methods; what is within a function is not public."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_nodes(node.body)


def quantile(values: list[int], share: float) -> int:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def spread(values: list[int]) -> str:
    return f"{quantile(values, 0.5)} / {quantile(values, 0.9)} / {max(values)}"


def share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"


def report(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what was counted in a folder, as a name and a text."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = [text.count("\n") for text in texts.values()]
    measured = [
        measure(node, str(path.relative_to(folder)))
        for path, tree in trees.items()
        for node in functions(tree)
    ]
    public = [node for tree in trees.values() for node in public_nodes(tree.body)]
    comments = sum(line.lstrip().startswith("#") for t in texts.values() for line in t.splitlines())
    yield "files", f"{len(texts):,}"
    yield "lines", f"{sum(lines):,}"
    yield "lines per file: median / p90 / most", spread(lines)
    yield "functions", f"{len(measured):,}"
    yield "lines per function: median / p90 / most", spread([one.lines for one in measured])
    yield "branches: median / p90 / most", spread([one.branches for one in measured])
    yield "arguments: median / p90 / most", spread([one.arguments for one in measured])
    arguments = sum(one.arguments for one in measured)
    yield "typed arguments", share(sum(one.typed for one in measured), arguments)
    yield "typed returns", share(sum(one.returns for one in measured), len(measured))
    documented = sum(ast.get_docstring(node) is not None for node in public)
    yield "public things with a docstring", share(documented, len(public))
    modules = sum(ast.get_docstring(tree) is not None for tree in trees.values())
    yield "modules with a docstring", share(modules, len(trees))
    yield "lines that are comments", share(comments, sum(lines))
    for one in sorted(measured, key=lambda one: -one.lines)[:5]:
        yield "  longest", f"{one.lines} lines: {one.place}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=SOURCE)
    for name, value in report(parser.parse_args().folder):
        print(f"{name:42} {value}")


if __name__ == "__main__":
    main()
