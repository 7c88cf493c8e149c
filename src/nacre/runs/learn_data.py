"""From the config of `nacre learn` to the data of its step."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nacre.data import open_source
from nacre.data.learn_data import (
    LabeledSet,
    LearnData,
    choose_new_classes,
    rename_classes,
    set_name,
)
from nacre.data.source import Source
from nacre.data.sources.folder import FolderConfig
from nacre.errors import NacreError, did_you_mean
from nacre.labels.channels import Channels
from nacre.runs.learn_config import LearnConfig
from nacre.runs.scenario_data import open_saliency

EVERY = ":all"
"""What a folder's name ends in if its training images are to be tested, too."""


def open_tests(paths: Sequence[Path], rename: Mapping[str, str]) -> list[LabeledSet]:
    """Open folders given for testing; each is tested on its test images, or on all if asked for.

    Raises:
        NacreError: one has no class or no test image.
    """
    plain = [Path(str(path).removesuffix(EVERY)) for path in paths]
    found = []
    for path, (name, source) in zip(paths, open_folders(plain), strict=True):
        one = LabeledSet(name, source, rename, is_whole=path.name.endswith(EVERY))
        if not one.labeled:
            raise NacreError(f"--test {name}: no image there has a pixel of a class")
        if not (len(one.val_index) or one.is_whole):
            raise NacreError(
                f"--test {name}: none of its images is for testing; to test all of them say "
                f"{name}{EVERY}"
            )
        found.append(one)
    return found


def open_folders(paths: Sequence[Path]) -> list[tuple[str, Source]]:
    """Open data folders; each gets the name of its folder."""
    names = [set_name(path) for path in paths]
    check_names(names)
    return [
        (name, open_source(FolderConfig(root=path)))
        for name, path in zip(names, paths, strict=True)
    ]


def check_names(names: Sequence[str]) -> None:
    """Refuse two data folders of one name."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise NacreError(
            f"two data folders are named {twice[0]!r}; give them different names, so that tables "
            "and --share can tell them apart"
        )


def open_learn_data(config: LearnConfig, before: Channels | None) -> LearnData:
    """Open the data of a step for a model that has these channels (None without a model)."""
    sets = rename_classes(open_folders(config.data), config.rename)
    tests = open_tests(config.tests, config.rename)
    check_names([one.name for one in (*sets, *tests)])
    for one in sets:
        if not one.labeled:
            raise NacreError(f"{one.name} labels nothing: no mask holds a pixel of a class")
        if not len(one.train_index):
            raise NacreError(
                f"{one.name} has no training pictures: without train.txt and val.txt one in five "
                f"is for testing, and so are its {len(one.val_index):,}; write both lists"
            )
    new = choose_new_classes(sets, before.names if before else (), config.classes, config.new)
    return LearnData(
        sets=tuple(sets),
        tests=tuple(tests),
        before=before,
        new=new,
        config=config.images,
        seed=config.seed,
        policy=config.labels,
        saliency=open_saliency(config),
    )


def batch_shares(config: LearnConfig, data: LearnData) -> tuple[tuple[int, float], ...] | None:
    """Return images and share of a batch of each data set; None where their sizes decide."""
    if not config.share:
        return None
    _check_shares(config.share, [one.name for one in data.sets])
    given = sum(config.share.values())
    rest = [one for one in data.sets if one.name not in config.share]
    left = 1 - given
    if (rest and left <= 1e-9) or (not rest and abs(left) > 1e-6):
        raise NacreError(
            f"the shares of a batch add up to {given:g}; "
            + ("something must be left for " + rest[0].name if rest else "together they must be 1")
        )
    total = max(1, sum(len(one.train_index) for one in rest))
    counts = {one.name: len(one.train_index) for one in data.sets}
    return tuple(
        (count, config.share.get(name, left * count / total)) for name, count in counts.items()
    )


def _check_shares(shares: Mapping[str, float], names: Sequence[str]) -> None:
    for name, share in shares.items():
        if name not in names:
            raise NacreError(
                f"--share {name}={share:g}: no data folder has this name"
                f"{did_you_mean(name, names)}; folders: {', '.join(names)}"
            )
        if not 0 < share < 1:
            raise NacreError(f"--share {name}={share:g}: a share is above 0 and below 1")
