"""Parts of all networks: initialisation, constructor arguments, a convolution with its norm, checks of sizes."""

import inspect
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

TRUTHS: dict[Any, Any] = {bool: bool, bool | None: bool | None}  # by the annotation of an argument, what it must be


def initialise(network: nn.Module) -> None:
    r"""Set every layer of a network to its random start.

    Convolutions, transposed ones too, are Kaiming normal by fan-out, $w \sim \mathcal{N}(0, 2 / f)$ with
    $f$ = kernel positions × output channels / groups, the number of outputs that an input reaches; torch's own
    `kaiming_normal_` forgets the groups, and so starts a depthwise layer √C too small. Linear layers are
    $\mathcal{N}(0, 1 / \text{fan-in})$, so that the first logits are of order one. BatchNorm is 1 and 0, biases 0.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            fan_out = math.prod(layer.kernel_size) * layer.out_channels / layer.groups
            nn.init.normal_(layer.weight, std=math.sqrt(2 / fan_out))
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(1 / layer.in_features))
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class Config(dict[str, Any]):
    """A network's arguments: a dict that takes attributes as well, which are no arguments and are not saved.

    `transformers.Trainer` sets `config.use_cache` of its model, and what it logs with asks for these two methods.

    >>> config = Config(width=0.5)
    >>> config.use_cache = False
    >>> config, config.to_json_string()
    ({'width': 0.5}, '{"width": 0.5}')
    """

    use_cache: bool

    def to_dict(self) -> dict[str, Any]:
        """The arguments alone."""
        return dict(self)

    def to_json_string(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self)


def arguments(given: Mapping[str, Any]) -> Config:
    """A constructor's arguments, from `locals()` at its start, as JSON gives them back, each of them checked.

    By their annotations: an integer is at least 1, a truth is one; and a width is finite and greater than 0.
    """
    owner = given["__class__"].__name__
    for name, parameter in inspect.signature(given["__class__"]).parameters.items():
        value = given[name]
        if parameter.annotation is int:
            check_counts(owner, **{name: value})
        elif not isinstance(value, TRUTHS.get(parameter.annotation, object)):
            raise ValueError(f"{owner}: {name} must be true or false; got {value!r}")
        elif name == "width" and not (is_number(value) and math.isfinite(value) and value > 0):
            raise ValueError(f"{owner}: width must be a finite number greater than 0; got {value!r}")
    return Config(
        {
            name: list(x)
            if isinstance(x, Sequence) and not isinstance(x, str)
            else dict(x)
            if isinstance(x, Mapping)
            else x
            for name, x in given.items()
            if name not in ("self", "__class__")
        }
    )


def conv_norm_relu(in_channels: int, out_channels: int) -> list[nn.Module]:
    """A 3×3 convolution that keeps the resolution, BatchNorm and ReLU; the bias is that of the BatchNorm."""
    conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(out_channels), nn.ReLU()]


def scaled(channels: int, width: float) -> int:
    """`channels` times `width`, rounded, at least 1."""
    return max(1, round(channels * width))


def check_counts(owner: str, **counts: object) -> None:
    """Refuse what is not an integer of at least 1, by its name."""
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{owner}: {name} must be an integer of at least 1; got {value!r}")


def check_sizes(owner: str, name: str, sizes: object, least: int) -> None:
    """Refuse what is not a list of integers of at least 1, or has less than so many, none or one."""
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or len(sizes) < least:
        wanted = "at least one integer" if least else "integers"
        raise ValueError(f"{owner}: {name} must be a list of {wanted}; got {sizes!r}")
    check_counts(owner, **{f"{name}[{place}]": size for place, size in enumerate(sizes)})


def is_number(value: object) -> bool:
    """Tell if it is an integer or a real number, and no truth."""
    return isinstance(value, int | float) and not isinstance(value, bool)
