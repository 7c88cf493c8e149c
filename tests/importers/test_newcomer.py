"""Exports as people have them: several in one folder, odd names and encodings, other formats."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import corners, save_image, save_json, save_png, save_text

from importing import Imported, filled
from nacre.errors import NacreError

SIZE = (24, 16)
BOX = (2, 3, 9, 12)


def cvat_task(root: Path, color: tuple[int, int, int], name: str) -> None:
    """Write one task: a mask in one color."""
    save_text(
        root / "labelmap.txt",
        f"# label:color_rgb:parts:actions\n{name}:{','.join(map(str, color))}::\n",
    )
    save_text(
        root / "ImageSets" / "Segmentation" / "default.txt", "frame_000000\nUnter führung 1\n"
    )
    colors = np.array([(0, 0, 0), color], np.uint8)
    save_png(root / "SegmentationClass" / "frame_000000.png", colors[filled(SIZE, (*BOX, 1))])
    for stem in ("frame_000000", "Unter führung 1"):
        save_image(root / "JPEGImages" / f"{stem}.JPG", SIZE)


def supervisely_project(root: Path, title: str) -> None:
    save_json(root / "meta.json", {"classes": [{"title": title, "color": "#00FF00"}], "tags": []})
    outline = {"exterior": corners(BOX), "interior": []}
    item = {"classTitle": title, "geometryType": "polygon", "points": outline}
    save_json(
        root / "ds1" / "ann" / "IMG 0001.JPG.json",
        {"size": {"width": 24, "height": 16}, "objects": [item]},
    )
    save_image(root / "ds1" / "img" / "IMG 0001.JPG", SIZE)


def yolo_set(root: Path, names: str) -> None:
    save_text(root / "data.yaml", f"train: ../train/images\nnc: 1\nnames: {names}\n")
    points = (x / s for point in corners(BOX) for x, s in zip(point, SIZE, strict=True))
    save_text(root / "train" / "labels" / "a.txt", f"0 {' '.join(map(str, points))}\n")
    save_image(root / "train" / "images" / "a.jpg", SIZE)


@pytest.mark.parametrize(
    ("write", "one", "two", "empty"),
    [
        (cvat_task, ((250, 50, 83), "cat"), ((0, 200, 0), "dog"), 2),
        (supervisely_project, ("cat",), ("dog",), 0),
        (yolo_set, ("[cat, dog]",), ("[dog]",), 0),
    ],
)
def test_two_exports_in_one_folder_number_their_classes_apart(
    write: Any, one: tuple[Any, ...], two: tuple[Any, ...], empty: int, tmp_path: Path
) -> None:
    write(tmp_path / "x" / "one", *one)
    write(tmp_path / "x" / "two", *two)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["cat", "dog"]
    found = [np.unique(got.mask(name)).tolist() for name in got.images()]
    assert sorted(found) == [*[[0]] * empty, [0, 1], [0, 2]]


def test_a_yolo_description_may_name_the_classes_alone(tmp_path: Path) -> None:
    yolo_set(tmp_path / "x", "[cat]")
    save_text(tmp_path / "x" / "data.yaml", "names: [cat]\n")
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["cat"]
    assert len(got.images()) == 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_texts_with_a_byte_order_mark(encoding: str, tmp_path: Path) -> None:
    cvat_task(tmp_path / "x", (250, 50, 83), "Röhre")
    for name in ("labelmap.txt", "ImageSets/Segmentation/default.txt"):
        file = tmp_path / "x" / name
        file.write_text(file.read_text("utf-8"), encoding)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["Röhre"]
    assert len(got.images()) == 2


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "annotations.xml",
            '<annotations><track id="0" label="c"/></annotations>',
            "format for videos; export it as 'CVAT for images 1.1'",
        ),
        ("data.yaml", "names: [cat]\ntrain: images\nkpt_shape: [17, 3]", "key points"),
        ("task-1-annotation-2-by-1-tag-cat-0.png", "x", "export it as JSON"),
        ("gtFine/a_gtFine_labelIds.png", "x", "lists 1 image .* but contains none of their files"),
        ("label_colors.txt", "0 0 0 background", "export it from CVAT as 'Segmentation mask 1.1'"),
        (
            "p.xml",
            "<annotation><object><bndbox/></object></annotation>",
            "contains boxes but no outline",
        ),
        ("a.json", '{"_via_settings": {}}', "VIA; export it there as COCO"),
        ("a.json", '[{"image_id": 1, "category_id": 2}]', "COCO results"),
        ("a.json", '{"items": [{"id": "p", "annotations": []}]}', "export it as 'CVAT for images"),
        ("a.json", '{"images": [}', "a.json is not valid JSON"),
        ("a.zip", "x", "contains another archive"),
        (".hidden", "x", "has no files"),
        ("classes.yaml", "classes: {1: cat}", "has classes.yaml but no files in images/"),
        ("SegmentationClass/a.png", "x", "none of their files"),
        ("a.txt", "x", r"no known format \(it contains 1 .txt"),
    ],
)
def test_what_cannot_be_imported_is_said_with_advice(
    file: str, text: str, message: str, tmp_path: Path
) -> None:
    save_text(tmp_path / "x" / file, text)
    if file == "label_colors.txt":
        save_text(tmp_path / "x" / "gtFine" / "a_gtFine_labelIds.png", "x")
    if file == "data.yaml":
        save_text(tmp_path / "x" / "labels" / "p.txt", "0 0 0 1 0 1 1")
    with pytest.raises(NacreError, match=message):
        Imported(tmp_path / "x", tmp_path / "y")


@pytest.mark.parametrize(
    ("images", "masks", "message"),
    [
        (
            "Images",
            "masks",
            "has Images; rename it to images, and use the folder",
        ),
        ("images", "Mask", "has Mask; rename it to masks"),
        ("images", "png", "has classes.yaml but no files in masks/"),
        ("images", "masks", "is a data folder of nacre already; use it as it is"),
    ],
)
def test_a_data_folder_of_nacre_has_the_folders_images_and_masks(
    images: str, masks: str, message: str, tmp_path: Path
) -> None:
    save_text(tmp_path / "x" / "classes.yaml", "classes: {1: cat}")
    save_image(tmp_path / "x" / images / "a.jpg", SIZE)
    save_png(tmp_path / "x" / masks / "a.png", filled(SIZE, (*BOX, 1)))
    with pytest.raises(NacreError, match=message):
        Imported(tmp_path / "x", tmp_path / "y")


@pytest.mark.parametrize("mask", ["masks/a_mask.png", "masks/a.bmp", "Masks/a.png"])
def test_masks_that_nacre_would_not_find_are_imported(mask: str, tmp_path: Path) -> None:
    save_image(tmp_path / "x" / "images" / "a.jpg", SIZE)
    save_png(tmp_path / "x" / mask, filled(SIZE, (*BOX, 1)))
    got = Imported(tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(got.mask("a"), filled(SIZE, (*BOX, 1)))
    save_text(tmp_path / "x" / "classes.yaml", "classes: {1: cat}")
    with pytest.raises(NacreError, match=r"not named like their images; give|has Masks; rename"):
        Imported(tmp_path / "x", tmp_path / "z")


@pytest.mark.parametrize("mask", ["masks/a.jpg", "masks/a_mask.jpeg", "labels/a.JPG"])
@pytest.mark.parametrize("table", ["", "classes.yaml"])
def test_masks_that_are_jpeg_files_are_named(mask: str, table: str, tmp_path: Path) -> None:
    save_image(tmp_path / "x" / "images" / "a.jpg", SIZE)
    save_image(tmp_path / "x" / mask, SIZE)
    if table:
        save_text(tmp_path / "x" / table, "classes: {1: cat}")
    with pytest.raises(NacreError, match=f"JPEG files, such as {mask}, .*; export the masks as"):
        Imported(tmp_path / "x", tmp_path / "y")


def test_labels_named_like_their_images_need_only_a_classes_yaml(tmp_path: Path) -> None:
    save_image(tmp_path / "x" / "images" / "a.jpg", SIZE)
    save_png(tmp_path / "x" / "masks" / "a.png", filled(SIZE, (*BOX, 1)))
    with pytest.raises(NacreError, match=r"add a file classes.yaml, .*use it without an import"):
        Imported(tmp_path / "x", tmp_path / "y")


@pytest.mark.parametrize("folder", ["images", "train/images"])
def test_one_yolo_folder_for_training_and_testing_has_no_split(folder: str, tmp_path: Path) -> None:
    yolo_set(tmp_path / "x", "[cat]")
    if folder == "images":
        for path in (tmp_path / "x" / "train").iterdir():
            path.rename(tmp_path / "x" / path.name)
    described = f"names: [cat]\ntrain: {folder}\nval: {folder}\ntest: {folder}\n"
    save_text(tmp_path / "x" / "data.yaml", described)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert f"train and val are the same folder {folder}: its images are in no split" in got.text
    assert "only the split" not in got.text
    assert got.report.splits == {}
