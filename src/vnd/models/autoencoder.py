"""Auto-encoders whose decoders take codes of any length: a convolutional one and one of dense layers."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.models.initialise import arguments, check_counts, check_sizes, initialise, scaled

CHANNELS = (32, 64, 128, 256, 512)


class PrefixLinear(nn.Linear):
    r"""A linear layer whose input may stop early: $y = \sum_{i \le b} x_i\, w_i + c$ for x of b entries.

    $w_i$ are the columns of the weight. Only b of them are read, for the sums of an input that is zero from there on.
    A layer of its own and not a function, so that what hooks count and see has it.
    """

    def forward(self, input: Tensor) -> Tensor:  # torch's name
        """Apply the layer to (…, b), with b at most `in_features`."""
        return F.linear(input, self.weight[:, : input.shape[-1]], self.bias)


class CodedNetwork(nn.Module):
    r"""Base of all auto-encoders: one linear head a name, and codes that may stop early.

    $$\mathrm{encode}(x)_k = W_k f(x) + a_k, \qquad
      \mathrm{decode}(h) = g\Bigl(\sum_{i \le b} \bigl(h_i\, w_i + \tfrac1d u_i\bigr) + c\Bigr)$$

    f is `features`, $W_k$, $a_k$ the head `heads[k]`, $w_i$ the columns and c the bias of `expand`, g the `decoder`, d
    the length of the whole code. A code of b dimensions is one whose other dimensions are zeros, and costs b columns
    only: truncation is masking.

    $u_i$, the columns of `length_biases`, are there with `length_bias` only: they tell the decoder how long a code is,
    which zeros alone do not, since they are also what dimensions hold on average. At any one length they are a part of
    the bias c, and the network is the one without them. They start at zero, and with 1/d all of them together learn as
    fast as one bias. The length is read off the code, as that up to its last entry that is not zero: whoever means a
    zero there to be kept gives a tiny number, and no gradient reaches a mask this way.
    """

    config: dict[str, Any]
    grown: Tensor  # where something of a method stands that changes in training, in [0, 1]
    features: nn.Sequential
    heads: nn.ModuleDict
    expand: PrefixLinear
    length_biases: PrefixLinear | None
    decoder: nn.Sequential

    def __init__(self) -> None:
        super().__init__()
        self.grown = torch.zeros(())

    @property
    def dimensions(self) -> int:
        """Dimensions of the longest code."""
        return int(self.config["latent_dim"])

    @property
    def device(self) -> torch.device:
        """Device of the network."""
        return next(self.parameters()).device

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """The output of every head for images (B, in_channels, image_size, image_size), each (B, its size)."""
        channels, side = self.config["in_channels"], self.config["image_size"]
        if x.shape[1:] != (channels, side, side):
            raise ValueError(
                f"{type(self).__name__}: images must have shape (B, {channels}, {side}, {side}); got {tuple(x.shape)}"
            )
        features = self.features(x)
        return {name: head(features) for name, head in self.heads.items()}

    def decode(self, code: Tensor) -> Tensor:
        """Images of codes (B, b) with b ≤ `latent_dim`; the dimensions that are missing count as zeros."""
        if code.ndim != 2 or not 1 <= code.shape[1] <= self.expand.in_features:
            raise ValueError(
                f"{type(self).__name__}: codes must have shape (B, b) with b in 1 … {self.expand.in_features}; "
                f"got {tuple(code.shape)}"
            )
        entered = self.expand(code)
        if self.length_biases is not None:
            entered = entered + self.length_biases(reached(code) / self.expand.in_features)
        images: Tensor = self.decoder(entered)
        return images

    def forward(self, x: Tensor) -> Tensor:
        """The images decoded from the head `loc` of a batch of images."""
        return self.decode(self.encode(x)["loc"])

    def _add_code(self, flat: int, heads: Mapping[str, int]) -> None:
        """Make the layers between features and decoder, both of `flat` numbers; called in the order of the layers."""
        latent_dim, length_bias = self.config["latent_dim"], self.config["length_bias"]
        self.heads = nn.ModuleDict({name: nn.Linear(flat, size) for name, size in heads.items()})
        self.expand = PrefixLinear(latent_dim, flat)
        self.length_biases = PrefixLinear(latent_dim, flat, bias=False) if length_bias else None

    def _initialise(self) -> None:
        initialise(self)
        if self.length_biases is not None:
            nn.init.zeros_(self.length_biases.weight)


def reached(code: Tensor) -> Tensor:
    """1 for each dimension up to the last one that is not zero, 0 beyond it, of codes (B, b).

    >>> import torch
    >>> reached(torch.tensor([[0.5, 0.0, -2.0, 0.0], [0.0, 0.0, 0.0, 0.0]]))
    tensor([[1., 1., 1., 0.],
            [0., 0., 0., 0.]])
    """
    from_here = (code != 0).flip(1).cumsum(1).flip(1)
    return (from_here > 0).to(code.dtype)


class AutoEncoder(CodedNetwork):
    r"""Five convolutions of stride 2 to a code, and transposed ones back to the image.

    With w = `width`, s = `image_size` / 32, `C` a 3×3 convolution of stride 2, BatchNorm and LeakyReLU, and `T` the
    same with a transposed convolution, which doubles the side:

        features:  C(32w) · C(64w) · C(128w) · C(256w) · C(512w) · flatten
        heads:     Linear(512w · s², size), one for each name
        expand:    Linear(latent_dim, 512w · s²)
        decoder:   T(256w) · T(128w) · T(64w) · T(32w) · T(32w) · 3×3 convolution to in_channels · tanh if `bounded`

    Convolutions before a BatchNorm have no bias. The initialisation is that of all networks
    (`models/initialise.py`), for which the slope 0.01 of LeakyReLU is as good as ReLU's 0; but the last convolution
    starts from N(0, 1 / fan-in), since by fan-out, 32w channels to three, it would drive tanh into its flat ends.

    Paper: Sec. 6.2, "five convolutional layers following with BatchNorm", LeakyReLU, code 128.

    Note: The paper gives neither channels nor decoder; these are the ones common for variational auto-encoders in
        PyTorch.

    Args:
        latent_dim: Largest number of dimensions of a code.
        image_size: Height and width of the images, a multiple of 32.
        in_channels: Channels of the images.
        width: Factor on the channels of every convolution; rounded, at least one channel.
        heads: The size of each output of the encoder by its name, `loc` among them; None for `loc` alone.
        bounded: Whether the images lie between −1 and 1, by tanh.
        length_bias: Whether the decoder is told how long a code is. None: as the method has it, VND-AE true and others
            false; a network without a method is not told.

    Shape: (B, in_channels, image_size, image_size) to the same.

    >>> import torch
    >>> network = AutoEncoder(heads={"loc": 128, "log_scale": 128, "keep_logits": 127})
    >>> sum(p.numel() for p in network.parameters())
    4196354
    >>> x = torch.ones(2, 3, 64, 64)
    >>> {name: tuple(out.shape) for name, out in network.encode(x).items()}
    {'loc': (2, 128), 'log_scale': (2, 128), 'keep_logits': (2, 127)}
    >>> network.decode(torch.ones(2, 32)).shape
    torch.Size([2, 3, 64, 64])
    """

    def __init__(
        self,
        latent_dim: int = 128,
        image_size: int = 64,
        in_channels: int = 3,
        width: float = 1.0,
        heads: Mapping[str, int] | None = None,
        bounded: bool = True,
        length_bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.config = arguments(locals())
        if image_size % 32:
            raise ValueError(f"AutoEncoder: image_size must be a multiple of 32; got {image_size}")
        sizes = checked_heads("AutoEncoder", heads, latent_dim)
        side, channels = image_size // 32, [scaled(size, width) for size in CHANNELS]
        flat = channels[-1] * side**2
        down: list[nn.Module] = []
        for i, o in pairwise((in_channels, *channels)):
            down += [nn.Conv2d(i, o, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(o), nn.LeakyReLU()]
        self.features = nn.Sequential(*down, nn.Flatten())
        self._add_code(flat, sizes)
        up: list[nn.Module] = []
        for i, o in pairwise((*reversed(channels), channels[0])):
            up.append(nn.ConvTranspose2d(i, o, 3, stride=2, padding=1, output_padding=1, bias=False))
            up += [nn.BatchNorm2d(o), nn.LeakyReLU()]
        output = nn.Conv2d(channels[0], in_channels, 3, padding=1)
        self.decoder = nn.Sequential(
            nn.Unflatten(1, (channels[-1], side, side)), *up, output, *([nn.Tanh()] if bounded else [])
        )
        self._initialise()
        nn.init.normal_(output.weight, std=(9 * channels[0]) ** -0.5)


class DenseAutoEncoder(CodedNetwork):
    r"""Dense layers with ReLU to a code, and the same sizes back to the image.

    With d = in_channels · image_size² and `hidden` h₁ … h_L:

        features:  flatten · Linear(d, h₁) · ReLU ⋯ Linear(h_{L−1}, h_L) · ReLU
        heads:     Linear(h_L, size), one for each name
        expand:    Linear(latent_dim, h_L)
        decoder:   ReLU · Linear(h_L, h_{L−1}) ⋯ ReLU · Linear(h₁, d) · tanh if `bounded`

    Without hidden layers and not bounded, it is linear, one layer each way, and ordered training of it is principal
    component analysis (Rippel et al., 2014).

    Paper: Sec. 4.1, the toy example on MNIST.

    Note: The paper does not give the toy's layers.

    Args:
        latent_dim: Largest number of dimensions of a code.
        image_size: Height and width of the images.
        in_channels: Channels of the images.
        hidden: Sizes of the hidden layers of the encoder; the decoder has them in reverse.
        heads, bounded, length_bias: As of `AutoEncoder`.

    Shape: (B, in_channels, image_size, image_size) to the same.

    >>> import torch
    >>> network = DenseAutoEncoder()
    >>> sum(p.numel() for p in network.parameters())
    1069332
    >>> network.decode(network.encode(torch.ones(2, 1, 28, 28))["loc"][:, :2]).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        latent_dim: int = 4,
        image_size: int = 28,
        in_channels: int = 1,
        hidden: Sequence[int] = (512, 256),
        heads: Mapping[str, int] | None = None,
        bounded: bool = True,
        length_bias: bool | None = None,
    ) -> None:
        super().__init__()
        self.config = arguments(locals())
        check_sizes("DenseAutoEncoder", "hidden", hidden, least=0)
        outputs = checked_heads("DenseAutoEncoder", heads, latent_dim)
        sizes = (in_channels * image_size**2, *hidden)
        down: list[nn.Module] = []
        for i, o in pairwise(sizes):
            down += [nn.Linear(i, o), nn.ReLU()]
        self.features = nn.Sequential(nn.Flatten(), *down)
        self._add_code(sizes[-1], outputs)
        up: list[nn.Module] = []
        for i, o in pairwise(reversed(sizes)):
            up += [nn.ReLU(), nn.Linear(i, o)]
        shape = (in_channels, image_size, image_size)
        self.decoder = nn.Sequential(*up, nn.Unflatten(1, shape), *([nn.Tanh()] if bounded else []))
        self._initialise()


def checked_heads(
    owner: str, heads: Mapping[str, int] | None, latent_dim: int, option: str = "latent_dim"
) -> dict[str, int]:
    """The heads' sizes by their names; None for `loc` alone, whose largest size is the network's `option`.

    A name must be one that torch takes for a layer in `nn.ModuleDict`.
    """
    if heads is None:
        return {"loc": latent_dim}
    if not isinstance(heads, Mapping) or "loc" not in heads:
        raise ValueError(f"{owner}: heads must be a mapping of names to sizes with one named 'loc'; got {heads!r}")
    taken = nn.ModuleDict()
    for name, size in heads.items():
        if not isinstance(name, str) or not name.isidentifier() or hasattr(taken, name):
            raise ValueError(f"{owner}: heads must have plain words as names, none of nn.ModuleDict's; got {name!r}")
        check_counts(owner, **{f"heads[{name!r}]": size})
    if heads["loc"] > latent_dim:
        raise ValueError(f"{owner}: heads['loc'] must be at most {option} = {latent_dim}; got {heads['loc']}")
    return dict(heads)
