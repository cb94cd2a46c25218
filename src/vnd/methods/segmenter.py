r"""Parts of all segmenting methods: the likelihood of masks, masks that are drawn, and what these have in common.

An image x has a mask y, one of several that graders have drawn, and a network gives logits $\ell$ of its pixels. With
one logit a pixel, y is 0 and 1, foreground where the logit is greater than 0:

$$-\log p(y \mid \ell) = \sum_\text{pixels} \log(1 + e^{\ell}) - y\, \ell \quad \text{(nats of an image)}$$

With K > 1 logits, y is the number of a class, 0 … K − 1, the first of which is background:

$$-\log p(y \mid \ell) = \sum_\text{pixels} \log \sum_k e^{\ell_k} - \ell_y$$

All losses are sums over the pixels and means over images, so that the KL beside them is that of the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import vnd.nn as nested
from vnd._text import one_line
from vnd.functional import to_float32
from vnd.methods.base import Size
from vnd.nn import BayesLayer, Prediction
from vnd.nn.bayesian import Estimator
from vnd.nn.predict import evaluating
from vnd.nn.state import unwrap
from vnd.nn.width import Width

Drawer = Callable[[Tensor, int], Tensor]  # from images (B, C, H, W) and n to logits (n, B, K, H, W)
Noise = Literal["weights", "pixels"]
SEAM = ("features", "describe", "combine", "with_heads")  # of a network whose latent is drawn
LOG_VARIANCE = (-10.0, 4.0)  # what log σ² of a latent lies between
ESTIMATORS: dict[Noise, Estimator] = {"weights": "weight", "pixels": "local"}


def normal_of(heads: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    r"""Means and deviations of a latent from what a net says of it, float32 or wider, (batch, dimensions) each.

    The log variance is $c + r \tanh((v - c) / r)$ for the head's v, within `LOG_VARIANCE` = c ∓ r: nearly v itself in
    the middle, and at no v without gradient, so that one at a bound can come back. Between these bounds the ratio of
    two variances, which the KL takes, is a number also in float32.
    """
    low, high = LOG_VARIANCE
    centre, reach = (low + high) / 2, (high - low) / 2
    log_variance = centre + reach * ((to_float32(heads["log_variance"]) - centre) / reach).tanh()
    return to_float32(heads["loc"]), (0.5 * log_variance).exp()


def likelihood(logits: Tensor, masks: Tensor) -> Tensor:
    """Negative log-likelihood of masks (…, H, W) by logits (…, K, H, W), summed over pixels, in nats, float32 or wider.

    The leading dimensions of the masks are those of the logits, or the last of these.
    """
    logits = to_float32(logits)
    if logits.size(-3) == 1:
        logits = logits.squeeze(-3)
        each = F.binary_cross_entropy_with_logits(logits, masks.to(logits.dtype).expand_as(logits), reduction="none")
        return each.sum((-2, -1))
    classes = masks.long().expand(*logits.shape[:-3], *logits.shape[-2:]).unsqueeze(-3)
    return -logits.log_softmax(-3).gather(-3, classes).squeeze(-3).sum((-2, -1))


def class_probs(logits: Tensor) -> Tensor:
    """Probabilities (…, K, H, W) of logits: of the foreground alone where K is 1, else of all classes."""
    return logits.sigmoid() if logits.size(-3) == 1 else logits.softmax(-3)


def most_likely(probs: Tensor) -> Tensor:
    """The most likely mask (…, H, W) of probabilities (…, K, H, W): 0 or 1 where K is 1, else the number of a class.

    >>> most_likely(torch.tensor([0.2, 0.7]).view(1, 1, 2)), most_likely(torch.tensor([0.2, 0.7, 0.1]).view(3, 1, 1))
    (tensor([[0, 1]]), tensor([[1]]))
    """
    return (probs.squeeze(-3) > 0.5).long() if probs.size(-3) == 1 else probs.argmax(-3)


@dataclass(frozen=True)
class MaskPrediction(Prediction):
    r"""Prediction of the masks of a batch of images: samples, and what they have in common.

    $$p = \frac1n \sum_s p_s, \qquad H[p] = \frac1n \sum_s H[p_s] + \mathrm{MI}$$

    `masks` (n, B, H, W) are the samples: 0 and 1, or numbers of classes. `probs` (B, K, H, W) are the mean
    probabilities, of the foreground alone where K is 1; `variance` is that between samples. `entropy` and
    `mutual_information` (B, H, W), in nats, are of each pixel's class: foreground or not where K is 1.

    >>> prediction = predict_masks(nn.Conv2d(3, 4, 1), torch.ones(2, 3, 5, 5), samples=7)
    >>> prediction.masks.shape, prediction.probs.shape, prediction.entropy.shape
    (torch.Size([7, 2, 5, 5]), torch.Size([2, 4, 5, 5]), torch.Size([2, 5, 5]))
    """

    masks: Tensor

    @classmethod
    def of(cls, probs: Tensor) -> MaskPrediction:
        """Summary of samples' probabilities (n, B, K, H, W)."""
        mean = probs.mean(0)
        entropy, inner = class_entropy(mean), class_entropy(probs).mean(0)
        variance = probs.var(0, correction=0)
        return cls(mean, entropy, (entropy - inner).clamp(min=0), variance, len(probs), most_likely(probs))


def class_entropy(probs: Tensor) -> Tensor:
    """Entropy of each pixel's class, in nats, (…, H, W) of probabilities (…, K, H, W)."""
    entropy: Tensor = torch.special.entr(probs)
    return (entropy + torch.special.entr(1 - probs) if probs.size(-3) == 1 else entropy).sum(-3)


@torch.no_grad()
def predict_masks(
    net: nn.Module,
    images: Tensor,
    samples: int = 16,
    width: Width = None,
    noise: Noise = "weights",
    seed: int | None = None,
) -> MaskPrediction:
    """Draw masks of images by a network whose weights have a posterior, and say what they have in common.

    Of an `OrderedSegmenter` they are those of its own `predict`. A network whose passes are all alike draws one mask
    again and again.

    Args:
        net: Images (B, C, H, W) to logits (B, K, H, W), K = 1 for one foreground: a nested network, one with Bayesian
            layers, or a plain one. What it gives beside is looked through as `vnd.predict` does.
        images: The images.
        samples: Masks of each.
        width: As `vnd.predict` takes it.
        noise: "weights" draws the weights of a sample once for all images and positions, so that it is one mask that
            the posterior holds possible; "pixels" draws each pixel's outputs for themselves, the paper's own sampling
            of the outputs of layers.
        seed: Makes the draws repeatable; the global generator is left as it was.

    >>> import vnd
    >>> plain = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 1, 8, 8), num_groups=4)
    >>> predict_masks(net, torch.ones(2, 1, 8, 8), samples=3, width=0.5).masks.shape
    torch.Size([3, 2, 8, 8])
    """
    check_samples("predict_masks", samples)
    if noise not in ESTIMATORS:
        raise ValueError(f"predict_masks: noise must be 'weights' or 'pixels'; got {noise!r}")
    own: Any = unwrap(net)
    if draws_latents(own) and callable(getattr(own, "predict", None)):
        if width is not None:
            raise ValueError("predict_masks: this network draws latents and has no widths; give its predict a length")
        if noise != "weights":
            raise ValueError("predict_masks: this network draws latents, not weights, and has no noise of pixels")
        return own.predict(images, samples, seed=seed)  # type: ignore[no-any-return]
    with seeded(seed, images):
        layers = [module for module in unwrap(net).modules() if isinstance(module, BayesLayer)]
        some = samples if any(layer.bayesian for layer in layers) else 1
        estimator = ESTIMATORS[noise]
        each = [nested.predict(net, images, width, samples=1, estimator=estimator).probs for _ in range(some)]
    probs = torch.stack(each)
    if probs.ndim != 5:
        raise ValueError(f"predict_masks: net must give logits (B, K, H, W); got {tuple(probs.shape[1:])}")
    return MaskPrediction.of(probs.expand(samples, *probs.shape[1:]))


def check_samples(who: str, samples: object) -> None:
    """Refuse what is no number of masks."""
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise ValueError(f"{who}: samples must be a whole number of at least 1; got {samples!r}")


@contextmanager
def seeded(seed: int | None, like: Tensor) -> Iterator[None]:
    """Draw by a seed, and leave the global generators as they were; None for what they hold."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[like.get_device()] if like.is_cuda else []):
        torch.manual_seed(seed)
        yield


def one_each(masks: Tensor | Sequence[Tensor]) -> Tensor:
    """One mask of each image (B, H, W), drawn from those of its graders.

    Args:
        masks: (B, H, W), which are these; (B, G, H, W) of as many graders for each image; or a list of (G, H, W), each
            of so many graders as its image has.

    >>> one_each([torch.zeros(3, 8, 8), torch.ones(1, 8, 8)]).shape
    torch.Size([2, 8, 8])
    """
    if isinstance(masks, Tensor) and masks.ndim == 3:
        return masks
    each = graders_of(masks)
    if isinstance(masks, Tensor):
        grader = torch.randint(masks.size(1), (len(masks),)).to(masks.device)
        return masks[torch.arange(len(masks), device=masks.device), grader]
    return torch.stack([own[int(torch.randint(len(own), ()))] for own in each])


def graders_of(masks: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """Masks of the graders of each image, (graders, H, W), from what `one_each` takes."""
    if not (masks.ndim in (3, 4) and masks.size(1) if isinstance(masks, Tensor) else len(masks)):
        wanted = "be (B, H, W), (B, graders, H, W) or a list of (graders, H, W)"
        got = tuple(masks.shape) if isinstance(masks, Tensor) else "none"
        raise ValueError(f"loss: masks must {wanted}; got {got}")
    if isinstance(masks, Tensor):
        return list(masks if masks.ndim == 4 else masks[:, None])
    for index, own in enumerate(masks):
        if not isinstance(own, Tensor) or own.ndim != 3 or not len(own) or own.shape[1:] != masks[0].shape[1:]:
            got = tuple(own.shape) if isinstance(own, Tensor) else f"a {type(own).__name__}"
            wanted = "be (graders, H, W), all of one size, with at least one grader"
            raise ValueError(f"loss: masks of an image must {wanted}; those of image {index} are {got}")
    return list(masks)


class Segmenter:
    """A method that draws masks of images."""

    task = "segmentation"

    def drawer(self, model: nn.Module, size: Size) -> Drawer:
        """Function that draws n masks of each image of a batch, as logits (n, B, K, H, W), without gradient.

        The network runs as in evaluation and is left as it was. Where weights are drawn, those of sample i are the
        same for all images of the batch; where a latent is, each image has its own.
        """
        network = self.ready(model, size)

        @torch.no_grad()
        def draw(images: Tensor, count: int) -> Tensor:
            with evaluating(network):
                return to_float32(self.masks(network, images, count, size))

        return draw

    def ready(self, model: nn.Module, size: Size) -> nn.Module:
        """The network that masks of a size are drawn with."""
        return unwrap(model)

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """Logits of so many masks of each image, (count, B, K, H, W); here each by a pass of its own."""
        return torch.stack([network(images) for _ in range(count)])

    def distinct(self, model: nn.Module) -> int | None:
        """Number of masks of an image that it draws from; None where no two draws are the same."""
        return None

    def others(self, model: nn.Module) -> list[Size]:
        """Sizes that it can be read at beside those that are wanted."""
        return []

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> Prediction:
        """Refused: it answers with masks, not with probabilities of classes."""
        raise ValueError("a segmenting method predicts no classes; use vnd evaluate and vnd segment")


def draws_latents(network: nn.Module) -> bool:
    """Tell if a network has what one whose latent is drawn has."""
    return all(callable(getattr(network, name, None)) for name in SEAM)


def check_plain(network: nn.Module, example: Tensor) -> None:
    """Refuse a network that does not segment, or that has a latent, which would not be trained."""
    if draws_latents(network):
        who = type(network).__name__
        raise ValueError(
            f"network.name must be unet, or another network without a latent, for this method; got a {who}"
        )
    check_segments(network, example)


@torch.no_grad()
def check_segments(network: nn.Module, example: Tensor) -> None:
    """Refuse a network that gives no logits of the pixels of images; it is run once, in evaluation mode."""
    who = f"a {type(network).__name__}"
    wanted = "must give logits (batch, classes, height, width) of images, as unet does"
    with evaluating(network):
        try:
            logits = network(example)
        except Exception as error:
            why = f"fails on images {tuple(example.shape)}: {one_line(error)}"
            raise ValueError(f"network.name {wanted}; {who} {why}") from None
    if not isinstance(logits, Tensor) or logits.ndim != 4 or logits.shape[2:] != example.shape[2:]:
        got = tuple(logits.shape) if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise ValueError(f"network.name {wanted}; {who} gives {got} for images {tuple(example.shape)}")


def config_of(network: nn.Module, why: str) -> dict[str, Any]:
    """The arguments that a network was made with, by which it is made again."""
    config = getattr(network, "config", None)
    if not isinstance(config, dict):
        raise ValueError(
            f"network.name must keep its arguments in `config`, {why}; a {type(network).__name__} has none"
        )
    return config
