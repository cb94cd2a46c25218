r"""All segmenting methods: VND-PUNet, whose latent is ordered, and those that it is held against.

These are P-UNet, whose latent has one length, BN³ on a UNet, a UNet with dropout, and an ensemble of UNets. What they
share, the likelihood of masks first of all, is in `segmenter.py`. `OrderedSegmenter` is VND-PUNet for a loop of one's
own, on a backbone of one's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

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
from vnd.methods.codes import Coded, can_look, covering_lengths, length_of, ratio_survival
from vnd.methods.segmenter import (
    ESTIMATORS,
    SEAM,
    MaskPrediction,
    Noise,
    Segmenter,
    check_plain,
    check_samples,
    check_segments,
    class_probs,
    config_of,
    likelihood,
    normal_of,
    one_each,
    seeded,
)
from vnd.models.probabilistic import CHANNELS, LatentNet, ProbabilisticSegmenter
from vnd.models.unet import Ensemble, EnsembleUNet, UNet
from vnd.nn import BayesLayer
from vnd.nn.arguments import Output, describe_value
from vnd.nn.state import unwrap

PIXELS = 2**23  # times samples in one pass of the combiner: 1 GiB for each of its layers of 32 channels


class Probabilistic(Segmenter, Coded):
    """A method whose model is a probabilistic network: the latent of an image is drawn, the weights are not."""

    called = "latent"
    who = "probabilistic UNets"

    def dimensions(self, model: nn.Module) -> int:
        """Of the latent."""
        return int(probabilistic(model).config["latent"])

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The network made again with the heads of this method."""
        if missing := [name for name in SEAM if not callable(getattr(network, name, None))]:
            raise ValueError(
                f"network.name must be probabilistic_unet, or a ProbabilisticSegmenter of your own, for a method that "
                f"draws latents; a {type(network).__name__} has no {missing[0]}"
            )
        own: Any = network
        latent = config_of(network, "its `latent` among them").get("latent")
        if not isinstance(latent, int):
            raise ValueError(f"network.latent must be the dimensions of the latent; got {latent!r}")
        model: nn.Module = own.with_heads(self.heads(latent))
        check_segments(model, example)
        return self.start(model)

    def start(self, model: nn.Module) -> nn.Module:
        """Set where the heads of a new model start."""
        return model

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """Those of latents of a size's length, drawn from the prior."""
        h = self.prior_draws(network, images, count, size)
        features = network.features(images)
        at_once = max(1, PIXELS // images[:, 0].numel())
        return torch.cat([to_float32(network.combine(features, part)) for part in h.split(at_once)])

    def prior_draws(self, network: ProbabilisticSegmenter, images: Tensor, count: int, size: Size) -> Tensor:
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
        surprise = likelihood(network.combine(network.features(images), h), masks).mean()
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
    def start(self, model: nn.Module) -> nn.Module:
        """Let latents be long at first, where prior and posterior are ours."""
        network = probabilistic(model)
        for net in (network.prior, network.posterior):
            if isinstance(net, LatentNet):
                head: Any = net.heads["keep_logits"]
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

    def prior_draws(self, network: ProbabilisticSegmenter, images: Tensor, count: int, size: Size) -> Tensor:
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
        surprises = likelihood(network.combine(network.features(images), h), masks).mean(1)
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


class OrderedSegmenter(ProbabilisticSegmenter):
    r"""Network that draws masks as several graders would, from a latent whose dimensions are ordered, on any backbone.

    $$\mathcal L = -\log p(y \mid x, z ∘ h) + κ\, \mathrm{KL}[q(z, h \mid x, y) ‖ p(z, h \mid x)]$$

    It is VND-PUNet (`VNDPUNet` has the loss, `ProbabilisticSegmenter` the parts) for a loop of one's own: the backbone
    makes maps of images, a net of the image says how the latent is distributed, another one, of the image and a
    grader's mask, what that mask is in it, and 1×1 convolutions of the maps and a latent give the logits of a mask.
    Paper: Sec. 4.2.

    Args:
        backbone: Images (B, in_channels, H, W) to maps (B, num_features, H, W); its weights are trained with the rest.
        num_features: Channels of its maps.
        num_classes: Classes of a pixel, the first of them background; 1 for one foreground.
        latent_dim: Dimensions of the latent.
        in_channels: Channels of the images.
        method: Options of the loss; `PUNet()` for a latent of one length.
        prior, posterior, channels, divisor, output, convolutions, norm: See `ProbabilisticSegmenter`.

    Shape: (B, in_channels, H, W) to logits (B, num_classes, H, W), those of the prior's means; of any size.

    >>> net = OrderedSegmenter(nn.Conv2d(3, 8, 3, padding=1), 8, num_classes=4, in_channels=3, channels=(8, 8))
    >>> images, masks = torch.rand(2, 3, 15, 21), [torch.zeros(5, 15, 21), torch.zeros(1, 15, 21)]
    >>> net.loss(images, masks).backward()
    >>> prediction = net.predict(images, samples=7, length=3)
    >>> prediction.masks.shape, prediction.probs.shape, prediction.entropy.shape
    (torch.Size([7, 2, 15, 21]), torch.Size([2, 4, 15, 21]), torch.Size([2, 15, 21]))
    """

    def __init__(
        self,
        backbone: nn.Module,
        num_features: int,
        num_classes: int = 1,
        latent_dim: int = 6,
        in_channels: int = 1,
        method: Probabilistic | None = None,
        prior: nn.Module | None = None,
        posterior: nn.Module | None = None,
        channels: Sequence[int] = CHANNELS,
        divisor: int = 1,
        output: Output | None = None,
        convolutions: int = 2,
        norm: bool = True,
    ) -> None:
        method = VNDPUNet() if method is None else method
        if not isinstance(method, Probabilistic):
            raise ValueError(f"OrderedSegmenter: method must be a VNDPUNet or PUNet; got a {type(method).__name__}")
        if method.ordered and not method.base < latent_dim:
            raise ValueError(
                f"OrderedSegmenter: latent_dim must be greater than the method's base = {method.base}; got {latent_dim}"
            )
        super().__init__(
            backbone, num_features, num_classes, latent_dim, in_channels, method.heads(latent_dim), prior, posterior,
            channels, divisor, output, convolutions, norm,
        )  # fmt: skip
        self.method = method
        method.start(self)

    def loss(
        self, images: Tensor, masks: Tensor | Sequence[Tensor], kl_weight: float = 1.0, temperature: float = 1.0
    ) -> Tensor:
        """The loss of a batch, a mean over the images, in nats; of several masks of an image one is drawn.

        Args:
            images: (B, in_channels, H, W).
            masks: One of each image (B, H, W), or those of all its graders: (B, graders, H, W), or a list of
                (graders, H, W), whose graders may be differently many. 0 and 1, or numbers of classes.
            kl_weight: κ.
            temperature: Of the relaxed lengths.
        """
        chosen = one_each(masks)
        self.check(images, chosen)
        weight = torch.as_tensor(kl_weight, device=images.device, dtype=torch.float32)
        return self.method.loss(self, (images, chosen), Step(0, weight, temperature, len(images))).total

    @torch.no_grad()
    def predict(
        self,
        images: Tensor,
        samples: int = 16,
        length: int | Literal["drawn"] | None = None,
        seed: int | None = None,
    ) -> MaskPrediction:
        """Draw masks of images, latents of which come from the prior, and say what they have in common.

        Args:
            images: (B, in_channels, H, W), all of one size: others in calls of their own.
            samples: Masks of each.
            length: Dimensions of the latents, at least the method's base; None for all, "drawn" for lengths that are
                drawn from the prior too.
            seed: Makes the draws repeatable; the global generator is left as it was.
        """
        check_samples("predict", samples)
        self.check(images)
        draw = self.method.drawer(self, self.size_of(length))
        with seeded(seed, images):
            return MaskPrediction.of(class_probs(draw(images, samples)))

    def size_of(self, length: int | str | None) -> Size:
        """The size of a method that a length is."""
        full = self.config["latent"]
        if length is None:
            return Size("uniform", f"{full} of {full}", 1.0, 1.0)
        if not self.method.ordered:
            raise ValueError(f"predict: length must be None where latents have one length; got {length!r}")
        if length == "drawn":
            return self.method.others(self)[0]
        if not isinstance(length, int) or not self.method.base <= length <= full:
            wanted = f"be a whole number in {self.method.base} … {full}, 'drawn' or None"
            raise ValueError(f"predict: length must {wanted}; got {length!r}")
        return Size("uniform", f"{length} of {full}", length / full, length / full)

    def check(self, images: Tensor, masks: Tensor | None = None) -> None:
        """Refuse images and masks that it is not for."""
        channels, classes = self.config["in_channels"], self.num_classes
        like = isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point()
        if not like or images.size(1) != channels:
            got = f"{images.dtype} {tuple(images.shape)}" if isinstance(images, Tensor) else describe_value(images)
            raise ValueError(f"OrderedSegmenter: images must be floats (B, {channels}, H, W); got {got}")
        if can_look(images) and not bool(images.isfinite().all()):
            low, high = (float(value) for value in images.aminmax())
            raise ValueError(f"OrderedSegmenter: images must be finite; got {low:.4g} … {high:.4g}")
        if masks is None:
            return
        if masks.shape != (len(images), *images.shape[2:]):
            wanted = f"masks must be of the {len(images)} images, of {images.size(2)}×{images.size(3)}"
            raise ValueError(f"OrderedSegmenter: {wanted}; got {tuple(masks.shape)} of one grader each")
        most = max(classes, 2) - 1
        if can_look(masks) and bool((wrong := (masks < 0) | (masks > most) | (masks != masks.long())).any()):
            image = int(wrong.flatten(1).any(1).nonzero()[0])
            got = f"image {image} has {masks[image][wrong[image]][0].item():.4g}"
            raise ValueError(f"OrderedSegmenter: masks must be whole numbers in 0 … {most}; {got}")


def probabilistic(model: nn.Module) -> ProbabilisticSegmenter:
    """The probabilistic network that a model is."""
    root: Any = unwrap(model)
    return root  # type: ignore[no-any-return]


@register("bn3_unet", Traits(rank=15, name="BN³-UNet", order="learned", looks=mc("#009e73", "^", "-.")))
@dataclass(frozen=True)
class BN3UNet(Segmenter, BN3):
    r"""Learn the order of a UNet's channels together with a posterior over its weights.

    $$\mathcal L = \frac1B \sum_b -\log p(y_b \mid x_b, w, z) + \frac{κ}{N}\, \mathrm{KL}(q(w, z) \,\|\, p(w, z))$$

    with the likelihood of all pixels of a mask. Its options are those of `BN3`, but for a sandwich and smoothed labels,
    which are of classes. Paper: Sec. 6.3, 32 groups, 6 of them always kept.

    A mask is that of one draw of the weights for all positions, whatever estimator training had: outputs that are drawn
    by themselves, each pixel for itself, are a mask with noise and not one of many masks. They are the paper's own
    sampling, by which its layers draw outputs at a test too: `test_noise`.

    Args:
        test_noise: "weights" draws a mask as above, "pixels" as the paper does.
    """

    base: int = 6
    test_noise: Noise = "weights"
    student: ClassVar[None] = None  # masks are not distilled

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, none in (("sandwich", False), ("label_smoothing", 0.0)):
            if getattr(self, name) != none:
                raise ValueError(
                    f"{name} is of classes, and bn3_unet has masks; leave it out, got {getattr(self, name)}"
                )

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """Convert a UNet, or another network that segments."""
        check_plain(network, example)
        return super().build(network, example)

    def distinct(self, model: nn.Module) -> int | None:
        """Any number; one of point weights."""
        return None if self.bayesian else 1

    def ready(self, model: nn.Module, size: Size) -> nn.Module:
        """The network of a size, every pass of which draws weights for all positions, or outputs for each."""
        network = self.extract(model, size.width, "posterior").eval()
        for module in network.modules():
            if isinstance(module, BayesLayer):
                module.sampling, module.estimator = True, ESTIMATORS[self.test_noise]
        return network

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """One for each draw of the weights; of point weights, one pass for all."""
        drawn = super().masks(network, images, count if self.bayesian else 1, size)
        return drawn.expand(count, *drawn.shape[1:])

    def _likelihood(self, model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return likelihood(model(images), labels).mean()


@register("dropout_unet", Traits(rank=18, name="dropout UNet", looks=mc("#cc79a7", "X", DOTTED)))
@dataclass(frozen=True)
class DropoutUNet(Segmenter, Single):
    r"""Learn with dropout, and leave it on: every pass draws a mask.

    $$\mathcal L = -\log p(y \mid x, ξ), \qquad ξ \sim \mathrm{Bernoulli}(1 - \text{rate})$$

    Bayesian SegNet (Kendall et al., 2015), as Kohl et al. (2018) hold the probabilistic UNet against it.

    Args:
        rate: Probability that an input of an inner block is dropped; see `UNet`. Of another network, that of all its
            dropout.
    """

    rate: float = 0.5

    def build(self, network: nn.Module, example: Tensor) -> nn.Module:
        """The UNet with dropout, or another network that has some already."""
        if isinstance(network, UNet):
            return UNet(**network.config | {"dropout": self.rate})
        check_plain(network, example)
        if not (dropouts := dropouts_of(network)):
            raise ValueError(
                f"network.name must be unet, or a network that has dropout; a {type(network).__name__} has none"
            )
        for dropout in dropouts:
            dropout.p = self.rate
        return network

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Negative log-likelihood, a mean over the images."""
        surprise = likelihood(model(batch[0]), batch[1]).mean()
        return Terms(surprise, {"nll": surprise.detach()})

    def masks(self, network: Any, images: Tensor, count: int, size: Size) -> Tensor:
        """One a pass, with dropout, but with BatchNorm's statistics of training."""
        dropouts = dropouts_of(network)
        for dropout in dropouts:
            dropout.train()
        try:
            return super().masks(network, images, count, size)
        finally:
            for dropout in dropouts:
                dropout.eval()


def dropouts_of(network: nn.Module) -> list[Any]:
    """The dropout layers of a network."""
    kinds = nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d | nn.AlphaDropout | nn.FeatureAlphaDropout
    return [module for module in network.modules() if isinstance(module, kinds)]


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
        config = config_of(network, "to be made several times")
        if config.get("dropout"):
            raise ValueError(f"network.dropout must be 0 for unet_ensemble; got {config['dropout']}")
        if isinstance(network, UNet):
            return EnsembleUNet(members=self.members, **{key: x for key, x in config.items() if key != "dropout"})
        check_plain(network, example)
        return Ensemble(type(network)(**config) for _ in range(self.members))

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
