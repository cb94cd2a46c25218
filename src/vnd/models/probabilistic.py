"""Networks that draw masks: features of a backbone, read together with a latent, its prior and its posterior."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.functional import to_float32
from vnd.models.autoencoder import PrefixLinear, checked_heads
from vnd.models.initialise import arguments, check_counts, check_sizes, initialise
from vnd.models.unet import UNet, at_any_size, encoder, padded
from vnd.nn.arguments import Output, describe_value, pick_tensor

CHANNELS = (32, 64, 128, 192)


class LatentNet(nn.Module):
    r"""Parameters of the latent: an encoder of images, its mean over positions, and one linear head a name.

    $$\mathrm{heads}(x)_k = W_k\, \overline{e_{L-1}(x)} + a_k$$

    with $e_l$ the blocks of the UNet's encoder, of so many `channels` a level.

    Shape: (B, in_channels, H, W) of any size to (B, size) by name.
    """

    def __init__(
        self,
        in_channels: int,
        channels: Sequence[int],
        heads: Mapping[str, int],
        convolutions: int = 2,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.encoder = encoder(in_channels, channels, convolutions, norm)
        self.heads = nn.ModuleDict({name: nn.Linear(channels[-1], size) for name, size in heads.items()})

    def set_heads(self, heads: Mapping[str, int]) -> None:
        """Put new heads in the place of those that there are."""
        channels = next(iter(self.heads.values())).in_features
        self.heads = nn.ModuleDict({name: nn.Linear(int(channels), size) for name, size in heads.items()})  # type: ignore[arg-type]
        initialise(self.heads)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The output of every head."""
        first, *deeper = self.encoder
        divisor = 2 ** len(deeper)
        x = first(x if min(x.shape[-2:]) >= divisor else padded(x, divisor))  # or pooling would leave nothing
        for block in deeper:
            x = block(self.pool(x))
        with torch.autocast(x.device.type, enabled=False):  # the KL is no better than what it is made of
            mean = to_float32(x).mean((2, 3))
            return {name: head(mean) for name, head in self.heads.items()}


class Combiner(nn.Module):
    r"""Masks of features and a latent: three 1×1 convolutions with ReLU, and one to the logits.

    $$u_1 = A f + \sum_{i \le b} h_i\, w_i, \qquad u_{j+1} = C_j\, \mathrm{ReLU}(u_j), \qquad
      \text{logits} = C_3\, \mathrm{ReLU}(u_3)$$

    The first is the convolution of [f, h], h repeated at every position, taken apart: what the features give is
    computed once for all latents of an image, and a latent that stops at b is one that is zero from there on.

    Shape: features (B, channels, H, W) and latents (…, B, b), b ≤ `latent`, to logits (…, B, num_classes, H, W).
    """

    def __init__(self, channels: int, latent: int, num_classes: int = 1) -> None:
        super().__init__()
        self.image = nn.Conv2d(channels, channels, 1)
        self.code = PrefixLinear(latent, channels, bias=False)
        hidden = [layer for _ in range(2) for layer in (nn.ReLU(), nn.Conv2d(channels, channels, 1))]
        self.hidden = nn.Sequential(*hidden, nn.ReLU())
        self.output = nn.Conv2d(channels, num_classes, 1)

    def forward(self, features: Tensor, h: Tensor) -> Tensor:
        """Logits of every pixel."""
        both = self.image(features) + self.code(h)[..., None, None]
        logits = self.output(self.hidden(both.flatten(0, -4)))
        return torch.as_tensor(logits).reshape(*both.shape[:-3], *logits.shape[1:])


class ProbabilisticSegmenter(nn.Module):
    r"""Network of any backbone whose last layers also read a latent h, with a net for its prior and its posterior.

        unet:       the backbone, images to features f(x)
        prior:      a UNet's encoder of x · mean over positions · heads, of p(h | x)
        posterior:  the same of [x, y], of q(h | x, y), with a channel for the mask, or one for each of several classes
        combiner:   three 1×1 convolutions with ReLU of [f(x), h], h at every position · 1×1 to the logits

    Paper: Sec. 4.2, after Kohl et al. (2018). It has no loss: `vnd.OrderedSegmenter` is this with the loss of
    VND-PUNet, and the methods `vnd_punet` and `punet` train any network that has `features`, `describe`, `combine` and
    `with_heads` as here, and `config["latent"]`: in recipes, a class of one's own that extends this one.

    The backbone keeps its weights; the other parts start as all networks do (`models/initialise.py`), but the output's
    convolution from N(0, 1 / num_features).

    Args:
        backbone: Images (B, in_channels, H, W) to maps (B, num_features, H', W'). Maps of another size than the images
            are brought to that, bilinearly.
        num_features: Channels of its maps.
        num_classes: Classes of a pixel, the first of them background; 1 for one logit, that of the foreground.
        latent: Dimensions of the latent.
        in_channels: Channels of the images.
        heads: The size of each output of prior and posterior by its name, `loc` among them; None for `loc` alone, of
            `latent`.
        prior: In place of ours: images to a dict of the heads, (B, size) by name.
        posterior: In place of ours: the same of images and masks side by side, `in_channels` and after them a channel
            of the mask, or `num_classes` of which one is 1.
        channels: Channels of each level of both nets, where they are ours.
        divisor: What the backbone needs sides to be multiples of: others are padded (`padded`), and maps cropped.
        output: The maps, where the backbone gives several tensors; see `vnd.predict`.
        convolutions, norm: Of a block of both nets; see `UNet`.

    Shape: (B, in_channels, H, W) to logits (B, num_classes, H, W), of any size.

    >>> network = ProbabilisticSegmenter(nn.Conv2d(3, 8, 3, padding=1), 8, num_classes=4, in_channels=3)
    >>> x, y = torch.ones(2, 3, 15, 21), torch.zeros(2, 15, 21)
    >>> network.describe(x, y)["loc"].shape, network.combine(network.features(x), torch.zeros(5, 2, 6)).shape
    (torch.Size([2, 6]), torch.Size([5, 2, 4, 15, 21]))
    """

    config: dict[str, Any]

    def __init__(
        self,
        backbone: nn.Module,
        num_features: int,
        num_classes: int = 1,
        latent: int = 6,
        in_channels: int = 1,
        heads: Mapping[str, int] | None = None,
        prior: nn.Module | None = None,
        posterior: nn.Module | None = None,
        channels: Sequence[int] = CHANNELS,
        divisor: int = 1,
        output: Output | None = None,
        convolutions: int = 2,
        norm: bool = True,
    ) -> None:
        super().__init__()
        who = type(self).__name__
        if not isinstance(backbone, nn.Module):
            raise ValueError(f"{who}: backbone must be an nn.Module; got a {type(backbone).__name__}")
        counts = {"num_features": num_features, "num_classes": num_classes, "latent": latent}
        check_counts(who, **counts, in_channels=in_channels, divisor=divisor, convolutions=convolutions)
        check_sizes(who, "channels", channels, least=1)
        sizes = checked_heads(who, heads, latent, "latent")
        self.config = {"num_classes": num_classes, "latent": latent, "in_channels": in_channels, "heads": heads}
        self.num_features, self.divisor, self.output = num_features, divisor, output
        blocks: Any = {"convolutions": convolutions, "norm": norm}
        masks = num_classes if num_classes > 1 else 1
        ours = prior is None, posterior is None
        self.unet = backbone
        self.prior = prior or LatentNet(in_channels, channels, sizes, **blocks)
        self.posterior = posterior or LatentNet(in_channels + masks, channels, sizes, **blocks)
        self.combiner = Combiner(num_features, latent, num_classes)
        self._initialise(ours)

    def _initialise(self, ours: tuple[bool, bool]) -> None:
        """The random start of all parts but those that were given."""
        for net, new in ((self.prior, ours[0]), (self.posterior, ours[1]), (self.combiner, True)):
            if new:
                initialise(net)
        nn.init.normal_(self.combiner.output.weight, std=self.num_features**-0.5)

    def with_heads(self, heads: Mapping[str, int]) -> Self:
        """A copy whose prior and posterior, where they are ours, have new heads, as a method wants them."""
        network = copy.deepcopy(self)
        for net in (network.prior, network.posterior):
            if isinstance(net, LatentNet):
                net.set_heads(heads)
        network.config = {**self.config, "heads": dict(heads)}
        return network

    @property
    def num_classes(self) -> int:
        """Logits of a pixel."""
        return self.combiner.output.out_channels

    def features(self, x: Tensor) -> Tensor:
        """The maps of the backbone (B, num_features, H, W)."""
        return at_any_size(self._maps, x, self.divisor)

    def _maps(self, x: Tensor) -> Tensor:
        """The same of images that fit the backbone."""
        who = type(self).__name__
        maps = pick_tensor(self.unet(x), self.output, who)
        if maps.ndim != 4 or maps.shape[:2] != (x.size(0), self.num_features):
            wanted = f"maps ({len(x)}, num_features = {self.num_features}, H, W)"
            raise ValueError(f"{who}: the backbone must give {wanted}; got {tuple(maps.shape)}")
        if maps.shape[-2:] != x.shape[-2:]:
            maps = F.interpolate(maps, x.shape[-2:], mode="bilinear", align_corners=False)
        return maps

    def describe(self, x: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        """The heads of the prior for images, or of the posterior for images and their masks (B, H, W)."""
        heads = self.prior(x) if y is None else self.posterior(torch.cat((x, self._channels(y).to(x.dtype)), 1))
        wanted = {name: (x.size(0), n) for name, n in (self.config["heads"] or {"loc": self.config["latent"]}).items()}
        given = dict(heads) if isinstance(heads, Mapping) else {}
        if any(getattr(given.get(name), "shape", None) != shape for name, shape in wanted.items()):
            got = {name: tuple(value.shape) for name, value in given.items() if isinstance(value, Tensor)}
            said, found = (", ".join(f"{name} {shape}" for name, shape in shapes.items()) for shapes in (wanted, got))
            which = "prior" if y is None else "posterior"
            who = f"{type(self).__name__}: {which} must give a dict of {said}"
            raise ValueError(f"{who}; got {found or describe_value(heads)}")
        return given

    def _channels(self, y: Tensor) -> Tensor:
        """Masks as channels: their own one, or one of 0 and 1 for each class."""
        if self.num_classes == 1:
            return y.unsqueeze(1)
        return (y.unsqueeze(1) == torch.arange(self.num_classes, device=y.device).view(-1, 1, 1)).float()

    def combine(self, features: Tensor, h: Tensor) -> Tensor:
        """Logits (…, B, num_classes, H, W) of features and latents (…, B, b); what is missing of them counts as 0."""
        logits: Tensor = self.combiner(features, h)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every pixel at the prior's means."""
        return self.combine(self.features(x), self.describe(x)["loc"])


class ProbabilisticUNet(ProbabilisticSegmenter):
    r"""UNet whose last layers also read a latent h: `ProbabilisticSegmenter` with a UNet without its output.

    Paper: Sec. 4.2, 6.3, after Kohl et al. (2018); 32-64-128-192, latent 6.

    Note: The paper does not give the layers of the nets nor of the combiner. These are those of Kohl et al., but a
        block has two 3×3 convolutions with a BatchNorm after each, as in our UNet, in place of three without:
        `convolutions=3, norm=False` gives the published blocks. The published encoders pool by means, and the decoder
        upsamples bilinearly.

    The initialisation is that of all networks (`models/initialise.py`), but the output's convolution starts from
    N(0, 1 / c₀), as that of the UNet.

    Args:
        in_channels: Channels of the images.
        channels: Channels of each level, of the UNet and of both nets.
        latent: Dimensions of the latent.
        heads: The size of each output of prior and posterior by its name, `loc` among them; None for `loc` alone, of
            `latent`.
        num_classes: Classes of a pixel, the first of them background; 1 for one logit, that of the foreground.
        convolutions: Of a block.
        norm: Whether a BatchNorm follows each.

    Shape: (B, in_channels, H, W) to logits (B, num_classes, H, W), of any size, as of `UNet`.

    >>> network = ProbabilisticUNet(heads={"loc": 6, "log_variance": 6, "keep_logits": 4})
    >>> sum(p.numel() for p in network.parameters())
    3252673
    >>> x, y = torch.ones(2, 1, 16, 24), torch.zeros(2, 16, 24)
    >>> {name: tuple(out.shape) for name, out in network.describe(x, y).items()}
    {'loc': (2, 6), 'log_variance': (2, 6), 'keep_logits': (2, 4)}
    >>> network.combine(network.features(x), torch.zeros(2, 6)).shape, network(x).shape
    (torch.Size([2, 1, 16, 24]), torch.Size([2, 1, 16, 24]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        channels: Sequence[int] = CHANNELS,
        latent: int = 6,
        heads: Mapping[str, int] | None = None,
        num_classes: int = 1,
        convolutions: int = 2,
        norm: bool = True,
    ) -> None:
        config = arguments(locals())
        check_sizes("ProbabilisticUNet", "channels", channels, least=1)
        blocks: Any = {"convolutions": convolutions, "norm": norm}
        unet = UNet(in_channels, 1, channels, **blocks)
        unet.output = nn.Identity()  # type: ignore[assignment]  # its features are what is asked for
        super().__init__(unet, channels[0], num_classes, latent, in_channels, heads, channels=channels, **blocks)
        self.config = config

    def with_heads(self, heads: Mapping[str, int]) -> Self:
        """A new network of the same arguments, but for its heads."""
        return type(self)(**self.config | {"heads": dict(heads)})

    def _initialise(self, ours: tuple[bool, bool]) -> None:
        """The random start of all parts, the UNet's again among them."""
        initialise(self)
        nn.init.normal_(self.combiner.output.weight, std=self.num_features**-0.5)
