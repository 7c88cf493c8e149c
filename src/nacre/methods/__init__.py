"""The methods, one file each, and the table that names them.

A method from another package joins the table through the entry point group ``nacre.methods``
(name = the method's name, object = its class); one test file runs over the whole table.
"""

from importlib.metadata import entry_points

from nacre.errors import NacreError, unknown_name
from nacre.methods.base import Batch, Method, MethodConfig, Step
from nacre.methods.ewc import Ewc
from nacre.methods.ft import FineTuning
from nacre.methods.ilt import Ilt
from nacre.methods.joint import Joint
from nacre.methods.lwf import Lwf
from nacre.methods.lwf_mc import LwfMc, LwfMcC, LwfMcD
from nacre.methods.mib import Mib
from nacre.methods.pi import Pi
from nacre.methods.rw import Rw

__all__ = ["METHODS", "Batch", "Method", "MethodConfig", "Step", "all_methods", "find_method"]

# In the order of the paper's tables, in which tables and pages show them.
METHODS: dict[str, type[Method]] = {
    "ft": FineTuning,
    "pi": Pi,
    "ewc": Ewc,
    "rw": Rw,
    "lwf": Lwf,
    "lwf-mc": LwfMc,
    "lwf-mc-d": LwfMcD,
    "lwf-mc-c": LwfMcC,
    "ilt": Ilt,
    "mib": Mib,
    "joint": Joint,
}


def all_methods() -> dict[str, type[Method]]:
    """Return our methods and those that installed packages register."""
    found = dict(METHODS)
    for point in entry_points(group="nacre.methods"):
        if point.name in METHODS:
            raise NacreError(f"{point.value} registers the method {point.name!r}, a name of ours")
        found[point.name] = point.load()
    return found


def find_method(name: str) -> type[Method]:
    """Return a method by name."""
    methods = all_methods()
    if name not in methods:
        raise unknown_name("method", name, methods)
    return methods[name]
