"""A network that a Python program holds in its hands: it cannot be built from a name.

A file that was learned from one says which class it is of. The program that opens the file brings
such a network (`nacre.load(path, network=…)`), with the classes that it had before it was taught.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import nn

from nacre.errors import NacreError
from nacre.models.config import ModelConfig
from nacre.models.foreign.adapter import Adapter
from nacre.models.kinds.base import ForeignConfig, Kind


class ObjectConfig(ForeignConfig):
    """A network that was given as an object."""

    kind: Literal["object"] = Field(default="object", description="a network given in Python")
    type: str = Field(max_length=300, description="its class, for people")
    weights: Literal["none"] = Field(default="none", description="a file has them")


def describe_object(model: nn.Module) -> ObjectConfig:
    """Return what files say about a network."""
    return ObjectConfig(type=f"{type(model).__module__}.{type(model).__qualname__}"[:300])


def check_given(config: ModelConfig, given: nn.Module | None) -> None:
    """Refuse a file of this kind without a network, and one of another kind with it.

    Raises:
        NacreError: it says what to do.
    """
    if isinstance(config, ObjectConfig) and given is None:
        raise NacreError(
            f"it was learned from a {config.type} that a Python program made: build one of the "
            "classes that it had then and open the file by nacre.load(path, network=…)"
        )
    if not isinstance(config, ObjectConfig) and given is not None:
        raise NacreError(
            f"its header says how to build its network (kind {config.kind!r}): leave out network=…"
        )


def build(
    config: ObjectConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Refuse to build what only a Python program has."""
    raise NacreError(
        "model.kind='object' stands in files of networks that were given to nacre.learn in Python, "
        "and no config can name one"
    )


KIND = Kind(ObjectConfig, build, "a network given to nacre.learn in Python")
