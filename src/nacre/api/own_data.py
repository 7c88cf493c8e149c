"""Data and steps of one's own: a data folder for any loop, and a step on any torch data set."""

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
from nacre.data.image_io import Mask
from nacre.data.source import Split
from nacre.data.sources.folder import FolderConfig
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
    """The images of a data folder with their targets, as a plain `DataLoader` of torch takes them.

    An item is an image, 3,S,S, uint8, and its targets, S,S, uint8: 0 is the background, i the class
    `classes[i]`, 255 is ignored. Training images are augmented, test images are not.

    Args:
        root: The folder with images/, masks/ and classes.yaml.
        split: ``train`` or ``val``.
        crop_size: The side S of what is cut out of an image.
        crop: How training images are cut: ``paper``, ``deeplab`` or ``plain``.
        seed: Of the augmentation.

    Attributes:
        classes: Class name by target, the background first.
        epoch: Decides, with the seed, how training images are cut; set it before each epoch.
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
        one = LabeledSet(set_name(Path(root)), open_source(FolderConfig(root=Path(root))), {})
        channels = first_channels(one.labeled, {})
        names = one.index(split).names
        self.classes, self.epoch = channels.names, 0
        self._data: TrainDataset | EvalDataset
        if split == "train":
            mapping = mapping_for_training(channels, one.space, policy, one.labels)
            self._data = TrainDataset([LabeledImages(one.source, names, mapping)], images, seed)
        else:
            mapping = mapping_for_tests(channels, one.space, policy, one.labels)
            self._data = EvalDataset(LabeledImages(one.source, names, mapping, split), images)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self._data)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Return an image and its targets."""
        if not 0 <= i < len(self):
            raise IndexError(i)  # so that a loop over the images ends
        data = self._data
        found = data[self.epoch, i] if isinstance(data, TrainDataset) else data[i]
        return found[0], found[1]


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
    """Return a step that learns from a torch data set; `learn_step` learns it, without any folder.

    Args:
        data: Gives, with its length, by number an image and its mask of the same size: a Pillow
            image, an array H,W,3 or a tensor 3,H,W of 8 bits; an array or a tensor H,W. They are
            cut and augmented as `config` says (`images`).
        classes: What the values 1, 2, … of the masks mean; 0 is the background, 255 is ignored.
            Those that the start model does not know are new.
        start: A step that was learned, a loaded model, or a model file or folder; it stays as it
            is.
        method: Name of the method; by default as for `learn`.
        seed: Of the weights, the order and the augmentation; 1 unless the config says another.
        config: The sections `model`, `train`, `images`, `labels` and `method` of a config.
        observers: Receive the events.
        should_stop: Whether to stop.
    """
    named = {"method": {"name": method} if method else None, "seed": seed}
    given = {key: value for key, value in named.items() if value is not None}
    count = _check(data, classes)
    info, file, network = _open_start(start)
    recipe = build(Recipe, deep_merge(config or {}, given), start=info)
    space = LabelSpace(dict(enumerate(classes, start=1)))
    known = info.channels if info is not None else None
    new = [name for name in classes if known is None or name not in known.names]
    if not new:
        raise NacreError(f"there is no new class in {', '.join(classes) or 'no class'}")
    channels = first_channels(new, {}) if known is None else known.extended(new, {})
    mapping = mapping_for_training(channels, space, recipe.labels, space.names)
    images = LabeledImages(_Given(data, space), [str(i) for i in range(count)], mapping)
    dataset = TrainDataset([images], recipe.images, recipe.seed)
    step = next_step(recipe, info, dataset, channels, about={"data": [type(data).__name__]})
    step.observe, step.should_stop = Recorder(observers), should_stop
    if isinstance(start, Step):
        step.network, step.state = copy.deepcopy(start.network), known_state(recipe, start.state)
    elif file is not None:
        begin_from(step, file, network)
    return step


def _check(data: Dataset[Any], classes: Sequence[str]) -> int:
    """Return the number of images; refuse data and classes that are not what they seem."""
    try:
        count: int = len(data)  # type: ignore[arg-type]
    except TypeError:
        raise NacreError(f"data: {type(data).__name__} has no length and no numbers") from None
    if not count:
        raise NacreError(f"data: {type(data).__name__} has no images")
    if isinstance(classes, str) or not all(isinstance(name, str) for name in classes):
        raise NacreError(f"classes: {classes!r} is not a list of names")
    return count


def _open_start(
    start: Step | Model | str | Path | None,
) -> tuple[ModelInfo | None, Path | None, nn.Module | None]:
    """Return what is known of a start, its file, and the network that the file cannot build."""
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
        raise NacreError("this step was not learned yet: call nacre.learn_step first")


def save_step(step: Step, path: str | Path) -> None:
    """Save the model of a step that was learned, for `nacre.load` and as the start of others."""
    _check_learned(step)
    save_model(Path(path), step.network, model_info(step), step.state)


class _Given:
    """A torch data set of images and masks, as the rest of nacre sees a data set."""

    def __init__(self, data: Dataset[Any], space: LabelSpace) -> None:
        self.data, self.space = data, space
        self._last: tuple[str, Any] = ("", None)

    def index(self, split: Split) -> LabelIndex:
        """Refuse: nobody has looked at the masks."""
        raise NacreError(
            "a data set given in Python has no index of its labels: put its images and masks into "
            "a folder for what needs one"
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
                f"image {name} is {pixels.dtype} of {size}; it must be RGB of 8 bits: a tensor "
                "3,H,W, an array H,W,3 or a Pillow image"
            )
        return Image.fromarray(np.ascontiguousarray(pixels))

    def mask(self, split: Split, name: str) -> Mask:
        """Return the mask of an image."""
        mask = np.asarray(self._item(name)[1])
        if mask.ndim != 2:
            size = " x ".join(map(str, mask.shape))
            raise NacreError(f"the mask of image {name} is of {size or 'no size'}; it must be H,W")
        unknown = sorted(set(np.unique(mask).tolist()) - self.space.allowed)
        if unknown:
            raise NacreError(
                f"the mask of image {name} holds the value {unknown[0]}; the classes are 1 to "
                f"{len(self.space.names)}, the background is 0, and 255 is ignored"
            )
        return mask.astype(np.uint16 if mask.max(initial=0) > 255 else np.uint8)

    def _item(self, name: str) -> Any:
        if self._last[0] != name:
            self._last = (name, self.data[int(name)])
        return self._last[1]
