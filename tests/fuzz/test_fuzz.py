"""Bad input of every kind, made from the config's own schema and from the files that are read.

A key that is added to a config, a file that is added to a run and an option that is added to a
command are tried without a word here. ``make fuzz`` tries all of it, the plain suite a sample.
"""

import ctypes
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from guard import run
from pydantic import BaseModel
from values import BAD_YAML, as_other_thing, damage_bytes, damage_tree
from world import SMALL, Reader, World, read_plain, write_plain

from nacre.cli import app
from nacre.errors import NacreError
from nacre.methods import METHODS
from nacre.runs.learn_config import build_learn_config
from nacre.training.automatic import Choice
from nacre.training.config import build_config

EFFORT = int(os.environ.get("NACRE_FUZZ", "1"))
SCENES = "scenes/4-4/overlapped"
NEVER = ("demo", "serve")
"""Commands that would take minutes or wait for visitors where their values happen to be right."""

LEARNING = ("grid", "learn", "tune")
"""Commands that take seconds where their values happen to be right."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """All valid samples; the working folder is a fresh one."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("here"))
    yield World(tmp_path_factory.mktemp("world"))
    os.chdir(before)


def keys(config: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a config, sections included."""
    for key, value in config:
        yield f"{prefix}{key}"
        if isinstance(value, BaseModel):
            yield from keys(value, f"{prefix}{key}.")


def all_keys() -> list[tuple[str, str]]:
    """Return every key of every method's config, with the method."""
    found: dict[str, str] = {}
    for method in METHODS:
        config = build_config(overrides={"scenario": SCENES, "method": {"name": method}})
        for key in keys(config):
            found.setdefault(key, method)
    return list(found.items())


def fail_with(failures: list[str]) -> None:
    assert not failures, f"{len(failures)} failures:\n" + "\n".join(failures[:30])


def test_every_key_of_every_config_refuses_what_it_cannot_be(world):
    cases = [(key, method, value) for key, method in all_keys() for value in BAD_YAML]
    rng = random.Random(0)
    chosen = cases if EFFORT > 1 else rng.sample(cases, 120)
    failures = []
    for key, method, value in chosen:
        given = ("--set", f"method={method}", "--set", f"{key}={value}")
        outcome = run("plan", SCENES, *SMALL, *given)
        if outcome.failure:
            failures.append(f"{method} {key}={value[:40]!r}: {outcome.failure}")
    print(f"{len(chosen)} keys and values")
    fail_with(failures)


def test_every_key_of_a_step_refuses_what_it_cannot_be():
    """`nacre learn` would learn with what is right; its config is put together here alone."""
    choice = Choice({}, [])
    step = build_learn_config(start=None, automatic=choice, overrides={"data": ["x"]})
    failures = []
    for key in keys(step):
        for value in BAD_YAML if EFFORT > 1 else random.Random(key).sample(BAD_YAML, 8):
            given = {"start": None, "automatic": choice, "overrides": {"data": ["x"]}}
            try:
                build_learn_config(assignments=[f"{key}={value}"], **given)
            except NacreError:
                pass
            except Exception as error:
                failures.append(f"{key}={value[:40]!r}: {error!r:.200}")
    fail_with(failures)


def test_every_number_refuses_true(world):
    failures = []
    for key, method in all_keys():
        given = {"scenario": SCENES, "method": {"name": method}}
        value = build_config(overrides=given)
        for part in key.split("."):
            value = getattr(value, part)
        if isinstance(value, int | float) and not isinstance(value, bool):
            outcome = run("plan", SCENES, "--set", f"method={method}", "--set", f"{key}=true")
            if outcome.code != 2 or "true" not in outcome.errors:
                failures.append(f"{key}=true: {outcome.code} {outcome.errors}")
    fail_with(failures)


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return {name: one for name, one in group.commands.items() if name not in NEVER}


def bad_arguments(world: World) -> tuple[str, ...]:
    loop = world.root / "loop"
    if not loop.is_symlink():
        loop.symlink_to(loop)
        os.mkfifo(world.root / "pipe")
    odd = (
        "",
        ".",
        "..",
        "~nobody/x",
        "a\n[/b]",
        "[red]",
        "-1",
        "nan",
        "1e999",
        "\udce9",
        "\x1b[2J",
    )
    places = ("loop", "pipe", "picture.png", "picture.png/x", "data", "index.csv")
    long = ("x" * 300, "x/" * 3000, "9" * 400, "/dev/zero", "/proc/self/mem", "/nowhere/x")
    return (*odd, *long, *(str(world.root / one) for one in places))


def test_every_option_of_every_command_takes_anything(world):
    failures = []
    count = 0
    rng = random.Random(1)
    bad = bad_arguments(world)
    for name, command in commands().items():
        values = bad if EFFORT > 1 else rng.sample(bad, 1 if name in LEARNING else 2)
        for parameter in command.params:
            if getattr(parameter, "is_flag", False):
                continue
            for value in values:
                arguments = _arguments(command, parameter.name, value, world)
                enter_empty_folder(world)
                outcome = run(name, *arguments)
                count += 1
                if outcome.failure:
                    failures.append(f"{name} {arguments!r:.200}: {outcome.failure}")
                    print(failures[-1], flush=True)
    print(f"{count} command lines")
    fail_with(failures)


def enter_empty_folder(world: World) -> None:
    """Let neither `.` nor `..` hold what earlier commands wrote."""
    inner = Path(tempfile.mkdtemp(dir=world.root)) / "inner"
    inner.mkdir()
    os.chdir(inner)


def _arguments(command: Any, wanted: str | None, value: str, world: World) -> list[str]:
    """Return a command line with one bad value, and something in all required places."""
    usual = {"scenario": SCENES, "name": "folder", "root": str(world.data), "runs": str(world.run)}
    usual |= {"model": str(world.run), "pictures": str(world.root / "picture.png")}
    usual |= {"file": str(world.root / "grid.yaml"), "data": str(world.data)}
    usual |= {"export": str(world.data), "to": "imported"}  # tracing a model takes too long
    takes = {parameter.name for parameter in command.params}
    arguments = [*SMALL] if "set_" in takes and command.name != "learn" else []
    for name in ("scenario", "data", "file"):  # without them nothing else is looked at
        if name in takes and command.name in LEARNING and name != wanted:
            arguments.append(usual[name])
    if command.name in LEARNING and "config" in takes - {wanted}:
        arguments.append(f"--config={world.root / 'step.yaml'}")
    for parameter in command.params:
        if parameter.name != wanted and not parameter.required:
            continue
        given = value if parameter.name == wanted else usual.get(parameter.name or "", "tiny")
        if parameter.param_type_name == "option":
            arguments.append(f"{max(parameter.opts, key=len)}={given}")
        else:
            arguments.append(given)
    return arguments


def damaged(reader: Reader, rng: random.Random) -> Iterator[str]:
    """Damage a file in one way after another, and say how; it is whole again at the end."""
    whole = reader.path.read_bytes()
    plain = read_plain(reader.path)
    try:
        cases = list(damage_bytes(whole, rng, 4 * EFFORT))
        for name, content in cases if EFFORT > 1 else rng.sample(cases, 2):
            reader.path.write_bytes(content)
            yield name
        reader.path.write_bytes(whole)
        if plain is not None:
            for name, changed in damage_tree(plain, 3 if EFFORT == 1 else 12 * EFFORT, rng):
                reader.path.write_bytes(whole)
                write_plain(reader.path, changed)
                yield name
        reader.path.write_bytes(whole)
        others = as_other_thing(reader.path)
        for name in others:
            if EFFORT > 1 or rng.random() < 0.2:
                yield name
    finally:
        if reader.path.is_dir() and not reader.path.is_symlink():
            reader.path.rmdir()
        reader.path.unlink(missing_ok=True)
        reader.path.write_bytes(whole)


def test_every_file_that_is_read_may_be_damaged(world):
    failures = []
    count = 0
    rng = random.Random(2)
    for reader in world.readers():
        for how in damaged(reader, rng):
            chosen = reader.commands if EFFORT > 1 else [rng.choice(reader.commands)]
            for command in chosen:
                arguments = [reader.path if one == "{file}" else one for one in command]
                if command[0] == "run" and "metrics" in reader.name and EFFORT == 1:
                    continue  # a step that seems untested is tested again
                outcome = run(*arguments)
                count += 1
                if outcome.failure:
                    failures.append(f"{reader.name}, {how}: {command[0]}: {outcome.failure}")
                    print(failures[-1], flush=True)
    print(f"{count} damaged files")
    fail_with(failures)


def drop_privileges() -> None:
    """Make this process one to which the permissions of files apply, even if root began it."""
    if os.geteuid() == 0:
        header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(header, none) == 0


def run_without_privileges(commands: list[tuple[object, ...]]) -> list[tuple[int, str, str]]:
    """Run commands in a process of its own; return their code, failure and errors."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            drop_privileges()
            outcomes = [run(*command) for command in commands]
            with os.fdopen(writing, "w") as file:
                json.dump([(one.code, one.failure, one.errors) for one in outcomes], file)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        content = file.read()
    os.waitpid(child, 0)
    return [tuple(one) for one in json.loads(content)]


@pytest.mark.skipif(sys.platform != "linux", reason="privileges are dropped as Linux knows them")
def test_places_that_a_user_may_not_enter_or_change_are_named(world, tmp_path):
    closed, fixed = tmp_path / "closed", tmp_path / "fixed"
    closed.mkdir(mode=0)
    fixed.mkdir(mode=0o555)
    picture = world.root / "picture.png"
    commands = [
        ("data", "folder", "--root", closed / "data"),
        ("plan", "folder/1-1/overlapped", "--root", closed / "data"),
        ("plan", SCENES, "--config", closed / "config.yaml"),
        ("plan", "voc/15-5/overlapped", "--index", closed / "index.csv"),
        ("run", SCENES, *SMALL, "--out", closed / "run"),
        ("run", SCENES, *SMALL, "--out", fixed / "run"),
        ("run", SCENES, *SMALL, "--base", closed / "run", "--out", tmp_path / "a"),
        ("learn", closed / "data", "--out", tmp_path / "b"),
        ("learn", world.data, "--start", closed / "model", "--out", tmp_path / "c"),
        ("learn", world.data, "--config", world.root / "step.yaml", "--out", fixed / "d"),
        ("log", closed / "model"),
        ("table", closed),
        ("report", closed / "run", "--out", tmp_path / "e"),
        ("report", world.run, "--out", fixed / "e", "--pictures", "0"),
        ("eval", closed / "run"),
        ("predict", closed / "run", picture),
        ("predict", world.run, closed / "picture.png"),
        ("predict", world.run, closed),
        ("predict", world.run, picture, "--out", fixed / "f"),
        ("predict", world.run, picture, "--out", closed / "f"),
        ("grid", closed / "grid.yaml"),
        ("grid", "--scenarios", SCENES, "--methods", "ft", "--out", closed / "grid"),
        ("tune", SCENES, *SMALL, "--method", "lwf", "--out", fixed / "g"),
        ("import", closed / "data", "--to", tmp_path / "h"),
        ("import", world.data, "--to", fixed / "h"),
    ]
    failures = []
    for command, (code, failure, errors) in zip(
        commands, run_without_privileges(commands), strict=True
    ):
        # A long path may be broken over the lines of a box.
        if failure or code != 2 or not re.search("closed|fixed", re.sub(r"[\s│]", "", errors)):
            failures.append(f"{command!r:.150}: {code} {failure} {errors}")
    fail_with(failures)
