"""The classifier: 1x1 convolutions with the rows of each step, whose channels are concatenated.

Channel 0 is the background. A new step appends rows and does not change those of earlier steps,
unless the new rows start from what their classes split from (`nacre.labels.channels.Growth`). With
the new classes C and the background b, from which all of them split in the paper:

    eq. 8   w[c] = w_old[b]                 for c in C
    eq. 9   beta[c] = beta_old[b] - log|C|  for c in C

so that each of C gets an equal share of the probability that the teacher assigns to b, and the
probability of the old classes does not change.

Methods can add two rows that are not classes:

    unknown     objects in the background that are not a class yet (SSUL); for inference it counts
                as background
    auxiliary   a row that learns to score every pixel as negative, from which new rows start
                (DKD); its gradient stops at the features

With branches (SSUL), the rows of every step have their own 3x3 convolution before them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from nacre.losses.reference import at_least_float32
from nacre.models.norm import ABN


def split_rows(
    weight: Tensor, bias: Tensor, new_origins: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Divide the probability of K rows evenly among them and N new classes, by eq. 8 and 9.

    Returns:
        The new weights (N,...), the new biases (N), and the biases of the K rows, whose weights do
        not change. None of them shares memory or a graph with the arguments.
    """
    assert new_origins
    weight, shared = weight.detach(), bias.detach().clone()
    for origin in set(new_origins):
        shared[origin] -= math.log(new_origins.count(origin) + 1)
    rows = list(new_origins)
    return weight[rows], shared[rows], shared


ExtraRow = Literal["unknown", "auxiliary"]
EXTRA_ROWS: tuple[ExtraRow, ...] = get_args(ExtraRow)


class Branch(nn.Module):
    """Rows with their own features: a 3x3 convolution, batch norm and ReLU come before them."""

    def __init__(self, in_channels: int, num_rows: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, in_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv.weight)
        self.bn = ABN(in_channels, activation="relu")
        self.score = nn.Conv2d(in_channels, num_rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of the rows."""
        y: Tensor = self.score(self.bn(self.conv(x)))
        return y


class Classifier(nn.Module):
    """Computes the logits of all known classes from the decoder's features.

    Args:
        in_channels: channels of the decoder's features.
        classes_per_step: channels of each step; step 0's include the background.
    """

    def __init__(self, in_channels: int, classes_per_step: list[int]) -> None:
        super().__init__()
        assert min(classes_per_step, default=0) > 0, classes_per_step
        self.in_channels = in_channels
        self.rows = nn.ModuleList(nn.Conv2d(in_channels, count, 1) for count in classes_per_step)
        self.unknown: nn.Module | None = None
        self.auxiliary: nn.Module | None = None

    @property
    def classes_per_step(self) -> list[int]:
        """The number of channels of each step."""
        return [rows.out_channels for rows in self._convs()]

    @property
    def num_classes(self) -> int:
        """The number of channels of all steps, including the background."""
        return sum(self.classes_per_step)

    @property
    def has_branches(self) -> bool:
        """True if rows have their own features."""
        return isinstance(self.rows[0], Branch)

    def weight(self, channels: slice) -> Tensor:
        """Return the rows of some channels, K,D; gradients flow through them."""
        rows = torch.cat([rows.weight.flatten(1) for rows in self._convs()])
        return rows[channels]

    def bias(self, channels: slice) -> Tensor:
        """Return the biases of some channels, K; gradients flow through them."""
        return torch.cat([_bias(rows) for rows in self._convs()])[channels]

    @torch.no_grad()
    def set_rows(self, weight: Tensor, bias: Tensor) -> None:
        """Set the rows K,D and biases K of all channels."""
        first = 0
        for rows in self._convs():
            channels = slice(first, first + rows.out_channels)
            rows.weight.copy_(weight[channels, :, None, None])
            _bias(rows).copy_(bias[channels])
            first = channels.stop

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all steps, in the order of the steps."""
        return torch.cat([rows(x) for rows in self.rows], dim=1)

    def score_extra(self, x: Tensor) -> dict[ExtraRow, Tensor]:
        """Return the logits N,1,h,w of the rows that are not classes, in float32 or more."""
        logits: dict[ExtraRow, Tensor] = {}
        if self.unknown is not None:
            logits["unknown"] = at_least_float32(self.unknown(x))
        if self.auxiliary is not None:
            logits["auxiliary"] = at_least_float32(self.auxiliary(x.detach()))
        return logits

    def add_row(self, name: ExtraRow) -> None:
        """Add a random row that is not a class, unless it exists."""
        if getattr(self, name) is None:
            setattr(self, name, self._make_rows(1))

    def keep_rows(self, names: frozenset[ExtraRow]) -> None:
        """Remove the rows that are not classes, except these."""
        for name in EXTRA_ROWS:
            if name not in names:
                setattr(self, name, None)

    def add_branches(self) -> None:
        """Replace the rows of the only step by random ones with their own features."""
        assert len(self.rows) == 1, "branches are added in step 0"
        if not self.has_branches:
            self.rows[0] = self._place(Branch(self.in_channels, self.classes_per_step[0]))

    def grow(self, num_new: int) -> None:
        """Append random channels for new classes."""
        assert num_new > 0, num_new
        self.rows.append(self._make_rows(num_new))

    @torch.no_grad()
    def grow_from_origins(self, new_origins: Sequence[int]) -> None:
        """Append channels that start as shares of those that they split from, by eq. 8 and 9."""
        weight, bias = self.weight(slice(None)), self.bias(slice(None))
        new, new_bias, shared = split_rows(weight, bias, new_origins)
        self.grow(len(new_origins))
        self.set_rows(torch.cat([weight, new]), torch.cat([shared, new_bias]))

    @torch.no_grad()
    def grow_from(self, name: ExtraRow, num_new: int) -> None:
        """Append channels that start as copies of a row that is not a class, with its branch."""
        source = getattr(self, name)
        assert source is not None, f"the classifier has no row {name!r}"
        rows = self._make_rows(num_new)
        if isinstance(rows, Branch):
            rows.conv, rows.bn = copy.deepcopy(source.conv), copy.deepcopy(source.bn)
        conv, row = _conv_of(rows), _conv_of(source)
        conv.weight.copy_(row.weight.expand_as(conv.weight))
        _bias(conv).copy_(_bias(row).expand(num_new))
        self.rows.append(rows)

    def match_state(self, names: Iterable[str]) -> None:
        """Add the branches and rows of a saved classifier, given the names of its tensors."""
        names = list(names)
        if "rows.0.score.weight" in names and not self.has_branches:
            classes_per_step = self.classes_per_step
            self.rows = nn.ModuleList(
                self._place(Branch(self.in_channels, count)) for count in classes_per_step
            )
        for row in EXTRA_ROWS:
            if any(name.startswith(f"{row}.") for name in names):
                self.add_row(row)

    def _make_rows(self, num_rows: int) -> nn.Module:
        if self.has_branches:
            return self._place(Branch(self.in_channels, num_rows))
        return self._place(nn.Conv2d(self.in_channels, num_rows, 1))

    def _place(self, module: nn.Module) -> nn.Module:
        return module.to(self._convs()[0].weight)

    def _convs(self) -> list[nn.Conv2d]:
        return [_conv_of(rows) for rows in self.rows]


def _conv_of(rows: nn.Module) -> nn.Conv2d:
    conv = rows.score if isinstance(rows, Branch) else rows
    assert isinstance(conv, nn.Conv2d)
    return conv


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias
