"""Hostile model files, opened by every command in watched processes.

The slow tests open every header with `nacre.load` and some with all commands; the nightly test
opens all headers with all commands.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from models.file_server import Site, serving
from security.world import AUTO_MAP, OURS, REMOTE, SEGFORMER, TRANSFORMERS, World, headers

pytest.importorskip("transformers")
# A minute of computing, in one fixture, on a busy machine too
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
COMMANDS = ("predict", "history", "export", "learn", "eval", "serve", "hub")
MEMORY = 700 * 2**20
"""Bytes that a refusal may allocate in addition to the libraries."""

Results = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Range:
    """A world of traps, and a hub with more."""

    world: World
    site: Site
    folder: Path

    @property
    def headers(self) -> dict[str, tuple[str, dict[str, Any]]]:
        return headers(self.world, self.site.address)

    def job(self, name: str, command: str, base: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Return the job of opening a hostile file with a command."""
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        path = self.world.hostile(base, changes, files / f"{name} {command}.safetensors")
        return {"name": f"{name}, {command}", "command": command, "model": str(path), "ports": []}

    def run(self, name: str, jobs: Iterable[dict[str, Any]]) -> Results:
        """Run jobs, each in its own process; return their results by name."""
        folder = self.folder / name
        folder.mkdir()
        (folder / "jobs.json").write_text(json.dumps(list(jobs)))
        script = [sys.executable, str(HERE / "open_hostile.py"), str(self.world.root)]
        script += [str(folder / "jobs.json"), str(folder / "results.jsonl")]
        done = subprocess.run(
            script, env=self._environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        lines = (folder / "results.jsonl").read_text().splitlines()
        return {one["name"]: one for one in map(json.loads, lines)}

    def _environment(self) -> dict[str, str]:
        paths = [str(HERE.parent), *sys.path]
        world = self.world
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HF_ENDPOINT": self.site.address,
            "HF_HOME": str(world.cache / "hf"),
            "HOME": str(world.root / "home"),
            "XDG_CACHE_HOME": str(world.cache),
            "TORCH_HOME": str(world.cache / "torch"),
            "TMPDIR": str(world.cache),
            "OMP_NUM_THREADS": "1",
            "BROWSER": "true",
            "no_proxy": "127.0.0.1",
        }


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Range]:
    folder = tmp_path_factory.mktemp("hostile")
    with serving() as site:
        about = {
            "model_type": "evil",
            "auto_map": {k: f"far/repo--{v}" for k, v in AUTO_MAP.items()},
        }
        for repository in ("evil/repo", "far/repo"):
            publish(site, repository, "config.json", json.dumps(about).encode())
            publish(site, repository, "configuration_evil.py", REMOTE.encode())
        yield Range(World(folder / "world").make(), site, folder)


def publish(site: Site, repository: str, file: str, content: bytes) -> None:
    """Publish a file on the hub."""
    path = f"/{repository}/resolve/main/{file}"
    site.files[path] = content
    digest = hashlib.sha256(content).hexdigest()
    site.headers[path] = {"X-Repo-Commit": "a" * 40, "X-Linked-ETag": f'"{digest}"', "ETag": '"x"'}


def port_of(site: Site) -> int:
    return int(site.address.rpartition(":")[2])


def problems(done: dict[str, Any], *, may_succeed: bool = False) -> list[str]:
    """Return the problems of a job: its actions and its error message."""
    said = done["said"].strip()
    found = list(done["reported"])
    if done["code"] != 2 and not (may_succeed and done["code"] == 0):
        found.append(f"exit code {done['code']}")
    if "Traceback" in said or (done["code"] == 2 and said.count("error:") != 1):
        found.append(f"said {said[-600:]!r}")
    if done["memory"] - done["before"] > MEMORY:
        found.append(f"took {(done['memory'] - done['before']) / 2**20:.0f} MiB")
    return found


def assert_harmless(results: Results, *, may_succeed: Iterable[str] = ()) -> None:
    assert results
    bad = {
        name: found
        for name, done in results.items()
        if (found := problems(done, may_succeed=name in may_succeed))
    }
    assert not bad, json.dumps(bad, indent=1)


MISDEEDS = {
    "exec": "exec: ",
    "import": "exec: ",
    "curious": "import: this",
    "write": "write: open ",
    "mkdir": "write: os.mkdir ",
    "socket": "socket: ('127.0.0.1', 9)",
    "process": "process: subprocess.Popen",
    "system": "process: os.system",
    "read": "read: ",
    "pickle": "pickle: ",
}
FAMILIES = ("python 0", "kind 0", "hf name 1", "hf options 1", "too large 12", "timm 0")
"""Headers that the slow tests open with all commands."""


def of_commands(ground: Range, chosen: Iterable[str]) -> list[dict[str, Any]]:
    """Return the jobs that open headers with all commands."""
    found = []
    for header in chosen:
        base, changes = ground.headers[header]
        jobs = [ground.job(header, command, base, changes) for command in COMMANDS]
        hub, name = jobs[COMMANDS.index("hub")], header.replace(" ", "-")
        content = Path(hub["model"]).read_bytes()
        publish(ground.site, f"hostile/{name}", "model.safetensors", content)
        hub |= {"model": f"hf://hostile/{name}", "ports": [port_of(ground.site)]}
        found += jobs
    return found


def of_configs(ground: Range) -> list[dict[str, Any]]:
    """Return jobs that build networks from a user's own config."""
    trap = str(ground.world.traps / "folder")
    configs: list[dict[str, Any]] = [
        {**TRANSFORMERS, "name": "far/repo"},
        {**TRANSFORMERS, "name": "far/repo", "options": {"trust_remote_code": True}},
        {**TRANSFORMERS, "name": trap, "options": {"trust_remote_code": True}},
        {**TRANSFORMERS, "name": trap},
        {**SEGFORMER, "options": {"auto_map": AUTO_MAP}},
        {**SEGFORMER, "options": {"_attn_implementation": "evil/kernel"}},
        {**OURS, "options": {"x": 1}},
    ]
    ports = [port_of(ground.site)]
    return [
        {"name": f"{i}, config", "command": "config", "config": config, "ports": ports}
        for i, config in enumerate(configs)
    ]


@pytest.fixture(scope="module")
def results(ground: Range) -> Results:
    """The results of all jobs of the slow tests."""
    jobs = [ground.job(name, "load", *what) for name, what in ground.headers.items()]
    jobs += of_commands(ground, FAMILIES) + of_configs(ground)
    for base in ("ours", "segformer"):
        jobs += [
            ground.job(f"sound {base}", one, base, {}) for one in ("load", "predict", "history")
        ]
    jobs += [{"name": name, "command": name, "ports": []} for name in MISDEEDS]  # they leave marks
    return ground.run("plain", jobs)


def ending(results: Results, *ends: str) -> Results:
    return {
        name: done
        for name, done in results.items()
        if name.endswith(tuple(f", {end}" for end in ends)) and not name.startswith("sound")
    }


@pytest.mark.parametrize("name", MISDEEDS)
def test_every_forbidden_action_is_reported(name: str, results: Results) -> None:
    """Each forbidden action, done on purpose."""
    reported = results[name]["reported"]
    assert any(line.startswith(MISDEEDS[name]) for line in reported), results[name]


def test_valid_files_open_without_a_report(results: Results) -> None:
    sound = {name: done for name, done in results.items() if name.startswith("sound")}
    assert len(sound) == 6
    for name, done in sound.items():
        assert done["code"] == 0, (name, done)
        assert done["reported"] == [], name


def test_a_hostile_file_ends_in_one_sentence(ground: Range, results: Results) -> None:
    loaded = ending(results, "load")
    assert len(loaded) == len(ground.headers)
    assert_harmless(loaded)


def test_every_command_refuses_a_hostile_file(results: Results) -> None:
    opened = ending(results, *COMMANDS)
    assert len(opened) == len(FAMILIES) * len(COMMANDS)
    assert_harmless(opened, may_succeed=ending(opened, "history"))


def test_only_the_named_file_is_requested_from_the_hub(ground: Range, results: Results) -> None:
    # The hub's client asks the hub for a list of its own, too, whatever file is wanted.
    own = "/api/agent-harnesses"
    asked = {path for _, path, *_ in ground.site.asked if path != own}
    assert results
    assert {path for path in asked if "/hostile/" in path}
    beside = {path for path in asked if not path.endswith("/model.safetensors")}
    # A repository's config.json is read where a user's own config names the repository.
    assert {path.partition("?")[0] for path in beside} <= {"/far/repo/resolve/main/config.json"}


def test_a_users_own_config_runs_no_code_either(results: Results) -> None:
    built = ending(results, "config")
    for done in built.values():  # a folder that a user names is read
        done["reported"] = [line for line in done["reported"] if not line.startswith("read: ")]
    assert_harmless(built)


@pytest.mark.nightly
@pytest.mark.timeout(14_400)
def test_every_command_refuses_every_header(ground: Range) -> None:
    """Only `history`, which reads no more than the header, may succeed."""
    done = ground.run("all", of_commands(ground, ground.headers))
    assert_harmless(done, may_succeed=ending(done, "history"))
