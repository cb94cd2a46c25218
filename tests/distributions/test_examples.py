"""Laws that every distribution keeps, over the list of examples, on every device."""

import copy
import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from examples import EXAMPLES, PRIORS, Example
from vnd.distributions import BernoulliChain, Downhill, LogUniform, MultiplicativeNormal, OrderedNormal


def _extreme(parameter: object) -> bool:
    """Whether it has a unit that is all but always kept, or never."""
    return isinstance(parameter, Tensor) and bool((parameter.abs() > 1e3).any())


BATCHED = {(example.family, bool(example.build().batch_shape)): example for example in EXAMPLES}
EXTREME = [example for example in EXAMPLES if any(_extreme(x) for x in example.parameters.values())]
one_of_each = pytest.mark.parametrize("example", BATCHED.values(), ids=str)  # a family, with and without a batch


def draws(distribution, shape: tuple[int, ...]) -> list[Tensor]:
    """A sample of each kind that the distribution offers."""
    samples = [distribution.sample(shape)]
    if distribution.has_rsample:
        samples.append(distribution.rsample(shape))
    if isinstance(distribution, Downhill | OrderedNormal):
        samples.append(distribution.rsample(shape, hard=True))
    return samples


SHAPES = [(example, (3, 2)) for example in EXAMPLES]
SHAPES += [(example, (0,) if batched else ()) for (_, batched), example in BATCHED.items()]


@pytest.mark.parametrize(("example", "shape"), SHAPES, ids=str)
def test_samples_have_the_shape_dtype_and_device_of_the_parameters(
    example: Example, shape: tuple[int, ...], device: torch.device
) -> None:
    distribution = example.build(device)
    for sample in draws(distribution, shape):
        assert sample.shape == shape + distribution.batch_shape + distribution.event_shape
        assert sample.dtype == torch.float32
        assert sample.device.type == device.type
        assert sample.isfinite().all()
        if sample.numel():  # torch's own constraints do not take an empty tensor
            assert distribution.support.check(sample).all()


@pytest.mark.parametrize("example", [e for e in BATCHED.values() if not e.build().batch_shape], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_dtype_of_the_parameters_is_kept(example: Example, dtype: torch.dtype, device: torch.device) -> None:
    for sample in draws(example.build(device, dtype), (2,)):
        assert sample.dtype == dtype
        assert sample.isfinite().all()


@pytest.mark.parametrize("example", [*BATCHED.values(), *EXTREME], ids=str)
def test_log_prob_of_samples_has_the_batch_shape_and_is_no_nan(example: Example, device: torch.device) -> None:
    distribution = example.build(device)
    sample = distribution.sample((3, 2))
    log_prob = distribution.log_prob(sample)
    assert log_prob.shape == (3, 2, *distribution.batch_shape)
    assert not log_prob.isnan().any()
    assert log_prob.dtype == torch.float32


@pytest.mark.parametrize("example", [*BATCHED.values(), *EXTREME], ids=str)
def test_moments_and_closed_forms_have_the_batch_shape(example: Example, device: torch.device) -> None:
    distribution = example.build(device)
    for name in ("mean", "variance", "mode", "survival", "log_survival"):
        try:
            value = getattr(distribution, name)
        except (AttributeError, NotImplementedError):
            continue
        assert value.shape == distribution.batch_shape + distribution.event_shape, name
        assert not value.isnan().any()
    if hasattr(distribution, "expected_length"):
        assert distribution.expected_length.shape == distribution.batch_shape


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.family is not MultiplicativeNormal], ids=str)
def test_the_kl_from_itself_has_the_batch_shape_and_is_zero(example: Example, device: torch.device) -> None:
    kl = kl_divergence(example.build(device), example.build(device))
    assert kl.shape == example.build().batch_shape
    assert (kl == 0).all()


@one_of_each
def test_expand_keeps_the_law_of_each_row(example: Example, device: torch.device) -> None:
    distribution = example.build(device)
    expanded = distribution.expand((2, *distribution.batch_shape))
    assert expanded.batch_shape == (2, *distribution.batch_shape)
    assert expanded.event_shape == distribution.event_shape
    sample = distribution.sample((2,))
    torch.testing.assert_close(expanded.log_prob(sample.clone()), distribution.log_prob(sample.clone()), equal_nan=True)
    for drawn in draws(expanded, (3,)):
        assert drawn.shape == (3, 2, *distribution.batch_shape, *distribution.event_shape)
    assert type(expanded) is type(distribution)
    assert repr(expanded).startswith(example.family.__name__)


@one_of_each
def test_samples_without_gradient_and_with(example: Example) -> None:
    parameters = {k: v.clone().requires_grad_() if isinstance(v, Tensor) else v for k, v in example.parameters.items()}
    distribution = example.family(**parameters)
    assert not distribution.sample((2,)).requires_grad
    if distribution.has_rsample:
        assert distribution.rsample((2,)).requires_grad


@one_of_each
def test_a_copy_gives_the_same_samples_by_the_same_seed(example: Example, device: torch.device) -> None:
    distribution = example.build(device)
    other = copy.deepcopy(distribution)
    torch.manual_seed(4)
    first = draws(distribution, (3,))
    torch.manual_seed(4)
    assert all(torch.equal(a, b) for a, b in zip(first, draws(other, (3,)), strict=True))


@pytest.mark.parametrize("prior", [*PRIORS, Normal(torch.tensor(0.1), torch.tensor(1.5))], ids=str)
def test_weight_kls_have_the_shape_of_the_weights(prior) -> None:
    for example in EXAMPLES:
        if example.family is MultiplicativeNormal:
            kl = kl_divergence(example.build(), prior)
            assert kl.shape == example.build().batch_shape
            assert kl.isfinite().all()
            assert (kl >= 0).all()


def test_the_log_uniform_prior_is_one_over_the_size_of_a_weight() -> None:
    w = torch.tensor([-2.0, 0.5, 3.0])
    torch.testing.assert_close(LogUniform().log_prob(w).exp(), 1 / w.abs())
    with pytest.raises(NotImplementedError):
        LogUniform().sample()


def test_moments_of_codes_and_weights_are_those_of_their_samples() -> None:
    """Within 6 standard errors of a mean, and of a variance by its fourth moment."""
    code = EXAMPLES[[e.family for e in EXAMPLES].index(OrderedNormal)].build()
    weight = MultiplicativeNormal(torch.tensor([0.5, -2.0]), torch.tensor([-1.0, 0.5]))
    free = MultiplicativeNormal(torch.tensor([0.5, -2.0]), log_variance=torch.tensor([-1.0, 0.5]))
    chain = BernoulliChain(torch.tensor([1.0, 0.5, -0.5]))
    for distribution in (code, weight, free, chain):
        x = distribution.sample((200_000,)).double()
        assert x.isfinite().all()
        centred = (x - distribution.mean.double()).square()
        root = math.sqrt(x.size(0))
        assert ((x.mean(0) - distribution.mean).abs() <= 6 * x.std(0) / root).all()
        assert ((centred.mean(0) - distribution.variance).abs() <= 6 * centred.std(0) / root).all()


def test_chains_given_by_probabilities_or_logits_are_the_same() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.0], [0.3, 0.1, -4.0]])
    by_logits, by_probs = BernoulliChain(logits), BernoulliChain(keep_probs=logits.sigmoid())
    torch.testing.assert_close(by_probs.keep_logits, by_logits.keep_logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(by_probs.length_log_probs, by_logits.length_log_probs, rtol=1e-5, atol=1e-6)
    assert BernoulliChain(keep_probs=logits.sigmoid()).expand((4, 2)).keep_logits.shape == (4, 2, 3)
