"""`nacre predict`: a model over images, folders, videos and maps; results lie as inputs lay.

    OUT/masks/…png  OUT/overlays/…jpg  OUT/labelme/…json  OUT/shares.csv

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
from nacre.predict.inputs import Input, find_inputs
from nacre.predict.polygons import ClassMap
from nacre.predict.prediction import predict_image, to_rgb
from nacre.predict.rasters import (
    Raster,
    is_georeferenced,
    make_class_map,
    open_raster,
    write_geotiff,
)
from nacre.predict.video import VideoWriter, read_frames
from nacre.predict.writers import (
    Legend,
    ShareWriter,
    count_classes,
    overlay,
    share_of_classes,
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
FORMS = ("masks", "overlays", "labelme", "csv")
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
        self.shares = ShareWriter(out / "shares.csv", legend) if "csv" in forms else None

    def close(self) -> None:
        if self.shares is not None:
            self.shares.close()

    def path(self, form: str, stem: str, suffix: str) -> Path | None:
        """Return the file of a form; None if it is not wanted."""
        return self.out / form / f"{stem}{suffix}" if form in self.forms else None

    def add(self, name: str, stem: str, image: Path | None, classes: ClassMap) -> None:
        """Write what has nothing to do with the image's pixels, and count the classes."""
        if path := self.path("labelme", stem, ".json"):
            shown = _relative(image or Path(name), path.parent)
            write_labelme(path, classes, self.legend, shown, TOLERANCE)
        counts = count_classes(classes, len(self.counts))
        if self.shares is not None:
            self.shares.add(name, counts)
        self.counts += counts
        self.done += 1


def _relative(path: Path, folder: Path) -> str:
    """Return a path as seen from a folder; as it is where that cannot be."""
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # another drive of Windows
        return str(path)


def _tidy(out: Path) -> None:
    """Remove what killed processes left of results."""
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
        results = held.enter_context(contextlib.closing(_Results(legend, out, forms)))
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
    shares = share_of_classes(results.counts, legend.classes)
    return Summary(results.done, tuple(failed), stopped, shares)


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
    if path := results.path("masks", one.stem, ".png"):
        write_mask(path, classes, results.legend)
    if path := results.path("overlays", one.stem, ".jpg"):
        write_overlay(path, pixels, classes, results.legend)
    results.add(one.name, one.stem, one.path, classes)


def _predict_map(predictor: Predictor, one: Input, results: _Results) -> None:
    """Do an image that may be too large to be seen, or held, at once."""
    legend = results.legend
    with (
        open_raster(one.path) as raster,
        make_class_map(raster.size, len(legend.classes), results.out) as classes,
    ):
        is_geo = is_georeferenced(one.path)
        path = results.path("masks", one.stem, ".tif" if is_geo else ".png")
        with contextlib.ExitStack() as held:
            geo = path and is_geo and held.enter_context(write_geotiff(path, one.path, legend))
            for rows, columns, part in _blocks(predictor, raster):
                classes[rows, columns] = part
                if geo:
                    geo(rows, columns, part)
        if path and not is_geo:
            write_mask(path, classes, legend)
        if path := results.path("overlays", one.stem, ".jpg"):
            preview = raster.preview()
            rows, columns = (
                ((np.arange(side) + 0.5) * full / side).astype(int)
                for side, full in zip(preview.shape[:2], classes.shape, strict=True)
            )
            write_overlay(path, preview, classes[np.ix_(rows, columns)], legend)
        results.add(one.name, one.stem, one.path, classes)


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


def _predict_video(
    predictor: Predictor, one: Input, results: _Results, should_stop: Callable[[], bool]
) -> bool:
    writer: VideoWriter | None = None
    video = results.path("overlays", one.stem, ".mp4")
    try:
        for i, frame in enumerate(read_frames(one.path)):
            classes = predict_image(predictor, frame, results.legend).mask
            stem = f"{one.stem}/{i:06d}"
            if path := results.path("masks", stem, ".png"):
                write_mask(path, classes, results.legend)
            if video:
                writer = writer or VideoWriter(video, classes.shape, one.path)
                writer.add(np.asarray(overlay(frame, classes, results.legend)))
            results.add(f"{one.name}#{i}", stem, None, classes)
            if should_stop():
                return True
    finally:
        if writer is not None:
            writer.close()
    return False
