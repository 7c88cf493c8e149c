"""The one kind of error that users see, and the help that its messages share."""

import types
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class NacreError(ValueError):
    """Something a user can mend: the message is the value, the place and what is allowed."""


class SaidElsewhere(NacreError):
    """An error that another process of the run has told the user: this one ends in silence."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known name, or nothing."""
    nearest = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def unknown_name(kind: str, word: str, known: Iterable[str]) -> NacreError:
    """Return the error for a name that is not in an explicit table."""
    names = sorted(known)
    return NacreError(
        f"unknown {kind} {word!r}{did_you_mean(word, names)}; known: {', '.join(names)}"
    )


def describe_errors(error: "ValidationError", model: "type[BaseModel]") -> str:
    """Say all mistakes of a config in one message, each with its place and what is allowed."""
    return "; ".join(_describe(one, model) for one in error.errors())


def _describe(error: Any, model: "type[BaseModel]") -> str:
    place = ".".join(str(part) for part in error["loc"]) or "the config"
    if error["type"] == "extra_forbidden":
        known = _fields_at(model, error["loc"][:-1])
        hint = did_you_mean(str(error["loc"][-1]), known)
        return f"{place}: unknown key{hint}; known here: {', '.join(known)}"
    if error["type"] == "missing":
        return f"{place}: missing" + ("; give --root FOLDER" if place == "data.root" else "")
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower() + message[1:]}, not {error['input']!r}"


def _fields_at(model: "type[BaseModel]", path: Iterable[Any]) -> list[str]:
    """Return the keys that a config knows at a dotted place."""
    for part in path:
        field = model.model_fields.get(str(part))
        nested = _model_in(field.annotation) if field else None
        if nested is None:
            return []
        model = nested
    return list(model.model_fields)


def _model_in(annotation: Any) -> "type[BaseModel] | None":
    from pydantic import BaseModel

    if get_origin(annotation) in (Union, types.UnionType):
        found = [_model_in(part) for part in get_args(annotation)]
        return next((one for one in found if one is not None), None)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None
