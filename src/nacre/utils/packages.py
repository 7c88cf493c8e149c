"""Packages that only some people need, imported when they are needed."""

from importlib import import_module
from typing import Any

from nacre.errors import NacreError


def install_line(extra: str = "") -> str:
    """Return the command that installs nacre, or an extra of it, in its source folder."""
    if not extra:
        return "pip install -c constraints.txt ."
    return f"pip install -c constraints.txt '.[{extra}]'"


def need(name: str, extra: str = "export", package: str | None = None) -> Any:
    """Import a module of an extra's package, or say how to get it."""
    package = package or name.split(".")[0]
    try:
        return import_module(name)
    except ImportError as error:
        raise NacreError(
            f"this needs the package {package}, which is not installed: {install_line(extra)}"
        ) from error
    except (RuntimeError, ValueError) as error:  # compiled for another torch, or wrong settings
        reason = " ".join(str(error).split())[:200]
        raise NacreError(
            f"this needs the package {package}, which cannot be imported here ({reason}): it must "
            "be made for the installed version of torch, and understand the variables set for it"
        ) from error
