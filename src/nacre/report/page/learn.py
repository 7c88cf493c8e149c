"""The page of one step of `nacre learn`: what every class was and is, with images of both.

The images are chosen by rule: of the step's test images (the training images where it has none)
those in which the two models differ most, and as many in which they differ least among those that
hold a class: what changed, and what stayed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nacre.data.learn_data import LearnData
from nacre.errors import NacreError
from nacre.evaluation.predictor import whole_predictor
from nacre.models.io import load_model, read_info
from nacre.report.numbers import percent
from nacre.report.page.page import render
from nacre.report.pictures.predict import (
    Color,
    Pixels,
    TestImage,
    colorize,
    data_uri,
    predict_masks,
    read_images,
)
from nacre.runs.folder import read_learn_config
from nacre.runs.learn import open_learn_data
from nacre.runs.records import LearnMetrics
from nacre.utils.device import choose_device
from nacre.utils.io import save_text

MOST = 96
"""Pictures that are looked at to choose from."""


@dataclass(frozen=True)
class BeforeAfter:
    """A picture as two models see it.

    Attributes:
        image: The picture and what its labels say.
        before: Channel by pixel as the start model sees it; None without one.
        after: The same for the new model.
    """

    image: TestImage
    before: Pixels | None
    after: Pixels

    @property
    def change(self) -> float:
        """Share of the pixels that are called something else now."""
        if self.before is None:
            return float((self.after > 0).mean())
        return float((self.before != self.after).mean())


@dataclass(frozen=True)
class StepPictures:
    """The chosen pictures of a step, and what its colours mean."""

    pictures: tuple[BeforeAfter, ...]
    classes: tuple[str, ...]
    colors: tuple[Color, ...]


def step_pictures(folder: Path, count: int) -> StepPictures:
    """Look at the pictures of a step with its start model and its own, and choose."""
    config = read_learn_config(folder)
    device = choose_device("auto")
    network, info, _ = load_model(folder / "model.safetensors", device)
    start = load_model(config.start, device) if config.start else None
    data = open_learn_data(config, start[1].channels if start else None)
    images = _read_some(data, MOST)
    after = predict_masks(whole_predictor(network, config.images), images)
    before: Sequence[Pixels | None] = [None] * len(images)
    if start:
        before = predict_masks(whole_predictor(start[0], config.images), images)
    seen = [BeforeAfter(*one) for one in zip(images, before, after, strict=True)]
    colors = tuple((c[0], c[1], c[2]) for c in info.colors)
    return StepPictures(tuple(_choose(seen, count)), tuple(info.classes), colors)


def _read_some(data: LearnData, most: int) -> list[TestImage]:
    """Read pictures of every data set of a step, spread evenly, the same ones every time."""
    images: list[TestImage] = []
    each = max(1, most // len(data.sets))
    for part in (part for part in data.seen_parts() if part.is_new):
        dataset = data.eval_dataset(part, data.channels)
        places = np.unique(np.linspace(0, len(dataset) - 1, min(each, len(dataset))).round())
        images += read_images(dataset, [int(place) for place in places])
    return images


def _choose(seen: Sequence[BeforeAfter], count: int) -> list[BeforeAfter]:
    by_change = sorted(seen, key=lambda one: (-one.change, one.image.name))
    changed = by_change[: (count + 1) // 2]
    rest = sorted(
        by_change[len(changed) :], key=lambda one: (not (one.after > 0).any(), one.change)
    )
    return [*changed, *rest[: count - len(changed)]]


SIDE = 256


def is_learn_folder(path: Path) -> bool:
    """Say whether a folder is one of `nacre learn`: a step's model, and how it was tested."""
    files = ("model.safetensors", "resume.safetensors", "before.npz")
    is_run = any(path.glob("step-*"))
    has_step = any((path / name).is_file() for name in files)
    return (path / "config.yaml").is_file() and has_step and not is_run


def write_learn_page(folder: Path, out: Path, *, pictures: int = 8) -> Path:
    """Write the page of a step; return its path."""
    if not (folder / "metrics.json").is_file():
        raise NacreError(f"{folder} is not finished: go on with  nacre learn --out {folder}")
    metrics = LearnMetrics.load(folder / "metrics.json").plain()
    info = read_info(folder / "model.safetensors")
    missing = ""
    shown: StepPictures | None = None
    if pictures:
        try:
            shown = step_pictures(folder, pictures)
        except NacreError as error:
            missing = str(error)  # the data or the start model are not here any more
    page = out / "index.html"
    save_text(page, _render(folder, metrics, info.lineage, shown, missing))
    return page


def class_rows(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row per class: its IoU before and after, agreement, where it was tested."""
    agreement = (metrics["agreement"] or {}).get("iou", {})
    rows = []
    for name in metrics["classes"][1:]:
        before, after = metrics["iou_before"].get(name), metrics["iou"].get(name)
        both = before is not None and after is not None
        rows.append(
            {
                "name": name,
                "is_new": name in metrics["new"],
                "before": before,
                "after": after,
                "change": after - before if both else None,
                "agreement": agreement.get(name),
                "verdict": metrics.get("verdicts", {}).get(name, {}),
                "tests": [test["name"] for test in metrics["tests"] if name in test["iou"]],
            }
        )
    return rows


def _render(
    folder: Path,
    metrics: dict[str, Any],
    lineage: list[dict[str, Any]],
    shown: StepPictures | None,
    missing: str,
) -> str:
    return render(
        "learn.html.j2",
        {
            "percent": percent,
            "points": lambda value: "" if value is None else f"{100 * value:+.1f}",
        },
        title=folder.resolve().name,
        metrics=metrics,
        rows=class_rows(metrics),
        lineage=lineage,
        tiles=_tiles(shown) if shown else [],
        legend=_legend(shown) if shown else [],
        missing=missing,
    )


def _tiles(shown: StepPictures) -> list[dict[str, Any]]:
    found = []
    for one in shown.pictures:
        pixels = one.image.pixels
        before = None if one.before is None else colorize(one.before, shown.colors, pixels)
        found.append(
            {
                "name": one.image.name,
                "change": one.change,
                "image": data_uri(pixels, SIDE),
                "before": None if before is None else data_uri(before, SIDE),
                "after": data_uri(colorize(one.after, shown.colors, pixels), SIDE),
                "labels": data_uri(colorize(one.image.truth, shown.colors, pixels), SIDE),
            }
        )
    return found


def _legend(shown: StepPictures) -> list[tuple[str, str]]:
    colors = ["#{:02x}{:02x}{:02x}".format(*color) for color in shown.colors]
    return list(zip(shown.classes, colors, strict=True))[1:]
