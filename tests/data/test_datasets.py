import pytest

from nacre.data import DATASETS, find_dataset, open_source
from nacre.data.sources.scenes_render import ScenesConfig
from nacre.errors import NacreError


class Point:
    def __init__(self, name, load):
        self.name, self.value, self.load = name, f"elsewhere:{name}", load


def test_a_data_set_of_another_package_joins_through_an_entry_point(monkeypatch):
    points = [Point("mine", lambda: DATASETS["scenes"]), Point("voc", lambda: None)]
    monkeypatch.setattr("nacre.utils.plugins.entry_points", lambda group: points)
    assert find_dataset("mine") is DATASETS["scenes"]
    assert find_dataset("voc") is DATASETS["voc"]
    config = ScenesConfig.model_construct(**{**ScenesConfig().model_dump(), "name": "mine"})
    assert open_source(config).space is DATASETS["scenes"].space


def test_a_broken_data_set_breaks_only_itself(monkeypatch):
    def broken():
        raise ImportError("no module named elsewhere")

    points = [Point("bad", broken), Point("odd", lambda: 3)]
    monkeypatch.setattr("nacre.utils.plugins.entry_points", lambda group: points)
    assert find_dataset("folder") is DATASETS["folder"]
    with pytest.raises(NacreError, match="'bad' cannot be loaded from elsewhere:bad: ImportError"):
        find_dataset("bad")
    with pytest.raises(NacreError, match="'odd' is no DataSet"):
        find_dataset("odd")
    with pytest.raises(NacreError, match=r"unknown data set 'vox'.*did you mean 'voc'"):
        find_dataset("vox")
