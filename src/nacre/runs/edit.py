"""Forgetting and merging of models that the ledger learned: rows of sums are dropped or joined.

A model of the ledger is its backbone, which never changes, and rows of sums by step and class. So

    forget a step      drops the rows of the step
    forget a folder    drops the rows of a folder of the step
    forget a class     drops the rows of a class, as if its pixels had been ignored
    merge models       joins the rows of all of them; steps of a common start count once

and the head is solved from the remaining rows. A model that learned from these pixels alone has
the same head. An edit cannot change masks: background that a model took for a known class before a
step was learned was not counted in that step (`nacre.methods.ledger`).
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nacre.errors import NacreError, check, did_you_mean
from nacre.labels.channels import extend_colors
from nacre.losses.ridge import Sums, join
from nacre.methods import find_method
from nacre.methods.base import deeplab
from nacre.methods.ledger import (
    SumsConfig,
    check_sums,
    from_state,
    has_grid,
    set_head,
    to_state,
)
from nacre.models.adapter import Adapter
from nacre.models.classifier import Classifier
from nacre.models.config import AdapterConfig
from nacre.models.deeplab import DeepLab
from nacre.models.io import ModelInfo, find_model, load_model, save_model
from nacre.models.ledger import LedgerHead, RestHead, background_origins
from nacre.models.network import Network
from nacre.training.config import differences


@dataclass(frozen=True)
class LedgerModel:
    """A model with its sums; the steps of their rows are positions in the history."""

    network: Network
    info: ModelInfo
    sums: Sums

    @property
    def ridge(self) -> float:
        """The ridge in the method's config."""
        section = self.info.config.get("method", {})
        config = check(find_method(str(section.get("name", "ledger"))).Config, section)
        if not isinstance(config, SumsConfig):
            raise NacreError(f"the model's config is of method {config.name!r}: a damaged file?")
        return config.ridge


def open_ledger(path: Path, given: nn.Module | None = None) -> LedgerModel:
    """Read a model that the ledger learned; refuse a model of a method that keeps no sums.

    Args:
        path: The model file, or a folder that contains it.
        given: The user's network, if the file alone cannot build it.
    """
    file = find_model(path)
    network, info, state = load_model(file, network=given)
    if not has_grid(network) or not state:
        raise NacreError(
            f"{file} keeps no sums of its classes; only models of the methods 'ledger' and 'duo' "
            "can forget and be merged"
        )
    sums = from_state(state)
    check_sums(network, sums)
    return LedgerModel(network, info, sums)


def save_ledger(model: LedgerModel, out: Path) -> Path:
    """Write a model into a new folder; return its file."""
    file = out / "model.safetensors"
    if file.exists():
        raise NacreError(f"{file} exists already; give --out another folder")
    out.mkdir(parents=True, exist_ok=True)
    save_model(file, model.network, model.info, to_state(model.sums))
    return file


def forget_step(model: LedgerModel, step: int) -> LedgerModel:
    """Return the model without a step, given by its position in the history."""
    history = model.info.history
    if not 0 <= step < len(history):
        raise NacreError(f"there is no step {step}: the model has steps 0 to {len(history) - 1}")
    if not bool((model.sums.step == step).any()):
        raise NacreError(f"step {step} was not learned by the ledger, and cannot be forgotten")
    kept = model.sums.keep(model.sums.step != step)
    sums = replace(kept, step=kept.step - (kept.step > step).long())
    entries = [entry for i, entry in enumerate(history) if i != step]
    return _without(model, sums, entries)


def forget_folder(model: LedgerModel, name: str, step: int | None = None) -> LedgerModel:
    """Return the model without a data folder.

    Args:
        model: The model.
        name: The folder's name, as `nacre history` shows it.
        step: The position of the step, if several learned from folders of this name.
    """
    history = model.info.history
    steps = [i for i, e in enumerate(history) if name in e["data"] and step in (None, i)]
    if not steps:
        where = f"step {step}" if step is not None else "the model"
        folders = sorted({folder for entry in history for folder in entry["data"]})
        raise NacreError(
            f"{where} did not learn from a folder {name!r}; the folders are {', '.join(folders)}"
        )
    if len(steps) > 1:
        raise NacreError(
            f"the steps {', '.join(map(str, steps))} learned from a folder {name!r}; "
            "name the step, too"
        )
    entry = history[steps[0]]
    if entry["data"].count(name) > 1:
        raise NacreError(f"step {steps[0]} learned from several folders called {name!r}")
    if len(entry["data"]) == 1:
        return forget_step(model, steps[0])
    return _without_folder(model, steps[0], entry["data"].index(name))


def _without_folder(model: LedgerModel, step: int, folder: int) -> LedgerModel:
    """Return the model without one of several folders of a step."""
    mine = model.sums.step == step
    kept = model.sums.keep(~(mine & (model.sums.folder == folder)))
    later = (kept.step == step) & (kept.folder > folder)
    entry = dict(model.info.history[step])
    for key in ("data", "folder_images"):
        entry[key] = [value for i, value in enumerate(entry[key]) if i != folder]
    entry["images"] = sum(entry["folder_images"])
    entry["hidden"] = {name: x for name, x in entry["hidden"].items() if name in entry["data"]}
    left = [model.info.classes[c] for c in set(kept.channel.tolist())]
    entry["classes"] = [name for name in entry["classes"] if name in left]
    history = [entry if i == step else e for i, e in enumerate(model.info.history)]
    return _without(model, replace(kept, folder=kept.folder - later.long()), history)


def forget_class(model: LedgerModel, name: str) -> LedgerModel:
    """Return the model without a class, as if its pixels had been ignored."""
    classes = model.info.classes
    if name not in classes[1:]:
        raise NacreError(
            f"the model knows no class {name!r}{did_you_mean(name, classes[1:])}; it knows "
            f"{', '.join(classes[1:])}"
        )
    is_class = model.sums.channel == classes.index(name)
    if not bool(is_class.any()):
        raise NacreError(f"{name!r} was not learned by the ledger, and cannot be forgotten")
    entries = [
        {**entry, "classes": [other for other in entry["classes"] if other != name]}
        for entry in model.info.history
    ]
    return _without(model, model.sums.keep(~is_class), entries)


def merge(models: Sequence[LedgerModel]) -> LedgerModel:
    """Return the model that learned everything that several models on one backbone learned."""
    if len(models) < 2:
        raise NacreError("one model cannot be merged; give at least two")
    merged = models[0]
    for other in models[1:]:
        _check_alike(merged, other)
        merged = _merge_two(merged, other)
    return merged


def _merge_two(first: LedgerModel, second: LedgerModel) -> LedgerModel:
    """Join the rows of two models; classes of the same name are one class."""
    names = list(dict.fromkeys([*first.info.classes, *second.info.classes]))
    shared = _shared_steps(first, second)
    channels = torch.tensor([names.index(name) for name in second.info.classes])
    rows = second.sums.keep(second.sums.step >= shared)
    moved = replace(
        rows,
        step=rows.step + len(first.info.history) - shared,
        channel=channels[rows.channel],
    )
    history = [*first.info.history, *second.info.history[shared:]]
    own = dict(zip(second.info.classes, second.info.colors, strict=True))
    info = replace(
        first.info,
        classes=names,
        colors=extend_colors(first.info.colors, names, own),
        steps=[*first.info.steps, *_added(first.info, second.info)],
        history=_numbered(history),
    )
    return _solved(first, info, join([first.sums, moved]))


def _shared_steps(first: LedgerModel, second: LedgerModel) -> int:
    """Return the number of first steps that two models share, because both started from them."""
    count = 0
    for a, b in zip(first.info.history, second.info.history, strict=False):
        mine, theirs = (model.sums.keep(model.sums.step == count) for model in (first, second))
        names = [
            [model.info.classes[c] for c in rows.channel.tolist()]
            for model, rows in ((first, mine), (second, theirs))
        ]
        same = a == b and names[0] == names[1] and torch.equal(mine.mean, theirs.mean)
        if not (same and torch.equal(mine.scatter, theirs.scatter)):
            break
        count += 1
    return count


def _check_alike(first: LedgerModel, second: LedgerModel) -> None:
    """Refuse models whose sums are of different features."""
    one, other = (
        {**info.model, "images.crop_size": info.crop, "images.eval_mode": info.predict_mode}
        for info in (first.info, second.info)
    )
    differing = [
        line.replace(": ", " is ", 1).replace(" -> ", " in one and ", 1) + " in the other"
        for line in differences(one, other)
    ]
    if differing:
        methods = {
            str(model.info.config.get("method", {}).get("name")) for model in (first, second)
        }
        raise NacreError(
            f"the models cannot be merged: {', '.join(differing)}; learn both with the same "
            + ("--method" if len(methods) > 1 else "values of these keys")
        )
    mine, theirs = (_unchanged(model.network).state_dict() for model in (first, second))
    if not all(torch.equal(value, theirs[name]) for name, value in mine.items()):
        raise NacreError(
            "the models cannot be merged: their backbones have different weights; learn both from "
            "the same weights"
        )


def _unchanged(network: Network) -> nn.Module:
    """Return the module of a network that the ledger never changes."""
    if isinstance(network, Adapter):
        return network.model
    return deeplab(network).backbone


def _added(info: ModelInfo, other: ModelInfo) -> list[int]:
    """Return how many channels each group of the other model adds, without empty groups."""
    added, first = [], 0
    for count in other.steps:
        group = other.classes[first : first + count]
        added.append(sum(name not in info.classes for name in group))
        first += count
    return [count for count in added if count]


def _without(model: LedgerModel, sums: Sums, history: list[dict[str, Any]]) -> LedgerModel:
    """Return the model with fewer rows, without the channels that have no row left."""
    lost = set(model.sums.channel.tolist()) - set(sums.channel.tolist()) - {0}
    kept = [c for c in range(len(model.info.classes)) if c not in lost]
    if len(kept) < 2 or not len(sums):
        raise NacreError("no class would be left; a model knows at least one")
    place = {c: i for i, c in enumerate(kept)}
    channel = torch.tensor([place[c] for c in sums.channel.tolist()])
    info = model.info
    names = [info.classes[c] for c in kept]
    info = replace(
        info,
        classes=names,
        colors=[info.colors[c] for c in kept],
        steps=_kept_groups(info.steps, kept),
        history=_numbered(history),
    )
    return _solved(model, info, replace(sums, channel=channel))


def _kept_groups(steps: Sequence[int], kept: Sequence[int]) -> list[int]:
    """Return how many channels of each group stay; the background is in the first."""
    counts, first = [], 0
    for count in steps:
        counts.append(sum(first <= c < first + count for c in kept if c))
        first += count
    counts = [count for count in counts if count]
    return [counts[0] + 1, *counts[1:]]


def _numbered(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**entry, "step": i} for i, entry in enumerate(history)]


def _solved(model: LedgerModel, info: ModelInfo, sums: Sums) -> LedgerModel:
    """Return a model with the head solved from its sums."""
    network = copy.deepcopy(model.network)
    if isinstance(network.ledger, RestHead):
        assert isinstance(network.config, AdapterConfig)
        first = len(network.config.own_steps(info.steps))
        network.ledger.classifier = _rows(network.ledger.classifier, [1, *info.steps[first:]])
    elif network.ledger is not None:
        _arrange(deeplab(network), network.ledger, model.info.classes, info)
    else:
        own = deeplab(network)
        own.classifier = _rows(own.classifier, info.steps)
    set_head(network, sums, model.ridge)
    return LedgerModel(network, info, sums)


@torch.no_grad()
def _arrange(network: DeepLab, ledger: LedgerHead, before: Sequence[str], info: ModelInfo) -> None:
    """Rearrange a decoder's channels; a class that it does not know is part of its background.

    The row of such a class begins as the background's (eq. 8, 9), like that of a new class.
    """
    places = torch.tensor([before.index(name) if name in before else 0 for name in info.classes])
    lacks = torch.tensor([name not in before for name in info.classes])
    weight, bias = network.classifier.weight(slice(None)), network.classifier.bias(slice(None))
    bias = bias.clone()
    bias[0] -= math.log(1 + int(lacks.sum()))
    network.classifier = _rows(network.classifier, info.steps)
    network.classifier.set_rows(weight[places], bias[places])
    ledger.classifier = _rows(ledger.classifier, info.steps)
    ledger.learned = ledger.learned[places] & ~lacks
    # Classes that are gone were background, too; those new to the decoder are background.
    origins = torch.where(lacks, 0, ledger.origins[places][:, places])
    gone = [i for i, name in enumerate(before) if name not in info.classes]
    origins[:, 0] += ledger.origins[places][:, gone].sum(1)
    ledger.origins = torch.where(lacks[:, None], background_origins(len(places)), origins)


def _rows(like: Classifier, steps: Sequence[int]) -> Classifier:
    """Return a classifier for other channels, whose rows are not solved yet."""
    return Classifier(like.in_channels, list(steps)).eval()
