"""What all configs have in common: frozen, typed, and no value that means something else.

A key that is not known is an error. So is ``true`` where a number is meant, a number that is not
finite or larger than anything here can be, and a text with control characters.
"""

import types
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from nacre.errors import has_control_characters

LARGEST = 1e12
LONGEST = 4096


class Config(BaseModel):
    """A part of a config; what a key may be is said beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _means_what_it_says(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        _check(value, allow_bool=_mentions(field.annotation, (bool, Any)))
        return value


def _check(value: Any, allow_bool: bool) -> None:
    """Refuse a value, or a list with one, that pydantic would take for another."""
    if isinstance(value, list | tuple):
        for one in value:
            _check(one, allow_bool)
    elif isinstance(value, bool):
        if not allow_bool:
            raise ValueError("true and false are no values here")
    elif isinstance(value, int | float):
        # Not a number is pydantic's to refuse; a comparison with it is never true.
        if abs(value) > LARGEST:
            raise ValueError(f"the number is too large, at most {LARGEST:g}")
    elif isinstance(value, str):
        if len(value) > LONGEST:
            raise ValueError(f"the text is too long, at most {LONGEST:,} characters")
        if has_control_characters(value.replace("\n", "").replace("\t", "")):
            raise ValueError("the text holds control characters")


def _mentions(annotation: Any, kinds: tuple[Any, ...]) -> bool:
    """Whether a type is one of these kinds, or made of one."""
    if annotation in kinds:
        return True
    if get_origin(annotation) in (Union, types.UnionType, tuple, list, dict):
        return any(_mentions(part, kinds) for part in get_args(annotation))
    return False
