"""Graft: old classes come back on the pictures of new ones, by statistics of their features.

After step 0 the backbone and batch norm stay as they are. So do, then, the statistics of its
features, and nothing is computed for the backbone's gradient. What a step's pictures cannot say is
what is *not* the new class: no cow stands in them that is labelled, and no room of a house where
sheep graze. Both are said by grafts (`nacre.losses.grafting`): the mean feature of the new object
is exchanged for one of an old class c, drawn from what was kept of it, and the mean of the rest,
every other time, for a prototype of the old background. Decoder and classifier learn

    ce       eq. 3 and 4 on the picture
    graft    the cross-entropy of the grafted picture: c on the object, background or what the
             teacher is sure of (0.7) around it
    kd       eq. 7 at the decoder's stride, of both, but not where a new class is to be seen

Old classes are lost to a new one that looks like them. An object is therefore exchanged with the
probability that the teacher takes it for an old class; a person, whom it takes for background,
stays what it is, in another place. That every class weighs as much, the weights grow with the
classes that share them, to 5 at most:

    u ce + v graft,    u : v = new classes : strength * old classes,    u + v = their sum or 5

A background in which the new class was hidden gives it up (`give_up`). Kept are 64 vectors per
class and 32 of the background: 82 kB per class with the 320 channels of EfficientNet-Lite0. Of
classes that another method learnt there are none. Grafts of the others would take their place, and
nothing but the distillation on the new object speaks for them: in such a model the losses are
MiB's, `ce` and `kd` everywhere, on a frozen backbone. So are those of fewer than 8 pictures.

A network may be anyone's whose backbone stands apart (`Network.maps`): where that gives several
maps, f is all of them, each with its own cells, and a vector has the means of all.

On features that stay as they are decoder and classifier bear twice the later learning rate
(`LR_SCALE`).

A backbone that has not seen many pictures before step 0 must go on learning (`parts.freeze=nothing`
and `parts.freeze_bn=false`, as the preset demo has it). What is kept is then carried along by the
affine map that the step's own pictures show between the features before and after it (`Drift`).
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from nacre.labels.channels import Growth, ignore_value
from nacre.losses.fused import fused_losses
from nacre.losses.grafting import (
    Drift,
    cell_shares,
    count_nearest,
    draw_means,
    find_prototypes,
    folded_distillation,
    give_up,
    graft_maps,
    map_means,
    old_share,
    size_of,
    stack,
)
from nacre.losses.pseudo_labels import teacher_view
from nacre.methods.base import (
    Batch,
    Freeze,
    Method,
    MethodConfig,
    NewRows,
    ParamGroup,
    Step,
    label_cross_entropy,
    require_teacher,
)
from nacre.models.network import Network, Output

VECTORS = 64
"""Kept of a class."""
PROTOTYPES = 32
"""Of the background."""
SAMPLE = 8192
"""Cells of the background that its prototypes are found from."""
SURE = 0.7
"""How sure the teacher must be of what it names around a grafted object."""
CARRIED = ("classes.vectors", "background.prototypes")
"""What is kept of features, and moves with them."""
INSIDE = 0.7
"""The share of a cell from which on it is a class's."""
GREATEST = 5.0
"""What the weights of picture and graft may add up to."""
LR_SCALE = 2.0
"""Learning rate after step 0 over the config's, where the backbone is frozen."""
FEWEST = 8
"""Pictures without which there are no grafts: around the means of so few all is theirs."""
UNKNOWN = -1
"""The count of a class that another method learnt, or of which no pixel was seen."""

Means = tuple[list[Tensor], list[Tensor]]
"""Of a class: vectors of its objects, and the cells that they cover."""


class GraftConfig(MethodConfig):
    """How much old classes weigh, by grafts and by distillation."""

    name: Literal["graft"] = Field("graft", description="statistics of old classes as grafts")
    strength: float = Field(
        0.75, ge=0, description="weight of a grafted old class over that of a new one"
    )
    weight: float = Field(10.0, ge=0, description="weight of the distillation")

    freeze: Freeze = ("backbone", "batch_norm")
    init: NewRows = "background"


class Graft(Method):
    """Exchanges the means of pictures for those of old classes."""

    name = "graft"
    Config = GraftConfig
    # The network of the demo starts from nothing: four classes are not all that its features need.
    presets: ClassVar[dict[str, dict[str, Any]]] = {"demo": {"freeze": []}}
    tunable = ("strength",)
    uses_teacher = True
    needs = frozenset({"backbone"})
    unsure = "kept"
    persistent_state = frozenset({"classes", "background"})
    config: GraftConfig

    def __init__(self, config: Any, growth: Growth) -> None:
        super().__init__(config, growth)
        self.tables: dict[str, Tensor] = {}
        self._drawable = torch.zeros(0, dtype=torch.int64)

    @classmethod
    def hides_old(cls, config: MethodConfig) -> bool:
        """Say that its cross-entropy does."""
        return True

    def param_groups(self, step: Step, groups: list[ParamGroup]) -> list[ParamGroup]:
        """Let decoder and classifier learn faster on features that stay as they are."""
        if not (self.num_old and self.freezes_backbone):
            return groups
        return [{**group, "lr_scale": LR_SCALE * group["lr_scale"]} for group in groups]

    def begin_step(self, step: Step) -> None:
        """Find the classes of which grafts are drawn: none if of one class nothing is known."""
        self.step = step
        counts = self.tables.get("classes.counts", torch.full((self.num_old,), UNKNOWN)).cpu()
        is_few = step.num_images is not None and step.num_images < FEWEST
        drawable = (counts > 0) & (counts != UNKNOWN).all() & (not is_few)
        self._drawable = drawable.nonzero().flatten().to(step.dist.device)
        self.tables = {key: value.to(step.dist.device) for key, value in self.tables.items()}

    @torch.no_grad()
    def survey(self, step: Step) -> None:
        """Let the background give up what the new classes explain."""
        centers = self.tables.get("background.prototypes")
        if not self.num_old or centers is None:
            return
        assert step.teacher is not None
        explained = torch.zeros(step.num_new, len(centers), device=centers.device)
        for batch in step.batches():
            features = _stacked(step.teacher, batch)
            cells = features.permute(0, 2, 3, 1).flatten(0, 2)
            for i, mask in enumerate(self._new_masks(batch)):
                inside = (cell_shares(mask, size_of(features)) >= INSIDE).float().flatten()
                explained[i] += count_nearest(cells, centers, inside)
        weights = self.tables["background.weights"]
        self.tables["background.weights"] = give_up(weights, step.dist.sum(explained))

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the losses of the pictures and of their grafts."""
        if not self.num_old:
            return label_cross_entropy(batch, student)
        seen = require_teacher(teacher)
        labeled = fused_losses(
            student.logits,
            batch.targets,
            ce="unbiased",
            num_old=self.num_old,
            may_be=batch.may_be,
            num_pixels=batch.num_valid_pixels,
        )["ce"]
        shares = cell_shares(self._is_new(batch.data_targets), size_of(student.logits))
        has_grafts = len(self._drawable) > 0
        distilled = 1 - shares if has_grafts else torch.ones_like(shares)
        kd = folded_distillation(
            student.logits, seen.logits, distilled, has_background=student.has_background
        )
        if not has_grafts:
            return {"ce": labeled, "kd": self.config.weight * kd}
        new, old = self.step.num_new, self.config.strength * len(self._drawable)
        scale = min(1.0, GREATEST / (new + old))
        graft_ce, graft_kd = self._graft_losses(batch, student, seen, shares)
        return {
            "ce": scale * new * labeled,
            "graft": scale * old * graft_ce,
            "kd": self.config.weight * (kd + graft_kd),
        }

    def _graft_losses(
        self, batch: Batch, student: Output, seen: Output, shares: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return cross-entropy and distillation of a batch whose means were exchanged."""
        network, teacher = self.step.network, self.step.teacher
        assert teacher is not None
        maps = [one.float() for one in network.maps(student)]
        is_exchanged, grafted, targets = self._grafts(batch, seen, shares, maps)
        precision = _precision_of(seen, teacher.maps(seen))
        with precision:
            logits = network.decode_maps(grafted, batch.images, student).logits
        ce = fused_losses(logits, targets, ce="plain", num_pixels=targets.numel())["ce"]
        # Shifted alike: the teacher's features are others where the backbone learns
        triples = zip(teacher.maps(seen), grafted, maps, strict=True)
        shifted = [was.float() + (new - own) for was, new, own in triples]
        with torch.no_grad(), precision:
            wanted = teacher.decode_maps(shifted, batch.images, seen).logits
        distilled = torch.where(is_exchanged[:, None, None], torch.ones_like(shares), 1 - shares)
        kd = folded_distillation(logits, wanted, distilled, has_background=student.has_background)
        return ce, kd

    def _grafts(
        self, batch: Batch, seen: Output, shares: Tensor, maps: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor], Tensor]:
        """Return of which pictures the object is exchanged, their maps, and what they show."""
        dist = self.step.dist
        # All processes draw for all pictures, and each takes its own: what is learnt does not
        # depend on how many there are.
        count, device = len(shares), shares.device
        total, own = count * dist.world_size, slice(dist.rank * count, (dist.rank + 1) * count)
        drawn = torch.randint(len(self._drawable), (total,), device=device)[own]
        noise = torch.randn(total, VECTORS, device=device)[own]
        places, chances, sides = torch.rand(3, total, device=device)[:, own]
        classes = self._drawable[drawn]
        is_exchanged = chances < old_share(seen.logits, shares)
        kept, counts = self.tables["classes.vectors"], self.tables["classes.counts"]
        objects = draw_means(kept, counts, classes, noise)
        given = batch.data_targets
        is_new = self._is_new(given)
        over_maps = self.step.network.over_maps(is_new)
        covered = [cell_shares(over_maps, size_of(one)) for one in maps]
        objects = torch.where(is_exchanged[:, None], objects, map_means(maps, covered))
        own_rest = map_means(maps, [1 - one for one in covered])
        rest, is_kept = self._draw_rest(own_rest, places, sides)
        around = self._targets_around(batch, seen, is_kept)
        objects_are = torch.where(is_exchanged[:, None, None], (classes + 1)[:, None, None], given)
        targets = torch.where(is_new, objects_are, around).to(given.dtype)
        return is_exchanged, graft_maps(maps, covered, objects, rest), targets

    def _draw_rest(self, own: Tensor, places: Tensor, sides: Tensor) -> tuple[Tensor, Tensor]:
        """Return the means of what is around the objects, and whether they are a picture's own."""
        is_kept = sides < 0.5
        if "background.weights" not in self.tables:
            return own, torch.ones_like(is_kept)
        ends = self.tables["background.weights"].cumsum(0)
        which = torch.searchsorted(ends, places * ends[-1]).clamp(max=len(ends) - 1)
        return torch.where(
            is_kept[:, None], own, self.tables["background.prototypes"][which]
        ), is_kept

    def _targets_around(self, batch: Batch, seen: Output, is_kept: Tensor) -> Tensor:
        """Return what is around the objects: a background, or what the teacher is sure of."""
        given, ignored = batch.data_targets, ignore_value(batch.data_targets)
        height, width = given.shape[-2:]
        view = teacher_view(seen.logits, (height, width), "probability")
        named = torch.where(view.scores >= SURE, view.channels, ignored).to(given.dtype)
        kept, sure = is_kept[:, None, None], batch.sure_targets(self.growth.first_new)
        around = torch.where(kept, named, torch.zeros_like(given))
        # A label of an old class holds as long as what it labels is there.
        return torch.where(sure == 0, around, torch.where(kept, sure, ignored))

    def _is_new(self, targets: Tensor) -> Tensor:
        return (targets >= self.growth.first_new) & (targets != ignore_value(targets))

    def _new_masks(self, batch: Batch) -> list[Tensor]:
        """Return where in the maps each new class is labelled."""
        channels = range(self.growth.first_new, self.step.num_classes)
        return [self.step.network.over_maps(batch.targets == channel) for channel in channels]

    @torch.no_grad()
    def end_step(self, step: Step) -> None:
        """Keep vectors of the new classes, and once prototypes of the background."""
        network: Network = step.network.eval()
        self._carry(step, network)
        wants_background = "background.weights" not in self.tables
        found: list[Means] = [([], []) for _ in range(self.growth.first_new, step.num_classes)]
        cells: list[Tensor] = []
        for batch in step.batches():
            output = network(batch.images)
            maps = [one.float() for one in network.maps(output)]
            features = stack(maps)
            for (vectors, areas), mask in zip(found, self._new_masks(batch), strict=True):
                area = cell_shares(mask, size_of(features)).sum((1, 2)).cpu()
                shares = [cell_shares(mask, size_of(one)) for one in maps]
                vectors.append(map_means(maps, shares).cpu()[area > 0])
                areas.append(area[area > 0])
            if wants_background:
                cells.append(_background_cells(step, batch, features, output.logits).cpu())
        self._keep_classes(step, [_largest(*means) for means in found])
        if wants_background:
            sample = torch.cat(step.dist.all(torch.cat(cells)))
            if len(sample):
                prototypes, weights = find_prototypes(sample, PROTOTYPES)
                self.tables |= {"background.prototypes": prototypes, "background.weights": weights}

    def _carry(self, step: Step, network: Network) -> None:
        """Take what is kept along with a backbone that learnt."""
        kept = {key: self.tables[key] for key in CARRIED if key in self.tables}
        if step.teacher is None or not kept or self.freezes_backbone:
            return
        drift = Drift(kept[CARRIED[0]].shape[-1])
        for batch in step.batches():
            drift.add(_stacked(step.teacher, batch), _stacked(network, batch))
        move = drift.solve(step.dist.sum)
        self.tables |= {key: move(table.cpu()) for key, table in kept.items()}
        vectors, counts = self.tables[CARRIED[0]], self.tables["classes.counts"].cpu()
        vectors[torch.arange(VECTORS) >= counts[:, None]] = 0

    def _keep_classes(self, step: Step, found: list[Tensor]) -> None:
        """Add some vectors of each new class to those of the old ones."""
        first = self.growth.first_new - 1
        kept = torch.zeros(first + len(found), VECTORS, found[0].shape[1])
        counts = torch.full((first + len(found),), UNKNOWN)
        for key, table in (("classes.vectors", kept), ("classes.counts", counts)):
            if key in self.tables:
                table[:first] = self.tables[key].cpu()
        for i, own in enumerate(found, start=first):
            parts = step.dist.all(own[:VECTORS])
            # As many of each process, or what it has
            turns = torch.cat([torch.arange(len(part)) for part in parts])
            vectors = torch.cat(parts)[turns.argsort(stable=True)][:VECTORS]
            # In an order of their own, not that of processes
            vectors = vectors[vectors[:, 0].argsort()]
            kept[i, : len(vectors)], counts[i] = vectors, len(vectors) or UNKNOWN
        self.tables |= {"classes.vectors": kept, "classes.counts": counts}

    def state(self) -> dict[str, Tensor]:
        """Return what is kept of classes and background."""
        return dict(self.tables)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take it back."""
        self.tables = dict(state)


def _stacked(network: Network, batch: Batch) -> Tensor:
    """Return the features of a batch as one map."""
    return stack([one.float() for one in network.maps(network(batch.images))])


def _precision_of(output: Output, maps: Sequence[Tensor]) -> torch.autocast:
    """Return what lets a decoder compute in the precision in which it made an output of maps."""
    seen = (output.decoder_features, *maps)  # the first of other libraries' networks if it is a map
    halves = (one.dtype for one in seen if one is not None and one.dtype.itemsize == 2)
    dtype = next(halves, None)
    kind = output.logits.device.type
    return torch.autocast(kind, dtype or torch.bfloat16, enabled=dtype is not None)


def _largest(vectors: list[Tensor], areas: list[Tensor]) -> Tensor:
    """Return the vectors of objects of a cell and more; all of them if none is so large."""
    means, is_large = torch.cat(vectors), torch.cat(areas) >= 1
    return means[is_large] if is_large.any() else means


def _background_cells(step: Step, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
    """Return features of some background cells of each picture, first of those taken for it."""
    size = size_of(features)
    labeled = step.network.over_maps(batch.targets == 0)
    is_background = (cell_shares(labeled, size) >= 0.95).flatten(1).cpu()
    seen = logits.argmax(1) != 0
    if size_of(seen) == size_of(batch.targets):  # scores of pictures that were continued are cut
        seen = step.network.over_maps(seen)
    is_doubtful = (cell_shares(seen, size) > 0).flatten(1).cpu()
    cells = is_background.shape[1]
    pictures = step.num_images or step.iterations_per_epoch * len(features) * step.dist.world_size
    # The first of a fixed random order of the cells, for each picture
    rank = torch.randperm(cells, generator=torch.Generator().manual_seed(0))
    rank = rank + cells * is_doubtful + 2 * cells * ~is_background
    order = rank.argsort(1)[:, : min(-(-SAMPLE // pictures), cells)]
    holds = is_background.gather(1, order)
    picked = features.flatten(2).cpu().gather(2, order[:, None].expand(-1, features.shape[1], -1))
    return picked.permute(0, 2, 1)[holds]
