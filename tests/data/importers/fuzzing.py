"""Mutates exports: damaged bytes, wrong values anywhere in JSON, files lost, emptied or exchanged.

    PYTHONPATH=src python tests/data/importers/fuzzing.py 200 1000   # 200 per tool, from 1000 on

Whatever is done to an export, importing it must end soon, in a folder that nacre reads or in one
sentence, with nothing written elsewhere.
"""

import json
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from exports import WRITERS, zip_folder

from nacre.data.importers.run import import_export
from nacre.data.sources.folder import Folder, FolderConfig
from nacre.errors import NacreError, has_control_characters

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 255, 10**9, 10**30, -(2**63), 0.5, 1e308, -1e-300),
    *(float("nan"), float("inf"), "", " ", "x", "1", "../../x", "/etc/passwd", "\x00\x1b\n"),
    *("9" * 5000, [], {}, [[]], [None], [0] * 300, [[0, 0]] * 300, {"a": {"b": [1]}}, "ü\ud800"),
)
WORDS = (
    "",
    "0",
    "-1",
    "1e999",
    "nan",
    "x",
    "../x",
    "\x00",
    '"',
    "<",
    ">",
    "&",
    ":",
    ",",
    "#",
    "\ufeff",
)
SLOW = 20.0


def mutate(root: Path, rng: random.Random) -> str:
    """Change an export in one to three ways and return what was done."""
    done = []
    for _ in range(rng.randint(1, 3)):
        files = sorted(path for path in root.rglob("*") if path.is_file())
        if not files:
            break
        # Annotations are few beside pictures, and hold most of what can go wrong.
        notes = [
            path for path in files if path.suffix in (".json", ".xml", ".yaml", ".txt", ".csv")
        ]
        path = rng.choice(notes if notes and rng.random() < 0.7 else files)
        kinds = ["bytes", "bytes", "file"]
        if path.suffix == ".json":
            kinds += ["json"] * 6
        elif path in notes:
            kinds += ["words"] * 4
        kind = rng.choice(kinds)
        done.append(f"{kind} {path.relative_to(root)}")
        {"bytes": _bytes, "file": _file, "json": _json, "words": _words}[kind](path, files, rng)
    return "; ".join(done)


def attempt(tool: str, seed: int, work: Path) -> str:
    """Import one mutated export; return what came of it.

    Raises:
        AssertionError: It was none of what may come of it.
    """
    rng = random.Random(f"{tool}-{seed}")
    export = work / "export"
    WRITERS[tool](export)
    what = mutate(export, rng)
    if rng.random() < 0.3:
        export = zip_folder(export, work / "export.zip", rng.choice(("", "top/")))
        if rng.random() < 0.5:
            what += "; bytes of the archive"
            _bytes(export, [], rng)
    before = _listing(work)
    began = time.process_time()
    case = f"{tool} {seed}: {what}"
    try:
        report = import_export(export, work / "data")
    except NacreError as error:
        message = str(error)
        assert len(message) < 1500, f"{case}: {len(message)} characters"
        assert "\n" not in message, f"{case}: {message!r}"
        assert not has_control_characters(message), f"{case}: {message!r}"
        assert _listing(work) == before, f"{case}: something was left behind"
        outcome = "refused"
    else:
        folder = Folder(FolderConfig(root=work / "data"))
        read = sum(len(folder.index(split).names) for split in ("train", "val"))
        assert 0 < read <= report.pictures, case
        assert all(line.isprintable() for line in report.sentences()), case
        assert {name for name in _listing(work) - before if not name.startswith("data")} == set(), (
            case
        )
        outcome = "imported" if not report.left_out else "imported in part"
    seconds = time.process_time() - began
    assert seconds < SLOW, f"{case}: {seconds:.0f} s"
    return outcome


def _listing(work: Path) -> set[str]:
    return {str(path.relative_to(work)) for path in work.rglob("*")}


def _bytes(path: Path, files: list[Path], rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if not data:
        return
    start = rng.randrange(len(data))
    stop = min(len(data), start + rng.choice((1, 1, 4, 40, 400)))
    how = rng.randrange(5)
    if how == 0:
        data[start:stop] = rng.randbytes(stop - start)
    elif how == 1:
        del data[start:stop]
    elif how == 2:
        data[start:start] = data[start:stop] * rng.choice((1, 3))
    elif how == 3:
        del data[start:]
    else:
        data[start] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def _file(path: Path, files: list[Path], rng: random.Random) -> None:
    how = rng.randrange(5)
    if how == 0:
        path.unlink()
    elif how == 1:
        path.write_bytes(b"")
    elif how == 2:
        path.write_bytes(rng.choice(files).read_bytes())
    elif how == 3:
        path.rename(
            path.with_name(
                rng.choice(("x", ".hidden", "con", "ü é.JPG", "a b")) + path.suffix.upper()
            )
        )
    else:
        shutil.copy(path, path.with_name("copy of " + path.name))


def _json(path: Path, files: list[Path], rng: random.Random) -> None:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return
    places = list(_places(content))
    if not places:
        return
    holder, key = rng.choice(places)
    how = rng.randrange(4)
    if how == 0:
        del holder[key]
    elif how == 1:
        other, place = rng.choice(places)
        holder[key] = other[place]
    else:
        holder[key] = rng.choice(ODD)
    try:
        path.write_text(json.dumps(content, ensure_ascii=rng.random() < 0.5), encoding="utf-8")
    except (UnicodeEncodeError, ValueError, RecursionError):
        path.write_text(json.dumps(str(content)[:1000]), encoding="utf-8")


def _places(value: Any, depth: int = 0) -> Any:
    """Yield every place in a JSON document: what holds it, and its key."""
    if depth > 30:
        return
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in list(items):
        yield value, key
        yield from _places(inner, depth + 1)


def _words(path: Path, files: list[Path], rng: random.Random) -> None:
    import re

    text = path.read_text(encoding="utf-8", errors="replace")
    found = list(re.finditer(r"[\w.]+|[^\w\s]", text))
    if not found:
        return
    word = rng.choice(found)
    new = rng.choice((*WORDS, rng.choice(found)[0], "9" * 400))
    path.write_text(text[: word.start()] + new + text[word.end() :], encoding="utf-8")


def main() -> None:
    """Try as many as the command line asks for and count what came of them."""
    counts: dict[str, int] = {}
    slowest = 0.0
    count, start = ([int(word) for word in sys.argv[1:]] + [1000, 0][len(sys.argv) - 1 :])[:2]
    for seed in range(start, start + count):
        for tool in WRITERS:
            with tempfile.TemporaryDirectory() as work:
                began = time.process_time()
                try:
                    outcome = attempt(tool, seed, Path(work))
                except Exception as error:
                    outcome = "BAD"
                    print(f"{tool} {seed}: {type(error).__name__}: {str(error)[:300]}", flush=True)
                slowest = max(slowest, time.process_time() - began)
                counts[outcome] = counts.get(outcome, 0) + 1
    print(counts, f"slowest {slowest:.1f} s")


if __name__ == "__main__":
    main()
