"""Known traps between annotation tools and training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import coco_content, corners, cvat_masks, save_image, save_json
from PIL import Image, ImageOps

from importing import Imported, filled
from nacre.data.folder import Folder, FolderConfig
from nacre.errors import NacreError

STORED = (20, 10)
BOX = (1, 2, 9, 5)


def flat(box: tuple[int, int, int, int]) -> list[float]:
    return [value for corner in corners(box) for value in corner]


def coco(
    images: list[dict[str, Any]],
    annotations: list[dict[str, Any]],
    names: tuple[str, ...] = ("cat", "dog"),
    **more: Any,
) -> dict[str, Any]:
    categories = [{"id": i, "name": name} for i, name in enumerate(names)]
    return {"images": images, "annotations": annotations, "categories": categories} | more


def save_turned(path: Path, orientation: int, size: tuple[int, int] = STORED) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    save_image(path, size, exif=exif)


def turned_export(root: Path, photos: dict[str, tuple[int, tuple[int, int] | None]]) -> None:
    """Write images with an orientation, annotated at a size."""
    images, annotations = [], []
    for i, (name, (orientation, size)) in enumerate(photos.items()):
        save_turned(root / f"{name}.jpg", orientation)
        image: dict[str, Any] = {"id": i, "file_name": f"{name}.jpg"}
        images.append(image | ({"width": size[0], "height": size[1]} if size else {}))
        annotations.append({"image_id": i, "category_id": 0, "segmentation": [flat(BOX)]})
    save_json(root / "coco.json", coco(images, annotations))


# Orientation


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_mask_drawn_on_the_stored_pixels_is_turned_as_the_image_is(
    orientation: int, tmp_path: Path
) -> None:
    # One sideways image says for sure that the tool did not turn; the others follow it.
    turned_export(tmp_path / "x", {"p": (orientation, STORED), "q": (6, STORED)})
    got = Imported(tmp_path / "x", tmp_path / "y")
    stored = Image.fromarray(filled(STORED, (*BOX, 1)))
    exif = stored.getexif()
    exif[0x0112] = orientation
    expected = np.asarray(ImageOps.exif_transpose(stored))
    np.testing.assert_array_equal(got.mask("p"), expected)
    assert got.report.doubtful == []
    Folder(FolderConfig(root=tmp_path / "y")).index("train")


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_a_mask_drawn_on_the_upright_image_stays(orientation: int, tmp_path: Path) -> None:
    upright = (STORED[1], STORED[0])
    turned_export(tmp_path / "x", {"p": (orientation, upright)})
    got = Imported(tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(got.mask("p"), filled(upright, (*BOX, 1)))
    assert (got.report.rotated, got.report.doubtful) == ([], [])


@pytest.mark.parametrize(
    ("size", "turned", "doubtful"),
    [(None, [], ["p.jpg", "q.jpg"]), ((10, 20), ["r.jpg"], ["p.jpg"])],
)
def test_where_the_size_cannot_tell_and_the_others_do_not_agree_people_are_told(
    size: tuple[int, int] | None, turned: list[str], doubtful: list[str], tmp_path: Path
) -> None:
    third = 8 if turned else 1
    turned_export(tmp_path / "x", {"p": (3, STORED), "q": (6, size), "r": (third, STORED)})
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert (got.report.rotated, got.report.doubtful) == (turned, doubtful)
    np.testing.assert_array_equal(got.mask("p"), filled(STORED, (*BOX, 1)))
    count = "1 image" if turned else "2 images"
    assert f"orientation: {count} rotated by EXIF data" in got.text


def test_a_mask_file_of_the_stored_pixels_is_turned_too(tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    save_turned(tmp_path / "x" / "JPEGImages" / "a.jpg", 6, (16, 12))
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.report.rotated == ["a"]
    assert got.mask("a").shape == (16, 12)


def test_a_tiff_that_pillow_turns_by_itself(tmp_path: Path) -> None:
    save_image(tmp_path / "x" / "p.tif", STORED, tiffinfo={274: 6})
    annotation = {"image_id": 0, "category_id": 0, "segmentation": [flat(BOX)]}
    image = {"id": 0, "file_name": "p.tif", "width": 20, "height": 10}
    save_json(tmp_path / "x" / "coco.json", coco([image], [annotation]))
    got = Imported(tmp_path / "x", tmp_path / "y")
    np.testing.assert_array_equal(got.mask("p"), np.rot90(filled(STORED, (*BOX, 1)), -1))


def test_an_image_of_another_size_is_left_out(tmp_path: Path) -> None:
    turned_export(tmp_path / "x", {"p": (1, (40, 20)), "q": (1, STORED)})
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"q"}
    assert "20 x 10, annotated at 40 x 20" in got.text


# Categories


@pytest.mark.parametrize("ids", [(0, 1), (1, 2), (7, 90), ("3", "x"), (2.0, 5), (2, 1)])
def test_ids_never_become_labels(ids: tuple[Any, Any], tmp_path: Path) -> None:
    content = coco_content(["a", "b"])
    for category, new in zip(content["categories"], ids, strict=True):
        category["id"] = new
    for annotation in content["annotations"]:
        new = ids[annotation["category_id"] - 1]
        annotation["category_id"] = int(new) if isinstance(new, float) else new
    save_json(tmp_path / "x" / "c.json", content)
    for name, size in (("a", (16, 12)), ("b", (21, 10))):
        save_image(tmp_path / "x" / f"{name}.jpg", size)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.classes["classes"] == {1: "cat", 2: "dog"}
    assert set(np.unique(got.mask("a"))) == {0, 1, 2}


def test_files_with_other_ids_for_the_same_names(tmp_path: Path) -> None:
    one, other = coco_content(["a"]), coco_content(["b"])
    other["categories"] = [
        {"id": 1, "name": "dog"},
        {"id": 2, "name": "bird"},
        {"id": 9, "name": "cat"},
    ]
    for annotation in other["annotations"]:
        annotation["category_id"] = {1: 9, 2: 1}[annotation["category_id"]]
    save_json(tmp_path / "x" / "instances_train.json", one)
    save_json(tmp_path / "x" / "instances_val.json", other)
    save_image(tmp_path / "x" / "a.jpg", (16, 12))
    save_image(tmp_path / "x" / "b.jpg", (21, 10))
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["cat", "dog", "bird"]
    np.testing.assert_array_equal(
        got.mask("b"), filled((21, 10), (0, 0, 9, 10, 1), (4, 2, 7, 6, 2))
    )
    assert "no pixel has the class bird" in got.text


def test_roboflows_umbrella_category_is_dropped_and_told(tmp_path: Path) -> None:
    content = coco_content(["a"])
    content["categories"] = [{"id": 0, "name": "pets", "supercategory": "none"}] + [
        category | {"supercategory": "pets"} for category in content["categories"]
    ]
    save_json(tmp_path / "x" / "_annotations.coco.json", content)
    save_image(tmp_path / "x" / "a.jpg", (16, 12))
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.names == ["cat", "dog"]
    assert "'pets', which is a group of others" in got.text


def test_an_umbrella_category_that_is_used_stays(tmp_path: Path) -> None:
    content = coco_content(["a"])
    content["categories"][0]["supercategory"] = "dog"
    save_json(tmp_path / "x" / "c.json", content)
    save_image(tmp_path / "x" / "a.jpg", (16, 12))
    assert Imported(tmp_path / "x", tmp_path / "y").names == ["cat", "dog"]


@pytest.mark.parametrize(
    "names", [("Cat", "cat"), ("cat", "cat "), ("traffic light", "TrafficLight")]
)
def test_names_that_differ_in_case_or_blanks_are_refused_until_they_are_renamed(
    names: tuple[str, str], tmp_path: Path
) -> None:
    boxes = (0, 0, 4, 4), (10, 0, 14, 4)
    annotations = [
        {"image_id": 0, "category_id": i, "segmentation": [flat(box)]}
        for i, box in enumerate(boxes)
    ]
    content = coco([{"id": 0, "file_name": "p.jpg"}], annotations, names)
    save_json(tmp_path / "x" / "c.json", content)
    save_image(tmp_path / "x" / "p.jpg", STORED)
    with pytest.raises(NacreError, match=r"almost the same name; .* --rename"):
        Imported(tmp_path / "x", tmp_path / "y")
    assert not (tmp_path / "y").exists()
    got = Imported(tmp_path / "x", tmp_path / "y", rename={names[1]: names[0]})
    assert got.names == [names[0]]
    expected = filled(STORED, *((*box, 1) for box in boxes))
    np.testing.assert_array_equal(got.mask("p"), expected)


# Images without labels, and what does not count


def test_an_image_without_mask_is_empty_only_if_the_export_lists_it(tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    save_image(tmp_path / "x" / "JPEGImages" / "unlisted.jpg", (9, 9))
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"a", "b", "empty"}
    assert not got.mask("empty").any()
    assert got.report.empty == ["empty"]
    assert Imported(tmp_path / "x", tmp_path / "z", unlabeled="skip").images() == {"a", "b"}


def test_images_that_nothing_speaks_of_are_left_out_or_background(tmp_path: Path) -> None:
    save_image(tmp_path / "x" / "p.jpg", STORED)
    save_image(tmp_path / "x" / "q.jpg", STORED)
    shape = {"label": "cat", "points": corners(BOX), "shape_type": "polygon"}
    save_json(tmp_path / "x" / "p.json", {"shapes": [shape], "imagePath": "p.jpg"})
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"p"}
    assert "1 image: it has no labels (q.jpg)" in got.text
    assert "--unlabeled background" in got.text
    both = Imported(tmp_path / "x", tmp_path / "z", unlabeled="background")
    assert both.images() == {"p", "q"}
    assert not both.mask("q").any()


def test_a_coco_file_without_annotations_is_unlabelled_not_empty(tmp_path: Path) -> None:
    save_json(tmp_path / "x" / "instances_train.json", coco_content(["a"]))
    save_json(tmp_path / "x" / "image_info_test.json", coco_content(["b"]) | {"annotations": []})
    save_image(tmp_path / "x" / "a.jpg", (16, 12))
    save_image(tmp_path / "x" / "b.jpg", (21, 10))
    assert Imported(tmp_path / "x", tmp_path / "y").images() == {"a"}


@pytest.mark.parametrize(
    ("given", "names", "labels"),
    [
        ({"ignore": ["dog"]}, ["cat"], (0, 1, 255)),
        ({"ignore": ["background"]}, ["dog", "cat"], (255, 2, 1)),
        ({"classes": ["cat"]}, ["cat"], (0, 1, 0)),  # the dog lies on the cat
        ({"classes": ["cat", "dog"]}, ["cat", "dog"], (0, 1, 2)),
        ({"classes": ["dog", "cat"]}, ["dog", "cat"], (0, 2, 1)),
    ],
)
def test_classes_that_are_chosen_or_do_not_count(
    given: dict[str, Any], names: list[str], labels: tuple[int, int, int], tmp_path: Path
) -> None:
    cvat_masks(tmp_path / "x")
    got = Imported(tmp_path / "x", tmp_path / "y", **given)
    background, cat, dog = labels
    boxes = (0, 0, 16, 12, background), (2, 3, 12, 10, cat), (8, 5, 14, 9, dog)
    np.testing.assert_array_equal(got.mask("a"), filled((16, 12), *boxes))
    assert (got.names, got.classes["ignored"]) == (names, 255)
    assert got.classes["background"] == (0 if background == 0 else None)
    assert ("all of its pixels are ignored" in got.text) == (background == 255)
    Folder(FolderConfig(root=tmp_path / "y")).index("val")


@pytest.mark.parametrize("option", ["classes", "ignore"])
def test_a_class_that_is_not_there_is_said_with_the_nearest(option: str, tmp_path: Path) -> None:
    cvat_masks(tmp_path / "x")
    with pytest.raises(NacreError, match=rf"--{option}: .*no class 'dgo' \(did you mean 'dog'\?\)"):
        Imported(tmp_path / "x", tmp_path / "y", **{option: ["dgo"]})
    with pytest.raises(NacreError, match=r"--rename: the export has no class 'x'"):
        Imported(tmp_path / "x", tmp_path / "y", rename={"x": "y"})
