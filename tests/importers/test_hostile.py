"""Malicious exports: one sentence, nothing written, and never anything outside the target."""

import gc
import io
import json
import os
import signal
import stat
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from exports import (
    SIZES,
    coco_content,
    coco_rle,
    label_studio,
    save_image,
    save_json,
    zip_folder,
)
from PIL import Image

from importing import Imported
from nacre.data.folder import Folder, FolderConfig
from nacre.errors import NacreError
from nacre.importers import files, paint, run
from nacre.importers.folder import new_folder
from nacre.importers.run import import_export
from nacre.utils.progress import Progress


def packed(path: Path, entries: dict[str, bytes], mode: int = 0) -> Path:
    """Write an archive with names as they are."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (mode or stat.S_IFREG | 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return path


def image_bytes(size: tuple[int, int] = (16, 12)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (90, 120, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, and every folder as an empty entry."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink()
    }


def refused(export: Path, tmp_path: Path, message: str) -> None:
    """Check that an export is refused in one sentence and nothing changes."""
    before = snapshot(tmp_path)
    with pytest.raises(NacreError, match=message) as caught:
        import_export(export, tmp_path / "target" / "deeper" / "data")
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    [
        "../outside.json",
        "images/../../outside.jpg",
        "/etc/outside.json",
        "C:\\outside.json",
        "..\\..\\outside.json",
        "a/b/../../../outside",
    ],
)
def test_names_that_lead_out_of_an_archive(name: str, tmp_path: Path) -> None:
    content = json.dumps(coco_content(["a"])).encode()
    entries = {"c.json": content, "a.jpg": image_bytes(), name: b"x"}
    refused(packed(tmp_path / "x.zip", entries), tmp_path, "which leads out of the archive")


@pytest.mark.parametrize(
    "name", ["../../outside.png", "/etc/outside.png", "..\\..\\outside.png", "C:\\outside.png"]
)
def test_names_in_annotations_cannot_lead_out_either(name: str, tmp_path: Path) -> None:
    save_image(tmp_path / "outside.png", (16, 12))
    content = coco_content(["a"])
    content["images"][0]["file_name"] = name
    save_json(tmp_path / "inside" / "x" / "c.json", content)
    refused(tmp_path / "inside" / "x", tmp_path, "contains none of their files")
    # A file of that name inside the export is meant, and its name is written plainly.
    save_image(tmp_path / "inside" / "x" / "outside.png", (16, 12))
    got = Imported(tmp_path / "inside" / "x", tmp_path / "inside" / "y")
    assert got.images() == {"outside"}


def test_hostile_names_of_images_become_plain_ones(tmp_path: Path) -> None:
    content = coco_content(["a"])
    names = [" .hidden.jpg", "a\nb.jpg", "x" * 180 + ".jpg", "tab\t.jpg", "what?.jfif"]
    images, annotations = [], []
    for i, name in enumerate(names):
        images.append(content["images"][0] | {"id": i, "file_name": name})
        annotations += [one | {"image_id": i} for one in content["annotations"]]
        save_image(tmp_path / "x" / name, (16, 12))
    save_json(tmp_path / "x" / "c.json", content | {"images": images, "annotations": annotations})
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert len(got.report.written) == len(names)
    written = sorted(path.name for path in (tmp_path / "y" / "images").iterdir())
    assert all(name.isprintable() and not name.startswith(".") for name in written)
    assert all(len(name) < 140 for name in written)
    assert {"hidden.jpg", "a_b.jpg", "tab_.jpg", "what_.jpg"} < set(written)


def test_links_in_a_folder_are_followed_only_inside_it(tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    secret = tmp_path / "secret"
    save_image(secret / "a.jpg", SIZES["a"])
    (tmp_path / "x" / "images" / "a.jpg").unlink()
    (tmp_path / "x" / "images" / "a.jpg").symlink_to(secret / "a.jpg")
    (tmp_path / "x" / "images" / "b.jpg").rename(tmp_path / "x" / "kept.bin")
    (tmp_path / "x" / "images" / "b.jpg").symlink_to(tmp_path / "x" / "kept.bin")
    (tmp_path / "x" / "more").symlink_to(secret)
    (tmp_path / "x" / "round").symlink_to(tmp_path / "x")
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"b", "empty"}
    assert "3 links to files outside the export: not followed" in got.text
    assert not (tmp_path / "y" / "images" / "b.jpg").is_symlink()


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    os.mkfifo(tmp_path / "x" / "images" / "pipe.jpg")
    os.mkfifo(tmp_path / "x" / "pipe.json")
    os.mkfifo(tmp_path / "pipe")
    assert len(Imported(tmp_path / "x", tmp_path / "y").report.written) == 3
    with pytest.raises(NacreError, match="neither a folder nor a file"):
        import_export(tmp_path / "pipe", tmp_path / "z")


def test_an_archive_that_would_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BOMB_BYTES", 1 << 20)
    path = packed(tmp_path / "x.zip", {"c.json": b" " * (8 << 20)})
    refused(path, tmp_path, r"would grow from 8,\d\d\d to 8,388,608 bytes")


def test_shapes_that_would_take_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coco_rle(tmp_path / "x")
    monkeypatch.setattr(
        paint, "_MAX_PAINTED_PIXELS", 60
    )  # pixels; the two shapes of b have 90 and 12
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.images() == {"empty"}
    assert "too large and too many to be real" in got.text


@pytest.mark.parametrize("end", [0, 10, 30, 100, -1, -10, -40])
def test_archives_that_are_cut_off(end: int, tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    whole = zip_folder(tmp_path / "x", tmp_path / "whole.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:end])
    refused(tmp_path / "cut.zip", tmp_path, "is not a readable zip archive")


def test_an_archive_with_flipped_bytes_leaves_out_what_is_damaged(tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    path = zip_folder(tmp_path / "x", tmp_path / "x.zip")
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("images/a.jpg").header_offset
    data[start + 60 : start + 90] = bytes(30)
    path.write_bytes(data)
    got = Imported(path, tmp_path / "y")
    assert got.images() == {"b", "empty"}
    assert "the image cannot be read" in got.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("data.yaml", "a: ["),
        ("c.json", '{"images": [], "categories": [{"id": 1, "name": "a"}, {"id": 1}]}'),
    ],
)
def test_an_archive_is_closed_in_the_end(name: str, text: str, tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", {name: text.encode(), "labels/a.txt": b"x"})
    with pytest.raises(NacreError):  # whose frames hold the archive
        import_export(path, tmp_path / "y")
    opened = (one for one in gc.get_objects() if type(one) is io.BufferedReader)
    assert not [one for one in opened if one.name == str(path) and not one.closed]


def test_locked_archives_and_other_kinds_of_them(tmp_path: Path) -> None:
    path = packed(tmp_path / "x.zip", {"c.json": b"{}"})
    data = bytearray(path.read_bytes())
    data[6] |= 1  # the flag of an encrypted entry, here and in the directory
    data[data.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    refused(path, tmp_path, "locked with a password")
    (tmp_path / "x.tar").write_bytes(b"x")
    refused(tmp_path / "x.tar", tmp_path, "unpack it, then import the folder")
    refused(tmp_path / "nothing", tmp_path, "there is no export")


def test_giant_sizes_are_believed_only_of_the_image_itself(tmp_path: Path) -> None:
    for name, change in {
        "one": {"width": 10**9, "height": 10**9},
        "two": {"width": 10**300, "height": -5},
    }.items():
        content = coco_content(["a"], "text")
        content["images"][0] |= change
        content["annotations"][0]["segmentation"] = {"size": [10**9, 10**9], "counts": "1"}
        save_json(tmp_path / name / "c.json", content)
        save_image(tmp_path / name / "a.jpg", SIZES["a"])
        refused(tmp_path / name, tmp_path, "different sizes|damaged|integer overflow")


@pytest.mark.parametrize("name", [None, "", "  ", [], {}, True, "\x00"])
def test_classes_without_a_name(name: object, tmp_path: Path) -> None:
    content = coco_content(["a"])
    content["categories"][0]["name"] = name
    save_json(tmp_path / "x" / "c.json", content)
    refused(tmp_path / "x", tmp_path, "category 1: .* is not the name of a class")


def test_a_file_where_the_target_should_be_and_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(NacreError, match=r"is a file; --to needs a new folder"):
        import_export(tmp_path / "x", tmp_path / "file")
    with pytest.raises(NacreError, match="is not empty; import into a new folder"):
        import_export(tmp_path / "x", tmp_path / "full")
    with pytest.raises(NacreError, match=r"^could not write .*/file/below: Not a directory$"):
        import_export(tmp_path / "x", tmp_path / "file" / "below")
    assert snapshot(tmp_path) == before


def test_an_empty_target_and_a_link_to_one_are_used(tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    import_export(tmp_path / "x", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "empty" / "classes.yaml").exists()


PHASES = pytest.mark.parametrize("phase", ["reading annotations", "painting masks"])


def end_in(phase: str, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """End the import in the middle of a phase."""

    def show(title: str) -> AbstractContextManager[Progress]:
        return nullcontext(lambda done, total: end() if title == phase and done else None)

    monkeypatch.setattr(run, "show_progress", show)


@PHASES
def test_nothing_is_left_of_an_import_that_is_stopped(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label_studio(tmp_path / "x")
    before = snapshot(tmp_path)

    def stop() -> None:
        raise KeyboardInterrupt

    end_in(phase, stop, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        import_export(tmp_path / "x", tmp_path / "far" / "away")
    assert snapshot(tmp_path) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@PHASES
def test_what_a_killed_import_leaves_is_removed_by_the_next_one(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label_studio(tmp_path / "x")
    before = snapshot(tmp_path)
    child = os.fork()
    if child == 0:
        end_in(phase, lambda: os.kill(os.getpid(), signal.SIGKILL), monkeypatch)
        import_export(tmp_path / "x", tmp_path / "y")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert snapshot(tmp_path) != before, "something is left, so the test can fail"
    import_export(tmp_path / "x", tmp_path / "y")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x", "y"]


def test_an_import_leaves_alone_what_another_one_is_writing(tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    (tmp_path / ".y.settings").mkdir()
    with new_folder(tmp_path / "y") as folder:
        with pytest.raises(NacreError, match=r"another `nacre import` is writing "):
            Imported(tmp_path / "x", tmp_path / "y")
        assert (folder / "images").is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".y.settings", "x", "y"]


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coco_rle(tmp_path / "x")
    before = snapshot(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nacre.importers.paint.save_mask", full)
    with pytest.raises(NacreError, match=r"could not write .*No space left on device"):
        import_export(tmp_path / "x", tmp_path / "y")
    assert snapshot(tmp_path) == before


def test_archives_of_windows_and_of_macs(tmp_path: Path) -> None:
    content = coco_content(["a"])
    content["images"][0]["file_name"] = "grün.PNG"
    entries = {
        "export\\annotations\\c.json": json.dumps(content).encode(),
        "export\\images\\gru\u0308n.PNG": image_bytes(),
        "__MACOSX/export/images/._grün.PNG": b"x",
        "export/.DS_Store": b"x",
    }
    got = Imported(packed(tmp_path / "x.zip", entries), tmp_path / "y")
    assert got.images() == {"grün"}
    # Some programs write UTF-8 without saying so.
    data = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "z.zip").write_bytes(data.replace(b"\x00\x08\x08\x00", b"\x00\x00\x08\x00"))
    assert Imported(tmp_path / "z.zip", tmp_path / "z").images() == {"grün"}


def test_one_file_is_an_export_with_the_images_beside_it(tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    save_image(tmp_path / "x" / "elsewhere" / "a.jpg", SIZES["a"], seed=5)
    save_json(tmp_path / "x" / "other.json", {"shapes": []})
    got = Imported(tmp_path / "x" / "result.json", tmp_path / "y")
    assert len(got.report.written) == 3


@pytest.mark.parametrize("damage", ["cut off", "of giant size"])
def test_a_damaged_image_is_left_out(damage: str, tmp_path: Path) -> None:
    coco_rle(tmp_path / "x")
    path = tmp_path / "x" / "images" / "a.jpg"
    if damage == "cut off":
        path.write_bytes(path.read_bytes()[:-60])
    else:
        data = bytearray(image_bytes())
        data[16:24] = (60_000).to_bytes(4, "big") * 2
        data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, "big")
        path.write_bytes(data)
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert "the image cannot be used" in got.text
    written = sorted(path.name for path in (tmp_path / "y" / "images").iterdir())
    assert written == ["b.jpg", "empty.jpg"]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        *((name, name) for name in ("1e999", "no", "~", "0x1F", "#x", "- y", "{z}", "'", "=")),
        ("cat\x1b[31m\nred\u202e", "cat [31m red"),
    ],
)
def test_odd_class_names_are_kept_as_far_as_they_can_be_printed(
    name: str, written: str, tmp_path: Path
) -> None:
    content = coco_content(["a"])
    content["categories"][0]["name"] = name
    save_json(tmp_path / "x" / "c.json", content)
    save_image(tmp_path / "x" / "a.jpg", SIZES["a"])
    got = Imported(tmp_path / "x", tmp_path / "y")
    assert got.text.isprintable() or "\x1b" not in got.text
    assert Folder(FolderConfig(root=tmp_path / "y")).space.names == {1: written, 2: "dog"}


@pytest.mark.parametrize("kind", ["a link", "twice"])
def test_an_archive_with_links_or_two_files_of_one_name(kind: str, tmp_path: Path) -> None:
    content = json.dumps(coco_content(["a"])).encode()
    mode, first = (stat.S_IFLNK | 0o777, "a.jpg") if kind == "a link" else (0, "c.json")
    path = packed(tmp_path / "x.zip", {first: b"/etc/passwd"}, mode)
    with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("c.json", content)
    refused(path, tmp_path, "contains none of their files" if mode else r"contains 'c\.json' twice")
