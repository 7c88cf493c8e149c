"""Networks of Hugging Face's transformers that segment: SegFormer, BEiT, DPT, MobileViT, …

model: {kind: hf, name: nvidia/mit-b0}                            weights of the hub
model: {kind: hf, name: my-folder}                                a folder of `save_pretrained`
model: {kind: hf, name: segformer, weights: none, options: {hidden_sizes: [8, 16, 32, 64]}}
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from pydantic import Field, ValidationError, field_validator
from torch import nn

from nacre.errors import NacreError, shown
from nacre.models.foreign.adapter import Adapter, Pixels, pixels_of
from nacre.models.hub import hub_file
from nacre.models.kinds.base import ForeignConfig, Kind, adapt, num_outputs
from nacre.models.kinds.hf_options import check_options, check_plain, keep_options
from nacre.utils.io import load_json
from nacre.utils.system import import_extra

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


class HfConfig(ForeignConfig):
    """A network of transformers."""

    kind: Literal["hf"] = Field(default="hf", description="a network of transformers")
    name: str = Field(
        description="a model type of transformers, such as segformer, a repository of the Hugging "
        "Face hub, or a folder"
    )
    weights: Literal["pretrained", "none"] = Field(
        default="pretrained", description="those of the folder or the repository, or none (random)"
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="sizes and settings that transformers' config of that model type knows, such "
        "as hidden_sizes",
    )

    @field_validator("options")
    @classmethod
    def _are_plain(cls, options: dict[str, Any]) -> dict[str, Any]:
        check_plain(options)
        return options

    def check_file(self) -> None:
        """Refuse a repository, a folder or weights, which a user's own config may name."""
        super().check_file()
        if self.name not in import_extra("transformers", "hf").CONFIG_MAPPING:
            raise NacreError(f"its header names {shown(self.name)}, no model type of transformers")


def build(
    config: HfConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Make a network of transformers."""
    transformers = import_extra("transformers", "hf")
    settings, pixels = _settings(transformers, config)
    settings.num_labels = num_outputs(config, classes_per_step)
    with _in_one_sentence(config), _quiet(transformers):
        if load and config.weights == "pretrained":
            model: nn.Module = transformers.AutoModelForSemanticSegmentation.from_pretrained(
                _folder(config.name, *_WEIGHTS),
                config=settings,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
            )
        else:
            model = _from_settings(transformers, settings)
    again = config.model_copy(
        update={
            "name": settings.model_type,
            "weights": "none",
            "options": _architecture(transformers, settings),
        }
    )
    return adapt(model, again, classes_per_step, pixels=pixels)


def make(config: HfConfig, num_classes: int) -> nn.Module:
    """Make transformers' module."""
    transformers = import_extra("transformers", "hf")
    settings, _ = _settings(transformers, config)
    settings.num_labels = num_classes
    with _in_one_sentence(config), _quiet(transformers):
        return _from_settings(transformers, settings)


def _from_settings(transformers: Any, settings: Any) -> nn.Module:
    auto = transformers.AutoModelForSemanticSegmentation
    made: nn.Module = auto.from_config(settings, trust_remote_code=False)
    return made


def describe_model(model: Any) -> HfConfig | None:
    """Return how to build a network of transformers again that is already there.

    None if a file cannot say it: transformers does not make such a network of its config alone.
    """
    transformers = import_extra("transformers", "hf")
    settings = model.config
    try:
        options = _architecture(transformers, settings)
        config = HfConfig(name=settings.model_type, weights="none", options=options)
        with torch.device("meta"):
            again = make(config, settings.num_labels)
    except (NacreError, ValidationError):
        return None
    shapes = ({k: v.shape for k, v in one.state_dict().items()} for one in (model, again))
    return config if type(again) is type(model) and next(shapes) == next(shapes) else None


def _settings(transformers: Any, config: HfConfig) -> tuple[Any, Pixels | None]:
    """Return transformers' config of the network, and what its processor does to pixels."""
    options, pixels = config.options, None
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
        check_options(transformers, model_type, options)
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
    return model_type, keep_options(transformers, model_type, content, str(path))


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


def _pixels(name: str) -> Pixels | None:
    try:
        path = _folder(name, "preprocessor_config.json") / "preprocessor_config.json"
    except NacreError:
        return None  # many repositories have none
    if not path.is_file():
        return None
    content = load_json(path)
    if not isinstance(content, dict):
        raise NacreError(f"could not read {path}: it holds no mapping")
    return pixels_of(SimpleNamespace(**content))


def _architecture(transformers: Any, settings: Any) -> dict[str, Any]:
    plain = json.loads(json.dumps(settings.to_dict(), default=str))
    return keep_options(transformers, settings.model_type, plain, type(settings).__name__)


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep warnings about a new head to oneself: a new head is what is wanted."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


@contextlib.contextmanager
def _in_one_sentence(config: HfConfig) -> Iterator[None]:
    """Say in one sentence what transformers does not take."""
    try:
        yield
    except NacreError:
        raise
    except Exception as error:  # a library of many networks, each with its own checks
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise NacreError(f"model.name={config.name!r}: {reason}") from error


KIND = Kind(
    HfConfig, build, "transformers' networks for semantic segmentation: SegFormer, DPT, …", make
)
