"""Freed memory is kept where the C library can; others' packages break only themselves."""

from pathlib import Path

import pytest

from nacre.data import DATASETS, find_dataset, open_source
from nacre.data.scenes import ScenesConfig
from nacre.errors import NacreError
from nacre.export import EXPORTS, find_export
from nacre.methods import ENTRIES, METHODS, all_entries, find_method
from nacre.models.build import KINDS, find_kind
from nacre.utils.system import import_extra


class Point:
    def __init__(self, name, load):
        self.name, self.value, self.load = name, f"elsewhere:{name}", load


def broken():
    raise ImportError("no module named elsewhere")


def find_ending(name):
    return find_export(Path(f"model.{name}"))


# What finds one, the table of ours, one of them, and what it is called
TABLES = {
    "methods": (find_method, METHODS, "mib", "Method"),
    "kinds": (find_kind, KINDS, "deeplab", "Kind"),
    "data sets": (find_dataset, DATASETS, "voc", "DataSet"),
    "exports": (find_ending, EXPORTS, "onnx", "ExportFormat"),
}


@pytest.mark.parametrize("table", TABLES)
def test_what_another_package_registers_joins_and_a_broken_one_breaks_only_itself(
    table, monkeypatch
):
    find, ours, name, kind = TABLES[table]
    points = [Point("mine", lambda: ours[name]), Point("bad", broken), Point("odd", lambda: 3)]
    points.append(Point(name, broken))
    monkeypatch.setattr("nacre.utils.system.entry_points", lambda group: points)
    assert find("mine") is ours[name]
    assert find(name) is ours[name], "a name of ours stays ours"
    with pytest.raises(NacreError, match="'bad' cannot be loaded from elsewhere:bad: ImportError"):
        find("bad")
    with pytest.raises(NacreError, match=f"'odd' is not a {kind}"):
        find("odd")
    with pytest.raises(NacreError, match="did you mean 'mine'"):
        find("minne")


def test_the_list_of_methods_has_those_of_others_and_passes_over_broken_ones(monkeypatch, caplog):
    points = [Point(name, lambda: METHODS["ft"]) for name in ("mine", "mib")]
    points.append(Point("bad", broken))
    monkeypatch.setattr("nacre.utils.system.entry_points", lambda group: points)
    assert set(all_entries()) == {*ENTRIES, "mine"}
    assert all_entries()["mib"] == ENTRIES["mib"], "a name of ours stays ours"
    assert all_entries()["mine"].summary.startswith("Cross-entropy")
    assert "'bad' cannot be loaded from elsewhere:bad: ImportError: no module" in caplog.text


def test_a_data_set_of_another_package_is_opened(monkeypatch):
    points = [Point("mine", lambda: DATASETS["scenes"])]
    monkeypatch.setattr("nacre.utils.system.entry_points", lambda group: points)
    config = ScenesConfig.model_construct(**{**ScenesConfig().model_dump(), "name": "mine"})
    assert open_source(config).space is DATASETS["scenes"].space


def test_an_extra_that_cannot_be_imported_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the hub's client and transformers with an address in HF_ENDPOINT that is none."""
    (tmp_path / "broken_extra.py").write_text("raise ValueError('no\\naddress')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(NacreError, match=r"broken_extra, which cannot be imported here \(no add"):
        import_extra("broken_extra", "hub")
