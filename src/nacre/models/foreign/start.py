"""A network of one's own as the model that a step starts from: written as a model file."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from nacre.errors import NacreError
from nacre.labels.channels import distinct_colors
from nacre.labels.space import BACKGROUND
from nacre.models.foreign.widen import check_type
from nacre.models.io import ModelInfo, save_model
from nacre.models.kinds import hf, object
from nacre.models.kinds.base import ForeignConfig, adapt


def save_start(
    path: Path,
    model: nn.Module,
    *,
    old: Sequence[str] | None = None,
    background: int | None = 0,
    crop: int = 512,
    **options: Any,
) -> nn.Module | None:
    """Write a network as a model file that `learn_step` can start from.

    Args:
        path: the file.
        model: any module from images to class scores; it is copied and stays as it is.
        old: names of its classes in the order of its channels, without the background; None takes
            those in a transformers config.
        background: the channel of the background; None if there is none.
        crop: side of the pictures that it is taught with.
        options: `head`, `stages` and `pixels`, as in `nacre.models.kinds.base.ForeignConfig`.

    Returns:
        What `load_model` needs to open the file: the network, or None if the file says it all.

    Raises:
        NacreError: the names do not fit the network.
    """
    check_type(model)
    config = _describe(model).model_copy(update={"background": background})
    config = type(config).model_validate({**config.model_dump(), **options})
    network = adapt(copy.deepcopy(model), config, [0])
    names = _names(model, background) if old is None else list(old)
    count = network.num_classes
    _check_names(names, count - 1)
    info = ModelInfo(
        classes=[BACKGROUND, *names],
        colors=list(distinct_colors(count)),
        labels=list(range(count)),
        steps=[count],
        lineage=[{"step": 0, "classes": names, "images": 0, "data": [], "method": "given"}],
        model={},
        crop=crop,
        predict_mode="crop",
        config={},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save_model(path, network, info, {})
    return model if isinstance(config, object.ObjectConfig) else None


def _check_names(names: list[str], num_old: int) -> None:
    if len(names) != num_old or len({*names, BACKGROUND}) != num_old + 1:
        raise NacreError(
            f"old: the network scores {num_old} classes beside the background, and {len(names)} "
            f"names were given ({', '.join(names)}): one per channel, all different"
        )


def _describe(model: nn.Module) -> ForeignConfig:
    """Return how to build a network again: by transformers' config, or by being given it."""
    settings = getattr(model, "config", None)
    if type(model).__module__.startswith("transformers.") and hasattr(settings, "model_type"):
        return hf.describe_model(model) or object.describe_object(model)
    return object.describe_object(model)


def _names(model: nn.Module, background: int | None) -> list[str]:
    names = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(names, dict):
        raise NacreError("old: name the classes of the network in the order of its channels")
    return [str(name) for i, name in sorted(names.items()) if i != background]
