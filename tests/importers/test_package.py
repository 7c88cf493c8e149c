"""The importers stand alone: no torch, and formats of other packages."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from exports import corners, save_image, save_text

from importing import Imported
from nacre.errors import NacreError
from nacre.importers import Format, Reading, formats
from nacre.importers.documents import load_lines
from nacre.importers.files import Export, File
from nacre.importers.shapes import points_of, ring_of
from nacre.utils import system


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, nacre.importers; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def find(export: Export) -> list[File]:
    return export.named("boxes.dat")


def read(reading: Reading, files: list[File]) -> None:
    for line in load_lines(files[0]):
        name, label, *numbers = line.split()
        image = reading.add_image(name)
        left, top, right, bottom = map(int, numbers)
        area = ring_of(points_of(corners((left, top, right, bottom))))
        reading.draw(image, label, area)


OURS = Format("dat", "the format of a friend", find, read)


def test_a_format_of_another_package_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image(tmp_path / "x" / "p.jpg", (24, 16))
    save_text(tmp_path / "x" / "boxes.dat", "p.jpg cat 2 3 9 12\n")
    with pytest.raises(NacreError, match="has no known format"):
        Imported(tmp_path / "x", tmp_path / "y")
    point = EntryPoint("dat", "importing:nothing", formats.GROUP)
    monkeypatch.setattr(system, "entry_points", lambda group: [point])
    with pytest.raises(NacreError, match="has no known format"):
        Imported(tmp_path / "x", tmp_path / "y")  # one that is broken breaks only itself
    with pytest.raises(NacreError, match="the format 'dat' cannot be loaded"):
        Imported(tmp_path / "x", tmp_path / "y", format="dat")
    monkeypatch.setattr("importing.nothing", OURS, raising=False)
    for target, wanted in (("one", None), ("two", "dat")):
        got = Imported(tmp_path / "x", tmp_path / target, format=wanted)
        assert (got.report.format, got.names) == ("the format of a friend", ["cat"])
        assert got.mask("p").sum() == 7 * 9
