"""Small weight files of every layout: loaded completely and correctly, or not at all."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.norm import ABN, InPlaceABN, NormFactory
from nacre.models.resnet import ResNet
from nacre.models.weights import convert_norms, from_release_name, load_backbone

NAMES = Path(__file__).parent / "resnet101_names.txt"
BLOCKS = (3, 4, 6, 3)
WIDTH = 4
BN: NormFactory = partial(ABN, activation="relu")
LEAKY: NormFactory = partial(ABN, activation="leaky_relu")
IABN: NormFactory = partial(InPlaceABN, activation="leaky_relu")

State = dict[str, Tensor]


def torchvision_state(*, positive: bool = False) -> State:
    """A small ResNet-50 in torchvision's names, with a classifier, as trained as can be made."""
    generator = torch.Generator().manual_seed(0)
    state: State = {}

    def conv(name: str, outputs: int, inputs: int, size: int) -> None:
        scale = (2 / (inputs * size**2)) ** 0.5
        state[f"{name}.weight"] = scale * torch.randn(
            outputs, inputs, size, size, generator=generator
        )

    def norm(name: str, channels: int) -> None:
        low = 0.1 if positive else -0.5
        state[f"{name}.weight"] = torch.rand(channels, generator=generator) + low
        for key in ("bias", "running_mean"):
            state[f"{name}.{key}"] = torch.randn(channels, generator=generator) / 4
        state[f"{name}.running_var"] = torch.rand(channels, generator=generator) + 0.5
        state[f"{name}.num_batches_tracked"] = torch.tensor(7)

    conv("conv1", WIDTH, 3, 7)
    norm("bn1", WIDTH)
    inputs = WIDTH
    for stage, blocks in enumerate(BLOCKS):
        width = WIDTH << stage
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            shapes = ((width, inputs, 1), (width, width, 3), (4 * width, width, 1))
            for number, shape in enumerate(shapes, 1):
                conv(f"{name}.conv{number}", *shape)
                norm(f"{name}.bn{number}", shape[0])
            if block == 0:
                conv(f"{name}.downsample.0", 4 * width, inputs, 1)
                norm(f"{name}.downsample.1", 4 * width)
            inputs = 4 * width
    state["fc.weight"], state["fc.bias"] = torch.randn(10, inputs), torch.randn(10)
    return state


def reference(state: State, x: Tensor, *, abn: bool, slope: float) -> Tensor:
    """ResNet-50 at stride 32 as a plain function of a state in torchvision's names."""

    def norm(name: str, y: Tensor) -> Tensor:
        w, b, mean, var = (
            state[f"{name}.{k}"] for k in ("weight", "bias", "running_mean", "running_var")
        )
        return F.batch_norm(y, mean, var, w.abs() + 1e-5 if abn else w, b)

    def conv(name: str, y: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        return F.conv2d(y, weight, None, stride, weight.shape[-1] // 2)

    act = partial(F.leaky_relu, negative_slope=slope)
    x = F.max_pool2d(act(norm("bn1", conv("conv1", x, 2))), 3, 2, 1)
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            y = act(norm(f"{name}.bn1", conv(f"{name}.conv1", x)))
            y = act(norm(f"{name}.bn2", conv(f"{name}.conv2", y, stride)))
            y = norm(f"{name}.bn3", conv(f"{name}.conv3", y))
            if block == 0:
                x = norm(f"{name}.downsample.1", conv(f"{name}.downsample.0", x, stride))
            x = act(y + x)
    return x


def release_name(name: str) -> str:
    """The in-place ABN release's name for a torchvision name, written the other way round."""
    parts = name.split(".")
    if parts[0] == "fc":
        return f"module.classifier.{name}"
    if not parts[0].startswith("layer"):
        return f"module.mod1.{name}"
    block = f"module.mod{int(parts[0][5:]) + 1}.block{int(parts[1]) + 1}"
    if parts[2] == "downsample":
        return f"{block}.{('proj_conv', 'proj_bn')[int(parts[3])]}.{parts[4]}"
    return f"{block}.convs.{parts[2]}.{parts[3]}"


def pixels() -> Tensor:
    return torch.randn(2, 3, 65, 97, generator=torch.Generator().manual_seed(1))


def assert_same(backbone: nn.Module, expected: Tensor) -> None:
    got = backbone.eval()(pixels())
    assert expected.std() > 1e-3
    assert (got - expected).abs().max() < 1e-5 * expected.abs().max()


def write(path: Path, state: State, form: str) -> Path:
    if form == "timm":
        path = path / "model.safetensors"
        save_file(state, path)
        return path
    path = path / f"{form}.pth.tar"
    if form == "torchvision":
        torch.save(state, path)
    else:
        renamed = {release_name(k): v for k, v in state.items() if "num_batches" not in k}
        torch.save({"state_dict": renamed, "epoch": 90, "arch": "resnet"}, path)
    return path


@pytest.mark.parametrize(("norm", "slope"), [(BN, 0.0), (LEAKY, 0.01), (IABN, 0.01)])
@pytest.mark.parametrize("form", ["torchvision", "timm", "release"])
def test_every_layout_loads_into_every_norm(
    tmp_path: Path, form: str, norm: NormFactory, slope: float
) -> None:
    state = torchvision_state()
    backbone = ResNet(50, stride=32, norm=norm, width=WIDTH)
    load_backbone(backbone, "resnet50", str(write(tmp_path, state, form)))
    expected = reference(state, pixels(), abn=form == "release", slope=slope)
    assert_same(backbone, expected)


def test_conversion_holds_in_training() -> None:
    """Turning signs before the norm keeps the function with batch statistics too."""
    plain = ResNet(18, norm=LEAKY, width=WIDTH)
    for module in plain.modules():
        if isinstance(module, ABN):
            nn.init.uniform_(module.weight, -1.5, 0.5)
    own = ResNet(18, norm=IABN, width=WIDTH)
    own.load_state_dict(convert_norms(own, plain.state_dict(), from_abn=False))
    x = pixels()
    torch.testing.assert_close(own(x), plain(x), rtol=1e-3, atol=1e-3)


def test_scales_below_eps_become_eps() -> None:
    norm = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), InPlaceABN(3))
    state = norm.state_dict() | {"1.weight": torch.tensor([0.0, -1e-6, 2.0])}
    norm.load_state_dict(convert_norms(norm, state, from_abn=False))
    gain = norm[1].gain()  # type: ignore[operator]
    torch.testing.assert_close(gain, torch.tensor([1e-5, 1e-5, 2.0]))


def test_negative_scale_without_a_convolution_before() -> None:
    norm = nn.Sequential(nn.ReLU(), InPlaceABN(2))
    state = norm.state_dict() | {"1.weight": torch.tensor([-1.0, 1.0])}
    with pytest.raises(NacreError, match=r"1\.weight has 1 negative .* use norm 'abn'"):
        convert_norms(norm, state, from_abn=False)


def test_release_names_cover_the_real_network() -> None:
    names = [line.split()[0] for line in NAMES.read_text().splitlines()]
    assert [from_release_name(release_name(n).removeprefix("module.")) for n in names] == names


def test_all_problems_in_one_message_and_nothing_loaded(tmp_path: Path) -> None:
    state = torchvision_state()
    del state["bn1.bias"], state["layer4.2.conv3.weight"]
    state["layer1.0.se.weight"] = torch.ones(2)
    state["layer2.0.conv1.weight"] = torch.ones(3, 5, 1, 1)
    backbone = ResNet(50, width=WIDTH)
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    path = write(tmp_path, state, "torchvision")
    with pytest.raises(NacreError) as caught:
        load_backbone(backbone, "resnet50", str(path))
    for part in (
        str(path),
        "missing bn1.bias",
        "missing layer4.2.conv3.weight",
        "unexpected layer1.0.se.weight",
        "layer2.0.conv1.weight is 3 x 5 x 1 x 1 instead of 8 x 16 x 1 x 1",
    ):
        assert part in str(caught.value)
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, before[name]), name


class Foreign:
    """Something that is not a tensor."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not a weight file", "is damaged or not a weight file"),
        (b"", "is damaged or not a weight file"),
        (Foreign(), "Foreign beside tensors, so it was not opened"),
        ([torch.ones(1)], "contains list instead of tensors by name"),
        ({"epoch": 3, "weight": torch.ones(1)}, "contains values that are not tensors: epoch"),
        ({"encoder.weight": torch.ones(1)}, r"unknown names \(encoder.weight"),
    ],
    ids=["bytes", "empty", "code", "list", "numbers", "names"],
)
def test_foreign_files(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "weights.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(NacreError, match=message) as caught:
        load_backbone(ResNet(18, width=WIDTH), "resnet18", str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_truncated_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"whole.{suffix}"
    state = torchvision_state()
    save_file(state, path) if suffix == "safetensors" else torch.save(state, path)
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(NacreError, match=str(path)):
        load_backbone(ResNet(50, width=WIDTH), "resnet50", str(path))


def test_missing_file() -> None:
    with pytest.raises(NacreError, match="there is no weight file nowhere"):
        load_backbone(ResNet(18, width=WIDTH), "resnet18", "nowhere.pth")
