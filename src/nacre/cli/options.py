"""Options that several commands share, and how each is declared."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nacre.errors import NacreError


def argument(placeholder: str, help: str) -> Any:
    """Declare an argument."""
    return typer.Argument(metavar=placeholder, help=help)


def option(placeholder: str, help: str, *names: str, **settings: Any) -> Any:
    """Declare an option with a value; its name is that of the parameter by default."""
    return typer.Option(*names, metavar=placeholder, help=help, **settings)


def flag(name: str, help: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(name, metavar="", help=help)


Scenario = Annotated[
    str | None, argument("SCENARIO", "data/task/setup, a name from `nacre plan`, or a .yaml file.")
]

Root = Annotated[Path | None, option("FOLDER", "Folder of the data set.")]

MethodName = Annotated[
    str | None,
    option(
        "NAME",
        "Training method (see `nacre methods`). Default: duo on pretrained weights; mib without "
        "them and under the presets of the paper.",
    ),
]

Preset = Annotated[
    str | None,
    option("NAME", "Config values to begin with, under your own: paper, text, small or demo."),
]

Seed = Annotated[
    int | None,
    option("NUMBER", "Random seed for weights, order and augmentation. Default: 1.", min=0),
]

Cache = Annotated[
    Path | None,
    option("FOLDER", "Folder of learned steps that runs share; a step in it is not trained again."),
]

Config = Annotated[Path | None, option("FILE", "YAML file with config values.")]

Set = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Set one config value over all others, such as train.batch_size=8. Repeatable.",
        "--set",
    ),
]

Track = Annotated[
    list[str] | None, option("NAME", "Log to tensorboard, wandb or trackio. Repeatable.")
]

Json = Annotated[bool, flag("--json", "Print JSON instead of a table.")]

ModelPath = Annotated[Path, argument("MODEL", "A run folder, a step folder or a model file.")]

OutModel = Annotated[Path, option("FOLDER", "Folder for the new model.")]


def split_names(text: str) -> list[str]:
    """Return comma-separated names without blanks around them."""
    return [name.strip() for name in text.split(",") if name.strip()]


def split_pairs(texts: list[str] | None, name: str, example: str) -> dict[str, str]:
    """Return a repeatable ``KEY=VALUE`` option as a mapping; the last sign separates."""
    pairs = {}
    for text in texts or ():
        key, sign, value = text.rpartition("=")
        if not sign or not key or not value.strip():
            raise NacreError(f"{name} {text!r} is not of the form {example}")
        pairs[key] = value
    return pairs


def config_values(**given: Any) -> dict[str, Any]:
    """Return config values from options; those not given are left out."""
    values = {key: value for key, value in given.items() if value is not None and key != "root"}
    if "method" in values:
        values["method"] = {"name": values["method"]}
    if given.get("root") is not None:
        values["data"] = {"root": str(given["root"])}
    return values
