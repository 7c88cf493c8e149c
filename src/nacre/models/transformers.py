"""Networks of Hugging Face's transformers that segment: SegFormer, BEiT, DPT, MobileViT, …

model: {kind: external, library: transformers, name: nvidia/mit-b0}     weights of the hub
model: {kind: external, library: transformers, name: ./my-folder}       of `save_pretrained`
model: {kind: external, library: transformers, name: segformer, weights: none,
        options: {hidden_sizes: [8, 16, 32, 64]}}

A config of transformers can name code, repositories and folders, and the library follows. So only
the fields that a model type adds to the common ones are taken, without those that name another
network to fetch, and only plain values (`nacre.models.config.check_plain`), whoever wrote them: a
user's config, a model file or a repository's config.json.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.config import ExternalConfig, PixelsConfig, check_plain
from nacre.models.weights import hub_file
from nacre.utils.io import load_json
from nacre.utils.system import import_extra

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_FETCHES = re.compile(r"backbone|backbone_kwargs|use_\w*backbone|quantization_config")
_NEVER = re.compile(
    rf"{_FETCHES.pattern}|_\w*|auto_map|trust_remote_code|\w*_implementation|\w*dtype|\w*_name_or_path"
)


def make(
    config: ExternalConfig, num_classes: int, load: bool = False
) -> tuple[nn.Module, ExternalConfig, PixelsConfig | None]:
    """Make a network of transformers, with random weights unless they are to be loaded.

    Returns:
        The module, how to build it again without files or downloads, and what its processor does
        to pixels.
    """
    transformers = import_extra("transformers", "hf")
    settings, pixels = _settings(transformers, config)
    auto, settings.num_labels = transformers.AutoModelForSemanticSegmentation, num_classes
    with _in_one_sentence(config), _quiet(transformers):
        if load and config.weights == "pretrained":
            model: nn.Module = auto.from_pretrained(
                _folder(config.name, *_WEIGHTS),
                config=settings,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
            )
        else:
            model = auto.from_config(settings, trust_remote_code=False)
    again = {
        "name": settings.model_type,
        "weights": "none",
        "options": _architecture(transformers, settings),
    }
    return model, config.model_copy(update=again), pixels


def describe_model(model: Any) -> ExternalConfig | None:
    """Return how to build a network of transformers again that is already there.

    None if a file cannot say it: transformers does not make such a network of its config alone.
    """
    transformers = import_extra("transformers", "hf")
    settings = model.config
    try:
        options = _architecture(transformers, settings)
        config = ExternalConfig(
            library="transformers", name=settings.model_type, weights="none", options=options
        )
        with torch.device("meta"):
            again, _, _ = make(config, settings.num_labels)
    except (NacreError, ValidationError):
        return None
    shapes = ({k: v.shape for k, v in one.state_dict().items()} for one in (model, again))
    return config if type(again) is type(model) and next(shapes) == next(shapes) else None


def _settings(transformers: Any, config: ExternalConfig) -> tuple[Any, PixelsConfig | None]:
    """Return transformers' config of the network, and what its processor does to pixels."""
    options, pixels = config.options, None
    if config.weights not in ("pretrained", "none"):
        raise NacreError(f"model.weights={config.weights!r}: give 'pretrained' or 'none'")
    if config.name in transformers.CONFIG_MAPPING:
        # A folder of that name is not meant: it could be anybody's.
        model_type = config.name
        if config.weights == "pretrained":
            raise NacreError(
                f"model.name={config.name!r} is a model type and has no weights: give a "
                "folder (./…) or a repository of the hub, or weights=none"
            )
    else:
        model_type, published = _read_config(transformers, config.name)
        options, pixels = {**published, **options}, _pixels(config.name)
    with _in_one_sentence(config), _quiet(transformers):
        own_options(transformers, model_type, options)
        return transformers.CONFIG_MAPPING[model_type].from_dict(dict(options)), pixels


def _read_config(transformers: Any, name: str) -> tuple[str, dict[str, Any]]:
    """Return the model type and the sizes that the config.json of a folder or repository names."""
    path = _folder(name, "config.json") / "config.json"
    if not path.is_file():
        raise NacreError(f"model.name={name!r}: the folder has no config.json")
    content = load_json(path)
    model_type = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise NacreError(
            f"model.name={name!r}: the model_type of its config.json, {shown(model_type)}, is none "
            "of transformers"
        )
    return model_type, own_options(transformers, model_type, content, str(path))


def _folder(name: str, *files: str) -> Path:
    """Return the folder that has one of these files, fetched from the hub if need be."""
    if Path(name).expanduser().is_dir():
        return Path(name).expanduser()
    problem: NacreError | None = None
    for file in files:
        try:
            return hub_file(name, file).parent
        except NacreError as error:
            problem = problem or error
    assert problem is not None
    raise NacreError(f"model.name={name!r} is neither a model type nor a folder: {problem}")


def _pixels(name: str) -> PixelsConfig | None:
    try:
        path = _folder(name, "preprocessor_config.json") / "preprocessor_config.json"
    except NacreError:
        return None  # many repositories have none
    if not path.is_file():
        return None
    content = load_json(path)
    if not isinstance(content, dict):
        raise NacreError(f"could not read {path}: it holds no mapping")
    return pixels_of(content)


def pixels_of(processor: Mapping[str, Any]) -> PixelsConfig:
    """Return what an image processor of these settings does to pixels."""
    if not processor.get("do_rescale", True):
        return PixelsConfig(mean=None)
    if not processor.get("do_normalize", True):
        return PixelsConfig(mean=(0.0, 0.0, 0.0))
    found = {key: processor.get(f"image_{key}") for key in ("mean", "std")}
    try:
        if found["mean"] is None:
            raise ValueError("null would be pixels of 0 to 255")
        return PixelsConfig.model_validate(found)
    except ValueError as error:
        raise NacreError(
            "the image processor says that it normalizes pixels, and its image_mean and image_std, "
            f"{shown(found['mean'])} and {shown(found['std'])}, are not three numbers each: say it "
            "by model.pixels"
        ) from error


def _architecture(transformers: Any, settings: Any) -> dict[str, Any]:
    plain = json.loads(json.dumps(settings.to_dict(), default=str))
    return own_options(transformers, settings.model_type, plain, type(settings).__name__)


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep back warnings about new scoring layers: they are what is wanted."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


@contextlib.contextmanager
def _in_one_sentence(config: ExternalConfig) -> Iterator[None]:
    """Explain in one sentence what transformers does not take."""
    try:
        yield
    except NacreError:
        raise
    except Exception as error:  # a library of many networks, each with its own checks
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise NacreError(f"model.name={config.name!r}: {reason}") from error


def own_options(
    transformers: Any, model_type: str, values: Mapping[str, Any], origin: str = ""
) -> dict[str, Any]:
    """Return what of a config's values is a size or setting of its model type, and plain.

    Of values that were read from somewhere, the `origin`, others are left out; those that a user or
    a model file gives are all to be taken.

    Raises:
        NacreError: a value is none that is taken, or what is left out makes another network.
    """
    known, kept = own_fields(transformers, model_type), dict[str, Any]()
    for key, value in values.items():
        if origin and value and _FETCHES.fullmatch(key):
            raise NacreError(
                f"{origin} builds on {key}={shown(value)}, which nacre does not fetch: give the "
                "network itself, nacre.learn(…, start=network)"
            )
        if origin and key not in known:
            continue
        if key not in known:
            hint = "" if _NEVER.fullmatch(key) else did_you_mean(key, known)
            raise NacreError(
                f"model.options: {shown(key)} is no size or setting that nacre takes of the model "
                f"type {model_type!r}{hint}"
            )
        if isinstance(value, Mapping) and key.endswith("_config"):
            inner = inner_type(transformers, model_type, key, value)
            others = {name: one for name, one in value.items() if name != "model_type"}
            value = {"model_type": inner, **own_options(transformers, inner, others, origin)}
        try:
            check_plain(value)
        except ValueError as error:
            raise NacreError(f"{origin or 'model.options'}: {key}: {error}") from error
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
