"""The command line: parse, call, print. Everything heavy is imported when it is needed."""

import os
import sys
import traceback
from typing import Any

# The commands join the application in the order in which `nacre --help` lists them.
from nacre.cli import learn  # noqa: F401  # isort: skip
from nacre.cli import edit  # noqa: F401  # isort: skip
from nacre.cli import run  # noqa: F401  # isort: skip
from nacre.cli import grid  # noqa: F401  # isort: skip
from nacre.cli import results  # noqa: F401  # isort: skip
from nacre.cli import predict  # noqa: F401  # isort: skip
from nacre.cli import imports  # noqa: F401  # isort: skip
from nacre.cli import export  # noqa: F401  # isort: skip
from nacre.cli import inspect  # noqa: F401  # isort: skip
from nacre.cli.app import app, echo, finish_output, make_output_safe, show_bars
from nacre.errors import ReportedElsewhere, user_message
from nacre.utils.signals import exit_with_parent


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    exit_with_parent()
    show_bars()
    make_output_safe()
    is_one_of_several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    code: Any = 2
    try:
        app()
    except SystemExit as end:
        code = end.code
    except ReportedElsewhere:
        pass
    except Exception as error:
        sentence = user_message(error)
        if sentence is not None:
            echo(f"error: {sentence}", err=True)
        elif is_one_of_several:
            traceback.print_exc()
            code = 1
        else:
            raise
    code = code if finish_output() else code or 2
    if is_one_of_several:
        from nacre.utils.distributed import exit_process

        exit_process(code or 0)
    sys.exit(code)
