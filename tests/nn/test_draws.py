"""Draws for several samples at once, and samples that share a variance: their law, and where they must not."""

import pytest
import torch
from scipy import stats
from structures import make
from torch import Tensor, nn

import vnd
from vnd.nn.bayesian import BayesLayer
from vnd.nn.noise import draw_outputs, plain_draw_outputs

SAMPLES = 3


def drawn(device: str, dtype: torch.dtype, layout: torch.memory_format, shared: bool) -> tuple[Tensor, Tensor]:
    """The outputs of some samples, and the noise that is in them, a row a sample."""
    torch.manual_seed(0)
    mean = torch.randn((1 if shared else SAMPLES) * 8, 16, 9, 7, device=device, dtype=dtype)
    variance = torch.rand(8, 16, 9, 7, device=device, dtype=dtype) + 1
    mean, variance = (x.to(memory_format=layout) for x in (mean, variance))
    with torch.no_grad():
        out = draw_outputs(mean, variance, SAMPLES)
    means = mean.repeat(SAMPLES, 1, 1, 1) if shared else mean
    noise = (out.double() - means.double()) / variance.double().sqrt().repeat(SAMPLES, 1, 1, 1)
    return out, noise.reshape(SAMPLES, -1).cpu()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_samples_have_their_mean_and_variance_and_noise_of_their_own(device, layout, shared):
    out, noise = drawn(device, torch.float32, layout, shared)
    assert out.shape == (SAMPLES * 8, 16, 9, 7)
    for row in noise:
        assert stats.kstest(row.numpy(), "norm").pvalue > 1e-6
    off = torch.corrcoef(noise) - torch.eye(SAMPLES)
    assert float(off.abs().max()) < 5.5 / noise.size(1) ** 0.5


def test_draws_in_half_precision_have_its_rounding_alone(device):
    _, noise = drawn(device, torch.bfloat16, torch.channels_last, shared=True)
    assert float(noise.std()) == pytest.approx(1, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0, abs=0.03)


def test_the_noise_of_one_sample_in_all_is_caught(device, monkeypatch):
    kept = torch.randn(8, 16, 9, 7, device=device)
    monkeypatch.setattr(torch, "randn_like", lambda x, **_: kept)
    mean, variance = torch.zeros(8, 16, 9, 7, device=device), torch.ones(8, 16, 9, 7, device=device)
    noise = plain_draw_outputs(mean, variance, SAMPLES).view(SAMPLES, -1)
    assert float(torch.corrcoef(noise)[0, 1]) > 0.99


# -- samples that share a variance -------------------------------------------------------------------------------------


def network(log_alpha: float) -> nn.Module:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 12, 3), nn.ReLU(), nn.Conv2d(12, 8, 3), nn.Flatten(), nn.Linear(8, 3)).double()
    net = vnd.to_nested(plain, torch.randn(2, 2, 5, 5).double(), num_groups=4, log_alpha_init=log_alpha)
    return net.eval()


X = torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(1)).double()


def seen_variances(net: nn.Module, monkeypatch: pytest.MonkeyPatch, **options: object) -> list[tuple[Tensor, Tensor]]:
    """The squares that each further layer reads, and the variance of its outputs, in a prediction of five samples."""
    found, right = [], BayesLayer._variance

    def variance(x, std, operation, dtype, samples=1):
        found.append((operation(x * x, std * std, None), right(x, std, operation, dtype, samples)))
        return found[-1][1]

    monkeypatch.setattr(BayesLayer, "_variance", staticmethod(variance))
    vnd.predict(net, X, samples=5, seed=0, **options)
    monkeypatch.undo()
    return found[1:]  # the first reads the same for all


def test_a_pooled_variance_is_the_mean_over_the_samples_of_an_example(monkeypatch):
    found = seen_variances(network(-2.0), monkeypatch, estimator="pooled")
    assert len(found) == 2
    for own, variance in found:
        wanted = own.view(5, 4, *own.shape[1:]).mean(0)
        assert torch.allclose(variance, wanted, rtol=1e-12)
        assert not torch.allclose(own[:4], wanted, rtol=1e-3)  # or pooling would be nothing
    for own, variance in seen_variances(network(-2.0), monkeypatch):
        assert torch.allclose(variance, own, rtol=1e-12)


def test_pooled_predictions_have_the_law_of_separate_ones_where_noise_is_small():
    net = network(-6.0)
    one, other = (vnd.predict(net, X, samples=4000, seed=0, estimator=way, link="identity") for way in (None, "pooled"))
    assert torch.allclose(one.variance, other.variance, rtol=0.12)  # five standard errors of either
    assert float(((one.probs - other.probs).abs() / (2 * one.variance / 4000).sqrt()).max()) < 5


@pytest.mark.parametrize("options", [{"samples": 1}, {"samples": 0}, {"samples": 6, "rows": 4}])
def test_one_sample_at_a_time_shares_nothing(options):
    net = network(-2.0)
    one, other = (vnd.predict(net, X, seed=0, estimator=way, **options) for way in (None, "pooled"))
    assert torch.equal(one.probs, other.probs)


class TimeFirst(nn.Module):
    """A network whose second layer has time before examples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Sum over time."""
        return self.last(self.second(self.first(x).transpose(0, 1)).sum(0))


def test_a_layer_whose_rows_are_not_samples_and_examples_pools_nothing(monkeypatch):
    torch.manual_seed(0)
    net = vnd.to_nested(TimeFirst().double(), torch.randn(2, 5, 3).double(), num_groups=4).eval()
    sizes, right = [], BayesLayer._variance

    def variance(x, std, operation, dtype, samples=1):
        sizes.append((len(x), samples))
        return right(x, std, operation, dtype, samples)

    monkeypatch.setattr(BayesLayer, "_variance", staticmethod(variance))
    vnd.predict(net, torch.randn(4, 5, 3).double(), samples=5, estimator="pooled")
    assert sizes == [(4, 1), (5, 1), (20, 5)]


def test_the_mode_is_put_back_and_an_unknown_estimator_refused():
    _, net, example = make("flatten")
    vnd.predict(net, example, samples=2, estimator="pooled")
    assert all(m._pooled is None for m in net.modules() if isinstance(m, BayesLayer))
    with pytest.raises(ValueError, match="estimator must be one of 'local', 'weight', 'flipout', 'pooled'; got 'none'"):
        vnd.predict(net, example, estimator="none")
