r"""Parts of all auto-encoders: a Gaussian likelihood of pixels, codes that may stop early, one scale of the loss.

Pixels x lie between −1 and 1, and a code h of an image is decoded to their means g(h):

$$-\log p(x \mid h) = \frac{\lVert x - g(h) \rVert^2}{2 σ^2} + \frac P2 \log 2 π σ^2 \quad \text{(distortion, nats)},
  \qquad \mathcal L = \frac{2 σ^2}{P} \bigl[-\log p(x \mid h) + κ\, \mathrm{KL}\bigr] + \text{const}$$

with P pixels, σ the method's `likelihood_std` and κ the schedule's `kl_weight`, 1 for the bound on the likelihood. So
the loss is the mean squared error of a pixel and $κ\, 2 σ^2 / P$ times the KL (rate, nats): learning rates fit all
sizes. The paper's factor of 0.00025 on the KL beside the mean squared error is $σ^2 = 0.00025\, P / 2$.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.functional import length_mask, to_float32
from vnd.methods.base import Batch, Single, Size, Sizes, Step, Terms, check, refuse_several_processes
from vnd.models.autoencoder import CodedNetwork
from vnd.models.encoder_decoder import EncoderDecoder
from vnd.nn import Prediction
from vnd.nn.state import unwrap

Error = TypeVar("Error", float, Tensor)
LOG_VARIANCE = (-12.0, 8.0)  # beyond which a code's log σ² has no effect
ROUNDING = 1e-3  # that pixels may lie beyond −1 and 1


@dataclass(frozen=True)
class Code:
    """Codes of a batch: means and standard deviations, (batch, dimensions), and the method's own heads."""

    loc: Tensor
    scale: Tensor
    heads: dict[str, Tensor]

    @property
    def cost(self) -> Tensor:
        r"""KL of each dimension from a standard normal, $κ_i = \frac12 (μ_i^2 + σ_i^2 - 1 - \log σ_i^2)$, in nats."""
        variance = self.scale.square()
        return 0.5 * (self.loc.square() + variance - 1 - variance.log())


class Coded(Single):
    """A method whose network has a code, which may stop early: its sizes are lengths."""

    base = 1  # dimensions that a code has at least
    ordered = False  # whether a code may stop early
    called = "code"
    who = "auto-encoders"

    @abstractmethod
    def dimensions(self, model: nn.Module) -> int:
        """Of the longest code."""

    def heads(self, code: int) -> dict[str, int]:
        """Outputs of the encoder for codes of so many dimensions: means and log variances."""
        return {"loc": code, "log_variance": code}

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Refuse several processes."""
        refuse_several_processes(self.who)

    def sizes(self, model: nn.Module, wanted: Sizes) -> list[Size]:
        """Shares of an ordered code, the same length twice being one; else the one that it was trained with."""
        code = self.dimensions(model)
        if self.ordered and not wanted.fractions:
            raise ValueError(f"sizes of an ordered {self.called} are fractions of its length; give fractions")
        found = {}
        for fraction in wanted.fractions if self.ordered else (1.0,):
            length = length_of(code, fraction, self.base)
            found[length] = Size("uniform", f"{length} of {code}", fraction, fraction)
        return list(found.values())

    def length(self, model: nn.Module, size: Size) -> int:
        """The length that a size is."""
        if size.fraction is None:
            raise ValueError(f"sizes of a {self.called} are shares of its length; got {size.label!r}, which is none")
        return length_of(self.dimensions(model), size.fraction, self.base)


@dataclass(frozen=True)
class AutoencoderMethod(Coded):
    """A method whose model is an auto-encoder: the network has one size, and its decoder takes codes of every length.

    Args:
        likelihood_std: σ of a pixel between −1 and 1; of deterministic codes it says what the distortion is in nats,
            and is not in the loss.
    """

    likelihood_std: float = 1.0
    task = "autoencoding"
    tells_length = False  # whether the decoder is told how long a code is, where the network does not say

    def __post_init__(self) -> None:
        check(self)

    def dimensions(self, model: nn.Module) -> int:
        """Of the longest code."""
        return coded(model).dimensions

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with the heads of this method: one of `vnd.models`, or any with an `encoder` and a `decoder`.

        Of the latter these two are copied; the size of the code is its `latent_dim`, if it has one.
        """
        encoder, decoder = (getattr(network, name, None) for name in ("encoder", "decoder"))
        if isinstance(encoder, nn.Module) and isinstance(decoder, nn.Module):
            size, told = getattr(network, "latent_dim", None), self.ordered and self.tells_length
            both = copy.deepcopy((encoder, decoder))  # together: what they share stays shared
            return EncoderDecoder(*both, example, size if isinstance(size, int) else None, self.heads, told)
        if not isinstance(network, CodedNetwork):
            raise ValueError(
                f"network.name must be autoencoder or dense_autoencoder for a method that learns codes, or have an "
                f"encoder and a decoder; got a {type(network).__name__}"
            )
        length_bias = network.config["length_bias"]
        if length_bias and not self.ordered:
            raise ValueError(
                "network.length_bias tells the lengths of ordered codes, and codes of this method have one length; "
                "give --network.length_bias false"
            )
        told = self.tells_length if length_bias is None else length_bias
        heads = self.heads(network.config["latent_dim"])
        return type(network)(**network.config | {"heads": heads, "length_bias": told})

    def show(self, model: nn.Module, x: Tensor) -> None:
        """Compute the loss, which reads images alone: their codes are drawn, and as long as in training."""
        step = Step(index=0, kl_weight=torch.ones((), device=x.device), temperature=1.0, num_data=len(x))
        with torch.enable_grad():  # without it a category would be drawn as in a test
            self.loss(model, (x, torch.zeros(len(x), device=x.device)), step)

    def encode(self, model: nn.Module, x: Tensor) -> Code:
        """The code of a batch of images; they lie between −1 and 1 unless the network is not `bounded`."""
        network = coded(model)
        return self.code_of(network.encode(checked_pixels(x, network.config.get("bounded", True))))

    def code_of(self, outputs: dict[str, Tensor]) -> Code:
        """The code that the outputs of an encoder's heads say, (batch, size) each."""
        heads = {name: to_float32(value) for name, value in outputs.items()}
        return Code(heads["loc"], (0.5 * heads["log_variance"].clamp(*LOG_VARIANCE)).exp(), heads)

    def decode(self, model: nn.Module, code: Tensor) -> Tensor:
        """Images between −1 and 1 of codes of any length, (batch, b)."""
        return to_float32(coded(model).decode(code))

    def point(self, code: Code, length: int | None = None) -> Tensor:
        """The most likely code, of some length, (batch, b)."""
        return code.loc[:, :length]

    def sample(self, code: Code, length: int | None = None) -> Tensor:
        """A code drawn from the posterior, of some length, (batch, b)."""
        # Not randn_like: of two equal ones torch's compiler, without Inductor, makes one, and all lengths share a draw.
        noise = torch.randn(code.loc.shape, dtype=code.loc.dtype, device=code.loc.device)
        return (code.loc + code.scale * noise)[:, :length]

    def rate(self, code: Code, length: int | None = None) -> Tensor | None:
        """Nats that a code of some length costs, (batch,); None for a method without a prior over codes."""
        return code.cost[:, :length].sum(1)

    def lengths(self, code: Code) -> Tensor:
        """Length of the code of each image, (batch,): all of it, for a method that does not say."""
        return torch.full((len(code.loc),), self.full(code), device=code.loc.device)

    def full(self, code: Code) -> int:
        """Dimensions of a code."""
        return self.point(code).size(1)

    def draw(self, model: nn.Module, count: int, length: int | None = None) -> Tensor:
        """Codes drawn from the prior, (count, b)."""
        return torch.randn(count, self.dimensions(model), device=coded(model).device)[:, :length]

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> Prediction:
        """Refused: it answers with images, not with probabilities."""
        raise ValueError("an auto-encoder predicts no classes; use vnd evaluate and vnd generate")

    def _terms(
        self, model: nn.Module, images: Tensor, code: Tensor, penalty: Tensor, parts: dict[str, Tensor]
    ) -> Terms:
        """The loss for one code of each image, (batch, b), and what else it is charged, nats, (batch,)."""
        error = squared_error(images, self.decode(model, code)).mean()
        return self.terms(error, penalty.mean(), images, parts)

    def terms(self, error: Tensor, penalty: Tensor, images: Tensor, parts: dict[str, Tensor]) -> Terms:
        """The loss from the summed squared error of an image and nats, both means over the batch."""
        pixels = images[0].numel()
        total = (error + 2 * self.likelihood_std**2 * penalty) / pixels
        said = {"mse": of_pixel(error, pixels), **parts}
        return Terms(total, {name: value.detach() for name, value in said.items()})


class CapacitySchedule(AutoencoderMethod):
    """An auto-encoder with something that changes in training, such as capacities that grow over its first steps.

    Where it stands is a tensor of the model, not a number of the step: a compiled step is compiled once.
    """

    over: int

    def reached(self, step: Step) -> float:
        """Share of the growth of capacities that is done, in [0, 1]: all of it after `over` steps."""
        return min(step.index / self.over, 1.0)

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Say where it stands."""
        super().prepare(model, batch, step, average)
        root = coded(model)
        if root.grown.device != batch[0].device:
            root.grown = root.grown.to(batch[0].device)
        root.grown.fill_(self.reached(step))


class DeterministicAutoencoder(AutoencoderMethod):
    """An auto-encoder whose codes are points: they have no deviations, and no price in nats."""

    def heads(self, code: int) -> dict[str, int]:
        """The code itself."""
        return {"loc": code}

    def code_of(self, outputs: dict[str, Tensor]) -> Code:
        """The code that the encoder's output is, without deviations."""
        loc = to_float32(outputs["loc"])
        return Code(loc, torch.zeros_like(loc), {"loc": loc})

    def rate(self, code: Code, length: int | None = None) -> None:
        """None: it is no bound on a likelihood."""
        return


@runtime_checkable
class LearnsLength(Protocol):
    """A method that says how likely each dimension of an image's code is kept: its lengths differ by image."""

    def survival(self, code: Code) -> Tensor:
        """Probability that each dimension is kept, (batch, dimensions), never rising."""

    def draw_lengths(self, codes: Tensor) -> Tensor:
        """Lengths drawn from the prior, (count,), for codes (count, dimensions)."""


def coded(model: nn.Module) -> CodedNetwork:
    """The auto-encoder that a model is."""
    root = unwrap(model)
    if not isinstance(root, CodedNetwork):
        raise ValueError(
            "model must be an auto-encoder, as the method's build makes it of a module with an encoder and a decoder; "
            f"got a {type(root).__name__}"
        )
    return root


def checked_pixels(images: Tensor, bounded: bool = True) -> Tensor:
    """The images, if they are finite, and between −1 and 1 where `bounded`; not looked at while a graph is made of it.

    >>> checked_pixels(torch.tensor([[0.0, 255.0]]))
    Traceback (most recent call last):
    ValueError: images must lie between −1 and 1; got 0 … 255
    """
    if not isinstance(images, Tensor) or not images.is_floating_point() or not images.numel():
        got = f"{images.dtype} of shape {tuple(images.shape)}" if isinstance(images, Tensor) else repr(images)[:60]
        raise ValueError(f"images must be a batch of floating-point numbers; got {got}")
    if can_look(images):
        low, high = (float(value) for value in images.detach().aminmax())
        most = 1 + ROUNDING if bounded else torch.finfo(images.dtype).max
        if not -most <= low <= high <= most:
            wanted = "lie between −1 and 1" if bounded else "be finite"
            raise ValueError(f"images must {wanted}; got {low:.4g} … {high:.4g}")
    return images


def can_look(x: Tensor) -> bool:
    """Tell if a tensor has values that may be read: not where it is compiled, captured or without any."""
    if torch.compiler.is_compiling() or x.is_meta:
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def repeated(images: Tensor, count: int) -> Tensor:
    """All images of a batch, then all of them again, `count` in all."""
    return images.repeat(count // len(images), *(1,) * (images.ndim - 1))


def squared_error(images: Tensor, decoded: Tensor) -> Tensor:
    """Summed over the pixels of an image, (batch,)."""
    return (to_float32(images) - to_float32(decoded)).square().flatten(1).sum(1)


def of_pixel(error: Error, pixels: int) -> Error:
    """Mean squared error of a pixel between 0 and 1, from that summed over so many pixels between −1 and 1."""
    return error / (4 * pixels)


def distortion(error: Tensor, noise: float, pixels: int) -> Tensor:
    """Negative log-likelihood in nats of images of so many pixels, from their summed squared errors."""
    return error / (2 * noise**2) + 0.5 * pixels * math.log(2 * math.pi * noise**2)


def length_of(code: int, fraction: float, base: int = 1) -> int:
    """Dimensions of a share of a code, at least its base.

    >>> length_of(128, 0.25), length_of(4, 0.1)
    (32, 1)
    """
    return max(base, math.ceil(fraction * code - 1e-9))


def ratio_lengths(quantile: Tensor, base: int, size: int) -> Tensor:
    r"""Lengths base … size at quantiles of the law that is even by ratio, (…): as many between 1 and 2 as 8 and 16.

    $$b = \bigl\lfloor a\, r^u \bigr\rfloor, \quad r = \frac{D + 1}{a}, \qquad
      P(b) = \frac{\log (b + 1) - \log b}{\log r}$$

    for quantiles u in [0, 1), the base a and the size D.

    >>> ratio_lengths(torch.tensor([0.0, 0.5, 0.99]), base=1, size=32).tolist()
    [1, 5, 31]
    """
    lengths = base * (quantile * math.log((size + 1) / base)).exp()
    return lengths.long().clamp(base, size)


def ratio_survival(base: int, size: int, device: torch.device | str = "cpu") -> Tensor:
    r"""Probability that a length of `ratio_lengths` is at least 1 … size, $\min(1, 1 - \log_r (i / a))$, (size,)."""
    position = torch.arange(1, size + 1, device=device)
    return (1 - (position / base).log() / math.log((size + 1) / base)).clamp(max=1.0)


def covering_lengths(
    count: int, share: float | Tensor, base: int, size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """Lengths (count,) of `ratio_lengths` for a share of so many codes, at evenly spread quantiles; 0 for the others.

    The first ones have them: images of a batch are in no order, and one that comes again comes a batch later.
    """
    place = (torch.arange(count, device=device) + torch.rand((), device=device)) / count
    return torch.where(place < share, ratio_lengths(place / share, base, size), 0)


@torch.no_grad()
def shortest(method: AutoencoderMethod, model: nn.Module, x: Tensor, code: Code, target: float) -> Tensor:
    """The shortest code of each image, (batch,), whose mean squared error is at most a target; all of it if none is.

    The model is in evaluation mode; the error is that of a pixel between 0 and 1.
    """

    def error(rows: Tensor, codes: Tensor) -> Tensor:
        return of_pixel(squared_error(x[rows], method.decode(model, codes)), x[0].numel())

    return shortest_within(error, method.point(code), target, method.base)


def shortest_within(error: Callable[[Tensor, Tensor], Tensor], codes: Tensor, target: float, base: int = 1) -> Tensor:
    """The least length, (batch,), at which the error of each of some codes is at most a target; the full one if none.

    `error` is told which rows of the batch, (n,), and their codes, (n, b).
    """
    full = codes.size(1)
    found = torch.full((len(codes),), full, device=codes.device)
    open_ = torch.ones(len(codes), dtype=torch.bool, device=codes.device)
    for length in range(base, full):
        rows = open_.nonzero().squeeze(1)
        if not len(rows):
            break
        done = rows[error(rows, codes[rows, :length]) <= target]
        found[done] = length
        open_[done] = False
    return found


def branching(depth: int, base: int, first: float, side: float) -> list[Tensor]:
    r"""Leading dimensions of the codes of a tree: one value of the first, two of each later one.

    Level l has $2^l$ codes of length `base` + l, $(2^l, \text{base} + l)$, in the order of their signs, the earliest
    the slowest: `first` for the base, `side` left or right of 0 beyond it. Paper: Sec. 4.1, the figure of its tree.

    >>> branching(1, base=1, first=0.5, side=1.5)
    [tensor([[0.5000]]), tensor([[ 0.5000, -1.5000],
            [ 0.5000,  1.5000]])]
    """
    signs = [torch.tensor(list(product((-side, side), repeat=level))).float() for level in range(depth + 1)]
    return [F.pad(values.view(2**level, level), (base, 0), value=first) for level, values in enumerate(signs)]


def masked(code: Tensor, lengths: Tensor) -> Tensor:
    """Codes (batch, dimensions) whose dimensions beyond some lengths, (batch,), are zeros."""
    return code * length_mask(lengths, code.size(1), code.dtype)
