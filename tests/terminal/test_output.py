import os
import subprocess
import sys

from rich.console import Console

from nacre.terminal import Output

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
