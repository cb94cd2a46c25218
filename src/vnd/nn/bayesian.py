"""Bayesian layers: torch's own linear and convolutional layers, with a Gaussian posterior over each weight."""

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, Self, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal

from vnd.distributions import LogUniform, MultiplicativeNormal
from vnd.distributions.kl import gaussian_prior_kl, log_uniform_prior_kl
from vnd.functional import to_float32
from vnd.nn.bits import log_sizes, quantize
from vnd.nn.context import Draw, here, remade
from vnd.nn.noise import add_noise, draw_outputs, normal, source

Noise = Literal["weight", "channel", "layer"]
Estimator = Literal["local", "weight", "flipout"]
Operation = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # of input, weight and bias; linear in each

_OPTIONS = {"prior", "log_alpha_init", "noise", "estimator", "bayesian", "sampling", "expansion"}
_OPTIONS |= {"free_variance", "variance_share", "_input_mask", "_weight_mask", "_bits", "_pooled"}


class BayesLayer(nn.Module):
    r"""Layer with a posterior over its weights; mixed into one of torch's own layers, whose arguments come first.

    $$w = θ (1 + \sqrt α\, ε), \quad ε \sim \mathcal N(0, 1), \qquad q(w) = \mathcal N(θ, αθ^2)$$

    with θ = `weight`, torch's own parameter, and log α = `log_alpha`. Outputs are linear in the weights, so that by
    default they are drawn themselves, each with its mean and variance given the input $h$:

    $$b \sim \mathcal N(γ, δ), \qquad γ = h * θ + \text{bias}, \qquad δ = h^2 * αθ^2$$

    Paper: Eq. (sampling-fc), Sec. 3.4, and (sampling-conv), App. B.1; $*$ is the layer's linear operation. The bias has
    no noise: it is part of the mean only.

    Args:
        *args: As torch's layer takes them.
        prior: `LogUniform` (by default that of the paper) or a scalar `torch.distributions.Normal`. Under the latter
            the layer has a free `log_variance` = log σ² in the place of `log_alpha` (None), since αθ² vanishes with θ
            and the KL would not be finite. It starts at `log_alpha_init` + log θ², |θ| taken as at least 1e-4 and θ² as
            its mean over the weights that share an entry.
        log_alpha_init: Where log α starts.
        noise: What has a log α (or log σ²) of its own: each "weight", each output "channel", or the "layer". It
            broadcasts against `weight`; in a transposed convolution the groups share those of their channels.
        estimator: "local" draws outputs (above). "weight" draws one weight for the whole batch. "flipout" draws one
            perturbation of the weight and multiplies it by signs, independent for each example, on the input and on
            the output channels. A single output has the same law under all three. Between positions and examples,
            only "weight" has the posterior's correlations.
        bayesian: False for a plain layer that never samples and has zero KL, but can be masked.
        free_variance: A free log σ² under a `LogUniform` prior as well: then the noise of the gradient of θ does not
            grow with α, as sparse variational dropout needs it (Molchanov et al., 2017, Sec. 4.2).
        variance_share: With the "local" estimator, the share of a batch, its leading examples, through whose δ
            gradients flow, scaled to stand for all. Outputs have the same law, gradients the same expectation if
            examples come in random order; those of log α are noisier, and a step takes less time: at a quarter, half
            of what δ costs.
        **kwargs: As torch's layer takes them.

    Attributes:
        sampling: True to sample, False to use the means, None (default) to follow `training`. `vnd.predict` says for
            each of its calls, in the caller's context, and leaves this as it is.
        expansion: With S > 1 a batch of B inputs gives S·B outputs, the samples first: (S, B, …) flattened. They are
            separate draws; under the "local" estimator all share the statistics γ and δ.

    Shape: as torch's layer, with its dtype (under autocast, too; the statistics of the noise are float32 or wider).

    >>> issubclass(BayesLinear, BayesLayer), BayesLinear.plain.__name__
    (True, 'Linear')
    """

    plain: ClassVar[type[nn.Module]]  # torch's own layer
    input_dim: ClassVar[int] = 1  # the dimension of the weight that runs over input channels; the other is output
    weight: Tensor
    bias: Any  # Tensor | None
    log_alpha: nn.Parameter | None
    log_variance: nn.Parameter | None
    log_scale: nn.Parameter | None  # of weights whose bits are ordered
    _pooled: tuple[int, int] | None = None  # see `Draw`

    def __init__(
        self,
        *args: Any,
        prior: LogUniform | Normal | None = None,
        log_alpha_init: float = -3.0,
        noise: Noise = "weight",
        estimator: Estimator = "local",
        bayesian: bool = True,
        free_variance: bool = False,
        variance_share: float = 1.0,
        **kwargs: Any,
    ) -> None:
        if "_parameters" not in self.__dict__:
            super().__init__(*args, **kwargs)
        elif args or kwargs:  # `from_plain` has filled in torch's part
            raise ValueError(f"{type(self).__name__}: unknown options; got {', '.join(map(str, (*args, *kwargs)))}")
        self.prior: LogUniform | Normal = LogUniform() if prior is None else prior
        self.log_alpha_init, self.noise, self.estimator, self.bayesian = log_alpha_init, noise, estimator, bayesian
        self.free_variance = free_variance or isinstance(self.prior, Normal)
        self.variance_share = variance_share
        self.sampling: bool | None = None
        self.expansion = 1
        self._pooled = None
        self._input_mask: tuple[Callable[[], Tensor]] | None = None  # in a tuple, so that it is never a submodule
        self._weight_mask: tuple[Callable[[], Tensor]] | None = None
        self._bits: tuple[Callable[[], Tensor]] | None = None
        self._check_options()

        shape = list(self.weight.shape) if noise == "weight" else [1] * self.weight.dim()
        if noise == "channel":
            shape[1 - self.input_dim] = self.weight.size(1 - self.input_dim)
        own = "log_variance" if self.free_variance else "log_alpha"
        for name in ("log_alpha", "log_variance"):
            values = self.weight.new_empty(shape) if noise != "weight" else torch.empty_like(self.weight)
            self.register_parameter(name, nn.Parameter(values) if bayesian and name == own else None)
        self.register_parameter("log_scale", None)
        self.reset_noise()

    @classmethod
    def from_plain(cls, layer: nn.Module, **options: Any) -> Self:
        """Make the Bayesian layer of torch's `layer`, with its parameters themselves, not copies, and its hooks."""
        if type(layer) is not cls.plain:
            raise ValueError(f"{cls.__name__}: layer must be a {cls.plain.__name__}; got a {type(layer).__name__}")
        new = cls.__new__(cls)
        new.__dict__ = attributes_of(layer)
        new.__init__(**options)  # type: ignore[misc]
        return new

    def to_plain(self, copy: bool = True) -> nn.Module:
        """Make torch's own layer with the posterior mean, or a copy of it; noise and masks stay behind."""
        new = self.plain.__new__(self.plain)
        new.__dict__ = {name: x for name, x in attributes_of(self).items() if name not in _OPTIONS}
        for name in ("log_alpha", "log_variance", "log_scale"):
            del new._parameters[name]
        for name, values in new._parameters.items():
            if values is not None and copy:
                new._parameters[name] = nn.Parameter(values.detach().clone(), values.requires_grad)
        return new

    @property
    def input_mask(self) -> Callable[[], Tensor] | None:
        """The source of the mask over input channels; see `set_input_mask`."""
        return self._input_mask[0] if self._input_mask else None

    def set_input_mask(self, source: Callable[[], Tensor] | None) -> None:
        """Multiply the input channels by `source()` in every pass from now on; None to stop.

        A mask of shape (in_channels,) multiplies the weights, which is the same function for less work; only where
        they see a part of the channels, in a grouped convolution that is not transposed, it multiplies the input. One
        of shape (batch, in_channels) multiplies the input. The source is a reference and no submodule.
        """
        self._input_mask = None if source is None else (source,)

    def set_weight_mask(self, source: Callable[[], Tensor] | None) -> None:
        """Multiply the single weights, in the order in which they lie, by `source()` in every pass; None to stop."""
        self._weight_mask = None if source is None else (source,)

    def set_weight_bits(self, source: Callable[[], Tensor]) -> None:
        """Keep the bits of the weights that `source()`, a mask over bits, says in every pass; see `vnd.nn.bits`.

        The layer gets a parameter `log_scale` for each output channel: the log of c over the root mean square of the
        channel's weights, so that c goes along with them in training. It starts where no weight is clipped.
        """
        if self.bayesian:
            raise ValueError(f"{type(self).__name__}: ordered bits need bayesian = False; got {self.bayesian}")
        self._bits = (source,)
        log_rms, log_largest = log_sizes(self.weight, 1 - self.input_dim)
        self.log_scale = nn.Parameter(log_largest - log_rms)

    def quantized(self, mask: Tensor) -> Tensor:
        """The weight of the bits that a mask keeps, of the shape of `weight`."""
        assert self.log_scale is not None
        shape = [-1 if dim == 1 - self.input_dim else 1 for dim in range(self.weight.dim())]
        log_scale = self.log_scale + log_sizes(self.weight, 1 - self.input_dim)[0]
        return quantize(self.weight, log_scale.view(shape), mask)

    def posterior(self) -> MultiplicativeNormal:
        """The posterior of the weights, of the shape of `weight`, float32 or wider."""
        if not self.bayesian:
            raise ValueError(f"{type(self).__name__}: a posterior needs bayesian = True; got {self.bayesian}")
        noise = {
            name: to_float32(x) for name in ("log_alpha", "log_variance") if (x := getattr(self, name)) is not None
        }
        return MultiplicativeNormal(to_float32(self.weight), **noise, validate_args=False)

    def weight_kl(self) -> Tensor:
        """KL of each weight from the prior, of the shape of `weight`, in nats, float32 or wider."""
        if not self.bayesian:
            return torch.zeros_like(to_float32(self.weight))
        posterior, prior = self.posterior(), self.prior
        if isinstance(prior, Normal):  # by name: torch's look-up by type makes torch.compile compile twice
            return gaussian_prior_kl(posterior, prior)
        return log_uniform_prior_kl(posterior, prior)

    def extra_repr(self) -> str:
        """Show torch's arguments, then those of the posterior."""
        if not self.bayesian:
            return f"{super().extra_repr()}, bayesian=False" + ", bits=ordered" * (self._bits is not None)
        prior = self.prior.form if isinstance(self.prior, LogUniform) else "gaussian"
        return f"{super().extra_repr()}, prior={prior!r}, noise={self.noise!r}, estimator={self.estimator!r}"

    def reset_parameters(self) -> None:
        """Draw θ and the bias as torch does, and set log α or log σ² back to where it starts."""
        super().reset_parameters()  # type: ignore[misc]
        if "log_alpha" in self._parameters:  # not yet so when torch's __init__ comes by
            self.reset_noise()

    def _run(self, x: Tensor, operation: Operation) -> Tensor:
        """A sample in training, the mean in evaluation, unless `sampling` says otherwise."""
        sampling, expansion, generator, estimator = self.sampling, self.expansion, None, self.estimator
        pooled = self._pooled
        draw: Draw | None = None if torch.compiler.is_compiling() else here(self)
        if draw is not None:
            sampling, expansion, generator, pooled = draw.sampling, draw.expansion, draw.generator, draw.pooled
            estimator = draw.estimator or estimator  # type: ignore[assignment]
        if expansion != 1 and (expansion < 1 or x.dim() < self.weight.dim()):
            raise ValueError(
                f"{type(self).__name__}: expansion must be 1, or more with a batched input; got {expansion} "
                f"with an input of shape {tuple(x.shape)}"
            )
        sampling = self.bayesian and (self.training if sampling is None else sampling)
        copies = range(expansion)
        weight = self.weight if self._bits is None else self.quantized(self._bits[0]())
        std = self._std() if sampling else None
        if self._weight_mask is not None:
            mask = self._weight_mask[0]().view(weight.shape).to(weight.dtype)
            weight, std = weight * mask, None if std is None else std * mask
        if self.input_mask is not None:
            x, weight, std = self._masked(x, weight, std, self.input_mask())
        if std is None:
            draws = [operation(x, weight, self.bias)] * expansion
        elif estimator == "local":
            shared = pooled[0] if pooled is not None and expansion == 1 and x.size(0) % pooled[1] == 0 else 1
            if shared > 1:
                mean = operation(x, weight, self.bias)
                variance = self._variance(x, std, operation, mean.dtype, shared)
                return draw_outputs(mean, variance, shared, generator)
            mean, variance, rest = self._statistics(x, weight, std, operation)
            if expansion > 1 and not torch.is_grad_enabled():
                return draw_outputs(mean, variance, expansion, generator)
            draws = [add_noise(mean, variance, generator, rest) for _ in copies]
        elif estimator == "weight":
            draws = [operation(x, weight + std * normal(weight, generator), self.bias) for _ in copies]
        else:
            mean = operation(x, weight, self.bias)
            changes = [operation(x * self._signs(x, generator), std * normal(weight, generator), None) for _ in copies]
            draws = [mean + change * self._signs(change, generator) for change in changes]
        return draws[0] if expansion == 1 else torch.cat(draws)

    def _statistics(
        self, x: Tensor, weight: Tensor, std: Tensor, operation: Operation
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean and variance of each output; with a `variance_share` those of the leading examples, then of the rest."""
        mean = operation(x, weight, self.bias)
        batched = x.dim() >= max(2, self.weight.dim())
        if self.variance_share == 1 or not batched or not torch.is_grad_enabled():
            return mean, self._variance(x, std, operation, mean.dtype), None
        count = max(1, round(self.variance_share * x.size(0)))
        variance = self._variance(x[:count], std, operation, mean.dtype)
        with torch.no_grad():
            rest = self._variance(x[count:], std, operation, mean.dtype)
        return mean, variance, rest

    @staticmethod
    def _variance(x: Tensor, std: Tensor, operation: Operation, dtype: torch.dtype, samples: int = 1) -> Tensor:
        """Variance of each output, for outputs of a dtype; of samples one after the other, the mean of theirs."""

        def pooled(square: Tensor) -> Tensor:
            return square if samples == 1 else square.unflatten(0, (samples, -1)).mean(0)

        if dtype == torch.float16:  # squares leave its range
            with torch.autocast(x.device.type, enabled=False):
                return operation(pooled(x.float().square()), std.float().square(), None)
        # Products, since autocast would make a float32 copy for the square.
        return operation(pooled(x * x), std * std, None)

    def _std(self) -> Tensor:
        """√α θ, or σ, of the shape of `weight`: the standard deviation up to its sign, smooth in θ also at 0."""
        if self.log_variance is not None:
            return (0.5 * self.log_variance).exp().expand_as(self.weight)
        assert self.log_alpha is not None
        return (0.5 * self.log_alpha).exp() * self.weight

    def _masked(
        self, x: Tensor, weight: Tensor, std: Tensor | None, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Multiply the input or the weight, whichever fits, by the mask."""
        groups = getattr(self, "groups", 1) if self.input_dim == 1 else 1
        channels = weight.size(self.input_dim) * groups
        if mask.dim() not in (1, 2) or mask.size(-1) != channels or (mask.dim() == 2 and x.dim() < weight.dim()):
            raise ValueError(
                f"{type(self).__name__}: input_mask must give ({channels},), or (batch, {channels}) with a batched "
                f"input; got {tuple(mask.shape)} with an input of shape {tuple(x.shape)}"
            )
        if mask.dim() == 2 or groups > 1:
            return x * mask.view(self._shape(x, mask.numel() // channels)).to(x.dtype), weight, std
        mask = mask.view([-1 if dim == self.input_dim else 1 for dim in range(weight.dim())]).to(weight.dtype)
        return x, weight * mask, None if std is None else std * mask

    def _signs(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """±1 for each example and channel of `x`."""
        shape = self._shape(x, x.size(0))
        return torch.randint(0, 2, shape, dtype=x.dtype, device=x.device, **source(generator)) * 2 - 1

    def _shape(self, x: Tensor, batch: int) -> list[int]:
        """The shape of a value for each example and channel of `x`; for each channel if it has no batch."""
        shape, channel_dim = [1] * x.dim(), 1 - self.weight.dim()
        shape[0] = batch
        shape[channel_dim] = x.size(channel_dim)
        return shape

    @torch.no_grad()
    def reset_noise(self) -> None:
        """Set log α or log σ² back to where it starts."""
        if self.log_alpha is not None:
            self.log_alpha.fill_(self.log_alpha_init)
        if self.log_variance is not None:
            shape = self.log_variance.shape
            square = to_float32(self.weight).square().sum_to_size(shape) * (shape.numel() / self.weight.numel())
            self.log_variance.copy_(square.clamp(min=1e-8).log() + self.log_alpha_init)

    def _check_options(self) -> None:
        def refuse(what: str) -> None:
            raise ValueError(f"{type(self).__name__}: {what}")

        if not isinstance(self.prior, LogUniform | Normal) or self.prior.batch_shape:
            refuse(f"prior must be a LogUniform or a scalar Normal; got {self.prior!r}")
        if not math.isfinite(self.log_alpha_init):
            refuse(f"log_alpha_init must be finite; got {self.log_alpha_init}")
        for name, choices in (("noise", get_args(Noise)), ("estimator", get_args(Estimator))):
            if getattr(self, name) not in choices:
                refuse(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}")
        if not 0 < self.variance_share <= 1:
            refuse(f"variance_share must lie in (0, 1]; got {self.variance_share}")
        if self.variance_share < 1 and self.estimator != "local":
            refuse(f"variance_share below 1 needs the estimator 'local'; got {self.estimator!r}")


def attributes_of(layer: nn.Module) -> dict[str, Any]:
    """The attributes of `layer` for another module to take over, its parameters themselves among them."""
    return {name: copy.copy(x) if isinstance(x, dict | set) else x for name, x in layer.__dict__.items()}


class BayesLinear(BayesLayer, nn.Linear):
    r"""`torch.nn.Linear` with a posterior over its weights; its options are those of `BayesLayer`.

    $$b_{mj} \sim \mathcal N(γ_{mj}, δ_{mj}), \qquad γ_{mj} = \sum_i h_{mi} θ_{ij} + \text{bias}_j, \qquad
      δ_{mj} = \sum_i h_{mi}^2 α_{ij} θ_{ij}^2$$

    Paper: Eq. (sampling-fc), Sec. 3.4.

    Shape: (…, in_features) to (…, out_features); the first of two or more dimensions is the batch.

    >>> layer = BayesLinear(20, 30)
    >>> layer(torch.randn(8, 20)).shape, layer.log_alpha.shape
    (torch.Size([8, 30]), torch.Size([30, 20]))
    >>> layer.eval()
    BayesLinear(in_features=20, out_features=30, bias=True, prior='vnd', noise='weight', estimator='local')
    """

    plain = nn.Linear

    def forward(self, input: Tensor) -> Tensor:
        """Draw the outputs, or give their means."""
        return self._run(input, F.linear)


class _BayesConv(BayesLayer):
    _conv_forward: Operation  # torch's own: stride, padding in all its modes, dilation, groups

    def forward(self, input: Tensor) -> Tensor:
        """Draw the outputs, or give their means."""
        return self._run(input, self._conv_forward)


class BayesConv1d(_BayesConv, nn.Conv1d):
    """`torch.nn.Conv1d` with a posterior over its weights; see `BayesConv2d`.

    >>> import torch
    >>> BayesConv1d(3, 8, 5, padding=2)(torch.ones(2, 3, 10)).shape
    torch.Size([2, 8, 10])
    """

    plain = nn.Conv1d


class BayesConv2d(_BayesConv, nn.Conv2d):
    r"""`torch.nn.Conv2d` with a posterior over its weights; its options are those of `BayesLayer`.

    $$\mathrm{vec}(b_{mj}) \sim \mathcal N(γ_{mj}, δ_{mj}), \qquad γ_{mj} = \mathrm{vec}(H_m * θ_j + \text{bias}_j),
      \qquad δ_{mj} = \mathrm{diag}(\mathrm{vec}(H_m^2 * α_j θ_j^2))$$

    Paper: Eq. (sampling-conv), App. B.1.

    Shape: (B, in_channels, H, W) to (B, out_channels, H′, W′), or both without B.

    >>> layer = BayesConv2d(3, 8, 3, padding=1, noise="channel")
    >>> layer(torch.randn(2, 3, 5, 5)).shape, layer.log_alpha.shape, layer.weight_kl().shape
    (torch.Size([2, 8, 5, 5]), torch.Size([8, 1, 1, 1]), torch.Size([8, 3, 3, 3]))
    >>> layer.set_input_mask(lambda: torch.tensor([1.0, 1.0, 0.0]))  # as if it had two input channels
    """

    plain = nn.Conv2d


class BayesConv3d(_BayesConv, nn.Conv3d):
    """`torch.nn.Conv3d` with a posterior over its weights; see `BayesConv2d`.

    >>> import torch
    >>> BayesConv3d(1, 4, 3)(torch.ones(2, 1, 5, 5, 5)).shape
    torch.Size([2, 4, 3, 3, 3])
    """

    plain = nn.Conv3d


class BayesConvTranspose2d(BayesLayer, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` with a posterior over its weights; see `BayesConv2d`.

    Its weight has the input channels along dimension 0 and the output channels of a group along dimension 1.

    >>> layer = BayesConvTranspose2d(4, 2, 3, stride=2, noise="channel")
    >>> layer(torch.randn(1, 4, 5, 5), output_size=[12, 12]).shape, layer.log_alpha.shape
    (torch.Size([1, 2, 12, 12]), torch.Size([1, 2, 1, 1]))
    """

    plain = nn.ConvTranspose2d
    input_dim = 0

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Draw the outputs, or give their means; `output_size` settles what the stride leaves open."""
        sizes: Any = (self.stride, self.padding, self.kernel_size, 2, self.dilation)
        options = {name: getattr(self, name) for name in ("stride", "padding", "groups", "dilation")}
        options["output_padding"] = self._output_padding(input, output_size, *sizes)
        return self._run(input, partial(F.conv_transpose2d, **options))


BAYES_OF: dict[type[nn.Module], type[BayesLayer]] = {
    layer.plain: layer for layer in (BayesLinear, BayesConv1d, BayesConv2d, BayesConv3d, BayesConvTranspose2d)
}
"""The Bayesian layer of each of torch's own, by exact type."""


_SUBCLASSES: dict[type[nn.Module], type[BayesLayer]] = {}


def bayes_of(kind: type[nn.Module]) -> type[BayesLayer] | None:
    """The Bayesian form of a class of layers: of one of torch's, or of one that inherits its forward pass from it."""
    if kind in BAYES_OF:
        return BAYES_OF[kind]
    base = next((plain for plain in BAYES_OF if issubclass(kind, plain)), None)
    same = all(getattr(kind, name, None) is getattr(base, name, None) for name in ("forward", "_conv_forward"))
    if base is None or issubclass(kind, BayesLayer) or not same:
        return None
    if kind not in _SUBCLASSES:
        members = {"plain": kind, "__reduce_ex__": _reduce, "__doc__": f"{kind.__name__} with a posterior."}
        _SUBCLASSES[kind] = type(f"Bayes{kind.__name__}", (BAYES_OF[base], kind), members)
    return _SUBCLASSES[kind]


def _reduce(layer: BayesLayer, protocol: Any) -> tuple[Any, ...]:
    return remade(layer, bayes_of, layer.plain)
