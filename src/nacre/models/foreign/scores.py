"""Class scores in what a network of any library puts out.

A segmentation network gives N,C,h,w scores, one channel per class. It may give the tensor itself
or keep it in something larger:

    tensor                       smp, most networks of one's own
    output.logits                transformers
    output["out"]                torchvision
    output["logits"]             others
    output[any other key]        a dictionary with one such tensor of two channels or more
    output[0]                    a tuple or list, the scores first

Other N,C,h,w tensors of as many channels beside it are auxiliary scores.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from nacre.errors import NacreError

_KEYS = ("out", "logits")
_QUERY_KEYS = ("class_queries_logits", "pred_masks")


def scores_of(output: Any) -> Tensor:
    """Return the class scores in what a network put out.

    Raises:
        NacreError: there are none, or they are not one map per class.
    """
    if any(_has(output, key) for key in _QUERY_KEYS):
        raise NacreError(
            "this network scores queries (a class and a mask each, with 'no object'), not pixels: "
            "a background that may hide classes is not defined for it, so it cannot be widened"
        )
    scores = _find(output)
    if scores is None:
        raise NacreError(
            f"the network put out {_describe(output)}: nacre finds scores in a tensor, in .logits, "
            'in ["out"], in ["logits"], first in a tuple, or as the only map in a dictionary'
        )
    if scores.ndim != 4 or not scores.is_floating_point():
        raise NacreError(
            f"the network's scores are {_describe(scores)}: they must be of images x classes x "
            "height x width"
        )
    return scores


def auxiliary_scores(output: Any) -> list[Tensor]:
    """Return further scores beside the main ones: N,C,h,w of as many channels."""
    scores = scores_of(output)
    shape = scores.shape[:2]
    return [
        one
        for one in tensors_in(output)
        if one is not scores and one.ndim == 4 and one.shape[:2] == shape
    ]


def _find(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, Mapping):
        found = next((output[key] for key in _KEYS if key in output), _only_map(output))
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    return found if isinstance(found, Tensor) else None


def _only_map(output: Mapping[Any, Any]) -> Tensor | None:
    maps = [
        value
        for value in output.values()
        if isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] > 1
    ]
    return maps[0] if len(maps) == 1 else None


def _has(output: Any, key: str) -> bool:
    if isinstance(output, Mapping):
        return key in output
    return getattr(output, key, None) is not None


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield every tensor in what a network put out."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        yield from tensors_in(vars(output))


def _describe(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of {' x '.join(map(str, output.shape))}, {output.dtype}"
    if isinstance(output, Mapping):
        return f"{type(output).__name__} of {', '.join(map(str, output)) or 'nothing'}"
    return type(output).__name__
