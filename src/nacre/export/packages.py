"""Packages that only exports need, imported when they are needed."""

from importlib import import_module
from typing import Any

from nacre.errors import NacreError


def need(name: str, extra: str = "export") -> Any:
    """Import a package of an extra, or say how to get it."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise NacreError(
            f"this needs the package {package}, which is not installed: "
            f"pip install 'nacre[{extra}]'"
        ) from error
