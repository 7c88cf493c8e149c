"""What may hide in an image's background is not taught to be absent there, by any method."""

from dataclasses import replace

import pytest
import torch

from nacre.losses.statistics import grid_targets
from nacre.methods import METHODS, Batch
from nacre.methods.components import pseudo_labels
from small_steps import NEW, OLD, may_be, passes, random_images, second_step

ON_LABELS = {"ce", "bce", "background"}


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("joint", "ledger")])
def test_a_new_class_that_may_hide_is_not_pushed_down(name):
    trainer, _, samples = second_step(name)
    images = samples[0][0]
    blank = torch.zeros_like(samples[0][1])

    def slopes(hidden):
        student = trainer.student(images, with_stages=trainer.method.uses_stages)
        teacher = trainer.forward_teacher(images, student)
        batch = Batch(images, blank, float(blank.numel()), may_be(hidden))
        batch = pseudo_labels(trainer.method, trainer.step, batch, teacher)
        if batch.weights is not None:  # as if the teacher had been sure of something everywhere
            batch = replace(batch, targets=blank, weights=torch.ones(len(images)))
        losses = trainer.method.losses(batch, student, teacher)
        guided = {"kd"} if name == "lgkd" else set()
        total = sum(losses[key] for key in losses.keys() & (ON_LABELS | guided))
        (gradient,) = torch.autograd.grad(total, student.logits, allow_unused=True)
        return torch.zeros(1, OLD + NEW, 1, 1) if gradient is None else gradient

    hidden = torch.zeros(len(images), OLD + NEW, dtype=torch.bool)
    assert (slopes(hidden)[:, OLD:] > 0).any(), "where nothing hides, background is no new class"
    hidden[:, OLD:] = True
    assert (slopes(hidden)[:, OLD:] <= 1e-7).all()


def test_background_in_which_a_new_class_may_hide_is_not_sure():
    targets = torch.tensor([[[0, 1, 3, 255]], [[0, 1, 3, 255]]], dtype=torch.uint8)
    hidden = torch.tensor([[False, True, True, False], [False, False, False, True]])
    batch = Batch(torch.zeros(2, 3, 1, 4), targets, may_be=may_be(hidden))
    assert batch.sure_targets(3).tolist() == [[[0, 1, 3, 255]], [[255, 1, 3, 255]]]
    assert replace(batch, may_be=None).sure_targets(3) is targets


def test_background_that_a_teacher_is_sure_of_hides_no_old_class():
    trainer, _, samples = second_step("plop")
    images, targets = samples[0]
    student = trainer.student(images, with_stages=True)
    teacher = trainer.forward_teacher(images, student)
    hidden = torch.ones(len(images), OLD + NEW, dtype=torch.bool)
    batch = Batch(images, targets, 1.0, may_be(hidden))
    batch = pseudo_labels(trainer.method, trainer.step, batch, teacher)
    assert batch.hidden is not None
    assert not batch.hidden[:, 1:OLD].any()
    assert batch.hidden[:, OLD:].all()


def test_star_draws_no_features_of_what_old_pictures_show():
    trainer, _, _ = second_step("star")
    kept = [random_images([1, 1, 2, 3, 255], 20)]
    step = replace(trainer.step, given=lambda: passes(kept))
    trainer.method.begin_step(step)
    side = trainer.student(kept[0][0]).logits.shape[-1]
    shown = grid_targets(kept[0][1], (side, side))
    counts = trainer.method.state()["step.counts"]
    assert counts[:OLD].tolist() == [0, int((shown == 1).sum()), int((shown == 2).sum())]
    assert counts[1] > 0
