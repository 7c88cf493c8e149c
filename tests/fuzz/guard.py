"""Calling a command in this process, held to what a command may do with bad input.

A command ends with exit code 0, or with 1, 2 or 130 and one sentence on stderr, within a time and
a memory. A traceback, a hang or a large appetite is a failure of nacre.
"""

import contextlib
import io
import re
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nacre.cli import main

SECONDS = 20
"""Of computing; waiting for something that never comes is given longer, for a busy machine."""

WAITING = 300
MEMORY = 1 << 30
"""Bytes that a case may take beyond what the process has."""

LONGEST = 6000


class Hang(BaseException):
    """A case took too long."""


@dataclass(frozen=True)
class Outcome:
    """What a command did.

    Attributes:
        code: Its exit code.
        failure: What it should not have done; empty if it behaved.
        errors: What it wrote to stderr.
    """

    code: int
    failure: str
    errors: str


def run(*arguments: object) -> Outcome:
    """Run a command with these arguments and judge it."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failure, code = "", Any
    given, sys.argv = sys.argv, ["nacre", *map(str, arguments)]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _time_limit():
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except Hang:
            failure = f"more than {SECONDS} s"
        except BaseException:
            failure = traceback.format_exc(limit=-4)
    sys.argv = given
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    errors = _text(err)
    return Outcome(code, failure or _judge(code, errors, _text(out), taken), errors)


def _judge(code: Any, errors: str, output: str, taken: int) -> str:
    if "Traceback" in errors + output:
        return "a traceback was printed"
    if taken > MEMORY or "not enough memory" in errors:
        return f"{taken >> 20} MiB were taken"
    if code not in (0, 1, 2, 130):
        return f"exit code {code}"
    if len(errors) > LONGEST:
        return f"an error of {len(errors):,} characters"
    if code and not errors.strip() and not output.strip():
        return "an error without a word"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", errors + output):
        return "control characters in the output"
    return ""


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


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content: bytes = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return content.decode(errors="replace")
