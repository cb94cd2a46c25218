"""What VND-AE is held against: each loss by hand, and a linear auto-encoder whose order is that of PCA."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional as F

import vnd.methods.autoencoding_baselines as swae_module
from methods.codes import CODE, at, dots, learn, model_of
from vnd.methods import SWAE, VAE, AutoencoderMethod, BetaVAE, JointVAE, NestedAE
from vnd.methods.autoencoding_baselines import sliced_distance
from vnd.models import DenseAutoEncoder

X = dots(7)
LABELS = torch.zeros(7, dtype=torch.int64)


def ran(
    method: AutoencoderMethod, index: int = 0, kl_weight: float = 0.6
) -> tuple[Any, dict[str, Tensor], Callable[..., Tensor]]:
    """The terms of a seeded loss, the encoder's heads, and the summed squared error of codes; then the seed again."""
    model = model_of(method)
    method.prepare(model, (X, LABELS), at(index, kl_weight), lambda value: value)
    torch.manual_seed(9)
    terms = method.loss(model, (X, LABELS), at(index, kl_weight))
    terms.total.backward()
    for name, head in model.heads.items():
        gradient = head.weight.grad
        assert isinstance(gradient, Tensor)
        assert gradient.isfinite().all()
        assert (gradient != 0).any(1).all(), name  # every output of it
    torch.manual_seed(9)
    with torch.no_grad():
        heads = model.encode(X)
    return terms, heads, lambda code: (X - model.decode(code).detach()).square().sum() / 7


def gaussian(heads: dict[str, Tensor]) -> tuple[Normal, Tensor]:
    """The posterior, and the mean of its KL over the batch."""
    posterior = Normal(heads["loc"], (0.5 * heads["log_variance"]).exp())
    return posterior, kl_divergence(posterior, Normal(0.0, 1.0)).sum(1).mean()


def drawn(posterior: Normal) -> Tensor:
    return posterior.loc + posterior.scale * torch.randn_like(posterior.loc)


def close(terms: Any, total: Tensor | float, **parts: Tensor | float) -> None:
    assert float(terms.total.detach()) == pytest.approx(float(total), rel=1e-5)
    for name, value in parts.items():
        assert float(terms.parts[name]) == pytest.approx(float(value), rel=1e-5), name
    assert not any(part.requires_grad for part in terms.parts.values())


# The losses


def test_vae() -> None:
    terms, heads, error_of = ran(VAE(likelihood_std=0.4))
    posterior, rate = gaussian(heads)
    error = error_of(drawn(posterior))
    close(terms, (error + 2 * 0.16 * 0.6 * rate) / 64, mse=error / 256, rate=rate)


def test_the_loss_of_a_vae_is_the_bound_up_to_a_scale_and_a_constant() -> None:
    terms, heads, _ = ran(VAE(likelihood_std=0.4), kl_weight=1.0)
    posterior, rate = gaussian(heads)
    model = model_of(VAE(likelihood_std=0.4))
    torch.manual_seed(9)
    decoded = model.decode(drawn(posterior)).detach()
    bound = -Normal(decoded, 0.4).log_prob(X).flatten(1).sum(1).mean() + rate
    constant = 32 * math.log(2 * math.pi * 0.16)
    assert float(terms.total.detach()) == pytest.approx(float(bound - constant) * 2 * 0.16 / 64, rel=1e-5)


def test_beta_vae() -> None:
    terms, heads, error_of = ran(BetaVAE(likelihood_std=0.4, beta=4.0))
    posterior, rate = gaussian(heads)
    error = error_of(drawn(posterior))
    close(terms, (error + 2 * 0.16 * 0.6 * 4 * rate) / 64, mse=error / 256, rate=rate)


@pytest.mark.parametrize(("index", "capacity"), [(0, 0.0), (30, 6.0), (5000, 10.0)])
def test_beta_vae_with_a_capacity_that_grows(index: int, capacity: float) -> None:
    """Before `over` steps a share of it, then all; on both sides of the rate."""
    terms, heads, error_of = ran(BetaVAE(likelihood_std=0.4, form="capacity", gamma=7.0, capacity=10.0, over=50), index)
    posterior, rate = gaussian(heads)
    error = error_of(drawn(posterior))
    assert 0.5 < float(rate) < 6.0
    close(terms, (error + 2 * 0.16 * 0.6 * 7 * abs(rate - capacity)) / 64, mse=error / 256, rate=rate)


def category_rate(heads: dict[str, Tensor]) -> Tensor:
    uniform = Categorical(probs=torch.full((3,), 1 / 3))
    return kl_divergence(Categorical(logits=heads["category"]), uniform).mean()


@pytest.mark.parametrize(
    ("index", "capacity", "category"),
    [(0, 0.0, 0.0), (10, 2.0, 0.4), (50, 10.0, math.log(3))],
)
def test_joint_vae(index: int, capacity: float, category: float) -> None:
    """A category of three cannot be worth more than log 3 nats, whatever its capacity."""
    method = JointVAE(likelihood_std=0.4, categories=3, gamma=7.0, capacity=10.0, category_capacity=2.0, over=50)
    terms, heads, error_of = ran(method, index)
    assert {name: head.size(1) for name, head in heads.items()} == {"loc": 3, "log_variance": 3, "category": 3}
    relaxed = F.gumbel_softmax(heads["category"], 0.5)
    posterior, smooth = gaussian(heads)
    error = error_of(torch.cat((drawn(posterior), relaxed), 1))
    theirs = category_rate(heads)
    penalty = 7 * (abs(smooth - capacity) + abs(theirs - category))
    total = (error + 2 * 0.16 * 0.6 * penalty) / 64
    close(terms, total, mse=error / 256, rate=smooth + theirs, category_rate=theirs)


def test_swae() -> None:
    terms, heads, error_of = ran(SWAE(likelihood_std=0.4, projections=20, power=1.5, weight=30.0))
    assert heads.keys() == {"loc"}
    error, cloud = error_of(heads["loc"]), torch.randn_like(heads["loc"])
    directions = F.normalize(torch.randn(CODE, 20), dim=0).double()
    apart = brute(heads["loc"].double(), cloud.double(), directions, 1.5)
    # as the paper's code has it: the mean over directions, the sum over pairs, over B (B - 1)
    close(terms, error / 64 + 0.6 * 30 * apart / (7 * 6), mse=error / 256, sliced=apart)


@pytest.mark.parametrize(("method", "counts"), [(NestedAE(), range(1, 7)), (NestedAE(base=3, keep=0.7), range(3, 7))])
def test_nested_ae(method: NestedAE, counts: range) -> None:
    terms, heads, error_of = ran(method)
    clock = torch.empty(7, 1).exponential_()  # the chain's own: kept while it is at least -log P(z_i = 1)
    beyond = CODE - method.base
    if method.keep is None:
        survival = torch.tensor([1 - j / (beyond + 1) for j in range(1, beyond + 1)])
    else:
        survival = method.keep ** torch.arange(1, beyond + 1)
    lengths = method.base + (clock >= -survival.log()).sum(1)
    assert set(lengths.tolist()) <= set(counts)
    assert len(set(lengths.tolist())) > 2
    error = error_of(heads["loc"] * (torch.arange(CODE) < lengths[:, None]))
    close(terms, error / 64, mse=error / 256)


# The sliced distance


def brute(a: Tensor, b: Tensor, directions: Tensor, power: float) -> float:
    """In one dimension the best pairing of two clouds, found by trying all that swap two: the sorted one is best."""
    total = 0.0
    for direction in directions.T:
        first, second = sorted((a @ direction).tolist()), (b @ direction).tolist()
        improved = True
        while improved:
            improved = False
            for i in range(len(second)):
                for j in range(i):
                    now = abs(first[i] - second[i]) ** power + abs(first[j] - second[j]) ** power
                    then = abs(first[i] - second[j]) ** power + abs(first[j] - second[i]) ** power
                    if then < now - 1e-15:
                        second[i], second[j], improved = second[j], second[i], True
        total += sum(abs(x - y) ** power for x, y in zip(first, second, strict=True)) / len(first)
    return total / directions.size(1)


def test_the_distance_of_equal_clouds_is_zero_in_any_order() -> None:
    cloud = torch.randn(20, 4)
    assert float(sliced_distance(cloud, cloud[torch.randperm(20)], 30, 2.0)) == pytest.approx(0.0, abs=1e-10)
    assert float(sliced_distance(cloud, cloud + 1.0, 30, 2.0)) > 0.1


def test_the_distance_of_a_shift_is_the_mean_of_its_shadows() -> None:
    """Moved by v, the distance is the mean of ⟨θ, v⟩² over directions: |v|² / D."""
    cloud = torch.randn(50, 4, dtype=torch.float64)
    shift = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    found = float(sliced_distance(cloud, cloud + shift, 100_000, 2.0))
    assert found == pytest.approx(float(shift.square().sum()) / 4, rel=0.02)  # six standard errors


def test_a_distance_of_clouds_that_are_not_sorted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsorted(a: Tensor, b: Tensor, projections: int, power: float) -> Tensor:
        directions = F.normalize(torch.randn(a.size(1), projections), dim=0)
        return (a @ directions - b @ directions).abs().pow(power).mean()

    monkeypatch.setattr(swae_module, "sliced_distance", unsorted)
    with pytest.raises(AssertionError):
        test_swae()


# Draws, and codes


def test_joint_vae_has_one_category() -> None:
    method = JointVAE(categories=3)
    model = model_of(method).eval()
    torch.manual_seed(0)
    drawn_codes = method.draw(model, 600)
    assert drawn_codes.shape == (600, CODE)
    hot = drawn_codes[:, 3:]
    assert torch.equal(hot.sum(1), torch.ones(600))
    assert torch.equal(hot.square(), hot)
    counts = hot.sum(0)
    assert float((counts - 200).square().sum() / 200) < 18.4  # chi-square of two degrees, one false alarm in 10⁴
    assert (drawn_codes[:, :3].std(0) - 1).abs().max() < 0.15
    code = method.encode(model, X)
    best = method.point(code)
    assert torch.equal(best[:, :3], code.loc)
    assert torch.equal(best[:, 3:].argmax(1), code.heads["category"].argmax(1))
    assert torch.equal(best[:, 3:].sum(1), torch.ones(7))
    rate = method.rate(code)
    assert float(rate.detach().mean()) == pytest.approx(
        float((gaussian(code.heads)[1] + category_rate(code.heads)).detach()), rel=1e-5
    )


@pytest.mark.parametrize("method", [VAE(), BetaVAE(), SWAE()], ids=["vae", "beta_vae", "swae"])
def test_the_prior_is_a_standard_normal(method: AutoencoderMethod) -> None:
    model = model_of(method)
    drawn_codes = method.draw(model, 2000)
    assert drawn_codes.shape == (2000, CODE)
    assert (drawn_codes.mean(0).abs() < 0.12).all()  # five standard errors
    assert (drawn_codes.var(0) - 1).abs().max() < 0.16
    assert method.draw(model, 4, 2).shape == (4, 2)


def test_a_deterministic_code_has_no_std_and_no_rate() -> None:
    for method in (SWAE(), NestedAE()):
        code = method.encode(model_of(method), X)
        assert not code.scale.any()
        assert method.rate(code) is None
        assert torch.equal(method.sample(code), code.loc)


# PCA

DEVIATIONS = torch.tensor([1.6, 1.2, 0.9, 0.65, 0.4, 0.3, 0.2, 0.15, 0.1])


def ellipsoid() -> tuple[Tensor, Tensor]:
    """Images of nine pixels whose principal components, the columns, are known: the sample has these covariances."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(9, 9, generator=generator)).Q
    points = torch.randn(1024, 9, generator=generator)
    round_ = torch.linalg.qr(points - points.mean(0)).Q * 32
    return (round_ * DEVIATIONS @ axes.T).view(-1, 1, 3, 3), axes


def angle(a: Tensor, b: Tensor) -> float:
    """The largest between two subspaces, the spans of columns, in degrees."""
    cosines = torch.linalg.svdvals(torch.linalg.qr(a.double()).Q.T @ torch.linalg.qr(b.double()).Q)
    return math.degrees(math.acos(min(1.0, float(cosines.min()))))


@cache
def linear(base: int) -> tuple[Tensor, Tensor]:
    """What a linear auto-encoder of four dimensions learns: the columns of its decoder, the rows of its encoder."""
    images, _ = ellipsoid()
    network = DenseAutoEncoder(latent_dim=4, image_size=3, hidden=(), bounded=False)
    method = NestedAE(base=base)
    model = model_of(method, network, seed=4)
    learn(method, model, images, 1500, rate=0.05, seed=1)
    return model.expand.weight.detach(), model.heads["loc"].weight.detach().T  # type: ignore[union-attr]


def test_an_ordered_linear_code_is_pca_dimension_by_dimension() -> None:
    axes = ellipsoid()[1]
    decoder, encoder = linear(base=1)
    for length in range(1, 5):
        assert angle(decoder[:, :length], axes[:, :length]) <= 1.0, length
        assert angle(encoder[:, :length], axes[:, :length]) <= 1.0, length
        own = slice(length - 1, length)
        assert angle(decoder[:, own], axes[:, own]) <= 1.0, length


def test_without_an_order_the_same_network_spans_the_same_space_and_no_axis_of_it() -> None:
    axes = ellipsoid()[1]
    decoder, _ = linear(base=4)  # all lengths are full
    assert angle(decoder, axes[:, :4]) <= 1.0
    for length in range(1, 4):
        assert angle(decoder[:, :length], axes[:, :length]) > 10.0, length
        assert angle(decoder[:, length - 1 : length], axes[:, length - 1 : length]) > 10.0, length
