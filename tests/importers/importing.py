"""Helpers of the tests of single formats: import a folder and look at the result."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from nacre.importers import ImportOptions, ImportReport, import_export


class Imported:
    """A folder that was imported.

    Most outlines of these exports are boxes, so they are accepted as areas by default.
    """

    def __init__(self, export: Path, target: Path, **given: Any) -> None:
        self.root = target
        self.report: ImportReport = import_export(
            export, target, ImportOptions(**({"fill_boxes": True} | given))
        )
        self.classes: dict[str, Any] = yaml.safe_load((target / "classes.yaml").read_text("utf-8"))

    @property
    def names(self) -> list[str]:
        """The class names in the order of their labels."""
        return list(self.classes["classes"].values())

    @property
    def text(self) -> str:
        """The sentences of the report."""
        return "\n".join(self.report.sentences())

    def mask(self, name: str) -> NDArray[Any]:
        """Return the labels of an image."""
        with Image.open(self.root / "masks" / f"{name}.png") as image:
            return np.array(image)

    def images(self) -> set[str]:
        """Return the names of the images that were written."""
        below = self.root / "images"
        return {
            path.relative_to(below).with_suffix("").as_posix()
            for path in below.rglob("*")
            if path.is_file()
        }

    def list(self, split: str) -> list[str]:
        """Return a split list."""
        return (self.root / f"{split}.txt").read_text("utf-8").splitlines()


def filled(size: tuple[int, int], *boxes: tuple[int, int, int, int, int]) -> NDArray[np.uint8]:
    """Return a mask with boxes (left, top, right, bottom, label), later ones on top."""
    mask = np.zeros((size[1], size[0]), np.uint8)
    for left, top, right, bottom, label in boxes:
        mask[top:bottom, left:right] = label
    return mask
