"""A network of one's own: any function that makes one.

    model: {kind: python, factory: my_package.networks:make, options: {width: 32}}

The function is called as ``make(num_classes=…, **options)``. A model file names it, so loading a
file imports the module; as a guard against files that name something else, the function must say in
its signature that it takes `num_classes`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from torch import nn

from nacre.errors import NacreError
from nacre.models.foreign.adapter import Adapter
from nacre.models.kinds.base import ForeignConfig, Kind, adapt, num_outputs


class PythonConfig(ForeignConfig):
    """A network that a function of one's own makes."""

    kind: Literal["python"] = Field(default="python", description="a network of your own")
    factory: str = Field(
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="module:function, called with num_classes and the options",
    )
    weights: Literal["none"] = Field(
        default="none", description="none: the function loads what it likes"
    )
    divisor: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="sides of images are multiples of it; by default it is tried out",
    )


def build(
    config: PythonConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Make a network by its function."""
    make = find_factory(config.factory)
    model = make(num_classes=num_outputs(config, classes_per_step), **config.options)
    if not isinstance(model, nn.Module):
        raise NacreError(
            f"model.factory={config.factory!r} returned {type(model).__name__} and no torch module"
        )
    return adapt(model, config, classes_per_step, divisor=config.divisor)


def find_factory(place: str) -> Callable[..., Any]:
    """Return a function by ``module:name``, of the working folder too.

    Raises:
        NacreError: it is not there, or is not made for this.
    """
    module, _, name = place.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise NacreError(f"model.factory={place!r} cannot be imported: {error}") from error
    try:
        takes = inspect.signature(make).parameters
    except (TypeError, ValueError):
        takes = {}  # type: ignore[assignment]
    if "num_classes" not in takes:
        raise NacreError(
            f"model.factory={place!r} is no function with a parameter `num_classes`: write "
            f"def {name}(num_classes, …)"
        )
    factory: Callable[..., Any] = make
    return factory


KIND = Kind(PythonConfig, build, "a function of your own that makes a torch module")
