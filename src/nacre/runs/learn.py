"""`nacre learn`: one step for a model that exists, or the first one, in a folder of its own.

Calling it again on the same folder goes on where it stopped. Nothing but the start model and the
new data is read: neither an old image nor an old label.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

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
from nacre.methods import Step, find_method, find_row
from nacre.models.io import find_model, load_model
from nacre.runs.folder import LearnFolder
from nacre.runs.learn_config import (
    LearnConfig,
    build_learn_config,
    check_said,
    ground_of,
)
from nacre.runs.learn_tests import LearnTests
from nacre.runs.run import step_sampler
from nacre.runs.steps import Metrics, Start, run_steps
from nacre.training.automatic import Choice, choose, look_at
from nacre.training.config import read_section, read_written
from nacre.training.events import Observer
from nacre.training.step import FEWEST_TO_HOLD_OUT
from nacre.utils.device import choose_device
from nacre.utils.distributed import explain_lost_process, init_distributed
from nacre.version import __version__

EVERY = ":all"
"""What a folder's name ends in if its training images are to be tested, too."""


def find_start(path: Path | None, network: nn.Module | None = None) -> Start | None:
    """Find the model that a user means: a model file, a step's or a run's folder.

    Args:
        path: Where it is; None if nothing is continued.
        network: What it was learned from, if its file alone cannot build it.
    """
    if path is None:
        return None
    file = find_model(path)
    loaded, info, _ = load_model(file, network=network)
    return Start(file, info, network, "backbone" in loaded.gives)


@dataclass(frozen=True)
class Plan:
    """A step that is about to be learned: its config, and why it is as it is.

    Attributes:
        config: What is learned, and how.
        start: The model that is continued, if there is one.
        how: By which method it is continued, and what of it does not change.
        reasons: Why the config is as it is, where nobody said otherwise.
    """

    config: LearnConfig
    start: Start | None
    how: str
    reasons: tuple[str, ...]

    def step(self) -> Step:
        """Open the data; return the step."""
        config, start = self.config, self.start
        dist = init_distributed(config.train.device)
        before = start.info.channels if start else None
        with explain_lost_process(dist):
            # The main process reads the index first, the others then find it.
            dist.on_main(lambda: bool(open_learn_data(config, before)))
            data = open_learn_data(config, before)
        # A merged model was made by more steps than have channels of their own.
        index = max(len(start.info.steps), len(start.info.lineage)) if start else 0
        images, shares = data.train_dataset(), batch_shares(config, data)
        sampler = step_sampler(config, len(images), index, dist.rank, dist.world_size, shares)
        entry = {
            "step": index,
            "classes": list(data.new),
            "images": len(images),
            "data": [one.name for one in data.sets],
            "folder_images": [len(one) for one in images.folders],
            "hidden": {one.name: data.training_mapping(one).hidden for one in data.sets},
            "method": config.method.name,
            "iterations": sampler.iterations,
            "when": "",
            "nacre": __version__,
        }
        return Step(
            index=index,
            channels=data.channels,
            growth=data.growth,
            data=images,
            sampler=sampler,
            config=config,
            dist=dist,
            tests=LearnTests(data, config, start),
            entry=entry,
            history=start.info.lineage if start else (),
        )

    def learn(
        self,
        out: Path,
        *,
        step: Step | None = None,
        observers: Iterable[Observer] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Metrics:
        """Learn the step in a folder and test it, each unless that was done; return its metrics.

        Args:
            out: The folder.
            step: What `step` returned.
            observers: Receive the events.
            should_stop: Whether the user wants to stop.
        """
        step, folder = step or self.step(), LearnFolder(out)
        data: LearnData = step.tests.data
        step.tests.path, step.should_stop = folder.before, should_stop
        fingerprint = self.start.fingerprint() if self.start else None
        (metrics,) = run_steps(
            [step],
            folder,
            about=", ".join(one.name for one in data.sets),
            fingerprint={"start": fingerprint, **data.fingerprint()},
            start=self.start,
            observers=observers,
        )
        return metrics


def plan_learning(
    data: Sequence[Path],
    start: Start | None,
    *,
    tests: Sequence[Path] = (),
    preset: str | None = None,
    file: Path | None = None,
    assignments: Iterable[str] = (),
    values: Mapping[str, Any],
) -> Plan:
    """Put together what a step is learned with, from what fits the machine and what is given."""
    overrides = {
        **values,
        "data": [str(path) for path in data],
        "tests": [str(path) for path in tests],
        "start": str(start.path) if start else None,
    }
    num_images = sum(len(source.index("train")) for _, source in open_folders(data))
    written = read_written(file, assignments, overrides, check_said)
    choice = choose(
        look_at(choose_device("auto")),
        num_images,
        ground_of(start.info.model if start else None, read_section(written, "model")),
        has_backbone=start is None or start.has_backbone,
    )
    config = build_learn_config(
        start=start.info if start else None, automatic=choice, written=written, preset=preset
    )
    reasons = _reasons(config, num_images, None if preset else choice)
    return Plan(config, start, _how(config) if start else "", reasons)


def _reasons(config: LearnConfig, num_images: int, choice: Choice | None) -> tuple[str, ...]:
    """Return why the config is as it is; a person's own values need no reasons."""
    reasons: tuple[str, ...] = choice.reasons if choice and _was_taken(choice, config) else ()
    kind = find_method(config.method.name)
    # The last reason says how many updates are made.
    if not kind.learns_by_gradient:
        reasons = (*reasons[:-1], "one pass over the images, without an update")
    elif kind.holds_out and num_images < FEWEST_TO_HOLD_OUT:
        few = f"without updates of its decoder, which fewer than {FEWEST_TO_HOLD_OUT} cannot judge"
        reasons = (*reasons[:-1], f"the ledger in one pass over the images, {few}")
    elif kind.holds_out and reasons:
        first = "first the ledger in one pass over the images, then its decoder"
        kept = "kept if they gain on held-out images"
        reasons = (*reasons[:-1], f"{first}: {reasons[-1]}; {kept}")
    return reasons


def _how(config: LearnConfig) -> str:
    """Return by which method a model is continued, and what of it does not change."""
    method = config.method
    always = ["backbone"] if method.freeze_step_0 and "backbone" not in method.freeze else []
    kept = [one.replace("_", " ") for one in (*always, *method.freeze)]
    named = " and ".join([", ".join(kept[:-1]), kept[-1]] if kept[1:] else kept)
    stays = f"; {named} {'stay' if kept[1:] else 'stays'} as before" if kept else ""
    name = config.method.name
    return f"learned by {find_row(name).title}{stays}"


def _was_taken(choice: Choice, config: LearnConfig) -> bool:
    """Return whether what was chosen is what is done: a person's own values need no reasons."""
    plain = config.to_dict()
    sections = {name: values for name, values in choice.values.items() if name != "method"}
    # Of what is frozen `how` speaks.
    return all(
        plain[name].get(key) == value
        for name, values in sections.items()
        for key, value in values.items()
    )


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
                f"{one.name} has no training images: without train.txt and val.txt one in five "
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
