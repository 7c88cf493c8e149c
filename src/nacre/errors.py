"""The errors that users can fix, and the texts of their messages."""

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
    """An error that a user can fix: what is wrong with which value, and what to do."""


class ReportedElsewhere(NacreError):
    """An error that another process of the run has reported; this process prints nothing."""


_MAX_MESSAGE_LENGTH = 4000
_NO_MEMORY = ("allocate memory", "out of memory", "not enough memory")


def user_message(error: Exception) -> str | None:
    """Return an error that a user can fix as one sentence of limited length; None for a bug."""
    if isinstance(error, OSError):
        names = [error.filename, error.filename2]
        files = [os.fsdecode(name) for name in names if name is not None]
        place = " -> ".join(files) or "the output"
        return f"{place}: {error.strerror or error}"[:_MAX_MESSAGE_LENGTH]
    if str(error).startswith("Symlink loop"):  # a RuntimeError of pathlib
        return str(error)
    if isinstance(error, MemoryError) or any(word in str(error) for word in _NO_MEMORY):
        reason = " ".join(str(error).split())[:200]
        return (
            f"there is not enough memory{f' ({reason})' if reason else ''}; use smaller images or "
            "crops, a smaller train.batch_size or a train.micro_batch"
        )
    if not isinstance(error, NacreError):
        return None
    text = str(error)
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[:_MAX_MESSAGE_LENGTH]} …"


_MAX_MISTAKES = 10
_MAX_NAME_LENGTH = 100
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 3, 120, 120, 60


def shown(value: Any) -> str:
    """Return a short text for any value, for messages."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4000:
        return f"a number of {value.bit_length():,} bits"
    return _SHORT.repr(value)


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return ``1 image`` or ``3 images``."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def escape_control(text: str) -> str:
    """Replace control characters and surrogates in a text by their codes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or not _is_control(char) else _code(char) for char in text
    )


def has_control_characters(text: str) -> bool:
    """Return True if a text contains characters that control a terminal."""
    return not text.isprintable() and any(_is_control(char) for char in text)


def _is_control(char: str) -> bool:
    # Cc: control, Cs: surrogate. The others break lines, or reverse the text after them.
    return (
        unicodedata.category(char) in ("Cc", "Cs") or char in "\u2028\u2029\u202a\u202b\u202d\u202e"
    )


def _code(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known name, or an empty text."""
    if len(word) > _MAX_NAME_LENGTH:
        return ""
    nearest = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def unknown_name(what: str, word: str, known: Iterable[str]) -> NacreError:
    """Return the error for an unknown name, with the nearest known one."""
    names = sorted(known)
    return NacreError(
        f"unknown {what} {shown(word)}{did_you_mean(word, names)}; known: {', '.join(names)}"
    )


def check(model: "type[Model]", content: Any, place: str = "") -> "Model":
    """Convert plain data to a model; the error lists all mistakes, and begins with the place."""
    from pydantic import ValidationError

    try:
        return model.model_validate(content)
    except ValidationError as error:
        before = f"{place}: " if place else ""
        raise NacreError(before + describe_errors(error, model)) from error


def describe_errors(error: "ValidationError", model: Any) -> str:
    """List the mistakes of a config in one message, each with its place and the allowed values."""
    errors = error.errors(include_url=False, include_context=False)
    more = len(errors) - _MAX_MISTAKES
    rest = f"; and {more:,} more mistakes" if more > 0 else ""
    return "; ".join(_describe(mistake, model) for mistake in errors[:_MAX_MISTAKES]) + rest


def _describe(error: Any, model: Any) -> str:
    place = ".".join(str(part)[:_MAX_NAME_LENGTH] for part in error["loc"]) or "the config"
    if error["type"] == "extra_forbidden":
        known = _fields_at(model, error["loc"][:-1])
        hint = did_you_mean(str(error["loc"][-1]), known)
        return f"{place}: unknown key{hint}; known here: {', '.join(known)}"
    if error["type"] == "missing":
        return f"{place}: missing" + ("; give --root FOLDER" if place == "data.root" else "")
    message = error["msg"].removeprefix("Value error, ")
    return f"{place}: {message[0].lower() + message[1:]}, not {shown(error['input'])}"


def _fields_at(model: "type[BaseModel]", path: Iterable[Any]) -> list[str]:
    """Return the keys of a config's section."""
    for key in path:
        field = model.model_fields.get(str(key))
        nested = _model_in(field.annotation) if field else None
        if nested is None:
            return []
        model = nested
    return list(model.model_fields)


def _model_in(annotation: Any) -> "type[BaseModel] | None":
    from pydantic import BaseModel

    if get_origin(annotation) in (Union, types.UnionType):
        models = map(_model_in, get_args(annotation))
        return next((model for model in models if model is not None), None)
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return annotation if is_model else None
