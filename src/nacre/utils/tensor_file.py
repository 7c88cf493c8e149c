"""Tensors and JSON in one safetensors file.

Files are written atomically, and opening one runs no code. A tensor with several names, such as a
network's tied weights, is stored under its first name; the header lists the other names.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nacre.errors import NacreError, shown
from nacre.utils.io import parse_json, save

FORMAT = 1

Tensors = dict[str, Tensor]


def write_tensors(path: Path, tensors: Tensors, content: dict[str, Any]) -> None:
    """Write tensors, and JSON in the header."""
    stored, aliases = _separate(tensors)
    header = {"format": FORMAT, **({"aliases": aliases} if aliases else {}), **content}
    metadata = {"nacre": json.dumps(header, default=str)}
    save(path, lambda temporary: save_file(stored, temporary, metadata=metadata))


def _separate(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Return tensors on the CPU that share no memory, and the first names of tied tensors.

    Tensors are compared on their own device, because copies on the CPU share nothing.
    """
    names: dict[object, str] = {}
    stored: Tensors = {}
    aliases: dict[str, str] = {}
    storages: set[int] = set()
    for name, value in tensors.items():
        address = value.data_ptr()  # 0 for a tensor without values
        key = (value.device, address, value.dtype, value.shape, value.stride())
        first = names.setdefault(key, name) if address else name
        if first != name:
            aliases[name] = first
            continue
        stored[name] = value.detach().cpu().contiguous()
        storage = stored[name].untyped_storage().data_ptr()
        if storage and storage in storages:  # a view of another tensor
            stored[name] = stored[name].clone()
        storages.add(storage)
    return stored, aliases


def read_tensors(
    path: Path, kind: str, device: torch.device | str
) -> tuple[Tensors, dict[str, Any]]:
    """Read a file's tensors and JSON; tied tensors are one tensor again.

    Args:
        path: The file.
        kind: Kind of the file, which its header must state.
        device: Device of the tensors.
    """
    if path.exists() and not path.is_file():
        raise NacreError(f"{path} is not a regular file")
    try:
        target = torch.device(device)
        direct = "cpu" if target.type == "mps" else str(target)
        with safe_open(path, framework="pt", device=direct) as file:
            metadata = file.metadata() or {}
            tensors = {name: _move(file.get_tensor(name), target) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise NacreError(
            f"{path} is damaged or is not a safetensors file ({error}); copy or download it again"
        ) from error
    if "nacre" not in metadata:
        raise NacreError(f"{path} was not written by nacre: its header has no `nacre` entry")
    try:
        content = dict(parse_json(metadata["nacre"]))
    except (ValueError, TypeError) as error:
        raise NacreError(f"{path} has a damaged header: {error}") from error
    if content.pop("format", None) != FORMAT or content.pop("kind", None) != kind:
        raise NacreError(f"{path} is not a {kind} file of format {FORMAT}")
    return tensors | _aliased(path, tensors, content.pop("aliases", {})), content


def _move(value: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; float64 tensors stay on the CPU if it is Metal, which has none."""
    stays = device.type == "mps" and value.dtype == torch.float64
    return value if stays else value.to(device)


def _aliased(path: Path, tensors: Tensors, aliases: Any) -> Tensors:
    """Return tied tensors by their other names."""
    if not isinstance(aliases, dict):
        raise NacreError(f"{path} has a damaged header: `aliases` is {shown(aliases)}")
    for name, first in aliases.items():
        if name in tensors or not isinstance(first, str) or first not in tensors:
            raise NacreError(
                f"{path} has a damaged header: it ties {shown(name)} to {shown(first)}, which is "
                "not another tensor of the file"
            )
    return {name: tensors[first] for name, first in aliases.items()}
