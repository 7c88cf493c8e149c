"""Pascal VOC 2012 in all of its usual layouts."""

from pathlib import Path

import numpy as np
import pytest
from small_data import blocks, save_image, save_mask

from nacre.data.index import images_by_label
from nacre.data.voc import KNOWN_COUNTS, SPACE, Voc, VocConfig, voc_color
from nacre.errors import NacreError

TRAIN, VAL = ["2007_000032", "2007_000039", "2008_000001"], ["2007_000033"]


def _make(root: Path, lists: str | None = "ImageSets/Segmentation") -> Path:
    for i, name in enumerate(TRAIN + VAL):
        save_image(root / "JPEGImages" / f"{name}.jpg", 12, 18)
        mask = blocks(12, 18, [0, i + 1, 255])
        save_mask(root / "SegmentationClassAug" / f"{name}.png", mask)
    if lists is not None:
        (root / lists).mkdir(parents=True)
        (root / lists / "train_aug.txt").write_text("\n".join(TRAIN) + "\n")
        (root / lists / "val.txt").write_text("\n".join(VAL) + "\n")
    return root


def _open(root: Path) -> Voc:
    return Voc(VocConfig(root=root))


@pytest.mark.parametrize("below", ["VOC2012", "VOCdevkit/VOC2012"])
def test_parent_folders_can_be_given(tmp_path: Path, below: str) -> None:
    root = _make(tmp_path / below)
    for given in (root, root.parent, tmp_path):
        voc = _open(given)
        assert voc.root == root
        assert voc.index("train").names == tuple(TRAIN)
        assert voc.index("val").labels == ({0, 4, 255},)


@pytest.mark.parametrize(
    "lists", ["ImageSets/Segmentation", "splits", "list", "../list", "../../splits"]
)
def test_lists_are_found_in_the_usual_folders(tmp_path: Path, lists: str) -> None:
    root = _make(tmp_path / "VOCdevkit" / "VOC2012", lists)
    assert _open(root).index("train").names == tuple(TRAIN)


@pytest.mark.parametrize("before", ["/", "", "VOC2012/", "/VOCdevkit/VOC2012/"])
def test_lists_may_contain_pairs_of_paths(tmp_path: Path, before: str) -> None:
    root = _make(tmp_path / "VOCdevkit" / "VOC2012", None)
    (root / "list").mkdir()
    for name, images in (("train_aug", TRAIN), ("val", VAL)):
        lines = [f"{before}JPEGImages/{n}.jpg {before}SegmentationClassAug/{n}.png" for n in images]
        (root / "list" / f"{name}.txt").write_text("\n".join(lines))
    voc = _open(root)
    assert voc.index("train").names == tuple(TRAIN)
    assert voc.image("val", VAL[0]).size == (18, 12)
    np.testing.assert_array_equal(voc.mask("val", VAL[0]), blocks(12, 18, [0, 4, 255]))


def test_tests_use_vocs_own_masks_if_they_are_complete(tmp_path: Path) -> None:
    root = _make(tmp_path)
    own = root / "SegmentationClass" / f"{VAL[0]}.png"
    assert _open(root).index("val").labels == ({0, 4, 255},)
    save_mask(own, blocks(12, 18, [7]))
    assert _open(root).index("val").labels == ({7},)
    assert _open(root).index("train").labels[0] == {0, 1, 255}
    own.unlink()
    assert _open(root).index("val").labels == ({0, 4, 255},)


def test_an_error_names_the_archives_of_missing_files(tmp_path: Path) -> None:
    with pytest.raises(NacreError) as caught:
        _open(tmp_path)
    for part in ("VOCtrainval_11-May-2012.tar", "SegmentationClassAug", "train_aug.txt"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"has no list train_aug\.txt or trainaug\.txt in"),
        ("../../outside/o\n", "leads out of"),
        ("/../x\n", "leads out of"),
        ("../o.jpg ../o.png\n", "leads out of"),
        ("JPEGImages/../../o.jpg a.png\n", "leads out of"),
        ("a b c\n", r"the line 'a b c' is neither a name, which has no space, nor a pair"),
        ("2007_000032 -1\n", r"the line '2007_000032 -1' is neither a name"),
        (f"{VAL[0]}\n", rf"1 image is both for training and for testing: {VAL[0]}"),
        ("2007_000032\n2007_000032\n", r"names the image '2007_000032' more than once"),
        ("\n", r"train_aug\.txt names no image"),
    ],
)
def test_an_invalid_list_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    root = _make(tmp_path)
    path = root / "ImageSets" / "Segmentation" / "train_aug.txt"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(NacreError, match=message):
        _open(root).index("train")


def test_classes_and_colors_are_vocs() -> None:
    assert SPACE.names[1] == "aeroplane"
    assert SPACE.names[15] == "person"
    assert SPACE.labels == tuple(range(1, 21))
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 8: (64, 0, 0), 15: (192, 128, 128)}
    known |= {20: (0, 64, 128), 255: (224, 224, 192)}
    assert {label: voc_color(label) for label in known} == known


def test_the_part_of_the_real_data_has_its_known_counts(voc_part: Path) -> None:
    voc = _open(voc_part)
    train, val = voc.index("train"), voc.index("val")
    assert (len(train), len(val)) == (3154, 478)
    images = images_by_label(train)
    named = {name: images[label] for label, name in SPACE.names.items()}
    assert (named["cat"], named["dog"], named["person"]) == (1000, 1177, 596)
    image, mask = voc.image("train", train.names[0]), voc.mask("train", train.names[0])
    assert image.size == mask.shape[::-1]
    assert KNOWN_COUNTS["train"] == 10_582
