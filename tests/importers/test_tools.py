"""The details of each tool's export."""

import base64
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import (
    SIZES,
    bits_of,
    brush_code,
    coco_content,
    compress,
    corners,
    cvat_masks,
    png_bytes,
    runs_of,
    save_image,
    save_json,
    save_text,
    yolo,
)
from PIL import Image
from test_rasterize import reference

from importing import Imported, filled
from nacre.data.image_io import read_mask
from nacre.errors import NacreError
from nacre.importers.rasterize import rectangle

SIZE = (24, 16)


Writer = Callable[..., None]


def expected_ring(points: Any) -> np.ndarray:
    return reference(np.array(points, float), *SIZE).astype(np.uint8)


# COCO


def coco_of(root: Path, *annotations: dict[str, Any], categories: Any = (), **image: Any) -> None:
    save_image(root / "p.jpg", SIZE)
    content = {
        "images": [{"id": 1, "file_name": "p.jpg"} | image],
        "annotations": [{"image_id": 1, "category_id": 1} | one for one in annotations],
        "categories": list(categories) or [{"id": 1, "name": "cat"}],
    }
    save_json(root / "c.json", content)


BOX = (2, 3, 9, 12)
FLAT = [value for corner in corners(BOX) for value in corner]


@pytest.mark.parametrize("width", [24, "24", 24.0, None, 0, "?"])
@pytest.mark.parametrize("form", [[FLAT], FLAT, [corners(BOX)]], ids=["flat", "one", "pairs"])
def test_coco_outlines_and_sizes_in_all_their_forms(width: Any, form: Any, tmp_path: Path) -> None:
    coco_of(tmp_path / "x", {"segmentation": form}, width=width, height=16)
    got = Imported(tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(got.mask("p"), filled(SIZE, (*BOX, 1)))


RUNS = {
    "size": [16, 24],
    "counts": compress(runs_of(filled(SIZE, (*BOX, 1)).reshape(-1, order="F"))),
}


@pytest.mark.parametrize("segmentation", [[], None, {}, [[1, 2, 3, 4]]])
def test_boxes_and_lines_of_coco_are_counted_not_painted(segmentation: Any, tmp_path: Path) -> None:
    crowd = {"segmentation": RUNS, "iscrowd": 1}
    coco_of(tmp_path / "x", crowd, {"segmentation": segmentation})
    captions = {"images": [], "annotations": [{"image_id": 1, "id": 1, "caption": "a cat"}]}
    save_json(tmp_path / "x" / "captions_val.json", captions)  # which are passed over
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert (got.report.num_shapes, len(got.report.skipped_shapes)) == (1, 1)
    np.testing.assert_array_equal(got.mask("p"), filled(SIZE, (*BOX, 1)))


def test_annotations_may_come_before_their_images(tmp_path: Path) -> None:
    content = coco_content(["a", "b"])
    save_json(tmp_path / "x" / "c.json", dict(reversed(content.items())))
    for name in ("a", "b"):
        save_image(tmp_path / "x" / f"{name}.jpg", SIZES[name])
    assert Imported(tmp_path / "x", tmp_path / "y").images() == {"a", "b"}
    content["annotations"][0]["segmentation"] = {"size": [1], "counts": 5}
    save_json(tmp_path / "x" / "c.json", dict(reversed(content.items())))
    assert Imported(tmp_path / "x", tmp_path / "z").images() == {"a"}


def test_annotations_of_unknown_images_and_categories(tmp_path: Path) -> None:
    content = coco_content(["a", "b"])
    content["annotations"].append({"image_id": 77, "category_id": 1, "segmentation": [FLAT]})
    content["annotations"].append({"image_id": 2, "category_id": 9, "segmentation": [FLAT]})
    save_json(tmp_path / "x" / "c.json", content)
    for name in ("a", "b"):
        save_image(tmp_path / "x" / f"{name}.jpg", SIZES[name])
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"a"}
    assert "an unlisted category" in got.text
    assert "an image that the export does not list" in got.text


@pytest.mark.parametrize("key", ["images", "categories"])
def test_an_identifier_that_is_there_twice_is_refused(key: str, tmp_path: Path) -> None:
    content = coco_content(["a", "b"])
    content[key][1]["id"] = content[key][0]["id"]
    save_json(tmp_path / "x" / "c.json", content)
    with pytest.raises(NacreError, match=r"lists two .* with the id 1"):
        Imported(tmp_path / "x", tmp_path / "y")


def test_one_image_in_two_files_has_the_shapes_of_both(tmp_path: Path) -> None:
    content = coco_content(["a"])
    for i in (0, 1):
        part = content | {"annotations": [content["annotations"][i]]}
        save_json(tmp_path / "x" / f"part{i}.json", part)
    save_image(tmp_path / "x" / "a.jpg", SIZES["a"])
    got = Imported(tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(
        got.mask("a"), filled((16, 12), (2, 3, 12, 10, 1), (8, 5, 14, 9, 2))
    )


def test_a_damaged_file_beside_the_others_is_not_passed_over(tmp_path: Path) -> None:
    coco_of(tmp_path / "x", {"segmentation": [FLAT]})
    save_text(tmp_path / "x" / "val.json", '{"images": [], "annotations": [{"image_id": 1, }]}')
    with pytest.raises(NacreError, match=r"val\.json is not valid JSON"):
        Imported(tmp_path / "x", tmp_path / "y")


# CVAT


def cvat_of(root: Path, *shapes: str) -> None:
    save_image(root / "p.jpg", SIZE)
    body = "".join(shapes)
    save_text(
        root / "annotations.xml",
        "<annotations><version>1.1</version><meta><job><labels>"
        "<label><name>cat</name><color>#ff0000</color></label>"
        "<label><name>body</name><type>skeleton</type></label>"
        "<label><name>nose</name><parent>body</parent></label></labels></job></meta>"
        f'<image id="0" name="p.jpg" width="24" height="16">{body}</image></annotations>',
    )


def test_cvat_ellipses_and_turned_boxes(tmp_path: Path) -> None:
    cvat_of(
        tmp_path / "x",
        '<ellipse label="cat" cx="6" cy="8" rx="4" ry="2" rotation="90" z_order="0"/>',
        '<box label="cat" xtl="12" ytl="6" xbr="22" ybr="10" rotation="30" z_order="0"/>',
    )
    got = Imported(tmp_path / "x", tmp_path / "y").mask("p")
    ring = rectangle(12, 6, 22, 10, 30)
    np.testing.assert_array_equal(got[:, 11:], expected_ring(ring)[:, 11:])
    rows, columns = np.nonzero(got[:, :11])
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (4, 7, 4, 11)


POINTS = ";".join(f"{x},{y}" for x, y in corners(BOX))


def test_cvat_z_order_goes_before_the_document_and_may_be_negative(tmp_path: Path) -> None:
    cvat_of(
        tmp_path / "x",
        f'<polygon label="top" points="{POINTS}" z_order="-1"/>',
        f'<polygon label="cat" points="{POINTS}" z_order="-3"/>',
    )
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["cat", "body", "top"]
    np.testing.assert_array_equal(got.mask("p"), filled(SIZE, (*BOX, 3)))


def test_cvat_subsets_tell_images_of_one_name_apart(tmp_path: Path) -> None:
    body = ""
    for subset in ("monday", "tuesday"):
        save_image(tmp_path / "x" / "images" / subset / "p.jpg", SIZE)
        body += (
            f'<image id="0" name="p.jpg" subset="{subset}" width="24" height="16">'
            f'<polygon label="{subset}" points="{POINTS}"/></image>'
        )
    save_text(tmp_path / "x" / "annotations.xml", f"<annotations>{body}</annotations>")
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert [int(got.mask(f"{day}/p").max()) for day in ("monday", "tuesday")] == [1, 2]


def test_cvat_shapes_without_area_are_counted(tmp_path: Path) -> None:
    cvat_of(
        tmp_path / "x",
        f'<polygon label="cat" points="{POINTS}"/>',
        '<polyline label="cat" points="1,1;5,5"/><points label="cat" points="1,1"/>',
        '<skeleton label="body"><points label="nose" points="1,1"/></skeleton><tag label="cat"/>',
    )
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.report.skipped_shapes == {
        "shapes of type 'polyline' have no area": 1,
        "shapes of type 'points' have no area": 1,
        "shapes of type 'skeleton' have no area": 1,
    }
    np.testing.assert_array_equal(got.mask("p"), filled(SIZE, (*BOX, 1)))


def test_masks_are_told_by_color_and_the_background_may_have_one(tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    table = "# label:color_rgb:parts:actions\nBackground:250,50,83::\ndog:51,221,255::\n"
    save_text(tmp_path / "x" / "labelmap.txt", table)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["dog"]
    np.testing.assert_array_equal(got.mask("a"), filled((16, 12), (8, 5, 14, 9, 1)))


def test_palette_masks_of_cvat_are_read_by_their_colors(tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    path = tmp_path / "x" / "SegmentationClass" / "a.png"
    Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=3).save(path)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert set(np.unique(got.mask("a"))) == {0, 1, 2}


def test_masks_of_cvat_in_folders_that_the_list_does_not_name(tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    folder = tmp_path / "x" / "SegmentationClass"
    (folder / "Train").mkdir()
    (folder / "a.png").rename(folder / "Train" / "a.png")
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.mask("a").any()


def test_one_mask_is_never_that_of_two_images(tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    for folder in ("one", "two"):
        save_image(tmp_path / "x" / "JPEGImages" / folder / "a.jpg", SIZES["a"])
    save_text(tmp_path / "x" / "ImageSets" / "Segmentation" / "train.txt", "one/a\ntwo/a\n")
    (tmp_path / "x" / "JPEGImages" / "a.jpg").unlink()
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"b"}
    assert "another image has the same mask" in got.text


# LabelMe


def labelme_of(root: Path, *shapes: dict[str, Any], **more: Any) -> None:
    save_image(root / "p.jpg", SIZE)
    save_json(root / "p.json", {"shapes": list(shapes), "imagePath": "p.jpg"} | more)


@pytest.mark.parametrize("turned", ["oriented_rectangle", "rotation"])
def test_labelme_circles_and_turned_rectangles(turned: str, tmp_path: Path) -> None:
    ring = rectangle(13, 5, 22, 9, 25)
    labelme_of(
        tmp_path / "x",
        {"label": "cat", "points": [[6, 6], [6, 9]], "shape_type": "circle"},
        {"label": "cat", "points": ring.tolist(), "shape_type": turned},
    )
    got = Imported(tmp_path / "x", tmp_path / "y").mask("p")
    np.testing.assert_array_equal(got[:, 11:], expected_ring(ring)[:, 11:])
    rows, columns = np.nonzero(got[:, :11])
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (3, 8, 3, 8)


def test_later_shapes_of_labelme_cover_earlier_ones(tmp_path: Path) -> None:
    small = {"label": "small", "points": corners((4, 4, 6, 6)), "shape_type": "polygon"}
    large = {"label": "large", "points": corners(BOX), "shape_type": None}
    labelme_of(tmp_path / "x", small, large)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["large", "small"]
    np.testing.assert_array_equal(got.mask("p"), filled(SIZE, (*BOX, 1)))
    assert "no pixel has the class small" in got.text


def test_labelmes_names_for_ignored_and_background(tmp_path: Path) -> None:
    labelme_of(
        tmp_path / "x",
        {"label": "cat", "points": corners((0, 0, 24, 16))},
        {"label": "__ignore__", "points": corners((0, 0, 4, 4))},
        {"label": "_background_", "points": corners((10, 0, 14, 4))},
    )
    save_text(tmp_path / "x" / "labels.txt", "__ignore__\n_background_\nzebra\ncat\n")
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["zebra", "cat"]
    expected = filled(SIZE, (0, 0, 24, 16, 2), (0, 0, 4, 4, 255), (10, 0, 14, 4, 0))
    np.testing.assert_array_equal(got.mask("p"), expected)


@pytest.mark.parametrize("damage", ["no image", "cut off"])
def test_labelme_files_with_the_image_inside_or_damaged(damage: str, tmp_path: Path) -> None:
    root = tmp_path / "x"
    labelme_of(root, {"label": "cat", "points": corners(BOX)})
    original = (root / "p.jpg").read_bytes()
    if damage == "no image":
        data = base64.b64encode(original).decode()
        labelme_of(root, {"label": "cat", "points": corners(BOX)}, imageData=data)
        (root / "p.jpg").unlink()
    else:
        save_image(root / "q.jpg", SIZE)
        save_text(root / "q.json", '{"shapes": [')
    got = Imported(root, tmp_path / "y")
    assert got.images() == {"p"}
    assert (got.root / "images" / "p.jpg").read_bytes() == original
    assert ("its annotation cannot be read" in got.text) == (damage == "cut off")


def test_two_annotations_of_one_image_leave_it_out(tmp_path: Path) -> None:
    shape = {"label": "cat", "points": corners(BOX)}
    labelme_of(tmp_path / "x", shape)
    # Renamed with its old path inside, as happens to files that are copied by hand.
    save_json(tmp_path / "x" / "q.json", {"shapes": [shape], "imagePath": "p.jpg"})
    save_image(tmp_path / "x" / "q.jpg", SIZE)
    save_json(tmp_path / "x" / "r.json", {"shapes": [shape], "imagePath": "r.jpg"})
    save_image(tmp_path / "x" / "r.jpg", SIZE)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"r"}
    assert "two annotations name its file" in got.text


# YOLO


def test_yolo_boxes_are_counted_and_files_without_lines_are_empty(tmp_path: Path) -> None:
    yolo(tmp_path / "x")
    labels = tmp_path / "x" / "train" / "labels" / "a.txt"
    labels.write_text("\ufeff" + labels.read_text() + "\n0 0.5 0.5 0.2 0.2\n", encoding="utf-8")
    save_image(tmp_path / "x" / "train" / "images" / "no-text.jpg", (9, 9))
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.report.skipped_shapes == {"boxes without an outline": 1}
    assert got.report.empty == ["train/images/empty.jpg", "train/images/no-text.jpg"]


def yolo_of(root: Path, line: str) -> None:
    save_text(root / "data.yaml", "names: [cat]\nnc: 1\ntrain: images")
    save_image(root / "images" / "p.jpg", SIZE)
    save_text(root / "labels" / "p.txt", line)


def test_label_studios_yolo_has_its_classes_in_a_text_file(tmp_path: Path) -> None:
    save_text(tmp_path / "x" / "classes.txt", "cat\ndog\n")
    save_text(tmp_path / "x" / "notes.json", '{"categories": []}')
    save_image(tmp_path / "x" / "images" / "1a2b3c4d-p.jpg", SIZE)
    save_text(tmp_path / "x" / "labels" / "1a2b3c4d-p.txt", "1 0 0 0.5 0 0.5 1 0 1")
    got = Imported(tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(got.mask("1a2b3c4d-p"), filled(SIZE, (0, 0, 12, 16, 2)))


@pytest.mark.parametrize(
    ("description", "folders"),
    [
        ("names: [cat]\npath: /far/away\ntrain: images/one\nval: images/two", ("one/", "two/")),
        ("names: {0: cat}\npath: .\ntrain: train.txt\nval: val.txt", ("", "")),
    ],
)
def test_yolo_splits_by_folders_or_lists(
    description: str, folders: tuple[str, str], tmp_path: Path
) -> None:
    save_text(tmp_path / "x" / "d.yaml", description)
    for name, split, folder in zip(("one", "two"), ("train", "val"), folders, strict=True):
        save_image(tmp_path / "x" / "images" / folder / f"{name}.JPG", SIZE)
        # A hair outside the image is tolerated.
        save_text(tmp_path / "x" / "labels" / folder / f"{name}.txt", "0 -0.005 0 1 0 1 1.005")
        if not folder:
            save_text(tmp_path / "x" / f"{split}.txt", f"data/images/{name}.jpg\n")
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert (got.list("train"), got.list("val")) == (["one.jpg"], ["two.jpg"])


def test_labels_whose_images_lie_elsewhere(tmp_path: Path) -> None:
    yolo(tmp_path / "x")
    for name, split in (("a", "train"), ("b", "valid"), ("empty", "train")):
        path = tmp_path / "x" / split / "images" / f"{name}.jpg"
        (tmp_path / "photos").mkdir(exist_ok=True)
        path.rename(tmp_path / "photos" / f"{name}.jpg")
    with pytest.raises(NacreError, match=r"contains none of their files; .*--images FOLDER"):
        Imported(tmp_path / "x", tmp_path / "y")
    got = Imported(tmp_path / "x", tmp_path / "y", images=tmp_path / "photos")
    assert got.images() == {"a", "b", "empty"}


def test_labels_in_folders_that_the_images_do_not_have(tmp_path: Path) -> None:
    save_text(tmp_path / "x" / "data.yaml", "names: {0: cat}\ntrain: images")
    save_image(tmp_path / "x" / "images" / "p.jpg", SIZE)
    save_image(tmp_path / "x" / "images" / "q.jpg", SIZE)
    save_text(tmp_path / "x" / "labels" / "train" / "p.txt", "0 0 0 1 0 1 1 0 1")
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"p"}
    assert got.mask("p").all()


# Label Studio


def label_studio_of(
    root: Path,
    *results: dict[str, Any],
    others: Any = (),
    image: str = "/data/upload/p.jpg",
    **annotation: Any,
) -> None:
    save_image(root / "p.jpg", SIZE)
    common = {"original_width": SIZE[0], "original_height": SIZE[1], "image_rotation": 0}
    done = {"id": 1, "result": [common | one for one in results], "was_cancelled": False}
    annotations = [done | annotation, *others]
    save_json(root / "export.json", [{"data": {"image": image}, "annotations": annotations}])


def test_label_studio_ellipses_and_boxes_turned_about_their_corner(tmp_path: Path) -> None:
    x, y, width, height = 15, 2, 6, 3
    label_studio_of(
        tmp_path / "x",
        {
            "type": "ellipselabels",
            "value": {"x": 25, "y": 50, "radiusX": 12.5, "radiusY": 25, "ellipselabels": ["cat"]},
        },
        {
            "type": "rectanglelabels",
            "value": {
                "x": 100 * x / 24,
                "y": 100 * y / 16,
                "width": 100 * width / 24,
                "height": 100 * height / 16,
                "rotation": 90,
                "rectanglelabels": ["cat"],
            },
        },
    )
    got = Imported(tmp_path / "x", tmp_path / "y").mask("p")
    expected = filled(SIZE, (x - height, y, x, y + width, 1))
    np.testing.assert_array_equal(got[:, 12:], expected[:, 12:])
    rows, columns = np.nonzero(got[:, :11])
    assert (columns.min(), columns.max(), rows.min(), rows.max()) == (3, 8, 4, 11)


def brush(code: Any, form: str = "rle") -> dict[str, Any]:
    value = {"format": form, "rle": code, "brushlabels": ["cat"]}
    return {"type": "brushlabels", "value": value}


def polygon(label: str, **more: Any) -> dict[str, Any]:
    points = [[0, 0], [50, 0], [50, 100], [0, 100]]
    return {"type": "polygonlabels", "value": {"points": points, "polygonlabels": [label]}} | more


def test_ground_truth_goes_before_the_newest(tmp_path: Path) -> None:
    truth = {"id": 2, "result": [polygon("true")], "ground_truth": True, "updated_at": "2020"}
    label_studio_of(tmp_path / "x", polygon("new"), others=[truth], updated_at="2025")
    assert Imported(tmp_path / "x", tmp_path / "y").names == ["true"]


def test_a_task_without_annotation_is_unlabeled_one_with_an_empty_result_is_empty(
    tmp_path: Path,
) -> None:
    annotations: dict[str, Any] = {
        "p": [{"result": []}],
        "q": [],
        "r": [{"result": [], "was_cancelled": True}],
        "s": [{"result": [polygon("cat")]}],
    }
    tasks = []
    for name, done in annotations.items():
        save_image(tmp_path / "x" / f"{name}.jpg", SIZE)
        tasks.append({"data": {"image": f"{name}.jpg"}, "annotations": done})
    save_json(tmp_path / "x" / "export.json", tasks)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert (got.images(), got.report.empty) == ({"p", "s"}, ["p.jpg"])


def test_shapes_and_labels_that_label_studio_keeps_apart(tmp_path: Path) -> None:
    value = {"points": [[0, 0], [50, 0], [50, 100], [0, 100]]}
    label_studio_of(
        tmp_path / "x",
        {"id": "r1", "type": "polygon", "value": value},
        {"id": "r1", "type": "labels", "value": value | {"labels": ["cat"]}},
        {"id": "r1", "type": "choices", "value": {"choices": ["blurred"]}},
    )
    got = Imported(tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(got.mask("p"), filled(SIZE, (0, 0, 12, 16, 1)))
    assert (got.names, got.report.num_shapes) == (["cat"], 1)


def test_bitmasks_and_the_short_form_of_label_studio(tmp_path: Path) -> None:
    data = base64.b64encode(png_bytes(filled(SIZE, (*BOX, 255)))).decode()
    value = {
        "original_width": 24,
        "original_height": 16,
        "imageDataURL": f"data:image/png;base64,{data}",
        "bitmasklabels": ["cat"],
    }
    save_image(tmp_path / "x" / "p.jpg", SIZE)
    save_json(tmp_path / "x" / "min.json", [{"image": "/data/p.jpg", "id": 1, "tag": [value]}])
    got = Imported(tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(got.mask("p"), filled(SIZE, (*BOX, 1)))


def test_an_image_that_was_turned_in_label_studio_is_left_out(tmp_path: Path) -> None:
    label_studio_of(tmp_path / "x", polygon("cat", image_rotation=90))
    with pytest.raises(NacreError, match=r"was rotated in Label Studio .by 90 degrees"):
        Imported(tmp_path / "x", tmp_path / "y")


# Supervisely


def test_supervisely_holes_and_plain_bitmaps(tmp_path: Path) -> None:
    hole = corners((4, 5, 7, 8))
    bits = np.zeros((3, 4), np.uint8)
    bits[1, 2] = 255
    plain = base64.b64encode(png_bytes(bits)).decode()
    packed = base64.b64encode(zlib.compress(png_bytes(bits))).decode()
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("polygon", {"points": {"exterior": corners(BOX), "interior": [hole]}}),
        ("bitmap", {"bitmap": {"data": plain, "origin": [20, 14]}}),
        ("bitmap", {"bitmap": {"data": packed, "origin": [14, 2]}}),
        ("point", {"points": {"exterior": [[1, 1]], "interior": []}}),
    ]
    objects = [{"classTitle": "cat", "geometryType": kind} | shape for kind, shape in kinds]
    save_json(
        tmp_path / "x" / "meta.json",
        {"classes": [{"title": "cat", "color": "#00FF00"}], "tags": []},
    )
    save_json(
        tmp_path / "x" / "ds" / "ann" / "p.jpg.json",
        {"size": {"width": 24, "height": 16}, "objects": objects},
    )
    save_image(tmp_path / "x" / "ds" / "img" / "p.jpg", SIZE)
    got = Imported(tmp_path / "x", tmp_path / "y")
    expected = filled(SIZE, (*BOX, 1), (4, 5, 7, 8, 0), (22, 15, 23, 16, 1), (16, 3, 17, 4, 1))
    np.testing.assert_array_equal(got.mask("p"), expected)
    assert got.classes["colors"] == {"cat": [0, 255, 0]}


def test_more_than_254_classes_need_sixteen_bits(tmp_path: Path) -> None:
    categories = [{"id": i, "name": f"class {i}"} for i in range(300)]
    shape = {"segmentation": [FLAT], "category_id": 299}
    coco_of(tmp_path / "x", shape, categories=categories)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert (got.mask("p").max(), got.classes["ignored"]) == (300, 65535)
    np.testing.assert_array_equal(read_mask(got.root / "masks" / "p.png"), got.mask("p"))


# Damaged shapes


DAMAGED: list[tuple[Writer, Any, str]] = [
    (coco_of, {"segmentation": {"size": [16, 24], "counts": [5, 5]}}, "10 pixels instead of 384"),
    (coco_of, {"segmentation": {"size": [24, 16], "counts": [0, 384]}}, "annotated at 16 x 24"),
    (coco_of, {"segmentation": {"size": [10**12, 10**12], "counts": "1"}}, "RLE has the size"),
    (coco_of, {"segmentation": {"counts": [5]}}, "RLE has the size"),
    (coco_of, {"segmentation": {"size": [16, 24]}}, "counts of its RLE are None"),
    (coco_of, {"segmentation": [["a", "b", "c", "d", "e", "f"]]}, "not numbers"),
    (coco_of, {"segmentation": [[1, 2, 3, 4, 5]]}, "pairs of numbers"),
    (coco_of, {"segmentation": [[1, 2, 3, 4, 5, float("nan")]]}, "corner is at"),
    (coco_of, {"segmentation": [[1, 2, 3, 4, 5, 1e300]]}, "corner is at"),
    (coco_of, {"segmentation": "text"}, "segmentation is text"),
    (cvat_of, '<polygon label="cat" points="1,2;3;4,5"/>', "pairs of numbers"),
    (cvat_of, '<polygon label="cat" points="a,b;c,d;e,f"/>', "not numbers"),
    (cvat_of, '<polygon points="1,2;3,4;4,5"/>', "a class has no name"),
    (cvat_of, '<box label="cat" xtl="1" ytl="1" xbr="x" ybr="3"/>', "not numbers"),
    (cvat_of, '<box label="cat" xtl="1" ytl="1"/>', "not numbers"),
    (cvat_of, '<mask label="cat" rle="1, 3" left="5" top="7" width="3" height="2"/>', "4 pixels"),
    (cvat_of, '<mask label="cat" rle="x" left="5" top="7" width="3" height="2"/>', "not a list"),
    (cvat_of, '<mask label="cat" rle="0, 6" left="5" top="7" width="-3" height="-2"/>', "its box"),
    (cvat_of, '<ellipse label="cat" cx="nan" cy="1" rx="1" ry="1"/>', "not finite"),
    (yolo_of, "7 0 0 1 0 1 1", "unlisted class .line 1: class 7"),
    (yolo_of, "0.5 0 0 1 0 1 1", "unlisted class"),
    (yolo_of, "0 0 0 1 0 1.2 1", "not fractions of width"),
    (yolo_of, "0 10 10 300 10 300 200", "not fractions of width"),
    (yolo_of, "0 0 0 1 0 x 1", "other than numbers"),
    (yolo_of, "0 0 0 1 0 1 1 1", "pairs of numbers"),
    (yolo_of, "0 0 0 1 0 1 nan", "corner is at"),
    (label_studio_of, brush([1, 2, 3]), "before its image"),
    (label_studio_of, brush([999]), "not a list of bytes"),
    (label_studio_of, brush("abc"), "not a list of bytes|before its image"),
    (label_studio_of, brush([], "png"), "the format png"),
    (label_studio_of, brush(brush_code(bits_of("a", (1, 1, 2, 2)))), "768 bytes instead"),
]


@pytest.mark.parametrize(("write", "shape", "message"), DAMAGED)
def test_a_damaged_shape_leaves_its_image_out(
    write: Writer, shape: Any, message: str, tmp_path: Path
) -> None:
    write(tmp_path / "x", shape)
    with pytest.raises(NacreError, match=message):
        Imported(tmp_path / "x", tmp_path / "y")
