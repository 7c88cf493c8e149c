"""Run a command of nacre that tells every update and saves often: often.py MINUTES ARGUMENTS…"""

import sys

from nacre.cli import main
from nacre.training import resume, window


def be_often(minutes: float) -> None:
    """Have every update told, and a step saved every so many minutes."""
    window.LOG_EVERY = 1
    resume.CHECKPOINT_MINUTES = minutes


if __name__ == "__main__":
    be_often(float(sys.argv.pop(1)))
    main()
