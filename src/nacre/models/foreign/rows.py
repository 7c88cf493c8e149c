"""Rows of scoring layers: one per class, whatever the layer's type, read and replaced in place.

With b the background, n new classes and w, beta the rows and biases of the scoring layer:

    eq. 8   w[c] = w_old[b]                          for every new c
    eq. 9   beta[c] = beta_old[b] - log(n + 1)       for every new c and for b

and for a network without a background

    w[c] = mean of w_old,   beta[c] = mean of beta_old - log(n)

Where several layers add up to the scores, each gets the rows and one of them the logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from nacre.models.foreign.scoring_layers import ScoringLayer, Summands, num_rows, scoring_layer

Init = Literal["background", "random"]


def widen_sum(
    model: nn.Module, summands: Summands, num_new: int, background: int | None, init: Init
) -> None:
    """Add rows to the layers that add up to one tensor of scores."""
    layers = {name: scoring_layer(model, name) for name in summands}
    # eq. 9 needs a bias: where no layer has one, the first gets it
    taker = next((name for name, one in layers.items() if one.bias is not None), next(iter(layers)))
    if layers[taker].bias is None:
        zeros = layers[taker].weight.new_zeros(num_rows(layers[taker]))
        layers[taker].bias = nn.Parameter(zeros)
    log = math.log(num_new if background is None else num_new + 1)
    for name, layer in layers.items():
        weight, bias = rows_of(layer)
        if init == "random":
            weight, bias = random_rows(weight, bias, num_new)
        else:
            share = log / summands[name] if name == taker else 0.0
            weight, bias = start_rows(weight, bias, num_new, background=background, share=share)
        set_rows(layer, weight, bias)


def start_rows(
    weight: Tensor, bias: Tensor | None, num_new: int, *, background: int | None, share: float
) -> tuple[Tensor, Tensor | None]:
    """Return weights and biases with new rows, eq. 8 and 9 or their counterpart without background.

    Args:
        weight: C,... with a row per class.
        bias: C; None where the layer has none.
        num_new: rows to add.
        background: the row that the new ones are like; None takes the mean of all.
        share: what is taken from the biases of the new rows and of the background.
    """
    like = weight.mean(0) if background is None else weight[background]
    weight = torch.cat([weight, like.expand(num_new, *like.shape)])
    if bias is None:
        return weight, None
    bias = bias.clone()
    if background is None:
        start = bias.mean() - share
    else:
        bias[background] -= share
        start = bias[background]
    return weight, torch.cat([bias, start.expand(num_new)])


def random_rows(weight: Tensor, bias: Tensor | None, num_new: int) -> tuple[Tensor, Tensor | None]:
    """Return weights and biases with new rows as torch draws those of a new layer."""
    bound = 1 / math.sqrt(weight[0].numel())

    def drawn(like: Tensor) -> Tensor:
        return nn.init.uniform_(like.new_empty(num_new, *like.shape[1:]), -bound, bound)

    wider = torch.cat([weight, drawn(weight)])
    return wider, None if bias is None else torch.cat([bias, drawn(bias)])


def rows_of(layer: ScoringLayer) -> tuple[Tensor, Tensor | None]:
    """Return a layer's weights with the classes first, and its biases."""
    weight = layer.weight.detach()
    if isinstance(layer, nn.ConvTranspose2d):
        weight = weight.transpose(0, 1)
    return weight, None if layer.bias is None else layer.bias.detach()


def set_rows(layer: ScoringLayer, weight: Tensor, bias: Tensor | None) -> None:
    """Replace a layer's weights, given with the classes first, and its biases."""
    if isinstance(layer, nn.ConvTranspose2d):
        weight = weight.transpose(0, 1)
    layer.weight = nn.Parameter(weight.contiguous(), layer.weight.requires_grad)
    if bias is not None:
        wants = layer.weight if layer.bias is None else layer.bias
        layer.bias = nn.Parameter(bias, wants.requires_grad)
    count_rows(layer)


def count_rows(layer: ScoringLayer) -> None:
    """Let a layer say how many rows its weights have."""
    count = len(rows_of(layer)[0])
    if isinstance(layer, nn.Linear):
        layer.out_features = count
    else:
        layer.out_channels = count


def fit_layers(model: nn.Module, names: Sequence[str], state: dict[str, Tensor]) -> None:
    """Give scoring layers the shapes that they have in a state, so that it can be loaded.

    Args:
        model: the network as it is built, before it was widened.
        names: of its scoring layers.
        state: of the widened network.
    """
    for name in names:
        layer = scoring_layer(model, name)
        for key in ("weight", "bias"):
            if f"{name}.{key}" in state:
                shape = state[f"{name}.{key}"].shape
                setattr(layer, key, nn.Parameter(layer.weight.new_empty(shape)))
        count_rows(layer)
