"""The network as it was before it learns on: a frozen copy that is asked for its scores."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.foreign.scores import scores_of


class Teacher:
    """A frozen copy of a network, for a training loop of one's own.

    It is no `nn.Module`: as an attribute of one, its parameters are neither trained nor saved.

        teacher = Teacher(model)
        widen(model, 2)
        ...
        loss = unbiased_distillation(model(images), teacher(images))

    Args:
        model: copied as it is now; later changes of it do not change the teacher.

    Raises:
        NacreError: the network cannot be copied.
    """

    def __init__(self, model: nn.Module) -> None:
        try:
            self.model = copy.deepcopy(model).eval().requires_grad_(False)
        except (RuntimeError, TypeError) as error:
            raise NacreError(
                f"{type(model).__name__} cannot be copied ({error}): make the teacher before the "
                "network is wrapped or compiled and outside of a forward pass"
            ) from error

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the scores, N,C,h,w, for what the network would be called with.

        The copy follows the first tensor that it is given to its device.
        """
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        own = next(self.model.parameters(), None)
        if tensors and own is not None and own.device != tensors[0].device:
            self.model.to(tensors[0].device)
        return scores_of(self.model(*args, **kwargs))
