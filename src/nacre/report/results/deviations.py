"""Where a run differs from the paper: its config, the weights it starts from, and its images.

A row of ours has a method's plain name beside the paper's only if its run is what the preset
`paper` makes of its scenario and method, on the images that were released. Every other row has a
star, and the table says what differs.
"""

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.report.results.aggregate import SEEDS
from nacre.report.results.published import named_by
from nacre.report.results.runs import RunResult, flatten
from nacre.scenarios.scenario import ScenarioFile, read_scenario
from nacre.training.config import build_config
from nacre.utils.config import result_values

LISTS_FILE = Path(__file__).with_name("released_lists.csv")

WEIGHTS = "model.weights"

Images = tuple[int, str]
"""How many, and the digest of their names."""

ALL_IMAGES: dict[str, Images] = {
    "voc": (10_582, "855dff350b7f447bf43cb98ea626a32e0d0b3b7c5786e03b2712a21355b635bf"),
    "ade20k": (20_196, "07ad2b3505b52890c67f6d6d0b93bcd07bf23a6beaa0a7f26fdd0d2a11eb3a8d"),
}
"""The training images that hold a class: those of joint training."""

TEST_IMAGES: dict[str, Images] = {
    "voc": (1_449, "6f8edc37993764f6e212237d39546fb595246244147e8a050813c520aac0ade1"),
    "ade20k": (2_000, "ea1c90a7ccd457dda9514cc222d606241e61d58a5ba75215d5ceff95f1557a36"),
}
"""The test images that hold a class: those after the last step."""


def deviations(run: RunResult) -> tuple[str, ...]:
    """Return where a run differs from the paper, each as ``what: ours (paper: its)``."""
    try:
        written = read_scenario(run.scenario)
        expected = _expected_values(run)
    except NacreError as error:
        return (f"cannot be compared with the preset `paper` ({error})",)
    return (*_config_deviations(run.deciding, expected), *_image_deviations(run, written))


def _expected_values(run: RunResult) -> dict[str, Any]:
    """Return the values of the preset `paper` that decide results, under dotted keys."""
    overrides = {
        "scenario": run.scenario,
        "data": run.config.get("data", {}),
        "method": {"name": run.method, **named_by(run)},
        "model": {"weights": "imagenet"},
        "memory": run.config.get("memory", 0),  # part of a row's name: MiB-M
    }
    return flatten(result_values(build_config(preset="paper", overrides=overrides)))


def _config_deviations(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    found = []
    for key in {**expected, **ours}:
        if key in SEEDS or key == WEIGHTS:
            continue
        mine, theirs = ours.get(key), expected.get(key)
        if mine != theirs:
            found.append(f"{key}: {_shown(mine)} (paper: {_shown(theirs)})")
    # Any named weights are taken for ImageNet's: what a file holds is not known here.
    if ours.get(WEIGHTS) in (None, "none"):
        found.append(f"{WEIGHTS}: none, a random start (paper: ImageNet)")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _image_deviations(run: RunResult, written: ScenarioFile) -> list[str]:
    if written.data not in ALL_IMAGES:
        return []
    if not run.fingerprint:
        return ["its images: not recorded"]
    steps = [_noted(step) for step in run.fingerprint["steps"]]
    if run.merged:
        released = {0: ALL_IMAGES[written.data]}
    else:
        released = _released_lists().get((written.data, str(written.task), written.setup), {})
    found = _compare("training images", dict(enumerate(steps)), released)
    tests = _noted(run.fingerprint["tests"][-1])
    return found + _compare("test images", {0: tests}, {0: TEST_IMAGES[written.data]})


def _compare(what: str, ours: dict[int, Images], released: dict[int, Images]) -> list[str]:
    """Compare the lists of the steps whose lists were released."""
    if all(ours.get(step) == images for step, images in released.items()):
        return []
    mine = sum(ours[step][0] for step in released if step in ours)
    theirs = sum(count for count, _ in released.values())
    text = f"{mine:,} (paper: {theirs:,})" if mine != theirs else "others than the paper's"
    return [f"{what}: {text}"]


def _noted(images: Mapping[str, Any]) -> Images:
    return images["images"], images["sha256"]


@cache
def _released_lists() -> dict[tuple[str, str, str], dict[int, Images]]:
    """Return the released lists of each data set, task and setup, by step."""
    found: dict[tuple[str, str, str], dict[int, Images]] = {}
    with LISTS_FILE.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            place = (line["dataset"], line["scenario"], line["regime"])
            images = (int(line["images"]), line["sha256_of_sorted_names"])
            found.setdefault(place, {})[int(line["step"])] = images
    return found
