"""What commands print: names from files do nothing, any encoding will do, errors are sentences."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console
from rich.table import Table

from nacre.errors import NacreError, user_message
from nacre.terminal import Output, PlainConsole

NACRE = [sys.executable, "-m", "nacre"]
PLAN = ["plan", "scenes/4-4/overlapped", "--set", "data.train=20", "--set", "data.size=16"]


def shown_by_console(thing):
    file = io.StringIO()
    PlainConsole(file=file, width=100).print(thing)
    return file.getvalue()


@pytest.mark.parametrize("name", ["[/red]", "[red]cat", "[link=x]", ":smile:", "{task.x}"])
def test_names_are_shown_as_they_are(name):
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    assert shown_by_console(name).strip() == name
    assert shown_by_console(table).count(name) == 3


def test_control_characters_do_not_reach_the_terminal():
    assert shown_by_console("a\x1b[2Jb").strip() == "a\\x1b[2Jb"


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_plan_can_be_printed_in_any_encoding(encoding):
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([*NACRE, *PLAN], capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert b"what each step learns from" in done.stdout


def test_an_output_that_is_full_is_one_sentence():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*NACRE, *PLAN, "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_errors_of_the_system_are_sentences():
    assert user_message(PermissionError(13, "Permission denied", "x/y")) == "x/y: Permission denied"
    assert user_message(OSError(28, "No space left on device")).startswith("the output: No space")
    assert user_message(MemoryError()).startswith("there is not enough memory;")
    torch = RuntimeError(
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
    )
    assert "you tried to allocate 9 bytes" in user_message(torch)
    assert user_message(RuntimeError("a bug")) is None
    assert len(user_message(NacreError("x" * 1_000_000))) < 5000


PROGRAM = """
import sys
from rich.console import Console
from nacre.terminal import Output
console = Console(file=Output(sys.stdout))
for line in range(500):  # more than a pipe holds
    console.print(f"line {line}" + 99 * "\\nmore")
print("all done", file=sys.stderr)
"""


def ended(tail):
    command = f'"{sys.executable}" -c "$PROGRAM" {tail}'
    env = {**os.environ, "PROGRAM": PROGRAM}
    return subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True)


def test_a_reader_that_goes_away_does_not_end_the_work():
    done = ended("| head -1; exit ${PIPESTATUS[0]}")
    assert (done.returncode, done.stdout) == (0, "line 0\n")
    assert done.stderr == "the output is lost (Broken pipe); the work continues\nall done\n"


def test_neither_does_a_full_or_a_closed_output():
    full = ended("> /dev/full")
    assert full.returncode == 0
    assert full.stderr.startswith("the output is lost (No space left on device)")
    closed = ended(">&-")
    assert (closed.returncode, closed.stderr) == (0, "all done\n")


def test_a_sound_output_is_as_it_was(capsys):
    Console(file=Output(sys.stdout)).print("hello")
    assert capsys.readouterr().out == "hello\n"
