"""The background shift, and what the sheet of images needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nacre.api.model import load
from nacre.evaluation.predictor import Predictor
from nacre.models.io import load_model
from nacre.report.page.page import write_report
from nacre.report.pictures.background_shift import (
    FUTURE,
    NO_EFFECT,
    OLD,
    background_shift,
    colorize_hidden,
)
from nacre.report.pictures.predict import open_data
from nacre.report.pictures.sheet import comparison_sheet
from nacre.report.results.aggregate import load_results


def test_shift_shows_what_labels_hide(runs: Path) -> None:
    (results,) = load_results([runs])
    data = open_data(results.rows)
    shifts = background_shift(data)
    assert [one.name for one in shifts] == [one.name for one in background_shift(data)]
    for shift in shifts:
        growth = data.scenario.classes.growth(shift.step)
        old = range(1, growth.num_old)
        new = range(growth.first_new, growth.first_new + growth.num_new)
        is_old, is_new = np.isin(shift.truth, list(old)), np.isin(shift.truth, list(new))
        future = ~is_old & ~is_new & (shift.truth != 0)
        assert np.array_equal(shift.hidden == OLD, is_old)
        assert np.array_equal(shift.hidden == FUTURE, future)
        assert np.array_equal(shift.labels, np.where(is_new, shift.truth, 0))
        assert is_new.any()
        assert (shift.hidden != NO_EFFECT).any()
        background = (shift.labels == 0).sum()
        assert shift.share(OLD) == pytest.approx(is_old.sum() / background)
    painted = colorize_hidden(shifts[1], ((255, 0, 0), (0, 0, 255)))
    red = painted[shifts[1].hidden == OLD].astype(int)
    assert (red[:, 0] > red[:, 2]).all()


def test_every_network_is_loaded_once(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def load_and_note(path: Path, *rest: Any) -> Any:
        opened.append(path)
        return load_model(path, *rest)

    monkeypatch.setattr("nacre.report.pictures.predict.load_model", load_and_note)
    write_report([runs], tmp_path / "page", pictures=3)
    assert len(opened) == len(set(opened)) == 4


def test_pictures_are_seen_through_windows_where_tests_are(make_run: Any, tmp_path: Path) -> None:
    images = {"crop_size": 16, "eval_mode": "sliding"}
    path = make_run("a", networks=True, images=images)
    (results,) = load_results([path])
    data = open_data(results.rows)
    (seen,) = comparison_sheet(results, data, 1).pictures
    network = load(path, "cpu").network
    batch = torch.from_numpy(seen.image.pixels).permute(2, 0, 1)[None]
    expected = Predictor(network, "sliding", 16).classes(batch)[0].numpy()
    assert np.array_equal(seen.masks[0], expected)
