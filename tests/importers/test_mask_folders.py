"""Folders of masks as people and tools make them: colors, values, names, layouts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import corners, outline, save_image, save_json, save_png, save_text, yolo
from PIL import Image

from importing import Imported, filled
from nacre.cli.imports import _parse_colors
from nacre.data.folder import Folder, FolderConfig
from nacre.errors import NacreError
from nacre.importers import import_export

SIZE = (24, 16)
CROP, WEED = (2, 3, 9, 12), (12, 4, 20, 9)
LABELS = filled(SIZE, (*CROP, 1), (*WEED, 2))
COLORS = np.array([(0, 0, 0), (0, 255, 0), (255, 0, 0)], np.uint8)


def folder(root: Path, mask: str = "masks/p.png", image: str = "images/p.jpg") -> None:
    save_image(root / image, SIZE)
    save_png(root / mask, COLORS[LABELS])


WEED_CLASS = {"title": "weed", "color": "#FF0000"}
META = {"label_map": {"0": "background", "1": "crop", "2": "weed"}}
CSV = "name,r,g,b\ncrop,0,255,0\nweed,255,0,0\n"
TABLES: list[tuple[str, Any]] = [
    ("class_dict.csv", CSV),
    ("label_colors.txt", "0 255 0 crop\n255 0 0\tweed\n"),
    ("label_colors.txt", "crop 0 255 0\nweed 255 0 0\n"),
    ("labelmap.txt", "# label:color_rgb\nbackground:0,0,0::\ncrop:0,255,0::\nweed:255,0,0::"),
    ("classes.json", {"crop": [0, 255, 0], "weed": "#ff0000"}),
    ("classes.json", {"classes": [{"name": "crop", "color": [0, 255, 0]}, WEED_CLASS]}),
    ("obj_class_to_machine_color.json", {"crop": [0, 255, 0], "weed": [255, 0, 0]}),
    ("dataset_meta.json", META | {"segmentation_colors": COLORS.tolist()}),
]


@pytest.mark.parametrize(("name", "content"), TABLES)
def test_tables_of_colors(name: str, content: Any, tmp_path: Path) -> None:
    folder(tmp_path / "x")
    save_text(tmp_path / "x" / name, content if isinstance(content, str) else json.dumps(content))
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert (got.names, got.classes["colors"]["weed"]) == (["crop", "weed"], [255, 0, 0])
    np.testing.assert_array_equal(got.mask("p"), LABELS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crop\nweed 1", "line 2: 'weed 1' is not a name and a color"),
        ("crop,0,255,0\nweed,300,0,0", "line 2"),
        ("crop,0,255,0\nweed,0,255,0", "two classes have the color 0,255,0"),
        ("name,r,g,b\n", "names no class"),
        (f"crop,0,255,0\n{'a:' * 200_000}", "line 2"),  # for which a pattern would take hours
        (f"Pixel Value, Class\n{'9' * 5000}, crop", "line 2"),
    ],
)
def test_damaged_tables_are_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    folder(tmp_path / "x")
    name = "_classes.csv" if text.startswith("Pixel") else "class_dict.csv"
    save_text(tmp_path / "x" / name, text)
    with pytest.raises(NacreError, match=message):
        Imported(tmp_path / "x", tmp_path / "y")


@pytest.mark.parametrize("mask", ["masks/p.png", "labels/p.png", "train_labels/p_L.png"])
def test_colors_without_a_table_are_listed_and_may_be_named(mask: str, tmp_path: Path) -> None:
    folder(tmp_path / "x", mask)
    message = r'0,0,0 \(\d\d\.\d%\), 0,255,0 \(16\.4%\).*such as --colors "0,255,0=crack"'
    with pytest.raises(NacreError, match=message):
        Imported(tmp_path / "x", tmp_path / "y")
    colors = _parse_colors("0,255,0=crop,255,0,0=big weed")
    got = Imported(tmp_path / "x", tmp_path / "y", colors=colors)
    assert got.names == ["crop", "big weed"]
    np.testing.assert_array_equal(got.mask("p"), LABELS)


@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_masks_in_color_beside_classes_yaml_are_imported_if_the_user_names_their_colors(
    mode: str, tmp_path: Path
) -> None:
    folder(tmp_path / "x")
    save_text(tmp_path / "x" / "classes.yaml", "classes: {1: crop, 2: weed}")
    path = tmp_path / "x" / "masks" / "p.png"
    Image.open(path).convert(mode).save(path)
    message = "the masks are in color" if mode == "RGB" else "is a data folder of nacre already"
    with pytest.raises(NacreError, match=message):
        Imported(tmp_path / "x", tmp_path / "y")
    colors = _parse_colors("0,255,0=crop,255,0,0=weed")
    got = Imported(tmp_path / "x", tmp_path / "y", colors=colors)
    assert got.names == ["crop", "weed"]
    np.testing.assert_array_equal(got.mask("p"), LABELS)


def test_colors_that_are_not_named_end_the_import(tmp_path: Path) -> None:
    folder(tmp_path / "x")
    with pytest.raises(NacreError, match="colors without a class: 255,0,0 in 40 pixels;"):
        Imported(tmp_path / "x", tmp_path / "y", colors={(0, 255, 0): "crop"})


@pytest.mark.parametrize("text", ["0,255=crop", "0,0,256=crop", "0,255,0=", "crop", "0,1,2=a,3"])
def test_colors_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(NacreError, match="is not of the form R,G,B=NAME"):
        _parse_colors(text)


def save_palette(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, np.uint8).tobytes())
    image.save(path)


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("", "", ["label 1", "label 2"]),
        ("class_names.txt", "_background_\ncat\ndog\n", ["cat", "dog"]),
        ("labels.txt", "__ignore__\n_background_\ncat\ndog\n", ["cat", "dog"]),
        ("labels.txt", "cat\ndog\n", ["cat", "dog"]),
    ],
)
@pytest.mark.parametrize("masks", ["SegmentationClass", "SegmentationClassPNG"])
def test_voc_like_folders_of_ones_own(
    masks: str, file: str, text: str, names: list[str], tmp_path: Path
) -> None:
    labels = filled(SIZE, (*CROP, 1), (*WEED, 2), (0, 0, 2, 2, 255))
    for name in ("p", "q"):
        save_image(tmp_path / "x" / "JPEGImages" / f"{name}.jpg", SIZE)
        save_palette(tmp_path / "x" / masks / f"{name}.png", labels)
        save_image(tmp_path / "x" / "SegmentationClassVisualization" / f"{name}.jpg", SIZE)
    for split, name in (("train", "p"), ("val", "q")):
        save_text(tmp_path / "x" / "ImageSets" / "Segmentation" / f"{split}.txt", f"{name}\n")
    if file:
        save_text(tmp_path / "x" / file, text)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert (got.names, got.list("train"), got.list("val")) == (names, ["p.jpg"], ["q.jpg"])
    np.testing.assert_array_equal(got.mask("p"), labels)


@pytest.mark.parametrize(("folder", "ending"), [("annot", ""), ("_labels", "_L")])
@pytest.mark.parametrize("table", [None, CSV])
def test_folders_as_in_camvid(folder: str, ending: str, table: str | None, tmp_path: Path) -> None:
    splits = ("train", "val", "test")
    for split in splits:
        save_image(tmp_path / "x" / split / "0001TP_1.png", SIZE)
        mask = tmp_path / "x" / f"{split}{folder}" / f"0001TP_1{ending}.png"
        save_png(mask, COLORS[LABELS] if table else LABELS)
    if table:
        save_text(tmp_path / "x" / "class_dict.csv", table)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == (["crop", "weed"] if table else ["label 1", "label 2"])
    assert [got.list(split) for split in splits] == [[f"{name}/0001TP_1.png"] for name in splits]
    np.testing.assert_array_equal(got.mask("val/0001TP_1"), LABELS)


def test_white_on_black_is_one_class_and_not_what_does_not_count(tmp_path: Path) -> None:
    white = filled(SIZE, (*CROP, 255))
    save_image(tmp_path / "x" / "JPEGImages" / "p.jpg", SIZE)
    save_png(tmp_path / "x" / "SegmentationClass" / "p.png", white)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["label 255"]
    save_text(tmp_path / "x" / "labels.txt", "plant\n")
    got = Imported(tmp_path / "x", tmp_path / "z")
    assert got.names == ["plant"]
    np.testing.assert_array_equal(got.mask("p"), filled(SIZE, (*CROP, 1)))


@pytest.mark.parametrize("value", [1, 255])
def test_masks_without_names_get_the_line_to_write(value: int, tmp_path: Path) -> None:
    save_image(tmp_path / "x" / "images" / "p.jpg", SIZE)
    save_png(tmp_path / "x" / "masks" / "p.png", filled(SIZE, (*CROP, value)))
    line = rf"add a file classes\.yaml, such as `classes: {{{value}: crack}}`"
    with pytest.raises(NacreError, match=line):
        Imported(tmp_path / "x", tmp_path / "y")


# Cityscapes, LabelMe's XML


@pytest.mark.parametrize(
    ("ids", "dtype", "values"),
    [
        ("labelIds", np.uint8, (7, 26, 0, 255)),
        ("labelTrainIds", np.uint8, (0, 13, 255, 255)),
        ("instanceIds", np.uint16, (7, 26003, 0, 0)),
    ],
)
def test_cityscapes_has_nineteen_classes_and_no_background(
    ids: str, dtype: Any, values: tuple[int, ...], tmp_path: Path
) -> None:
    """Road, a car, what has no label, and a license plate."""
    stem, root = "aachen_000000_000019", tmp_path / "x"
    for split in ("train", "val", "test"):
        folder = root / "imgsFine" / "leftImg8bit" / split / "aachen"
        save_image(folder / f"{stem}_{split}_leftImg8bit.png", SIZE)
    places = filled(SIZE, (0, 0, 5, 5, 1), (9, 9, 12, 12, 2), (20, 0, 24, 3, 3))
    for split in ("train", "val", "gone"):
        folder = root / "gtFine" / split.replace("gone", "val") / "aachen"
        mask = np.array(values, dtype)[places]
        save_png(folder / f"{stem}_{split}_gtFine_{ids}.png", mask)
    got = Imported(root, tmp_path / "y")
    assert (len(got.names), got.names[0], got.names[13]) == (19, "road", "car")
    assert got.classes["background"] is None
    expected = np.array((1, 14, 255, 255), np.uint8)[places]
    np.testing.assert_array_equal(got.mask(f"{stem}_train_leftImg8bit"), expected)
    assert len(got.list("train")) == len(got.list("val")) == 1
    assert "1 image: the image file is missing (gtFine/val/aachen/" in got.text
    Folder(FolderConfig(root=tmp_path / "y")).index("train")


def points(box: tuple[int, int, int, int]) -> str:
    return "".join(f"<pt><x>{x}</x><y>{y}</y></pt>" for x, y in corners(box))


def test_labelmes_xml_with_polygons_and_masks(tmp_path: Path) -> None:
    root = tmp_path / "x"
    save_image(root / "Images" / "walk" / "p.jpg", SIZE)
    save_png(root / "Masks" / "walk" / "p_mask_0.png", filled(SIZE, (*WEED, 255)))
    objects = (
        f"<object><name>cat</name><deleted>0</deleted><polygon>{points(CROP)}</polygon></object>"
        f"<object><name>old</name><deleted>1</deleted><polygon>{points(WEED)}</polygon></object>"
        "<object><name>dog</name><deleted>0</deleted>"
        "<segm><mask>p_mask_0.png</mask></segm></object>"
    )
    save_text(
        root / "Annotations" / "walk" / "p.xml",
        "<annotation><filename>p.jpg</filename><folder>walk</folder>"
        f"<imagesize><nrows>16</nrows><ncols>24</ncols></imagesize>{objects}</annotation>",
    )
    save_text(root / "Annotations" / "walk" / "q.xml", f"<annotation>{objects}<cut")
    got = Imported(root, tmp_path / "y")
    assert got.names == ["cat", "dog"]
    np.testing.assert_array_equal(got.mask("p"), LABELS)
    assert "its annotation cannot be read (Annotations/walk/q.xml" in got.text


# Boxes as outlines


def yolo_of(root: Path, *outlines: list[list[float]]) -> None:
    save_text(root / "data.yaml", "names: [cat]\nnc: 1\ntrain: images")
    save_image(root / "images" / "p.jpg", SIZE)
    lines = [" ".join(f"{x / 24:.6f} {y / 16:.6f}" for x, y in one) for one in outlines]
    save_text(root / "labels" / "p.txt", "".join(f"0 {line}\n" for line in lines))


TURNED = [[6.0, 2.0], [12.0, 8.0], [10.0, 10.0], [4.0, 4.0]]


def coco_of(root: Path, *outlines: list[list[float]]) -> None:
    save_image(root / "p.jpg", SIZE)
    annotations = [
        {"image_id": 1, "category_id": 1, "segmentation": [[v for point in one for v in point]]}
        for one in outlines
    ]
    images, categories = [{"id": 1, "file_name": "p.jpg"}], [{"id": 1, "name": "cat"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    save_json(root / "c.json", content)


@pytest.mark.parametrize("write", [yolo_of, coco_of])
@pytest.mark.parametrize("box", [corners(CROP), TURNED, [*corners(CROP), [2.0, 3.0]]])
def test_outlines_that_are_all_boxes_are_asked_about(
    write: Any, box: list[list[float]], tmp_path: Path
) -> None:
    write(tmp_path / "x", corners(WEED), box)
    with pytest.raises(NacreError, match=r"\(2 outlines\) are boxes .* use --fill-boxes"):
        import_export(tmp_path / "x", tmp_path / "y")
    assert Imported(tmp_path / "x", tmp_path / "y", fill_boxes=True).report.num_shapes == 2


@pytest.mark.parametrize(
    "other", [outline(CROP), [[2.0, 3.0], [9.0, 3.0], [12.0, 12.0], [2.0, 9.0]]]
)
@pytest.mark.parametrize("write", [yolo_of, coco_of])
def test_one_outline_that_is_no_box_answers_for_all(
    write: Any, other: list[list[float]], tmp_path: Path
) -> None:
    write(tmp_path / "x", corners(WEED), other)
    assert len(import_export(tmp_path / "x", tmp_path / "y").written) == 1


def test_boxes_of_yolo_are_said_to_be_boxes(tmp_path: Path) -> None:
    yolo(tmp_path / "x")
    for path in (tmp_path / "x").rglob("labels/*.txt"):
        path.write_text("0 0.5 0.5 0.2 0.2\n")
    with pytest.raises(NacreError, match="it has boxes but no outlines"):
        import_export(tmp_path / "x", tmp_path / "y")
