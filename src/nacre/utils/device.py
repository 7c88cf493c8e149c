"""The device a process computes on, its precision and its memory."""

import sys
from dataclasses import dataclass

import torch

from nacre.errors import NacreError

DEVICES = ("cpu", "cuda", "mps", "xpu")


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """Return the device a config asks for; ``auto`` takes the fastest that is there."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type not in DEVICES:
            raise RuntimeError(f"known: {', '.join(DEVICES)}")
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise NacreError(
            f"train.device: {device!r} cannot be used here ({str(error).splitlines()[0]}); "
            "'auto' takes what is there"
        ) from error
    if chosen.type == "cuda" and chosen.index is None:
        return torch.device("cuda", local_rank)
    return chosen


def memory_layout(device: torch.device) -> torch.memory_format:
    """Return how images and weights lie in memory on a device.

    Convolutions are faster with the channels of a pixel side by side, on CPUs and on CUDA. On
    Apple's MPS the backward pass of batch normalisation is wrong for that layout in torch 2.13
    (pytorch #175189).
    """
    return torch.contiguous_format if device.type == "mps" else torch.channels_last


@dataclass(frozen=True)
class Precision:
    """In which numbers the networks compute, and why.

    Attributes:
        dtype: Of the networks' activations; the losses are always float32.
        reason: For the log.
    """

    dtype: torch.dtype
    reason: str

    @property
    def is_mixed(self) -> bool:
        """Whether autocast is needed."""
        return self.dtype != torch.float32

    @property
    def needs_scaling(self) -> bool:
        """Whether gradients would vanish without a scale on the loss."""
        return self.dtype == torch.float16


def choose_precision(wanted: str, device: torch.device) -> Precision:
    """Return the precision a config asks for; ``auto`` goes by what the device is good at."""
    if wanted != "auto":
        return Precision(getattr(torch, wanted), f"{wanted}: as configured")
    if device.type != "cuda":
        return Precision(torch.float32, f"float32: mixed precision does not pay on {device.type}")
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Precision(torch.bfloat16, "bfloat16: the GPU computes it natively")
    return Precision(torch.float16, "float16 with a loss scale: the GPU has no native bfloat16")


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes held so far, on a GPU or by this process; None if nobody knows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
