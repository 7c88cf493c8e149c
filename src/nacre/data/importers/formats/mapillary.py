"""Mapillary Vistas: ``training|validation|testing/images`` and label masks, named by a config file.

A value is the place of its label in ``config*.json``; labels that are not evaluated do not count.
There is no background. Of several versions of the labels the newest is taken.
"""

import re
from collections import Counter

from nacre.data.importers.catalog import IGNORED, Coding, MaskFile, Picture, color_of
from nacre.data.importers.files.export import Match, clean_parts, split_of
from nacre.data.importers.files.tree import File
from nacre.data.importers.problems import brief
from nacre.data.importers.reading import Source, as_dict, as_list
from nacre.errors import NacreError

_VERSION = re.compile(r"v(\d+)\.(\d+)")


def read(source: Source, files: list[File]) -> None:
    """Read Mapillary Vistas by the newest of its config files that has masks."""
    source.catalog.has_background = False
    for config in sorted(files, key=lambda file: _version(file.name), reverse=True):
        masks = _masks(source, config)
        if masks:
            break
    else:
        raise NacreError(f"there are no masks in a folder labels/ for {brief(files[0].path)}")
    coding = Coding("values", _values(source, config))
    for file in source.export.pictures:
        if clean_parts(file.folder)[-1:] != ("images",):
            continue
        mask = masks.get((split_of(file.folder), file.pure.stem.casefold()))
        picture = Picture(
            file.path, Match(file, True), split_of(file.folder), is_labeled=mask is not None
        )
        picture.is_listed = False
        picture.mask = MaskFile(mask, coding) if mask else None
        source.catalog.add(picture)


def _version(text: str) -> tuple[int, int]:
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _masks(source: Source, config: File) -> dict[tuple[str | None, str], File]:
    """Return the masks by split and name; those of the config's version where there are several."""
    version = _version(config.name)
    found = {}
    for file in source.export.pictures:
        parts = clean_parts(file.folder)
        if parts[-1:] == ("labels",) and (
            version == (0, 0) or _version(file.folder) in (version, (0, 0))
        ):
            found[split_of(file.folder), file.pure.stem.casefold()] = file
    return found


def _values(source: Source, config: File) -> dict[int, int]:
    labels = [as_dict(one) for one in as_list(as_dict(source.load_json(config)).get("labels"))]
    readable = Counter(str(one.get("readable")) for one in labels)
    values = {}
    for value, one in enumerate(labels):
        name = one.get("readable") if readable[str(one.get("readable"))] == 1 else one.get("name")
        if one.get("evaluate") is False:
            values[value] = IGNORED
            continue
        values[value] = source.list_class(
            name or one.get("name"), config, color_of(one.get("color"))
        )
    return values
