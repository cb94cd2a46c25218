"""Quantile coupling, and the order's gradient by measured differences."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vnd.nn import OrderingUnit, Quantile, couple, difference_term, update_differences


def make_network(gradient="survival", seed=0, coupled=True):
    torch.manual_seed(seed)
    units = [OrderingUnit(5, 5, base=1, gradient=gradient), OrderingUnit(4, 4, base=0, gradient=gradient)]
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), units[0], nn.Linear(5, 4), nn.Tanh(), units[1], nn.Linear(4, 2))
    for unit in units:
        nn.init.normal_(unit.keep_logits)
    return (couple(net) if coupled else net).double()


def units_of(net):
    return [module for module in net.modules() if isinstance(module, OrderingUnit)]


def test_the_rotation_covers_the_unit_interval_evenly():
    torch.manual_seed(3)
    quantile = Quantile()
    draws = torch.stack([quantile.draw().clone() for _ in range(2000)]).sort().values
    assert float(draws.min()) > 0
    assert float(draws.max()) < 1
    discrepancy = (draws - (torch.arange(2000) + 0.5) / 2000).abs().max()
    assert float(discrepancy) < 5 / 2000  # independent draws: about 1.2 / sqrt(2000) = 0.027


def test_strata_spread_the_draws_of_one_step():
    quantile = Quantile(strata=8)
    for _ in range(5):
        draws = torch.stack([quantile.draw().clone() for _ in range(8)]).sort().values
        assert torch.allclose(draws.diff(), torch.full((7,), 1 / 8, dtype=torch.float64), atol=1e-6)


def test_no_dtype_coarsens_the_rotation():
    quantile, coarse = Quantile(), Quantile()
    coarse.load_state_dict(quantile.state_dict())
    coarse.bfloat16()
    assert float(coarse.draw()) == float(quantile.draw())


def test_the_rotation_resumes_from_its_state():
    quantile = Quantile()
    for _ in range(5):
        quantile.draw()
    other = Quantile()
    other.load_state_dict(quantile.state_dict())
    assert float(quantile.draw()) == float(other.draw())


def test_a_forward_pass_in_training_is_one_draw_and_one_in_evaluation_is_none():
    net = make_network()
    quantile = units_of(net)[0].quantile
    assert all(unit.quantile is quantile for unit in units_of(net))
    net(torch.ones(1, 3).double())
    net(torch.ones(1, 3).double())
    assert int(quantile.count) == 2
    net.eval()(torch.ones(1, 3).double())
    assert int(quantile.count) == 2


def test_all_units_of_a_coupled_network_are_cut_at_the_same_quantile():
    net = make_network()
    for _ in range(50):
        net(torch.ones(1, 3).double())
        for unit in units_of(net):
            survival = unit.posterior().chain.mean
            assert int(unit.mask().sum()) == unit.base + int((unit.quantile.u < survival).sum())


def test_uncoupled_units_draw_on_their_own():
    torch.manual_seed(0)
    net = make_network(coupled=False)
    first, second = units_of(net)
    with torch.no_grad():
        for unit in (first, second):
            unit.keep_logits.zero_()
        pairs = torch.stack([torch.stack((first.mask()[1], second.mask()[0])) for _ in range(4000)])
    assert abs(float(torch.corrcoef(pairs.T)[0, 1])) < 0.08  # 5 standard errors


def test_copies_share_among_themselves_only_and_state_is_kept_once():
    net = make_network()
    twin = copy.deepcopy(net)
    assert len({id(unit.quantile) for unit in units_of(twin)}) == 1
    assert units_of(twin)[0].quantile is not units_of(net)[0].quantile
    twin(torch.ones(1, 3).double())
    assert int(units_of(twin)[1].quantile.count) == 1
    assert int(units_of(net)[1].quantile.count) == 0
    assert sum("quantile" in key for key in net.state_dict()) == 3


def test_coupling_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="no OrderingUnit"):
        couple(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="coupled already"):
        couple(make_network())
    with pytest.raises(ValueError, match="strata must be at least 1; got 0"):
        Quantile(strata=0)


def test_a_coupled_network_compiles_to_one_graph():
    torch._dynamo.reset()
    net = make_network()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = torch.randn(4, 3).double()
    for _ in range(3):
        compiled(x).sum().backward()
    assert int(units_of(net)[0].quantile.count) == 3
    assert all(p.grad is not None for p in net.parameters())


def enumerated_gradient(net, loss):
    """Gradient of E[loss] over u on all keep logits, from the loss of every shape that u passes through."""
    units = units_of(net)
    log_survival = torch.cat([unit.posterior().chain.log_survival for unit in units])
    unit_of = [unit for unit in units for _ in range(unit.num_nested)]
    with torch.no_grad():
        for unit in units:
            unit.fixed_groups.fill_(unit.base)
        losses = [loss()]
        order = log_survival.detach().sort(descending=True).indices
        for index in order:
            unit_of[index].fixed_groups.add_(1)
            losses.append(loss())
        for unit in units:
            unit.fixed_groups.fill_(-1)
    expected = losses[0] + (log_survival[order].exp() * torch.stack(losses).diff()).sum()
    return torch.autograd.grad(expected, [unit.keep_logits for unit in units])


def measured_gradient(net, loss, visits):
    for _ in range(visits):
        update_differences(net, loss)
    assert all(bool((unit.difference_counts > 0).all()) for unit in units_of(net))
    return torch.autograd.grad(difference_term(net), [unit.keep_logits for unit in units_of(net)])


@pytest.mark.parametrize("seed", range(3))
def test_measured_differences_give_the_exact_gradient_of_a_coupled_network(seed):
    net = make_network("difference", seed)
    x, y = torch.randn(16, 3).double(), torch.randint(2, (16,))

    def loss():
        return F.cross_entropy(net(x), y)

    for estimate, truth in zip(measured_gradient(net, loss, 80), enumerated_gradient(net, loss), strict=True):
        assert float(truth.abs().max()) > 0
        assert torch.allclose(estimate, truth, rtol=1e-9, atol=1e-12)


def test_a_difference_measured_at_the_wrong_unit_is_caught():
    net = make_network("difference")
    x, y = torch.randn(16, 3).double(), torch.randint(2, (16,))

    def loss():
        return F.cross_entropy(net(x), y)

    truth = enumerated_gradient(net, loss)
    measured_gradient(net, loss, 80)
    for unit in units_of(net):
        unit.differences.copy_(unit.differences.roll(1))
    wrong = torch.autograd.grad(difference_term(net), [unit.keep_logits for unit in units_of(net)])
    assert not any(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(wrong, truth, strict=True))


def test_measuring_leaves_the_network_as_it_was():
    net = make_network("difference").insert(1, nn.BatchNorm1d(5).double())
    x = torch.randn(8, 3).double()
    net(x)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    update_differences(net, lambda: net(x).sum())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(int(unit.fixed_groups) == -1 for unit in units_of(net))
    with pytest.raises(RuntimeError, match="no loss"):
        update_differences(net, raise_error)
    assert all(int(unit.fixed_groups) == -1 for unit in units_of(net))


def raise_error():
    raise RuntimeError("no loss")


def test_both_passes_see_the_same_noise_and_independent_layers_the_same_draws():
    net = make_network("difference", coupled=False)
    seen = []

    def loss():
        value = torch.rand((), dtype=torch.float64)
        seen.append(float(value))
        return value + 0 * net(torch.ones(1, 3).double()).sum()

    for _ in range(10):
        update_differences(net, loss)
    assert all(a == b for a, b in zip(seen[::2], seen[1::2], strict=True))
    assert len(set(seen)) == 10


def test_an_entry_starts_as_a_mean_and_becomes_a_moving_one():
    unit = OrderingUnit(2, 2, base=1, gradient="difference")
    net = couple(nn.Sequential(unit))
    values = iter([0.0, 1.0, 0.0, 3.0, 0.0, 5.0])
    for expected in (1.0, 2.0, 3.5):
        update_differences(net, lambda: torch.tensor(next(values)), rate=0.5)
        assert float(unit.differences) == pytest.approx(expected)


def test_other_gradients_add_no_term_and_measure_nothing():
    net = make_network("survival")
    assert float(difference_term(net)) == 0.0
    update_differences(net, raise_error)
