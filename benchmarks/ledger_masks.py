"""How far masks of known classes make the ledger's head depend on the order of the steps.

    python benchmarks/ledger_masks.py voc-animals-4-1 --root VOC2012
    python benchmarks/ledger_masks.py scenes/4-2-2/overlapped --set data.train=400 \
        --set images.crop_size=64

Background that the model before a step takes for a known class is not counted in the step. So a
chain of steps depends on their order, and a model that forgot a step or was merged differs from one
learned from scratch. Each such pair is compared on the test images: the share of pixels on which
both predict the same class, and the mean IoU of both (without background; pixels of classes that a
model has not learned are ignored). Without masks all pairs are equal, as tests hold. Features are
computed once, with preset small (pretrained EfficientNet-Lite0, stride 16), and kept in memory:
0.34 MB per image at 160 pixels.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from nacre.data.dataset import EvalDataset
from nacre.evaluation.metrics import iou_by_class
from nacre.labels.channels import from_background
from nacre.losses.pixel_sums import PixelSums
from nacre.losses.reference import upsample
from nacre.losses.ridge import LinearHead, Sums, from_products, join, solve
from nacre.methods import METHODS, Batch
from nacre.methods.ledger import mask_known
from nacre.models.build import build_network
from nacre.runs.run import open_scenario
from nacre.training.config import build_config

BATCH = 16
Chain = tuple[int, ...]


class Bench:
    """The steps of a scenario on features that are computed once."""

    def __init__(self, scenario: str, root: str | None, sets: Sequence[str]) -> None:
        values = {"scenario": scenario, "method": {"name": "ledger"}}
        values |= {"data": {"root": root}} if root else {}
        self.config = build_config(preset="small", assignments=sets, overrides=values)
        self.data = open_scenario(self.config)
        self.steps = range(self.data.num_steps)
        self.features: dict[str, tuple[Tensor, Tensor]] = {}
        method = METHODS["ledger"](self.config.method, from_background(0, 1))
        classes = len(self.data.scenario.classes.channels(self.steps[-1]))
        crop = self.config.images.crop_size
        self.network = build_network(method.network_config(self.config.model), classes, crop).eval()
        self.images = [self._read(self._plain(step)) for step in self.steps]
        self.tests = self._read(self.data.eval_dataset(self.steps[-1]))

    @cached_property
    def channels(self) -> list[list[int]]:
        """The channels of the classes of each step."""
        ends = [len(self.data.scenario.classes.channels(step)) for step in self.steps]
        return [list(range(a, b)) for a, b in itertools.pairwise([1, *ends])]

    def _plain(self, step: int) -> EvalDataset:
        (one,) = self.data.train_dataset(step).folders
        return EvalDataset(one, self.data.config)

    @torch.no_grad()
    def _read(self, dataset: EvalDataset) -> list[tuple[str, Tensor]]:
        """Return names and targets of a data set; keep the features of its images."""
        found, head = [], self.network.decoder
        for i, name in enumerate(dataset.names):
            image, targets = dataset[i]
            key = f"{dataset.images.split} {name}"
            found.append((key, targets))
            if key not in self.features:
                joined = head.join(self.network.read_maps(image[None]))[0]
                count = head.map_channels
                self.features[key] = joined[:count].clone(), joined[count:, 0, 0].clone()
        return found

    def batches(self, images: list[tuple[str, Tensor]]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for start in range(0, len(images), BATCH):
            names, targets = zip(*images[start : start + BATCH], strict=True)
            maps, rows = zip(*(self.features[name] for name in names), strict=True)
            yield torch.stack(maps), torch.stack(rows), torch.stack(targets)

    def scores(self, head: LinearHead, maps: Tensor, rows: Tensor) -> Tensor:
        """Return the scores of a head on the grid."""
        weight = (head.weight / head.std).float()
        bias = (head.bias - (head.weight / head.std) @ head.mean).float()
        count = maps.shape[1]
        beside = rows @ weight[:, count:].T + bias
        return torch.einsum("kc,nchw->nkhw", weight[:, :count], maps) + beside[..., None, None]

    @lru_cache  # noqa: B019
    def chain(self, order: Chain, masks: bool) -> Sums:
        """Return the rows of steps that are learned one after another."""
        before = self.chain(order[:-1], masks) if order[1:] else None
        head = self.solve(before) if before is not None and masks else None
        sums = PixelSums()
        for maps, rows, targets in self.batches(self.images[order[-1]]):
            if head is not None:
                targets = mask_known(Batch(maps, targets), self.scores(head, maps, rows))
            sums.add(maps, rows, targets)
        found = from_products(order[-1], sums.products())
        return found if before is None else join([before, found])

    def solve(self, sums: Sums) -> LinearHead:
        return solve(sums, self.network.num_classes, self.config.method.ridge)

    def predict(self, sums: Sums) -> list[Tensor]:
        """Return the class maps of the test images."""
        head, found = self.solve(sums), []
        for maps, rows, targets in self.batches(self.tests):
            full = upsample(self.scores(head, maps, rows), targets.shape[1:])
            found += full.argmax(1).to(torch.uint8)
        return found

    def compare(self, what: str, one: Sums, other: Sums) -> None:
        """Print how alike two models are, which have learned the same classes."""
        known = sorted(set(one.channel.tolist()) | {0})
        maps, same, counted = [self.predict(sums) for sums in (one, other)], 0, 0
        confusion = torch.zeros(2, self.network.num_classes, self.network.num_classes)
        for i, (_, targets) in enumerate(self.tests):
            valid = torch.isin(targets, torch.tensor(known, dtype=targets.dtype))
            truth, pair = targets[valid].long(), [each[i][valid].long() for each in maps]
            same, counted = same + int((pair[0] == pair[1]).sum()), counted + len(truth)
            for k, found in enumerate(pair):
                confusion[k] += torch.bincount(
                    truth * confusion.shape[1] + found, minlength=confusion[k].numel()
                ).view(confusion[k].shape)
        means = []
        for each in confusion:
            ious = [value for value in iou_by_class(each)[1:] if value is not None]
            means.append(100 * sum(ious) / len(ious))
        share = 100 * same / max(1, counted)
        print(f"{what:44} same {share:6.2f} %   mean IoU {means[0]:.2f} {means[1]:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario")
    parser.add_argument("--root", help="the data folder")
    parser.add_argument("--set", action="append", default=[], help="key=value")
    given = parser.parse_args()
    torch.set_num_threads(1)
    bench = Bench(given.scenario, given.root, given.set)
    steps = tuple(bench.steps)
    whole = bench.chain(steps, True)
    background = whole.keep(whole.channel == 0).count
    plain = bench.chain(steps, False)
    rest = plain.keep(plain.channel == 0).count
    shares = [f"{100 * (1 - a / b):.1f}" for a, b in zip(background, rest, strict=False)]
    print(f"background that masks leave out, by step, %: {' '.join(shares)}")
    bench.compare("with masks | without", whole, plain)
    for order in itertools.permutations(steps):
        if order != steps:
            bench.compare(f"{steps} | {order}", whole, bench.chain(order, True))
    for step in steps:
        left = tuple(one for one in steps if one != step)
        kept = whole.keep(whole.step != step)
        bench.compare(f"forgot step {step} | from scratch", kept, bench.chain(left, True))
    alone = join([bench.chain((step,), True) for step in steps])
    bench.compare("merged | learned one by one", alone, whole)


if __name__ == "__main__":
    main()
