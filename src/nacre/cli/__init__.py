"""The command line: each module has a group of commands and prints their results.

Commands import torch and the packages that need it only when they run.
"""

import os
import sys
import traceback
from typing import Any

from nacre.cli import app, grid, imports, learn, look, results, run, use  # noqa: F401
from nacre.errors import ReportedElsewhere, user_message
from nacre.terminal import accept_any_character, progress_bar
from nacre.utils.progress import set_progress_bar
from nacre.utils.signals import exit_with_parent


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    exit_with_parent()
    set_progress_bar(progress_bar)
    accept_any_character()
    is_one_of_several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    code: Any = 2
    try:
        app.program(prog_name="nacre")
    except SystemExit as end:
        code = end.code
    except ReportedElsewhere:
        pass
    except Exception as error:
        sentence = user_message(error)
        if sentence is not None:
            app.echo(f"error: {sentence}", err=True)
        elif is_one_of_several:
            traceback.print_exc()
            code = 1
        else:
            raise
    code = code if app.finish_output() else code or 2
    if is_one_of_several:
        from nacre.utils.distributed import exit_process

        exit_process(code or 0)
    sys.exit(code)
