"""The config of `nacre learn`: a recipe, the data of one step, and the model it starts from."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, create_model

from nacre.errors import NacreError, describe_errors, shown
from nacre.methods import find_method
from nacre.models.io import ModelInfo
from nacre.training.automatic import Choice
from nacre.training.config import (
    ConfigValues,
    Recipe,
    deep_merge,
    model_field,
    parse_assignment,
    read_section,
)
from nacre.training.presets import check_weights, preset_values
from nacre.utils.config import AFTER_STEP_0, NO_EFFECT, read_yaml, result_values


def default_method(model: Mapping[str, Any]) -> str:
    """Return what learns a step of a network unless another method is named.

    A model with sums goes on with them (docs/ledger.md); MiB else.
    """
    if model.get("decoder") == "stages":
        return "ledger"
    if model.get("grid_stride") is not None:
        return "duo"
    return "mib"


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


def resolve_learn_config(raw: Mapping[str, Any]) -> LearnConfig:
    """Check plain data as a whole and return the typed config."""
    section = read_section(raw, "method")
    kind = find_method(str(section.get("name", default_method(read_section(raw, "model")))))
    model: type[LearnConfig] = create_model(
        "LearnConfig",
        __base__=LearnConfig,
        method=(kind.Config, Field(json_schema_extra=AFTER_STEP_0)),
        model=model_field(raw),
    )
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
    preset: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    overrides: Mapping[str, Any],
) -> LearnConfig:
    """Put a config together, later over earlier.

    What fits the machine or a preset; the start model's network and crop; a file; ``a.b=value``
    strings; the options of the command.
    """
    written: ConfigValues = (
        read_yaml(file, "config file", "sections, such as `train:`") if file else {}
    )
    _check_said(written, overrides)
    written = deep_merge(written, overrides)
    for text in assignments:
        assigned = parse_assignment(text)
        _check_said(assigned, overrides)
        written = deep_merge(written, assigned)
    written = deep_merge(written, overrides)
    model = start.model if start is not None else read_section(written, "model")
    method = str(read_section(written, "method").get("name", default_method(model)))
    if preset and start is None:
        check_weights(preset, model)
    below = preset_values(preset, None, method) if preset else _automatic(automatic, method)
    below = deep_merge({"labels": {"border": "ignored", "unseen": "background"}}, below)
    if start is not None:
        below["model"] = start.model
        below = deep_merge(below, {"images": {"crop_size": start.crop}})
    _drop_unfitting(below, written, keeps_model=bool(preset) or start is not None)
    config = resolve_learn_config(deep_merge(below, written))
    if start is not None:
        _check_start(config, start)
    return config


def _drop_unfitting(below: ConfigValues, written: ConfigValues, *, keeps_model: bool) -> None:
    """Take out of what was chosen what goes with other choices than those that were written."""
    model = written.get("model")
    if isinstance(model, Mapping) and "backbone" in model and not keeps_model:
        below.pop("model", None)  # weights and head were chosen for another backbone


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
            f"images.crop_size: {config.images.crop_size}, but the start model learnt from crops "
            f"of {start.crop} pixels, and sees things at that scale; leave it out"
        )


def _check_said(written: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    """Refuse a start model or tests that only a config names: the command would not take them."""
    for key, option in (("start", "--start"), ("tests", "--test")):
        if written.get(key) and not said.get(key):
            raise NacreError(
                f"{key}: {shown(written[key])} stands in the config; say it by {option}"
            )


def _automatic(choice: Choice, method: str) -> ConfigValues:
    values: ConfigValues = dict(choice.values)
    if method != "mib":
        values.pop("method", None)  # the other methods have parts of their own
    own = find_method(method).presets.get("learn", {})
    return deep_merge(values, {"method": {"name": method, **own}} if own else {})
