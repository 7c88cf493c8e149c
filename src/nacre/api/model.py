"""A learnt model: use it on pictures, from an image to a mask of class names; teach it more."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from nacre.data.image_io import load as decode
from nacre.data.image_io import open_image, upright_rgb
from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor
from nacre.export.hub import push
from nacre.export.predictions import Legend, overlay, palette_image
from nacre.labels.channels import is_wide
from nacre.models.foreign.adapter import Adapter
from nacre.models.foreign.start import save_start
from nacre.models.io import ModelInfo, find_model, load_model
from nacre.models.network import Network
from nacre.runs.edit import forget_class, forget_folder, forget_step, open_ledger, save_ledger
from nacre.runs.edit import merge as merge_ledgers
from nacre.runs.learn import find_start, plan_learning
from nacre.terminal.progress import progress_bar
from nacre.training.config import deep_merge, read_section
from nacre.utils.device import choose_device
from nacre.utils.progress import set_progress_bar

Paths = str | Path | Sequence[str | Path]

Picture = str | Path | Image.Image | npt.NDArray[np.uint8 | np.uint16]
"""A file, a Pillow image or an array: grey or RGB, with or without alpha, of 8 or 16 bits."""


@dataclass(frozen=True)
class Prediction:
    """What a model sees in a picture.

    Attributes:
        mask: Channel of each pixel, of the picture's size.
        classes: Class name by channel; channel 0 is the background.
        colors: RGB by channel.
    """

    mask: npt.NDArray[Any]
    classes: tuple[str, ...]
    colors: tuple[tuple[int, int, int], ...]

    @property
    def names(self) -> npt.NDArray[np.str_]:
        """The mask as class names."""
        return np.array(self.classes)[self.mask]

    def shares(self) -> dict[str, float]:
        """Return which share of the picture each class covers, largest first."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.classes))
        order = np.argsort(-counts, kind="stable")
        return {self.classes[i]: float(counts[i] / self.mask.size) for i in order if counts[i]}

    def picture(self) -> Image.Image:
        """Return the mask as a palette image: label values are channels."""
        return palette_image(self.mask, Legend(self.classes, self.colors))

    def over(self, picture: Picture, strength: float = 0.6) -> Image.Image:
        """Return the picture with the classes laid over it in colour."""
        pixels = np.asarray(to_rgb(picture))
        return overlay(pixels, self.mask, Legend(self.classes, self.colors), strength)


@dataclass(frozen=True)
class Model:
    """A learnt network and what its channels mean.

    Attributes:
        network: The network, in eval mode.
        info: What its file says about it.
        path: Its file, where it was loaded from one.
    """

    network: Network
    info: ModelInfo
    path: Path | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Class name by channel; channel 0 is the background."""
        return tuple(self.info.classes)

    def learn(self, data: "Paths", **options: Any) -> "Model":
        """Add the new classes of some data, see `learn`; this model stays as it is."""
        return learn(data, start=self, **options)

    def forget(
        self,
        *,
        step: int | None = None,
        folder: str | None = None,
        class_name: str | None = None,
        out: str | Path,
    ) -> "Model":
        """Return the model that never learned a step, a folder or a class; this one stays as it is.

        It takes a model that the method ledger learned, and no image.

        Args:
            step: Place of the step among those that made the model; 0 is the first.
            folder: Or a data folder by its name; with `step` where several steps have such a one.
            class_name: Or a class, whose pixels count as if they had been ignored.
            out: Folder for the new model.
        """
        if self.path is None:
            raise NacreError(
                "this model was not loaded from a file; call forget of nacre.load(path)"
            )
        if (step is None and folder is None) == (class_name is None):
            raise NacreError("name what is forgotten: either a step, a folder of it, or a class")
        known = open_ledger(self.path)
        if class_name is not None:
            edited = forget_class(known, class_name)
        elif folder is not None:
            edited = forget_folder(known, folder, step)
        else:
            edited = forget_step(known, step or 0)
        return load(save_ledger(edited, Path(out)))

    def push_to_hub(
        self, repository: str, *, private: bool = False, license: str | None = None
    ) -> str:
        """Upload the model with a model card to the Hugging Face hub; return the commit's address.

        ``nacre.load("hf://owner/name")`` loads it again, and `learn` takes it as its start.

        Args:
            repository: ``owner/name``; created if it does not exist.
            private: Whether a new repository is visible to its owners alone.
            license: License of the weights, such as ``cc-by-4.0``.
        """
        if self.path is None:
            raise NacreError("this model was not loaded from a file; push nacre.load(path)")
        return push(self.path, self.info, repository, private=private, license=license)

    def fused(self) -> "Model":
        """Return a copy that predicts faster and cannot be trained.

        Batch norm is folded into the convolutions: a tenth to a sixth of the time less with the
        small backbones on a CPU. Scores differ in their last digits.
        """
        return replace(self, network=self.network.fused())

    @torch.inference_mode()
    def predict(
        self,
        picture: Picture,
        *,
        window: int | None = None,
        mirror: bool = False,
        edges: bool = False,
    ) -> Prediction:
        """Say what is where in a picture, at its own size.

        The network sees it at the scale that it was trained and tested at, which its file tells:
        with the shorter side scaled to the training crops (``crop``), at its own size (``full``),
        or through windows of the crop's size (``sliding``).

        Args:
            picture: A file, a Pillow image or an array. EXIF data turn a file or an image; an array
                is taken as it is.
            window: Side of windows, through which it is seen then, at the same scale.
            mirror: Whether its mirror image is looked at, too: twice the time, often better.
            edges: Whether classes follow the edges of the image: better for large things, and
                worse for thin ones.
        """
        device = next(self.network.parameters()).device
        pixels = torch.from_numpy(np.array(to_rgb(picture))).permute(2, 0, 1)
        predictor = self.predictor(window=window, mirror=mirror, edges=edges)
        channels = predictor.classes(pixels[None].to(device))
        wide = is_wide(len(self.classes))
        mask: npt.NDArray[Any] = channels[0].cpu().numpy()
        mask = mask.astype(np.uint16) if wide else mask.astype(np.uint8)
        colors = tuple((c[0], c[1], c[2]) for c in self.info.colors)
        return Prediction(mask, self.classes, colors)

    def predictor(
        self, *, window: int | None = None, mirror: bool = False, edges: bool = False
    ) -> Predictor:
        """Return how the network sees images, at the scale that it learned at."""
        mode, crop = self.info.predict_mode, self.info.crop
        return Predictor(self.network, mode, crop, window, mirror, edges)


def load(path: str | Path, device: str = "auto", *, network: nn.Module | None = None) -> Model:
    """Load a model.

    Args:
        path: A run folder (its last step), a step folder, a model file, or ``hf://org/name``.
        device: auto, cpu, cuda, mps.
        network: For a model that was learned from a network of yours: one of the same class, with
            the number of classes that it had then; it is copied.
    """
    file = find_model(Path(path))
    loaded, info, _ = load_model(file, choose_device(device), network)
    return Model(loaded, info, file)


def merge(models: "Sequence[str | Path | Model]", *, out: str | Path) -> Model:
    """Merge models that the method ledger learned on one backbone.

    Args:
        models: Model files, folders or loaded models. Classes of one name are one class; steps that
            two models have from a common start count once.
        out: Folder for the new model, which learned from the images of all.
    """
    opened = [open_ledger(_start_path(one) or Path()) for one in models]
    return load(save_ledger(merge_ledgers(opened), Path(out)))


def learn(
    data: Paths,
    *,
    out: str | Path | None = None,
    start: "str | Path | Model | nn.Module | None" = None,
    old: Sequence[str] | None = None,
    background: int | None = 0,
    method: str | None = None,
    classes: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    new: Sequence[str] = (),
    share: Mapping[str, float] | None = None,
    tests: Paths = (),
    preset: str | None = None,
    seed: int | None = None,
    config: dict[str, Any] | None = None,
) -> Model:
    """Learn one step: a model, or none, and new data give a model.

    Args:
        data: Folders with images/, masks/ and classes.yaml; each labels what it labels.
        out: The folder for the new model; calling again goes on there. By default a new one, below
            ``models/`` and called like the data.
        start: The model that is continued: a file, a step's or a run's folder, a loaded model, or
            any torch network of yours that segments; it is copied and stays as it is.
        old: Names of your network's classes in the order of its channels, without the background.
        background: Channel of the background in your network; None if it has none.
        method: Name of the method; mib unless given, and ledger or duo for models with sums.
        classes: Learn only these of the data's classes.
        rename: The model's name of a class by the data's name of it.
        new: Names that are new although they look like known ones.
        share: Share of a batch, by the name of a data folder; by default sizes decide.
        tests: More folders to test on.
        preset: ``paper``, ``small`` or ``demo`` instead of what fits the machine.
        seed: Of the weights, the order and the augmentation.
        config: Values as in a config file, such as ``{"train": {"iterations": 200}}``.

    Returns:
        The model; its folder has the metrics before and after (metrics.json).
    """
    set_progress_bar(progress_bar)
    config = config or {}
    out = _new_folder(_paths(data)) if out is None else Path(out)
    network = _given(start) if isinstance(start, Model) else None
    if isinstance(start, nn.Module):
        start, network = _save_network(start, out, old, background, config)
    elif old is not None or background != 0:
        raise NacreError("old and background go with a network of your own as start")
    values: dict[str, Any] = {"classes": list(classes)}
    values |= {"method": {"name": method}} if method else {}
    values |= {"new": list(new), "rename": dict(rename or {}), "share": dict(share or {})}
    values |= {} if seed is None else {"seed": seed}
    named = read_section(config, "method").get("name", method)
    if method is not None and named != method:
        raise NacreError(f"method is {method!r}, and {named!r} in the config; say it once")
    values = deep_merge(values, config)
    found = find_start(_start_path(start), network)
    plan = plan_learning(_paths(data), found, tests=_paths(tests), preset=preset, values=values)
    plan.learn(out)
    return load(out, network=network)


def _new_folder(data: Sequence[Path]) -> Path:
    """Return a folder that is not there yet, named after data."""
    name = "-".join(path.resolve().name for path in data) or "model"
    numbered = (Path("models") / (f"{name}-{i}" if i > 1 else name) for i in itertools.count(1))
    return next(path for path in numbered if not path.exists())


def _save_network(
    network: nn.Module,
    out: Path,
    old: Sequence[str] | None,
    background: int | None,
    config: dict[str, Any],
) -> tuple[Path, nn.Module | None]:
    """Write a network that is given as a model to start from, beside the new model's folder.

    Returns:
        The file, and the network if the file cannot be opened without it.
    """
    path = out.with_name(f"{out.name}-start.safetensors")
    crop = (config.get("images") or {}).get("crop_size", 512)
    about = config.get("model") or {}  # head, stages and pixels
    needed = save_start(path, network, old=old, background=background, crop=crop, **about)
    return path, needed


def _start_path(start: "str | Path | Model | None") -> Path | None:
    if not isinstance(start, Model):
        return None if start is None else Path(start)
    if start.path is None:
        raise NacreError("start: this model was not loaded from a file; give nacre.load(…)")
    return start.path


def _given(model: Model) -> nn.Module | None:
    """Return the network that a model's file cannot build; None if it can."""
    if model.info.model.get("kind") != "object":
        return None
    assert isinstance(model.network, Adapter)
    return model.network.model


def _paths(given: Paths) -> list[Path]:
    if isinstance(given, str | Path):
        return [Path(given)]
    return [Path(one) for one in given]


def to_rgb(picture: Picture) -> Image.Image:
    """Return a picture as upright RGB, whatever form it has."""
    if isinstance(picture, str | Path):
        return decode(open_image(Path(picture)))
    return upright_rgb(_from_array(picture) if isinstance(picture, np.ndarray) else picture)


def _from_array(array: npt.NDArray[np.uint8 | np.uint16]) -> Image.Image:
    """Return an array as a picture: grey, grey and alpha, RGB or RGBA."""
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype not in (np.uint8, np.uint16) or array.ndim not in (2, 3) or channels > 4:
        raise NacreError(
            f"an array must be uint8 or uint16 of height x width x 3, not {array.dtype} of "
            f"{' x '.join(map(str, array.shape))}"
        )
    if not array.size:
        raise NacreError(f"an array of {' x '.join(map(str, array.shape))} holds no pixel")
    values = array if array.dtype == np.uint8 else (array >> 8).astype(np.uint8)
    # Alpha, the second or fourth channel, is left out.
    values = values[..., :3] if channels > 2 else values.reshape(*array.shape[:2], -1)[..., 0]
    return Image.fromarray(np.ascontiguousarray(values))
