"""The methods, one file each, and the catalog that names them.

A method of another package is registered by the entry point group ``nacre.methods``
(name = the method's name, object = its class); one test file runs over all of them. A method,
and torch with it, is imported when it is first asked for: a list of all is shown at once.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from nacre.errors import NacreError, unknown_name
from nacre.methods.catalog import ENTRIES, MethodEntry
from nacre.utils.system import load_registered, registered

if TYPE_CHECKING:
    from nacre.methods.base import Batch, Judged, Method, MethodConfig, ParamGroup, Step

__all__ = [
    "METHODS",
    "Batch",
    "Judged",
    "Method",
    "MethodConfig",
    "ParamGroup",
    "Step",
    "all_entries",
    "find_entry",
    "find_method",
]

_LOG = logging.getLogger(__name__)

GROUP = "nacre.methods"
"""The entry points under which other packages register methods."""


class _Methods(Mapping[str, "type[Method]"]):
    """Our methods by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> "type[Method]":
        module, _, kind = ENTRIES[name].place.partition(":")
        found: type[Method] = getattr(import_module(module), kind)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(ENTRIES)

    def __len__(self) -> int:
        return len(ENTRIES)


METHODS = _Methods()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("nacre.methods.base"), name)


def all_entries() -> dict[str, MethodEntry]:
    """Return our methods and those that installed packages register, as far as these load."""
    found = dict(ENTRIES)
    for name, point in registered(GROUP, ENTRIES).items():
        try:
            found[name] = _entry(_load(point))
        except NacreError as error:
            _LOG.warning("%s", error)
    return found


def find_entry(name: str) -> MethodEntry:
    """Return how lists and tables name a method."""
    return ENTRIES[name] if name in ENTRIES else _entry(find_method(name))


def find_method(name: str) -> "type[Method]":
    """Return a method by name; what other packages register is loaded only when it is meant."""
    if name in ENTRIES:
        return METHODS[name]
    others = registered(GROUP, ENTRIES)
    if name not in others:
        raise unknown_name("method", name, [*ENTRIES, *others])
    return _load(others[name])


def _entry(method: "type[Method]") -> MethodEntry:
    """Return a method of another package: its docstring says what it does."""
    summary = (inspect.getdoc(method) or "").partition("\n")[0].removesuffix(".")
    place = f"{method.__module__}:{method.__name__}"
    return MethodEntry(place, method.name, summary, regularizes="", paper="")


def _load(point: EntryPoint) -> "type[Method]":
    from nacre.methods.base import Method

    def fits(found: object) -> bool:
        return isinstance(found, type) and issubclass(found, Method)

    method: type[Method] = load_registered(point, "the method", "Method", fits)
    return method
