"""Every format comes to the same masks, from a folder and from an archive, and nacre reads them."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from exports import CLASSES, SIZES, SPLITS, TOOLS, truth, zip_folder
from PIL import Image

from nacre.data.folder import Folder, FolderConfig
from nacre.importers.formats import FORMATS
from nacre.importers.run import ImportOptions, import_export


def masks_of(target: Path) -> dict[str, np.ndarray]:
    """Return the written masks with the labels of `CLASSES`, by name."""
    names = yaml.safe_load((target / "classes.yaml").read_text())["classes"]
    table = np.zeros(256, np.uint8)
    for label, name in names.items():
        table[label] = CLASSES.index(name) + 1
    table[255] = 255
    found = {}
    for path in (target / "masks").rglob("*.png"):
        with Image.open(path) as image:
            assert image.mode == "P"
            found[path.stem] = table[np.asarray(image)]
    return found


@pytest.mark.parametrize("packed", ["folder", "zip", "zip with a folder around"])
@pytest.mark.parametrize("tool", TOOLS)
def test_the_masks_are_right_and_nacre_reads_the_folder(
    tool: str, packed: str, tmp_path: Path
) -> None:
    format_name, write, keeps_splits = TOOLS[tool]
    export = tmp_path / "export"
    write(export)
    if packed != "folder":
        top = "pets v1/" if "around" in packed else ""
        export = zip_folder(export, tmp_path / "export.zip", top)
    target = tmp_path / "data"
    asked = ImportOptions(format=format_name if packed == "zip" else None)
    report = import_export(export, target, asked)
    masks = masks_of(target)
    assert set(masks) == set(SIZES)
    for name in SIZES:
        np.testing.assert_array_equal(masks[name], truth(name), err_msg=name)
    assert (len(report.written), report.left_out) == (3, [])
    assert set(report.labels.names) == set(CLASSES)
    if tool in ("cvat_xml", "cvat_masks", "supervisely"):
        colors = yaml.safe_load((target / "classes.yaml").read_text())["colors"]
        assert colors == {"cat": [250, 50, 83], "dog": [51, 221, 255]}
    folder = Folder(FolderConfig(root=target))
    split_of = {name: split for split in ("train", "val") for name in folder.index(split).names}
    assert set(split_of) == set(SIZES)
    if keeps_splits:
        assert split_of == SPLITS
    assert (target / "contact-sheet.jpg").stat().st_size > 1000
    assert report.format == FORMATS[format_name].title
    assert not any("also looks like" in note for note in report.reading.notes)
