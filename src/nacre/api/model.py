"""Models (load, learn, predict, test, export, forget, merge), and runs of scenarios."""

import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import nn

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
from nacre.runs.run import run_scenario
from nacre.terminal import PlainConsole, RunDisplay, progress_bar
from nacre.training.config import build_config, deep_merge
from nacre.training.events import Observer
from nacre.utils.device import choose_device
from nacre.utils.progress import set_progress_bar
from nacre.utils.signals import Interrupted, StopSignal

Paths = str | Path | Sequence[str | Path]

MIN_WINDOW, MAX_WINDOW = 32, 65_536
"""Limits of the side of a window, in pixels."""


@dataclass(frozen=True)
class Evaluation:
    """Measurements of a model on labeled images.

    Attributes:
        images: Number of test images.
        iou: IoU of the background and of each class that the images label; None for a class
            without a labeled pixel.
        mean_iou: Mean over the classes, without the background.
    """

    images: int
    iou: dict[str, float | None]
    mean_iou: float | None


@dataclass(frozen=True)
class Model:
    """A trained network with its class names and its history.

    Attributes:
        network: The network, in eval mode.
        info: The header of its file.
        path: Its file; None if it was not loaded from one.
    """

    network: Network
    info: ModelInfo
    path: Path | None = None

    @property
    def file(self) -> Path:
        """The file of the model; an error if it was not loaded from one."""
        if self.path is None:
            raise NacreError("this model was not loaded from a file; open one with nacre.load(…)")
        return self.path

    @property
    def classes(self) -> tuple[str, ...]:
        """Class name by channel; channel 0 is the background."""
        return tuple(self.info.classes)

    def learn(self, data: "Paths", **options: Any) -> "Model":
        """Return a model that has learned the new classes of some data as well; see `learn`."""
        return learn(data, start=self, **options)

    def forget(
        self,
        *,
        step: int | None = None,
        folder: str | None = None,
        class_name: str | None = None,
        out: str | Path,
    ) -> "Model":
        """Return the model without a step, a data folder or a class; it needs no image.

        The model must be one of `ledger` or `duo`. The decoder of `duo` does not forget.

        Args:
            step: The step to forget, by its number in the history; 0 is the first.
            folder: Or the data folder to forget, by its name. Add `step` if several steps learned
                from a folder of this name.
            class_name: Or the class to forget, as if its pixels had been ignored.
            out: Folder for the new model.
        """
        if step is None and folder is None and class_name is None:
            raise NacreError("nothing to forget: give a step, a data folder or a class")
        if class_name is not None and (step is not None or folder is not None):
            raise NacreError("a class is forgotten in all steps: give it without step or folder")
        opened = open_ledger(self.file, self.network.given)
        if class_name is not None:
            edited = forget_class(opened, class_name)
        elif folder is not None:
            edited = forget_folder(opened, folder, step)
        else:
            edited = forget_step(opened, step or 0)
        return load(save_ledger(edited, Path(out)), network=self.network.given)

    def push_to_hub(
        self, repository: str, *, private: bool = False, license: str | None = None
    ) -> str:
        """Upload the model with a model card to the Hugging Face hub; return the commit's address.

        ``nacre.load("hf://owner/name")`` opens it again.

        Args:
            repository: ``owner/name``; created if it does not exist.
            private: Make a new repository private.
            license: License of the weights, such as ``cc-by-4.0``.
        """
        return push(self.file, self.info, repository, private=private, license=license)

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
        """Predict the class of every pixel of an image, or of each image of a list.

        The image is scaled as in training and testing, and the prediction has the image's own size.

        Args:
            image: A file, a Pillow image, an array (height x width x 3) or a tensor (3 x height x
                width). EXIF data rotate files and Pillow images.
            window: Predict in overlapping windows with this side, at the same scale.
            mirror: Average with the mirrored image, which takes twice the time and is often
                better. Default: the model's choice.
            edges: Let class borders follow the edges of the image, which is better for large
                objects and worse for thin ones. Default: the model's choice.
            scores: Add the probabilities of all classes to the prediction, 4 bytes per pixel and
                class.
        """
        predictor = self.predictor(window=window, mirror=mirror, edges=edges)
        if isinstance(image, list | tuple):
            return [predict_image(predictor, one, self.info.channels, scores) for one in image]
        return predict_image(predictor, image, self.info.channels, scores)

    def predictor(
        self, *, window: int | None = None, mirror: bool | None = None, edges: bool | None = None
    ) -> Predictor:
        """Return the predictor that turns images into class maps, with other options."""
        if window is not None and not MIN_WINDOW <= window <= MAX_WINDOW:
            allowed = f"{MIN_WINDOW} to {MAX_WINDOW:,} pixels"
            raise NacreError(f"the window of {window} pixels is not allowed; give {allowed}")
        info = self.info if mirror is None else replace(self.info, mirror=mirror)
        info = info if edges is None else replace(info, edges=edges)
        return replace(model_predictor(self.network, info), window=window)

    def evaluate(self, folder: str | Path) -> Evaluation:
        """Test the model on the test images of a data folder, as `nacre eval` does.

        Args:
            folder: Folder with images/, masks/ and classes.yaml. The test images are those in
                ``val.txt``, or one in five if there are no lists; ``FOLDER:all`` tests all images.
        """
        metrics = evaluate_on_folder(self.network, self.info, Path(folder))
        mean = metrics["mean_iou"].get("all_without_background")
        return Evaluation(metrics["images"], metrics["iou"], mean)

    def export(self, out: str | Path, *, fp16: bool = False) -> Path:
        """Write the model as an ONNX file, from image to class map, or as a page (``.html``).

        The file is written only if it predicts what the network predicts.

        Args:
            out: ``….onnx``, or ``….html`` for one HTML file that runs the model in a browser.
            fp16: Store the weights in 16 bits.
        """
        out = Path(out)
        form: Form = "fp16" if fp16 else "fp32"
        export_models([NamedModel(out.stem, self.network, self.info)], out, form=form)
        return out


def load(path: str | Path, device: str = "auto", *, network: nn.Module | None = None) -> Model:
    """Load a model.

    Args:
        path: A run folder (its last step), a step folder, a model file, or ``hf://org/name``.
        device: auto, cpu, cuda, mps.
        network: For a model that started from your own network: a network of the same class, with
            the number of classes that it had then. It is copied.
    """
    file = find_model(Path(path))
    loaded, info, _ = load_model(file, choose_device(device), network)
    return Model(loaded, info, file)


def merge(models: "Sequence[str | Path | Model]", *, out: str | Path) -> Model:
    """Merge models of `ledger` or `duo` on the same backbone into one that knows all classes.

    Args:
        models: Model files, folders or loaded models. Equal class names become one class. Steps
            from a common start count once.
        out: Folder for the new model.
    """
    network = next((model.network.given for model in models if isinstance(model, Model)), None)
    opened = [open_ledger(start_path(model) or Path(), network) for model in models]
    return load(save_ledger(merge_ledgers(opened), Path(out)), network=network)


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
    """Train a first model, or add new classes to an existing one.

    Args:
        data: Folders with images/, masks/ and classes.yaml. Each may label some of the classes.
        out: Folder for the new model; the same call resumes there. Default: a new folder below
            ``models/``, named after the data.
        start: Model to continue: a file, a step or run folder, a loaded model, or your own torch
            network for segmentation. It is copied and does not change.
        old: Class names of your own network in the order of its channels, without the background.
        background: Background channel of your own network; None if it has none.
        method: Training method. Default: duo for pretrained weights and models of duo, ledger
            beside networks of other libraries, otherwise mib.
        classes: Learn only these classes of the data.
        rename: Class names of the model by class names of the data.
        new: Classes that are new even if their names resemble known ones.
        tests: More folders to test on.
        preset: ``paper``, ``small`` or ``demo`` instead of values that fit the machine.
        seed: Random seed for weights, order and augmentation.
        config: Values as in a config file, such as ``{"train": {"iterations": 200}}``. Other
            arguments override them.
        observers: Functions that are called with every event (`nacre.training.events`).
        progress: Show the progress. Default: in notebooks and on terminals.

    Raises:
        Interrupted: after Ctrl-C. The progress is saved, and the same call resumes.

    Returns:
        The model. Its folder contains the metrics before and after the step (metrics.json).
    """
    set_progress_bar(progress_bar)
    config = config or {}
    out = _new_folder(_paths(data)) if out is None else Path(out)
    network = start.network.given if isinstance(start, Model) else None
    if isinstance(start, nn.Module):
        start, network = _save_network(start, out, old, background, config)
    elif old is not None or background != 0:
        raise NacreError("`old` and `background` are only valid if `start` is a torch network")
    start_file = start_path(start)
    arguments: dict[str, Any] = {
        "data": list(map(str, _paths(data))),
        "start": str(start_file) if start_file else None,
        "tests": list(map(str, _paths(tests))),
        "method": {"name": method} if method else None,
        "classes": list(classes),
        "new": list(new),
        "rename": dict(rename or {}),
        "seed": seed,
    }
    overrides = deep_merge(config, _without_empty(arguments))
    resolved = learn_config(preset=preset, overrides=overrides, network=network)
    with _watching(out, observers, progress) as (all_observers, stop):
        step = open_step(resolved, network)
        learn_in_folder(step, out, observers=all_observers, should_stop=stop)
    return load(out, network=network)


def run(
    scenario: str,
    out: str | Path,
    *,
    method: str | None = None,
    preset: str | None = None,
    seed: int | None = None,
    cache: str | Path | None = None,
    config: dict[str, Any] | None = None,
    observers: Iterable[Observer] = (),
    progress: bool | None = None,
) -> dict[str, Any]:
    """Train all steps of a scenario, or resume an interrupted run.

    Args:
        scenario: ``data/task/setup``, a shipped scenario or a ``.yaml`` file.
        out: Folder for the run.
        method: Training method. Default: duo for pretrained weights; mib without them and under
            the presets of the paper.
        preset: Config values to begin with: ``paper``, ``text``, ``small`` or ``demo``.
        seed: Random seed for weights, order and augmentation. Default: the config's, or 1.
        cache: Folder of learned steps that runs share; a step in it is not trained again.
        config: Values as in a config file, such as ``{"train": {"epochs": 2}}``. Other arguments
            override them.
        observers: Functions that are called with every event (`nacre.training.events`).
        progress: Show the progress. Default: in notebooks and on terminals.

    Returns:
        The content of the run's ``metrics.json``.

    Raises:
        Interrupted: after Ctrl-C. The progress is saved, and the same call resumes.
    """
    set_progress_bar(progress_bar)
    arguments = {
        "scenario": scenario,
        "method": {"name": method} if method else None,
        "seed": seed,
    }
    overrides = deep_merge(config or {}, _without_empty(arguments))
    resolved = build_config(preset=preset, overrides=overrides)
    folder = Path(cache) if cache else None
    with _watching(out, observers, progress) as (all_observers, stop):
        return run_scenario(
            resolved, Path(out), cache=folder, observers=all_observers, should_stop=stop
        )


@contextlib.contextmanager
def _watching(
    out: str | Path, observers: Iterable[Observer], progress: bool | None
) -> Iterator[tuple[list[Observer], Callable[[], bool]]]:
    """Show the progress of training, and let Ctrl-C stop it after a save.

    Yields:
        The observers of the events, and a function that returns True after Ctrl-C.

    Raises:
        Interrupted: Ctrl-C stopped the training; the message says how to resume.
    """
    with contextlib.ExitStack() as stack:
        all_observers = list(observers)
        console = PlainConsole(stderr=True)
        if progress is None:
            progress = console.is_terminal or console.is_jupyter or hasattr(sys, "ps1")
        if progress and os.environ.get("RANK", "0") == "0":
            all_observers.append(stack.enter_context(RunDisplay(console)))
        stop = stack.enter_context(StopSignal())
        try:
            yield all_observers, stop
        except Interrupted:
            raise Interrupted(
                f"stopped; what was learned is saved in {out}, and the same call resumes"
            ) from None


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, [], {})}


def _new_folder(data: Sequence[Path]) -> Path:
    """Return the path of a new folder named after the data."""
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
    """Save a user's network as a start model; return its file, and the network if it is needed."""
    path = out.with_name(f"{out.name}-start.safetensors")
    crop = (config.get("images") or {}).get("crop_size", 512)
    options = config.get("model") or {}  # scoring_layers, stages and pixels
    needed = save_start(path, network, old=old, background=background, crop=crop, **options)
    return path, needed


def start_path(start: "str | Path | Model | None") -> Path | None:
    """Return the file or folder of the model that a step continues."""
    if start is None or isinstance(start, str | Path):
        return None if start is None else Path(start)
    if not isinstance(start, Model):
        raise NacreError(f"start: {type(start).__name__} is neither a model nor the path of one")
    return start.file


def _paths(paths: Paths) -> list[Path]:
    if isinstance(paths, str | Path):
        return [Path(paths)]
    return [Path(path) for path in paths]
