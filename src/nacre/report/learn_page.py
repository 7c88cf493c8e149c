"""The page of a step of `nacre learn`: every class and some images before and after the step.

A rule chooses the images among the step's test images, or its training images if it has none: half
are those in which the two models differ most, half those with a class in which they differ least.
"""

from pathlib import Path
from typing import Any

import numpy as np

from nacre.data.step_data import LearnData
from nacre.errors import NacreError
from nacre.evaluation.predictor import model_predictor
from nacre.models.io import load_model, read_info
from nacre.report.images import (
    Pixels,
    PredictedImage,
    Sheet,
    TestImage,
    predict_masks,
    read_images,
    sheet_rows,
)
from nacre.report.page import SIDE, render
from nacre.report.results import percent
from nacre.runs.folder import read_config
from nacre.runs.learn import open_learn_data
from nacre.runs.records import LearnMetrics
from nacre.training.config import LearnConfig
from nacre.utils.device import choose_device
from nacre.utils.io import save_text

MAX_CANDIDATES = 96
"""Images to choose from."""


def is_learn_folder(path: Path) -> bool:
    """Return True for a folder of `nacre learn`: a step's model and its tests."""
    files = ("model.safetensors", "resume.safetensors")
    is_run = any(path.glob("step-*"))
    has_step = any((path / name).is_file() for name in files)
    return (path / "config.yaml").is_file() and has_step and not is_run


def write_learn_page(folder: Path, out: Path, *, images: int = 8) -> Path:
    """Write the page of a step; return its path."""
    if not (folder / "metrics.json").is_file():
        raise NacreError(f"{folder} is not finished: resume it with  nacre learn --out {folder}")
    metrics = LearnMetrics.load(folder / "metrics.json").plain()
    info = read_info(folder / "model.safetensors")
    missing, sheet = "", None
    try:
        sheet = choose_images(folder, images) if images else None
    except NacreError as error:
        missing = str(error)  # the data or the start model were moved or deleted
    points = "{:+.1f}".format
    text = render(
        "learn.html.j2",
        {
            "percent": percent,
            "points": lambda value: "" if value is None else points(100 * value),
        },
        title=folder.resolve().name,
        metrics=metrics,
        rows=class_rows(metrics),
        history=info.history,
        sheet=sheet,
        tiles=sheet_rows(sheet, SIDE) if sheet else [],
        missing=missing,
    )
    page = out / "index.html"
    save_text(page, text)
    return page


def choose_images(folder: Path, count: int) -> Sheet:
    """Choose images of a step by the predictions of its start model and of its own."""
    config = read_config(folder, LearnConfig)
    device = choose_device("auto")
    network, info, _ = load_model(folder / "model.safetensors", device)
    start = load_model(config.start, device) if config.start else None
    images = _read_some(open_learn_data(config, start[1].channels if start else None))
    columns = {"after": predict_masks(model_predictor(network, info), images)}
    if start:
        columns = {"before": predict_masks(model_predictor(*start[:2]), images), **columns}
    found = [
        _changed(image, masks)
        for image, masks in zip(images, zip(*columns.values(), strict=True), strict=True)
    ]
    by_change = sorted(found, key=lambda one: (-one.disagreement, one.image.name))
    changed, rest = by_change[: (count + 1) // 2], by_change[(count + 1) // 2 :]
    rest.sort(key=lambda one: (not (one.masks[-1] > 0).any(), one.disagreement))
    chosen = (*changed, *rest[: count - len(changed)])
    colors = tuple((c[0], c[1], c[2]) for c in info.colors)
    # A folder labels its own classes only: its background may be another class.
    return Sheet(tuple(columns), tuple(info.classes), colors, chosen, len(found), is_scored=False)


def _changed(image: TestImage, masks: tuple[Pixels, ...]) -> PredictedImage:
    """Return an image with the fraction of its pixels whose prediction changed."""
    before = masks[0] if masks[1:] else np.zeros_like(masks[0])
    change = float((before != masks[-1]).mean())
    return PredictedImage(image, masks, change, f"{percent(change)} % changed")


def _read_some(data: LearnData) -> list[TestImage]:
    """Read images of every data set of a step at even distances."""
    images: list[TestImage] = []
    each = max(1, MAX_CANDIDATES // len(data.sets))
    for one in (one for one in data.compared_splits() if one.is_new):
        dataset = data.eval_dataset(one, data.channels)
        places = np.unique(np.linspace(0, len(dataset) - 1, min(each, len(dataset))).round())
        images += read_images(dataset, [int(place) for place in places])
    return images


def class_rows(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row per class: IoU before and after, agreement, verdict and test sets."""
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
