"""The command line: parse, call, print. Everything heavy is imported when it is needed."""

import sys

import typer

# The commands join the application in the order in which `nacre --help` lists them.
from nacre.cli import learn  # noqa: F401  # isort: skip
from nacre.cli import run  # noqa: F401  # isort: skip
from nacre.cli import results  # noqa: F401  # isort: skip
from nacre.cli import predict  # noqa: F401  # isort: skip
from nacre.cli import export  # noqa: F401  # isort: skip
from nacre.cli import inspect  # noqa: F401  # isort: skip
from nacre.cli.app import app, show_bars
from nacre.errors import NacreError, SaidElsewhere
from nacre.utils.signals import obey_parent


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    obey_parent()
    show_bars()
    try:
        app()
    except SaidElsewhere:
        sys.exit(2)
    except NacreError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
