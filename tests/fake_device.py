"""A fake CUDA or MPS device on which the whole program runs.

Its tensors have a shape, a dtype and a device, but no values. CPU tensors are real. Operations on
the device follow torch's rules for shapes (`FakeTensorMode`), which refuse to mix devices.
Autograd, autocast, optimizers and the loss scale are real.

The device counts its kernels, and each wait of the program for the device by the operation and the
line of nacre. Values that the program reads from the device are ones.

The fake patches private parts of torch, so `NEEDS` skips its tests for other versions: it installs
the device guard of meta tensors, reports a device with memory, and calls tensors meta tensors in a
backward pass, since a build without the device has no streams.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nacre.losses import strips
from nacre.utils import tensor_file

NEEDS = pytest.mark.skipif(
    sys.platform != "linux"
    or torch.version.cuda is not None
    or not torch.__version__.startswith("2.13."),
    reason="the device is feigned for torch 2.13 on Linux, in a build without CUDA",
)

aten = torch.ops.aten
_DEVICE_TYPES = {"cuda": 1, "mps": 13, "meta": 14}  # c10::DeviceType
_ASKS = (aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default)
_SIZES = (aten.nonzero.default, aten.repeat_interleave.Tensor)
_FREE = """view _unsafe_view t transpose permute select slice unsqueeze squeeze expand alias detach
as_strided split split_with_sizes unbind diagonal lift_fresh empty empty_like empty_strided
new_empty new_empty_strided _reshape_alias resize_ set_"""  # make no kernel
_NO_KERNEL = frozenset(_FREE.split())


class FakeDevice(TorchDispatchMode):
    """Runs operations on the device without values, all others for real.

    Attributes:
        waits: Number of waits, by (operation, file:line).
        kernels: Number of kernels, by operation.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.device = torch.device(kind, 0)
        self.shapes = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: Counter[tuple[str, str]] = Counter()
        self.kernels: Counter[str] = Counter()
        self.backward_passes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # only C++ asks
            feigns = self.backward_passes and not _is_checkpointing()
            return torch.device("meta") if feigns else self.device
        kwargs = dict(kwargs or {})
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if torch.is_inference_mode_enabled() or any(one.is_inference() for one in tensors):
            with self:  # there torch does not take compound operations apart by itself
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        target = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        if target is not None and target.type == "meta":
            target = kwargs["device"] = self.device
        is_ours = target is not None and target.type != "cpu"
        if not is_ours and not any(isinstance(one, FakeTensor) for one in tensors):
            return func(*args, **kwargs)
        return self._carry_out(func, args, kwargs, target)

    def _carry_out(self, func: Any, args: Any, kwargs: Any, target: torch.device | None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if func in _ASKS:
            self._wait(name)
            return func is aten.equal.default or _ones(torch.Size(), args[0].dtype).item()
        if func is aten._to_copy.default and target is not None and target.type == "cpu":
            self._wait("copy to the CPU")
            return _ones(args[0].shape, kwargs.get("dtype") or args[0].dtype)
        if func is aten.copy_.default and not isinstance(args[0], FakeTensor):
            self._wait("copy to the CPU")
            return args[0].copy_(_ones(args[0].shape, args[0].dtype))
        if _is_blocking(func, args, kwargs):
            self._wait("blocking copy to the device")
        if func is aten.bincount.default:  # reads the least and the greatest value
            self._wait(name)
            with self.shapes:
                return args[0].new_zeros([*args, kwargs.get("minlength")][2])
        if func in _SIZES and kwargs.get("output_size") is None:  # how many will there be?
            self._wait(name)
        with self.shapes:
            out = _WITHOUT_RULE.get(name, func)(*args, **kwargs)
        if name not in _NO_KERNEL:
            self.kernels[name] += 1
        self._check(name, out)
        return out

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        """Stand in for what `torch.autograd.backward` calls."""
        self.backward_passes += 1
        try:
            return _run_backward(*args, **kwargs)
        finally:
            self.backward_passes -= 1

    def _check(self, name: str, out: Any) -> None:
        for one in tree_leaves(out):
            is_tensor = isinstance(one, Tensor)
            if self.device.type == "mps" and is_tensor and one.dtype == torch.float64:
                raise TypeError(f"{name}: MPS has no float64")

    def _wait(self, what: str) -> None:
        frame, place = sys._getframe(), "elsewhere"
        while frame is not None:
            path = frame.f_code.co_filename
            if "/nacre/" in path and "/tests/" not in path:
                place = f"{path.rpartition('/nacre/')[2]}:{frame.f_lineno}"
                break
            frame = frame.f_back  # type: ignore[assignment]
        self.waits[what, place] += 1


def _of_channels(count: int) -> Callable[..., tuple[Tensor, ...]]:
    return lambda x, *_: tuple(x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(count))


_WITHOUT_RULE: dict[
    str, Callable[..., Any]
] = {  # operations for which torch has no rule for shapes
    "_fused_sgd_": lambda *_, **__: None,
    "_fused_adamw_": lambda *_, **__: None,
    "batch_norm_stats": _of_channels(2),
    "batch_norm_gather_stats_with_counts": _of_channels(2),
    "batch_norm_elemt": lambda x, *_: torch.empty_like(x),
    "batch_norm_backward_reduce": _of_channels(4),
    "batch_norm_backward_elemt": lambda dy, *_: torch.empty_like(dy),
}


_run_backward = torch.autograd._engine_run_backward


def _ones(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def _is_blocking(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether values go from the CPU's memory to the device at once: from pinned memory they need
    not, which `non_blocking` stands for."""
    if func is aten._to_copy.default:
        return not isinstance(args[0], FakeTensor) and not kwargs.get("non_blocking")
    if func is aten.copy_.default:
        from_cpu = not isinstance(args[1], FakeTensor) and isinstance(args[1], Tensor)
        flags = [*args[2:], kwargs.get("non_blocking", False)]
        return from_cpu and not flags[0]
    return False


def _is_checkpointing() -> bool:
    """Whether a forward pass runs again within the backward pass: autocast must see the device."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "unpack_hook" and code.co_filename == torch.utils.checkpoint.__file__:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _apply(module: nn.Module, change: Any, recurse: bool = True) -> nn.Module:
    """Do what `Module._apply` does, which swaps tensors; torch refuses to swap those here."""
    with torch.no_grad():
        for part in module.modules():
            for name, one in part._parameters.items():
                if one is not None:
                    part._parameters[name] = nn.Parameter(change(one), one.requires_grad)
            for name, one in part._buffers.items():
                if one is not None:
                    part._buffers[name] = change(one)
    return module


class _OpenedOnCpu:
    """A safetensors file that would be read straight to the device: read here, then moved."""

    opened = tensor_file.safe_open

    def __init__(self, path: Path, framework: str, device: str) -> None:
        self.file = _OpenedOnCpu.opened(path, framework=framework, device="cpu")
        self.device = device

    def __enter__(self) -> Any:
        self.file.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def get_tensor(self, name: str) -> Tensor:
        return self.file.get_tensor(name).to(self.device)


def _lend_guard(kind: str) -> None:
    """Give C++ a guard for the device that does nothing: the one of meta tensors."""
    library = next((Path(torch.__file__).parent / "lib").glob("libc10.*"))
    symbol = "_ZN3c104impl26device_guard_impl_registryE"
    guards = (ctypes.c_void_p * 15).in_dll(ctypes.CDLL(str(library)), symbol)
    if not guards[_DEVICE_TYPES[kind]]:
        guards[_DEVICE_TYPES[kind]] = guards[_DEVICE_TYPES["meta"]]


@contextlib.contextmanager
def fake_device(kind: str = "cuda", memory: int = 24 << 30) -> Iterator[FakeDevice]:
    """Feign one device of a kind with so much memory."""
    _lend_guard(kind)
    mode = FakeDevice(kind)
    facts = SimpleNamespace(total_memory=memory, major=8, multi_processor_count=108)
    untruths: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", lambda: kind == "cuda"),
        (torch.backends.mps, "is_available", lambda: kind == "mps"),
        (torch.cuda, "_lazy_init", lambda: None),
        (torch.cuda, "set_device", lambda _: None),
        (torch.cuda, "is_bf16_supported", lambda **_: True),
        (torch.cuda, "get_device_properties", lambda _=None: facts),
        (torch.cuda, "max_memory_allocated", lambda _=None: 0),
        (torch.cuda, "get_rng_state", lambda _=None: torch.zeros(16, dtype=torch.uint8)),
        (torch.cuda, "set_rng_state", lambda _state, _device=None: None),
        (FakeTensorMode, "avoid_device_init", property(lambda _: True)),
        (fake_tensor, "init_gpu_context", lambda _: None),
        (nn.Module, "_apply", _apply),
        (torch.autograd, "_engine_run_backward", mode.run_backward),
        (tensor_file, "safe_open", _OpenedOnCpu),
    ]
    with contextlib.ExitStack() as stack:
        for place, name, value in untruths:
            stack.enter_context(mock.patch.object(place, name, value))
        # torch.tensor(1.0, device="cuda") is to make a tensor on the CPU and to copy it then.
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        # What is kept from one call to the next belongs to one device.
        strips._interpolation.cache_clear()
        stack.callback(strips._interpolation.cache_clear)
        yield stack.enter_context(mode)
