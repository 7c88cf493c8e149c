"""The paper's own figures, and which of our runs stand beside which of them.

The file ``later_tables.csv`` holds figures of methods since 2020 as later papers and repositories
give them, each with its source, with what the method stores, and with whether the background is in
its means (in those of old and of all classes, as these papers count).

The file ``paper_tables.csv`` holds the figures of the paper's tables as printed, background left
out of every mean. Its order is the order of rows and columns. ADE20K's are means over the class
orders a and b. Our rows are found by method; the rows of the ablation by the three switches of
``mib``:

    LwF                     lwf
    LwF + CE                mib with kd=plain, init=random
    LwF + CE + KD           mib with init=random
    MiB (CE + KD + init)    mib

The paper does not print the weights of the two rows in the middle: `nacre.methods.mib` says which
they have under the preset `paper`, and why.
"""

import csv
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.report.results.aggregate import Row, ScenarioResults, method_title
from nacre.report.results.runs import RunResult
from nacre.scenarios.scenario import read_scenario

FILE = Path(__file__).with_name("paper_tables.csv")
LATER_FILE = Path(__file__).with_name("later_tables.csv")

SWITCHES = ("ce", "kd", "init")

ABLATION = {
    ("unbiased", "plain", "random"): "LwF + CE",
    ("unbiased", "unbiased", "random"): "LwF + CE + KD",
    ("unbiased", "unbiased", "background"): "MiB",
}
"""What the paper calls ``mib`` by its (ce, kd, init)."""

EWF: dict[str, Any] = {"fusion": "sqrt", "freeze": ["old_rows"]}
"""What makes EWF of another method."""

FULL = "MiB (CE + KD + init)"
"""What the ablation calls the whole method."""


@dataclass(frozen=True)
class Place:
    """Where a scenario's figures stand: data, task without its order, and setup."""

    data: str
    task: str
    setup: str


@dataclass(frozen=True)
class PublishedTable:
    """One of the paper's tables.

    Attributes:
        name: Its number.
        places: The scenarios in the order of its columns.
        methods: Its rows in order.
        groups: The class groups of each place, in order.
        figures: Mean IoU as a share of 1 by place, method and class group.
    """

    name: str
    places: tuple[Place, ...]
    methods: tuple[str, ...]
    groups: dict[Place, tuple[str, ...]]
    figures: dict[tuple[Place, str, str], float]


@lru_cache
def published() -> dict[str, PublishedTable]:
    """Return the paper's tables by number."""
    with FILE.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    names = dict.fromkeys(_number(line["table"]) for line in lines)
    return {
        name: _table(name, [line for line in lines if _number(line["table"]) == name])
        for name in names
    }


@lru_cache
def later() -> dict[str, PublishedTable]:
    """Return the published figures of methods since 2020, by data set."""
    lines = _later_lines()
    names = dict.fromkeys(line["dataset"] for line in lines)
    return {
        name: _table(name, [line for line in lines if line["dataset"] == name]) for name in names
    }


def later_sources(data: str) -> list[str]:
    """Say of each method on a data set where its figures are from and what it stores."""
    sources: dict[str, None] = {}
    for line in _later_lines():
        if line["dataset"] == data:
            stores = "" if line["stored"] == "nothing" else f"stores {line['stored']}; "
            sources[f"{line['method']}: {stores}{line['source']}{_if_background_is_out(line)}"] = (
                None
            )
    return list(sources)


def _if_background_is_out(line: dict[str, str]) -> str:
    return "; background out of its means" if line["background"] == "out" else ""


def _later_lines() -> list[dict[str, str]]:
    with LATER_FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def place_of(results: ScenarioResults) -> tuple[Place, str] | None:
    """Return a scenario's place and its class order, or None if its classes are its own."""
    try:
        written = read_scenario(results.scenario)
    except NacreError:
        # A scenario file that was there for the run need not be there for the report.
        return None
    if written.task is None or written.order is not None:
        return None
    task, order = written.task, "a"
    if written.data == "ade20k":
        found = re.fullmatch(r"([\d-]+)([a-z]?)", task)
        task, order = (found[1], found[2] or "a") if found else (task, "a")
    return Place(written.data, task, written.setup), order


def published_name(row: Row) -> str:
    """Return what the paper calls a row, or the row's own name where it has none."""
    run = row.runs[0]
    if row.method == "mib" and not run.flat_config.get("memory"):
        return ABLATION.get(_switches(run), row.name)
    return "PLOP + EWF" if _is_fused_plop(run) else method_title(run)


def named_by(run: RunResult) -> dict[str, Any]:
    """Return the values of a run's method that its published name stands for."""
    if run.method == "mib" and _switches(run) in ABLATION:
        return dict(zip(SWITCHES, _switches(run), strict=True))
    return dict(EWF) if _is_fused_plop(run) else {}


def _switches(run: RunResult) -> tuple[str, str, str]:
    ce, kd, init = (str(run.flat_config.get(f"method.{key}")) for key in SWITCHES)
    return ce, kd, init


def _is_fused_plop(run: RunResult) -> bool:
    config = run.flat_config
    is_fused = config.get("method.fusion") == EWF["fusion"]
    return run.method == "plop" and is_fused and "old_rows" in config.get("method.freeze", ())


def _number(table: str) -> str:
    return table.removesuffix(")").split(" (")[0]


def _table(name: str, lines: list[dict[str, str]]) -> PublishedTable:
    places = [_place(line) for line in lines]
    groups: dict[Place, dict[str, None]] = {}
    for place, line in zip(places, lines, strict=True):
        groups.setdefault(place, {})[line["classes"]] = None
    return PublishedTable(
        name=name,
        places=tuple(groups),
        methods=tuple(dict.fromkeys(line["method"] for line in lines)),
        groups={place: tuple(found) for place, found in groups.items()},
        figures={
            (place, line["method"], line["classes"]): float(line["miou"]) / 100
            for place, line in zip(places, lines, strict=True)
        },
    )


def _place(line: dict[str, str]) -> Place:
    return Place(line["dataset"], line["scenario"], line["regime"].split(" (")[0])
