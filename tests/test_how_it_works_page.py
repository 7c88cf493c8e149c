"""The page "how it works": its code runs, and its links and figure name existing files."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
FIGURE = (ROOT / "docs" / "nacre.svg").read_text(encoding="utf-8")


def test_the_code_of_the_page_runs_as_one_program():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert sum(block.count("assert ") for block in blocks) >= 7
    exec(compile("\n".join(blocks), "how-it-works.md", "exec"), {})


def test_the_four_links_name_files_that_hold_what_they_say():
    parts = re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]
    assert [part.splitlines()[0] for part in parts] == [
        "1. The label",
        "2. The mapping",
        "3. The loss",
        "4. The test",
    ]
    named = re.findall(r"`(\w+)`\s+\(`(nacre/[\w/]+\.py)`\)", PAGE)
    assert len(named) > 10
    for name, path in named:
        text = (ROOT / "src" / path).read_text(encoding="utf-8")
        assert re.search(rf"^(def|class) {name}\b", text, re.MULTILINE), (name, path)


def test_the_figure_names_files_and_packages_that_exist():
    named = re.findall(r'font-family="monospace">([^<]+)<', FIGURE)
    assert named
    for place in (place for text in named for place in text.split(", ")):
        assert (ROOT / "src" / "nacre" / place).exists(), place
