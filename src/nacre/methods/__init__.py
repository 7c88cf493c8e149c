"""The methods, one file each, and the table that names them.

A method from another package joins the table through the entry point group ``nacre.methods``
(name = the method's name, object = its class); one test file runs over the whole table.
"""

import logging
from importlib.metadata import EntryPoint, entry_points

from nacre.errors import NacreError, unknown_name
from nacre.methods.base import Batch, Method, MethodConfig, ParamGroup, Step
from nacre.methods.dft import Dft
from nacre.methods.dkd import Dkd
from nacre.methods.ewc import Ewc
from nacre.methods.ewf import Ewf
from nacre.methods.ft import FineTuning
from nacre.methods.ilt import Ilt
from nacre.methods.joint import Joint
from nacre.methods.lgkd import Lgkd
from nacre.methods.lwf import Lwf
from nacre.methods.lwf_mc import LwfMc, LwfMcC, LwfMcD
from nacre.methods.mib import Mib
from nacre.methods.pi import Pi
from nacre.methods.plop import Plop
from nacre.methods.rw import Rw
from nacre.methods.ssul import Ssul
from nacre.methods.star import Star

__all__ = [
    "METHODS",
    "Batch",
    "Method",
    "MethodConfig",
    "ParamGroup",
    "Step",
    "all_methods",
    "find_method",
]

_LOG = logging.getLogger(__name__)

# In the order of the paper's tables, then by year; tables and pages show them so.
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
    "plop": Plop,
    "ssul": Ssul,
    "dkd": Dkd,
    "ewf": Ewf,
    "lgkd": Lgkd,
    "star": Star,
    "dft": Dft,
    "joint": Joint,
}


def all_methods() -> dict[str, type[Method]]:
    """Return our methods and those that installed packages register, as far as these load."""
    found = dict(METHODS)
    for name, point in _plugins().items():
        try:
            found[name] = _load(point)
        except NacreError as error:
            _LOG.warning("%s", error)
    return found


def find_method(name: str) -> type[Method]:
    """Return a method by name; what other packages register is loaded only when it is meant."""
    if name in METHODS:
        return METHODS[name]
    plugins = _plugins()
    if name not in plugins:
        raise unknown_name("method", name, [*METHODS, *plugins])
    return _load(plugins[name])


def _plugins() -> dict[str, EntryPoint]:
    """Return what installed packages register; a name of ours stays ours."""
    points = entry_points(group="nacre.methods")
    return {point.name: point for point in points if point.name not in METHODS}


def _load(point: EntryPoint) -> type[Method]:
    try:
        method = point.load()
    except Exception as error:  # whatever somebody else's module does when it is imported
        raise NacreError(
            f"the method {point.name!r} cannot be loaded from {point.value}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise NacreError(f"the method {point.name!r} is no Method: {point.value} is {method!r}")
    return method
