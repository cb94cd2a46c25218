"""What methods of one size share: a network that is as wide as it was made, trained for itself."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

import vnd.nn as nested
from vnd.methods.base import Method, Size, Sizes, rules_of
from vnd.models.initialise import initialise
from vnd.nn import BayesLayer
from vnd.nn.extract import ORIGINS, Keep
from vnd.nn.state import Shape
from vnd.nn.width import Width


class Single(Method):
    """A method whose model has one size; its statistics are those of training, or of a moving average's weights."""

    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """The one that it has, whatever is wanted."""
        shape = getattr(self, "shape", None)
        fraction = getattr(self, "fraction", 1.0)
        return [
            Size("learned", "own shape", None) if shape else Size("uniform", f"{100 * fraction:.4g} %", None, fraction)
        ]

    def show(self, model: nn.Module, x: Tensor) -> None:
        """Run images through the model as its training does, so that BatchNorm sees what it sees there."""
        model(x)

    def extract(self, model: nn.Module, width: Width, keep: Keep = "mean") -> nn.Module:
        """A copy of the network, with or without its posterior: nothing is done to the one in training."""
        return with_means(model) if keep == "mean" else copied(model)


def narrowed(
    network: nn.Module, example: Tensor, method: Any, shape: dict[str, int] | None = None, **options: Any
) -> nn.Module:
    """A network of a method's `fraction` of the width, or of a shape, with a random start of its own.

    It is cut out of the nested form of the wide one, so that its layers are as wide as those that a nested method is
    tested at; `bayesian=True` among the options gives it a posterior over its weights.
    """
    groups = {name: getattr(method, name) for name in ("num_groups", "base") if hasattr(method, name)}
    wide = nested.to_nested(network, example, rules=rules_of(method.rules), **groups, **options)
    width = Shape(shape) if shape else nested.shape(wide, fraction=getattr(method, "fraction", 1.0))
    small = nested.extract(wide, width, "posterior" if options.get("bayesian", True) else "mean", warn=False)
    initialise(small)
    for module in small.modules():
        if isinstance(module, BayesLayer):
            module.reset_noise()
    return small


def copied(model: nn.Module) -> nn.Module:
    """A copy that knows as well what it was cut from, so that `vnd.load` can build it again."""
    new = copy.deepcopy(model)
    if model in ORIGINS:
        ORIGINS[new] = ORIGINS[model]
    return new


def with_means(model: nn.Module) -> nn.Module:
    """A copy of the network with torch's own layers in the place of Bayesian ones."""
    plain = copied(model)
    if plain in ORIGINS:
        ORIGINS[plain] = ORIGINS[plain] | {"keep": "mean"}
    for parent in list(plain.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, BayesLayer):
                setattr(parent, name, module.to_plain())
    return plain
