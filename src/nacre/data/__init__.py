"""Data sets, their index, image reading, augmentation and loading.

Another package registers a data set by an entry point in the group ``nacre.data``: its name is the
name of the data set, its object a `DataSet`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nacre.data import ade20k, folder, scenes, voc
from nacre.data.source import DataConfig, Source, Split
from nacre.labels.mapping import Border
from nacre.labels.space import LabelSpace
from nacre.scenarios.classes import NamedTask
from nacre.utils.system import find_entry

__all__ = [
    "DATASETS",
    "DataConfig",
    "DataSet",
    "Source",
    "Split",
    "find_dataset",
    "open_source",
]


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        about: Description for lists of data sets.
        config: Class of its config.
        open: Makes the source from the config.
        space: Its classes, if they are known without the files.
        tasks: Tasks with published class lists, by name.
        examples: Tasks that `nacre plan` and the docs show.
        setups: Setups that they show.
        paper_epochs: Epochs per step in the paper, if it used the data set.
        border: Default of `labels.border`: the paper's convention for the paper's data sets,
            ignored for others.
    """

    about: str
    config: type[DataConfig]
    open: Callable[[Any], Source]
    space: LabelSpace | None = None
    tasks: Callable[[], dict[str, NamedTask]] = dict
    examples: tuple[str, ...] = ()
    setups: tuple[str, ...] = ("disjoint", "overlapped")
    paper_epochs: int | None = None
    border: Border = "background"


DATASETS: dict[str, DataSet] = {
    "scenes": DataSet(
        "generated scenes, no files needed",
        scenes.ScenesConfig,
        scenes.Scenes,
        space=scenes.SPACE,
        examples=("4-2-2", "4-4", "4-1"),
    ),
    "folder": DataSet(
        "your own images: images/, masks/, classes.yaml",
        folder.FolderConfig,
        folder.Folder,
        examples=("6-5",),
        border="ignored",
    ),
    "voc": DataSet(
        "Pascal VOC 2012, 20 classes",
        voc.VocConfig,
        voc.Voc,
        space=voc.SPACE,
        examples=("19-1", "15-5", "15-1", "10-10", "10-5", "10-1", "5-3", "2-2"),
        paper_epochs=30,
    ),
    "ade20k": DataSet(
        "ADE20K, 150 classes",
        ade20k.AdeConfig,
        ade20k.Ade20k,
        space=ade20k.SPACE,
        tasks=ade20k.named_tasks,
        examples=("100-50", "100-10", "50-50", "100-5", "100-10b"),
        setups=("disjoint", "overlapped", "partition"),
        paper_epochs=60,
    ),
}


def find_dataset(name: str, where: str = "data set") -> DataSet:
    """Return a data set by name; an error calls the place of an unknown name `where`."""
    return find_entry(DATASETS, name, "nacre.data", DataSet, "data set", where)


def open_source(config: DataConfig) -> Source:
    """Open the data set of a config."""
    return find_dataset(config.name).open(config)
