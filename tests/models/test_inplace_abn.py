"""In-place ABN against batch norm + leaky ReLU with the scale |weight| + eps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from nacre.models import inplace_abn
from nacre.models.abn import Activation
from nacre.models.inplace_abn import InPlaceABN

WEIGHT = (1.5, -0.7, 0.0, 0.2)  # of either sign, and 0
BIAS = (-0.3, 0.1, 0.5, 0.0)


def make(activation: Activation = "leaky_relu") -> InPlaceABN:
    norm = InPlaceABN(4, activation=activation)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor(WEIGHT))
        norm.bias.copy_(torch.tensor(BIAS))
    return norm


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return 2 + 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Plain(nn.Module):
    """The same function, differentiated by autograd."""

    def __init__(self, norm: InPlaceABN) -> None:
        super().__init__()
        self.load = nn.BatchNorm2d(4)
        self.load.load_state_dict(norm.state_dict())
        self.slope = norm.slope if norm.activation == "leaky_relu" else 1.0

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        bn = self.load
        if self.training and bn.num_batches_tracked is not None:
            bn.num_batches_tracked.add_(1)
        # as the original: the sign of 0 is +
        gain = torch.where(bn.weight < 0, -bn.weight, bn.weight) + 1e-5
        y = F.batch_norm(x, bn.running_mean, bn.running_var, gain, bn.bias, self.training)
        return F.leaky_relu(y if shortcut is None else y + shortcut, self.slope)


def train(norm: nn.Module, state: Any, x: Tensor, shortcut: Tensor | None) -> dict[str, Any]:
    x = x.clone().requires_grad_()
    shortcut = None if shortcut is None else shortcut.clone().requires_grad_()
    factors = torch.linspace(-1, 2, 30).view(5, 6)
    for _ in range(2):
        y = norm(x, shortcut)
        (y * factors).sum().backward()
    values = {"y": y, "dx": x.grad, "dweight": state.weight.grad, "dbias": state.bias.grad}
    values |= {} if shortcut is None else {"dshortcut": shortcut.grad}
    values |= state.state_dict()
    return {name: value.detach().numpy().copy() for name, value in values.items()}


@pytest.mark.parametrize("native", [True, False], ids=["kernel", "formula"])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("activation", ["leaky_relu", "identity"])
def test_outputs_gradients_and_statistics(
    activation: Activation, add: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(inplace_abn, "_NATIVE", ())
    x, shortcut = pixels(3, 4, 5, 6), pixels(3, 4, 5, 6, seed=1) if add else None
    plain, own = Plain(make(activation)), make(activation)
    expected = train(plain, plain.load, x, shortcut)
    got = train(own, own, x, shortcut)
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        # The scale of channel 2 is eps: digits of its normalised input are lost in y.
        tolerance = 0.05 if key == "dweight" else 1e-4
        np.testing.assert_allclose(got[key], value, rtol=tolerance, atol=tolerance, err_msg=key)
        if key == "dweight":
            chosen = [0, 1, 3]
            np.testing.assert_allclose(got[key][chosen], value[chosen], rtol=1e-4)


@pytest.mark.parametrize("native", [True, False], ids=["kernel", "formula"])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("activation", ["leaky_relu", "identity"])
def test_gradients_in_float64(
    activation: Activation, add: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(inplace_abn, "_NATIVE", ())
    norm = make(activation).double()
    weight = torch.tensor([1.5, -0.7, 0.4, 0.2], dtype=torch.float64, requires_grad=True)
    x = pixels(2, 4, 2, 3).double().requires_grad_()
    shortcuts = [pixels(2, 4, 2, 3, seed=1).double().requires_grad_()] if add else []

    def call(weight: Tensor, bias: Tensor, x: Tensor, *shortcuts: Tensor) -> Tensor:
        y: Tensor = functional_call(norm, {"weight": weight, "bias": bias}, (x, *shortcuts))
        return y

    assert torch.autograd.gradcheck(call, (weight, norm.bias, x, *shortcuts))


def test_eval_uses_the_running_statistics() -> None:
    norm = make()
    plain = Plain(norm)
    norm(pixels(3, 4, 5, 6))
    plain(pixels(3, 4, 5, 6))
    x = pixels(1, 4, 1, 1, seed=2)
    torch.testing.assert_close(norm.eval()(x), plain.eval()(x))


def test_only_the_output_is_kept() -> None:
    """A chain of convolutions and norms with a shortcut keeps what the convolutions read."""
    first, second = (nn.Conv2d(4, 4, 1) for _ in range(2))
    norms = make(), make()
    kept: set[int] = set()
    held: list[Tensor] = []

    def keep(value: Tensor) -> Tensor:
        if value.shape == x.shape:
            held.append(value)
            kept.add(value.untyped_storage().data_ptr())
        return value

    x = pixels(2, 4, 8, 8).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        y = norms[0](first(x))
        z = norms[1](second(y), x)
    assert kept == {value.untyped_storage().data_ptr() for value in (x, y, z)}


def test_what_it_keeps_must_not_be_changed() -> None:
    y = make()(pixels(2, 4, 3, 3).requires_grad_())
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("add", [False, True])
def test_bfloat16_as_under_autocast(add: bool) -> None:
    """Input in half precision, parameters in float32; gradients within its 3 digits."""
    x = pixels(4, 4, 8, 8).bfloat16()
    shortcut = 10 * pixels(4, 4, 8, 8, seed=1).bfloat16() if add else None
    exact = make()
    with torch.no_grad():
        exact.weight[2] = 0.4
    norm = make()
    norm.load_state_dict(exact.state_dict())
    factors = torch.randn(4, 4, 8, 8, generator=torch.Generator().manual_seed(5))
    grads = []
    for layer, dtype in ((exact, torch.float32), (norm, torch.bfloat16)):
        leaf = x.to(dtype).requires_grad_()
        y = layer(leaf, None if shortcut is None else shortcut.to(dtype))
        assert y.dtype == dtype
        (y.float() * factors).sum().backward()
        assert leaf.grad is not None
        grads.append((leaf.grad.float(), layer.weight.grad, layer.bias.grad))
    for got, expected in zip(grads[1], grads[0], strict=True):
        assert (got - expected).norm() < 0.02 * expected.norm()


@pytest.mark.parametrize("mixed", [False, True])
def test_channels_last(mixed: bool) -> None:
    """Also where the gradient comes in the other layout."""
    grads = []
    for layout in (torch.contiguous_format, torch.channels_last):
        norm = make()
        x = pixels(2, 4, 5, 6).to(memory_format=layout).requires_grad_()
        y = norm(x, pixels(2, 4, 5, 6, seed=1).to(memory_format=layout))
        assert y.is_contiguous(memory_format=layout)
        dy = pixels(2, 4, 5, 6, seed=2)
        y.backward(dy if mixed else dy.to(memory_format=layout))
        assert x.grad is not None
        grads.append((y, x.grad, norm.bias.grad))
    for first, second in zip(*grads, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)
