"""The methods since 2020 on a real step, each loss put together slowly from its equations."""

import math
from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F

from nacre.losses.distillations import local_pod
from nacre.losses.statistics import FeatureStatistics, draw_features, grid_targets
from nacre.methods import Batch
from nacre.methods.components import fuse, pseudo_labels
from nacre.training.loop import update
from small_steps import NEW, OLD, SIDE, random_images, second_step


class Seen:
    """What a method's second step shows its losses of one batch, after its pseudo-labels."""

    def __init__(self, name, **values):
        self.trainer, _, samples = second_step(name, **values)
        self.method, self.step = self.trainer.method, self.trainer.step
        images, targets = samples[0]
        self.labels = targets
        self.student = self.trainer.student(images, with_stages=self.method.uses_stages)
        self.teacher = self.trainer.forward_teacher(images, self.student)
        valid = float((targets != 255).sum())
        batch = Batch(images, targets, num_valid_pixels=valid)
        self.batch = pseudo_labels(self.method, self.step, batch, self.teacher)
        self.losses = self.method.losses(self.batch, self.student, self.teacher)
        self.valid = valid

    def full(self, logits):
        return F.interpolate(logits, (SIDE, SIDE), mode="bilinear", align_corners=False)


def near(actual, expected):
    actual, expected = (
        actual.detach(),
        expected if isinstance(expected, float) else expected.detach(),
    )
    assert float(actual) == pytest.approx(float(expected), rel=2e-4, abs=1e-6)


def test_plop_is_weighted_cross_entropy_on_pseudo_labels_and_local_pod():
    seen = Seen("plop")
    p = seen.full(seen.teacher.logits).softmax(1)
    entropy = -(p * p.log()).sum(1) / math.log(OLD)
    thresholds = seen.step.thresholds
    certain = entropy < thresholds[p.argmax(1)]
    is_background = seen.labels == 0
    share = (is_background & certain).sum((1, 2)) / is_background.sum((1, 2))
    targets = torch.where(is_background, torch.where(certain, p.argmax(1), 255), seen.labels.long())
    by_pixel = F.cross_entropy(
        seen.full(seen.student.logits), targets, ignore_index=255, reduction="none"
    )
    near(seen.losses["ce"], (by_pixel.sum((1, 2)) * share).sum() / seen.valid)
    merged = seen.student.logits[:, :OLD].clone()
    merged[:, 0] += seen.student.logits[:, OLD:].sum(1)
    layers = [*seen.student.stages, seen.student.decoder_features]
    others = [*seen.teacher.stages, seen.teacher.decoder_features]
    total = sum(0.01 * local_pod(a, b) for a, b in zip(layers, others, strict=True))
    total += 0.0005 * local_pod(merged, seen.teacher.logits)
    near(seen.losses["pod"], math.sqrt((OLD + NEW) / NEW) * total / (len(layers) + 1))


def test_lgkd_moves_the_teachers_background_to_the_class_of_the_label():
    seen = Seen("lgkd", old_weight=3, new_weight=2)
    height, width = seen.student.logits.shape[-2:]
    rows, columns = (torch.arange(n) * SIDE // n for n in (height, width))
    q, p = seen.student.logits.detach().log_softmax(1), seen.teacher.logits.softmax(1)
    total = 0.0
    for n in range(len(q)):
        for i in range(height):
            for j in range(width):
                y = int(seen.labels[n, rows[i], columns[j]])
                if y == 255:
                    continue
                target = [*p[n, :, i, j].tolist(), *[0.0] * NEW]
                if y >= OLD:
                    target[y], target[0] = target[0], 0.0
                loss = -sum(t * float(q[n, c, i, j]) for c, t in enumerate(target))
                total += (2 if y >= OLD else 3) * loss
    cells = seen.valid * height * width / (SIDE * SIDE)
    near(seen.losses["kd"], total / cells)


def test_ssul_calls_background_unknown_and_leaves_old_classes_alone():
    seen = Seen("ssul", pseudo_labels=0.3)
    old = seen.full(torch.cat([seen.teacher.logits, seen.teacher.unknown], 1)).sigmoid()
    best, channel = old.max(1)
    named = (seen.labels == 0) & (best >= 0.3) & (channel > 0) & (channel < OLD)
    targets = torch.where(named, channel, seen.labels.long())
    assert torch.equal(seen.batch.targets.long(), targets)
    logits = seen.full(
        torch.cat(
            [seen.student.logits[:, :1], seen.student.unknown, seen.student.logits[:, OLD:]], 1
        )
    )
    # background never, unknown where nothing is named, then the new classes
    positive = [targets < 0, targets == 0, *(targets == OLD + i for i in range(NEW))]
    terms = F.binary_cross_entropy_with_logits(
        logits, torch.stack(positive, 1).to(logits.dtype), reduction="none"
    )
    counted = (seen.labels != 255).unsqueeze(1)
    near(seen.losses["bce"], (terms * counted).sum() / seen.valid)


def test_dkd_keeps_logits_and_what_speaks_for_and_against_a_class():
    seen = Seen("dkd", weight=2, decomposed_weight=3)
    student, teacher = seen.full(seen.student.logits), seen.full(seen.teacher.logits)
    new = torch.stack([seen.labels == OLD + i for i in range(NEW)], 1).to(student.dtype)
    terms = F.binary_cross_entropy_with_logits(student[:, OLD:], new, reduction="none")
    counted = (seen.labels != 255).unsqueeze(1)
    near(seen.losses["bce"], (terms * counted).sum() / seen.valid)
    old = F.binary_cross_entropy_with_logits(student[:, 1:OLD], teacher[:, 1:].sigmoid())
    near(seen.losses["kd"], 2 * (OLD - 1) * old)
    networks = seen.step.network, seen.step.teacher
    rows = [one.classifier.rows[0].weight[1:OLD].flatten(1) for one in networks]
    features = seen.student.decoder_features, seen.teacher.decoder_features
    for name, part in (("dkd+", torch.Tensor.relu), ("dkd-", lambda x: -(-x).relu())):
        products = [
            part(f.unsqueeze(1) * w[None, :, :, None, None]).sum(2)
            for f, w in zip(features, rows, strict=True)
        ]
        loss = F.binary_cross_entropy_with_logits(products[0], products[1].sigmoid())
        near(seen.losses[name], 3 * (OLD - 1) * loss)


@pytest.mark.parametrize("overlapped", [True, False])
def test_star_draws_what_the_step_lacks_and_counts_background_again(overlapped):
    seen = Seen("star")
    method, height = seen.method, seen.student.logits.shape[-1]
    method.load_state(method.state())
    method.step = replace(seen.step, overlapped=overlapped)
    seen.losses = method.losses(seen.batch, seen.student, seen.teacher)
    stored = method.values["statistics.count"]
    counts = [0.0] * (OLD + 1)
    for images, targets in (random_images([0, 0, 3, 4, 255], 10 + i) for i in range(3)):
        with torch.no_grad():
            logits = seen.step.teacher(images).logits
        cells = grid_targets(targets, (height, height))
        best, channel = logits[:, 1:].max(1)
        said = torch.where(best > 0.5, channel + 1, 0)[cells == 0]
        for c in range(OLD):
            counts[c] += int((said == c).sum())
        counts[-1] += cells.numel()
    background = float(method.values["statistics.background"])
    if overlapped:
        lacking = [max(0.0, float(n) - k) for n, k in zip(stored, counts[1:], strict=False)]
        r = max(0.0, background * (1 - 0.01 * NEW) / counts[0] - 0.5)
    else:
        lacking, r = stored.tolist(), background / counts[0]
    drawn = sum(int(one / 3) for one in lacking)
    per_batch = counts[-1] / 3
    divisor = 1 + drawn / per_batch + r * counts[0] / 3 / per_batch
    new = torch.stack([seen.labels == OLD + i for i in range(NEW)], 1).float()
    terms = F.binary_cross_entropy_with_logits(
        seen.full(seen.student.logits)[:, OLD:],
        new,
        pos_weight=torch.tensor(4.0),
        reduction="none",
    )
    counted = (seen.labels != 255).unsqueeze(1)
    near(seen.losses["bce"], (terms * counted).sum() / seen.valid / divisor)
    best = seen.teacher.logits[:, 1:].max(1).values
    cells = grid_targets(seen.labels, (height, height))
    again = seen.student.logits[:, OLD:].permute(0, 2, 3, 1)[(cells == 0) & (best <= 0.5)]
    near(seen.losses["background"], r * F.softplus(again).sum() / cells.numel() / divisor)
    torch.manual_seed(3)
    replayed = method.penalties(seen.step)["replay"]
    torch.manual_seed(3)
    names = [field.name for field in fields(FeatureStatistics)]
    kept = FeatureStatistics(**{name: method.values[f"statistics.{name}"] for name in names})
    x = draw_features(kept, torch.tensor([int(one / 3) for one in lacking]), non_negative=True)
    rows = seen.step.network.classifier.rows[-1]
    logits = torch.einsum("pd,kd->pk", x, rows.weight.flatten(1)) + rows.bias
    weight_of_drawn = len(x) / per_batch
    near(replayed, weight_of_drawn * F.softplus(logits).mean(0).sum() / divisor)


@pytest.mark.parametrize("name", ["dkd", "star"])
def test_no_gradient_reaches_the_teacher_and_background_stays_silent(name):
    seen = Seen(name)
    sum(seen.losses.values()).backward()
    assert all(value.grad is None for value in seen.step.teacher.parameters())
    head = seen.step.network.classifier.rows[0]
    assert (head.weight[0] == 0).all()
    assert head.bias[0] == 0
    assert head.weight.grad is None or (head.weight.grad[0] == 0).all()


def test_fused_weights_keep_the_rows_of_new_classes():
    seen = Seen("ewf")
    before = seen.step.network.classifier.weight(slice(OLD, None)).detach().clone()
    fuse(seen.method, seen.step)
    assert torch.equal(seen.step.network.classifier.weight(slice(OLD, None)), before)


def test_ssul_with_branches_learns_only_the_new_and_the_unknown_one():
    trainer, before, samples = second_step("ssul", branches=True)
    for sample in samples:
        update(trainer, [sample])
    after = trainer.network.state_dict()
    moved = {key for key, value in before.items() if not torch.equal(value, after[key])}
    assert moved
    assert all(key.startswith("classifier.unknown.") for key in moved)
    # The new branch began as unknown's, with its batch norm, which is frozen.
    for key in ("running_mean", "running_var", "weight", "bias"):
        new = after[f"classifier.rows.1.bn.{key}"]
        assert torch.equal(new, before[f"classifier.unknown.bn.{key}"])
    assert not torch.equal(
        after["classifier.rows.1.conv.weight"], before["classifier.unknown.conv.weight"]
    )


@pytest.mark.parametrize("overlapped", [True, False])
def test_star_counts_old_classes_again_where_no_picture_comes_again(overlapped):
    trainer, _, samples = second_step("star")
    method, step = trainer.method, replace(trainer.step, overlapped=overlapped)
    method.step = step
    before, seen = (method.values[key].clone() for key in ("statistics.count", "step.counts"))
    background = float(method.values["statistics.background"])
    update(trainer, [samples[0]])
    method.end_step(step)
    added = method.values["statistics.count"][: OLD - 1] - before
    assert added.tolist() == (0 * seen[1:-1] if overlapped else seen[1:-1]).tolist()
    kept = 0.98 * background + seen[0] / 2 if overlapped else background + seen[0]
    assert float(method.values["statistics.background"]) == pytest.approx(float(kept))
