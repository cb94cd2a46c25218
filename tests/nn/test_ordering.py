"""The ordering unit: groups, laws of its draws, gradients, and what it refuses."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import vnd
import vnd.nn.ordering as masks
from vnd.functional import length_mask
from vnd.nn import OrderingUnit, couple

DRAWS = 200_000


def lengths_drawn(unit: OrderingUnit, draws: int = DRAWS) -> torch.Tensor:
    """Lengths of per-example masks, base excluded."""
    with torch.no_grad():
        return unit.mask(draws).sum(-1).long() - unit.base


def assert_lengths_follow(lengths: torch.Tensor, chain: vnd.BernoulliChain, false_alarm: float = 1e-6) -> None:
    """Chi-square on the lengths."""
    expected = chain.length_log_probs.double().exp().detach() * len(lengths)
    counts = torch.bincount(lengths, minlength=len(expected)).double()
    assert len(counts) == len(expected), "a length beyond the number of nested groups"
    rare = expected < 5
    expected = torch.cat((expected[~rare], expected[rare].sum().clamp(min=1e-9)[None]))
    counts = torch.cat((counts[~rare], counts[rare].sum()[None]))
    keep = expected > 1
    chi = ((counts - expected).square() / expected)[keep].sum()
    assert math.isfinite(chi)
    assert stats.chi2.sf(float(chi), int(keep.sum()) - 1) > false_alarm


def set_logits(unit: OrderingUnit, seed: int = 0) -> OrderingUnit:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        unit.keep_logits.copy_(2 * torch.randn(unit.num_nested, generator=generator) + 1.5)
    return unit


@given(st.integers(1, 300), st.data())
def test_groups_cover_the_channels_as_evenly_as_possible_larger_first(channels, data):
    num_groups = data.draw(st.integers(1, channels))
    unit = OrderingUnit(channels, num_groups, base=data.draw(st.integers(0, num_groups)))
    sizes = unit.group_sizes
    assert len(sizes) == num_groups
    assert sum(sizes) == channels
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)
    values = torch.rand(2, num_groups)
    assert torch.equal(unit.spread(values), values.repeat_interleave(torch.tensor(sizes), -1))


@pytest.mark.parametrize(
    ("shape", "dim"), [((6, 10), 1), ((6, 10), -1), ((6, 10, 4, 4), 1), ((6, 5, 10), 2), ((10, 3), 0)]
)
def test_it_masks_any_dimension_and_keeps_shape_and_dtype(shape, dim):
    unit = set_logits(OrderingUnit(10, 4, base=1, dim=dim))
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        x = torch.ones(shape, dtype=dtype)
        out = unit(x)
        assert out.shape == x.shape
        assert out.dtype == dtype
        kept = out.movedim(dim, -1).reshape(-1, 10)
        assert set(kept.unique().tolist()) <= {0.0, 1.0}
        assert (kept == kept[0]).all()
        assert int(kept[0].sum()) in {3, 6, 8, 10}


def test_evaluation_keeps_all_groups_unless_a_width_is_fixed():
    unit = OrderingUnit(10, 4, base=1).eval()
    x = torch.randn(3, 10)
    assert torch.equal(unit(x), x)
    for groups, channels in ((1, 3), (2, 6), (3, 8), (4, 10)):
        unit.fixed_groups.fill_(groups)
        assert torch.equal(unit(x), x * length_mask(torch.tensor(channels), 10))


@pytest.mark.parametrize("seed", range(3))
def test_each_length_has_its_probability(seed):
    torch.manual_seed(seed)
    unit = set_logits(OrderingUnit(33, 9, base=2, per_example=True), seed)
    assert_lengths_follow(lengths_drawn(unit), unit.posterior().chain)


def test_a_threshold_off_by_one_unit_is_caught(monkeypatch):
    def faulty(unit, log_survival, batch, draw=masks.draw_lengths):
        return draw(unit, nn.functional.pad(log_survival[..., 1:], (0, 1), value=-math.inf), batch)

    monkeypatch.setattr(masks, "draw_lengths", faulty)
    torch.manual_seed(0)
    unit = set_logits(OrderingUnit(33, 9, base=2, per_example=True))
    with pytest.raises(AssertionError):
        assert_lengths_follow(lengths_drawn(unit), unit.posterior().chain)


def test_the_released_sampler_is_caught_and_has_the_documented_law():
    torch.manual_seed(0)
    unit = OrderingUnit(32, 32, base=2, per_example=True, sampler="released")
    lengths = lengths_drawn(unit)
    with pytest.raises(AssertionError):
        assert_lengths_follow(lengths[:500], unit.posterior().chain)
    assert float((lengths == 30).double().mean()) == pytest.approx(0.039, abs=0.002)
    assert unit.report().prob_full == pytest.approx(0.233, abs=1e-3)


def test_coupled_examples_are_stratified_and_layers_share_the_quantile():
    torch.manual_seed(0)
    first, second = (set_logits(OrderingUnit(16, 16, per_example=True), seed) for seed in (0, 1))
    net = couple(nn.Sequential(first, second))
    net(torch.ones(64, 16))
    u = float(first.quantile.u)
    for unit in (first, second):
        lengths = lengths_drawn(unit, 64)
        survival = unit.posterior().chain.mean.detach().double()
        quantiles = (u + torch.arange(64).double() / 64) % 1
        assert torch.equal(lengths, (quantiles[:, None] < survival).sum(-1))
        # systematic draws: the share of examples that keep a unit is its survival to within one example
        shares = length_mask(lengths, 15, torch.float64).mean(0)
        assert float((shares - survival).abs().max()) <= 1 / 64 + 1e-6


def test_survival_gradient_is_exact_for_an_affine_loss():
    torch.manual_seed(0)
    unit = set_logits(OrderingUnit(12, 12, base=0, gradient="survival")).double()
    weight = torch.randn(12, dtype=torch.float64)
    masks = unit.posterior().chain.enumerate_support().double()
    expected = (unit.posterior().length_log_probs.exp() * (masks @ weight)).sum()
    (truth,) = torch.autograd.grad(expected, unit.keep_logits)
    for _ in range(5):
        (estimate,) = torch.autograd.grad(unit.mask() @ weight, unit.keep_logits)
        assert torch.allclose(estimate, truth, rtol=1e-10, atol=1e-12)


def test_differences_that_nobody_measured_leave_the_survival_gradient_and_no_trace_in_the_state():
    plain, default = set_logits(OrderingUnit(8, 8, gradient="survival")), set_logits(OrderingUnit(8, 8))
    assert default.gradient == "difference"
    assert plain.state_dict().keys() == default.state_dict().keys()
    gradients = []
    for unit in (plain, default):
        torch.manual_seed(0)
        (grad,) = torch.autograd.grad(unit(torch.ones(2, 8)).square().sum(), unit.keep_logits)
        gradients.append(grad)
    assert float(gradients[0].abs().sum()) > 0
    assert torch.equal(*gradients)


def test_downhill_gradient_has_the_mean_of_the_straight_through_downhill():
    torch.manual_seed(0)
    unit = set_logits(OrderingUnit(6, 6, base=0, per_example=True, gradient="downhill", temperature=0.7))
    weight = torch.randn(6)

    def gradients(draw, count=400):
        return torch.stack([torch.autograd.grad(draw().mean(), unit.keep_logits)[0] for _ in range(count)])

    ours = gradients(lambda: (unit.mask(64) @ weight).square())
    reference = gradients(lambda: (unit.posterior().rsample((64,), hard=True) @ weight).square())
    error = ((ours.var(0) + reference.var(0)) / len(ours)).sqrt()
    assert error.isfinite().all()
    assert float(((ours.mean(0) - reference.mean(0)).abs() / error).max()) < 4.5


def test_a_fixed_width_gives_the_order_no_gradient_but_keeps_it_in_the_graph():
    for gradient in ("survival", "downhill", "difference"):
        unit = OrderingUnit(8, 8, gradient=gradient)
        unit.fixed_groups.fill_(3)
        (grad,) = torch.autograd.grad(unit(torch.ones(2, 8)).square().sum(), unit.keep_logits)
        assert torch.equal(grad, torch.zeros(7))
        assert int(unit.mask().sum()) == 3


def test_a_fixed_width_is_a_hard_prefix_in_every_mode_and_never_less_than_base():
    for options in ({"hard": False}, {"gradient": "downhill"}, {"gradient": "survival"}):
        unit = OrderingUnit(8, 8, base=2, **options)
        for training in (True, False):
            unit.train(training)
            for groups, kept in ((0, 2), (2, 2), (5, 5), (8, 8)):
                unit.fixed_groups.fill_(groups)
                assert torch.equal(unit.mask().detach(), length_mask(torch.tensor(kept), 8))


def test_tiles_are_cut_alike():
    unit = OrderingUnit(12, 3, base=1, tiles=2).eval()
    assert unit.group_sizes == (2, 2, 2)
    unit.fixed_groups.fill_(2)
    assert unit(torch.ones(1, 12)).flatten().tolist() == [1, 1, 1, 1, 0, 0] * 2
    assert unit.kept_channels(1).tolist() == [0, 1, 6, 7]


def test_relaxed_masks_descend_and_carry_a_gradient():
    torch.manual_seed(0)
    unit = OrderingUnit(8, 8, hard=False, per_example=True)
    mask = unit.mask(100)
    assert bool((mask[:, 1:] <= mask[:, :-1]).all())
    assert float(((mask > 0) & (mask < 1)).float().mean()) > 0.3
    mask.sum().backward()
    assert unit.keep_logits.grad.abs().sum() > 0


def test_report_matches_the_chain():
    unit = set_logits(OrderingUnit(20, 10, base=3))
    chain, report = vnd.BernoulliChain(unit.keep_logits.detach()), unit.report()
    assert report.expected_length == pytest.approx(3 + float(chain.expected_length))
    assert report.entropy == pytest.approx(float(chain.entropy()))
    assert report.prob_shortest == pytest.approx(float(chain.length_log_probs[0].exp()))
    assert report.prob_full == pytest.approx(float(chain.length_log_probs[-1].exp()))


def test_the_prior_comes_from_a_chain_a_mean_or_uniform_lengths():
    geometric = vnd.BernoulliChain.geometric(7, 0.8)
    assert torch.allclose(OrderingUnit(8, 8, prior=geometric).prior_logits, geometric.keep_logits)
    assert float(OrderingUnit(8, 8, base=2, prior=5.0).prior.expected_length) == pytest.approx(3.0, abs=1e-5)
    uniform = OrderingUnit(8, 8)
    assert torch.allclose(uniform.prior.length_log_probs.exp(), torch.full((8,), 1 / 8))
    with torch.no_grad():
        uniform.keep_logits.copy_(uniform.prior_logits)
    assert uniform.kl().item() == 0.0


def test_nothing_nested_is_an_identity():
    unit = OrderingUnit(6, 3, base=3)
    x = torch.randn(2, 6)
    assert torch.equal(unit(x), x)
    assert torch.equal(unit.eval()(x), x)
    assert unit.kl().item() == 0.0
    assert unit.report().prob_full == 1.0


def test_state_travels_and_copies_are_independent():
    unit = set_logits(OrderingUnit(8, 8, temperature=0.7))
    other = OrderingUnit(8, 8)
    other.load_state_dict(unit.state_dict())
    assert float(other.temperature) == pytest.approx(0.7)
    assert torch.equal(other.keep_logits, unit.keep_logits)
    twin = copy.deepcopy(unit)
    twin.fixed_groups.fill_(2)
    assert int(unit.fixed_groups) == -1


def test_one_graph_serves_all_widths_and_training():
    unit = OrderingUnit(8, 8)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(unit.eval(), fullgraph=True, backend=backend)
    x = torch.randn(2, 8)
    for groups in range(1, 9):
        unit.fixed_groups.fill_(groups)
        assert torch.equal(compiled(x), x * length_mask(torch.tensor(groups), 8))
    assert len(graphs) == 1
    unit.train()
    compiled(x).sum().backward()
    assert len(graphs) == 2
    assert unit.keep_logits.grad is not None


def test_wrong_input_shapes_are_named():
    with pytest.raises(ValueError, match=r"x has 7 channels along dimension 1 .*expected 8"):
        OrderingUnit(8, 4)(torch.ones(2, 7))
    with pytest.raises(ValueError, match="per_example"):
        OrderingUnit(8, 4, dim=0, per_example=True)(torch.ones(8, 2))
