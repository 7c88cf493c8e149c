"""The sources and the docs are in plain American English (ruff and codespell check the rest)."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BANNED_STARTS = {
    *("What", "Whether", "Of", "Which", "Who", "Whose", "Where", "When", "How", "By", "That"),
    *("Say", "Let", "Have", "Tell"),
}
WORDS = re.compile(
    r"\b(pictures?|learnt|unlearnt|labelled|unlabelled|coloured|spoilt|whilst)\b",
    re.IGNORECASE,
)


def _docstrings() -> Iterator[tuple[str, str]]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text:
                name = getattr(node, "name", "the module")
                yield f"{path.relative_to(ROOT)}: {name}", text


def test_no_docstring_begins_with_a_question_word() -> None:
    wrong = [
        place
        for place, text in _docstrings()
        if re.split(r"\W", text, maxsplit=1)[0] in BANNED_STARTS
    ]
    assert not wrong, "begin with a verb or a noun: " + "; ".join(wrong)


def test_no_text_has_a_banned_word() -> None:
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]}"
        for path in sorted(texts)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if path.name != "CHANGELOG.md" and (found := WORDS.search(line))
    ]
    assert not wrong, "plain American words, please (image, learned, labeled): " + "; ".join(wrong)
