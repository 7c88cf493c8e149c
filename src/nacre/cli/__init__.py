"""The command line: parse, call, print. Everything heavy is imported when it is needed."""

import sys
from typing import Any

# The commands join the application in the order in which `nacre --help` lists them.
from nacre.cli import learn  # noqa: F401  # isort: skip
from nacre.cli import run  # noqa: F401  # isort: skip
from nacre.cli import grid  # noqa: F401  # isort: skip
from nacre.cli import results  # noqa: F401  # isort: skip
from nacre.cli import predict  # noqa: F401  # isort: skip
from nacre.cli import imports  # noqa: F401  # isort: skip
from nacre.cli import export  # noqa: F401  # isort: skip
from nacre.cli import inspect  # noqa: F401  # isort: skip
from nacre.cli.app import app, echo, finish_output, make_output_safe, show_bars
from nacre.errors import NacreError, SaidElsewhere, as_sentence
from nacre.utils.signals import obey_parent


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    obey_parent()
    show_bars()
    make_output_safe()
    code: Any = 2
    try:
        app()
    except SystemExit as end:
        code = end.code
    except SaidElsewhere:
        pass
    except (NacreError, OSError, MemoryError, RuntimeError) as error:
        sentence = as_sentence(error)
        if sentence is None:
            raise
        echo(f"error: {sentence}", err=True)
    sys.exit(code if finish_output() else code or 2)
