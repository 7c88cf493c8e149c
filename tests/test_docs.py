"""Everything that the README and the docs name exists: commands, options, config keys, files."""

import importlib
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args

import pytest
import typer
import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import nacre
from nacre.cli.app import program
from nacre.data import DATASETS
from nacre.errors import NacreError
from nacre.methods import METHODS
from nacre.scenarios.scenario import ScenarioFile, read_scenario
from nacre.sweeps.grid import check_grid
from nacre.training.config import RunConfig

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS: dict[str, Any] = typer.main.get_command(program).commands
SECTIONS = ("train", "images", "labels", "model", "data", "method")
FILES = ("safetensors", "json", "yaml", "yml", "py", "md", "csv", "txt", "onnx", "html")

# Options of torchrun and SLURM, which pages may name
OTHERS = {"--max-restarts", "--nproc-per-node", "--rdzv-backend", "--shutdown-timeout", "--signal"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def included(page: Path) -> str:
    """Return the text of a page and of the files that it includes."""
    text = page.read_text(encoding="utf-8")
    return re.sub(
        r'^--8<-- "([^":]+)"$', lambda found: (ROOT / found[1]).read_text("utf-8"), text, flags=re.M
    )


def blocks(page: Path, language: str) -> list[str]:
    text = included(page)
    found = re.findall(rf"^( *)```{language}\b[^\n]*\n(.*?)^\1```", text, flags=re.M | re.S)
    return [block for _, block in found]


def phrases(page: Path) -> list[str]:
    """Return everything in `single ticks` outside of code blocks."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    return [" ".join(found.split()) for found in re.findall(r"`([^`]+)`", text)]


def shell_lines(page: Path) -> list[str]:
    """Return the commands of a page's shell blocks, with continued lines joined."""
    text = "\n".join(blocks(page, "sh")).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip()]


def words_after(program: str, line: str) -> list[str] | None:
    """Return the arguments of a program in a command line, or None if it is not called."""
    words = shlex.split(line, comments=True)
    while words and "=" in words[0] and not words[0].startswith("-"):
        words = words[1:]  # VARIABLE=value before a command
    if words[:1] == ["torchrun"] and "-m" in words:
        words = words[words.index("-m") + 1 :]
    return words[1:] if words[:1] == [program] else None


def calls(page: Path) -> Iterator[tuple[list[str], bool]]:
    """Yield the arguments of each `nacre` of a page, and whether the command is complete."""
    for line in shell_lines(page):
        words = words_after("nacre", line)
        if words is not None:
            yield words, "…" not in line
    for phrase in phrases(page):
        if phrase.startswith(("nacre ", "torchrun ")):
            words = words_after("nacre", phrase)
            if words is not None:
                yield words, False


def options(words: list[str]) -> list[str]:
    return [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]


def known_options(command: Any) -> set[str]:
    flags = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)}
    return {*flags, "--help", "-h"}


def complaint(command: Any, words: list[str]) -> str:
    """Return the error message of a command's arguments without running it."""
    try:
        command.make_context(words[0], words[1:])
    except Exception as error:  # typer's, or click's where typer does not bring its own
        return str(error)
    return ""


@each_page
def test_commands_and_their_options_exist(page):
    for words, whole in calls(page):
        if words[:1] == ["config"]:
            words = words[1:]  # the arguments are those of the command that is named
        if not words or words[0].startswith("-") or words[0] == "…":
            continue
        assert words[0] in COMMANDS, f"nacre {words[0]}"
        command = COMMANDS[words[0]]
        unknown = set(options(words)) - known_options(command)
        assert not unknown, f"nacre {shlex.join(words)}: {unknown}"
        if whole and "--help" not in words:
            assert complaint(command, words) == "", f"nacre {shlex.join(words)}"


@each_page
def test_options_named_alone_belong_to_some_command(page):
    everywhere = set().union(*map(known_options, COMMANDS.values()))
    for phrase in phrases(page):
        if phrase.startswith("--"):
            unknown = set(options(phrase.split())) - everywhere - OTHERS
            assert not unknown, phrase


def models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the config classes of an annotation: those of a union, and their subclasses."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        ours = (c for c in annotation.__subclasses__() if c.__module__.startswith("nacre."))
        for derived in ours:
            yield from models_of(derived)
    for part in get_args(annotation):
        yield from models_of(part)


def fields_of(key: str) -> list[FieldInfo]:
    """Return all fields of a config key, which depend on the method and the data set."""
    models: list[type[BaseModel]] = [RunConfig]
    assert all(METHODS.values())  # a method's config is known once the method is imported
    *sections, last = key.split(".")
    for section in sections:
        inner = [model.model_fields[section] for model in models if section in model.model_fields]
        models = [found for field in inner for found in models_of(field.annotation)]
    return [model.model_fields[last] for model in models if last in model.model_fields]


def fits(field: FieldInfo, value: Any) -> bool:
    bounded: Any = field.annotation
    for bound in field.metadata:
        bounded = Annotated[bounded, bound]
    try:
        TypeAdapter(bounded).validate_python(value)
    except ValidationError:
        return False
    return True


def assignments(page: Path) -> list[str]:
    texts = [*shell_lines(page), *phrases(page)]
    return [found for text in texts for found in re.findall(r"--set[ =](\S+=\S+)", text)]


def named_keys(page: Path) -> list[str]:
    """Return config keys in running text: `train.batch_size` or `train.batch_size=8`."""
    pattern = rf"({'|'.join(SECTIONS)})(\.[a-z_0-9]+)+"
    found = [re.match(rf"({pattern})(=.*)?$", phrase) for phrase in phrases(page)]
    keys = [match[1] for match in found if match]
    python = {f"model.{name}" for name in dir(nacre.Model)}  # what a loaded model can do
    return [key for key in keys if key.rsplit(".")[-1] not in FILES and key not in python]


@each_page
def test_config_keys_exist(page):
    keys = [text.partition("=")[0] for text in assignments(page)] + named_keys(page)
    assert [key for key in keys if not fields_of(key)] == []


@each_page
def test_config_values_are_allowed(page):
    for text in assignments(page):
        key, _, value = text.partition("=")
        if not value.isupper():  # FILE stands for any
            content = yaml.safe_load(value)
            assert any(fits(field, content) for field in fields_of(key)), text


@each_page
def test_grids_scenarios_and_configs_in_yaml_are_read(page):
    for block in blocks(page, "yaml"):
        content = yaml.safe_load(block)
        if "scenarios" in content:
            check_grid(content)
            content = content.get("config", {})
        elif {"steps", "task"} & set(content):
            ScenarioFile.model_validate(content)
        for section in set(content) & set(SECTIONS):
            if isinstance(content[section], dict):
                unknown = [key for key in content[section] if not fields_of(f"{section}.{key}")]
                assert not unknown, f"{section}: {unknown}"


@each_page
def test_scenarios_exist(page):
    pattern = rf"\b(?:{'|'.join(DATASETS)})/\d[\w-]*/[a-z]+"
    for written in re.findall(pattern, page.read_text(encoding="utf-8")):
        read_scenario(written)


@each_page
def test_files_and_modules_exist(page):
    for phrase in phrases(page):
        path = phrase.split("::")[0]
        if re.fullmatch(r"(src|tests|benchmarks|docs|examples|nacre)/[\w./-]+", path):
            assert (ROOT / path).exists() or (ROOT / "src" / path).exists(), path
        if re.fullmatch(r"nacre(\.\w+)+", phrase):
            assert resolves(phrase), phrase


def resolves(dotted: str) -> bool:
    """Return whether a name is a module or an object in one."""
    found: Any = importlib.import_module("nacre")
    for i, part in enumerate(dotted.split(".")[1:], start=2):
        if not hasattr(found, part):
            try:
                importlib.import_module(".".join(dotted.split(".")[:i]))
            except ImportError:
                return False
        found = getattr(found, part)
    return True


@each_page
def test_targets_of_make_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for text in [*shell_lines(page), *phrases(page)]:
        words = words_after("make", text.replace("…", "")) if text.startswith("make ") else None
        named = [word for word in words or [] if word.isalpha()]
        assert set(named) <= targets, text


@each_page
def test_extras_exist(page):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"(?:nacre-seg|\.)\[([\w,-]+)\]", page.read_text(encoding="utf-8"))
    assert {extra for group in named for extra in group.split(",")} <= set(extras)


@each_page
def test_links_to_files_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert target.startswith("http") or (page.parent / target).exists(), target


ROTTEN = {
    test_commands_and_their_options_exist: ["`nacre fly`", "`nacre run … --batch 8`", "nacre eval"],
    test_options_named_alone_belong_to_some_command: ["`--bas RUN`"],
    test_config_keys_exist: ["`--set train.batch=8`", "`images.crops`", "nacre run --set a.b=1"],
    test_config_values_are_allowed: ["`--set train.batch_size=none`", "`--set method.kd=simple`"],
    test_grids_scenarios_and_configs_in_yaml_are_read: [
        "```yaml\nscenarios: [scenes/4-4/overlapped]\nmethod: mib\n```",
        "```yaml\ndata: folder\nsteps: [[cat]]\nset-up: disjoint\n```",
        "```yaml\nmodel: {backbones: tiny}\n```",
    ],
    test_scenarios_exist: ["`voc/15-5/overlaped`"],
    test_files_and_modules_exist: ["`nacre/methods/mob.py`", "`nacre.losses.equation`"],
    test_targets_of_make_exist: ["`make tests`", "make demon"],
    test_extras_exist: ["`pip install 'nacre-seg[lite9]'`", "`pip install '.[lite9]'`"],
    test_links_to_files_lead_somewhere: ["[this](gone.md)"],
}


@pytest.mark.parametrize(
    ("check", "text"), [(check, text) for check, texts in ROTTEN.items() for text in texts]
)
def test_a_page_that_names_what_does_not_exist_is_noticed(tmp_path, check, text):
    page = tmp_path / "page.md"
    page.write_text(text if text[0] in "`[" else f"```sh\n{text}\n```\n")
    with pytest.raises((AssertionError, NacreError, ValidationError)):
        check(page)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs", reason="the site needs the extra: make docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [*command, "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 10
    config = (tmp_path / "site" / "reference" / "config.html").read_text("utf-8")
    assert "train.batch_size" in config
    # Whoever reads the site asks no other server for anything.
    fetched = re.compile(r"<(?:link|script|img|iframe)[^>]+(?:href|src)=\"?https?://[^\">]+")
    assert [found for page in pages for found in fetched.findall(page.read_text("utf-8"))] == []
