"""Options that several commands have in common."""

from pathlib import Path
from typing import Annotated

import typer

Scenario = Annotated[
    str | None,
    typer.Argument(help="data/task/setup, a name from `nacre scenarios`, or a .yaml file"),
]

Root = Annotated[Path | None, typer.Option(help="Folder of the data set.")]

MethodName = Annotated[str | None, typer.Option(help="See `nacre methods`.")]

Preset = Annotated[str | None, typer.Option(help="paper, small or demo.")]

Seed = Annotated[int | None, typer.Option(min=0, help="1 unless given.")]

Base = Annotated[
    Path | None, typer.Option(help="A run whose step 0 is taken over, not learnt again.")
]

Lists = Annotated[Path | None, typer.Option(help="Folder with published image lists train-K.npy.")]

Config = Annotated[Path | None, typer.Option(help="YAML file with config values.")]

Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One config value, such as train.batch_size=8."
    ),
]
