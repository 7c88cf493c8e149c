"""The packages of nacre in import order: no package imports a later one."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "nacre"

PACKAGES = (
    "version",
    "errors",
    "utils",
    "labels",
    "scenarios",
    "data",
    "losses",
    "models",
    "methods",
    "evaluation",
    "training",
    "runs",
    "predict",
    "report",
    "export",
    "sweeps",
    "importers",
    "terminal",
    "api",
    "cli",
)


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports(path: Path) -> set[str]:
    """Return the modules of nacre that a file imports, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name in MODULES} - {"nacre"}


GRAPH = {name: imports(path) - {name} for name, path in MODULES.items()}


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_the_guide_names_the_packages_in_this_order():
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = text.partition("## Where things are")[2].partition("```\n")[2].partition("```")[0]
    names = [line[2:16] for line in part.splitlines() if line.startswith("  ")]
    named = [name.strip(" /").removesuffix(".py") for entry in names for name in entry.split(",")]
    assert named == [name for name in PACKAGES if name not in ("version", "errors")]


def test_the_figure_shows_the_packages_in_this_order():
    figure = (SOURCE.parents[1] / "docs" / "nacre.svg").read_text(encoding="utf-8")
    shown = re.findall(r'font-size="10.5">(\w+)<', figure)
    assert shown == [name for name in PACKAGES if name not in ("version", "errors")]


def test_every_module_is_in_a_package():
    outside = {"", "__main__"}
    assert {package_of(name) for name in MODULES} - outside <= set(PACKAGES)


@pytest.mark.parametrize("name", [name for name in MODULES if package_of(name) in PACKAGES])
def test_no_module_imports_a_later_package(name):
    mine = PACKAGES.index(package_of(name))
    against = [other for other in GRAPH[name] if PACKAGES.index(package_of(other)) > mine]
    assert not against


def test_in_the_report_the_page_comes_last():
    order = ("results", "published", "tables", "kinds", "charts", "images", "page")
    for name in (name for name in MODULES if name.startswith("nacre.report.")):
        others = [other for other in GRAPH[name] if other.startswith("nacre.report.")]
        mine = order.index(name.split(".")[2])
        assert all(order.index(other.split(".")[2]) <= mine for other in others), name


def test_there_is_no_cycle():
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in GRAPH[name]:
                # A package and its own modules are one thing to Python's import.
                if not name.startswith(f"{other}."):
                    visit(other, (*path, name))
            done.add(name)

    for name in MODULES:
        visit(name, ())


def private_uses(name: str) -> list[str]:
    """Return the private names of other modules that a module uses."""
    found, modules = [], {}
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nacre":
            names = {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
            modules |= {short: full for short, full in names.items() if full in MODULES}
            # A private module belongs to its package.
            package = name.rpartition(".")[0]
            private = [*names.values(), *([] if node.module.startswith(package) else [node.module])]
            found += [one for one in private if is_private(one.rpartition(".")[2])]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner in modules:
                found.append(f"{modules[owner]}.{node.attr}")
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("name", MODULES)
def test_no_private_name_crosses_modules(name):
    assert not private_uses(name)


def test_only_the_terminal_and_the_command_line_use_rich():
    users = {
        package_of(name)
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rich")
        or (
            isinstance(node, ast.Import) and any(a.name.split(".")[0] == "rich" for a in node.names)
        )
    }
    assert users <= {"terminal", "cli"}
