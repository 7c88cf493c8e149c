"""The one kind of error that users see, and the help that its messages share."""

import os
import reprlib
import types
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Model = TypeVar("Model", bound="BaseModel")


class NacreError(ValueError):
    """Something a user can mend: the message is the value, the place and what is allowed."""


class ReportedElsewhere(NacreError):
    """An error that another process of the run has told the user: this one ends in silence."""


_LONGEST_MESSAGE = 4000
_NO_MEMORY = ("allocate memory", "out of memory", "not enough memory")


def user_message(error: Exception) -> str | None:
    """Return what a user can do something about as one bounded sentence; None for a bug."""
    if isinstance(error, OSError):
        files = [os.fsdecode(one) for one in (error.filename, error.filename2) if one is not None]
        return f"{' -> '.join(files) or 'the output'}: {error.strerror or error}"[:_LONGEST_MESSAGE]
    if str(error).startswith("Symlink loop"):  # which pathlib calls a RuntimeError
        return str(error)
    if isinstance(error, MemoryError) or any(word in str(error) for word in _NO_MEMORY):
        reason = " ".join(str(error).split())[:200]
        return (
            f"there is not enough memory{f' ({reason})' if reason else ''}; smaller images or "
            "crops, a smaller train.batch_size or a train.micro_batch need less"
        )
    if not isinstance(error, NacreError):
        return None
    text = str(error)
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]} …"


_MOST_MISTAKES = 10
_LONGEST_NAME = 100
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 120, 120, 60


def shown(value: Any) -> str:
    """Return a value as a message shows it: short, whatever it is."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4000:
        return f"a number of {value.bit_length():,} bits"
    return _SHORT.repr(value)


def escape_control(text: str) -> str:
    """Return a text whose control characters and half characters are visible and harmless."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or not _is_control(char) else _code(char) for char in text
    )


def has_control_characters(text: str) -> bool:
    """Return whether a text could do more to a terminal than stand there."""
    return not text.isprintable() and any(_is_control(char) for char in text)


def _is_control(char: str) -> bool:
    # Cc: control, Cs: half a character; the rest turn or hide the text that follows them.
    return (
        unicodedata.category(char) in ("Cc", "Cs") or char in "\u2028\u2029\u202a\u202b\u202d\u202e"
    )


def _code(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known name, or nothing."""
    if len(word) > _LONGEST_NAME:
        return ""
    nearest = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def unknown_name(kind: str, word: str, known: Iterable[str]) -> NacreError:
    """Return the error for an unknown name, with the nearest known one."""
    names = sorted(known)
    return NacreError(
        f"unknown {kind} {shown(word)}{did_you_mean(word, names)}; known: {', '.join(names)}"
    )


def check(model: "type[Model]", content: Any, place: str = "") -> "Model":
    """Return plain data as the model that it must fit, or say everything that does not fit.

    Args:
        model: What the data must be.
        content: The data.
        place: Where they stand, for people; nothing for what was given directly.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(content)
    except ValidationError as error:
        before = f"{place}: " if place else ""
        raise NacreError(before + describe_errors(error, model)) from error


def describe_errors(error: "ValidationError", model: Any) -> str:
    """List the mistakes of a config in one message, each with its place and what is allowed."""
    found = error.errors(include_url=False, include_context=False)
    more = len(found) - _MOST_MISTAKES
    rest = f"; and {more:,} more mistakes" if more > 0 else ""
    return "; ".join(_describe(one, model) for one in found[:_MOST_MISTAKES]) + rest


def _describe(error: Any, model: Any) -> str:
    place = ".".join(str(part)[:_LONGEST_NAME] for part in error["loc"]) or "the config"
    if error["type"] == "extra_forbidden":
        known = _fields_at(model, error["loc"][:-1])
        hint = did_you_mean(str(error["loc"][-1]), known)
        return f"{place}: unknown key{hint}; known here: {', '.join(known)}"
    if error["type"] == "missing":
        return f"{place}: missing" + ("; give --root FOLDER" if place == "data.root" else "")
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower() + message[1:]}, not {shown(error['input'])}"


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
