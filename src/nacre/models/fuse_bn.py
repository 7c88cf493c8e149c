"""Networks for inference only: normalisation fused into the convolutions before it.

In eval a norm is an affine map of each channel, y = a * x + b with

    a = g / sqrt(running_var + eps),  b = bias - a * running_mean

(g is the norm's scale). After a convolution with weight W it is the convolution a * W with
bias b. What remains of the norm is its activation.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from nacre.models.abn import ABN, Activation, activate_
from nacre.models.deeplab import DeepLab
from nacre.models.head import DeepLabHead


class Activate(nn.Module):
    """What remains of a norm: adds the shortcut of a residual block if there is one, activates."""

    def __init__(self, activation: Activation, slope: float) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.slope = slope

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Return the activated sum."""
        return activate_(x if shortcut is None else x + shortcut, self.activation, self.slope)


@torch.no_grad()
def fuse_conv_bn(network: DeepLab) -> DeepLab:
    """Return a copy for inference that gives what the network gives in eval, with fewer layers.

    The copy cannot be trained: none of its parameters takes a gradient.
    """
    fused = copy.deepcopy(network).eval().requires_grad_(False)
    if isinstance(fused.head, DeepLabHead):
        _fuse_head(fused.head)
    for conv, norm, name in _pairs(fused):
        scale, shift = _affine(norm)
        _scale(conv, scale, shift)
        fused.set_submodule(name, _rest(norm))
    return fused


def _affine(norm: ABN) -> tuple[Tensor, Tensor]:
    # in float64, so that fusing rounds each weight only once
    scale = norm.gain().double() * (norm.running_var.double() + norm.eps).rsqrt()
    return scale, norm.bias.double() - scale * norm.running_mean.double()


def _scale(conv: nn.Conv2d, scale: Tensor, shift: Tensor | None) -> None:
    conv.weight.copy_(conv.weight.double() * scale[:, None, None, None])
    bias = scale * conv.bias.double() if conv.bias is not None else None
    if shift is not None:
        bias = shift if bias is None else bias + shift
    if bias is not None:
        conv.bias = nn.Parameter(bias.to(conv.weight.dtype), requires_grad=False)


def _rest(norm: ABN) -> Activate:
    return Activate(norm.activation, norm.slope)


def _pairs(network: DeepLab) -> list[tuple[nn.Conv2d, ABN, str]]:
    """Find each norm that takes exactly what a convolution puts out, by watching a forward pass."""
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    pairs: list[tuple[nn.Conv2d, ABN, str]] = []
    names = {module: name for name, module in network.named_modules()}

    def after_conv(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        made[id(output)] = (module, output)  # held, so that no other tensor gets its id

    def before_norm(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, ABN)
        if id(args[0]) in made:
            pairs.append((made[id(args[0])][0], module, names[module]))

    hooks = [m.register_forward_hook(after_conv) for m in names if isinstance(m, nn.Conv2d)]
    hooks += [m.register_forward_pre_hook(before_norm) for m in names if isinstance(m, ABN)]
    network(torch.zeros(1, 3, 32, 32, device=network.pixel_scale.device))
    for hook in hooks:
        hook.remove()
    return pairs


def _fuse_head(head: DeepLabHead) -> None:
    """Fold the two norms of the head that follow a concatenation and a sum."""
    scale, shift = _affine(head.branches_norm)
    parts = zip(scale.chunk(4), shift.chunk(4), strict=True)
    for branch, (part_scale, part_shift) in zip(head.branches, parts, strict=True):
        assert isinstance(branch, nn.Conv2d)
        _scale(branch, part_scale, part_shift)
    scale, shift = _affine(head.norm)
    _scale(head.reduce, scale, shift)
    _scale(head.pooled_reduce, scale, None)
    head.set_submodule("branches_norm", _rest(head.branches_norm))
    head.set_submodule("norm", _rest(head.norm))
