"""The classifier: one 1x1 convolution a step, whose outputs stand side by side.

Channel 0 is the background. A new step adds a convolution and leaves the channels of the
steps before as they are, unless it starts from the background (eq. 8, 9): then the background
shares its probability evenly with the new classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nacre.models.initialization import split_background


class Classifier(nn.Module):
    """Logits of all known classes from the head's output.

    Args:
        inputs: channels of the head's output.
        classes: channels of each step, those of step 0 with the background.
    """

    def __init__(self, inputs: int, classes: list[int]) -> None:
        super().__init__()
        assert min(classes, default=0) > 0, classes
        self.inputs = inputs
        self.steps = nn.ModuleList(nn.Conv2d(inputs, count, 1) for count in classes)

    @property
    def classes(self) -> list[int]:
        """Channels of each step."""
        return [step.out_channels for step in self._convs()]

    @property
    def num_classes(self) -> int:
        """Channels of all steps, the background's included."""
        return sum(self.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of all steps, in the order of the steps."""
        return torch.cat([step(x) for step in self.steps], dim=1)

    def grow(self, new: int) -> None:
        """Add randomly initialised channels for so many new classes."""
        assert new > 0, new
        step = nn.Conv2d(self.inputs, new, 1)
        self.steps.append(step.to(self._background().weight))

    @torch.no_grad()
    def grow_from_background(self, new: int) -> None:
        """Add channels that start as even shares of the background, eq. 8 and 9."""
        self.grow(new)
        background, step = self._background(), self._convs()[-1]
        weight, bias, shared = split_background(_row(background.weight), _row(background.bias), new)
        step.weight.copy_(weight)
        _bias(step).copy_(bias)
        _bias(background)[0] = shared

    def _convs(self) -> list[nn.Conv2d]:
        convs = [step for step in self.steps if isinstance(step, nn.Conv2d)]
        assert len(convs) == len(self.steps)
        return convs

    def _background(self) -> nn.Conv2d:
        return self._convs()[0]


def _row(values: Tensor | None) -> Tensor:
    assert values is not None
    return values[0]


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias
