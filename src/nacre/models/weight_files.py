"""Files of tensors by name, read without running any code that may be in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nacre.errors import NacreError
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
