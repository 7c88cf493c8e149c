"""What a kind of network is, and what all foreign ones share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import nn

from nacre.models.config import ModelConfig
from nacre.models.foreign.adapter import Adapter, Pixels
from nacre.models.network import Network
from nacre.utils.config import Config

Channel = Annotated[int, Field(ge=0, le=100_000)]


@dataclass(frozen=True)
class Kind:
    """A kind of network; an entry point of the group ``nacre.models`` is one too.

    Attributes:
        config: what can be said about it.
        build: makes it, from its config, the channels of each step that has been learnt (step 0's
            with the background), the side of the training crops, and whether to load its weights.
            The network's `config` says how to build it again without files or downloads.
        summary: for people.
        make: for a network of another library: makes the library's module alone, of so many
            classes, with random weights and without running it. `build` puts an adapter around it.
    """

    config: type[ModelConfig]
    build: Callable[[Any, Sequence[int], int | None, bool], Network]
    summary: str
    make: Callable[[Any, int], nn.Module] | None = None


class PixelsConfig(Config):
    """What a network expects of its pixels."""

    mean: tuple[float, float, float] | None = Field(
        default=None,
        description="subtracted from RGB in 0..1; null leaves pixels in 0..255, for a network that "
        "normalises them itself",
    )
    std: tuple[float, float, float] = Field(
        default=(1.0, 1.0, 1.0), description="what they are divided by"
    )


class ForeignConfig(ModelConfig):
    """What can be said about any network of another library."""

    background: Channel | None = Field(
        default=0,
        description="channel of the background in the network's own scores; null for a network "
        "that has none, which can be started from but not learnt from nothing",
    )
    head: tuple[str, ...] = Field(
        default=(), description="names of the layers that score the classes, if they are not found"
    )
    stages: tuple[str, ...] = Field(
        default=(),
        description="names of modules whose features methods may compare, the first ones first",
    )
    pixels: PixelsConfig | None = Field(
        default=None, description="normalisation of pixels; by default its own, or ImageNet's"
    )


def num_outputs(config: ForeignConfig, classes_per_step: Sequence[int]) -> int:
    """Return how many classes the network itself scores in step 0."""
    return classes_per_step[0] - (config.background is None)


def adapt(
    model: nn.Module,
    config: ForeignConfig,
    classes_per_step: Sequence[int],
    *,
    pixels: Pixels | None = None,
    divisor: int | None = None,
) -> Adapter:
    """Put a foreign network between nacre's images and outputs, as large as its steps made it.

    Args:
        model: with the channels of step 0; it becomes one of float32 if it is of another precision.
        config: what is said about it; the network's own says how to build it again.
        classes_per_step: channels of each step that has been learnt.
        pixels: what it expects of its pixels, if the config does not say so.
        divisor: sides of images must be multiples of it; None tries which sizes it takes.
    """
    if any(one.is_floating_point() and one.dtype != torch.float32 for one in model.parameters()):
        # Losses and updates are of float32; train.precision computes in half.
        model = model.float()
    if config.pixels is not None:
        pixels = Pixels(config.pixels.mean, config.pixels.std)
    pixels = pixels or Pixels()
    adapter = Adapter(
        model,
        background=config.background,
        head=config.head or None,
        pixels=pixels,
        stages=config.stages,
        divisor=divisor,
    )
    found = PixelsConfig(mean=pixels.mean, std=pixels.std)
    adapter.config = config.model_copy(update={"pixels": found})
    for num_new in classes_per_step[1:]:
        adapter.grow(num_new, "random")
    return adapter
