"""The methods, one file each, and the catalog of them.

Another package registers a method by an entry point of the group ``nacre.methods`` (name = the
method's name, object = its class). Importing this package imports no torch: a method's module is
imported when the method is first used.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from nacre.errors import NacreError, unknown_name
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
"""The entry point group in which other packages register methods."""


@dataclass(frozen=True)
class MethodEntry:
    """An entry of the catalog.

    Attributes:
        place: ``module:Class``.
        title: The method's name in tables.
        summary: What it does, in one line.
        paper: Where it was published.
    """

    place: str
    title: str
    summary: str
    paper: str


# Tables and charts show the methods in this order: that of the paper's tables, then by year.
ENTRIES: dict[str, MethodEntry] = {
    "ft": MethodEntry(
        "nacre.methods.ft:FineTuning",
        title="FT",
        summary="cross-entropy alone; forgets",
        paper="baseline FT",
    ),
    "pi": MethodEntry(
        "nacre.methods.pi:Pi",
        title="PI",
        summary="a penalty on changing parameters whose movement lowered the loss",
        paper="Zenke et al. 2017",
    ),
    "ewc": MethodEntry(
        "nacre.methods.ewc:Ewc",
        title="EWC",
        summary="a penalty on changing parameters whose gradients were large",
        paper="Kirkpatrick et al. 2017",
    ),
    "rw": MethodEntry(
        "nacre.methods.rw:Rw",
        title="RW",
        summary="ewc, and a score along the path of learning",
        paper="Chaudhry et al. 2018",
    ),
    "lwf": MethodEntry(
        "nacre.methods.lwf:Lwf",
        title="LwF",
        summary="distillation of the old channels",
        paper="Li and Hoiem 2017",
    ),
    "lwf-mc": MethodEntry(
        "nacre.methods.lwf_mc:LwfMc",
        title="LwF-MC",
        summary="distillation with a sigmoid per class",
        paper="Rebuffi et al. 2017",
    ),
    "lwf-mc-d": MethodEntry(
        "nacre.methods.lwf_mc:LwfMcD",
        title="LwF-MC-D",
        summary="lwf-mc with the background from the teacher",
        paper="Rebuffi et al. 2017",
    ),
    "lwf-mc-c": MethodEntry(
        "nacre.methods.lwf_mc:LwfMcC",
        title="LwF-MC-C",
        summary="lwf-mc with the background from the labels",
        paper="Rebuffi et al. 2017",
    ),
    "ilt": MethodEntry(
        "nacre.methods.ilt:Ilt",
        title="ILT",
        summary="distillation of the old channels and of the features",
        paper="Michieli and Zanuttigh 2019",
    ),
    "mib": MethodEntry(
        "nacre.methods.mib:Mib",
        title="MiB",
        summary="losses and initialization that model the background",
        paper="Cermelli et al. 2020",
    ),
    "plop": MethodEntry(
        "nacre.methods.plop:Plop",
        title="PLOP",
        summary="pseudo-labels, and distillation of the features' means over rows and columns",
        paper="Douillard et al. 2021",
    ),
    "ssul": MethodEntry(
        "nacre.methods.ssul:Ssul",
        title="SSUL",
        summary="a frozen network with a sigmoid per class and a row for unknown classes",
        paper="Cha et al. 2021",
    ),
    "dkd": MethodEntry(
        "nacre.methods.dkd:Dkd",
        title="DKD",
        summary="a sigmoid per class; distillation of logits and of their signed parts",
        paper="Baek et al. 2022",
    ),
    "ewf": MethodEntry(
        "nacre.methods.ewf:Ewf",
        title="EWF",
        summary="mib, and a fusion of old and new weights after each step",
        paper="Xiao et al. 2023",
    ),
    "lgkd": MethodEntry(
        "nacre.methods.lgkd:Lgkd",
        title="LGKD",
        summary="plop, and a label-guided distillation of all channels",
        paper="Yang et al. 2023",
    ),
    "star": MethodEntry(
        "nacre.methods.star:Star",
        title="STAR",
        summary="a sigmoid per class; replay of feature statistics of old classes",
        paper="Chen et al. 2023",
    ),
    "dft": MethodEntry(
        "nacre.methods.dft:Dft",
        title="DFT",
        summary="a frozen network in which only the new rows of the classifier learn",
        paper="Revisiting CSS 2025 (DFT*)",
    ),
    "ledger": MethodEntry(
        "nacre.methods.ledger:Ledger",
        title="Ledger",
        summary="a frozen backbone and a head in closed form, from sums per class, in one pass",
        paper="nacre's own, after AIR 2024",
    ),
    "duo": MethodEntry(
        "nacre.methods.duo:Duo",
        title="Duo",
        summary="a frozen backbone; a decoder learned by mib, plus the ledger's scores",
        paper="nacre's own",
    ),
    "joint": MethodEntry(
        "nacre.methods.joint:Joint",
        title="Joint",
        summary="all classes at once, with all labels; the upper bound",
        paper="baseline Joint",
    ),
}


class _Methods(Mapping[str, "type[Method]"]):
    """The methods of nacre by name, each imported at its first use."""

    def __getitem__(self, name: str) -> "type[Method]":
        module, _, class_name = ENTRIES[name].place.partition(":")
        method: type[Method] = getattr(import_module(module), class_name)
        return method

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
    """Return the entries of all methods, those of other packages included if they can be loaded."""
    entries = dict(ENTRIES)
    for name, point in registered(GROUP, ENTRIES).items():
        try:
            entries[name] = _entry(_load(point))
        except NacreError as error:
            _LOG.warning("%s", error)
    return entries


def find_entry(name: str) -> MethodEntry:
    """Return a method's entry."""
    return ENTRIES[name] if name in ENTRIES else _entry(find_method(name))


def find_method(name: str) -> "type[Method]":
    """Return a method by name; a method of another package is only loaded if it is named."""
    if name in ENTRIES:
        return METHODS[name]
    others = registered(GROUP, ENTRIES)
    if name not in others:
        raise unknown_name("method", name, [*ENTRIES, *others])
    return _load(others[name])


def _entry(method: "type[Method]") -> MethodEntry:
    """Return an entry for a method of another package, with its docstring as the summary."""
    summary = (inspect.getdoc(method) or "").partition("\n")[0].removesuffix(".")
    return MethodEntry(f"{method.__module__}:{method.__name__}", method.name, summary, paper="")


def _load(point: EntryPoint) -> "type[Method]":
    from nacre.methods.base import Method

    def is_method(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, Method)

    method: type[Method] = load_registered(point, "the method", "Method", is_method)
    return method
