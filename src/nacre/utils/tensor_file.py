"""Tensors and plain JSON in one safetensors file.

The file is whole or not there at all, and opening it runs no code.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nacre.errors import NacreError
from nacre.utils.io import parse_json, save

FORMAT = 1


Tensors = dict[str, Tensor]


def write_tensors(path: Path, tensors: Tensors, content: dict[str, Any]) -> None:
    """Write tensors, and plain data in the header."""
    metadata = {"nacre": json.dumps({"format": FORMAT, **content}, default=str)}
    stored = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    save(path, lambda temporary: save_file(stored, temporary, metadata=metadata))


def read_tensors(
    path: Path, kind: str, device: torch.device | str
) -> tuple[Tensors, dict[str, Any]]:
    """Read the tensors of a file of a kind, and its plain data."""
    if path.exists() and not path.is_file():
        raise NacreError(f"{path} is not a regular file")
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise NacreError(f"{path} is not a whole safetensors file: {error}") from error
    if "nacre" not in metadata:
        raise NacreError(f"{path} was not written by nacre: its header has no `nacre` entry")
    try:
        content = dict(parse_json(metadata["nacre"]))
    except (ValueError, TypeError) as error:
        raise NacreError(f"{path} has a damaged header: {error}") from error
    if content.pop("format", None) != FORMAT or content.pop("kind", None) != kind:
        raise NacreError(f"{path} is not a {kind} file of format {FORMAT}")
    return tensors, content
