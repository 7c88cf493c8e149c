"""What a config key affects, said once, beside the key.

    results   what is learnt or measured, in every step (what every key does unless it says more)
    later     what is learnt after step 0: runs that differ in it may share their step 0
    nothing   how the machine works and where files lie: a run goes on with another value

A key says so with ``Field(…, json_schema_extra=NOTHING)``. Going on with a run, sharing a step 0,
grids and the rows of a report all read it here.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Effect = Literal["results", "later", "nothing"]

LATER: dict[str, Any] = {"affects": "later"}
NOTHING: dict[str, Any] = {"affects": "nothing"}


def affects(field: FieldInfo) -> Effect:
    """Return what a key of a config affects."""
    extra = field.json_schema_extra
    found: Effect = extra.get("affects", "results") if isinstance(extra, Mapping) else "results"  # type: ignore[assignment]
    return found


def deciding(config: BaseModel, *, step_0: bool = False) -> dict[str, Any]:
    """Return the values of a config that decide its results, or what its step 0 is, as plain data.

    Args:
        config: Of a run, or a section of one.
        step_0: Leave out what only later steps depend on.
    """
    ignored = {"nothing", "later"} if step_0 else {"nothing"}
    plain = config.model_dump(mode="json")
    found: dict[str, Any] = {}
    for key, field in type(config).model_fields.items():
        if affects(field) in ignored:
            continue
        value = getattr(config, key)
        found[key] = deciding(value, step_0=step_0) if isinstance(value, BaseModel) else plain[key]
    return found


def immaterial_keys(config: type[BaseModel], prefix: str = "") -> set[str]:
    """Return the dotted names of the keys that affect nothing."""
    found: set[str] = set()
    for key, field in config.model_fields.items():
        if affects(field) == "nothing":
            found.add(f"{prefix}{key}")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= immaterial_keys(field.annotation, f"{prefix}{key}.")
    return found
