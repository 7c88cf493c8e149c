"""What may be said of a network of transformers: sizes and words that its config class knows.

A config of transformers can name code, repositories and folders, and the library follows. So only
the fields that a model type adds to the common ones are taken, without those that name another
network to fetch, and only plain values: numbers, words, lists and tables of these. Whoever wrote
them, a user's config, a model file or a repository's config.json.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from nacre.errors import NacreError, did_you_mean, shown

_FETCHES = re.compile(r"backbone|backbone_kwargs|use_\w*backbone|quantization_config")
_NEVER = re.compile(
    rf"{_FETCHES.pattern}|_\w*|auto_map|trust_remote_code|\w*_implementation|\w*dtype|\w*_name_or_path"
)
_WORD = re.compile(r"[\w.+ -]{0,64}", re.ASCII)
_LARGEST, _LONGEST, _DEEPEST = 65_536, 256, 4


def check_plain(value: Any, depth: int = 0) -> None:
    """Refuse a value that is more than numbers, words, and lists and tables of these.

    Raises:
        ValueError: it is a path, an address, or too large.
    """
    if isinstance(value, str):
        if not _WORD.fullmatch(value):
            raise ValueError(f"{shown(value)} is no word of letters, digits and . _ + -")
    elif isinstance(value, int | float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number")
    elif isinstance(value, int | float) and abs(value) > _LARGEST:
        raise ValueError(f"{shown(value)} is larger than {_LARGEST:,}")
    elif isinstance(value, list | tuple | dict):
        if depth == _DEEPEST or len(value) > _LONGEST:
            raise ValueError(f"more than {_LONGEST} values, or more than {_DEEPEST} deep")
        every = [*value, *value.values()] if isinstance(value, dict) else value
        for one in every:
            check_plain(one, depth + 1)
    elif value is not None and not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is no number, word, list or table")


def check_options(transformers: Any, model_type: str, options: Mapping[str, Any]) -> None:
    """Refuse options that the config class of a model type does not know, or that fetch something.

    Raises:
        NacreError: it names the first.
    """
    known = own_fields(transformers, model_type)
    for key, value in options.items():
        if key not in known:
            hint = "" if _NEVER.fullmatch(key) else did_you_mean(key, known)
            raise NacreError(
                f"model.options: {shown(key)} is no size or setting that nacre takes of the model "
                f"type {model_type!r}{hint}"
            )
        if isinstance(value, Mapping) and key.endswith("_config"):
            inner = inner_type(transformers, model_type, key, value)
            check_options(transformers, inner, _without_type(value))


def keep_options(
    transformers: Any, model_type: str, values: Mapping[str, Any], origin: str
) -> dict[str, Any]:
    """Return what of a config's values may be said again, as `check_options` takes it.

    Args:
        transformers: the package.
        model_type: whose config it is.
        values: all of them.
        origin: where they were read, for the message.

    Raises:
        NacreError: without what is left out, it would be another network.
    """
    known, kept = own_fields(transformers, model_type), dict[str, Any]()
    for key, value in values.items():
        if _FETCHES.fullmatch(key) and value:
            raise NacreError(
                f"{origin} builds on {key}={shown(value)}, which nacre does not fetch: give the "
                "network itself, nacre.learn(…, start=network)"
            )
        if key not in known:
            continue
        if isinstance(value, Mapping) and key.endswith("_config"):
            inner = inner_type(transformers, model_type, key, value)
            value = {"model_type": inner, **keep_options(transformers, inner, value, origin)}
        try:
            check_plain(value)
        except ValueError as error:
            raise NacreError(f"{origin}: {key}: {error}") from error
        kept[key] = value
    return kept


def own_fields(transformers: Any, model_type: str) -> set[str]:
    """Return what the config class of a model type adds to the fields of all, if it is taken."""
    common = transformers.PretrainedConfig().to_dict()
    own = transformers.CONFIG_MAPPING[model_type]().to_dict()
    return {key for key in own if key not in common and not _NEVER.fullmatch(key)}


def inner_type(transformers: Any, model_type: str, key: str, value: Mapping[str, Any]) -> str:
    """Return the model type of a config within a config.

    Raises:
        NacreError: transformers has none of that name, or it is timm's, which fetches.
    """
    usual = getattr(transformers.CONFIG_MAPPING[model_type](), key, None)
    named = value.get("model_type", getattr(usual, "model_type", None))
    if (
        not isinstance(named, str)
        or named not in transformers.CONFIG_MAPPING
        or named.startswith("timm")
    ):
        raise NacreError(f"model.options: {key}: {shown(named)} is no model type that nacre takes")
    return named


def _without_type(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: one for key, one in value.items() if key != "model_type"}
