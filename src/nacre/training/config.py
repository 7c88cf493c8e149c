"""The config of a run or of a step: typed, frozen, and checked as a whole before anything is done.

There is one builder (`build`) with one order, later over earlier:

    a preset                     or values that fit the machine (`nacre learn` without a preset)
    the method's own values under it
    the start model              its network and crop, if a model is continued
    a file                       YAML, or `config=` in Python
    named options                --method, --seed …, and arguments of these names in Python
    --set a.b=value

The keys of the sections `method`, `model` and `data` depend on the name in each. They are looked up
by that name, not in a union of all types: a method or network of another package is imported only
if somebody names it, so a broken one breaks only itself. All mistakes are reported at once, each
with its place and the nearest known name.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from functools import lru_cache, reduce
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, create_model

from nacre.data import find_dataset
from nacre.data.source import DataConfig
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError, check, shown, unknown_name
from nacre.labels.mapping import LabelPolicy
from nacre.methods import MethodConfig, find_method
from nacre.models.build import is_own_network, model_config_type
from nacre.models.config import DeepLabConfig, ModelConfig
from nacre.models.io import ModelInfo
from nacre.scenarios.scenario import read_scenario
from nacre.training.optim import OptimConfig
from nacre.training.presets import (
    LEARN,
    PAPER_PRESETS,
    PRESETS,
    RIDGE_WITHOUT_BACKGROUND,
    Fit,
    Ground,
    check_weights,
    fitted_values,
    preset_values,
)
from nacre.utils.config import (
    AFTER_STEP_0,
    MAX_YAML_DEPTH,
    NO_EFFECT,
    Config,
    parse_yaml,
    read_yaml,
    result_values,
)

ConfigValues = dict[str, Any]
PrecisionName = Literal["auto", "float32", "tf32", "bfloat16", "float16"]


class TrainConfig(OptimConfig):
    """The training of a step; not all defaults are the paper's, those of the preset `paper` are."""

    epochs: int = Field(30, ge=1, le=100_000, description="passes over a step's images")
    incremental_epochs: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="passes in the steps after step 0; default: `epochs`",
        json_schema_extra=AFTER_STEP_0,
    )
    iterations: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="updates of a step, instead of passes over its images",
    )
    incremental_iterations: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        description="updates in the steps after step 0; default: `iterations`",
        json_schema_extra=AFTER_STEP_0,
    )
    batch_size: int = Field(
        24, ge=1, le=65_536, description="images per update, over all processes together"
    )
    micro_batch: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="images per forward pass and process; gradients add up to `batch_size`",
    )
    lr: float = Field(0.01, gt=0, le=1e6, description="learning rate of step 0")
    incremental_lr: float = Field(
        0.001,
        gt=0,
        le=1e6,
        description="learning rate of the later steps",
        json_schema_extra=AFTER_STEP_0,
    )
    grad_clip_norm: float | None = Field(
        None, gt=0, le=1e9, description="largest gradient norm; default: no limit"
    )
    precision: PrecisionName = Field(
        "auto",
        description="auto: bfloat16 or float16 on CUDA, float32 elsewhere; tf32: float32 with "
        "convolutions in TF32 on CUDA; float32: no TF32 either",
    )
    device: str = Field(
        "auto", description="auto, cpu, cuda, cuda:1, mps", json_schema_extra=NO_EFFECT
    )
    num_workers: Annotated[int, Field(ge=0, le=256)] | Literal["auto"] = Field(
        "auto",
        description="workers that load images, per process; auto: by CPU cores for a GPU, else 0",
        json_schema_extra=NO_EFFECT,
    )
    passes_on: Literal["here", "ray"] = Field(
        "here",
        description="where a method without gradients makes its passes: in the processes of this "
        "run, or on the machines of a Ray cluster",
        json_schema_extra=NO_EFFECT,
    )

    def test_batch(self, world_size: int) -> int:
        """Return the number of images that a process tests at once."""
        return self.micro_batch or max(1, self.batch_size // world_size)


class Recipe(Config):
    """The training and testing of steps on any data."""

    seed: int = Field(
        1, ge=0, lt=2**31, description="random seed for weights, order and augmentation"
    )
    default_labels: ClassVar[Mapping[str, str]] = {"border": "ignored", "unseen": "background"}
    """The default label policy; in a scenario, the data set decides on `border`."""

    method: MethodConfig = Field(json_schema_extra=AFTER_STEP_0)
    model: ModelConfig
    train: TrainConfig = Field(default_factory=TrainConfig)
    images: ImagesConfig = Field(default_factory=ImagesConfig)
    labels: LabelPolicy = Field(default_factory=LabelPolicy)

    def conventions(self) -> ConfigValues:
        """Return all conventions that a figure depends on, for the metrics files."""
        images = {"crop_size", "crop", "eval_mode", "mirror", "edges"}
        labels = self.labels.model_dump(include={"border", "unseen"})
        return labels | self.images.model_dump(include=images)

    def to_dict(self) -> ConfigValues:
        """Return the config as plain data, as it is saved and compared."""
        return self.model_dump(mode="json")


R = TypeVar("R", bound=Recipe)


class RunConfig(Recipe):
    """The config of a run: a recipe, a scenario and its data."""

    scenario: str = Field(
        description="data/task/setup, a shipped scenario or a .yaml file",
        json_schema_extra=AFTER_STEP_0,
    )
    memory: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="images kept for later steps, with the labels of their own step",
        json_schema_extra=AFTER_STEP_0,
    )
    data: DataConfig


class LearnConfig(Recipe):
    """The config of a step of `nacre learn`.

    The paths of the data and the start model affect no result: `data.json` in the step's folder
    has the digests of what they contain.
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
        description="more folders to test on",
        json_schema_extra=NO_EFFECT,
    )
    classes: tuple[str, ...] = Field((), description="learn only these classes of the data")
    new: tuple[str, ...] = Field((), description="new classes whose names resemble known ones")
    rename: dict[str, str] = Field(
        default_factory=dict, description="the model's name of a class, by its name in the data"
    )


def build(
    kind: type[R],
    written: Mapping[str, Any],
    *,
    preset: str | None = None,
    start: ModelInfo | None = None,
    fit: Fit | None = None,
) -> R:
    """Build and check a config; all commands and Python use this function.

    Args:
        kind: The type of the config: of a run, of a step of `nacre learn`, or a recipe.
        written: The user's values (`read_written`).
        preset: The preset below them.
        start: The model that is continued; its network and crop stay.
        fit: The machine and data that the recipe has to fit if there is no preset.
    """
    if preset is not None and preset not in PRESETS:
        raise unknown_name("preset", preset, PRESETS)
    model, chosen = read_section(written, "model"), read_section(written, "method")
    if start is not None:
        model = start.model
    elif preset is not None:
        check_weights(preset, model)
        model = deep_merge(PRESETS[preset], {"model": model})["model"]
    elif fit is not None and not {"backbone", "kind"} & model.keys():
        model = {"weights": "imagenet", **model}
    ground = find_ground(model, is_start=start is not None)
    method = str(chosen.get("name") or default_method(model, ground, preset))
    layers: list[Mapping[str, Any]] = []
    if preset is not None:
        name = written.get("scenario")
        scenario = read_scenario(name) if isinstance(name, str) else None
        layers = [preset_values(preset, scenario, method, chosen)]
    elif fit is not None:
        recipe = "small" if ground in ("weights", "own") else LEARN
        layers = [preset_values(recipe, None, method, chosen), fitted_values(fit, ground, method)]
    if method == "ledger" and ground == "other" and model.get("background", 0) is None:
        layers.append({"method": {"name": method, "ridge": RIDGE_WITHOUT_BACKGROUND}})
    values = _merge_all(layers)
    if start is not None:
        values = deep_merge({**values, "model": start.model}, {"images": {"crop_size": start.crop}})
    values = deep_merge(values, written)
    values["method"] = {**read_section(values, "method"), "name": method}
    try:
        config = resolve(kind, values)
    except NacreError as error:
        if "name" in chosen or "method." not in str(error):
            raise
        raise NacreError(f"{error} (of {method}, as no method is named)") from error
    if start is not None:
        _check_start(config, start)
    return config


def build_config(
    *,
    preset: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    overrides: Mapping[str, Any] | None = None,
) -> RunConfig:
    """Build the config of a run from a preset, a file, plain values and ``a.b=value`` strings."""
    return build(RunConfig, read_written(file, overrides or {}, assignments), preset=preset)


def read_written(
    file: Path | None, options: Mapping[str, Any], assignments: Iterable[str] = ()
) -> ConfigValues:
    """Merge a user's values: a file, over it named options, over these ``a.b=value`` strings."""
    written = read_yaml(file, "config file", "sections, such as `train:`") if file else {}
    return _merge_all([written, options, *map(parse_assignment, assignments)])


def _merge_all(layers: Iterable[Mapping[str, Any]]) -> ConfigValues:
    return reduce(deep_merge, layers, {})


def find_ground(model: Mapping[str, Any], *, is_start: bool) -> Ground:
    """Return what a step builds on, given its network and whether a model is continued."""
    if is_start:
        return "own" if is_own_network(model) else "other"
    config_type = model_config_type(model)
    weights = model.get("weights", config_type.model_fields["weights"].default)
    return "weights" if issubclass(config_type, DeepLabConfig) and weights != "none" else "nothing"


def default_method(model: Mapping[str, Any], ground: Ground, preset: str | None = None) -> str:
    """Return the method of a step or a run if none is named.

    presets of the paper                          mib
    a model with sums                             ledger or duo, as it was learned
    beside an external network                    ledger
    a new network of ours on pretrained weights   duo
    anything else                                 mib
    """
    if preset in PAPER_PRESETS:
        return "mib"
    if model.get("decoder") == "stages" or ground == "other":
        return "ledger"
    if model.get("grid_stride") is not None or ground == "weights":
        return "duo"
    return "mib"


def _check_start(config: Recipe, start: ModelInfo) -> None:
    """Refuse another network or crop than the start model's, which its weights depend on."""
    keys = set(result_values(config.model)) - {"weights"}
    wanted = config.model.model_dump(mode="json")
    for key in sorted(keys & set(start.model)):
        if wanted[key] != start.model[key]:
            raise NacreError(
                f"model.{key}: {wanted[key]!r}, but the start model's is {start.model[key]!r}; "
                "leave it out to continue the start model's network"
            )
    if config.images.crop_size != start.crop:
        raise NacreError(
            f"images.crop_size: {config.images.crop_size}, but the start model was trained at the "
            f"scale of crops of {start.crop} pixels; leave it out"
        )


def resolve(kind: type[R], raw: Mapping[str, Any]) -> R:
    """Check plain data as a whole and return the typed config."""
    method, model = read_section(raw, "method"), read_section(raw, "model")
    method.setdefault("name", default_method(model, find_ground(model, is_start=False)))
    learner = find_method(str(method["name"]))
    if learner.is_joint and not issubclass(kind, RunConfig):
        raise NacreError(
            f"{learner.name!r} learns all classes at once, not in steps; use `ft` instead"
        )
    method["name"] = learner.name
    content: ConfigValues = {**raw, "method": method, "model": model}
    types: list[tuple[str, type[Config]]] = [
        ("method", learner.Config),
        ("model", model_config_type(model)),
    ]
    default_labels = kind.default_labels
    if issubclass(kind, RunConfig):
        name = _dataset_name(raw)
        dataset = find_dataset(name)
        content["data"] = {"name": name, **read_section(raw, "data")}
        types.append(("data", dataset.config))
        default_labels = {"border": dataset.border}
    labels = raw.get("labels") or {}
    if isinstance(labels, Mapping):
        content["labels"] = {**default_labels, **labels}
    return check(_with_types(kind, tuple(types)), content)


@lru_cache
def _with_types(kind: type[R], types: tuple[tuple[str, type[Config]], ...]) -> type[R]:
    """Return a config type whose sections have these types."""
    fields: dict[str, Any] = {key: (own, copy(kind.model_fields[key])) for key, own in types}
    return create_model(kind.__name__, __base__=kind, **fields)


def _dataset_name(raw: Mapping[str, Any]) -> str:
    """Return the name of the data set of a scenario."""
    scenario = raw.get("scenario")
    if not isinstance(scenario, str):
        raise NacreError("no scenario: give data/task/setup, such as scenes/4-2-2/overlapped")
    data = read_scenario(scenario).data
    find_dataset(data, f"data set in scenario {scenario!r}:")
    return data


# The key of a section that decides its other keys, and the default of that key
_CHOSEN_BY = {"method": ("name", None), "data": ("name", None), "model": ("kind", "deeplab")}


def read_section(raw: Mapping[str, Any], key: str) -> ConfigValues:
    """Return a section as a mapping; ``method: mib`` is short for ``method: {name: mib}``."""
    section, chooser = raw.get(key) or {}, _CHOSEN_BY[key][0]
    if isinstance(section, str):
        return {chooser: section}
    if not isinstance(section, Mapping):
        raise NacreError(f"{key}: {shown(section)} is not a mapping such as {{{chooser}: …}}")
    return dict(section)


def deep_merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> ConfigValues:
    """Merge two plain configs, section by section; values of `above` win.

    A section that names another method, data set or kind of network replaces the whole section
    below. Likewise `train.epochs` replaces the keys that count iterations, which would take
    precedence, and `train.iterations` replaces that of the later steps.
    """
    if not isinstance(below, Mapping):
        raise NacreError(f"config: {shown(below)} is not a mapping such as {{'train': …}}")
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if key in _CHOSEN_BY:
            chooser = _CHOSEN_BY[key][0]
            value = {chooser: value} if isinstance(value, str) else value
            old = {chooser: old} if isinstance(old, str) else old
            if isinstance(old, Mapping) and isinstance(value, Mapping):
                old = None if _renames(old, value, key) else old
        if key == "train" and isinstance(value, Mapping):
            old = _without_iterations(old, value)
        if isinstance(value, Mapping) and old is not None:
            if not isinstance(old, Mapping):
                raise NacreError(f"{key}: {shown(old)} is not a mapping of keys to values")
            value = deep_merge(old, value)
        result[key] = value
    return result


def _without_iterations(below: Any, above: Mapping[str, Any]) -> Any:
    """Leave out the lengths of steps in `below` that `above` replaces."""
    replaced = {"incremental_iterations"} if {"epochs", "iterations"} & above.keys() else set()
    if "epochs" in above and "iterations" not in above:
        replaced.add("iterations")
    if not replaced or not isinstance(below, Mapping):
        return below
    return {key: value for key, value in below.items() if key not in replaced}


def _renames(below: Mapping[str, Any], above: Mapping[str, Any], section: str) -> bool:
    key, default = _CHOSEN_BY[section]
    if key not in above:
        return False
    return below.get(key, default) not in (None, above[key])


def parse_assignment(text: str) -> ConfigValues:
    """Read ``a.b=value`` as ``{"a": {"b": value}}``, the value being YAML."""
    path, sign, value = text.partition("=")
    keys = path.strip().split(".")
    if not sign or not all(keys):
        raise NacreError(f"--set {shown(text)} is not of the form section.key=value")
    if len(keys) > MAX_YAML_DEPTH:
        raise NacreError(
            f"--set {shown(text)} names a key within more than {MAX_YAML_DEPTH} others"
        )
    content: Any = parse_yaml(value, f"the value of --set {shown(text)}")
    for key in reversed(keys):
        content = {key: content}
    assert isinstance(content, dict)
    return content


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """List the differences of two plain configs, as ``a.b: 1 -> 2``."""
    lines: list[str] = []
    for key in sorted({*old, *new}):
        a, b = old.get(key), new.get(key)
        inner_a, inner_b = _by_key(a), _by_key(b)
        if inner_a is not None and inner_b is not None:
            lines += differences(inner_a, inner_b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {_brief(a)} -> {_brief(b)}")
    return lines


def _by_key(value: Any) -> Mapping[str, Any] | None:
    """Return a mapping, or a list of mappings as one by position; None for other values."""
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        return {str(i): item for i, item in enumerate(value)}
    return value if isinstance(value, Mapping) else None


def _brief(value: Any) -> str:
    """Return a short text for a value: the name in a section, the start of a digest."""
    if isinstance(value, Mapping) and "name" in value:
        value = value["name"]
    is_digest = isinstance(value, str) and len(value) == 64
    return f"{value[:10]}…" if is_digest else shown(value)
