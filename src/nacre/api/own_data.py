"""Data folders as torch data sets, and steps on any torch data set."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

from nacre.api.model import Model, start_path
from nacre.data import open_source
from nacre.data.dataset import EvalDataset, LabeledImages, TrainDataset
from nacre.data.folder import FolderConfig
from nacre.data.image_io import Mask
from nacre.data.source import Split
from nacre.data.step_data import LabeledSet, set_name
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError, check
from nacre.labels.channels import first_channels
from nacre.labels.mapping import LabelPolicy, mapping_for_tests, mapping_for_training
from nacre.labels.space import LabelIndex, LabelSpace
from nacre.methods import Step
from nacre.models.io import ModelInfo, find_model, read_info, save_model
from nacre.runs.steps import begin_from, known_state, model_info, next_step
from nacre.training.config import Recipe, build, deep_merge
from nacre.training.events import Observer, Recorder


class ImageFolder(Dataset[tuple[Tensor, Tensor]]):
    """A torch data set of the images and targets of a data folder.

    An item is an image (3,S,S, uint8) and its targets (S,S, uint8): 0 is the background, i is the
    class `classes[i]`, 255 is ignored. Training images are augmented, test images are not.

    Args:
        root: Folder with images/, masks/ and classes.yaml.
        split: ``train`` or ``val``.
        crop_size: Side S of the crops.
        crop: Crop policy of training images: ``paper``, ``deeplab`` or ``plain``.
        seed: Random seed of the augmentation.

    Attributes:
        classes: Class name by target, the background first.
        epoch: Number of the epoch, which changes the crops; set it before each epoch.
    """

    def __init__(
        self,
        root: str | Path,
        split: Split = "train",
        *,
        crop_size: int = 512,
        crop: str = "deeplab",
        seed: int = 1,
    ) -> None:
        images = check(ImagesConfig, {"crop_size": crop_size, "crop": crop})
        policy = LabelPolicy(border="ignored")
        folder = LabeledSet(set_name(Path(root)), open_source(FolderConfig(root=Path(root))), {})
        channels = first_channels(folder.labeled, {})
        names = folder.index(split).names
        self.classes, self.epoch = channels.names, 0
        self._data: TrainDataset | EvalDataset
        if split == "train":
            mapping = mapping_for_training(channels, folder.space, policy, folder.labels)
            self._data = TrainDataset([LabeledImages(folder.source, names, mapping)], images, seed)
        else:
            mapping = mapping_for_tests(channels, folder.space, policy, folder.labels)
            self._data = EvalDataset(LabeledImages(folder.source, names, mapping, split), images)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._data)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Return an image and its targets."""
        if not 0 <= i < len(self):
            raise IndexError(i)  # ends a loop over the images
        data = self._data
        item = data[self.epoch, i] if isinstance(data, TrainDataset) else data[i]
        return item[0], item[1]


def make_step(
    data: Dataset[Any],
    classes: Sequence[str],
    *,
    start: Step | Model | str | Path | None = None,
    method: str | None = None,
    seed: int | None = None,
    config: Mapping[str, Any] | None = None,
    observers: Iterable[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> Step:
    """Return a step on a torch data set; `learn_step` trains it, without any folder.

    Args:
        data: A data set with a length. An item is an image (a Pillow image, an 8-bit array H,W,3
            or an 8-bit tensor 3,H,W) and its mask (an array or tensor H,W). nacre crops and
            augments both, see `images` in the config.
        classes: Names of the mask values 1, 2, …; 0 is the background, 255 is ignored. Classes
            that the start model does not know are new.
        start: A learned step, a loaded model, or a model file or folder. It does not change.
        method: Training method. Default: that of `learn`.
        seed: Random seed for weights, order and augmentation. Default: the config's, or 1.
        config: The sections `model`, `train`, `images`, `labels` and `method` of a config.
        observers: Functions that are called with every event.
        should_stop: Function that returns True to stop.
    """
    arguments = {"method": {"name": method} if method else None, "seed": seed}
    overrides = {key: value for key, value in arguments.items() if value is not None}
    count = _count_images(data)
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise NacreError(f"classes: {classes!r} is not a list of names")
    info, file, network = _open_start(start)
    recipe = build(Recipe, deep_merge(config or {}, overrides), start=info)
    space = LabelSpace(dict(enumerate(classes, start=1)))
    known = info.channels if info is not None else None
    new = [name for name in classes if known is None or name not in known.names]
    if not new:
        raise NacreError(f"there is no new class in {', '.join(classes) or 'no class'}")
    channels = first_channels(new, {}) if known is None else known.extended(new, {})
    mapping = mapping_for_training(channels, space, recipe.labels, space.names)
    images = LabeledImages(_TorchSource(data, space), [str(i) for i in range(count)], mapping)
    dataset = TrainDataset([images], recipe.images, recipe.seed)
    step = next_step(recipe, info, dataset, channels, about={"data": [type(data).__name__]})
    step.observe, step.should_stop = Recorder(observers), should_stop
    if isinstance(start, Step):
        step.network, step.state = copy.deepcopy(start.network), known_state(recipe, start.state)
    elif file is not None:
        begin_from(step, file, network)
    return step


def _count_images(data: Dataset[Any]) -> int:
    try:
        count: int = len(data)  # type: ignore[arg-type]
    except TypeError:
        raise NacreError(f"data: {type(data).__name__} has no length; define __len__") from None
    if not count:
        raise NacreError(f"data: {type(data).__name__} has no images")
    return count


def _open_start(
    start: Step | Model | str | Path | None,
) -> tuple[ModelInfo | None, Path | None, nn.Module | None]:
    """Return the header of a start model, its file, and the user's network if it has one."""
    if isinstance(start, Step):
        _check_learned(start)
        return model_info(start), None, None
    path = start_path(start)
    if path is None:
        return None, None, None
    file = find_model(path)
    return read_info(file), file, start.network.given if isinstance(start, Model) else None


def _check_learned(step: Step) -> None:
    if step.network is None or step.network.num_classes != step.num_classes:
        raise NacreError("this step was not learned yet; call nacre.learn_step first")


def save_step(step: Step, path: str | Path) -> None:
    """Save the model of a learned step; `nacre.load` opens it."""
    _check_learned(step)
    save_model(Path(path), step.network, model_info(step), step.state)


class _TorchSource:
    """Adapts a torch data set of images and masks to nacre's data sources."""

    def __init__(self, data: Dataset[Any], space: LabelSpace) -> None:
        self.data, self.space = data, space
        self._last_item: tuple[str, Any] = ("", None)

    def index(self, split: Split) -> LabelIndex:
        """Raise an error: the masks have not been read."""
        raise NacreError(
            "a torch data set has no index of its labels; put its images and masks into a folder "
            "for methods that need one"
        )

    def image(self, split: Split, name: str) -> Image.Image:
        """Return an image as RGB."""
        image = self._item(name)[0]
        if isinstance(image, Image.Image):
            return image.convert("RGB")
        pixels = image.permute(1, 2, 0).numpy() if isinstance(image, Tensor) else np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            size = " x ".join(map(str, pixels.shape))
            raise NacreError(
                f"image {name} is {pixels.dtype} of {size}; it must be 8-bit RGB: a tensor 3,H,W, "
                "an array H,W,3 or a Pillow image"
            )
        return Image.fromarray(np.ascontiguousarray(pixels))

    def mask(self, split: Split, name: str) -> Mask:
        """Return the mask of an image."""
        mask = np.asarray(self._item(name)[1])
        if mask.ndim != 2:
            size = " x ".join(map(str, mask.shape))
            raise NacreError(f"the mask of image {name} has shape {size or '()'}; it must be H,W")
        unknown = sorted(set(np.unique(mask).tolist()) - self.space.allowed)
        if unknown:
            raise NacreError(
                f"the mask of image {name} contains the value {unknown[0]}; the classes are 1 to "
                f"{len(self.space.names)}, the background is 0, and 255 is ignored"
            )
        return mask.astype(np.uint16 if mask.max(initial=0) > 255 else np.uint8)

    def _item(self, name: str) -> Any:
        # An image and its mask are requested one after the other.
        if self._last_item[0] != name:
            self._last_item = (name, self.data[int(name)])
        return self._last_item[1]
