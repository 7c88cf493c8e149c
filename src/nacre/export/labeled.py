"""Pictures with known classes, to measure what an export costs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from nacre.data import open_source
from nacre.data.image_io import load
from nacre.data.sources.folder import FolderConfig
from nacre.errors import NacreError
from nacre.evaluation.metrics import confusion_matrix, iou_by_class
from nacre.models.io import ModelInfo
from nacre.runs.scenario_data import open_scenario
from nacre.scenarios.classes import BACKGROUND, IGNORE_INDEX, LabelSpace
from nacre.training.config import resolve_config
from nacre.utils.progress import show_progress

Pixels = npt.NDArray[np.uint8]
Classify = Callable[[Pixels], Pixels]

OWN = "own"


@dataclass(frozen=True)
class LabeledPictures:
    """Test pictures of one data set.

    Attributes:
        count: How many there are.
        read: Yields each picture H,W,3, at the scale at which the model is to see it, and its
            channels H,W, 255 where it is not tested.
    """

    count: int
    read: Callable[[], Iterator[tuple[Pixels, Pixels]]]


def open_labeled(data: str, info: ModelInfo, limit: int) -> LabeledPictures:
    """Open the test pictures of a folder, or those of the run that made a model.

    Args:
        data: A folder with images/, masks/ and classes.yaml, or `own`.
        info: What the model knows.
        limit: How many pictures at most.
    """
    return _own(info, limit) if data == OWN else _folder(Path(data), info, limit)


def _own(info: ModelInfo, limit: int) -> LabeledPictures:
    if "scenario" not in info.config:
        raise NacreError("no scenario made this model, so it has no test pictures: give a folder")
    dataset = open_scenario(resolve_config(info.config)).eval_dataset(len(info.steps) - 1)
    count = min(limit, len(dataset))

    def read() -> Iterator[tuple[Pixels, Pixels]]:
        for i in range(count):
            pixels, truth = dataset[i]
            yield np.ascontiguousarray(pixels.permute(1, 2, 0).numpy()), truth.numpy()

    return LabeledPictures(count, read)


def _folder(root: Path, info: ModelInfo, limit: int) -> LabeledPictures:
    source = open_source(FolderConfig(root=root))
    names = list(source.index("val").names)[:limit]
    if not names:
        raise NacreError(f"{root} has no test pictures: val.txt names none")
    table = _channels_by_label(source.space, info.classes, root)

    def read() -> Iterator[tuple[Pixels, Pixels]]:
        for name in names:
            picture = load(source.image("val", name)).convert("RGB")
            truth = Image.fromarray(table[source.mask("val", name)])
            if info.predict_mode == "crop":
                scale = info.crop / min(picture.size)
                size = (round(picture.width * scale), round(picture.height * scale))
                picture = picture.resize(size, Image.Resampling.BILINEAR)
                truth = truth.resize(size, Image.Resampling.NEAREST)
            yield np.array(picture), np.array(truth)

    return LabeledPictures(len(names), read)


def _channels_by_label(space: LabelSpace, classes: list[str], root: Path) -> Pixels:
    """Return the channel of each label; what the model does not know is not tested."""
    table = np.full(65536, IGNORE_INDEX, np.uint8)
    known = {name: channel for channel, name in enumerate(classes)}
    shared = {label: known[name] for label, name in space.names.items() if name in known}
    if not shared:
        raise NacreError(
            f"{root} labels {', '.join(space.names.values())}; the model knows none of them, but "
            f"{', '.join(classes)}"
        )
    for label, channel in shared.items():
        table[label] = channel
    if space.background is not None:
        table[space.background] = known.get(BACKGROUND, 0)
    return table


def measure_iou(
    pictures: LabeledPictures, classify: Classify, channels: int, title: str
) -> list[float | None]:
    """Return the IoU of each channel over all pictures, None where the truth never holds it."""
    confusion = torch.zeros(channels, channels, dtype=torch.int64)
    with show_progress(title) as progress:
        for i, (picture, truth) in enumerate(pictures.read()):
            found = torch.from_numpy(classify(picture))
            confusion += confusion_matrix(torch.from_numpy(truth), found, channels)
            progress(i + 1, pictures.count)
    return iou_by_class(confusion)


def mean_iou(ious: list[float | None]) -> float | None:
    """Return the mean over the classes that were tested, the background among them."""
    tested = [iou for iou in ious if iou is not None]
    return sum(tested) / len(tested) if tested else None
