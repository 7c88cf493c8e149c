"""Random bad input: config keys, command options, damaged files and damaged exports.

Keys, options and files are found, not listed, so that new ones are tested, too. The cases depend on
a seed, which is fixed by default. NACRE_FUZZ=20 tries twenty times as many cases with another seed
(`make fuzz`); a failure names the seed, and NACRE_SEED=… repeats it.
"""

import contextlib
import functools
import itertools
import os
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from guard import limited, run
from pydantic import BaseModel
from values import BAD_OPTIONS, BAD_YAML, damage_bytes, damage_file
from world import SCENES, SMALL, World

import unprivileged
from importers.exports import WRITERS, zip_folder
from nacre.cli.app import program
from nacre.data.folder import Folder, FolderConfig
from nacre.errors import NacreError, has_control_characters
from nacre.importers import import_export
from nacre.methods import METHODS
from nacre.training.config import build_config

EFFORT = int(os.environ.get("NACRE_FUZZ", "1"))
SEED = int(os.environ.get("NACRE_SEED", random.randrange(10**6) if EFFORT > 1 else 1))
NEVER = ("demo", "serve")
"""Commands that take minutes, or never end, if their values happen to be valid."""

LEARNING = ("grid", "learn", "tune")
"""Commands that take seconds if their values happen to be valid."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """All valid samples; the working folder is a fresh one."""
    made = World(tmp_path_factory.mktemp("world"))
    (made.root / "loop").symlink_to(made.root / "loop")
    os.mkfifo(made.root / "pipe")
    with contextlib.chdir(tmp_path_factory.mktemp("here")):
        yield made


def keys(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a config, sections included, and their values."""
    for key, value in config:
        yield f"{prefix}{key}", value
        if isinstance(value, BaseModel):
            yield from keys(value, f"{prefix}{key}.")


@functools.cache
def all_keys() -> dict[str, tuple[str, Any]]:
    """Return every key of every method's config, with a method that has it and its default."""
    return {
        key: (method, value)
        for method in reversed(list(METHODS))
        for key, value in keys(
            build_config(overrides={"scenario": SCENES, "method": {"name": method}})
        )
    }


def try_key(world: World, rng: random.Random) -> tuple[str, str]:
    key, value = rng.choice(list(all_keys())), rng.choice(BAD_YAML)
    given = ("--set", f"method={all_keys()[key][0]}", "--set", f"{key}={value}")
    return f"{key}={value[:40]!r}", run("plan", SCENES, *SMALL, *given).failure


def try_option(world: World, rng: random.Random) -> tuple[str, str]:
    group: Any = typer.main.get_command(program)
    name = rng.choice([one for one in group.commands if one not in NEVER])
    command = group.commands[name]
    takes = [one for one in command.params if not getattr(one, "is_flag", False)]
    places = ("loop", "pipe", "picture.png", "picture.png/x", "data", "grid.yaml")
    value = rng.choice([*BAD_OPTIONS, *(str(world.root / one) for one in places)])
    arguments = _arguments(command, rng.choice(takes).name, value, world)
    # Neither `.` nor `..` holds what earlier commands wrote.
    inner = Path(tempfile.mkdtemp(dir=world.root)) / "inner"
    inner.mkdir()
    with contextlib.chdir(inner):
        return f"{name} {arguments!r:.300}", run(name, *arguments).failure


def _arguments(command: Any, wanted: str | None, value: str, world: World) -> list[str]:
    """Return a command line with one bad value and valid values for all required parameters."""
    usual = {"scenario": SCENES, "name": "folder", "root": world.data, "runs": world.run}
    usual |= {"model": world.run, "images": world.root / "picture.png", "to": "imported"}
    usual |= {"file": world.root / "grid.yaml", "data": world.data, "export": world.data}
    takes = {parameter.name for parameter in command.params}
    arguments = [*SMALL] if "set_" in takes and command.name != "learn" else []
    if command.name in LEARNING:  # without them nothing else is looked at
        needed = [name for name in ("scenario", "data", "file") if name in takes - {wanted}]
        arguments += [str(usual[name]) for name in needed]
        if "config" in takes - {wanted}:
            arguments.append(f"--config={world.root / 'step.yaml'}")
    for parameter in command.params:
        if parameter.name != wanted and not parameter.required:
            continue
        given = value if parameter.name == wanted else usual.get(parameter.name, "tiny")
        option = parameter.param_type_name == "option"
        arguments.append(f"{max(parameter.opts, key=len)}={given}" if option else str(given))
    return arguments


def try_file(kind: str, world: World, rng: random.Random) -> tuple[str, str]:
    """Damage a file with a matching name, run a command that reads it, and restore it."""
    readers = world.readers()
    name = rng.choice([one for one in readers if re.search(kind, one)])
    path, command = world.root / name, rng.choice(readers[name])
    whole = path.read_bytes()
    try:
        how = damage_file(path, rng)
        failure = run(*command).failure
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(whole)
    return f"{name}, {how}: {command[0]}", failure


TOOLS = itertools.cycle(WRITERS)


def try_export(world: World, rng: random.Random) -> tuple[str, str]:
    """Import a damaged export: the result is a valid folder, or one sentence and no file."""
    tool, work = next(TOOLS), Path(tempfile.mkdtemp(dir=world.root))
    export = work / "export"
    WRITERS[tool](export)
    what = [tool]
    for _ in range(rng.randint(1, 3)):
        files = sorted(path for path in export.rglob("*") if path.is_file())
        # Annotations are few beside images, and hold most of what can go wrong.
        notes = [one for one in files if one.suffix not in (".png", ".jpg")]
        path = rng.choice(notes if notes and rng.random() < 0.7 else files)
        what.append(f"{path.relative_to(export)}: {damage_file(path, rng)}")
        if rng.random() < 0.1 and path.is_file():
            odd = rng.choice(("x", ".hidden", "con", "ü é.JPG", "copy of"))
            path.rename(path.with_name(odd + path.suffix.upper()))
    if rng.random() < 0.3:
        export = zip_folder(export, work / "export.zip", rng.choice(("", "top/")))
        if rng.random() < 0.5:
            export.write_bytes(damage_bytes(export.read_bytes(), rng))
    return "; ".join(what), limited(lambda: _import(export, work))


def _import(export: Path, work: Path) -> None:
    before = set(work.rglob("*"))
    try:
        report = import_export(export, work / "data")
    except NacreError as error:
        said = str(error)
        assert len(said) < 1500
        assert "\n" not in said
        assert not has_control_characters(said)
        assert set(work.rglob("*")) == before, "something was left behind"
    else:
        folder = Folder(FolderConfig(root=work / "data"))
        assert (
            0 < sum(len(folder.index(one).names) for one in ("train", "val")) <= len(report.written)
        )
        assert all(line.isprintable() for line in report.sentences())
        new = {path.relative_to(work).parts[0] for path in set(work.rglob("*")) - before}
        assert new == {"data"}


KINDS: dict[str, tuple[int, Callable[[World, random.Random], tuple[str, str]]]] = {
    "keys": (60, try_key),
    "options": (40, try_option),
    "exports": (120, try_export),
} | {
    kind: (count, functools.partial(try_file, names))
    for kind, count, names in (
        ("configs, images", 20, r"^[^/]*\.(yaml|png)"),
        ("data folders", 20, "^data/"),
        ("files of runs", 30, r"^(run|learned)/.*\.(json|yaml|jsonl|csv)"),
        ("model files", 30, r"\.safetensors$"),
        ("videos", 15, r"^film\."),
        ("GeoTIFF", 20, r"^map\.tif$"),
    )
}


def test_valid_files_are_read(world):
    """Otherwise the tests of damaged files would test nothing."""
    for made in ("new", "next", "out"):
        shutil.rmtree(world.root / made, ignore_errors=True)
    commands = {command for several in world.readers().values() for command in several}
    outcomes = {command: run(*command) for command in sorted(commands, key=str)}
    failures = [f"{one!r:.150}: {done.errors}" for one, done in outcomes.items() if done.code]
    assert not failures, "\n".join(failures)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_ends_in_one_sentence(world, kind):
    count, attempt = KINDS[kind]
    rng, failures = random.Random(f"{SEED} {kind}"), []
    for _ in range(count * EFFORT):
        what, failure = attempt(world, rng)
        if failure:
            failures.append(f"{what}: {failure}")
            print(failures[-1], flush=True)
    shown = "\n".join(failures[:30])
    assert not failures, f"NACRE_SEED={SEED} NACRE_FUZZ={EFFORT}: {len(failures)}:\n{shown}"


def test_every_number_refuses_true():
    failures = []
    for key, (method, value) in all_keys().items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            outcome = run("plan", SCENES, "--set", f"method={method}", "--set", f"{key}=true")
            if outcome.code != 2 or "true" not in outcome.errors:
                failures.append(f"{key}=true: {outcome.code} {outcome.errors}")
    assert not failures, "\n".join(failures)


@unprivileged.NEEDS
def test_errors_name_folders_without_permission(world, tmp_path):
    closed, fixed, free = tmp_path / "closed", tmp_path / "fixed", ("--out", tmp_path / "free")
    closed.mkdir(mode=0)
    fixed.mkdir(mode=0o555)
    picture, step = world.root / "picture.png", ("--config", world.root / "step.yaml")
    small_run = ("run", SCENES, *SMALL)
    commands: list[tuple[object, ...]] = [
        ("data", closed / "data"),
        ("plan", SCENES, "--config", closed / "config.yaml"),
        (*small_run, "--out", closed / "run"),
        (*small_run, "--out", fixed / "run"),
        (*small_run, "--cache", closed / "steps", *free),
        ("learn", world.data, "--start", closed / "model", *free),
        ("learn", world.data, *step, "--out", fixed / "d"),
        ("table", closed),
        ("report", world.run, "--out", fixed / "e", "--images", "0"),
        ("predict", world.run, closed),
        ("predict", world.run, picture, "--out", fixed / "f"),
        ("grid", "--scenarios", SCENES, "--methods", "ft", "--out", closed / "grid"),
        ("import", world.data, "--to", fixed / "h"),
    ]
    failures = []
    outcomes = unprivileged.without_privileges(lambda: [run(*command) for command in commands])
    for command, (code, failure, errors) in zip(commands, outcomes, strict=True):
        # A long path may be broken over the lines of a box.
        named = re.search("closed|fixed", re.sub(r"[\s│]", "", errors))
        if failure or code != 2 or not named:
            failures.append(f"{command!r:.150}: {code} {failure} {errors}")
    assert not failures, "\n".join(failures)
