"""The methods, one file each, and the table that names them.

A method from another package joins the table through the entry point group ``nacre.methods``
(name = the method's name, object = its class); one test file runs over the whole table.
"""

import logging
from importlib.metadata import EntryPoint

from nacre.errors import NacreError, unknown_name
from nacre.methods.base import Batch, Method, MethodConfig, ParamGroup, Step
from nacre.methods.dft import Dft
from nacre.methods.dkd import Dkd
from nacre.methods.ewc import Ewc
from nacre.methods.ewf import Ewf
from nacre.methods.ft import FineTuning
from nacre.methods.graft import Graft
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
from nacre.utils.plugins import load_registered, registered

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

GROUP = "nacre.methods"
"""The entry points under which other packages register methods."""

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
    "graft": Graft,
    "joint": Joint,
}


def all_methods() -> dict[str, type[Method]]:
    """Return our methods and those that installed packages register, as far as these load."""
    found = dict(METHODS)
    for name, point in registered(GROUP, METHODS).items():
        try:
            found[name] = _load(point)
        except NacreError as error:
            _LOG.warning("%s", error)
    return found


def find_method(name: str) -> type[Method]:
    """Return a method by name; what other packages register is loaded only when it is meant."""
    if name in METHODS:
        return METHODS[name]
    others = registered(GROUP, METHODS)
    if name not in others:
        raise unknown_name("method", name, [*METHODS, *others])
    return _load(others[name])


def _load(point: EntryPoint) -> type[Method]:
    def fits(found: object) -> bool:
        return isinstance(found, type) and issubclass(found, Method)

    method: type[Method] = load_registered(point, "the method", "Method", fits)
    return method
