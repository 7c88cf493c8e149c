"""Bad input of every kind, made from the config's own schema and from the files that are read.

A key that is added to a config, a file that is added to a run and an option that is added to a
command are tried without a word here. Each kind draws its cases; a failure names the seed, and
NACRE_SEED=… draws the same again. NACRE_FUZZ=20 draws twenty times as many (`make fuzz`).
"""

import contextlib
import ctypes
import functools
import io
import json
import os
import random
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from guard import run
from pydantic import BaseModel
from values import BAD_YAML, OTHER_THINGS, damage_bytes, damage_tree
from world import SMALL, Reader, World, read_plain, write_plain

from nacre.cli import app
from nacre.errors import NacreError
from nacre.export import server
from nacre.export.metadata import Metadata
from nacre.methods import METHODS
from nacre.runs.learn_config import build_learn_config
from nacre.training.automatic import Choice
from nacre.training.config import build_config

EFFORT = int(os.environ.get("NACRE_FUZZ", "1"))
SEED = int(os.environ.get("NACRE_SEED", random.SystemRandom().randrange(10**6)))
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
    made = World(tmp_path_factory.mktemp("world"))
    (made.root / "loop").symlink_to(made.root / "loop")
    os.mkfifo(made.root / "pipe")
    yield made
    os.chdir(before)


def keys(config: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a config, sections included."""
    for key, value in config:
        yield f"{prefix}{key}"
        if isinstance(value, BaseModel):
            yield from keys(value, f"{prefix}{key}.")


@functools.cache
def all_keys() -> list[tuple[str, str]]:
    """Return every key of every method's config, with the method."""
    found: dict[str, str] = {}
    for method in METHODS:
        config = build_config(overrides={"scenario": SCENES, "method": {"name": method}})
        for key in keys(config):
            found.setdefault(key, method)
    return list(found.items())


def try_key(world: World, rng: random.Random) -> tuple[str, str]:
    key, method = rng.choice(all_keys())
    value = rng.choice(BAD_YAML)
    given = ("--set", f"method={method}", "--set", f"{key}={value}")
    return f"{method} {key}={value[:40]!r}", run("plan", SCENES, *SMALL, *given).failure


def try_key_of_a_step(world: World, rng: random.Random) -> tuple[str, str]:
    """`nacre learn` would learn with what is right; its config is put together here alone."""
    given = {"start": None, "automatic": Choice({}, []), "overrides": {"data": ["x"]}}
    key, value = rng.choice(list(keys(build_learn_config(**given)))), rng.choice(BAD_YAML)
    failure = ""
    try:
        build_learn_config(assignments=[f"{key}={value}"], **given)
    except NacreError:
        pass
    except Exception as error:
        failure = f"{error!r:.200}"
    return f"{key}={value[:40]!r}", failure


def try_option(world: World, rng: random.Random) -> tuple[str, str]:
    group: Any = typer.main.get_command(app)
    name = rng.choice([one for one in group.commands if one not in NEVER])
    command = group.commands[name]
    takes = [one for one in command.params if not getattr(one, "is_flag", False)]
    odd = [
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
    ]
    places = ("loop", "pipe", "picture.png", "picture.png/x", "data", "index.csv")
    odd += ["x" * 300, "x/" * 3000, "9" * 400, "/dev/zero", "/proc/self/mem", "/nowhere/x"]
    value = rng.choice([*odd, *(str(world.root / one) for one in places)])
    arguments = _arguments(command, rng.choice(takes).name, value, world)
    # Neither `.` nor `..` holds what earlier commands wrote.
    inner = Path(tempfile.mkdtemp(dir=world.root)) / "inner"
    inner.mkdir()
    os.chdir(inner)
    return f"{name} {arguments!r:.300}", run(name, *arguments).failure


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


def try_file(kind: str, world: World, rng: random.Random) -> tuple[str, str]:
    """Damage one of the files whose name fits, let a command read it, and make it whole again."""
    readers = [one for one in world.readers() if re.search(kind, one.name)]
    reader = rng.choice(readers)
    whole = reader.path.read_bytes()
    try:
        how = _damage(reader, whole, rng)
        command = rng.choice(reader.commands)
        outcome = run(*(reader.path if one == "{file}" else one for one in command))
    finally:
        if reader.path.is_dir() and not reader.path.is_symlink():
            reader.path.rmdir()
        reader.path.unlink(missing_ok=True)
        reader.path.write_bytes(whole)
    return f"{reader.name}, {how}: {command[0]}", outcome.failure


def _damage(reader: Reader, whole: bytes, rng: random.Random) -> str:
    plain = read_plain(reader.path)
    if plain is not None and rng.random() < 0.6:
        how, changed = damage_tree(plain, rng)
        write_plain(reader.path, changed)
        return how
    if rng.random() < 0.9:
        state = rng.getstate()[1][-1]
        reader.path.write_bytes(damage_bytes(whole, rng))
        return f"bytes ({state})"
    how = rng.choice(list(OTHER_THINGS))
    reader.path.unlink()
    OTHER_THINGS[how](reader.path)
    return how


class Zeros:
    """A model that finds the background everywhere."""

    metadata = Metadata(["background", "cat"], [(0, 0, 0), (9, 9, 9)], [2], [], 16, "crop", "fp32")

    def classify(self, picture: Any) -> Any:
        return np.zeros(picture.shape[:2], np.uint8)


REQUESTS = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    b"POST /classify?model=0&height=2&width=2&count=1 HTTP/1.1\r\nHost: 127.0.0.1:80\r\n"
    b"Content-Type: application/octet-stream\r\nContent-Length: 12\r\n\r\n" + bytes(12),
    b"POST /classify HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 70\r\nConnection: close\r\n\r\n"
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\2\0\0\0\x90wS\xde\0\0\0\x0cIDATx\x9cc\xf8"
    b"\xcf\xc0\0\0\3\1\1\0\xc9\xfe\x92\xef\0\0\0\0IEND\xaeB`\x82",
]
WORDS = [*(b"\r\n", b"\n", b"\0", b" ", b":", b"[", b"%", b"&", b"=", b"-1", b"9" * 5000, b"\xff")]


def try_request(world: World, rng: random.Random) -> tuple[str, str]:
    """Send a server a damaged request; it answers by HTTP or not at all, and lives."""
    request = rng.choice(REQUESTS)
    if rng.random() < 0.6:
        at = rng.randrange(len(request))
        request = request[:at] + rng.choice(WORDS) * rng.choice((1, 1, 9)) + request[at:]
    else:
        request = damage_bytes(request, rng)
    with serving() as port, contextlib.redirect_stderr(io.StringIO()) as said:
        answer = send(port, request)
        alive = send(port, b"GET /models HTTP/1.1\r\nHost: localhost\r\n\r\n")
    if not alive.startswith(b"HTTP/1.1 200 OK"):
        return repr(request[:300]), f"afterwards {alive[:80]!r}"
    status = re.match(rb"(HTTP/1\.1 100 Continue\r\n\r\n)?HTTP/1\.1 [2345]\d\d ", answer)
    wrong = answer and (not status or b" 500 " in answer[:20] or b"Error response" in answer)
    return repr(request[:300]), f"answered {answer[:200]!r}" if wrong else said.getvalue()


@contextlib.contextmanager
def serving() -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "SECONDS", 0.2)
        with server.ModelServer([server.Served("m", Zeros())], ("127.0.0.1", 0)) as made:
            thread = threading.Thread(target=made.serve_forever, args=(0.01,))
            thread.start()
            yield made.server_address[1]
            made.shutdown()
            thread.join()


def send(port: int, content: bytes) -> bytes:
    answer = b""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
    ):
        connection.sendall(content)
        while part := connection.recv(65536):
            answer += part
    return answer


KINDS: dict[str, tuple[int, Callable[[World, random.Random], tuple[str, str]]]] = {
    "keys": (60, try_key),
    "keys of a step": (200, try_key_of_a_step),
    "options": (40, try_option),
    "configs, images": (20, lambda *a: try_file(r"^[^/]*\.(yaml|csv|png)", *a)),
    "data folders": (20, lambda *a: try_file("^data/", *a)),
    "files of runs": (30, lambda *a: try_file(r"^(run|learnt)/.*\.(json|yaml|jsonl|csv)", *a)),
    "model files": (30, lambda *a: try_file(r"\.safetensors$", *a)),
    "videos": (15, lambda *a: try_file(r"^film\.", *a)),
    "GeoTIFF": (20, lambda *a: try_file(r"^map\.tif$", *a)),
    "requests": (60, try_request),
}


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_is_answered_by_one_sentence(world, kind):
    count, attempt = KINDS[kind]
    rng, failures = random.Random(f"{SEED} {kind}"), []
    for _ in range(count * EFFORT):
        what, failure = attempt(world, rng)
        if failure:
            failures.append(f"{what}: {failure}")
            print(failures[-1], flush=True)
    shown = "\n".join(failures[:30])
    assert not failures, f"NACRE_SEED={SEED} NACRE_FUZZ={EFFORT}: {len(failures)}:\n{shown}"


def test_every_number_refuses_true(world):
    failures = []
    for key, method in all_keys():
        value = build_config(overrides={"scenario": SCENES, "method": {"name": method}})
        for part in key.split("."):
            value = getattr(value, part)
        if isinstance(value, int | float) and not isinstance(value, bool):
            outcome = run("plan", SCENES, "--set", f"method={method}", "--set", f"{key}=true")
            if outcome.code != 2 or "true" not in outcome.errors:
                failures.append(f"{key}=true: {outcome.code} {outcome.errors}")
    assert not failures, "\n".join(failures)


def run_without_privileges(commands: list[tuple[object, ...]]) -> list[tuple[int, str, str]]:
    """Run commands in a process to which permissions apply; return code, failure and errors."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
                assert ctypes.CDLL(None).capset(header, none) == 0
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
    step = ("--config", world.root / "step.yaml")
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
        ("learn", world.data, *step, "--out", fixed / "d"),
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
    outcomes = run_without_privileges(commands)
    for command, (code, failure, errors) in zip(commands, outcomes, strict=True):
        # A long path may be broken over the lines of a box.
        if failure or code != 2 or not re.search("closed|fixed", re.sub(r"[\s│]", "", errors)):
            failures.append(f"{command!r:.150}: {code} {failure} {errors}")
    assert not failures, "\n".join(failures)
