r"""All segmenting methods: VND-PUNet, whose latent is ordered, and those that it is held against.

These are P-UNet, whose latent has one length, BN³ on a UNet, a UNet with dropout, and an ensemble of UNets.

An image x has a mask y of 0 and 1, one of several that graders have drawn, and a network gives logits $\ell$ of its
pixels, foreground where they are greater than 0:

$$-\log p(y \mid \ell) = \sum_\text{pixels} \log(1 + e^{\ell}) - y\, \ell \quad \text{(nats of an image)}$$

All losses are sums over the pixels and means over images, so that the KL beside them is that of the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.distributions import OrderedNormal
from vnd.distributions.kl import normal_kl, ordered_normal_kl
from vnd.functional import to_float32
from vnd.methods.base import (
    DASH_DOTS,
    DASHED,
    DOTTED,
    Batch,
    Single,
    Size,
    Step,
    Terms,
    Traits,
    mc,
    refuse_several_processes,
    register,
)
from vnd.methods.bn3 import BN3
from vnd.methods.codes import Coded, covering_lengths, length_of, ratio_survival
from vnd.models.unet import EnsembleUNet, ProbabilisticUNet, UNet
from vnd.nn import BayesLayer, Prediction
from vnd.nn.predict import evaluating
from vnd.nn.state import unwrap

Drawer = Callable[[Tensor, int], Tensor]  # from images (B, 1, H, W) and n to logits (n, B, H, W)
LOG_VARIANCE = (-10.0, 4.0)  # what log σ² of a latent lies between
PIXELS = 2**23  # times samples in one pass of the combiner: 1 GiB for each of its layers of 32 channels


class Segmenter:
    """A method that draws masks of images."""

    task = "segmentation"

    def drawer(self, model: nn.Module, size: Size) -> Drawer:
        """Function that draws n masks of each image of a batch, as logits (n, B, H, W), without gradient.

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
        """Logits of so many masks of each image, (count, B, H, W); here each by a pass of its own."""
        return torch.stack([network(images).squeeze(1) for _ in range(count)])

    def distinct(self, model: nn.Module) -> int | None:
        """Number of masks of an image that it draws from; None where no two draws are the same."""
        return None

    def others(self, model: nn.Module) -> list[Size]:
        """Sizes that it can be read at beside those that are wanted."""
        return []

    def predict(self, network: nn.Module, x: Tensor, samples: int) -> Prediction:
        """Refused: it answers with masks, not with probabilities of classes."""
        raise ValueError("a segmenting method predicts no classes; use vnd evaluate and vnd segment")


class Probabilistic(Segmenter, Coded):
    """A method whose model is a probabilistic UNet: the latent of an image is drawn, the weights are not."""

    called = "latent"
    who = "probabilistic UNets"

    def dimensions(self, model: nn.Module) -> int:
        """Of the latent."""
        return int(probabilistic(model).config["latent"])

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with the heads of this method."""
        if not isinstance(network, ProbabilisticUNet):
            raise ValueError(
                f"network.name must be probabilistic_unet for a method that draws latents; "
                f"got a {type(network).__name__}"
            )
        return ProbabilisticUNet(**network.config | {"heads": self.heads(network.config["latent"])})

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """Those of latents of a size's length, drawn from the prior."""
        h = self.prior_draws(network, images, count, size)
        features = network.unet(images)
        at_once = max(1, PIXELS // images[:, 0].numel())
        return torch.cat([to_float32(network.combine(features, part)) for part in h.split(at_once)])

    def prior_draws(self, network: ProbabilisticUNet, images: Tensor, count: int, size: Size) -> Tensor:
        """Latents drawn from the prior, of the length of a size, (count, B, b)."""
        loc, scale = normal_of(network.describe(images))
        noise = torch.randn(count, *loc.shape, dtype=loc.dtype, device=loc.device)
        return (loc + scale * noise)[..., : self.length(network, size)]


@register("punet", Traits(rank=16, name="P-UNet", reference=True, looks=mc("#d55e00", "s", DASHED)))
@dataclass(frozen=True)
class PUNet(Probabilistic):
    r"""Learn a latent whose draws from p(h | x) give the masks that graders draw.

    $$\mathcal L = -\log p(y \mid x, h) + κ\, \mathrm{KL}[q(h \mid x, y) ‖ p(h \mid x)], \qquad h \sim q(h \mid x, y)$$

    with Gaussians q and p of independent dimensions, y the mask of one grader, and κ the schedule's `kl_weight`. Kohl
    et al. (2018), whose κ is 10.
    """

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The negative bound on the likelihood, a mean over the images."""
        (images, masks), network = batch, probabilistic(model)
        loc, scale = normal_of(network.describe(images, masks))
        divergence = normal_kl(loc, scale, *normal_of(network.describe(images))).sum(1).mean()
        h = loc + scale * torch.randn(loc.shape, dtype=loc.dtype, device=loc.device)
        surprise = likelihood(network.combine(network.unet(images), h), masks).mean()
        total = surprise + step.kl_weight * divergence
        return Terms(total, {"nll": surprise.detach(), "kl": divergence.detach()})


@register("vnd_punet", Traits(rank=14, name="VND-PUNet", order="learned", looks=mc("#0072b2", "o")))
@dataclass(frozen=True)
class VNDPUNet(Probabilistic):
    r"""Learn an order of the latent's dimensions, and for each image how many of them its masks need.

    $$\mathcal L = -\log p(y \mid x, z ∘ h) + κ\, \mathrm{KL}, \qquad
      \mathrm{KL} = \mathrm{KL}[q(z \mid x, y) ‖ p(z \mid x)] + \sum_i P_q(z_i = 1)\, κ_i$$

    with z and h drawn from the posterior, both ends `OrderedNormal`s: Gaussians gated by a Downhill, whose means,
    variances and keep logits the nets give, $κ_i$ the KL of the Gaussians of dimension i. Paper: Sec. 4.2.

    With `fractions`, a share of the loss is that of latents of fixed lengths b, charged $\sum_{i \le b} κ_i$, in every
    step, beside the one of a drawn length; the features of an image are computed once for all. With
    `all_lengths_share`, that share of the images has latents of any length in place of the drawn ones: see `VNDAE`.

    Note: The paper writes $\sum_i β_i (\log \frac{β_i}{p_i} + κ_i)$ with β the probabilities of lengths, which charges
        a dimension only where it is the last; see docs/errata.md.

    Args:
        base: Dimensions that are always kept.
        initial_logit: Where the keep logits of prior and posterior start.
        fractions: Shares of the latent that are trained in every step.
        fixed_share: Their share of the loss.
        all_lengths_share: Share of the images whose lengths are of all lengths, not learned ones; it takes the place
            of `fractions`.
        sampler: "released" draws lengths as the authors' code does, nearly uniformly: see `Downhill.released`. The KL
            is that of the learned lengths, as there. For reproduction only.
    """

    ordered = True
    base: int = 2
    initial_logit: float = 3.0
    fractions: tuple[float, ...] = ()
    fixed_share: float = 0.5
    all_lengths_share: float = 0.0
    sampler: Literal["exact", "released"] = "exact"

    def heads(self, code: int) -> dict[str, int]:
        """Means, log variances, and keep logits of the dimensions beyond the base."""
        if not self.base < code:
            raise ValueError(f"network.latent must be greater than method.base = {self.base}; got {code}")
        return {**super().heads(code), "keep_logits": code - self.base}

    @torch.no_grad()
    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with the heads of this method, its latents long at first."""
        model = probabilistic(super().build(network, example))
        for net in (model.prior, model.posterior):
            head = net.heads["keep_logits"]
            assert isinstance(head, nn.Linear)
            head.weight.mul_(0.1)
            head.bias.fill_(self.initial_logit)
        return model

    def latent(self, model: nn.Module, images: Tensor, masks: Tensor | None, temperature: float) -> OrderedNormal:
        """The prior over the latent of images, or with their masks the posterior."""
        heads = probabilistic(model).describe(images, masks)
        return OrderedNormal(*normal_of(heads), to_float32(heads["keep_logits"]), temperature, validate_args=False)

    def others(self, model: nn.Module) -> list[Size]:
        """Lengths that are drawn from the prior as well, as the paper draws them at a test."""
        return [Size("sampled", "drawn", None)]

    def prior_draws(self, network: ProbabilisticUNet, images: Tensor, count: int, size: Size) -> Tensor:
        """Latents drawn from the prior: of the length of a size, or each of a length that is drawn too."""
        if size.kind != "sampled":
            return super().prior_draws(network, images, count, size)
        return self.latent(network, images, None, 1.0).sample((count,))

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """The negative bound on the likelihood for a drawn length, and for those of every step."""
        (images, masks), network = batch, probabilistic(model)
        posterior, prior = (self.latent(model, images, y, step.temperature) for y in (masks, None))
        fixed = [length_of(posterior.event_shape[0], fraction, self.base) for fraction in self.fractions]
        drawn = (posterior.released() if self.sampler == "released" else posterior).rsample(hard=True)
        covering = self.all_lengths_share
        if covering:
            size = drawn.size(-1)
            lengths = covering_lengths(len(drawn), covering, self.base, size, drawn.device)
            whole = posterior.rsample(length=lengths.clamp(min=self.base))
            drawn = torch.where(lengths[:, None] > 0, whole, drawn)
        h = torch.stack([drawn, *(posterior.rsample(length=length) for length in fixed)])
        surprises = likelihood(network.combine(network.unet(images), h), masks).mean(1)
        cost = normal_kl(posterior.loc, posterior.scale, prior.loc, prior.scale)
        own = ordered_normal_kl(posterior, prior).mean()
        rates = torch.stack([own, *(cost[:, :length].sum(1).mean() for length in fixed)])
        share = self.fixed_share if fixed else 0.0
        rate = rates[0]
        if covering:
            anyhow = (ratio_survival(self.base, cost.size(1), cost.device) * cost).sum(1).mean()
            rate = rate + covering * (anyhow - rate)
        total = (1 - share) * (surprises[0] + step.kl_weight * rate)
        if fixed:
            total = total + share * (surprises + step.kl_weight * rates)[1:].mean()
        parts = {
            "nll": surprises[0],
            "kl": own,
            "length": posterior.expected_length.mean(),
            "prior_length": prior.expected_length.mean(),
        }
        return Terms(total, {name: value.detach() for name, value in parts.items()})


def likelihood(logits: Tensor, masks: Tensor) -> Tensor:
    """Negative log-likelihood of masks (…, H, W), summed over their pixels, in nats, float32 or wider."""
    logits = to_float32(logits)
    each = F.binary_cross_entropy_with_logits(logits, masks.to(logits.dtype).expand_as(logits), reduction="none")
    return each.sum((-2, -1))


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


def probabilistic(model: nn.Module) -> ProbabilisticUNet:
    """The probabilistic UNet that a model is."""
    root = unwrap(model)
    assert isinstance(root, ProbabilisticUNet)
    return root


def check_unet(network: nn.Module) -> dict[str, Any]:
    """The arguments of a UNet of one logit a pixel; any other network is refused."""
    if not isinstance(network, UNet):
        raise ValueError(f"network.name must be unet for this method; got a {type(network).__name__}")
    if network.config["num_classes"] != 1:
        raise ValueError(
            f"network.num_classes must be 1, the foreground's logit, to segment; got {network.config['num_classes']}"
        )
    return network.config


@register("bn3_unet", Traits(rank=15, name="BN³-UNet", order="learned", looks=mc("#009e73", "^", "-.")))
@dataclass(frozen=True)
class BN3UNet(Segmenter, BN3):
    r"""Learn the order of a UNet's channels together with a posterior over its weights.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w, z) + \frac{κ}{N}\, \mathrm{KL}(q(w, z) \,\|\, p(w, z))$$

    with the likelihood of all pixels of a mask. Its options are those of `BN3`, but for a sandwich and smoothed labels,
    which are of classes. Paper: Sec. 6.3, 32 groups, 6 of them always kept.

    A mask is that of one draw of the weights for all positions, whatever estimator training had: outputs that are drawn
    by themselves, each pixel for itself, would be a mask with noise and not one of many masks.
    """

    base: int = 6
    student: ClassVar[None] = None  # masks are not distilled

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, none in (("sandwich", False), ("label_smoothing", 0.0)):
            if getattr(self, name) != none:
                raise ValueError(
                    f"{name} is of classes, and bn3_unet has masks; leave it out, got {getattr(self, name)}"
                )

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a UNet."""
        check_unet(network)
        return super().build(network, example)

    def distinct(self, model: nn.Module) -> int | None:
        """Any number; one of point weights."""
        return None if self.bayesian else 1

    def ready(self, model: nn.Module, size: Size) -> nn.Module:
        """The network of a size, every pass of which draws weights for all positions."""
        network = self.extract(model, size.width, "posterior").eval()
        for module in network.modules():
            if isinstance(module, BayesLayer):
                module.sampling, module.estimator = True, "weight"
        return network

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """One for each draw of the weights; of point weights, one pass for all."""
        drawn = super().masks(network, images, count if self.bayesian else 1, size)
        return drawn.expand(count, -1, -1, -1)

    def _likelihood(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return likelihood(model(images).squeeze(1), labels).mean()


@register("dropout_unet", Traits(rank=18, name="dropout UNet", looks=mc("#cc79a7", "X", DOTTED)))
@dataclass(frozen=True)
class DropoutUNet(Segmenter, Single):
    r"""Learn with dropout, and leave it on: every pass draws a mask.

    $$\mathcal L = -\log p(y \mid x, ξ), \qquad ξ \sim \mathrm{Bernoulli}(1 - \text{rate})$$

    Bayesian SegNet (Kendall et al., 2015), as Kohl et al. (2018) hold the probabilistic UNet against it.

    Args:
        rate: Probability that an input of an inner block is dropped; see `UNet`.
    """

    rate: float = 0.5

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network with dropout."""
        return UNet(**check_unet(network) | {"dropout": self.rate})

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Negative log-likelihood, a mean over the images."""
        surprise = likelihood(model(batch[0]).squeeze(1), batch[1]).mean()
        return Terms(surprise, {"nll": surprise.detach()})

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """One a pass, with dropout, but with BatchNorm's statistics of training."""
        dropouts = [module for module in network.modules() if isinstance(module, nn.Dropout)]
        for dropout in dropouts:
            dropout.train()
        try:
            return super().masks(network, images, count, size)
        finally:
            for dropout in dropouts:
                dropout.eval()


@register("unet_ensemble", Traits(rank=17, name="UNet ensemble", looks=mc("#8a6d00", "v", DASH_DOTS)))
@dataclass(frozen=True)
class UNetEnsemble(Segmenter, Single):
    r"""Learn several UNets from different random starts, each for itself; sample i is the mask of member i mod M.

    $$\mathcal L = \sum_{m \le M} -\log p(y \mid x, w_m)$$

    A deep ensemble (Lakshminarayanan et al., 2017), as Kohl et al. (2018) hold the probabilistic UNet against it.

    Args:
        members: How many there are.
    """

    members: int = 4

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """So many networks like the given one."""
        config = check_unet(network)
        if config["dropout"]:
            raise ValueError(f"network.dropout must be 0 for unet_ensemble; got {config['dropout']}")
        return EnsembleUNet(config["in_channels"], config["channels"], self.members)

    def prepare(self, model: nn.Module, batch: Batch, step: Step, average: Callable[[Tensor], Tensor]) -> None:
        """Refuse several processes."""
        refuse_several_processes("ensembles of UNets")

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Negative log-likelihoods of all members, means over the images."""
        ensemble: Any = unwrap(model)
        surprises = likelihood(ensemble.logits(batch[0]), batch[1]).mean(1)
        return Terms(surprises.sum(), {"nll": surprises.detach().mean()})

    def distinct(self, model: nn.Module) -> int:
        """One for each member."""
        return self.members

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """Those of the members in turn."""
        each: Tensor = network.logits(images)
        return each[torch.arange(count, device=each.device) % len(each)]
