"""Making a network from its config: the table of kinds, and those of installed packages.

A kind from another package joins through the entry point group ``nacre.models`` (name = the kind,
object = a `nacre.models.kinds.base.Kind`). It is imported when it is asked for by name: one that is
broken breaks only itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nacre.errors import check, unknown_name
from nacre.models.config import HeadConfig, ModelConfig
from nacre.models.kinds import deeplab, hf, object, smp, timm, torchvision
from nacre.models.kinds.base import Kind
from nacre.models.network import Network
from nacre.utils.system import load_registered, registered

OWN = "deeplab"
"""The kind of our own networks, and what a config means that names none."""

KINDS: dict[str, Kind] = {
    OWN: deeplab.KIND,
    "hf": hf.KIND,
    "timm": timm.KIND,
    "smp": smp.KIND,
    "torchvision": torchvision.KIND,
    "object": object.KIND,
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
    """Whether plain config values describe a network of ours: any backbone, our decoder, rows."""
    return issubclass(model_config_type(raw), HeadConfig)


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
        classes_per_step: channels of each step that has been learnt, step 0's with the background;
            or of step 0 alone.
        crop: side of the training crops in pixels, the window of the head's pooling at test
            time; None pools over the whole image.
        load: whether to start from `config.weights`; without, the network is random.
    """
    steps = [classes_per_step] if isinstance(classes_per_step, int) else classes_per_step
    return find_kind(config.kind).build(config, steps, crop, load)
