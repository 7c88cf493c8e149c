"""Tensors and plain JSON in one safetensors file.

The file is whole or not there at all, and opening it runs no code. A tensor that has several names,
as the tied weights of a network have, is stored under the first; the header lists the others.
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
    """Write tensors, and plain data in the header."""
    stored, aliases = _apart(tensors)
    said = {"format": FORMAT, **({"aliases": aliases} if aliases else {}), **content}
    metadata = {"nacre": json.dumps(said, default=str)}
    save(path, lambda temporary: save_file(stored, temporary, metadata=metadata))


def _apart(tensors: Tensors) -> tuple[Tensors, dict[str, str]]:
    """Return tensors of which no two share memory, and the first name of each that is tied to one.

    Tensors are compared where they are: those on a GPU would come apart on the way to the CPU.
    """
    names: dict[object, str] = {}
    stored: Tensors = {}
    aliases: dict[str, str] = {}
    storages: set[int] = set()
    for name, value in tensors.items():
        place = value.data_ptr()  # 0 of a tensor without values
        known = (value.device, place, value.dtype, value.shape, value.stride())
        first = names.setdefault(known, name) if place else name
        if first != name:
            aliases[name] = first
            continue
        stored[name] = value.detach().cpu().contiguous()
        storage = stored[name].untyped_storage().data_ptr()
        if storage and storage in storages:  # a part of another, or seen otherwise
            stored[name] = stored[name].clone()
        storages.add(storage)
    return stored, aliases


def read_tensors(
    path: Path, kind: str, device: torch.device | str
) -> tuple[Tensors, dict[str, Any]]:
    """Read the tensors of a file of a kind, and its plain data; tied ones are one tensor again."""
    if path.exists() and not path.is_file():
        raise NacreError(f"{path} is not a regular file")
    try:
        place = torch.device(device)
        direct = "cpu" if place.type == "mps" else str(place)
        with safe_open(path, framework="pt", device=direct) as file:
            metadata = file.metadata() or {}
            tensors = {name: _move(file.get_tensor(name), place) for name in file.keys()}  # noqa: SIM118
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


def _move(value: torch.Tensor, place: torch.device) -> torch.Tensor:
    """Return a tensor on a device; Metal has no float64, so such tensors stay on the CPU."""
    stays = place.type == "mps" and value.dtype == torch.float64
    return value if stays else value.to(place)


def _aliased(path: Path, tensors: Tensors, aliases: Any) -> Tensors:
    """Return the tensors of a file by their other names."""
    if not isinstance(aliases, dict):
        raise NacreError(f"{path} has a damaged header: `aliases` is {shown(aliases)}")
    for name, first in aliases.items():
        if name in tensors or not isinstance(first, str) or first not in tensors:
            raise NacreError(
                f"{path} has a damaged header: it says that {shown(name)} is {shown(first)}, which "
                "is not another tensor of the file"
            )
    return {name: tensors[first] for name, first in aliases.items()}
