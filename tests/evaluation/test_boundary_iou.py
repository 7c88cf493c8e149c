"""Boundary IoU: judged by outlines, whatever the size of the images and the number of processes."""

import pytest
import torch
from torch import Tensor

from nacre.evaluation.boundary_iou import BoundaryIoU, boundary
from nacre.utils.distributed import Distributed

CPU = torch.device("cpu")


def squares(left: int, size: tuple[int, int] = (60, 80)) -> Tensor:
    """A square of class 1 on class 0."""
    found = torch.zeros(1, *size, dtype=torch.uint8)
    found[:, 20:50, left : left + 30] = 1
    return found


def test_a_boundary_is_what_is_near_something_else_or_the_edge():
    held = squares(0)[0] == 1
    found = boundary(held[None], 2)[0]
    for y, x in torch.cartesian_prod(torch.arange(60), torch.arange(80)).tolist():
        near = torch.ones(64, 84, dtype=torch.bool)  # beyond the image is something else
        near[2:-2, 2:-2] = ~held
        wanted = bool(held[y, x]) and bool(near[y : y + 5, x : x + 5].any())
        assert bool(found[y, x]) == wanted, (y, x)


def test_a_shifted_square_loses_more_of_its_boundary_than_of_its_area():
    metric = BoundaryIoU(2, CPU)
    metric.update(squares(10), squares(11))
    found = metric.compute()[1]
    area = 29 / 31
    width = 2  # 2 % of a diagonal of 100 pixels
    ring = 30 * 30 - (30 - 2 * width) ** 2
    assert found is not None
    assert found < area
    shared = (boundary(squares(10) == 1, width) & boundary(squares(11) == 1, width)).sum()
    assert found == int(shared) / (2 * ring - int(shared))


@pytest.mark.parametrize(("size", "width"), [((10, 12), 1), ((20, 200), 4), ((200, 20), 4)])
def test_the_width_is_a_share_of_the_diagonal_and_a_pixel_at_least(
    size: tuple[int, int], width: int
) -> None:
    truth, found = (torch.zeros(1, *size, dtype=torch.uint8) for _ in range(2))
    truth[:, 1:-1, 1:-1], found[:, 1:-1, 2:-1] = 1, 1
    metric = BoundaryIoU(2, CPU)
    metric.update(truth, found)
    one, other = boundary(truth == 1, width), boundary(found == 1, width)
    assert metric.compute()[1] == int((one & other).sum()) / int((one | other).sum())


def test_a_class_that_is_never_found_and_one_that_is_found_elsewhere_count() -> None:
    metric = BoundaryIoU(3, CPU)
    truth, found = squares(10), squares(10)
    found[found == 1] = 2
    metric.update(truth, found)
    metric.update(found, truth)
    assert metric.compute()[1:] == [0.0, 0.0]


def test_ignored_pixels_and_classes_that_the_truth_never_contains_do_not_count():
    truth, metric = squares(10), BoundaryIoU(3, CPU)
    truth[:, :, :45] = 255
    metric.update(truth, torch.where(truth == 255, 2, truth).to(torch.uint8))
    assert metric.compute() == [1.0, None, None]


def test_batches_and_processes_add_up():
    whole, parts = BoundaryIoU(2, CPU), [BoundaryIoU(2, CPU) for _ in range(2)]
    for i, part in enumerate(parts):
        for metric in (whole, part):
            metric.update(squares(10 + i), squares(12))

    class Two(Distributed):
        def sum(self, values: Tensor) -> Tensor:
            return values + parts[1]._counts

    parts[0].merge(Two(rank=0, world_size=2, device=CPU))
    assert parts[0].compute() == whole.compute()
