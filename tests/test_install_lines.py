"""Install lines name the source folder until the first release, and the distribution afterwards."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = re.compile(r"""pip install -c constraints\.txt (?:\.(?![\w\[])|'\.\[([\w{}",-]+)\]')""")
RELEASED = re.compile(r"""pip install (?:nacre-seg(?![\w\[])|'nacre-seg\[([\w{}",-]+)\]')""")
OWN = re.compile(r"pip install [^\n]*?(?:nacre|\.\[|constraints\.txt \.)")
PLACES = ["README.md", "docs", "src", "benchmarks"]


def install_lines(root: Path) -> list[str]:
    """Return every line that tells a user to install nacre."""
    files = [root / "README.md"]
    for place in PLACES[1:]:
        files += sorted((root / place).rglob("*.md")) + sorted((root / place).rglob("*.py"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
    return [line for line in lines if OWN.search(line)]


def form_of(line: str) -> str:
    """Return the form of an install line; any other form would install another project."""
    forms = {"source": SOURCE, "released": RELEASED}
    return next((name for name, form in forms.items() if form.search(line)), f"neither: {line}")


def test_all_install_lines_have_the_same_form():
    lines = install_lines(ROOT)
    assert len(lines) > 5
    assert len({form_of(line) for line in lines}) == 1, {form_of(line) for line in lines}


def test_extras_of_install_lines_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "nacre-seg"
    found = [SOURCE.search(line) or RELEASED.search(line) for line in install_lines(ROOT)]
    named = {extra for match in found if match and match[1] for extra in match[1].split(",")}
    assert named - set(project["optional-dependencies"]) <= {"{extra}"}


@pytest.mark.skipif(sys.platform != "linux", reason="the checklist's commands are GNU's")
def test_the_release_checklist_switches_every_line(tmp_path):
    for place in PLACES:
        if (ROOT / place).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / place, tmp_path / place, ignore=ignored)
        else:
            shutil.copy(ROOT / place, tmp_path / place)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    releasing = text[text.index("## Releasing") : text.index("## Commits")]
    (block,) = re.findall(r"```sh\n(.*?)```", releasing, flags=re.DOTALL)
    script = "set -e\ngit init -q .\ngit add .\n" + block
    subprocess.run(["bash", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    assert len(install_lines(tmp_path)) == len(install_lines(ROOT))
    assert {form_of(line) for line in install_lines(tmp_path)} == {"released"}
