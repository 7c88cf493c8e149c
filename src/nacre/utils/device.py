"""The device a process computes on, its precision and its memory."""

import contextlib
import os
import sys
from dataclasses import dataclass

import torch

from nacre.errors import NacreError
from nacre.utils.system import usable_cores

DEVICES = ("cpu", "cuda", "mps", "xpu")


def choose_device(device: str, local_rank: int = 0) -> torch.device:
    """Return the device that a config requests; ``auto`` chooses the fastest one available."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "cuda" and chosen.index is None:  # every process would open GPU 0
            chosen = torch.device("cuda", local_rank)
        if chosen.type not in DEVICES:
            raise RuntimeError(f"known: {', '.join(DEVICES)}")
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise NacreError(
            f"train.device: {device!r} cannot be used here ({str(error).splitlines()[0]}); "
            "use 'auto'"
        ) from error
    return chosen


def memory_layout(device: torch.device, *, training: bool) -> torch.memory_format:
    """Return the memory layout of images on a device: channels-last, if it is fast and exact.

    On CPUs torch's batch norm sums channels-last maps with too few digits in training: 1 / std is
    off by 3e-4 over 131,072 values per channel. On Apple's MPS its backward pass is wrong for that
    layout in torch 2.13 (pytorch #175189).
    """
    exact = device.type == "cuda" or (device.type == "cpu" and not training)
    return torch.channels_last if exact else torch.contiguous_format


@dataclass(frozen=True)
class Precision:
    """The numeric precision of networks.

    Attributes:
        dtype: Type of the activations; losses are always float32.
        reason: Explanation for the log.
    """

    dtype: torch.dtype
    reason: str

    def mixed(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """Return the autocast context of this precision."""
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(device.type, self.dtype)

    @property
    def needs_scaling(self) -> bool:
        """True if the loss must be scaled to keep small gradients."""
        return self.dtype == torch.float16


FLOAT32 = Precision(torch.float32, "float32")


def choose_precision(wanted: str, device: torch.device) -> Precision:
    """Return the precision that a config requests; ``auto`` chooses by the device."""
    if wanted == "tf32":
        return Precision(torch.float32, "float32 with TF32 convolutions: as configured")
    if wanted != "auto":
        return Precision(getattr(torch, wanted), f"{wanted}: as configured")
    if device.type != "cuda":
        return Precision(torch.float32, f"float32: mixed precision does not pay on {device.type}")
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return Precision(torch.bfloat16, "bfloat16: the GPU computes it natively")
    return Precision(torch.float16, "float16 with a loss scale: the GPU has no native bfloat16")


def configure_backends(precision: str, device: torch.device, *, one_size: bool = True) -> None:
    """Configure cuDNN and cuBLAS for a CUDA device; change nothing for other devices.

    Call it before a network computes results, in training and testing: torch allows TF32 in
    convolutions by default. The losses' matrix products always stay in float32. With the ten bits
    of TF32 the upsampled logits would be too coarse for a log-sum-exp.

    Args:
        precision: `train.precision` of the config; TF32 is not used if it is ``float32``.
        device: The device.
        one_size: All images have the same size. cuDNN benchmarks its kernels once for each size,
            which takes longer than it saves if there are many.
    """
    if device.type != "cuda":
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = precision != "float32"
    # A benchmark may choose another kernel each time.
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    torch.backends.cudnn.benchmark = one_size and not is_deterministic


def count_workers(wanted: int | str, device: torch.device) -> int:
    """Return the number of data-loading workers of this process.

    ``auto`` divides the cores of the machine by its training processes, up to 8 workers each. On a
    CPU it is 0, because workers would take cores from training.
    """
    if isinstance(wanted, int):
        return wanted
    if device.type == "cpu":
        return 0
    return max(1, min(8, usable_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory in bytes, of the GPU or of this process; None if it is unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
