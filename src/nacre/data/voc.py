"""Pascal VOC 2012 for segmentation: 20 classes, 10,582 training and 1,449 test images.

The training split is ``train_aug``: VOC's images and those of the Semantic Boundaries Dataset
(SBD), with masks in ``SegmentationClassAug``. Label 0 is the background, 255 the border of objects.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from nacre.data.index import Pair
from nacre.data.source import DataConfig, FileSource, Split, find_root
from nacre.errors import NacreError, shown
from nacre.labels.space import LabelSpace
from nacre.utils.config import NO_EFFECT
from nacre.utils.io import read_text

# fmt: off
CLASS_NAMES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
    "train", "tvmonitor",
)
# fmt: on

KNOWN_COUNTS: dict[Split, int] = {"train": 10_582, "val": 1_449}

LAYOUT = """\
VOC2012/                             (or VOCdevkit/VOC2012, or the folder above)
  JPEGImages/*.jpg                   from VOCtrainval_11-May-2012.tar
  SegmentationClass/*.png            from VOCtrainval_11-May-2012.tar
  ImageSets/Segmentation/val.txt     from VOCtrainval_11-May-2012.tar
  SegmentationClassAug/*.png         from SegmentationClassAug.zip (VOC's and SBD's masks, 12,031)
  ImageSets/Segmentation/train_aug.txt   10,582 names; also in splits/ or list/"""

_LIST_NAMES: dict[Split, tuple[str, ...]] = {
    "train": ("train_aug.txt", "trainaug.txt"),
    "val": ("val.txt",),
}
_LIST_FOLDERS = ("ImageSets/Segmentation", "ImageSets/SegmentationAug", "splits", "list", "lists")
_PLAIN, _AUGMENTED = "SegmentationClass", "SegmentationClassAug"


def voc_color(label: int) -> tuple[int, int, int]:
    """Return the color of a label in VOC's palette: three bits of the label per bit of a color."""
    red = green = blue = 0
    for j in range(8):
        red |= (label >> 3 * j & 1) << 7 - j
        green |= (label >> 3 * j + 1 & 1) << 7 - j
        blue |= (label >> 3 * j + 2 & 1) << 7 - j
    return red, green, blue


SPACE = LabelSpace(
    names=dict(enumerate(CLASS_NAMES, start=1)),
    background=0,
    ignored=255,
    colors={label: voc_color(label) for label in (*range(21), 255)},
)


class VocConfig(DataConfig):
    """The config of Pascal VOC 2012."""

    name: Literal["voc"] = Field("voc", description="the data set: Pascal VOC 2012")
    root: Path = Field(
        description="the folder VOC2012, VOCdevkit, or the one above", json_schema_extra=NO_EFFECT
    )


class Voc(FileSource):
    """Pascal VOC 2012."""

    space = SPACE
    known_counts = KNOWN_COUNTS

    def __init__(self, config: VocConfig) -> None:
        below = ("VOC2012", "VOCdevkit/VOC2012")
        self.root = find_root(config.root, below, ["JPEGImages"], "Pascal VOC 2012", LAYOUT)

    def list_pairs(self, split: Split) -> list[Pair]:
        """Read the list of a split."""
        path = self._list_file(split)
        lines = [line.split() for line in read_text(path, "list").splitlines()]
        lines = [fields for fields in lines if fields]
        if not lines:
            raise NacreError(f"{path} names no image")
        masks = self._mask_folder(split, [fields[0] for fields in lines if len(fields) == 1])
        pairs: dict[str, Pair] = {}
        for fields in lines:
            pair = self._pair(path, fields, masks)
            if pair.name in pairs:
                raise NacreError(f"{path} names the image {shown(pair.name)} more than once")
            pairs[pair.name] = pair
        return list(pairs.values())

    def _pair(self, path: Path, fields: list[str], masks: Path) -> Pair:
        """Return the pair of a line in a list: a name, or the paths of image and mask."""
        line = shown(" ".join(fields))
        is_pair = len(fields) == 2 and all(Path(field).suffix for field in fields)
        if len(fields) > 1 and not is_pair:
            raise NacreError(
                f"{path}: the line {line} is neither a name, which has no space, nor a pair of an "
                "image's and a mask's path"
            )
        # Paths may begin with a slash, but must stay in the folder.
        if any(".." in Path(field).parts or "\0" in field for field in fields):
            raise NacreError(f"{path}: the line {line} leads out of {self.root}")
        if is_pair:
            image, mask = fields
            return Pair(Path(image).stem, self._below(image), self._below(mask))
        name = fields[0].lstrip("/")
        return Pair(fields[0], self.root / "JPEGImages" / f"{name}.jpg", masks / f"{name}.png")

    def _list_file(self, split: Split) -> Path:
        for folder in (self.root, *list(self.root.parents)[:2]):
            for place in _LIST_FOLDERS:
                for name in _LIST_NAMES[split]:
                    path = folder / place / name
                    if path.is_file():
                        return path
        names = " or ".join(_LIST_NAMES[split])
        raise NacreError(
            f"{self.root} has no list {names} in {', '.join(_LIST_FOLDERS)}; "
            f"the layout must be:\n{LAYOUT}"
        )

    def _mask_folder(self, split: Split, names: list[str]) -> Path:
        """Return the folder of a split's masks: for testing VOC's own, if it is complete."""
        plain, augmented = self.root / _PLAIN, self.root / _AUGMENTED
        if split == "val" and all((plain / f"{name}.png").is_file() for name in names):
            return plain
        return augmented

    def _below(self, written: str) -> Path:
        """Return a path of a list, which starts at VOC2012 or one of its parents."""
        path = written.lstrip("/")
        folders = (self.root, *list(self.root.parents)[:2])
        files = (folder / path for folder in folders if (folder / path).is_file())
        return next(files, self.root / path)
