"""Maps of what is salient: which background is a target of its own, and how that is taken back."""

import numpy as np
import pytest
import torch
from PIL import Image

from nacre.data.saliency import Saliency, split_salient, with_salient
from nacre.errors import NacreError
from nacre.labels.channels import first_channels
from nacre.labels.mapping import LabelPolicy, mapping_for_training
from nacre.labels.space import LabelSpace
from nacre.methods import find_method
from nacre.methods.ssul import unknown_targets
from nacre.runs.run import run_scenario
from nacre.runs.scenario_data import open_scenario
from tiny_runs import tiny_config


def map_file(folder, name, values):
    Image.fromarray(np.asarray(values, np.uint8)).save(folder / f"{name}.png")


@pytest.mark.parametrize("num_classes", [2, 300])
def test_salient_background_and_nothing_else_is_marked_and_split_again(tmp_path, num_classes):
    mask = np.array([[0, 3, 7], [0, 3, 255]], np.uint8)
    map_file(tmp_path, "a", [[9, 9, 9], [0, 0, 9]])
    names = [f"class {i}" for i in range(num_classes)]
    labels = {3: names[1], 7: "an old class: background in this step"}
    policy = LabelPolicy(border="ignored")
    mapping = mapping_for_training(first_channels(names, {}), LabelSpace(labels), policy, labels)
    marked = with_salient(mapping).apply(Saliency(tmp_path).mark(mask, "a"))
    targets, salient = split_salient(torch.from_numpy(marked))
    assert targets.dtype == (torch.uint8 if num_classes == 2 else torch.int16)
    assert targets.tolist() == mapping.apply(mask).tolist()
    assert salient.tolist() == [[True, False, True], [False, False, False]]


def test_missing_and_other_maps_are_one_sentence(tmp_path):
    mask = np.zeros((2, 3), np.uint8)
    with pytest.raises(NacreError, match=r"a.png is missing"):
        Saliency(tmp_path).mark(mask, "a")
    map_file(tmp_path, "a", np.zeros((4, 5)))
    with pytest.raises(NacreError, match="5 x 4, but its image is 3 x 2"):
        Saliency(tmp_path).mark(mask, "a")
    with pytest.raises(NacreError, match="there is no folder"):
        open_scenario(tiny_config(method={"name": "ssul", "saliency": str(tmp_path / "no")}))


def test_ssul_learns_with_maps_and_does_not_share_step_0_with_ssul_without(tmp_path):
    maps = tmp_path / "maps"
    maps.mkdir()
    scenario = {"scenario": "scenes/4-4/overlapped"}
    data = open_scenario(tiny_config(**scenario))
    for name in data.train_index.names:
        salient = np.zeros((32, 32))
        salient[:16] = 255
        map_file(maps, name, salient)
    config = tiny_config(**scenario, method={"name": "ssul", "saliency": str(maps)})
    targets = open_scenario(config).train_dataset(1)[0, 0][1]
    plain, salient = split_salient(targets)
    assert salient[:16].any()
    assert not salient[16:].any()
    found = unknown_targets(plain, 5, salient=salient)
    assert set(found[(plain == 0) & salient].tolist()) == {1}
    assert set(found[(plain == 0) & ~salient].tolist()) == {0}
    run_scenario(config, tmp_path / "run")
    ssul = find_method("ssul")
    assert ssul.step_0_of(config.method) != ssul.step_0_of(ssul.Config())
