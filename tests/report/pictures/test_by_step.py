"""The same image through the steps, the background shift, and the film of both."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nacre.api.model import load
from nacre.errors import NacreError
from nacre.evaluation.inference import sliding_classes
from nacre.models.io import load_model
from nacre.report.page.page import write_report
from nacre.report.pictures.background_shift import (
    FUTURE,
    NOTHING,
    OLD,
    background_shift,
    colorize_hidden,
)
from nacre.report.pictures.by_step import predict_by_step
from nacre.report.pictures.canvas import Grid, Tile, draw_grid
from nacre.report.pictures.film import FADE, write_film
from nacre.report.pictures.predict import open_data, predict_masks
from nacre.report.pictures.sheet import comparison_sheet
from nacre.report.results.aggregate import load_results


def test_growth_is_what_each_steps_network_sees(runs: Path) -> None:
    (results,) = load_results([runs])
    data = open_data(results.rows)
    pictures = comparison_sheet(results, data, 2).pictures
    images = [seen.image for seen in pictures]
    by_step = predict_by_step(results, data, pictures)
    assert [predictions.image.name for predictions in by_step] == [image.name for image in images]
    assert by_step[0].methods == ("FT", "LwF", "MiB", "Joint")
    for step in range(3):
        network = load(runs / "mib" / f"step-{step}", "cpu").network
        seen = by_step[1].masks[2][step]
        assert seen is not None
        assert np.array_equal(seen, predict_masks(network, images[1:])[0])
    joint = by_step[0].masks[3]
    assert [mask is None for mask in joint] == [True, True, False]


def test_shift_shows_what_labels_hide(runs: Path) -> None:
    (results,) = load_results([runs])
    data = open_data(results.rows)
    shifts = background_shift(data)
    assert [one.name for one in shifts] == [one.name for one in background_shift(data)]
    for shift in shifts:
        old = range(1, data.scenario.classes.channels(shift.step - 1)) if shift.step else []
        new = range(
            data.scenario.classes.old_channels(shift.step) or 1,
            data.scenario.classes.channels(shift.step),
        )
        is_old, is_new = np.isin(shift.truth, list(old)), np.isin(shift.truth, list(new))
        future = ~is_old & ~is_new & (shift.truth != 0)
        assert np.array_equal(shift.hidden == OLD, is_old)
        assert np.array_equal(shift.hidden == FUTURE, future)
        assert np.array_equal(shift.labels, np.where(is_new, shift.truth, 0))
        assert is_new.any()
        assert (shift.hidden != NOTHING).any()
        background = (shift.labels == 0).sum()
        assert shift.share(OLD) == pytest.approx(is_old.sum() / background)
    painted = colorize_hidden(shifts[1], ((255, 0, 0), (0, 0, 255)))
    red = painted[shifts[1].hidden == OLD].astype(int)
    assert (red[:, 0] > red[:, 2]).all()


def test_film_goes_through_steps_and_images(runs: Path, tmp_path: Path) -> None:
    written = write_film([runs], tmp_path / "film", pictures=2, side=40, seconds=0.5)
    assert written[0] == tmp_path / "film.webp"
    with Image.open(written[0]) as film:
        assert getattr(film, "n_frames", 0) == 2 * 3 * (1 + FADE)
    assert len(written) == 1 + (shutil.which("ffmpeg") is not None)


def test_mp4_is_written_where_ffmpeg_is(runs: Path, tmp_path: Path) -> None:
    if not shutil.which("ffmpeg"):
        pytest.skip("ffmpeg is not installed")
    written = write_film([runs], tmp_path / "film.webp", pictures=1, side=40, seconds=0.1)
    assert written[1].read_bytes()[4:8] == b"ftyp"


def test_a_failing_ffmpeg_is_told(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "ffmpeg").write_text("#!/bin/sh\necho 'no such codec' >&2\nexit 1\n")
    (tools / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=":")
    with pytest.raises(NacreError, match="no such codec"):
        write_film([runs], tmp_path / "film", pictures=1, side=40, seconds=0.1)
    # The film that could be written is there, half a film is not.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["film.webp", "tools"]


def test_a_film_is_of_one_scenario(make_run: Any, tmp_path: Path) -> None:
    paths = [make_run("a"), make_run("b", scenario="scenes/4-4/disjoint")]
    with pytest.raises(NacreError, match="one scenario"):
        write_film(paths, tmp_path / "film")
    with pytest.raises(NacreError, match="at least 1"):
        write_film(paths[:1], tmp_path / "film", pictures=0)


def test_grid_places_tiles_and_enlarges_by_pixel() -> None:
    red, empty = np.full((4, 4, 3), (255, 0, 0), np.uint8), Tile(None)
    grid = Grid(("a", "b"), ((Tile(red, "below"), empty),), names=("row",), side=40)
    picture = draw_grid(grid, [("thing", (0, 255, 0))], "title")
    pixels = np.asarray(picture)
    assert (pixels == (255, 0, 0)).all(2).sum() == 40 * 40
    assert (pixels == (0, 255, 0)).all(2).sum() > 50
    assert picture.width % 2 == picture.height % 2 == 0


@pytest.mark.parametrize(
    ("out", "expected"), [("v1.2", "v1.2.webp"), ("a.webp", "a.webp"), ("b.mp4", "b.webp")]
)
def test_a_dot_in_a_films_name_is_part_of_it(
    runs: Path, tmp_path: Path, out: str, expected: str
) -> None:
    written = write_film([runs / "mib"], tmp_path / out, pictures=1, side=40, seconds=0.1)
    assert written[0].name == expected


@pytest.mark.parametrize("out", ["..", ".", ""])
def test_a_film_is_a_file_and_no_folder(runs: Path, out: str) -> None:
    with pytest.raises(NacreError, match="give the film's name"):
        write_film([runs / "mib"], Path(out), pictures=1)


def test_every_network_is_loaded_once(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def load_and_note(path: Path, *rest: Any) -> Any:
        opened.append(path)
        return load_model(path, *rest)

    monkeypatch.setattr("nacre.report.pictures.predict.load_model", load_and_note)
    write_report([runs], tmp_path / "page", pictures=3)
    assert len(opened) == len(set(opened)) == 3 * 3 + 1


def test_pictures_are_seen_through_windows_where_tests_are(make_run: Any, tmp_path: Path) -> None:
    images = {"crop_size": 16, "eval_mode": "sliding"}
    path = make_run("a", networks=True, images=images)
    (results,) = load_results([path])
    data = open_data(results.rows)
    (seen,) = comparison_sheet(results, data, 1).pictures
    network = load(path, "cpu").network
    batch = torch.from_numpy(seen.image.pixels).permute(2, 0, 1)[None]
    with torch.inference_mode():
        expected = sliding_classes(network, batch, 16)[0].numpy()
    assert np.array_equal(seen.masks[0], expected)
