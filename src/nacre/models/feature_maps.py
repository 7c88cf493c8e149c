"""Maps inside a network of others that a ledger reads: where the stages of its backbone end.

The network runs once and its modules are watched. Of all maps of one size, a stage ends with the
last that a module nearest to the top puts out: blocks and what is inside them lie deeper. Only what
runs before the scores counts, and only the backbone where it can be told apart. Where all maps are
of one size, as in a plain vision transformer, those after one and two thirds of its blocks are read
too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.probe import tensors_in, undisturbed

FEWEST = 3
"""Maps below which those inside a stage are read too."""


@dataclass(frozen=True)
class FoundMap:
    """A map that a module puts out.

    Attributes:
        name: of the module.
        channels: how many it has.
        stride: input pixels per point.
    """

    name: str
    channels: int
    stride: int


def find_maps(model: nn.Module, inside: str, scoring: Sequence[str], images: Tensor) -> list[str]:
    """Return the names of the modules whose maps a ledger reads, in the order in which they run.

    Args:
        model: the network.
        inside: the module in which they are looked for; empty: anywhere.
        scoring: names of the scoring layers.
        images: a batch that the network takes.

    Raises:
        NacreError: it has no maps.
    """
    seen = [one for one in watch(model, scoring, images) if _lies_in(one.name, inside)]
    ends = {}
    for stride in {one.stride for one in seen}:
        same = [one for one in seen if one.stride == stride]
        top = min(one.name.count(".") for one in same)
        ends[stride] = [one for one in same if one.name.count(".") == top][-1]
    found = [*ends.values(), *(_between(seen) if len(ends) < FEWEST else ())]
    if not found:
        raise NacreError(
            f"{type(model).__name__} puts out no maps before its scores that the ledger could "
            "read; name modules that do: model.stages"
        )
    order = [one.name for one in seen]
    return sorted({one.name for one in found}, key=order.index)


def watch(model: nn.Module, scoring: Sequence[str], images: Tensor) -> list[FoundMap]:
    """Return the maps that modules put out until the first of the scoring layers runs."""
    found: dict[str, FoundMap] = {}
    side, ended = images.shape[-1], False

    def keep(name: str, value: Any) -> None:
        stride = None if ended else stride_of(next(tensors_in(value), None), side)
        if stride is not None:
            tensor = next(tensors_in(value))
            channels = tensor.shape[1] if tensor.ndim == 4 else tensor.shape[2]
            found.pop(name, None)  # the last run of a module counts
            found[name] = FoundMap(name, channels, stride)

    def end(*_: Any) -> None:
        nonlocal ended
        ended = True

    handles = [model.get_submodule(one).register_forward_pre_hook(end) for one in scoring]
    for name, module in model.named_modules():
        if name:
            handles.append(
                module.register_forward_hook(lambda _, args, value, name=name: keep(name, value))
            )
    try:
        with undisturbed(model):
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())


def stride_of(value: Tensor | None, side: int) -> int | None:
    """Return the stride of N,C,h,w or of tokens N,L,C of a square image; None if it is no map.

    Args:
        value: what a module put out.
        side: of the image.
    """
    if value is None or not value.is_floating_point() or value.ndim not in (3, 4):
        return None
    if value.ndim == 4:
        high, wide = value.shape[2:]
    else:
        high = wide = int(value.shape[1] ** 0.5)  # tokens of the whole image come before
    is_map = high == wide and 2 <= high < side and side % high == 0
    return side // high if is_map else None


def _between(seen: Sequence[FoundMap]) -> list[FoundMap]:
    """Return the maps after one and two thirds of the longest list of blocks."""
    lists = [(one.name.rpartition(".")[0], one.channels, one.stride) for one in seen]
    (longest, count) = Counter(lists).most_common(1)[0] if lists else ((), 0)
    blocks = [one for one, where in zip(seen, lists, strict=True) if where == longest]
    return [blocks[count // 3 - 1], blocks[2 * count // 3 - 1]] if count >= FEWEST else []


def _lies_in(name: str, inside: str) -> bool:
    return not inside or name.startswith(f"{inside}.")
