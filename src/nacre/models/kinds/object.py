"""A network that a Python program holds in its hands: it cannot be built from a name.

A file that was learnt from one says which class it is of. The program that opens the file gives
such a network (`nacre.load(path, network=…)`), with the classes that it had before it was taught.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import nn

from nacre.errors import NacreError
from nacre.models.foreign.adapter import Adapter
from nacre.models.kinds.base import ForeignConfig, Kind, adapt

_GIVEN: dict[tuple[str, str], nn.Module] = {}


class ObjectConfig(ForeignConfig):
    """A network that was given as an object."""

    kind: Literal["object"] = Field(default="object", description="a network given in Python")
    type: str = Field(description="its class")
    shapes: str = Field(description="digest of the names and shapes of its tensors")
    weights: Literal["none"] = Field(default="none", description="a file has them")


def give(model: nn.Module) -> ObjectConfig:
    """Keep a copy of a network, of which files can be built; return what files say about it."""
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    shapes = repr([(name, tuple(value.shape)) for name, value in model.state_dict().items()])
    digest = hashlib.sha256(shapes.encode()).hexdigest()[:16]
    _GIVEN[kind, digest] = copy.deepcopy(model).cpu()
    return ObjectConfig(type=kind, shapes=digest)


def build(
    config: ObjectConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Return a copy of the network that was given."""
    given = _GIVEN.get((config.type, config.shapes))
    if given is None:
        raise NacreError(
            f"this model was learnt from a {config.type} that a Python program made: give one with "
            "the same classes, nacre.load(path, network=…)"
        )
    return adapt(copy.deepcopy(given), config, classes_per_step)


KIND = Kind(ObjectConfig, build, "a network given to nacre.learn in Python")
