"""Making a network from its config: the table of kinds, and those of installed packages.

A kind from another package joins through the entry point group ``nacre.models`` (name = the kind,
object = a `Kind`). It is imported when it is asked for by name: one that is broken breaks only
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from nacre.errors import check, unknown_name
from nacre.models import deeplab, external
from nacre.models.config import DeepLabConfig, ExternalConfig, ModelConfig
from nacre.models.network import Network
from nacre.utils.system import load_registered, registered

OWN = "deeplab"
"""The kind of our own networks, and what a config means that names none."""


@dataclass(frozen=True)
class Kind:
    """A kind of network; an entry point of the group ``nacre.models`` is one too.

    Attributes:
        config: what can be said about it.
        build: makes it, from its config, the channels of each step that has been learned (step 0's
            with the background), the side of the training crops, and whether to load its weights.
            The network's `config` says how to build it again without files or downloads.
        summary: for people.
        make: for a network in an adapter: makes the library's module alone, of so many classes,
            with random weights and without running it. `build` puts an adapter around it.
    """

    config: type[ModelConfig]
    build: Callable[[Any, Sequence[int], int | None, bool], Network]
    summary: str
    make: Callable[[Any, int], nn.Module] | None = None


KINDS: dict[str, Kind] = {
    OWN: Kind(DeepLabConfig, deeplab.build, "ours: a backbone, a decoder and growing rows"),
    "external": Kind(
        ExternalConfig,
        external.build,
        "a network for segmentation of transformers, smp or torchvision",
        external.make,
    ),
}


def find_kind(name: str) -> Kind:
    """Return a kind of networks by name.

    Raises:
        NacreError: there is none, or the package that brings it is broken.
    """
    if name in KINDS:
        return KINDS[name]
    others = registered("nacre.models", KINDS)
    if name not in others:
        raise unknown_name("model.kind", name, {*KINDS, *others})
    kind: Kind = load_registered(
        others[name], "model.kind", "Kind", lambda found: isinstance(found, Kind)
    )
    return kind


def is_own_network(raw: Mapping[str, Any]) -> bool:
    """Return whether plain config values describe a network of ours."""
    return issubclass(model_config_type(raw), DeepLabConfig)


def model_config_type(raw: Mapping[str, Any]) -> type[ModelConfig]:
    """Return the config that belongs to what was written under ``model``."""
    return find_kind(str(raw.get("kind", OWN))).config


def read_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Return the typed config of a network from plain data, such as a model file's."""
    return check(model_config_type(raw), dict(raw))


def build_network(
    config: ModelConfig,
    classes_per_step: int | list[int],
    crop: int | None = None,
    *,
    load: bool = True,
) -> Network:
    """Make a network.

    Args:
        config: which network.
        classes_per_step: channels of each step that has been learned, step 0's with the background;
            or of step 0 alone.
        crop: side of the training crops in pixels, the window of the decoder's pooling at test
            time; None pools over the whole image.
        load: whether to start from `config.weights`; without, the network is random.
    """
    steps = [classes_per_step] if isinstance(classes_per_step, int) else classes_per_step
    return find_kind(config.kind).build(config, steps, crop, load)
