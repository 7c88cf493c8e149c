"""The classifier: rows of each step, a 1x1 convolution, whose channels stand side by side.

Channel 0 is the background. A new step adds rows and leaves those of the steps before as they
are, unless they start from what its classes split from (`nacre.labels.channels.Growth`). With C
the new classes and background b, which all of them split from in the paper:

    eq. 8   w[c] = w_old[b]                 for c in C
    eq. 9   beta[c] = beta_old[b] - log|C|  for c in C

so that each of C gets an equal share of the probability that the teacher gives to b, and the
probability of the old classes does not change.

Two more rows can be asked for by methods that learn them; they are no classes:

    unknown     what stands in the background and is no class yet (SSUL); for inference it counts as
                background
    auxiliary   a row that learns to call every pixel negative, from which new rows start (DKD); its
                gradient stops at the features

With branches (SSUL), the rows of every step have a 3x3 convolution of their own before them.
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
    """Share the probability of K rows evenly with N new classes that split from them, eq. 8 and 9.

    Returns:
        The new classes' weights (N,...), their biases (N), and the biases of the K rows (whose
        weights stay). None of them shares memory or a graph with the arguments.
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
    """Rows with features of their own: a 3x3 convolution, batch norm and ReLU before them."""

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
    """Logits of all known classes from the decoder's features.

    Args:
        in_channels: channels of the decoder's features.
        classes_per_step: channels of each step, those of step 0 with the background.
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
        """Channels of each step."""
        return [rows.out_channels for rows in self._convs()]

    @property
    def num_classes(self) -> int:
        """Channels of all steps, the background's included."""
        return sum(self.classes_per_step)

    @property
    def has_branches(self) -> bool:
        """True if rows have features of their own."""
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
        """Give all channels new rows K,D and biases K."""
        first = 0
        for rows in self._convs():
            mine = slice(first, first + rows.out_channels)
            rows.weight.copy_(weight[mine, :, None, None])
            _bias(rows).copy_(bias[mine])
            first = mine.stop

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all steps, in the order of the steps."""
        return torch.cat([rows(x) for rows in self.rows], dim=1)

    def score_extra(self, x: Tensor) -> dict[ExtraRow, Tensor]:
        """Return the logits N,1,h,w of the rows that are no classes, in float32 at least."""
        found: dict[ExtraRow, Tensor] = {}
        if self.unknown is not None:
            found["unknown"] = at_least_float32(self.unknown(x))
        if self.auxiliary is not None:
            found["auxiliary"] = at_least_float32(self.auxiliary(x.detach()))
        return found

    def add_row(self, name: ExtraRow) -> None:
        """Add a row that is no class, randomly initialized, unless it is there."""
        if getattr(self, name) is None:
            setattr(self, name, self._make_rows(1))

    def keep_rows(self, names: frozenset[ExtraRow]) -> None:
        """Drop the rows that are no classes, but for these."""
        for name in EXTRA_ROWS:
            if name not in names:
                setattr(self, name, None)

    def add_branches(self) -> None:
        """Give the rows of the only step features of their own; they start anew."""
        assert len(self.rows) == 1, "branches are there from step 0 on or not at all"
        if not self.has_branches:
            self.rows[0] = self._place(Branch(self.in_channels, self.classes_per_step[0]))

    def grow(self, num_new: int) -> None:
        """Add randomly initialized channels for so many new classes."""
        assert num_new > 0, num_new
        self.rows.append(self._make_rows(num_new))

    @torch.no_grad()
    def grow_from_origins(self, new_origins: Sequence[int]) -> None:
        """Add channels that start as even shares of those that they split from, eq. 8 and 9."""
        every = slice(None)
        weight = self.weight(every)
        new, new_bias, shared = split_rows(weight, self.bias(every), new_origins)
        self.grow(len(new_origins))
        self.set_rows(torch.cat([weight, new]), torch.cat([shared, new_bias]))

    @torch.no_grad()
    def grow_from(self, name: ExtraRow, num_new: int) -> None:
        """Add channels that start as copies of a row that is no class, its branch included."""
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
        """Take the form of a saved classifier, given the names of its tensors."""
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
