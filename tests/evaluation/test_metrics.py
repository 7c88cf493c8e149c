import pytest
import torch
from torchmetrics.classification import MulticlassConfusionMatrix

from nacre.evaluation.metrics import compute_metrics, confusion_matrix, iou_by_class, summarize
from nacre.labels.space import LabelSpace
from nacre.scenarios.classes import ClassSchedule

TABLE = ClassSchedule(LabelSpace({1: "a", 2: "b", 3: "c"}), ((1,), (2, 3)))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_the_matrix_is_that_of_torchmetrics(dtype):
    generator = torch.Generator().manual_seed(1)
    truth = torch.randint(0, 6, (3, 17, 19), generator=generator).to(dtype)
    truth[truth == 5] = 255
    predicted = torch.randint(0, 5, (3, 17, 19), generator=generator)
    oracle = MulticlassConfusionMatrix(num_classes=5, ignore_index=255)
    expected = oracle(predicted, truth.long())
    assert torch.equal(confusion_matrix(truth, predicted, 5), expected)


def test_iou_is_intersection_over_union_and_none_where_there_is_no_truth():
    matrix = torch.tensor([[5, 1, 0], [2, 3, 1], [0, 0, 0]])
    assert iou_by_class(matrix) == [pytest.approx(5 / 8), pytest.approx(3 / 7), None]


def test_means_by_group_background_in_and_out():
    matrix = torch.diag(torch.tensor([10, 10, 10, 10]))
    matrix[0, 1] = 10  # background taken for a
    metrics = compute_metrics(TABLE, TABLE.steps, 1, matrix)
    means = metrics["mean_iou"]
    assert metrics["iou"] == {"background": 0.5, "a": 0.5, "b": 1.0, "c": 1.0}
    assert means["old_without_background"] == means["step_0_without_background"] == 0.5
    assert means["new_without_background"] == means["step_1_without_background"] == 1.0
    assert means["all_without_background"] == pytest.approx(2.5 / 3)
    assert means["all_with_background"] == pytest.approx(3 / 4)
    assert metrics["pixel_accuracy"] == pytest.approx(0.8)


def test_joint_training_reports_the_groups_of_the_task():
    merged = TABLE.merged()
    means = compute_metrics(merged, TABLE.steps, 0, torch.eye(4, dtype=torch.int64))["mean_iou"]
    assert {"old_without_background", "step_1_without_background"} <= set(means)


def test_a_class_that_the_truth_never_holds_takes_no_part_in_a_mean():
    matrix = torch.diag(torch.tensor([4, 4, 0, 4]))
    means = compute_metrics(TABLE, TABLE.steps, 1, matrix)["mean_iou"]
    assert means["new_without_background"] == 1.0


def test_forgetting_is_best_earlier_minus_last():
    before = compute_metrics(TABLE, TABLE.steps, 0, torch.tensor([[8, 0], [2, 8]]))
    after = compute_metrics(TABLE, TABLE.steps, 1, torch.diag(torch.tensor([1, 1, 1, 1])))
    after["iou"]["a"] = 0.3
    summary = summarize([before, after])
    assert summary["forgetting"] == {"background": pytest.approx(-0.2), "a": pytest.approx(0.5)}
    assert summary["mean_forgetting_without_background"] == pytest.approx(0.5)
    assert summary["iou_by_step_and_class"][0] == [0.8, 0.8, None, None]


def test_three_steps_are_told_apart():
    three = ClassSchedule(TABLE.space, ((1,), (2,), (3,)))
    eyes = [torch.eye(size, dtype=torch.int64) for size in (2, 3, 4)]
    steps = [compute_metrics(three, three.steps, i, eye) for i, eye in enumerate(eyes)]
    for i, values in enumerate(((0.5,), (0.9, 0.8), (0.3, 0.6, 0.7))):
        steps[i]["iou"] |= dict(zip("abc", values, strict=False))
    summary = summarize(steps)
    found = {name: summary["forgetting"][name] for name in summary["classes"][1:3]}
    assert found == {"a": pytest.approx(0.6), "b": pytest.approx(0.2)}
    assert "c" not in summary["forgetting"]
    assert summary["iou_by_step_and_class"][2] == [1.0, 0.3, 0.6, 0.7]
    matrix = torch.diag(torch.tensor([4, 4, 0, 2]))
    matrix[2, 0] = 4  # b is never found
    means = compute_metrics(three, three.steps, 2, matrix)["mean_iou"]
    assert means["old_without_background"] == pytest.approx(0.5)
    assert means["new_without_background"] == 1.0
    assert means["all_without_background"] == pytest.approx(2 / 3)
