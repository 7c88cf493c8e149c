"""Networks of other libraries, as a config names them, and those that a Python program passes.

model: {kind: external, library: transformers, name: nvidia/mit-b0}     weights of the hub
model: {kind: external, library: transformers, name: ./my-folder}       of `save_pretrained`
model: {kind: external, library: transformers, name: segformer, weights: none,
        options: {hidden_sizes: [8, 16, 32, 64]}}
model: {kind: external, library: smp, name: Unet/resnet34}
model: {kind: external, library: torchvision, name: lraspp_mobilenet_v3_large, weights: none}

Each becomes the inner module of an `Adapter`. A network that a program passes to `nacre.learn`
cannot be built from a name: the model file stores its class name, and the program that opens the
file passes such a network again (`nacre.load(path, network=…)`), with the classes that it had
before the first step.

A config of transformers can name code, repositories and folders, which the library would load. So
only the fields that a model type adds to the common ones are accepted, without those that name
another network to download, and only plain values (`nacre.models.config.check_plain`), whether they
come from a user's config, a model file or a repository's config.json.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.adapter import IMAGENET, Adapter
from nacre.models.backbone import check_timm_name
from nacre.models.config import (
    AdapterConfig,
    ExternalConfig,
    ModelConfig,
    PixelsConfig,
    check_plain,
)
from nacre.models.weights import hub_file
from nacre.utils.io import load_json
from nacre.utils.system import import_extra

Parts = tuple[nn.Module, ExternalConfig, PixelsConfig | None]
"""A library's module, the config that builds it without downloads, and its pixels if known."""


def build(
    config: ExternalConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Make a network of another library in an adapter."""
    load = load and config.weights != "none"
    model, rebuilt, pixels = _make(config, num_outputs(config, classes_per_step), load)
    return adapt(model, rebuilt, classes_per_step, pixels=pixels)


def make(config: ExternalConfig, num_classes: int) -> nn.Module:
    """Make only the library's module, with random weights and without running it."""
    return _make(config, num_classes, False)[0]


def _make(config: ExternalConfig, num_classes: int, load: bool) -> Parts:
    if config.library == "transformers":
        return make_transformers(config, num_classes, load)
    if config.library == "python":
        raise NacreError(
            f"its network is a {config.name} that a Python program made: build one with the "
            "classes that it had then, and open the file with nacre.load(path, network=…)"
        )
    make_module = _make_smp if config.library == "smp" else _make_torchvision
    rebuilt = config.model_copy(update={"weights": "none"})
    return make_module(config, num_classes, load), rebuilt, None


def num_outputs(config: AdapterConfig, classes_per_step: Sequence[int]) -> int:
    """Return the number of channels that the network itself has in step 0."""
    return classes_per_step[0] - (config.background is None)


def adapt(
    model: nn.Module,
    config: AdapterConfig,
    classes_per_step: Sequence[int],
    *,
    pixels: PixelsConfig | None = None,
) -> Adapter:
    """Put a network into an adapter.

    Args:
        model: has the channels of step 0 (`Network.match_state` adds those of a file); a network
            of another precision is converted to float32.
        config: its config; the adapter's config says how to build the network again.
        classes_per_step: channels of each step that was learned.
        pixels: the normalization that it expects, if the config does not have one.
    """
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in model.parameters()):
        # Losses and updates are in float32; train.precision computes in half precision.
        model = model.float()
    pixels = config.pixels or pixels or IMAGENET
    adapter = Adapter(
        model,
        background=config.background,
        scoring_layers=config.scoring_layers or None,
        pixels=pixels,
        stages=config.stages,
    )
    adapter.config = config.model_copy(update={"pixels": pixels})
    if config.ledger is not None:
        own = config.own_steps(classes_per_step)
        adapter.add_ledger(config.ledger, classes_per_step[len(own) :])
    return adapter


def is_given(config: ModelConfig) -> bool:
    """Return True if a Python program passed the network, so that no file can build it."""
    return isinstance(config, ExternalConfig) and config.library == "python"


def describe_given(model: nn.Module) -> ExternalConfig:
    """Return the config of a network that a program passes: its library's, or its class name."""
    settings = getattr(model, "config", None)
    if type(model).__module__.startswith("transformers.") and hasattr(settings, "model_type"):
        config = _describe_transformers(model)
        if config is not None:
            return config
    name = f"{type(model).__module__}.{type(model).__qualname__}"[:300]
    return ExternalConfig(library="python", name=name, weights="none")


# torchvision and smp


def _make_torchvision(config: ExternalConfig, num_classes: int, load: bool) -> nn.Module:
    import_extra("torchvision", "torchvision")
    models = import_extra("torchvision.models", "torchvision")
    known = models.list_models(models.segmentation)
    if config.name not in known:
        raise NacreError(
            f"model.name={shown(config.name)}: torchvision has no such segmentation network"
            f"{did_you_mean(config.name, known)}; known: {', '.join(known)}"
        )
    if config.weights not in ("pretrained", "imagenet", "none"):
        raise NacreError(f"model.weights={config.weights!r}: give 'pretrained' or 'none'")
    weights = "IMAGENET1K_V1" if load else None
    try:
        model: nn.Module = models.get_model(
            config.name, weights=None, weights_backbone=weights, num_classes=num_classes
        )
    except Exception as error:  # such as a failed download
        raise NacreError(
            f"torchvision cannot make {config.name}: {' '.join(str(error).split())[:300]}"
        ) from error
    return model


def _make_smp(config: ExternalConfig, num_classes: int, load: bool) -> nn.Module:
    smp = import_extra("segmentation_models_pytorch", "smp")
    architecture, _, encoder = config.name.partition("/")
    if encoder.startswith("tu-"):
        check_timm_name(import_extra("timm", "timm"), encoder.removeprefix("tu-"))
    elif encoder not in smp.encoders.encoders:
        hint = did_you_mean(encoder, smp.encoders.encoders)
        raise NacreError(
            f"model.name={shown(config.name)}: smp has no encoder {shown(encoder)}{hint}; give "
            "architecture and encoder, such as Unet/resnet34"
        )
    weights = "imagenet" if config.weights == "pretrained" else config.weights
    try:
        model: nn.Module = smp.create_model(
            architecture,
            encoder_name=encoder,
            encoder_weights=weights if load else None,
            classes=num_classes,
        )
    except Exception as error:  # such as an unknown name or a failed download
        reason = " ".join(str(error).split())[:300]
        raise NacreError(
            f"smp cannot make {shown(architecture)} with the encoder {encoder!r} and "
            f"weights {config.weights!r}: {reason}"
        ) from error
    return model


# transformers

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_FETCHES = re.compile(r"backbone|backbone_kwargs|use_\w*backbone|quantization_config")
_NEVER = re.compile(
    rf"{_FETCHES.pattern}|_\w*|auto_map|trust_remote_code|\w*_implementation|\w*dtype|\w*_name_or_path"
)


def make_transformers(config: ExternalConfig, num_classes: int, load: bool = False) -> Parts:
    """Make a network of transformers, with random weights unless `load` is True."""
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
    rebuilt = {
        "name": settings.model_type,
        "weights": "none",
        "options": _architecture(transformers, settings),
    }
    return model, config.model_copy(update=rebuilt), pixels


def _describe_transformers(model: Any) -> ExternalConfig | None:
    """Return the config that builds this network; None if its own config is not enough for it."""
    transformers = import_extra("transformers", "hf")
    settings = model.config
    try:
        options = _architecture(transformers, settings)
        config = ExternalConfig(
            library="transformers", name=settings.model_type, weights="none", options=options
        )
        with torch.device("meta"):
            rebuilt, _, _ = make_transformers(config, settings.num_labels)
    except (NacreError, ValidationError):
        return None
    same = type(rebuilt) is type(model) and _shapes(rebuilt) == _shapes(model)
    return config if same else None


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in model.state_dict().items()}


def _settings(transformers: Any, config: ExternalConfig) -> tuple[Any, PixelsConfig | None]:
    """Return transformers' config of the network, and the pixels of its processor."""
    options, pixels = config.options, None
    if config.weights not in ("pretrained", "none"):
        raise NacreError(f"model.weights={config.weights!r}: give 'pretrained' or 'none'")
    if config.name in transformers.CONFIG_MAPPING:
        # A folder of the same name is ignored: anybody could have put it there.
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
    """Return the model type and the options in the config.json of a folder or repository."""
    path = _folder(name, "config.json") / "config.json"
    if not path.is_file():
        raise NacreError(f"model.name={name!r}: the folder has no config.json")
    content = load_json(path)
    model_type = content.get("model_type") if isinstance(content, dict) else None
    if not isinstance(model_type, str) or model_type not in transformers.CONFIG_MAPPING:
        raise NacreError(
            f"model.name={name!r}: transformers does not know the model_type of its config.json, "
            f"{shown(model_type)}"
        )
    return model_type, own_options(transformers, model_type, content, str(path))


def _folder(name: str, *files: str) -> Path:
    """Return the folder that has one of these files, downloaded from the hub if necessary."""
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
        raise NacreError(f"could not read {path}: it contains no mapping")
    return pixels_of(content)


def pixels_of(processor: Mapping[str, Any]) -> PixelsConfig:
    """Return the normalization of an image processor with these settings."""
    if not processor.get("do_rescale", True):
        return PixelsConfig(mean=None)
    if not processor.get("do_normalize", True):
        return PixelsConfig(mean=(0.0, 0.0, 0.0))
    values = {key: processor.get(f"image_{key}") for key in ("mean", "std")}
    try:
        if values["mean"] is None:
            raise ValueError("null would mean pixels of 0 to 255")
        return PixelsConfig.model_validate(values)
    except ValueError as error:
        raise NacreError(
            "the image processor normalizes pixels, but its image_mean and image_std, "
            f"{shown(values['mean'])} and {shown(values['std'])}, are not three numbers each: set "
            "model.pixels"
        ) from error


def _architecture(transformers: Any, settings: Any) -> dict[str, Any]:
    plain = json.loads(json.dumps(settings.to_dict(), default=str))
    return own_options(transformers, settings.model_type, plain, type(settings).__name__)


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Suppress warnings about new scoring layers, which are intended."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


@contextlib.contextmanager
def _in_one_sentence(config: ExternalConfig) -> Iterator[None]:
    """Turn an error of transformers into one sentence."""
    try:
        yield
    except NacreError:
        raise
    except Exception as error:  # each of its networks has its own checks
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise NacreError(f"model.name={config.name!r}: {reason}") from error


def own_options(
    transformers: Any, model_type: str, values: Mapping[str, Any], origin: str = ""
) -> dict[str, Any]:
    """Return those values of a config that are plain sizes or settings of its model type.

    If the values were read from an `origin`, others are left out. If a user or a model file gives
    them, all must be accepted.

    Raises:
        NacreError: a value is not accepted, or a value that is left out makes another network.
    """
    known, accepted = _own_fields(transformers, model_type), dict[str, Any]()
    for key, value in values.items():
        if origin and value and _FETCHES.fullmatch(key):
            raise NacreError(
                f"{origin} builds on {key}={shown(value)}, which nacre does not download: pass the "
                "network itself, nacre.learn(…, start=network)"
            )
        if origin and key not in known:
            continue
        if key not in known:
            hint = "" if _NEVER.fullmatch(key) else did_you_mean(key, known)
            raise NacreError(
                f"model.options: {shown(key)} is not a size or setting that nacre accepts for the "
                f"model type {model_type!r}{hint}"
            )
        if isinstance(value, Mapping) and key.endswith("_config"):
            inner = _inner_type(transformers, model_type, key, value)
            others = {name: setting for name, setting in value.items() if name != "model_type"}
            value = {"model_type": inner, **own_options(transformers, inner, others, origin)}
        try:
            check_plain(value)
        except ValueError as error:
            raise NacreError(f"{origin or 'model.options'}: {key}: {error}") from error
        accepted[key] = value
    return accepted


def _own_fields(transformers: Any, model_type: str) -> set[str]:
    """Return the accepted fields that a model type's config adds to the common ones."""
    common = transformers.PretrainedConfig().to_dict()
    own = transformers.CONFIG_MAPPING[model_type]().to_dict()
    return {key for key in own if key not in common and not _NEVER.fullmatch(key)}


def _inner_type(transformers: Any, model_type: str, key: str, value: Mapping[str, Any]) -> str:
    """Return the model type of a config within a config; refuse timm's, which downloads."""
    default = getattr(transformers.CONFIG_MAPPING[model_type](), key, None)
    inner = value.get("model_type", getattr(default, "model_type", None))
    if (
        not isinstance(inner, str)
        or inner not in transformers.CONFIG_MAPPING
        or inner.startswith("timm")
    ):
        raise NacreError(
            f"model.options: {key}: {shown(inner)} is not a model type that nacre accepts"
        )
    return inner
