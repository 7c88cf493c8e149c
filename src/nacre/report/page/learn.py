"""The page of one step of `nacre learn`: what every class was and is, with pictures of both."""

from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.models.io import read_info
from nacre.report.numbers import percent
from nacre.report.page.render import render
from nacre.report.pictures.before_after import StepPictures, step_pictures
from nacre.report.pictures.predict import colorize, data_uri
from nacre.runs.records import LearnMetrics, read_record
from nacre.utils.io import save_text

SIDE = 256


def is_learn_folder(path: Path) -> bool:
    """Say whether a folder is one of `nacre learn`: a step's model, and how it was tested."""
    files = ("model.safetensors", "resume.safetensors", "before.json")
    is_run = any(path.glob("step-*"))
    has_step = any((path / name).is_file() for name in files)
    return (path / "config.yaml").is_file() and has_step and not is_run


def write_learn_page(folder: Path, out: Path, *, pictures: int = 8) -> Path:
    """Write the page of a step; return its path."""
    if not (folder / "metrics.json").is_file():
        raise NacreError(f"{folder} is not finished: go on with  nacre learn --out {folder}")
    metrics = read_record(LearnMetrics, folder / "metrics.json")
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
