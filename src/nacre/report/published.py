"""Published results, and the deviations of a run from the paper.

``paper_tables.csv`` contains the numbers of the paper's tables as printed, without the background
in means; its order is that of rows and columns. Those of ADE20K are means over the class orders a
and b. ``later_tables.csv`` contains the numbers of methods since 2020 from later papers and
repositories: each with its source, with the data that the method stores, and with whether its means
(of old and of all classes) include the background. Rows of ours are matched by their method, those
of the ablation by the three switches of ``mib``:

    LwF                     lwf
    LwF + CE                mib with kd=plain, init=random
    LwF + CE + KD           mib with init=random
    MiB (CE + KD + init)    mib

The paper does not print the weights of the two rows in the middle; `nacre.methods.mib` explains
those of the preset `paper`.

A row of ours has a method's plain name only if it was run with the preset `paper` on the released
images. Every other row has a star, and the table lists the differences (`deviations`).
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.report.results import (
    SEEDS,
    Row,
    RunResult,
    ScenarioResults,
    flatten,
    method_title,
)
from nacre.scenarios.scenario import ScenarioFile, read_scenario
from nacre.training.config import build_config
from nacre.utils.config import result_values

SWITCHES = ("ce", "kd", "init")
ABLATION = {
    ("unbiased", "plain", "random"): "LwF + CE",
    ("unbiased", "unbiased", "random"): "LwF + CE + KD",
    ("unbiased", "unbiased", "background"): "MiB",
}
"""The paper's names of ``mib`` by its (ce, kd, init)."""
FULL = "MiB (CE + KD + init)"
"""The ablation's name of the whole method."""
EWF: dict[str, Any] = {"fusion": "sqrt", "freeze": ["old_rows"]}
"""The values that make EWF of another method."""
WEIGHTS = "model.weights"

Images = tuple[int, str]
"""A number of images, and the digest of their names."""

ALL_IMAGES: dict[str, Images] = {
    "voc": (10_582, "855dff350b7f447bf43cb98ea626a32e0d0b3b7c5786e03b2712a21355b635bf"),
    "ade20k": (20_196, "07ad2b3505b52890c67f6d6d0b93bcd07bf23a6beaa0a7f26fdd0d2a11eb3a8d"),
}
"""The training images with a class: those of joint training."""
TEST_IMAGES: dict[str, Images] = {
    "voc": (1_449, "6f8edc37993764f6e212237d39546fb595246244147e8a050813c520aac0ade1"),
    "ade20k": (2_000, "ea1c90a7ccd457dda9514cc222d606241e61d58a5ba75215d5ceff95f1557a36"),
}
"""The test images with a class: those after the last step."""


@dataclass(frozen=True)
class Place:
    """Key of a published result: data, task without its order, and setup."""

    data: str
    task: str
    setup: str

    @property
    def name(self) -> str:
        """The name of the scenario."""
        return f"{self.data}/{self.task}/{self.setup}"


@dataclass(frozen=True)
class PublishedTable:
    """A published table.

    Attributes:
        name: Its number, or its data set.
        places: The scenarios in the order of its columns.
        methods: Its rows in order.
        groups: The class groups of each place, in order.
        figures: The mean IoU as a fraction, by place, method and class group.
    """

    name: str
    places: tuple[Place, ...]
    methods: tuple[str, ...]
    groups: dict[Place, tuple[str, ...]]
    figures: dict[tuple[Place, str, str], float]


@cache
def published() -> dict[str, PublishedTable]:
    """Return the paper's tables by number."""
    return _tables("paper_tables.csv", "table")


@cache
def later() -> dict[str, PublishedTable]:
    """Return the published results of methods since 2020, by data set."""
    return _tables("later_tables.csv", "dataset")


def later_sources(data: str) -> list[str]:
    """Return a sentence per method: the data that it stores, and the source of its results."""
    sources: dict[str, None] = {}
    for line in _lines("later_tables.csv"):
        if line["dataset"] == data:
            stores = "" if line["stored"] == "nothing" else f"stores {line['stored']}; "
            out = "; background out of its means" if line["background"] == "out" else ""
            sources[f"{line['method']}: {stores}{line['source']}{out}"] = None
    return list(sources)


@cache
def _lines(name: str) -> list[dict[str, str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _tables(file: str, key: str) -> dict[str, PublishedTable]:
    """Return the tables of a file by the column that names them."""
    by_name: dict[str, list[dict[str, str]]] = {}
    for line in _lines(file):
        by_name.setdefault(line[key].removesuffix(")").split(" (")[0], []).append(line)
    return {name: _table(name, lines) for name, lines in by_name.items()}


def _table(name: str, lines: list[dict[str, str]]) -> PublishedTable:
    groups: dict[Place, dict[str, None]] = {}
    figures = {}
    for line in lines:
        place = Place(line["dataset"], line["scenario"], line["regime"].split(" (")[0])
        groups.setdefault(place, {})[line["classes"]] = None
        figures[place, line["method"], line["classes"]] = float(line["miou"]) / 100
    return PublishedTable(
        name=name,
        places=tuple(groups),
        methods=tuple(dict.fromkeys(line["method"] for line in lines)),
        groups={place: tuple(titles) for place, titles in groups.items()},
        figures=figures,
    )


def place_of(results: ScenarioResults) -> tuple[Place, str] | None:
    """Return a scenario's place and class order, or None if it has class lists of its own."""
    try:
        scenario = read_scenario(results.scenario)
    except NacreError:
        return None  # the scenario file may be gone
    if scenario.task is None or scenario.order is not None:
        return None
    task, order = scenario.task, "a"
    if scenario.data == "ade20k" and (match := re.fullmatch(r"([\d-]+)([a-z]?)", task)):
        task, order = match[1], match[2] or "a"
    return Place(scenario.data, task, scenario.setup), order


def published_name(row: Row) -> str:
    """Return the paper's name of a row, or the row's own name if it has none."""
    run = row.runs[0]
    if row.method == "mib" and not run.flat_config.get("memory"):
        return ABLATION.get(_switches(run), row.name)
    return "PLOP + EWF" if _is_fused_plop(run) else method_title(run)


def _named_values(run: RunResult) -> dict[str, Any]:
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


def deviations(run: RunResult) -> tuple[str, ...]:
    """Return the deviations of a run from the paper, each as ``what: ours (paper: its)``."""
    overrides = {
        "scenario": run.scenario,
        "data": run.config.get("data", {}),
        "method": {"name": run.method, **_named_values(run)},
        "model": {"weights": "imagenet"},
        "memory": run.config.get("memory", 0),  # part of a row's name: MiB-M
    }
    try:
        scenario = read_scenario(run.scenario)
        expected = build_config(preset="paper", overrides=overrides)
    except NacreError as error:
        return (f"cannot be compared with the preset `paper` ({error})",)
    differences = _config_deviations(run.deciding, flatten(result_values(expected)))
    return (*differences, *_image_deviations(run, scenario))


def _config_deviations(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    differences = [
        f"{key}: {_shown(ours.get(key))} (paper: {_shown(expected.get(key))})"
        for key in {**expected, **ours}
        if key not in (*SEEDS, WEIGHTS) and ours.get(key) != expected.get(key)
    ]
    # Any named weights are taken for ImageNet's: the contents of a file are not known here.
    if ours.get(WEIGHTS) in (None, "none"):
        differences.append(f"{WEIGHTS}: none, a random start (paper: ImageNet)")
    return differences


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _image_deviations(run: RunResult, scenario: ScenarioFile) -> list[str]:
    if scenario.data not in ALL_IMAGES:
        return []
    if not run.fingerprint:
        return ["its images: not recorded"]
    steps = dict(enumerate(map(_images_of, run.fingerprint["steps"])))
    if run.is_joint:
        released = {0: ALL_IMAGES[scenario.data]}
    else:
        released = released_lists().get((scenario.data, str(scenario.task), scenario.setup), {})
    tests = {0: _images_of(run.fingerprint["tests"][-1])}
    return _compare("training images", steps, released) + _compare(
        "test images", tests, {0: TEST_IMAGES[scenario.data]}
    )


def _compare(what: str, ours: dict[int, Images], released: dict[int, Images]) -> list[str]:
    """Compare image lists with the released ones."""
    if all(ours.get(step) == images for step, images in released.items()):
        return []
    mine = sum(ours[step][0] for step in released if step in ours)
    theirs = sum(count for count, _ in released.values())
    text = f"{mine:,} (paper: {theirs:,})" if mine != theirs else "others than the paper's"
    return [f"{what}: {text}"]


def _images_of(record: Mapping[str, Any]) -> Images:
    return record["images"], record["sha256"]


@cache
def released_lists() -> dict[tuple[str, str, str], dict[int, Images]]:
    """Return the released lists of each data set, task and setup, by step."""
    lists: dict[tuple[str, str, str], dict[int, Images]] = {}
    for line in _lines("released_lists.csv"):
        place = (line["dataset"], line["scenario"], line["regime"])
        images = (int(line["images"]), line["sha256_of_sorted_names"])
        lists.setdefault(place, {})[int(line["step"])] = images
    return lists
