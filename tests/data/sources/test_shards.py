"""Pictures in tar archives: the same as in folders, down to the last bit of what is learnt."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_data import blocks, make_pairs, save_image, save_mask

from nacre.data import open_folder
from nacre.data.sources.folder import Folder, FolderConfig
from nacre.data.validate import check_source
from nacre.errors import NacreError
from nacre.runs.run import run_scenario
from nacre.training.config import build_config
from nacre.training.step import Interrupted
from tiny_runs import TINY, StopAfter

NAMES = [f"{at:03}" for at in range(30)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty pictures of three classes."""
    root = tmp_path / "folder"
    rng = np.random.default_rng(0)
    make_pairs(root, {name: rng.integers(0, 4, (24, 32)).astype(np.uint8) for name in NAMES})
    (root / "classes.yaml").write_text("classes: {1: cat, 2: dog, 3: eel}")
    return root


def pack(folder: Path, to: Path, names: dict[str, list[str]], mask: str = "png") -> Path:
    """Put pictures and masks of a folder into archives."""
    to.mkdir()
    (to / "classes.yaml").write_bytes((folder / "classes.yaml").read_bytes())
    for archive, members in names.items():
        with tarfile.open(to / archive, "w") as tar:
            for name in members:
                tar.add(folder / "images" / f"{name}.jpg", f"{name}.jpg")
                tar.add(folder / "masks" / f"{name}.png", f"{name}.{mask}")
    return to


@pytest.fixture
def shards(folder: Path, tmp_path: Path) -> Path:
    """The same in three archives, the last of which is short."""
    dealt = {f"part-{at}.tar": NAMES[12 * at : 12 * at + 12] for at in range(3)}
    return pack(folder, tmp_path / "shards", dealt)


def _open(root: Path) -> Folder:
    return Folder(FolderConfig(root=root))


@pytest.mark.parametrize("split", ["train", "val"])
def test_archives_hold_what_the_folder_holds(folder: Path, shards: Path, split: str) -> None:
    one, other = _open(folder), _open(shards)
    index = one.index(split)  # type: ignore[arg-type]
    assert other.index(split) == index  # type: ignore[arg-type]
    assert other.index(split) == index, "from where it is kept"  # type: ignore[arg-type]
    for name in index.names:
        images = [np.array(source.image(split, name)) for source in (one, other)]  # type: ignore[arg-type]
        np.testing.assert_array_equal(*images)
        masks = [source.mask(split, name) for source in (one, other)]  # type: ignore[arg-type]
        np.testing.assert_array_equal(*masks)


def test_a_run_learns_the_same_from_archives_and_goes_on_in_the_middle(
    folder: Path, shards: Path, tmp_path: Path
) -> None:
    def config(root: Path) -> object:
        changes = {"scenario": "folder/2-1/overlapped", "data": {"root": str(root)}}
        return build_config(overrides={**TINY, **changes})

    whole = run_scenario(config(folder), tmp_path / "whole")  # type: ignore[arg-type]
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        run_scenario(config(shards), out, should_stop=StopAfter(3))  # type: ignore[arg-type]
    assert run_scenario(config(shards), out) == whole  # type: ignore[arg-type]
    models = [path / "step-1" / "model.safetensors" for path in (tmp_path / "whole", out)]
    from safetensors.numpy import load_file

    one, other = (load_file(model) for model in models)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[key], other[key]) for key in one)


def test_the_names_of_archives_can_say_what_is_for_testing(folder: Path, tmp_path: Path) -> None:
    dealt = {"train-0.tar": NAMES[:10], "train-1.tar": NAMES[10:20], "val-0.tar": NAMES[20:]}
    source = _open(pack(folder, tmp_path / "split", dealt, mask="seg.png"))
    assert source.has_lists
    assert source.index("train").names == tuple(NAMES[:20])
    assert source.index("val").names == tuple(NAMES[20:])


def test_headers_are_read_once_and_a_changed_archive_again(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    original = tarfile.open
    monkeypatch.setattr(
        tarfile, "open", lambda *a, **k: read.append(a[0].name) or original(*a, **k)
    )
    first = _open(shards).index("train")
    assert read == ["part-0.tar", "part-1.tar", "part-2.tar"]
    assert _open(shards).index("train") == first
    assert len(read) == 3
    with original(shards / "part-2.tar", "a") as tar:
        for name, content in (("extra.jpg", _jpeg()), ("extra.mask.png", _png())):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    source = _open(shards)
    assert read[3:] == ["part-2.tar"]
    names = source.index("train").names + source.index("val").names
    assert "extra" in names


def _jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "JPEG")
    return file.getvalue()


def _png() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_other_files_are_passed_over_and_paths_are_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "classes.yaml").write_text("classes: {1: cat}")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, content in {
            "./day/x.v1.jpg": b"no picture: its extension is v1.jpg",
            "./day/x.jpg": _jpeg(),
            "./day/x.png": _png(),
            "day/x.json": b"{}",
            "night/x.image.png": _png(),
            "night/x.seg.png": _png(),
        }.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    source = _open(tmp_path)
    found = sorted(pair.name for split in ("train", "val") for pair in source.pairs(split))  # type: ignore[arg-type]
    assert found == ["day/x", "night/x"]


def test_what_is_wrong_in_an_archive_is_named(folder: Path, tmp_path: Path) -> None:
    save_image(folder / "images" / "001.jpg", 5, 5)
    (folder / "masks" / "002.png").write_bytes(b"\x89PNG no more")
    (folder / "images" / "003.jpg").write_bytes((folder / "images" / "003.jpg").read_bytes()[:-80])
    save_mask(folder / "masks" / "004.png", blocks(24, 32, [9]))
    root = pack(folder, tmp_path / "bad", {"train-0.tar": NAMES[:20], "val-0.tar": NAMES[20:]})
    report = check_source(open_folder("folder", root))
    wrong = {one.name: one.kind for one in report.splits[0].problems}
    assert wrong == {
        "001": "sizes differ", "002": "damaged file", "003": "damaged file", "004": "unknown label",
    }  # fmt: skip
    texts = " ".join(one.text for one in report.splits[0].problems)
    assert f"{root / 'train-0.tar'}/001.jpg" in texts


def test_archives_that_cannot_be_read_are_a_sentence(folder: Path, tmp_path: Path) -> None:
    root = pack(folder, tmp_path / "bad", {"a.tar": NAMES})
    whole = (root / "a.tar").read_bytes()
    (root / "a.tar").write_bytes(b"\x1f\x8b\x08" + whole)
    with pytest.raises(NacreError, match=r"a\.tar cannot be read .* not compressed"):
        _open(root)
    (root / "a.tar").write_bytes(whole)
    (root / "b.tar").write_bytes(whole)
    with pytest.raises(NacreError, match="have the same key; one must go"):
        _open(root)


def test_a_folder_with_neither_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match=r"images/, masks/ and classes.yaml, or .*\*\.tar"):
        _open(tmp_path)
