"""The Bayesian layers: torch's own in the mean, the posterior's law in samples, masks, expansion, what they refuse."""

import copy
import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call

import vnd
from vnd.distributions import LogUniform, MultiplicativeNormal
from vnd.nn.bayesian import (
    BAYES_OF,
    BayesConv1d,
    BayesConv2d,
    BayesConv3d,
    BayesConvTranspose2d,
    BayesLayer,
    BayesLinear,
)
from vnd.nn.noise import SMALLEST_VARIANCE, plain_add_noise

CASES = [
    (BayesLinear, (6, 4), {}, (3, 6)),
    (BayesLinear, (6, 4), {"bias": False}, (2, 3, 6)),
    (BayesLinear, (6, 4), {}, (6,)),
    (BayesConv1d, (4, 6, 3), {"stride": 2, "padding": 1}, (2, 4, 9)),
    (BayesConv1d, (4, 6, 3), {"padding": 2, "padding_mode": "circular", "dilation": 2}, (2, 4, 9)),
    (BayesConv1d, (4, 6, 2), {"padding": "same", "padding_mode": "reflect", "groups": 2}, (2, 4, 9)),
    (BayesConv2d, (4, 6, 3), {}, (2, 4, 5, 6)),
    (BayesConv2d, (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 2), "bias": False}, (4, 5, 6)),
    (BayesConv2d, (4, 6, 3), {"padding": "same", "dilation": 2}, (2, 4, 5, 6)),
    (BayesConv2d, (4, 6, 3), {"padding": 1, "padding_mode": "replicate", "groups": 2}, (2, 4, 5, 6)),
    (BayesConv2d, (4, 4, 3), {"padding": 1, "padding_mode": "circular", "groups": 4}, (2, 4, 5, 6)),
    (BayesConv2d, (4, 8, 3), {"padding": 1, "stride": 2, "groups": 4}, (2, 4, 5, 6)),
    (BayesConv3d, (2, 4, 2), {"padding": 1, "stride": 2, "dilation": 2}, (2, 2, 4, 5, 6)),
    (BayesConv3d, (2, 4, 3), {"padding": 1, "padding_mode": "replicate", "groups": 2}, (2, 2, 3, 3, 4)),
    (BayesConvTranspose2d, (4, 6, 3), {}, (2, 4, 3, 4)),
    (BayesConvTranspose2d, (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 4, 3, 4)),
    (BayesConvTranspose2d, (4, 6, (3, 2)), {"stride": 2, "groups": 2, "dilation": 2}, (2, 4, 3, 4)),
    (BayesConvTranspose2d, (4, 4, 3), {"stride": (1, 2), "groups": 4, "bias": False}, (4, 3, 4)),
]
IDS = [f"{cls.__name__}-{i}" for i, (cls, *_) in enumerate(CASES)]
ONE_OF_EACH = [CASES[i] for i in (0, 3, 9, 12, 15)]
ESTIMATORS = ("local", "weight", "flipout")
OPTIONS = [
    {"noise": noise, "prior": prior}
    for noise, prior in itertools.product(("weight", "channel", "layer"), (None, Normal(0.0, 1.0)))
]
PRIORS = (None, Normal(0.0, 1.0))
GAUSSIAN = Normal(*torch.tensor([0.1, 0.5], dtype=torch.float64))
each_case = pytest.mark.parametrize("case", CASES, ids=IDS)
# Noises and priors, estimators and priors in turns: no more than two of them meet in any line, none with the layer.
PAIRS = [(case, OPTIONS[i % 6]) for i, case in enumerate(CASES)]
case_and_estimator = pytest.mark.parametrize(
    ("case", "estimator"), [(case, ESTIMATORS[i % 3]) for i, case in enumerate(CASES)], ids=str
)
case_and_prior = pytest.mark.parametrize(("case", "prior"), [(case, PRIORS[i % 2]) for i, case in enumerate(CASES)])
each_layer = pytest.mark.parametrize("case", ONE_OF_EACH, ids=lambda case: case[0].__name__)
each_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)
float64 = pytest.mark.usefixtures("float64")


def make(case, **options) -> tuple[BayesLayer, Tensor]:
    """A layer with uneven noise, and an input for it."""
    cls, args, kwargs, shape = case
    layer = cls(*args, **kwargs, **options)
    with torch.no_grad():
        for noise in (layer.log_alpha, layer.log_variance):
            if noise is not None:
                noise.add_(torch.randn_like(noise))
    return layer, torch.randn(shape)


def seeded(function, *args, seed: int = 7):
    torch.manual_seed(seed)
    return function(*args)


def law(layer: BayesLayer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each output, and d output / d weight (outputs, weights), from torch's own layer alone."""
    plain = layer.to_plain()

    def outputs(weight: Tensor) -> Tensor:
        return functional_call(plain, {"weight": weight}, x)

    weight = plain.weight.detach()
    slope = torch.autograd.functional.jacobian(outputs, weight).flatten(-weight.dim()).flatten(0, -2)
    mean = outputs(weight).detach()
    variance = slope.square() @ layer.posterior().variance.detach().flatten()
    return mean, variance.view_as(mean).clamp(min=SMALLEST_VARIANCE), slope


def check_marginals(draws: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Draws (n, …) have the mean, the variance and the Gaussian law of each output; false alarm below 1e-6."""
    draws, mean, variance = draws.flatten(1), mean.flatten(), variance.flatten()
    assert draws.isfinite().all()
    error = (draws.mean(0) - mean).abs() / (variance / len(draws)).sqrt()
    assert error.max() < 6.5, f"mean: {error.max():.1f} standard errors"
    error = (draws.var(0) / variance - 1).abs() / math.sqrt(2 / len(draws))
    assert error.max() < 6.5, f"variance: {error.max():.1f} standard errors"
    worst = int(error.argmax())
    normal = (draws[:, worst] - mean[worst]) / variance[worst].sqrt()
    assert stats.kstest(normal.numpy(), "norm").pvalue > 1e-7, "law"


def draw(layer: BayesLayer, x: Tensor, count: int = 100_000) -> Tensor:
    """Separate draws of the output for one input, (count, …)."""
    with torch.no_grad():
        if layer.estimator == "local":  # independent for each example
            return layer(x.repeat(count, *[1] * (x.dim() - 1))).view(count, *layer.eval()(x).shape)
        return torch.func.vmap(lambda _: layer(x), randomness="different", chunk_size=5_000)(torch.empty(count))


# The mean -----------------------------------------------------------------------------------------------------------


@each_layer
@float64
def test_the_mean_is_exactly_torchs_own(case):
    cls, args, kwargs, _ = case
    layer, x = make(case)
    plain = cls.plain(*args, **kwargs)
    missing, unexpected = layer.load_state_dict(plain.state_dict(), strict=False)
    assert (missing, unexpected) == (["log_alpha"], [])
    assert isinstance(layer, cls.plain)
    assert torch.equal(layer.eval()(x), plain(x))
    assert not torch.equal(layer.train()(x), plain(x))


def test_a_transposed_convolution_takes_an_output_size():
    layer, plain = BayesConvTranspose2d(4, 6, 3, stride=2), nn.ConvTranspose2d(4, 6, 3, stride=2)
    plain.load_state_dict(layer.state_dict(), strict=False)
    x = torch.randn(2, 4, 3, 4)
    for size in ([8, 10], [2, 6, 7, 9]):
        assert torch.equal(layer.eval()(x, output_size=size), plain(x, output_size=size))
        assert layer.train()(x, size).shape == plain(x, size).shape
    with pytest.raises(ValueError, match="output size"):
        layer(x, [20, 20])


def test_sampling_follows_training_unless_it_is_forced():
    layer, x = make(CASES[0])
    for training, sampling in itertools.product((True, False), (None, True, False)):
        layer.train(training).sampling = sampling
        samples = training if sampling is None else sampling
        assert torch.equal(layer(x), layer(x)) is not samples


# The law of samples -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "options"), PAIRS)
@float64
def test_local_noise_has_the_variance_of_the_weights(case, options):
    layer, x = make(case, **options)
    mean, variance, _ = law(layer, x)
    noise = seeded(torch.randn_like, mean)
    torch.testing.assert_close(seeded(layer, x), mean + variance.sqrt() * noise, rtol=1e-12, atol=1e-12)


@case_and_prior
@float64
def test_the_weight_estimator_draws_a_weight_of_the_posterior(case, prior):
    layer, x = make(case, estimator="weight", prior=prior)
    weight = seeded(layer.posterior().rsample).detach()
    expected = functional_call(layer.to_plain(), {"weight": weight}, x)
    torch.testing.assert_close(seeded(layer, x), expected, rtol=1e-12, atol=1e-12)


SMALL = [
    (BayesLinear, (6, 4), {}, (1, 6)),
    (BayesConv1d, (4, 4, 2), {"groups": 2, "padding": 1, "padding_mode": "circular"}, (1, 4, 3)),
    (BayesConv2d, (2, 3, 2), {"stride": 2, "padding": 1}, (1, 2, 3, 3)),
    (BayesConv3d, (2, 2, 2), {}, (1, 2, 2, 3, 2)),
    (BayesConvTranspose2d, (2, 2, 2), {"stride": 2, "output_padding": 1}, (1, 2, 2, 2)),
]
each_small_layer = pytest.mark.parametrize("case", SMALL, ids=lambda case: case[0].__name__)


@each_small_layer
@float64
def test_100_000_drawn_weights_and_each_estimator_have_the_same_marginals(case):
    layer, x = make(case)
    mean, variance, slope = law(layer, x)
    seen = variance.flatten() > 1e-12  # outputs that see the input at all
    with torch.no_grad():
        weights = layer.posterior().rsample((100_000,))
        drawn = mean.flatten() + (weights - layer.weight).flatten(1) @ slope.T
    mean, variance = mean.flatten()[seen], variance.flatten()[seen]
    check_marginals(drawn[:, seen], mean, variance)
    for estimator in ESTIMATORS:
        layer.train().estimator = estimator
        check_marginals(draw(layer, x).flatten(1)[:, seen], mean, variance)


class BiasInVariance(BayesLinear):
    """The fault of the released code."""

    def _statistics(self, x, weight, std, operation):
        mean, variance, rest = super()._statistics(x, weight, std, operation)
        return mean, variance + self.bias.abs(), rest


class InputNotSquared(BayesLinear):
    def _statistics(self, x, weight, std, operation):
        return operation(x, weight, self.bias), operation(x.abs(), std * std, None), None


@pytest.mark.parametrize("fault", [BiasInVariance, InputNotSquared])
@float64
def test_a_wrong_variance_is_caught(fault):
    layer, x = make((fault, (6, 4), {}, (1, 6)))
    mean, variance, _ = law(layer, x)
    with pytest.raises(AssertionError, match="variance"):
        check_marginals(draw(layer, x), mean, variance)


@float64
def test_flipout_gives_each_example_its_own_signs_and_the_same_mean():
    layer, x = make((BayesConv2d, (3, 4, 2), {}, (1, 3, 3, 3)), estimator="flipout")
    outputs = layer(x.expand(64, -1, -1, -1)).detach()
    assert len(outputs.unique(dim=0)) > 32
    mean, variance, _ = law(layer, x)
    pairs = (draw(layer, x.repeat(2, 1, 1, 1), 20_000) - mean) / variance.sqrt()
    correlation = (pairs[:, 0] * pairs[:, 1]).mean(0)  # zero between examples, unlike with one weight
    assert correlation.isfinite().all()
    assert correlation.abs().max() < 0.1
    layer.estimator = "weight"
    outputs = layer(x.expand(64, -1, -1, -1)).detach()
    assert len(outputs.unique(dim=0)) == 1


# Gradients and numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "estimator", "prior"),
    [(*pair, PRIORS[i % 2]) for i, pair in enumerate(itertools.product(ONE_OF_EACH, ESTIMATORS))],
)
@float64
def test_gradients_are_those_of_the_sample(case, estimator, prior):
    cls, args, kwargs, shape = case
    args = (2, 2, *args[2:])
    layer, _ = make((cls, args, kwargs, shape), estimator=estimator, prior=prior)
    layer.set_input_mask(lambda: mask)
    mask = torch.tensor([0.7, 0.2], requires_grad=True)
    x = torch.randn((1, 2, *shape[2:]) if len(shape) > 2 else (1, 2), requires_grad=True)
    parameters = dict(layer.named_parameters())

    def sample(x, mask, *values):
        layer.set_input_mask(lambda: mask)
        return seeded(functional_call, layer, dict(zip(parameters, values, strict=True)), x)

    assert torch.autograd.gradcheck(sample, (x, mask, *parameters.values()), fast_mode=True)


def zero_gradients(dtype, autocast, estimator="local"):
    """Output and gradients of a layer whose input has a row of zeros."""
    layer = BayesLinear(6, 4, estimator=estimator, dtype=dtype)
    x = torch.randn(3, 6, dtype=dtype)
    x[1] = 0
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        output = layer(x)
    output.float().square().sum().backward()
    return [output, x.grad, *(parameter.grad for parameter in layer.parameters())]


@each_estimator
@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, False), (torch.bfloat16, False), (torch.float32, True)]
)
def test_zero_inputs_have_finite_outputs_and_gradients(dtype, autocast, estimator):
    values = zero_gradients(dtype, autocast, estimator)
    assert values[0].dtype == (torch.bfloat16 if autocast else dtype)
    assert all(value.isfinite().all() for value in values)


def test_without_a_smallest_variance_the_gradients_of_zero_inputs_are_lost(monkeypatch):
    monkeypatch.setattr("vnd.nn.noise.SMALLEST_VARIANCE", 0.0)
    assert not all(value.isfinite().all() for value in zero_gradients(torch.float32, False))


def test_a_variance_that_rounding_made_negative_stays_finite():
    layer, x = make(CASES[0])
    values = layer._run(
        x, lambda x, weight, bias: nn.functional.linear(x, weight, bias) * (1 if bias is not None else -1)
    )
    values.sum().backward()
    assert values.isfinite().all()
    assert layer.weight.grad.isfinite().all()


def test_small_outputs_keep_their_noise():
    layer = BayesLinear(6, 100_000, bias=False)
    with torch.no_grad():
        layer.weight.mul_(1e-6)
        x = torch.full((1, 6), 1e-1)
        ratio = (layer(x) - layer.eval()(x)).var() / math.exp(-3) / layer.weight.square().sum(1).mul(1e-2).mean()
    assert ratio == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_estimator
def test_autocast_gives_its_dtype_and_the_same_sample_to_its_precision(dtype, estimator):
    layer, x = make((BayesLinear, (16, 8), {}, (8, 16)), estimator=estimator)
    with torch.autocast("cpu", dtype=dtype):
        output = seeded(layer, x)
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), seeded(layer, x), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("autocast", [True, False])
def test_float16_squares_neither_overflow_nor_vanish(autocast):
    layer = BayesLinear(16, 8, log_alpha_init=-12.0, dtype=torch.float32 if autocast else torch.float16)
    x = torch.full((4, 16), 2000.0, dtype=layer.weight.dtype)
    with torch.autocast("cpu", dtype=torch.float16, enabled=autocast):
        mean, variance, _ = layer._statistics(x, layer.weight, layer._std(), nn.functional.linear)
        assert layer(x).isfinite().all()
    assert (mean.dtype, variance.dtype) == (torch.float16, torch.float32)
    expected = math.exp(-6) * 2000 * layer.weight.float().square().sum(1).sqrt()
    torch.testing.assert_close(variance.sqrt(), expected.expand(4, 8), rtol=2e-2, atol=0)


SHARED = [(BayesLinear, (6, 4), (8, 6)), (BayesConv2d, (3, 4, 2), (8, 3, 4, 4)), (BayesLinear, (6, 4), (8, 5, 6))]


@pytest.mark.parametrize(("kind", "args", "shape"), SHARED)
@float64
def test_a_share_of_the_variance_gradient_draws_the_same_outputs(kind, args, shape):
    layer, x = kind(*args), torch.randn(shape)
    whole = seeded(layer, x)
    for layer.variance_share in (0.25, 0.3, 0.01):
        torch.testing.assert_close(seeded(layer, x), whole, rtol=1e-13, atol=1e-13)


def mean_gradients(layer, x, share):
    """Gradients of input and parameters, averaged over all rotations of the batch, with noise of 1 everywhere."""
    layer.variance_share = share
    given = [x.clone().requires_grad_(), *layer.parameters()]
    weight = torch.linspace(-1, 1, layer(x).numel()).view(layer(x).shape)
    loss = sum((layer(given[0].roll(k, 0)) * weight.roll(k, 0)).square().sum() for k in range(len(x))) / len(x)
    return torch.autograd.grad(loss, given)


@pytest.mark.parametrize(("kind", "args", "shape"), SHARED)
@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "planted: not scaled"])
@float64
def test_a_share_of_the_variance_gradient_is_right_on_average(kind, args, shape, scaled, monkeypatch):
    monkeypatch.setattr("vnd.nn.noise.normal", lambda like, generator: torch.ones_like(like))
    if not scaled:

        def constant(mean, variance, generator=None, rest=None):
            return plain_add_noise(mean, variance if rest is None else torch.cat([variance, rest]), generator)

        monkeypatch.setattr("vnd.nn.noise.plain_add_noise", constant)
    layer, x = kind(*args), torch.randn(shape)
    whole, part = mean_gradients(layer, x, 1.0), mean_gradients(layer, x, 0.25)
    close = [torch.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(whole, part, strict=True)]
    assert all(close) == scaled


def test_channels_last_stays_channels_last():
    layer = BayesConv2d(4, 6, 3).to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last)
    assert layer(x).is_contiguous(memory_format=torch.channels_last)
    layer.expansion = 3
    assert layer(x).is_contiguous(memory_format=torch.channels_last)


# Noise, priors, KL --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (BayesLinear(6, 4, noise="channel"), (4, 1)),
        (BayesConv1d(4, 6, 3, noise="channel", groups=2), (6, 1, 1)),
        (BayesConv3d(4, 6, 3, noise="channel"), (6, 1, 1, 1, 1)),
        (BayesConvTranspose2d(4, 6, 3, noise="channel"), (1, 6, 1, 1)),
        (BayesConvTranspose2d(4, 6, 3, noise="channel", groups=2), (1, 3, 1, 1)),
        (BayesConv2d(4, 6, 3, noise="layer"), (1, 1, 1, 1)),
        (BayesConv2d(4, 6, 3), (6, 4, 3, 3)),
    ],
    ids=str,
)
def test_log_alpha_is_per_weight_channel_or_layer(layer, shape):
    assert layer.log_alpha.shape == shape
    assert layer.weight_kl().shape == layer.posterior().variance.shape == layer.weight.shape


KL_PRIORS = (LogUniform("exact"), LogUniform("molchanov", offset=1.0), None, GAUSSIAN)


@pytest.mark.parametrize(
    ("case", "noise", "prior"),
    [
        (ONE_OF_EACH[i % 5], *pair)
        for i, pair in enumerate(itertools.product(("weight", "channel", "layer"), KL_PRIORS))
    ],
)
@float64
def test_weight_kl_is_the_kl_divergence_of_each_weight(case, noise, prior):
    layer, _ = make(case, noise=noise, prior=prior)
    kl = layer.weight_kl()
    assert kl.shape == layer.weight.shape
    if isinstance(prior, Normal):
        assert layer.log_alpha is None
        scale = (0.5 * layer.log_variance).exp().expand_as(layer.weight)
        expected = kl_divergence(Normal(layer.weight, scale), prior)
    else:
        assert layer.log_variance is None
        log_alpha = layer.log_alpha.expand_as(layer.weight)
        expected = kl_divergence(MultiplicativeNormal(layer.weight, log_alpha), prior or LogUniform("vnd"))
    torch.testing.assert_close(kl, expected, rtol=1e-12, atol=1e-12)
    kl.sum().backward()
    assert all(p.grad.isfinite().all() for name, p in layer.named_parameters() if name.startswith("log_"))


def test_kl_of_low_precision_layers_is_float32():
    for prior in (None, Normal(0.0, 1.0)):
        kl = BayesLinear(6, 4, prior=prior, dtype=torch.bfloat16).weight_kl()
        assert kl.dtype == torch.float32
        assert kl.isfinite().all()


@pytest.mark.parametrize("noise", ["weight", "channel", "layer"])
def test_a_gaussian_prior_has_a_finite_kl_at_zero_weights(noise):
    plain = nn.Linear(6, 4)
    nn.init.zeros_(plain.weight)
    layer = BayesLinear.from_plain(plain, prior=Normal(0.0, 1.0), noise=noise)
    assert layer.weight_kl().isfinite().all()
    layer.weight_kl().sum().backward()
    assert layer.weight.grad.isfinite().all()
    assert layer(torch.randn(2, 6)).isfinite().all()


@float64
def test_free_log_variance_starts_as_log_alpha_would():
    prior = Normal(0.0, 1.0)
    layer = BayesLinear(50, 40, prior=prior, log_alpha_init=-2.0)
    large = layer.weight.abs() > 1e-4
    log_alpha = layer.posterior().log_alpha[large]
    torch.testing.assert_close(log_alpha, torch.full_like(log_alpha, -2.0), rtol=1e-9, atol=1e-9)
    layer = BayesLinear(50, 40, prior=prior, log_alpha_init=-2.0, noise="channel")
    expected = layer.weight.square().mean(1, keepdim=True).log() - 2
    torch.testing.assert_close(layer.log_variance.detach(), expected.detach(), rtol=1e-9, atol=1e-9)


def test_a_layer_that_is_not_bayesian_is_the_plain_one_with_a_mask():
    layer = BayesConv2d(4, 6, 3, bayesian=False)
    layer.sampling = True
    x = torch.randn(2, 4, 5, 5)
    assert set(layer.state_dict()) == {"weight", "bias"}
    assert layer.log_alpha is None
    assert torch.equal(layer(x), layer.to_plain()(x))
    assert torch.equal(layer.weight_kl(), torch.zeros_like(layer.weight))
    layer.set_input_mask(lambda: torch.zeros(4))
    assert torch.equal(layer(x), layer.bias.view(-1, 1, 1).expand(2, 6, 3, 3))
    with pytest.raises(ValueError, match="bayesian"):
        layer.posterior()


# Masks --------------------------------------------------------------------------------------------------------------


def in_channels(layer: BayesLayer) -> int:
    return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


@case_and_estimator
@float64
def test_a_mask_is_a_masked_input(case, estimator):
    layer, x = make(case, estimator=estimator)
    channels = in_channels(layer)
    expected_layer = copy.deepcopy(layer)
    mask = torch.rand(channels)
    layer.set_input_mask(lambda: mask)
    view = mask.view(-1, *[1] * (layer.weight.dim() - 2))
    for mode in (True, False):
        output, expected = seeded(layer.train(mode), x), seeded(expected_layer.train(mode), x * view)
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-13)
    layer.set_input_mask(None)
    assert torch.equal(layer(x), expected_layer(x))


SLICED = [case for case in CASES if case[2].get("groups", 1) == 1]


@pytest.mark.parametrize(("case", "prior"), [(case, PRIORS[i % 2]) for i, case in enumerate(SLICED)])
@float64
def test_a_prefix_mask_is_a_layer_with_fewer_input_channels(case, prior):
    cls, (channels, *args), kwargs, _ = case
    layer, x = make(case, prior=prior)
    channel_dim = 1 - layer.weight.dim()
    for kept in range(1, channels + 1):
        mask = (torch.arange(channels) < kept).double()
        layer.set_input_mask(lambda mask=mask: mask)
        small = cls(kept, *args, **kwargs, prior=prior)
        state = {k: v.narrow(layer.input_dim, 0, kept) if v.dim() > 1 else v for k, v in layer.state_dict().items()}
        small.load_state_dict(state)
        part = x.narrow(channel_dim, 0, kept)
        for mode in (True, False):
            output, expected = seeded(layer.train(mode), x), seeded(small.train(mode), part)
            assert output.isfinite().all()
            assert (output - expected).norm() <= 1e-12 * expected.norm()


@pytest.mark.parametrize("case", [CASES[1], *ONE_OF_EACH[1:]], ids=lambda case: case[0].__name__)
@float64
def test_each_example_can_have_its_own_mask(case):
    layer, x = make(case)
    masks = torch.rand(len(x), in_channels(layer))
    layer.eval().set_input_mask(lambda: masks)
    output = layer(x)
    for i in range(len(x)):
        layer.set_input_mask(lambda i=i: masks[i])
        torch.testing.assert_close(output[i], layer(x[i : i + 1])[0], rtol=1e-12, atol=1e-13)


def test_the_gradient_reaches_the_mask_and_every_parameter():
    for case, estimator in itertools.product(ONE_OF_EACH, ESTIMATORS):
        layer, x = make(case, estimator=estimator)
        unit = vnd.OrderingUnit(in_channels(layer), num_groups=2)
        layer.set_input_mask(lambda unit=unit: unit.spread(unit.mask()))
        layer(x).square().sum().backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.parameters())
        assert layer.log_alpha.grad.abs().sum() > 0
        assert unit.keep_logits.grad.abs().sum() > 0


class Masked(nn.Module):
    """A layer behind an ordering unit."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.unit = vnd.OrderingUnit(4, num_groups=4)
        self.layer = BayesConv2d(4, 6, 3, **options)
        self.layer.set_input_mask(self.unit.mask)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_the_source_of_a_mask_is_no_submodule_and_a_copy_has_its_own():
    net = Masked()
    net.layer.set_input_mask(net.unit.mask)
    assert [name for name, _ in net.layer.named_modules()] == [""]
    assert set(net.state_dict()) == {f"layer.{name}" for name in ("weight", "bias", "log_alpha")} | {
        f"unit.{name}" for name in net.unit.state_dict()
    }
    other = copy.deepcopy(net)
    assert other.layer.input_mask.__self__ is other.unit
    assert other.layer.weight is not net.layer.weight
    source = nn.Identity()
    net.layer.set_input_mask(source)
    assert net.layer.input_mask is source
    assert not list(net.layer.children())


# Expansion ----------------------------------------------------------------------------------------------------------


@each_small_layer
@float64
def test_expanded_samples_share_statistics_and_are_independent(case):
    layer, x = make(case)
    mean, variance, _ = law(layer, x)
    layer.expansion, calls = 50, []

    def count(operation):
        def counted(*args):
            calls.append(args)
            return operation(*args)

        return counted

    run = layer._run
    layer._run = lambda x, operation: run(x, count(operation))
    with torch.no_grad():
        draws = layer(x.repeat(2_000, *[1] * (x.dim() - 1))).view(50, 2_000, *mean.shape[1:])
    assert len(calls) == 2
    check_marginals(draws.flatten(0, 1), mean, variance)
    noise = ((draws - mean) / variance.sqrt()).flatten(1)
    correlation = (noise @ noise.T / noise.size(1)).fill_diagonal_(0)
    assert correlation.isfinite().all()
    assert correlation.abs().max() < 6.5 / math.sqrt(noise.size(1))


@each_estimator
@float64
def test_expansion_is_sample_major_for_every_estimator(estimator):
    layer, x = make((BayesConv2d, (3, 4, 2), {}, (2, 3, 3, 3)), estimator=estimator)
    layer.expansion = 3
    x[1] = x[0]
    mean = layer.to_plain()(x).detach()
    assert torch.equal(layer.eval()(x), torch.cat([mean] * 3))
    draws = layer.train()(x).detach().view(3, *mean.shape)
    assert len(draws.unique(dim=0)) == 3
    assert all(torch.equal(pair[0], pair[1]) is (estimator == "weight") for pair in draws)


def test_drawn_weights_and_flipout_expand_to_separate_draws_with_the_right_marginals():
    for estimator in ("weight", "flipout"):
        layer, x = make((BayesLinear, (3, 2), {}, (1, 3)), estimator=estimator)
        mean, variance, _ = law(layer, x)
        layer.expansion = 5_000
        with torch.no_grad():
            check_marginals(layer(x), mean, variance)


# Making, copying, compiling -----------------------------------------------------------------------------------------


@each_case
def test_from_plain_takes_the_parameters_over_and_to_plain_gives_them_back(case):
    cls, args, kwargs, shape = case
    plain = cls.plain(*args, **kwargs, dtype=torch.float64).eval()
    hooks = []
    plain.register_forward_hook(lambda *_: hooks.append(1))
    state = torch.get_rng_state()
    layer = BAYES_OF[type(plain)].from_plain(plain, log_alpha_init=-5.0, estimator="weight")
    assert torch.equal(torch.get_rng_state(), state)
    assert type(layer) is cls
    assert layer.weight is plain.weight
    assert layer.bias is plain.bias
    assert (layer.training, layer.estimator, layer.log_alpha.dtype) == (False, "weight", torch.float64)
    assert layer.log_alpha.eq(-5).all()
    assert "log_alpha" not in plain.state_dict()

    x = torch.randn(shape, dtype=torch.float64)
    back = layer.to_plain()
    assert type(back) is cls.plain
    assert back.__dict__.keys() == plain.__dict__.keys()
    assert repr(back) == repr(plain)
    assert torch.equal(layer(x), plain(x))
    assert torch.equal(back(x), plain(x))
    assert back.weight is not layer.weight
    assert back.weight.requires_grad
    assert len(hooks) == 4


def test_layers_repeat_torchs_start_and_reset_their_noise():
    layer, plain = seeded(BayesConv2d, 4, 6, 3), seeded(nn.Conv2d, 4, 6, 3)
    assert torch.equal(layer.weight, plain.weight)
    with torch.no_grad():
        layer.log_alpha.zero_()
    layer.reset_parameters()
    assert layer.log_alpha.eq(-3).all()
    meta = BayesConv2d(4, 6, 3, prior=Normal(0.0, 1.0), device="meta").to_empty(device="cpu")
    meta.reset_parameters()
    assert meta.log_variance.isfinite().all()
    assert "prior='vnd', noise='weight', estimator='local'" in repr(layer)
    assert "prior='gaussian'" in repr(meta)
    assert "bayesian=False" in repr(BayesLinear(2, 2, bayesian=False))


@each_layer
def test_every_layer_compiles_to_one_graph(case):
    layer, x = make(case)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for mode in (True, False):
        compiled.train(mode)
        torch.testing.assert_close(seeded(compiled, x), seeded(layer, x))


@each_estimator
@pytest.mark.parametrize("expansion", [1, 2])
def test_every_estimator_compiles_to_one_graph_with_a_mask_and_gradients(estimator, expansion):
    net = Masked(estimator=estimator, prior=Normal(0.0, 1.0) if expansion == 2 else None)
    net.layer.expansion = expansion
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 4, 5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=expansion == 2):
        output = compiled(x)
    output.float().square().sum().backward()
    assert output.shape == (2 * expansion, 6, 3, 3)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.layer.parameters())


def test_the_float16_statistics_compile_to_one_graph():
    layer, x = make(CASES[0])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.autocast("cpu", dtype=torch.float16):
        output, expected = seeded(compiled, x), seeded(layer, x)
    assert output.dtype == torch.float16
    torch.testing.assert_close(output, expected)


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noise": "row"}, "noise must be one of weight, channel, layer; got 'row'"),
        ({"variance_share": 0.0}, "variance_share must lie in (0, 1]; got 0.0"),
        ({"variance_share": 0.5, "estimator": "weight"}, "variance_share below 1 needs the estimator 'local'; got 'w"),
        ({"estimator": "global"}, "estimator must be one of local, weight, flipout; got 'global'"),
        ({"log_alpha_init": math.nan}, "log_alpha_init must be finite; got nan"),
        ({"prior": "vnd"}, "prior must be a LogUniform or a scalar Normal; got 'vnd'"),
        ({"prior": Normal(torch.zeros(4), 1.0)}, "prior must be a LogUniform or a scalar Normal; got Normal"),
    ],
)
def test_bad_options_are_refused_in_one_line(options, words):
    for make_layer in (
        lambda: BayesLinear(6, 4, **options),
        lambda: BayesLinear.from_plain(nn.Linear(6, 4), **options),
    ):
        with pytest.raises(ValueError, match="BayesLinear: ") as caught:
            make_layer()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_bad_layers_masks_and_expansions_are_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^BayesLinear: layer must be a Linear; got a Conv2d$"):
        BayesLinear.from_plain(nn.Conv2d(4, 6, 3))
    with pytest.raises(ValueError, match=r"^BayesLinear: unknown options; got alpha$"):
        BayesLinear.from_plain(nn.Linear(4, 6), alpha=1)
    layer = BayesConv2d(4, 6, 3)
    for mask in (torch.ones(3), torch.ones(1), torch.ones(2, 1), torch.ones(()), torch.ones(1, 2, 4)):
        layer.set_input_mask(lambda mask=mask: mask)
        with pytest.raises(ValueError, match=r"^BayesConv2d: input_mask must give \(4,\).*; got \([^\n]*$"):
            layer(torch.randn(2, 4, 5, 5))
    layer.set_input_mask(lambda: torch.ones(2, 4))
    with pytest.raises(ValueError, match="input_mask must give"):
        layer(torch.randn(4, 5, 5))
    layer.set_input_mask(None)
    for expansion, shape in ((0, (2, 4, 5, 5)), (-1, (2, 4, 5, 5)), (2, (4, 5, 5))):
        layer.expansion = expansion
        with pytest.raises(ValueError, match=f"expansion must be 1.*; got {expansion} "):
            layer(torch.randn(shape))
