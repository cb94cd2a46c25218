"""A nested network cut down to a smaller nested one, with its normalisation: what is small enough to ship."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vnd._files import write_text
from vnd._manifest import checksum
from vnd.distributions import BernoulliChain
from vnd.nn import Rule, Shape, to_nested
from vnd.nn.extract import exact
from vnd.nn.ordering import OrderingUnit
from vnd.nn.state import NestedState, state_of, unwrap
from vnd.pretrained import CARD
from vnd.pretrained.from_pixels import FromPixels, plain_of
from vnd.serialization import save

PREFIX = "network."


@torch.no_grad()
def cut(net: nn.Module, shape: Shape, said: Mapping[str, Any], widths: Iterable[Shape] = ()) -> FromPixels:
    r"""Cut a nested network down to a shape that stays nested, and put its normalisation in front.

    Of every unit the first groups are left, each as large as it was, with the keep-logits they had. So
    $P(z_i = 1)$ is the same for each of them, and any smaller width is bit for bit the network that it was.

    Args:
        net: A nested network of `vnd.models`, on any device.
        shape: What is left of it.
        said: "mean", "std", "image", "classes" and "card"; see `FromPixels`.
        widths: Shapes within that whose BatchNorm statistics go along, of means and of samples; those of `shape` do.
    """
    root, state = unwrap(net), state_of(net)
    if state.rows or state.elements:
        raise ValueError("cut: a network whose input rows or single weights are ordered has no smaller nested form")
    if state.options["rescale"]:
        raise ValueError("cut: a network with rescale='expected' has no smaller nested form")
    if empty := next((unit for unit, groups in shape.items() if groups == 0), None):
        raise ValueError(f"cut: the shape must keep a group of each unit; got none of {empty}")
    means = exact(net, shape)
    tensors = {**exact(net, shape, bayesian=True).state_dict(), **means.state_dict()}
    shapes = {name: list(value.shape) for name, value in means.state_dict().items()}
    name = _name_of(root)
    config: Any = root.config
    own = {**said, "network": name, "config": config, "shapes": shapes}
    for unit, module in state.units.items():
        tensors |= _order_of(module, shape[unit], f"{unit}.ordering.")
    example = torch.rand(1, *said["image"])
    small = to_nested(plain_of(own), example, **_arguments(state, shape))
    weights = {PREFIX + key: value.cpu() for key, value in tensors.items()}
    weights["_vnd_converted_at"] = torch.tensor(state.converted_at)
    small.load_state_dict({"scale": small.scale, "shift": small.shift, **weights})
    assert isinstance(small, FromPixels)
    for width in dict.fromkeys((shape, *widths)):
        _carry_statistics(root, state, shape, width, small)
    return small.eval()


def write(net: FromPixels, folder: Path, card: Mapping[str, Any]) -> int:
    """Save a network with its card; the bytes that it takes.

    Args:
        net: What `cut` gave.
        folder: Where to.
        card: What there is to say of it, plain JSON values.
    """
    net.said["card"] = dict(card)
    save(net, folder)
    said = dict(net.said)
    said["checksum"] = checksum(said)
    write_text(folder / CARD, json.dumps(said, indent=1, ensure_ascii=False) + "\n")
    return sum(path.stat().st_size for path in folder.iterdir())


def within(shape: Shape) -> Shape:
    """A shape of the network that was cut, as the one that was cut out names its units."""
    return Shape({PREFIX + unit: groups for unit, groups in shape.items()})


def outside(shape: Shape) -> Shape:
    """The inverse of `within`."""
    return Shape({unit.removeprefix(PREFIX): groups for unit, groups in shape.items()})


def _name_of(root: nn.Module) -> str:
    from vnd.models import MODELS

    name = next((name for name, known in MODELS.items() if type(root) is known), None)
    if name is None:
        raise ValueError(f"cut: the network must be one of {', '.join(MODELS)}; got a {type(root).__name__}")
    return name


def _arguments(state: NestedState, shape: Shape) -> dict[str, Any]:
    """What `to_nested` is to be called with: as before, and for each unit the groups that are left of it."""
    rules = {PREFIX + pattern: rule for pattern, rule in state.arguments["rules"].items()}
    for unit, module in state.units.items():
        kept, base = shape[unit], min(module.base, shape[unit])
        prior = BernoulliChain(module.prior_logits[: kept - base].cpu()) if kept > base else None
        name = PREFIX + unit
        rules[name] = Rule(num_groups=kept, base=base, prior=prior).over(rules.pop(name, Rule()))
    return {**state.arguments, "rules": rules}


def _order_of(unit: OrderingUnit, groups: int, prefix: str) -> dict[str, Tensor]:
    """The state of a unit, of its first groups."""
    weights = {prefix + name: value for name, value in unit.state_dict().items()}
    for name in ("keep_logits", "prior_logits"):
        weights[prefix + name] = weights[prefix + name][: max(0, groups - unit.base)]
    return weights


def _carry_statistics(root: nn.Module, state: NestedState, shape: Shape, width: Shape, small: FromPixels) -> None:
    """Take over BatchNorm's statistics of a width, where there are some."""
    own, key = state_of(small), within(width)
    for samples in (False, True):
        found = state.valid_statistics(root, (width, samples))
        if found is None:
            continue
        own.statistics[key, samples] = {}
        for norm, pair in found.items():
            kept = state.kept(state.outputs.get(norm), dict(shape))
            mean, variance = (x.cpu() if kept is None else x.cpu()[kept] for x in pair)
            own.statistics[key, samples][PREFIX + norm] = mean.clone(), variance.clone()
        own.stamps[key, samples] = own.stamp(small)
    own.settled = False
