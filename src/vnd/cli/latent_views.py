"""What `vnd generate` draws from: a trained auto-encoder, test images with their codes, and codes of its prior."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from vnd.cli.output import check_range
from vnd.data.batches import in_order
from vnd.methods import AutoencoderMethod, Sizes
from vnd.methods.codes import DeterministicAutoencoder, LearnsLength
from vnd.report.image_grids import Pixels
from vnd.tasks import TrainedRun
from vnd.tasks.autoencoding import as_pixels

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the code, as in the paper
SHOWN, STUDIED, BATCH = 12, 1024, 256  # test images that are shown and looked at, at most; images decoded together


@dataclass(frozen=True)
class LatentViews:
    """A trained auto-encoder, some test images with their codes, and codes drawn from its prior, all on its device.

    Args:
        opened: The run.
        lengths: Of the codes, in rising order.
        ordered: Whether the code has an order of its own.
        order: Its Gaussian dimensions, those that tell the most first.
        worth: What each tells, in the same order, as words; empty ones for an ordered code.
        numbers: Which of the test images are shown.
        images: These, (n, channels, height, width), between −1 and 1.
        codes: Their most likely codes, (n, dimensions).
        own_lengths: How long each of these is, for a method that says so.
        centre: Where each Gaussian dimension lies: 0 under a normal prior, else the mean over the test images.
        spread: Its deviation.
        drawn: Codes of the prior, (count, dimensions); None where there is a refusal.
        stops: How long each of them is, drawn too, (count,); for a method whose lengths have a prior, if none was asked
            for.
        refusal: Why nothing can be drawn.
    """

    opened: TrainedRun
    lengths: tuple[int, ...]
    ordered: bool
    order: Tensor
    worth: tuple[str, ...]
    numbers: list[int]
    images: Tensor
    codes: Tensor
    own_lengths: Tensor | None
    centre: Tensor
    spread: Tensor
    drawn: Tensor | None
    stops: Tensor | None
    refusal: str | None

    @property
    def size(self) -> int:
        """Dimensions of a code, those of a category included."""
        return self.codes.size(1)

    def shortened(self, codes: Tensor, length: int) -> Tensor:
        """Codes whose Gaussian dimensions beyond the leading ones are zeros: short codes, as the decoder reads them."""
        kept = codes.clone()
        kept[:, self.order[length:]] = 0
        return kept

    @torch.no_grad()
    def decoded(self, codes: Tensor) -> Tensor:
        """Images between −1 and 1."""
        method = coder(self.opened)
        return torch.cat([method.decode(self.opened.model, part) for part in codes.split(BATCH)])

    def to_uint8(self, codes: Tensor) -> Pixels:
        """Decoded images as bytes."""
        return to_uint8(self.decoded(codes))

    def branches(self, depth: int, side: float) -> list[Tensor]:
        r"""The codes of a tree: level b has $2^b$, of length b, whose dimensions lie `side` deviations left or right.

        They are in the order of their signs, the first dimension's the slowest. A category is that of the first image.
        """
        levels = []
        for level in range(depth + 1):
            codes = self.shortened(self.codes[:1], 0).repeat(2**level, 1)
            signs = torch.tensor(list(product((-side, side), repeat=level)), device=codes.device)
            chosen = self.order[:level]
            codes[:, chosen] = self.centre[chosen] + signs.to(codes.dtype) * self.spread[chosen]
            levels.append(codes)
        return levels

    def moved(self, code: Tensor, dimension: int, steps: Sequence[float]) -> Tensor:
        """A code, (1, dimensions), with one Gaussian dimension at each of some deviations, and kept at 0 too."""
        codes = code.repeat(len(steps), 1)
        along = torch.tensor(steps, dtype=code.dtype, device=code.device)
        values = self.centre[dimension] + along * self.spread[dimension]
        codes[:, dimension] = values.where(values != 0, torch.finfo(code.dtype).tiny)  # zeros alone would end the code
        return codes


@torch.no_grad()
def scene(opened: TrainedRun, length: int | None, seed: int, count: int) -> LatentViews:
    """Look at some of a run's test images, and draw codes.

    Args:
        opened: The run.
        length: Of the codes; None for shares of them.
        seed: Of the codes that are drawn and of the test images that are shown.
        count: Codes to draw; so many test images are shown at most.
    """
    method, name = coder(opened), opened.recipe.method_name
    size = opened.recipe.network.config["latent_dim"]
    sizes = method.sizes(opened.model, Sizes(fractions=SHARES))
    lengths = tuple(method.length(opened.model, one) for one in sizes)
    if length is not None:
        if not method.ordered and length != size:
            raise ValueError(f"generate: codes of {name} have no order and one length, {size}; got --length {length}")
        check_range("generate: length", length, method.base, size)
        lengths = (length,)
    test = opened.test()
    numbers = np.random.default_rng(seed).permutation(len(test))[:STUDIED]
    batches = list(in_order(test.take(numbers), opened.normalise, opened.device))
    seen = [method.encode(opened.model, x) for x in batches]
    loc, cost = torch.cat([code.loc for code in seen]), torch.cat([code.cost for code in seen])
    own = torch.cat([method.lengths(code) for code in seen]) if isinstance(method, LearnsLength) else None
    order, worth = _order(method, loc, cost)
    drawn, stops, refusal = _draw(opened, method, count, size, seed)
    centre, spread = torch.zeros_like(loc[0]), torch.ones_like(loc[0])
    if drawn is None:  # no prior says where codes lie
        centre, spread = loc.mean(0), loc.std(0, correction=0)
    shown = min(count, SHOWN)
    return LatentViews(
        opened, lengths, method.ordered, order, worth, numbers[:shown].tolist(), torch.cat(batches)[:shown],
        torch.cat([method.point(code) for code in seen])[:shown], None if own is None else own[:shown],
        centre, spread, drawn, stops if length is None else None, refusal,
    )  # fmt: skip


def to_uint8(images: Tensor) -> Pixels:
    """Images between −1 and 1 as bytes."""
    return np.asarray(as_pixels(images.float()).cpu())


def coder(opened: TrainedRun) -> AutoencoderMethod:
    """The method of a run that learns codes."""
    method = opened.recipe.method
    assert isinstance(method, AutoencoderMethod)
    return method


def _order(method: AutoencoderMethod, loc: Tensor, cost: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """The Gaussian dimensions, those that tell the most first, and what each tells: nats, or how much codes differ."""
    if method.ordered:
        return torch.arange(loc.size(1), device=loc.device), ("",) * loc.size(1)
    certain = isinstance(method, DeterministicAutoencoder)  # its codes have no price
    told = loc.std(0, correction=0) if certain else cost.mean(0)
    best, order = told.sort(descending=True, stable=True)
    return order, tuple(f"deviation {value:.2f}" if certain else f"{value:.2f} nats" for value in best.tolist())


def _draw(
    opened: TrainedRun, method: AutoencoderMethod, count: int, size: int, seed: int
) -> tuple[Tensor | None, Tensor | None, str | None]:
    """Codes of the prior, which the seed alone decides, and lengths if these have one too; or why there are none."""
    with torch.random.fork_rng([opened.device] if opened.device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            codes = method.draw(opened.model, count, size)
        except ValueError as error:
            return None, None, str(error)
        return codes, method.draw_lengths(codes) if isinstance(method, LearnsLength) else None, None
