"""A learned model: use it on images, test it, take it elsewhere, teach it more."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

from nacre.api.run import watched
from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor, model_predictor
from nacre.export import Form, NamedModel, export_models
from nacre.export.hub import push
from nacre.models.io import ModelInfo, find_model, load_model, save_start
from nacre.models.network import Network
from nacre.predict.prediction import AnyImage, Prediction, predict_image
from nacre.runs.edit import forget_class, forget_folder, forget_step, open_ledger, save_ledger
from nacre.runs.edit import merge as merge_ledgers
from nacre.runs.evaluate import evaluate_on_folder
from nacre.runs.learn import learn_config, learn_in_folder, open_step
from nacre.terminal import progress_bar
from nacre.training.config import deep_merge
from nacre.training.events import Observer
from nacre.utils.device import choose_device
from nacre.utils.progress import set_progress_bar

Paths = str | Path | Sequence[str | Path]

LEAST_WINDOW, MOST_WINDOW = 32, 65_536
"""Sides of windows in pixels."""


@dataclass(frozen=True)
class Evaluation:
    """Measurements of a model on labeled images.

    Attributes:
        images: How many were tested.
        iou: IoU of each class that they judge, the background's included; None of a class that
            none of them has.
        mean_iou: The mean over the classes, without the background.
    """

    images: int
    iou: dict[str, float | None]
    mean_iou: float | None


@dataclass(frozen=True)
class Model:
    """A learned network and what its channels mean.

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

        It takes a model of `ledger` or `duo`, and no image; of `duo` only the sums forget.

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
            raise NacreError("say what to forget: a step, a data folder, or a class")
        known = open_ledger(self.path, self.network.given)
        if class_name is not None:
            edited = forget_class(known, class_name)
        elif folder is not None:
            edited = forget_folder(known, folder, step)
        else:
            edited = forget_step(known, step or 0)
        return load(save_ledger(edited, Path(out)), network=self.network.given)

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

    def to(self, device: str | torch.device) -> "Model":
        """Move the network to a device (``auto``, ``cpu``, ``cuda``, ``mps``); return the model."""
        self.network.to(choose_device(device) if isinstance(device, str) else device)
        return self

    @overload
    def predict(
        self,
        image: AnyImage,
        *,
        window: int | None = ...,
        mirror: bool | None = ...,
        edges: bool | None = ...,
        scores: bool = ...,
    ) -> Prediction: ...

    @overload
    def predict(
        self,
        image: list[AnyImage] | tuple[AnyImage, ...],
        *,
        window: int | None = ...,
        mirror: bool | None = ...,
        edges: bool | None = ...,
        scores: bool = ...,
    ) -> list[Prediction]: ...

    def predict(
        self,
        image: AnyImage | list[AnyImage] | tuple[AnyImage, ...],
        *,
        window: int | None = None,
        mirror: bool | None = None,
        edges: bool | None = None,
        scores: bool = False,
    ) -> Prediction | list[Prediction]:
        """Predict the class of every pixel of an image, or of each of a list, at its own size.

        The network sees it at the scale that it was trained and tested at, which its file tells:
        with the shorter side scaled to the training crops (``crop``), at its own size (``full``),
        or through windows of the crop's size (``sliding``).

        Args:
            image: A file, a Pillow image, an array (height x width x 3) or a tensor (3 x height x
                width). EXIF data turn a file or a Pillow image; others are taken as they are.
            window: Side of windows, through which it is seen then, at the same scale.
            mirror: Whether its mirror image is looked at, too: twice the time, often better. By
                default as the model's file says.
            edges: Whether classes follow the edges of the image: better for large things, and
                worse for thin ones. By default as the model's file says.
            scores: Whether the prediction has the probabilities of all classes: 4 bytes each for
                every pixel.
        """
        predictor = self.predictor(window=window, mirror=mirror, edges=edges)
        if isinstance(image, list | tuple):
            return [predict_image(predictor, one, self.info.channels, scores) for one in image]
        return predict_image(predictor, image, self.info.channels, scores)

    def predictor(
        self, *, window: int | None = None, mirror: bool | None = None, edges: bool | None = None
    ) -> Predictor:
        """Return how the network sees images, at the scale that it learned at."""
        if window is not None and not LEAST_WINDOW <= window <= MOST_WINDOW:
            raise NacreError(f"windows of {window} pixels: give {LEAST_WINDOW} to {MOST_WINDOW:,}")
        info = self.info if mirror is None else replace(self.info, mirror=mirror)
        info = info if edges is None else replace(info, edges=edges)
        return replace(model_predictor(self.network, info), window=window)

    def evaluate(self, folder: str | Path) -> Evaluation:
        """Test the model on the test images of a data folder, as `nacre eval` does.

        Args:
            folder: With images/, masks/ and classes.yaml. Tested are the images that ``val.txt``
                names, without lists one in five by name; ``FOLDER:all`` tests all of them.
        """
        found = evaluate_on_folder(self.network, self.info, Path(folder))
        mean = found["mean_iou"].get("all_without_background")
        return Evaluation(found["images"], found["iou"], mean)

    def export(self, out: str | Path, *, fp16: bool = False, license: str | None = None) -> Path:
        """Write the model as an ONNX file, from image to class map, or as a page (``.html``).

        The file is compared with the network before it is kept.

        Args:
            out: ``….onnx``, or ``….html`` for one HTML file that runs the model in a browser.
            fp16: Whether weights have 16 bits.
            license: License of the weights, such as ``cc-by-4.0``.
        """
        out = Path(out)
        form: Form = "fp16" if fp16 else "fp32"
        export_models(
            [NamedModel(out.stem, self.network, self.info)], out, form=form, license=license
        )
        return out


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
    given = next((one.network.given for one in models if isinstance(one, Model)), None)
    opened = [open_ledger(start_path(one) or Path(), given) for one in models]
    return load(save_ledger(merge_ledgers(opened), Path(out)), network=given)


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
    tests: Paths = (),
    preset: str | None = None,
    seed: int | None = None,
    config: dict[str, Any] | None = None,
    observers: Iterable[Observer] = (),
    progress: bool | None = None,
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
        method: Name of the method; by default duo, where the network has pretrained weights or
            was learned by it; ledger beside networks of other libraries; else mib.
        classes: Learn only these of the data's classes.
        rename: The model's name of a class by the data's name of it.
        new: Names that are new although they look like known ones.
        tests: More folders to test on.
        preset: ``paper``, ``small`` or ``demo`` instead of what fits the machine.
        seed: Of the weights, the order and the augmentation.
        config: Values as in a config file, such as ``{"train": {"iterations": 200}}``; arguments
            that are given lie over them.
        observers: Called with every event (`nacre.training.events`).
        progress: Whether to show how it goes; by default in notebooks and on terminals.

    Raises:
        Interrupted: by Ctrl-C; what was learned is saved, and the same call goes on.

    Returns:
        The model; its folder has the metrics before and after (metrics.json).
    """
    set_progress_bar(progress_bar)
    config = config or {}
    out = _new_folder(_paths(data)) if out is None else Path(out)
    network = start.network.given if isinstance(start, Model) else None
    if isinstance(start, nn.Module):
        start, network = _save_network(start, out, old, background, config)
    elif old is not None or background != 0:
        raise NacreError("old and background go with a network of your own as start")
    begun_from = start_path(start)
    named: dict[str, Any] = {
        "data": list(map(str, _paths(data))),
        "start": str(begun_from) if begun_from else None,
        "tests": list(map(str, _paths(tests))),
        "method": {"name": method} if method else None,
        "classes": list(classes),
        "new": list(new),
        "rename": dict(rename or {}),
        "seed": seed,
    }
    given = {key: value for key, value in named.items() if value not in (None, [], {})}
    resolved = learn_config(preset=preset, overrides=deep_merge(config, given), network=network)
    with watched(out, observers, progress) as (told, stop):
        step = open_step(resolved, network)
        learn_in_folder(step, out, observers=told, should_stop=stop)
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
    about = config.get("model") or {}  # scoring_layers, stages and pixels
    needed = save_start(path, network, old=old, background=background, crop=crop, **about)
    return path, needed


def start_path(start: "str | Path | Model | None") -> Path | None:
    """Return the file or folder of the model that a step continues."""
    if start is None or isinstance(start, str | Path):
        return None if start is None else Path(start)
    if not isinstance(start, Model):
        raise NacreError(f"start: {type(start).__name__} is neither a model nor the path of one")
    if start.path is None:
        raise NacreError("start: this model was not loaded from a file; give nacre.load(…)")
    return start.path


def _paths(given: Paths) -> list[Path]:
    if isinstance(given, str | Path):
        return [Path(given)]
    return [Path(one) for one in given]
