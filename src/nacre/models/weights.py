"""Weights from files into networks: every name is accounted for, or nothing is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.models.backbone import Backbone
from nacre.models.lite0 import from_package_name, imagenet_file

State = Mapping[str, Tensor]


def load_backbone(backbone: Backbone, name: str, weights: str) -> None:
    """Start a backbone from the weights that a config names.

    Args:
        backbone: loaded in place.
        name: of the backbone, for messages.
        weights: `none` or `imagenet`.

    Raises:
        NacreError: there are no such weights, or they are of another network.
    """
    if weights == "none":
        return
    if weights != "imagenet" or name != "lite0":
        raise NacreError(f"there are no weights {weights!r} for backbone {name!r}: use 'none'")
    path = imagenet_file()
    renamed = {from_package_name(key): value for key, value in read_state(path).items()}
    load_strictly(backbone, {key: v for key, v in renamed.items() if key is not None}, str(path))


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a file of tensors by name; code in it is never run."""
    state = torch.load(path, map_location="cpu", weights_only=True)
    return dict(state)


def load_strictly(module: torch.nn.Module, state: State, source: str) -> None:
    """Copy tensors into a module, all or none.

    Raises:
        NacreError: names every key that is missing, unexpected or of another shape.
    """
    own = module.state_dict()
    problems = [f"missing {key}" for key in own if key not in state]
    problems += [f"unexpected {key}" for key in state if key not in own]
    problems += [
        f"{key} is {tuple(state[key].shape)} instead of {tuple(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    if problems:
        raise NacreError(f"{source} does not fit the network: {'; '.join(problems)}")
    module.load_state_dict(state)
