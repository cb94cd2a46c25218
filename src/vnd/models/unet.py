"""UNets, for segmentation: one mask of an image, those of an ensemble, or many, each of a latent that is drawn."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.functional import to_float32
from vnd.models.autoencoder import PrefixLinear, checked_heads
from vnd.models.initialise import arguments, check_sizes, conv_norm_relu, initialise, is_number


class UNet(nn.Module):
    r"""An encoder that halves the resolution, a decoder that doubles it again, joined at every level.

    With L levels of c₀ … c_{L−1} channels and `B` two 3×3 convolutions, each with BatchNorm and ReLU:

        encoder:  e₀ = B(x),            e_l = B(MaxPool(e_{l−1}))                   l = 1 … L−1
        decoder:  d_{L−1} = e_{L−1},    d_l = B([e_l, Up(d_{l+1})])                 l = L−2 … 0
        output:   a 1×1 convolution of d₀ to logits

    Up is a 2×2 transposed convolution of stride 2 from c_{l+1} to c_l channels, as in Ronneberger et al. (2015). With
    kernel and stride equal, each output has one input pixel, so that there is no overlap to draw a checkerboard. It is
    preferred to bilinear upsampling because it changes the channels itself, so that both sides of a concatenation have
    c_l, and because by default the gradient of bilinear upsampling is not deterministic on CUDA.

    Paper: Sec. 6.3, App. C.1, 32-64-128-192.

    Note: The paper says "UNet" and the encoder's channels. Padding keeps the size here, and there is a BatchNorm after
        each convolution; the UNet of 2015 has neither.

    With `dropout`, the inputs of both blocks of the deeper half of the levels, l ≥ L / 2, lose so large a share of
    their numbers in training, as in the middle of Bayesian SegNet (Kendall et al., 2015).

    The initialisation is that of all networks (`models/initialise.py`), but the output's convolution is a linear layer
    at each position and starts as one, from N(0, 1 / c₀).

    Args:
        in_channels: Channels of the images.
        num_classes: Logits of a pixel; 1 for a binary mask.
        channels: Channels of each level.
        dropout: Probability that an input of an inner block is dropped.

    Shape: (B, in_channels, H, W) to logits (B, num_classes, H, W); H and W multiples of 2^(L−1), by default 8.

    >>> network = UNet()
    >>> sum(p.numel() for p in network.parameters())
    1561633
    >>> network(torch.ones(2, 1, 16, 24)).shape
    torch.Size([2, 1, 16, 24])
    """

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 1,
        channels: Sequence[int] = (32, 64, 128, 192),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = arguments(locals())
        check_sizes("UNet", "channels", channels, least=1)
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise ValueError(f"UNet: dropout must lie in [0, 1); got {dropout!r}")
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout) if dropout else None  # nothing to trace where nothing is dropped
        self.encoder = nn.ModuleList(two_convolutions(i, o) for i, o in pairwise((in_channels, *channels)))
        deepest_first = tuple(pairwise(reversed(channels)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in deepest_first)
        self.decoder = nn.ModuleList(two_convolutions(2 * o, o) for _, o in deepest_first)
        self.output = nn.Conv2d(channels[0], num_classes, 1)
        initialise(self)
        nn.init.normal_(self.output.weight, std=channels[0] ** -0.5)

    def features(self, x: Tensor) -> Tensor:
        """d₀, what the decoder says of every pixel of a batch of images before logits are made of it."""
        first, *deeper = self.encoder
        x = first(self._dropped(x, 0))
        skips = []
        for level, block in enumerate(deeper, 1):
            skips.append(x)
            x = block(self._dropped(self.pool(x), level))
        for level, up, block in zip(reversed(range(len(skips))), self.up, self.decoder, strict=True):
            x = block(self._dropped(torch.cat((skips[level], up(x)), 1), level))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every pixel of a batch of images."""
        logits: Tensor = self.output(self.features(x))
        return logits

    def _dropped(self, x: Tensor, level: int) -> Tensor:
        """The input of a block, thinned out if its level is one of the deeper half."""
        if self.dropout is None or 2 * level < len(self.encoder):
            return x
        thinned: Tensor = self.dropout(x)
        return thinned


def two_convolutions(in_channels: int, out_channels: int) -> nn.Sequential:
    """A block: two 3×3 convolutions, each with BatchNorm and ReLU, that keep the resolution."""
    return nn.Sequential(*conv_norm_relu(in_channels, out_channels), *conv_norm_relu(out_channels, out_channels))


class EnsembleUNet(nn.Module):
    r"""M UNets that share nothing but their images; together they answer with the mean of their probabilities.

    $$p = \frac1M \sum_m σ(\ell_m), \qquad \text{logit} = \log p - \log (1 - p)$$

    Paper: Sec. 6.3, "a deep ensemble of UNet".

    Args:
        in_channels: Channels of the images.
        channels: Channels of each level.
        members: How many there are.

    Shape: (B, in_channels, H, W) to logits (B, 1, H, W); H and W multiples of 2^(L−1), by default 8.

    >>> network = EnsembleUNet(channels=(4, 8), members=3)
    >>> network(torch.ones(2, 1, 8, 8)).shape, network.logits(torch.ones(2, 1, 8, 8)).shape
    (torch.Size([2, 1, 8, 8]), torch.Size([3, 2, 8, 8]))
    """

    def __init__(self, in_channels: int = 1, channels: Sequence[int] = (32, 64, 128, 192), members: int = 4) -> None:
        super().__init__()
        self.config: dict[str, Any] = arguments(locals())
        self.members = nn.ModuleList(UNet(in_channels, 1, channels) for _ in range(members))

    def logits(self, x: Tensor) -> Tensor:
        """Those of every member, (M, B, H, W)."""
        return torch.stack([member(x).squeeze(1) for member in self.members])

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the members' mean probabilities."""
        logits = self.logits(x)
        return (F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)).unsqueeze(1)


class LatentNet(nn.Module):
    r"""Parameters of the latent: an encoder of images, its mean over positions, and one linear head a name.

    $$\mathrm{heads}(x)_k = W_k\, \overline{e_{L-1}(x)} + a_k$$

    with $e_l$ the blocks of the UNet's encoder, of so many `channels` a level.

    Shape: (B, in_channels, H, W) to (B, size) by name.
    """

    def __init__(self, in_channels: int, channels: Sequence[int], heads: Mapping[str, int]) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2)
        self.encoder = nn.ModuleList(two_convolutions(i, o) for i, o in pairwise((in_channels, *channels)))
        self.heads = nn.ModuleDict({name: nn.Linear(channels[-1], size) for name, size in heads.items()})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """The output of every head."""
        first, *deeper = self.encoder
        x = first(x)
        for block in deeper:
            x = block(self.pool(x))
        with torch.autocast(x.device.type, enabled=False):  # the KL is no better than what it is made of
            mean = to_float32(x).mean((2, 3))
            return {name: head(mean) for name, head in self.heads.items()}


class Combiner(nn.Module):
    r"""Masks of features and a latent: three 1×1 convolutions with ReLU, and one to a logit.

    $$u_1 = A f + \sum_{i \le b} h_i\, w_i, \qquad u_{j+1} = C_j\, \mathrm{ReLU}(u_j), \qquad
      \text{logit} = c^\top \mathrm{ReLU}(u_3)$$

    The first is the convolution of [f, h], h repeated at every position, taken apart: what the features give is
    computed once for all latents of an image, and a latent that stops at b is one that is zero from there on.

    Shape: features (B, channels, H, W) and latents (…, B, b), b ≤ `latent`, to logits (…, B, H, W).
    """

    def __init__(self, channels: int, latent: int) -> None:
        super().__init__()
        self.image = nn.Conv2d(channels, channels, 1)
        self.code = PrefixLinear(latent, channels, bias=False)
        hidden = [layer for _ in range(2) for layer in (nn.ReLU(), nn.Conv2d(channels, channels, 1))]
        self.hidden = nn.Sequential(*hidden, nn.ReLU())
        self.output = nn.Conv2d(channels, 1, 1)

    def forward(self, features: Tensor, h: Tensor) -> Tensor:
        """Logits of every pixel."""
        both = self.image(features) + self.code(h)[..., None, None]
        logits = self.output(self.hidden(both.flatten(0, -4)))
        return torch.as_tensor(logits).reshape(*both.shape[:-3], *both.shape[-2:])


class ProbabilisticUNet(nn.Module):
    r"""UNet whose last layers also read a latent h, with a net for its prior and one for its posterior.

        unet:       UNet without its output, features f(x)
        prior:      the UNet's encoder of x · mean over positions · heads, of p(h | x)
        posterior:  the same of [x, y], of q(h | x, y)
        combiner:   three 1×1 convolutions with ReLU of [f(x), h], h at every position · 1×1 to a logit

    Paper: Sec. 4.2, 6.3, after Kohl et al. (2018); 32-64-128-192, latent 6.

    Note: The paper does not give the layers of the nets nor of the combiner; these are those of Kohl et al., with a
        BatchNorm after each 3×3 convolution, as in the UNet.

    The initialisation is that of all networks (`models/initialise.py`), but the output's convolution starts from
    N(0, 1 / c₀), as that of the UNet.

    Args:
        in_channels: Channels of the images.
        channels: Channels of each level, of the UNet and of both nets.
        latent: Dimensions of the latent.
        heads: The size of each output of prior and posterior by its name, `loc` among them; None for `loc` alone, of
            `latent`.

    Shape: (B, in_channels, H, W) to logits (B, 1, H, W); H and W multiples of 2^(L−1), by default 8.

    >>> network = ProbabilisticUNet(heads={"loc": 6, "log_variance": 6, "keep_logits": 4})
    >>> sum(p.numel() for p in network.parameters())
    3252673
    >>> x, y = torch.ones(2, 1, 16, 24), torch.zeros(2, 16, 24)
    >>> {name: tuple(out.shape) for name, out in network.describe(x, y).items()}
    {'loc': (2, 6), 'log_variance': (2, 6), 'keep_logits': (2, 4)}
    >>> network.combine(network.unet(x), torch.zeros(2, 6)).shape, network(x).shape
    (torch.Size([2, 16, 24]), torch.Size([2, 1, 16, 24]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        channels: Sequence[int] = (32, 64, 128, 192),
        latent: int = 6,
        heads: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = arguments(locals())
        check_sizes("ProbabilisticUNet", "channels", channels, least=1)
        sizes = checked_heads("ProbabilisticUNet", heads, latent, "latent")
        self.unet = UNet(in_channels, 1, channels)
        self.unet.output = nn.Identity()  # type: ignore[assignment]  # its features are what is asked for
        self.prior = LatentNet(in_channels, channels, sizes)
        self.posterior = LatentNet(in_channels + 1, channels, sizes)
        self.combiner = Combiner(channels[0], latent)
        initialise(self)
        nn.init.normal_(self.combiner.output.weight, std=channels[0] ** -0.5)

    def describe(self, x: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        """The heads of the prior for images, or of the posterior for images and their masks (B, H, W)."""
        heads = self.prior(x) if y is None else self.posterior(torch.cat((x, y.unsqueeze(1).to(x.dtype)), 1))
        return dict(heads)

    def combine(self, features: Tensor, h: Tensor) -> Tensor:
        """Logits (…, B, H, W) of features (B, c₀, H, W) and latents (…, B, b); what is missing of them counts as 0."""
        logits: Tensor = self.combiner(features, h)
        return logits

    def forward(self, x: Tensor) -> Tensor:
        """Logits of every pixel at the prior's means."""
        return self.combine(self.unet(x), self.describe(x)["loc"]).unsqueeze(1)
