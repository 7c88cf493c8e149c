"""Others' batch norms in two processes equal one process with the whole batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.foreign.adapter import Adapter
from nacre.models.foreign.batch_norm import synchronize_batch_norm


class NormAct(nn.BatchNorm2d):
    """As timm's: calls `F.batch_norm` itself and activates."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias,
            self.training, 0.2, self.eps,
        )  # fmt: skip
        return F.silu(y)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4, momentum=0.3),
        nn.ReLU(),
        NormAct(4),
        nn.BatchNorm2d(4, momentum=None),
        nn.BatchNorm2d(4, affine=False),
        nn.BatchNorm2d(4, track_running_stats=False),
        nn.Flatten(2),
        nn.BatchNorm1d(4),
        nn.Dropout(0),
    )


def images() -> Tensor:
    return 2 + 3 * torch.randn(5, 3, 6, 7, generator=torch.Generator().manual_seed(1))


def trained(module: nn.Module, x: Tensor) -> dict[str, Any]:
    """Gradients and buffers of two steps; the loss is a sum, so that it needs no weighting."""
    x = x.clone().requires_grad_()
    for _ in range(2):
        y = module(x)
        (y * torch.linspace(-1, 2, y.shape[-1])).sum().backward()
    assert x.grad is not None
    found = {"y": y, "dx": x.grad}
    found |= {f"d {name}": one.grad for name, one in module.named_parameters()}
    found |= dict(module.named_buffers())
    return {name: value.detach().numpy().copy() for name, value in found.items()}


def _share(rank: int) -> dict[str, Any]:
    """What one of two processes finds with its part, of unequal sizes."""
    module = network()
    synchronize_batch_norm(module)
    result = trained(module, images()[:2] if rank == 0 else images()[2:])
    alone = copy.deepcopy(module).eval()
    if rank == 0:  # in eval nobody waits for the other process
        result["eval"] = alone(images()).detach().numpy()
    return result


@pytest.mark.slow
def test_two_processes_equal_one(in_two_processes: Callable[..., Any]) -> None:
    module = network()
    whole = trained(module, images())
    first, second = in_two_processes(_share)
    expected = module.eval()(images()).detach().numpy()
    np.testing.assert_allclose(first.pop("eval"), expected, rtol=1e-4, atol=1e-4)
    for key, value in whole.items():
        if key in ("y", "dx"):
            found = np.concatenate([first[key], second[key]])
        else:
            found = first[key] + second[key] if key.startswith("d ") else first[key]
        np.testing.assert_allclose(found, value, rtol=2e-4, atol=2e-4, err_msg=key)


def test_one_process_is_as_it_was_and_names_stay() -> None:
    plain, module = network(), network()
    synchronize_batch_norm(module)
    synchronize_batch_norm(module)
    assert isinstance(module[3], NormAct)  # type: ignore[index]
    assert list(module.state_dict()) == list(plain.state_dict())
    found = trained(module, images())
    for name, value in trained(plain, images()).items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


class Own(nn.Module):
    """A norm that is nobody's: it would silently not be synchronised."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("running_mean", torch.zeros(3))


class Frozen(nn.Module):
    """As torchvision's FrozenBatchNorm2d: buffers alone, which never change."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.zeros(3))


def test_what_cannot_be_synchronised_is_refused_with_a_reason() -> None:
    with pytest.raises(NacreError, match=r"1 \(Own\) keeps statistics of batches"):
        synchronize_batch_norm(nn.Sequential(nn.Identity(), Own()))
    with pytest.raises(NacreError, match="0 is torch's SyncBatchNorm, which computes on GPUs only"):
        synchronize_batch_norm(nn.Sequential(nn.SyncBatchNorm(3)))
    synchronize_batch_norm(
        nn.Sequential(Frozen(), nn.InstanceNorm2d(3, affine=True, track_running_stats=True))
    )


class Decoder(nn.Module):
    """As SegFormer's: tokens become a map whose channels lie side by side, then a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 4), nn.BatchNorm2d(4, momentum=1.0)
        self.score = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.linear(x.flatten(2).transpose(1, 2))
        return self.score(self.norm(tokens.transpose(1, 2).reshape(len(x), 4, *x.shape[2:])))


def test_statistics_of_a_map_that_lies_channels_last_keep_their_digits() -> None:
    """Summed one after the other in float32 the variance of so many values is off by 6e-4."""
    torch.manual_seed(0)
    model = Decoder()
    adapter = Adapter(model, images=torch.randn(1, 3, 16, 16)).train()
    pictures = torch.randint(0, 256, (2, 3, 800, 800), dtype=torch.uint8)
    seen: list[Tensor] = []
    model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    adapter(pictures)
    expected = seen[0].detach().double().transpose(0, 1).flatten(1).var(1)
    torch.testing.assert_close(model.norm.running_var.double(), expected, rtol=3e-6, atol=0)
