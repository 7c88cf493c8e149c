"""Runs a command in this process and checks how it handles bad input.

A command must end with exit code 0, or with 1, 2 or 130 and one sentence on stderr, within limits
of time and memory. A traceback or a hang is a failure.
"""

import contextlib
import io
import re
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nacre.cli import main

SECONDS = 20
"""Limit of processor time; waiting has a higher limit, for a busy machine."""

WAITING = 300
MEMORY = 1 << 30
"""Additional bytes that a case may allocate."""

LONGEST = 6000


class Hang(BaseException):
    """A case took too long."""


class Outcome(NamedTuple):
    """A command's exit code, its failures and its stderr."""

    code: int
    failure: str
    errors: str


def run(*arguments: object) -> Outcome:
    """Run a command and check it."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    given, sys.argv = sys.argv, ["nacre", *map(str, arguments)]
    code: Any = 0
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            failure = limited(main)
        except SystemExit as end:
            failure, code = "", end.code or 0
    sys.argv = given
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    out, err = (one.buffer.getvalue().decode(errors="replace") for one in streams)
    return Outcome(code, failure or _judge(code, err, out, taken), err)


def limited(action: Callable[[], object]) -> str:
    """Return the failure of an action: an unexpected error or a timeout."""
    with _time_limit():
        try:
            action()
        except Hang:
            return f"more than {SECONDS} s"
        except (Exception, KeyboardInterrupt):
            return traceback.format_exc(limit=-4)
    return ""


def _judge(code: Any, errors: str, output: str, taken: int) -> str:
    wrong = {
        "a traceback was printed": "Traceback" in errors + output,
        f"{taken >> 20} MiB were taken": taken > MEMORY or "not enough memory" in errors,
        f"exit code {code}": code not in (0, 1, 2, 130),
        f"an error of {len(errors):,} characters": len(errors) > LONGEST,
        "an error without a word": code and not (errors + output).strip(),
        "control characters": re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", errors + output),
    }
    return "; ".join(what for what, is_so in wrong.items() if is_so)


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = {one: signal.signal(one, stop) for one in (signal.SIGALRM, signal.SIGPROF)}
    signal.alarm(WAITING)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
