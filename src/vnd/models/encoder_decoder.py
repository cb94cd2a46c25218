"""Any encoder and any decoder as an auto-encoder with heads, whose codes may stop early."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn import functional as F

from vnd._text import on_one_line
from vnd.models.autoencoder import CodedNetwork, PrefixLinear, reached
from vnd.models.initialise import check_counts
from vnd.nn.predict import evaluating

MEANS, LOG_VARIANCES = ("loc", "mu", "mean", "embedding"), ("log_variance", "logvar", "log_var", "log_covariance")


class EncoderDecoder(CodedNetwork):
    r"""Heads on the features of any encoder; its codes, with zeros where they have stopped, to any decoder.

    $$\mathrm{encode}(x)_k = W_k f(x) + a_k, \qquad
      \mathrm{decode}(h) = g\Bigl(h ∘ z + \sum_{i \le b} \tfrac1d u_i\Bigr)$$

    with f the encoder, its features flattened, g the decoder, d the size of the code, b the length of h.

    - Of an **encoder** that gives one tensor all heads are new. One that gives means and log variances, (B, d) each, as
      a pair, by name (`embedding` and `log_covariance` of pythae) or as a `Normal`, keeps these two heads; other heads
      read both.
    - A **decoder** takes codes (B, d). If it cannot, it is tried on what the encoder gives, (B, C, H, W) say, and then
      a linear layer, `entry`, stands before it.
    - $u_i$ are there with `tell_length` only: they tell how long a code is, as `CodedNetwork` says, and start at zero.

    Both are run once, on the example, in evaluation mode.

    Args:
        encoder: A module of inputs (B, …), or a method of one.
        decoder: A module of codes, or a method of one, which gives a tensor, or one named `reconstruction`.
        example: Inputs, (B, …).
        latent_dim: Dimensions of the longest code; None for as many as the encoder gives.
        heads: Sizes of the heads by their names, for a size of the code; None for `loc` alone.
        tell_length: Tell the decoder how long a code is.
        alike: Require that what the decoder gives has the shape of the example.

    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(6, 5))
    >>> decoder = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3)))
    >>> network = EncoderDecoder(encoder, decoder, torch.zeros(4, 2, 3), latent_dim=3)
    >>> network.encode(torch.zeros(4, 2, 3))["loc"].shape, network.decode(torch.zeros(4, 1)).shape
    (torch.Size([4, 3]), torch.Size([4, 2, 3]))
    """

    def __init__(
        self,
        encoder: nn.Module | Callable[..., Any],
        decoder: nn.Module | Callable[..., Any],
        example: Tensor,
        latent_dim: int | None = None,
        heads: Callable[[int], Mapping[str, int]] | None = None,
        tell_length: bool = False,
        alike: bool = True,
    ) -> None:
        super().__init__()
        encoder, decoder = _module("encoder", encoder), _module("decoder", decoder)
        if not isinstance(example, Tensor) or example.ndim < 2 or not len(example):
            got = f"shape {tuple(example.shape)}" if isinstance(example, Tensor) else _kind(example)
            raise ValueError(f"example must be a batch of inputs, (B, …); got {got}")
        if latent_dim is not None:
            check_counts("EncoderDecoder", latent_dim=latent_dim)
        self.encoder, self.shape = encoder, example.shape[1:]
        with torch.no_grad(), evaluating(encoder):
            features, given = _features(_tried("encoder", encoder, example))
            features = features.clone()
        if features.shape[0] != len(example):
            raise ValueError(f"encoder must give features of {len(example)} inputs; got shape {tuple(features.shape)}")
        flat = features.flatten(1)
        size = latent_dim or (given["loc"] if given else features).size(-1)
        if latent_dim is None and not given and features.ndim != 2:
            raise ValueError(
                f"latent_dim must be given where the encoder's features are no (B, d); got {tuple(features.shape)}"
            )
        if given and latent_dim not in (None, given["loc"].size(1)):
            raise ValueError(
                f"latent_dim must be that of the encoder's means, {given['loc'].size(1)}; got {latent_dim}"
            )
        wanted = {"loc": size} if heads is None else dict(heads(size))
        self.taken = tuple(name for name in given if name in wanted and given[name].size(1) == wanted[name])
        self.features_size = flat.size(1)
        like: dict[str, Any] = {"device": features.device, "dtype": features.dtype}
        self.heads = nn.ModuleDict(
            {name: nn.Linear(flat.size(1), n, **like) for name, n in wanted.items() if name not in self.taken}
        )
        self.entry, shape = self._entry(decoder, features, example, size, alike)
        into = size if self.entry is None else flat.size(1)
        self.length_biases = PrefixLinear(size, into, bias=False, **like) if tell_length else None
        if self.length_biases is not None:
            nn.init.zeros_(self.length_biases.weight)
        self.entry_shape, self.decoder = shape, decoder  # type: ignore[assignment]
        self.config = {"latent_dim": size, "length_bias": tell_length}

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        """The output of every head for inputs (B, …), each (B, its size)."""
        if x.ndim != len(self.shape) + 1:
            raise ValueError(f"inputs must have shape (B, {_sizes(self.shape)}); got {tuple(x.shape)}")
        like = not x.is_floating_point() or x.dtype == self._dtype or torch.is_autocast_enabled(x.device.type)
        known = like and x.shape[1:] == self.shape  # else the encoder may refuse it, and may not
        features, given = _features(self.encoder(x) if known else _tried("encoder", self.encoder, x))
        flat = features.flatten(1)
        if flat.shape != (x.size(0), self.features_size):  # of any batch, for who traces it
            raise ValueError(
                f"inputs must give {self.features_size} features each, as (B, {_sizes(self.shape)}) did; "
                f"got {tuple(flat.shape)} of {tuple(x.shape)}"
            )
        return {name: given[name] for name in self.taken} | {name: head(flat) for name, head in self.heads.items()}

    def decode(self, code: Tensor) -> Tensor:
        """Output of the decoder for codes (B, b) with b ≤ `latent_dim`; missing dimensions are zeros."""
        size = self.dimensions
        if code.ndim != 2 or not 1 <= code.shape[1] <= size:
            raise ValueError(f"codes must have shape (B, b) with b in 1 … {size}; got {tuple(code.shape)}")
        code = code.to(self._dtype)
        entered = F.pad(code, (0, size - code.size(1))) if self.entry is None else self.entry(code)
        if self.length_biases is not None:
            entered = entered + self.length_biases(reached(code) / size)
        return _output(self.decoder(entered.view(-1, *self.entry_shape)))

    @property
    def _dtype(self) -> torch.dtype:
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.get_default_dtype())

    def _entry(
        self, decoder: nn.Module, features: Tensor, example: Tensor, size: int, alike: bool
    ) -> tuple[PrefixLinear | None, torch.Size]:
        """The layer before the decoder, if it needs one, and the shape of what the decoder takes."""
        reason = ""
        for shape in dict.fromkeys((torch.Size((size,)), features.shape[1:])):
            try:
                with torch.no_grad(), evaluating(decoder):
                    decoded = _output(decoder(features.new_zeros(len(example), *shape)))
            except Exception as error:
                reason = reason or on_one_line(error)[:200]
                continue
            if decoded.shape == example.shape or (not alike and decoded.shape[:1] == example.shape[:1]):
                plain = shape == (size,)
                return None if plain else PrefixLinear(
                    size, shape.numel(), device=features.device, dtype=features.dtype
                ), shape
            reason = reason or f"it gave {tuple(decoded.shape)} for inputs of {tuple(example.shape)}"
        raise ValueError(f"decoder must take codes (B, {size}) and give what the encoder takes; got: {reason}")


class _Method(nn.Module):
    """A method of a module, as a module that holds it."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def forward(self, x: Tensor) -> Any:
        return getattr(self.owner, self.name)(x)


def _module(name: str, part: Any) -> nn.Module:
    """A module as it is, a module's method as one; nothing else has weights that would be trained."""
    owner = getattr(part, "__self__", None)
    if not isinstance(part, nn.Module) and not isinstance(owner, nn.Module):
        raise ValueError(
            f"{name} must be a torch.nn.Module or a method of one, so that its weights are trained; got {_kind(part)}"
        )
    return part if isinstance(part, nn.Module) else _Method(owner, part.__name__)  # type: ignore[arg-type]


def _tried(name: str, module: nn.Module, x: Tensor) -> Any:
    """The output of a module; what it refuses is said in one line, with the shape."""
    try:
        return module(x)
    except Exception as error:
        line = on_one_line(error)[:200]
        raise ValueError(f"{name} must take inputs of shape {tuple(x.shape)}, {x.dtype}; got: {line}") from error


def _features(output: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The features that an encoder gives, and its means and log variances, if it gives these."""
    if isinstance(output, Tensor):
        return output, {}
    if isinstance(output, Independent):
        output = output.base_dist
    if isinstance(output, Normal):
        output = output.loc, 2 * output.scale.log()
    named = dict(output) if isinstance(output, Mapping) else vars(output) if hasattr(output, "__dict__") else {}
    loc, log_variance = (
        next((named[name] for name in names if isinstance(named.get(name), Tensor)), None)
        for names in (MEANS, LOG_VARIANCES)
    )
    if isinstance(output, tuple | list) and len(output) == 2:
        loc, log_variance = output
    if isinstance(loc, Tensor) and log_variance is None and sum(isinstance(x, Tensor) for x in named.values()) == 1:
        return loc, {}
    if (
        isinstance(loc, Tensor)
        and isinstance(log_variance, Tensor)
        and loc.ndim == 2
        and loc.shape == log_variance.shape
    ):
        return torch.cat((loc, log_variance), 1), {"loc": loc, "log_variance": log_variance}
    raise ValueError(
        "encoder must give a tensor of features, or means and log variances (B, d): two tensors, a Normal, or named "
        f"embedding and log_covariance; got {_kind(output)}"
    )


def _output(output: Any) -> Tensor:
    """The tensor that a decoder gives."""
    found = output["reconstruction"] if isinstance(output, Mapping) and "reconstruction" in output else output
    found = getattr(found, "reconstruction", found)
    if not isinstance(found, Tensor):
        raise ValueError(f"decoder must give a tensor, or one named reconstruction; got {_kind(output)}")
    return found


def _sizes(shape: torch.Size) -> str:
    return ", ".join(map(str, shape))


def _kind(value: Any) -> str:
    """A value in a few words.

    >>> _kind((torch.zeros(2, 3), 1))
    'tuple of (2, 3), int'
    """
    if isinstance(value, tuple | list):
        parts = [str(tuple(x.shape)) if isinstance(x, Tensor) else type(x).__name__ for x in value]
        return f"{type(value).__name__} of {', '.join(parts)}"
    if isinstance(value, Mapping):
        return f"{type(value).__name__} of {', '.join(map(str, value))}"
    return f"a {type(value).__name__}"
