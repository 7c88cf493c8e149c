"""`nacre predict`: images, folders, maps and videos, and their results."""

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from nacre.api.model import Model, load
from nacre.data.image_io import read_mask
from nacre.errors import NacreError
from nacre.export.onnx_file import noise_image
from nacre.importers import ImportOptions, import_export
from nacre.predict import files
from nacre.predict.files import DEFAULT_OUTPUTS, Summary, find_inputs, names_below
from nacre.predict.prediction import to_rgb
from nacre.predict.rasters import is_georeferenced, open_raster
from nacre.predict.video import read_frames
from nacre.utils.io import locked
from tiny_runs import StopAfter


@pytest.fixture(scope="module")
def model(learned: Path) -> Model:
    return load(learned)


def predict_all(
    model: Model,
    given: list[str],
    out: Path,
    outputs=DEFAULT_OUTPUTS,
    stop=lambda: False,
    **how: int,
) -> Summary:
    return files.predict_all(model.predictor(**how), model.info.channels, given, out, outputs, stop)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    root = tmp_path / "images"
    for i, name in enumerate(("a/x.png", "b/x.png", "b/x.jpg", "b/deep/y.png")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise_image((40 + i, 50), i)).save(root / name)
    return root


def test_images_of_one_name_keep_their_folders(model, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "seen"
    summary = predict_all(model, [str(images)], out)
    assert (summary.done, summary.failed, summary.stopped) == (4, (), False)
    found = {str(path.relative_to(out)) for path in out.rglob("*.png")}
    assert found == {f"masks/{name}.png" for name in ("a/x", "b/x.png", "b/x.jpg", "b/deep/y")}
    for stem, name in (("a/x", "a/x.png"), ("b/x.jpg", "b/x.jpg")):
        mask = np.asarray(Image.open(out / "masks" / f"{stem}.png"))
        assert (mask == model.predict(images / name).mask).all()
    rows = list(csv.DictReader((out / "fractions.csv").read_text().splitlines()))
    assert [row["image"] for row in rows] == ["a/x.png", "b/deep/y.png", "b/x.jpg", "b/x.png"]
    shares = model.predict(images / "a/x.png").class_fractions()
    assert all(abs(float(rows[0][name]) - share) < 1e-6 for name, share in shares.items())


def test_files_folders_and_globs_are_found_once(images: Path, tmp_path: Path) -> None:
    (images / "a" / "._x.png").write_bytes(b"macOS writes such files")
    (images / ".cache").mkdir()
    (images / ".cache" / "z.png").touch()
    given = [str(images / "b"), str(images / "*" / "x.png"), str(images / "b/x.jpg")]
    found = find_inputs(given, tmp_path / "seen")
    assert [one.name for one in found] == ["b/deep/y.png", "b/x.jpg", "b/x.png", "a/x.png"]
    hidden_left_out = {one.name for one in find_inputs([str(images)], tmp_path / "seen")}
    assert hidden_left_out == {one.name for one in found}
    with pytest.raises(NacreError, match="no images at"):
        find_inputs([str(tmp_path / "none-*.png")], tmp_path / "seen")


def test_the_masks_of_a_data_folder_are_not_inputs(tmp_path: Path) -> None:
    for folder in ("images", "masks"):
        (tmp_path / "pets" / folder / "a").mkdir(parents=True)
        (tmp_path / "pets" / folder / "a" / "x.png").touch()
    (tmp_path / "pets" / "contact-sheet.jpg").touch()
    (found,) = find_inputs([str(tmp_path / "pets")], tmp_path / "seen")
    assert found.path == tmp_path / "pets/images/a/x.png"


def test_every_result_has_its_own_file_below_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    for name in ("x.jpg", "x.png", "x.png.webp", "../../far.png"):
        Image.new("RGB", (8, 8)).save(here / name)
    monkeypatch.chdir(here)
    given = ["x.jpg", "x.png", "../b/x.png", "x.png.webp", "../../far.png"]
    found = find_inputs(given, Path("seen"))
    stems = [one.stem for one in found]
    assert stems == ["a/b/x.jpg", "a/b/x.png", "a/b/x.png.webp", "far"]


def test_inputs_on_two_drives_of_windows_have_different_names() -> None:
    drives = [PureWindowsPath(one) for one in (r"C:\x\a.png", r"D:\a.png", r"\\host\share\a.png")]
    names = [str(name) for name in names_below(drives)]
    assert names == ["C/x/a.png", "D/a.png", "host\\share/a.png"]


def test_two_commands_keep_the_temporary_files_of_each_other(
    model, images: Path, tmp_path: Path
) -> None:
    out = tmp_path / "seen"
    others = out / "masks" / ".x.png.abcdefgh.part"
    others.parent.mkdir(parents=True)
    others.touch()
    with locked(out, "predict"):
        assert predict_all(model, [str(images)], out).done == 4
    assert others.exists()
    predict_all(model, [str(images)], out)
    assert not list(out.rglob(".*"))


def test_results_below_the_images_are_not_inputs(
    model, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert predict_all(model, [str(images)], images / "out").done == 4
    shutil.rmtree(images / "out")
    monkeypatch.chdir(images)
    (images / "seen" / "masks").mkdir(parents=True)
    result = images / "seen" / "masks" / "x.png"
    Image.new("P", (8, 8)).save(result)
    found = find_inputs(["**/*.png"], Path("seen"))
    assert [one.name for one in found] == ["a/x.png", "b/deep/y.png", "b/x.png"]
    assert [one.path for one in find_inputs([str(result)], Path("seen"))] == [result]


def test_a_stop_keeps_what_was_written(model, images: Path, tmp_path: Path) -> None:
    out = tmp_path / "seen"
    summary = predict_all(model, [str(images)], out, ("masks", "csv"), StopAfter(2))
    assert (summary.done, summary.stopped) == (2, True)
    assert len(list(out.rglob("*.png"))) == 2
    assert len((out / "fractions.csv").read_text().splitlines()) == 3


def test_a_damaged_image_is_reported_and_the_others_are_predicted(
    model, images: Path, tmp_path: Path
) -> None:
    (images / "a/x.png").write_bytes(b"no image")
    summary = predict_all(model, [str(images)], tmp_path / "seen")
    assert summary.done == 3
    assert len(summary.failed) == 1
    assert "a/x.png" in summary.failed[0]


@pytest.mark.parametrize(
    ("outputs", "error"),
    [(("mask",), r"unknown output 'mask' .*did you mean 'masks'"), ((), "no output to write")],
)
def test_unknown_outputs_are_refused(model, tmp_path: Path, outputs, error: str) -> None:
    with pytest.raises(NacreError, match=error):
        predict_all(model, [], tmp_path, outputs)


def test_corrected_polygons_come_back_as_data(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`nacre import` reads the predictions for LabelMe."""
    root = tmp_path / "images"
    root.mkdir()
    Image.fromarray(noise_image((96, 120), 4)).save(root / "a.png")
    monkeypatch.setattr(files, "TOLERANCE_PIXELS", 0.0)
    monkeypatch.setattr(files, "SMALLEST_REGION", 0.0)
    predict_all(model, [str(root)], tmp_path / "seen", ("labelme", "masks"))
    written = json.loads((tmp_path / "seen/labelme/a.json").read_text())
    assert (tmp_path / "seen/labelme" / written["imagePath"]).resolve() == root / "a.png"
    import_export(tmp_path / "seen/labelme", tmp_path / "data", ImportOptions(images=root))
    (imported,) = (tmp_path / "data" / "masks").rglob("*.png")
    labels = read_mask(imported)
    assert labels.any()
    names = yaml.safe_load((tmp_path / "data" / "classes.yaml").read_text())["classes"]
    found = np.vectorize({0: "background", **names}.get)(labels)
    assert (found == model.predict(root / "a.png").names).all()


@pytest.mark.parametrize(("window", "count"), [(None, 2), (32, 3)])
def test_polygons_leave_out_regions_too_small_to_correct_and_masks_keep_them(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int | None, count: int
) -> None:
    """Regions are measured by the image, or by the windows that the network sees."""
    classes = np.zeros((200, 200), np.uint8)
    classes[20:90, 20:90] = 1
    classes[120:180, 120:180] = 2
    classes[150:153, 40:43] = 1  # 9 pixels: less than 40,000 / 2000, not than 32 x 32 / 2000
    results = files._Results(model.info.channels, tmp_path, ("labelme",), None, window)
    results.add("a.png", "a", None, classes)
    written = json.loads((tmp_path / "labelme/a.json").read_text())
    assert len(written["shapes"]) == count


def write_map(path: Path, pixels: np.ndarray) -> Any:
    """Write an image with a georeference; return rasterio and the transform."""
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    place = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_300_000)
    height, width, count = pixels.shape
    profile = {"driver": "GTiff", "height": height, "width": width, "dtype": "uint8"}
    more = {"crs": "EPSG:32632", "transform": place, "count": count}
    with rasterio.open(path, "w", **profile, **more) as file:
        file.write(pixels.transpose(2, 0, 1))
    return rasterio, place


def test_a_map_keeps_its_georeference(model, tmp_path: Path) -> None:
    pixels = noise_image((130, 170), 7)
    rasterio, place = write_map(tmp_path / "map.tif", pixels)
    predict_all(model, [str(tmp_path / "map.tif")], tmp_path / "seen", window=32)
    with rasterio.open(tmp_path / "seen/masks/map.tif") as found:
        assert found.crs.to_epsg() == 32632
        assert found.transform == place
        geo = found.read(1)
        assert found.colormap(1)[1][:3] == tuple(model.info.colors[1])
    Image.fromarray(pixels).save(tmp_path / "plain.png")
    predict_all(model, [str(tmp_path / "plain.png")], tmp_path / "seen", window=32)
    assert (geo == np.asarray(Image.open(tmp_path / "seen/masks/plain.png"))).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("mode", "tags"),
    [
        ("RGB", {}),
        ("RGB", {274: 6}),
        ("RGBA", {}),
        ("CMYK", {}),
        ("P", {}),
        ("1", {}),
        ("L", {}),
        ("L", {262: 0}),
        ("L", {274: 3}),
        ("LA", {}),
        ("I;16", {}),
    ],
)
def test_a_tiff_is_the_same_image_in_parts(tmp_path: Path, mode: str, tags: dict[int, int]) -> None:
    """GDAL and Pillow return the same pixels for every mode and orientation."""
    pytest.importorskip("rasterio", reason="rasterio is not installed")
    image = Image.fromarray(noise_image((30, 50), 3))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 200)
    path = tmp_path / "a.tif"
    image.convert(mode).save(path, tiffinfo=tags)
    whole = np.asarray(to_rgb(path))
    assert len(np.unique(whole)) > 1
    assert not is_georeferenced(path)
    with open_raster(path) as raster:
        assert raster.size == whole.shape[:2]
        assert (raster.read(slice(2, 25), slice(3, 28)) == whole[2:25, 3:28]).all()
        assert (raster.preview() == whole).all()


@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
@pytest.mark.parametrize("window", [None, 32])
def test_a_turned_image_with_a_georeference_is_refused(
    model, tmp_path: Path, window: int | None
) -> None:
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed")
    path = tmp_path / "turned.tif"
    Image.fromarray(noise_image((30, 50))).save(path, tiffinfo={274: 6})
    with rasterio.open(path, "r+") as file:
        file.transform = rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_300_000)
    with pytest.raises(NacreError, match=r"turned\.tif has a georeference and an orientation"):
        predict_all(model, [str(path)], tmp_path / "seen", window=window)


VRT = """<VRTDataset rasterXSize="40" rasterYSize="30"><VRTRasterBand dataType="Byte" band="1">
<SimpleSource><SourceFilename relativeToVRT="0">{source}</SourceFilename><SourceBand>1</SourceBand>
</SimpleSource></VRTRasterBand></VRTDataset>"""


@pytest.mark.parametrize("window", [None, 32])
def test_a_disguised_tiff_opens_no_other_file(model, tmp_path: Path, window: int | None) -> None:
    """GDAL would read a description of other files or addresses, whatever the ending."""
    write_map(tmp_path / "secret.tif", np.full((30, 40, 1), 7, np.uint8))
    (tmp_path / "x.tif").write_text(VRT.format(source=tmp_path / "secret.tif"))
    Image.new("RGB", (40, 30)).save(tmp_path / "other.png")
    given = [str(tmp_path / "x.tif"), str(tmp_path / "other.png")]
    summary = predict_all(model, given, tmp_path / "seen", window=window)
    assert summary.done == 1
    assert "x.tif" in summary.failed[0]
    assert not list((tmp_path / "seen").rglob("x.*"))


def test_class_names_are_not_formulas_in_a_csv(model, tmp_path: Path) -> None:
    names = ["background", "=1+cmd|' /C calc'!A0", "+SUM(1)", "@x", "-2+3"]
    info = replace(model.info, classes=[*names, *model.info.classes[len(names) :]])
    Image.new("RGB", (8, 8)).save(tmp_path / "-1+1.png")
    given = [str(tmp_path / "-1+1.png")]
    predict_all(replace(model, info=info), given, tmp_path / "seen", ("csv",))
    head, row = csv.reader((tmp_path / "seen" / "fractions.csv").read_text().splitlines())
    assert not [cell for cell in (*head, *row) if cell.startswith(("=", "+", "-", "@"))]
    assert head[1:6] == ["background", *(f"'{name}" for name in names[1:])]


def make_video(folder: Path) -> Path:
    """Write a lossless video of five images."""
    import av

    with av.open(str(folder / "film.mkv"), "w") as file:
        stream = file.add_stream("ffv1", rate=10)
        stream.width, stream.height, stream.pix_fmt = 65, 48, "bgr0"
        for i in range(5):
            frame = av.VideoFrame.from_ndarray(noise_image((48, 65), i), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return folder / "film.mkv"


@pytest.mark.parametrize("window", [None, 32])
def test_a_video_is_predicted_frame_by_frame(model, tmp_path: Path, window: int | None) -> None:
    pytest.importorskip("av", reason="PyAV is not installed")
    film = make_video(tmp_path)
    summary = predict_all(model, [str(film)], tmp_path / "seen", window=window)
    assert summary.done == 5
    frames = [noise_image((48, 65), i) for i in range(5)]
    for i, frame in enumerate(frames):
        mask = np.asarray(Image.open(tmp_path / f"seen/masks/film/{i:06d}.png"))
        assert (mask == model.predict(frame, window=window).mask).mean() > 0.999
    seen = [model.predict(frames[0], window=one).mask for one in (None, 32)]
    assert (seen[0] != seen[1]).any()
    seen = list(read_frames(tmp_path / "seen/overlays/film.mp4"))
    assert [frame.shape for frame in seen] == [(48, 66, 3)] * 5
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    with pytest.raises(NacreError, match=r"broken\.mp4 cannot be read"):
        predict_all(model, [str(tmp_path / "broken.mp4")], tmp_path / "seen")


def test_a_video_without_pyav_names_the_missing_package(
    model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "film.mp4").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(NacreError, match=r"package av.*\[video\]"):
        predict_all(model, [str(tmp_path / "film.mp4")], tmp_path / "seen")
