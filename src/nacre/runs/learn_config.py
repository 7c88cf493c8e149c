"""The config of `nacre learn`: a recipe, the data of one step, and the model it starts from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from nacre.errors import NacreError, describe_errors, shown
from nacre.methods import find_method
from nacre.models.build import OWN, is_own_network, model_config_type
from nacre.models.config import DeepLabConfig
from nacre.models.io import ModelInfo
from nacre.training.automatic import Choice, Ground
from nacre.training.config import (
    ConfigValues,
    Recipe,
    config_type,
    deep_merge,
    read_section,
)
from nacre.training.presets import PAPER_PRESETS, check_weights, preset_values
from nacre.utils.config import NO_EFFECT, result_values


def default_method(model: Mapping[str, Any], ground: Ground) -> str:
    """Return what learns a step unless another method is named (docs/ledger.md).

    Duo, where ImageNet's features are there to build on; a model with sums goes on with them; the
    ledger beside a network of others; MiB else.

    Args:
        model: The start model's network, or what a user says of a new one.
        ground: What the step builds on.
    """
    if model.get("decoder") == "stages" or ground == "other":
        return "ledger"
    is_ours = model.get("kind", OWN) == OWN
    if model.get("grid_stride") is not None or (ground == "weights" and is_ours):
        return "duo"
    return "mib"


def ground_of(start: Mapping[str, Any] | None, model: Mapping[str, Any]) -> Ground:
    """Return what a step builds on.

    Args:
        start: The start model's network, if there is one.
        model: What a user says of a new one.
    """
    if start is not None:
        return "own" if is_own_network(start) else "other"
    kind = model_config_type(model)
    if not issubclass(kind, DeepLabConfig):
        return "nothing"
    is_chosen = "backbone" in model or "kind" in model
    usual = kind.model_fields["weights"].default if is_chosen else "imagenet"
    return "nothing" if model.get("weights", usual) == "none" else "weights"


class LearnConfig(Recipe):
    """Everything that decides what one step computes.

    Where the data and the start model lie is not part of it: what they hold is in the folder's
    fingerprint.
    """

    data: tuple[Path, ...] = Field(
        min_length=1,
        description="folders with images/, masks/ and classes.yaml",
        json_schema_extra=NO_EFFECT,
    )
    start: Path | None = Field(
        None, description="the model that is continued", json_schema_extra=NO_EFFECT
    )
    tests: tuple[Path, ...] = Field(
        (),
        description="more folders to test on, each on the classes it labels",
        json_schema_extra=NO_EFFECT,
    )
    classes: tuple[str, ...] = Field((), description="learn only these of the data's classes")
    new: tuple[str, ...] = Field(
        (), description="names that are new although they look like known ones"
    )
    rename: dict[str, str] = Field(
        default_factory=dict, description="the model's name of a class, by the data's name of it"
    )
    share: dict[str, float] = Field(
        default_factory=dict, description="share of a batch, by the name of a data folder"
    )


def resolve_learn_config(raw: Mapping[str, Any], usual: str = "mib") -> LearnConfig:
    """Check plain data as a whole and return the typed config.

    Args:
        raw: The data.
        usual: The method where none is named.
    """
    section = read_section(raw, "method")
    kind = find_method(str(section.get("name", usual)))
    model = config_type(LearnConfig, kind, raw)
    if kind.is_joint:
        raise NacreError(f"{kind.name!r} learns all classes at once, not a step; `ft` is its like")
    try:
        return model.model_validate({**raw, "method": {"name": kind.name, **section}})
    except ValidationError as error:
        is_of_method = any(one["loc"][:1] == ("method",) for one in error.errors())
        unsaid = is_of_method and "name" not in section
        hint = f" (of {kind.name}, as no method is named)" if unsaid else ""
        raise NacreError(describe_errors(error, model) + hint) from error


def build_learn_config(
    *,
    start: ModelInfo | None,
    automatic: Choice,
    written: ConfigValues,
    preset: str | None = None,
) -> LearnConfig:
    """Put a config together, later over earlier.

    What fits the machine or a preset; the start model's network and crop; what a user says.
    """
    model = read_section(written, "model") if start is None else start.model
    ground = ground_of(None if start is None else model, model)
    usual = "mib" if preset in PAPER_PRESETS else default_method(model, ground)
    method = str(read_section(written, "method").get("name", usual))
    if preset and start is None:
        check_weights(preset, model)
    below = preset_values(preset, None, method) if preset else _automatic(automatic, method)
    below.get("method", {}).pop("name", None)  # that errors can say where nobody named it
    below = deep_merge({"labels": {"border": "ignored", "unseen": "background"}}, below)
    if start is not None:
        below["model"] = start.model
        below = deep_merge(below, {"images": {"crop_size": start.crop}})
    config = resolve_learn_config(deep_merge(below, written), usual)
    if start is not None:
        _check_start(config, start)
    return config


def _check_start(config: LearnConfig, start: ModelInfo) -> None:
    """Refuse a network or a crop that is not the start model's: what it knows is bound to both."""
    keys = set(result_values(config.model)) - {"weights"}
    wanted = config.model.model_dump(mode="json")
    for key in sorted(keys & set(start.model)):
        if wanted[key] != start.model[key]:
            raise NacreError(
                f"model.{key}: {wanted[key]!r}, but the start model's is {start.model[key]!r}; "
                "leave it out, the network of the start model is continued"
            )
    if config.images.crop_size != start.crop:
        raise NacreError(
            f"images.crop_size: {config.images.crop_size}, but the start model learned from crops "
            f"of {start.crop} pixels, and sees things at that scale; leave it out"
        )


def check_said(written: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Refuse a start model or tests that only a config names: the command would not take them."""
    for key, option in (("start", "--start"), ("tests", "--test")):
        if written.get(key) and not said.get(key):
            raise NacreError(
                f"{key}: {shown(written[key])} stands in the config; say it by {option}"
            )


def _automatic(choice: Choice, method: str) -> ConfigValues:
    values: ConfigValues = dict(choice.values)
    if choice.preset:
        return deep_merge(preset_values(choice.preset, None, method), values)
    if method != "mib":
        values.pop("method", None)  # the other methods have parts of their own
    own = find_method(method).presets.get("learn", {})
    return deep_merge(values, {"method": {"name": method, **own}} if own else {})
