"""UNets, for segmentation: one mask of an image, or those of an ensemble; images may have any size."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.models.initialise import arguments, check_sizes, conv_norm_relu, initialise, is_number


class UNet(nn.Module):
    r"""An encoder that halves the resolution, a decoder that doubles it again, joined at every level.

    With L levels of c₀ … c_{L−1} channels and `B` some 3×3 convolutions, two by default, each with BatchNorm and ReLU:

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
        convolutions: Of a block; 3 in the probabilistic UNet as published.
        norm: Whether a BatchNorm follows each; none in the probabilistic UNet as published.

    Shape: (B, in_channels, H, W) to logits (B, num_classes, H, W). Where H or W is no multiple of 2^(L−1), by default
    8, the outermost pixels are repeated to the right and below (`padded`), and the logits are cut off again.

    >>> network = UNet()
    >>> sum(p.numel() for p in network.parameters())
    1561633
    >>> network(torch.ones(2, 1, 16, 24)).shape, network(torch.ones(2, 1, 13, 30)).shape
    (torch.Size([2, 1, 16, 24]), torch.Size([2, 1, 13, 30]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        num_classes: int = 1,
        channels: Sequence[int] = (32, 64, 128, 192),
        dropout: float = 0.0,
        convolutions: int = 2,
        norm: bool = True,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = arguments(locals())
        check_sizes("UNet", "channels", channels, least=1)
        if not is_number(dropout) or not 0 <= dropout < 1:
            raise ValueError(f"UNet: dropout must lie in [0, 1); got {dropout!r}")
        self.pool = nn.MaxPool2d(2)
        self.dropout = nn.Dropout(dropout) if dropout else None  # nothing to trace where nothing is dropped
        self.encoder = encoder(in_channels, channels, convolutions, norm)
        deepest_first = tuple(pairwise(reversed(channels)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in deepest_first)
        self.decoder = nn.ModuleList(block(2 * o, o, convolutions, norm) for _, o in deepest_first)
        self.output = nn.Conv2d(channels[0], num_classes, 1)
        initialise(self)
        nn.init.normal_(self.output.weight, std=channels[0] ** -0.5)

    def features(self, x: Tensor) -> Tensor:
        """d₀, what the decoder says of every pixel of a batch of images before logits are made of it."""
        return at_any_size(self._decoded, x, 2 ** (len(self.encoder) - 1))

    def _decoded(self, x: Tensor) -> Tensor:
        """The same of images whose sides are multiples of 2^(L−1)."""
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


def block(in_channels: int, out_channels: int, convolutions: int, norm: bool) -> nn.Sequential:
    """A block: 3×3 convolutions that keep the resolution, each with ReLU, and before it a BatchNorm if wanted."""
    layers = list[nn.Module]()
    for inputs in (in_channels, *[out_channels] * (convolutions - 1)):
        if norm:
            layers += conv_norm_relu(inputs, out_channels)
        else:
            layers += [nn.Conv2d(inputs, out_channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def encoder(in_channels: int, channels: Sequence[int], convolutions: int, norm: bool) -> nn.ModuleList:
    """The blocks of so many levels, from the images on."""
    return nn.ModuleList(block(i, o, convolutions, norm) for i, o in pairwise((in_channels, *channels)))


def padded(x: Tensor, divisor: int) -> Tensor:
    """Images (…, H, W) whose sides are multiples of a number: the outermost pixels are repeated, right and below.

    Unlike the mirror image, that is there for images of any size, and unlike zeros it draws no edge.

    >>> padded(torch.ones(1, 1, 13, 16), 8).shape
    torch.Size([1, 1, 16, 16])
    """
    height, width = x.shape[-2:]
    below, right = -height % divisor, -width % divisor
    return F.pad(x, (0, right, 0, below), mode="replicate")


def at_any_size(network: Callable[[Tensor], Tensor], x: Tensor, divisor: int) -> Tensor:
    """Maps (…, H, W) of images that are `padded` for a network, and what it gives for the padding cut off again.

    Images that fit, and what stands for images where a network is traced, are handed on as they are.
    """
    if not isinstance(x, Tensor) or not any(side % divisor for side in x.shape[-2:]):
        return network(x)
    height, width = x.shape[-2:]
    return network(padded(x, divisor))[..., :height, :width]


class Ensemble(nn.Module):
    r"""Networks that share nothing but their images; together they answer with the mean of their probabilities.

    $$p = \frac1M \sum_m σ(\ell_m), \qquad \text{logit} = \log p - \log (1 - p)$$

    and with several classes $p = \frac1M \sum_m \operatorname{softmax}(\ell_m)$, whose logits are log p.

    Paper: Sec. 6.3, "a deep ensemble of UNet".

    Args:
        members: Networks from images (B, C, H, W) to logits (B, K, H, W).

    >>> network = Ensemble(nn.Conv2d(3, 2, 1) for _ in range(4))
    >>> network(torch.ones(5, 3, 8, 8)).exp().sum(1).allclose(torch.ones(5, 8, 8))
    True
    """

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def logits(self, x: Tensor) -> Tensor:
        """Those of every member, (M, B, K, H, W)."""
        return torch.stack([member(x) for member in self.members])

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the members' mean probabilities."""
        logits = self.logits(x)
        if logits.size(2) > 1:
            return logits.log_softmax(2).logsumexp(0) - math.log(len(logits))
        return F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)


class EnsembleUNet(Ensemble):
    r"""An `Ensemble` of M UNets from different random starts.

    Args:
        in_channels: Channels of the images.
        channels: Channels of each level.
        members: How many there are.
        num_classes, convolutions, norm: As of `UNet`.

    Shape: (B, in_channels, H, W) to logits (B, num_classes, H, W), of any size, as of `UNet`.

    >>> network = EnsembleUNet(channels=(4, 8), members=3)
    >>> network(torch.ones(2, 1, 8, 8)).shape, network.logits(torch.ones(2, 1, 8, 8)).shape
    (torch.Size([2, 1, 8, 8]), torch.Size([3, 2, 1, 8, 8]))
    """

    def __init__(
        self,
        in_channels: int = 1,
        channels: Sequence[int] = (32, 64, 128, 192),
        members: int = 4,
        num_classes: int = 1,
        convolutions: int = 2,
        norm: bool = True,
    ) -> None:
        config = arguments(locals())
        blocks: Any = {"convolutions": convolutions, "norm": norm}
        super().__init__(UNet(in_channels, num_classes, channels, **blocks) for _ in range(members))
        self.config: dict[str, Any] = config
