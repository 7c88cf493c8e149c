"""Strips compiled by `torch.compile`, as an option for GPUs.

A kernel is some thirty small operations a strip. A compiler makes a few large ones of them, which
read and write the strip's memory fewer times. It compiles anew for every number of classes, which
took up to a minute on a CPU, so it is for long runs; and it needs what `torch.compile` needs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.losses.kernels import StripKernel, Sums

BACKEND = "inductor"
_wanted = ContextVar("compiled_strips", default=False)


@contextlib.contextmanager
def compiled_strips(wanted: bool = True) -> Iterator[None]:
    """Have the fused losses that are computed meanwhile compile their kernels."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def as_wanted(kernel: StripKernel) -> Callable[..., Sums]:
    """Return the kernel, compiled if that is wanted."""
    return _compiled(kernel) if _wanted.get() else kernel


@lru_cache(maxsize=4)
def _compiled(kernel: StripKernel) -> Callable[..., Sums]:
    def strip(
        x: Tensor,
        z: Tensor | None,
        targets: Tensor,
        scratch: Tensor,
        gradients: bool,
        *of_images: Tensor,
    ) -> Sums:
        return kernel(x, z, targets, scratch, gradients, *of_images)

    # torch gives up on code that it had to compile for many cases, and every step is a new case:
    # so each has code of its own.
    strip.__code__ = strip.__code__.replace(co_name=f"strip_of_{kernel}")
    compiled: Callable[..., Sums] = torch.compile(
        strip, dynamic=True, fullgraph=True, backend=BACKEND
    )

    def run(*inputs: Tensor | bool | None) -> Sums:
        try:
            return compiled(*inputs)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise NacreError(
                f"train.compile_losses: the losses cannot be compiled here ({reason}); "
                "train.compile_losses=false does without"
            ) from error

    return run
