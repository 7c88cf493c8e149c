"""Small networks, each with one property of real ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 5


def body(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 1)
    )


class Small(nn.Module):
    """Two convolutions and a scoring layer; subclasses have other outputs."""

    def __init__(self, score: nn.Module, width: int = 6) -> None:
        super().__init__()
        self.body = body(width)
        self.score = score

    def scores(self, images: Tensor) -> Tensor:
        scores: Tensor = self.score(self.body(images).relu())
        return F.interpolate(scores, images.shape[-2:], mode="bilinear")

    def forward(self, images: Tensor) -> Any:
        return self.scores(images)


class Tuple(Small):
    def forward(self, images: Tensor) -> Any:
        return self.scores(images), images


class Out(Small):
    """torchvision's: a dictionary with auxiliary scores in it."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(6, CLASSES, 1))
        self.aux = nn.Conv2d(6, CLASSES, 3, padding=1)

    def forward(self, images: Tensor) -> Any:
        return {"out": self.scores(images), "aux": self.aux(self.body(images))}


@dataclass
class Answer:
    logits: Tensor
    loss: Tensor | None = None


class Logits(Small):
    """transformers': an object, and an auxiliary head that only its own loss uses."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(6, CLASSES, 1))
        self.auxiliary_head = nn.Conv2d(6, CLASSES, 1)

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        scores, auxiliary = self.scores(images), self.auxiliary_head(self.body(images))
        loss = None
        if labels is not None:
            small = labels[:, ::2, ::2]
            loss = F.cross_entropy(scores, labels) + F.cross_entropy(auxiliary, small)
        return Answer(scores, loss)


class Sum(Small):
    """lraspp's: two layers whose scores are added, one of them from finer features."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__(nn.Conv2d(6, CLASSES, 1, bias=bias))
        self.fine = nn.Conv2d(3, CLASSES, 3, padding=1, bias=bias)

    def forward(self, images: Tensor) -> Any:
        return self.scores(images) + self.fine(images)


class LinearHead(Small):
    """A linear layer over tokens, which are turned into a map afterwards."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, CLASSES))
        self.num_classes = CLASSES

    def forward(self, images: Tensor) -> Any:
        features = self.body(images)
        tokens = self.score(features.flatten(2).transpose(1, 2))
        return tokens.transpose(1, 2).view(-1, self.num_classes, *features.shape[-2:])


class Fcn(Small):
    """The scores are upsampled by a learned transposed convolution from scores to scores."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(6, CLASSES, 1))
        self.up = nn.ConvTranspose2d(CLASSES, CLASSES, 4, 2, 1)

    def forward(self, images: Tensor) -> Any:
        return self.up(self.score(self.body(images)))


class Deep(Small):
    """Inner layers have as many outputs as there are classes."""

    def __init__(self, classes: int = CLASSES, *, relu: bool = True) -> None:
        super().__init__(nn.Conv2d(classes, classes, 1), width=classes)
        self.between = nn.Conv2d(classes, classes, 1)
        self.norm = nn.InstanceNorm2d(classes)
        self.relu = relu

    def forward(self, images: Tensor) -> Any:
        x = self.norm(self.body(images))
        x = self.between(x)
        return self.score(x.relu() if self.relu else x)


class Tempered(Small):
    def forward(self, images: Tensor) -> Any:
        return 4 * self.scores(images)


class LogSoftmax(Small):
    def forward(self, images: Tensor) -> Any:
        return self.scores(images).log_softmax(1)


def conv(*, bias: bool = True) -> nn.Module:
    return nn.Conv2d(6, CLASSES, 1, bias=bias)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], dict[str, float], list[str]]] = {
    # how to make it, the main layers with their factors, the auxiliary layers
    "tensor": (lambda: Small(conv()), {"score": 1}, []),
    "3x3": (lambda: Small(nn.Conv2d(6, CLASSES, 3, padding=1)), {"score": 1}, []),
    "no bias": (lambda: Small(conv(bias=False)), {"score": 1}, []),
    "transposed": (lambda: Small(nn.ConvTranspose2d(6, CLASSES, 4, 2, 1)), {"score": 1}, []),
    "tuple": (lambda: Tuple(conv()), {"score": 1}, []),
    "out": (Out, {"score": 1}, ["aux"]),
    "logits": (Logits, {"score": 1}, ["auxiliary_head"]),
    "sum": (Sum, {"score": 1, "fine": 1}, []),
    "sum without bias": (lambda: Sum(bias=False), {"score": 1, "fine": 1}, []),
    "linear": (LinearHead, {"score": 1}, []),
    "fcn": (Fcn, {"up": 1}, []),
    "inner layers of as many outputs": (Deep, {"score": 1}, []),
    "two classes": (lambda: Deep(2, relu=False), {"score": 1}, []),
    "temperature": (lambda: Tempered(conv()), {"score": 4}, []),
    "log-softmax": (lambda: LogSoftmax(conv()), {"score": 1}, []),
}


def make(name: str) -> nn.Module:
    """A network as after training: its norms have statistics, its scores differ."""
    torch.manual_seed(0)
    network = NETWORKS[name][0]()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(2)
        for _ in range(20):
            network(torch.randn(4, 3, 16, 16))
    return network
