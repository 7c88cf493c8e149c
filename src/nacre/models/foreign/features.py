"""Feature maps from inside a network of any kind, taken by hooks while it runs.

Hooks are set for one forward pass and removed after it: a copy of a network then never reports to
the original.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from nacre.errors import NacreError, did_you_mean
from nacre.models.foreign.scores import tensors_in


@contextlib.contextmanager
def captured(
    model: nn.Module, outputs: Sequence[str], inputs: Sequence[str] = ()
) -> Iterator[dict[str, Tensor]]:
    """Collect what modules put out and take in while the network runs in this context.

    Args:
        model: the network.
        outputs: names of the modules whose output is wanted; the last, if they run several times.
        inputs: names of the modules whose first input is wanted, under their name with ` input`.
    """
    found: dict[str, Tensor] = {}
    handles = []

    def keep(key: str, value: Any) -> None:
        tensor = next(tensors_in(value), None)
        if tensor is not None:
            found[key] = tensor

    for name in outputs:
        handles.append(
            model.get_submodule(name).register_forward_hook(
                lambda module, args, output, name=name: keep(name, output)
            )
        )
    for name in inputs:
        handles.append(
            model.get_submodule(name).register_forward_pre_hook(
                lambda module, args, name=name: keep(f"{name} input", args)
            )
        )
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def check_names(model: nn.Module, names: Sequence[str]) -> None:
    """Refuse names of modules that the network does not have.

    Raises:
        NacreError: with the nearest name that it has.
    """
    known = [name for name, _ in model.named_modules()]
    for name in names:
        if name not in known:
            raise NacreError(
                f"{type(model).__name__} has no module {name!r}{did_you_mean(name, known)}"
            )


def as_map(value: Tensor, size: tuple[int, int]) -> Tensor | None:
    """Return features as N,C,h,w; None if they are no map of the image.

    Args:
        value: N,C,h,w, or N,L,C as transformers have them, L being the pixels of a map of the
            image's proportions, perhaps after a token of its own for the whole image.
        size: of the image.
    """
    if value.ndim == 4:
        return value
    if value.ndim != 3:
        return None
    for extra in (0, 1):
        length = value.shape[1] - extra
        height = round(math.sqrt(length * size[0] / size[1]))
        if height and length % height == 0 and height * size[1] == length // height * size[0]:
            tokens = value[:, extra:].transpose(1, 2)
            return tokens.reshape(*tokens.shape[:2], height, length // height)
    return None
