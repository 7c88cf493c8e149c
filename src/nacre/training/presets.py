"""Presets: named values that lie under a user's own config."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from nacre.data import find_dataset
from nacre.errors import NacreError, unknown_name
from nacre.methods import Method, find_method
from nacre.models.backbones import weight_sources
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
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    values = dict(PRESETS[name])
    if scenario is not None and name in PAPER_PRESETS:
        epochs = find_dataset(scenario.data, "data set in the scenario:").paper_epochs
        if epochs is not None:
            values["train"] = {**values["train"], "epochs": epochs}
    places = _places(name, scenario)
    kind = find_method(method)
    for place in places:
        values["train"] = {**values["train"], **kind.train_presets.get(place, {})}
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
        # Class orders of a task, 100-10b, are learnt as the task is.
        task = (scenario.task or "").rstrip("abc")
        where += [f" {scenario.data}", f" {scenario.data}/{task}"]
    return [f"{name}{place}" for name in names for place in where]
