"""What commands print: names from files do nothing, any encoding will do, errors are sentences."""

import io
import os
import subprocess
import sys

import pytest
from rich.table import Table

from nacre.errors import NacreError, user_message
from nacre.report.tables import Cell, Column, ResultTable, TableRow, to_csv, to_markdown
from nacre.terminal import PlainConsole

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
@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
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


def hostile_table():
    names = ("=1+1", "@x", "<script>alert(1)</script>", "a|b\n[x](http://y)")
    rows = [TableRow(name, (Cell((0.5,)),), 1) for name in names]
    return ResultTable("<b>t</b>", "<i>caption</i>", (Column("=cmd", "-all"),), tuple(rows))


def test_tables_hold_no_formulas_html_or_links():
    table = hostile_table()
    rows = to_csv([table]).splitlines()[1:]
    assert all(not field.startswith(("=", "@")) for row in rows for field in row.split(","))
    markdown = to_markdown(table)
    assert "<" not in markdown
    assert "](" not in markdown.replace("\\]", "")
