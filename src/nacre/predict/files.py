"""`nacre predict`: a model over images, folders, videos and maps; results lie as inputs lay.

    OUT/masks/…png  OUT/overlays/…jpg  OUT/labelme/…json  OUT/coco.json  OUT/shares.csv

A wish to stop is heard after the image at hand; whatever was done by then is written and whole.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from nacre.errors import NacreError, unknown_name
from nacre.evaluation.predictor import Predictor
from nacre.predict.class_map import ClassMap, count_classes, make_class_map, row_strips
from nacre.predict.inputs import Input, find_inputs
from nacre.predict.prediction import predict_image, to_rgb
from nacre.predict.rasters import Raster, is_georeferenced, open_raster, write_geotiff
from nacre.predict.video import VideoWriter, read_frames
from nacre.predict.writers import (
    CocoWriter,
    Legend,
    ShareWriter,
    overlay,
    write_labelme,
    write_mask,
    write_overlay,
)
from nacre.utils.io import InUse, locked, remove_temporaries
from nacre.utils.progress import show_progress

Pixels = npt.NDArray[np.uint8]

TOLERANCE = 1.0
"""Pixels that LabelMe polygons may be from the edges of regions."""

_WRITTEN = {"masks": (".png", ".tif"), "overlays": (".jpg",), "labelme": (".json",)}
FORMS = ("masks", "overlays", "labelme", "coco", "csv")
USUAL_FORMS = ("masks", "overlays", "csv")


@dataclass(frozen=True)
class Summary:
    """The outcome.

    Attributes:
        done: Images, and frames of videos.
        failed: What could not be read, and why.
        stopped: Whether there was a wish to stop.
        shares: Which share of all that was seen each class covers.
    """

    done: int
    failed: tuple[str, ...]
    stopped: bool
    shares: dict[str, float]


class _Results:
    """The destination of a call's results."""

    def __init__(self, legend: Legend, out: Path, forms: Sequence[str]) -> None:
        self.legend, self.out, self.forms = legend, out, forms
        self.counts = np.zeros(len(legend.classes), np.int64)
        self.done = 0
        self.coco = CocoWriter(out / "coco.json", legend) if "coco" in forms else None
        self.shares = ShareWriter(out / "shares.csv", legend) if "csv" in forms else None

    def __enter__(self) -> "_Results":
        return self

    def __exit__(self, *error: object) -> None:
        for collected in (self.coco, self.shares):
            if collected is not None:
                collected.close()

    def add(self, name: str, stem: str, image: Path | None, classes: ClassMap) -> None:
        """Write what has nothing to do with the image's pixels."""
        if "labelme" in self.forms:
            path = self.out / "labelme" / f"{stem}.json"
            shown = _relative(image or Path(name), path.parent)
            write_labelme(path, classes, self.legend, shown, TOLERANCE)
        if self.coco is not None:
            self.coco.add(name, classes)
        if self.shares is not None:
            self.shares.add(name, classes)
        self.counts += count_classes(classes, len(self.counts))
        self.done += 1

    def share_of_classes(self) -> dict[str, float]:
        total = max(1, int(self.counts.sum()))
        order = np.argsort(-self.counts, kind="stable")
        return {
            self.legend.classes[i]: int(self.counts[i]) / total for i in order if self.counts[i]
        }


def _relative(path: Path, folder: Path) -> str:
    """Return a path as seen from a folder; as it is where that cannot be."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive of Windows
        return str(path)


def _tidy(out: Path) -> None:
    """Remove what killed processes left of results."""
    remove_temporaries(out, ["coco.json"])
    for left in out.glob(".class-map.????????"):
        shutil.rmtree(left, ignore_errors=True)
    for form, suffixes in _WRITTEN.items():
        for folder, _, _ in os.walk(out / form):
            remove_temporaries(Path(folder), suffixes=suffixes)


def predict_all(
    predictor: Predictor,
    legend: Legend,
    given: Sequence[str],
    out: Path,
    forms: Sequence[str] = USUAL_FORMS,
    should_stop: Callable[[], bool] = lambda: False,
) -> Summary:
    """Predict images and videos, and write the results.

    Args:
        predictor: How the network sees images; through windows they take bounded memory.
        legend: What its channels mean.
        given: Files, folders and globs.
        out: Folder of the results.
        forms: What is written, of `FORMS`.
        should_stop: Asked after each image and frame.
    """
    _check_forms(forms)
    inputs = find_inputs(given, out)
    failed: list[str] = []
    stopped = False
    with contextlib.ExitStack() as held:
        # Two commands may write to one folder; what lies there may be the other one's then.
        with contextlib.suppress(InUse):
            held.enter_context(locked(out, "predict"))
            _tidy(out)
        results = held.enter_context(_Results(legend, out, forms))
        progress = held.enter_context(show_progress("predicting"))
        for i, one in enumerate(inputs):
            try:
                stopped = _predict(predictor, one, results, should_stop) or should_stop()
            except NacreError as error:
                if len(inputs) == 1:
                    raise
                failed.append(str(error))
            progress(i + 1, len(inputs))
            if stopped:
                break
    return Summary(results.done, tuple(failed), stopped, results.share_of_classes())


def _check_forms(forms: Sequence[str]) -> None:
    for form in forms:
        if form not in FORMS:
            raise unknown_name("form", form, FORMS)
    if not forms:
        raise NacreError(f"no form to write: give one or more of {', '.join(FORMS)}")


def _predict(
    predictor: Predictor, one: Input, results: _Results, should_stop: Callable[[], bool]
) -> bool:
    """Do one input; return whether it was left in its middle."""
    if one.is_video:
        return _predict_video(predictor, one, results, should_stop)
    if predictor.window is not None or is_georeferenced(one.path):
        _predict_map(predictor, one, results)
    else:
        _predict_image(predictor, one, results)
    return False


def _predict_image(predictor: Predictor, one: Input, results: _Results) -> None:
    pixels = np.asarray(to_rgb(one.path))
    classes = predict_image(predictor, pixels, results.legend).mask
    if "masks" in results.forms:
        write_mask(results.out / "masks" / f"{one.stem}.png", classes, results.legend)
    if "overlays" in results.forms:
        path = results.out / "overlays" / f"{one.stem}.jpg"
        write_overlay(path, pixels, classes, results.legend)
    results.add(one.name, one.stem, one.path, classes)


def _predict_map(predictor: Predictor, one: Input, results: _Results) -> None:
    """Do an image that may be too large to be seen, or held, at once."""
    with (
        open_raster(one.path) as raster,
        make_class_map(raster.size, len(results.legend.classes), results.out) as classes,
    ):
        with _map_writer(one, results) as write:
            for rows, columns, part in _blocks(predictor, raster):
                classes[rows, columns] = part
                if write is not None:
                    write(rows, columns, part)
        if "masks" in results.forms and write is None:
            write_mask(results.out / "masks" / f"{one.stem}.png", classes, results.legend)
        if "overlays" in results.forms:
            path = results.out / "overlays" / f"{one.stem}.jpg"
            preview = raster.preview()
            write_overlay(path, preview, _shrunk(classes, preview.shape[:2]), results.legend)
        results.add(one.name, one.stem, one.path, classes)


@contextlib.contextmanager
def _map_writer(
    one: Input, results: _Results
) -> Iterator[Callable[[slice, slice, Pixels], None] | None]:
    """Open a GeoTIFF for the mask of a georeferenced image; None for others."""
    if "masks" not in results.forms or not is_georeferenced(one.path):
        yield None
        return
    path = results.out / "masks" / f"{one.stem}.tif"
    with write_geotiff(path, one.path, results.legend) as write:
        yield write


def _blocks(predictor: Predictor, raster: Raster) -> Iterator[tuple[slice, slice, Pixels]]:
    def read(rows: slice, columns: slice) -> torch.Tensor:
        part = np.ascontiguousarray(raster.read(rows, columns).transpose(2, 0, 1))
        return torch.from_numpy(part)

    done = 0
    with show_progress("windows of a large image") as progress:
        for block in predictor.blocks(read, raster.size):
            yield block.rows, block.columns, block.classes.numpy()
            done += block.classes.numel()
            progress(done, raster.size[0] * raster.size[1])


def _shrunk(classes: ClassMap, size: tuple[int, ...]) -> Pixels:
    """Return the class at the middle of each pixel of a smaller image."""
    rows = ((np.arange(size[0]) + 0.5) * classes.shape[0] / size[0]).astype(int)
    columns = ((np.arange(size[1]) + 0.5) * classes.shape[1] / size[1]).astype(int)
    parts = []
    for place, part in row_strips(classes):
        within = rows[(rows >= place.start) & (rows < place.stop)] - place.start
        parts.append(part[within][:, columns])
    return np.concatenate(parts)


def _predict_video(
    predictor: Predictor, one: Input, results: _Results, should_stop: Callable[[], bool]
) -> bool:
    writer: VideoWriter | None = None
    try:
        for i, frame in enumerate(read_frames(one.path)):
            classes = predict_image(predictor, frame, results.legend).mask
            stem = f"{one.stem}/{i:06d}"
            if "masks" in results.forms:
                write_mask(results.out / "masks" / f"{stem}.png", classes, results.legend)
            if "overlays" in results.forms:
                if writer is None:
                    path = results.out / "overlays" / f"{one.stem}.mp4"
                    writer = VideoWriter(path, classes.shape, one.path)
                writer.add(np.asarray(overlay(frame, classes, results.legend)))
            results.add(f"{one.name}#{i}", stem, None, classes)
            if should_stop():
                return True
    finally:
        if writer is not None:
            writer.close()
    return False
