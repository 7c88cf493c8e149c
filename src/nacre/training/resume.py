"""The state in the middle of a step, as a file."""

from pathlib import Path
from typing import Any

import torch

from nacre.utils.tensor_file import Tensors, read_tensors, write_tensors

RESUME = "resume"


def save_resume(path: Path, tensors: Tensors, content: dict[str, Any]) -> None:
    """Write the state in the middle of a step."""
    write_tensors(path, tensors, {"kind": RESUME, **content})


def load_resume(path: Path, device: torch.device) -> tuple[Tensors, dict[str, Any]]:
    """Read the state in the middle of a step."""
    return read_tensors(path, RESUME, device)
