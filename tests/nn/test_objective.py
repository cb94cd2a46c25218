"""The KL against a sum over all weights, one by one, and the groups of an optimizer."""

import pytest
import torch
from structures import VARIED, make
from torch import Tensor, nn

import vnd
from vnd.nn import BayesLayer
from vnd.nn.state import state_of

CLOSE = 1e-7  # a converted network's prior is made in float32


def order_of(net: nn.Module, seed: int = 0) -> nn.Module:
    """Give the logits, log α and weights values of their own."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in net.named_parameters():
            if key.endswith(("keep_logits", "log_alpha")):
                parameter.copy_(torch.randn(parameter.shape, generator=draw) - 0.5)
    return net


def channel_survival(net: nn.Module, unit: str) -> list[float]:
    """P(kept) of each channel of a unit, from the conditional probabilities, one channel at a time."""
    module = state_of(net).units[unit]
    groups, kept = [], 1.0
    for logit in [None] * module.base + module.keep_logits.tolist():
        kept *= 1.0 if logit is None else 1 / (1 + 2.718281828459045**-logit)
        groups.append(kept)
    own, extra = divmod(module.channels // module.tiles, module.num_groups)
    tile = [p for index, p in enumerate(groups) for _ in range(own + (index < extra))]
    return tile * module.tiles


def brute_force(net: nn.Module, ends: dict[str, tuple[list[float], list[float]]], kl_keep_prob: str) -> float:
    """Sum over every weight of its KL times the probability that it is kept, plus the KL of the lengths.

    `ends` has the survival of the output and of the input channels of each layer.
    """
    total = 0.0
    for unit in state_of(net).units.values():
        q = torch.tensor([1.0, *torch.sigmoid(unit.keep_logits.detach().double()).cumprod(0).tolist(), 0.0]).double()
        lengths = q[:-1] - q[1:]
        total += float((lengths * (lengths * len(lengths)).log()).sum())  # against uniform lengths
    for path, (outs, ins) in ends.items():
        layer = net.get_submodule(path)
        costs = vnd.functional.log_uniform_kl(layer.log_alpha.detach(), form="vnd")
        if kl_keep_prob == "released":  # without C, and the mean of the weights of an output
            costs = (costs - 0.547125) * len(outs) / costs.numel()
        groups = getattr(layer, "groups", 1)
        transposed = isinstance(layer, nn.ConvTranspose2d)
        for place in torch.cartesian_prod(*[torch.arange(n) for n in costs.shape[:2]]).tolist():
            if transposed:
                i, within = place
                o = i // (len(ins) // groups) * (len(outs) // groups) + within
            else:
                o, within = place
                i = o // (len(outs) // groups) * (len(ins) // groups) + within
            kept = min(outs[o], ins[i]) if kl_keep_prob == "min" else outs[o]
            total += kept * float(costs[tuple(place)].sum())
    return total


def ends_of(name: str, net: nn.Module) -> dict[str, tuple[list[float], list[float]]]:
    """Written out by hand: survival of the outputs and of the inputs of all layers."""

    def p(unit: str, repeat: int = 1) -> list[float]:
        return [value for value in channel_survival(net, unit) for _ in range(repeat)]

    return {
        "uneven": lambda: {
            "layers.0": (p("layers.0"), [1.0] * 3),
            "layers.1": (p("layers.1"), p("layers.0")),
            "layers.2": (p("layers.2"), p("layers.1")),
            "layers.3": ([1.0] * 3, p("layers.2")),
        },
        "flatten": lambda: {
            "0": (p("0"), [1.0]),
            "5": (p("5"), p("0", 9)),
            "9": ([1.0] * 3, p("5")),
        },
        "grouped": lambda: {
            "reduce": (p("reduce"), [1.0] * 3),
            "grouped": (p("grouped"), p("reduce")),
            "up": (p("up"), p("grouped")),
            "head": ([1.0] * 2, p("up")),
        },
        "inverted, stream": lambda: {
            "stem": (p("stem"), [1.0] * 3),
            "expand": (p("expand"), p("stem")),
            "depthwise": (p("expand", 2), p("expand")),
            "project": (p("stem"), p("expand", 2)),
            "head": ([1.0] * 2, p("stem")),
        },
        "decoder": lambda: {
            "down.0": (p("down.0"), [1.0] * 2),
            "down.1": (p("down.1"), p("down.0")),
            "bottom": (p("bottom"), p("down.1")),
            "up.0": (p("up.0"), p("bottom")),
            "up.1": (p("up.1"), p("down.1") + p("up.0")),
            "spread": (p("up.1") + p("down.0"), p("up.1") + p("down.0")),
            "head": ([1.0], p("up.1") + p("down.0")),
        },
    }[name]()


CASES = ["uneven", "flatten", "grouped", "inverted, stream", "decoder"]


@pytest.mark.parametrize("kl_keep_prob", ["output", "min", "released"])
@pytest.mark.parametrize("name", CASES)
def test_kl_is_the_sum_over_all_weights_of_cost_times_survival(name, kl_keep_prob):
    net = order_of(make(name)[1].double())
    ends = ends_of(name, net)
    assert set(ends) == {path for path, m in net.named_modules() if isinstance(m, BayesLayer)}
    assert float(vnd.kl(net, kl_keep_prob=kl_keep_prob).detach()) == pytest.approx(
        brute_force(net, ends, kl_keep_prob), rel=CLOSE
    )


def test_kl_with_the_wrong_end_of_a_layer_is_caught():
    plain = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    net = order_of(vnd.to_nested(plain, torch.randn(2, 3), num_groups=4).double())
    outs, ins = channel_survival(net, "2"), channel_survival(net, "0")
    ends = {"0": (ins, [1.0] * 3), "2": (outs, ins), "4": ([1.0] * 2, outs)}
    assert float(vnd.kl(net).detach()) == pytest.approx(brute_force(net, ends, "output"), rel=CLOSE)
    plan = state_of(net)
    plan.inputs["2"], plan.outputs["2"] = plan.outputs["2"], plan.inputs["2"]
    assert float(vnd.kl(net).detach()) != pytest.approx(brute_force(net, ends, "output"), rel=1e-3)


def test_the_released_price_is_refused_without_the_prior_it_is_of():
    net = vnd.to_nested(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 3), weight_prior=1.0)
    with pytest.raises(ValueError, match="price 'released' is of the log-uniform prior"):
        vnd.kl(net, "released")


def test_both_ends_cost_less_than_the_output_alone():
    net = order_of(make("decoder")[1])
    assert float(vnd.kl(net, "min").detach()) < float(vnd.kl(net, "output").detach())


@pytest.mark.parametrize("kl_keep_prob", ["output", "min"])
def test_kl_needs_no_pass_leaves_nothing_behind_and_its_gradient_reaches_the_posterior(kl_keep_prob):
    net = order_of(make("decoder")[1])
    value = vnd.kl(net, kl_keep_prob)
    assert torch.equal(value, vnd.kl(net, kl_keep_prob))
    assert value.shape == ()
    assert torch.equal(value, vnd.kl(net.train(), kl_keep_prob))
    value.backward()
    for key, parameter in net.named_parameters():
        if key.endswith(("keep_logits", "log_alpha")):
            assert parameter.grad.isfinite().all(), key
            assert parameter.grad.abs().max() > 0, key
    vnd.set_width(net, 0.5, warn=False)
    assert torch.equal(value, vnd.kl(net, kl_keep_prob))


def test_the_gradient_of_kl_is_that_of_differences():
    net = order_of(make("uneven")[1].double())
    parameters = [p for key, p in net.named_parameters() if key.endswith(("keep_logits", "log_alpha"))]
    gradients = torch.autograd.grad(vnd.kl(net, "min"), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        entry = (0,) * parameter.dim()
        sides = []
        with torch.no_grad():
            for step in (1e-6, -1e-6):
                parameter[entry] += step
                sides.append(vnd.kl(net, "min"))
                parameter[entry] -= step
        assert float((sides[0] - sides[1]) / 2e-6) == pytest.approx(float(gradient[entry]), rel=1e-4, abs=1e-7)


def test_a_network_around_nested_ones_has_the_sum_of_their_kl():
    first, second = order_of(make("uneven")[1]), order_of(make("flatten")[1], 1)
    both = nn.ModuleDict({"a": first, "b": nn.Sequential(second, nn.Softmax(1)), "c": vnd.BayesLinear(3, 2).double()})
    expected = vnd.kl(first) + vnd.kl(second) + both["c"].weight_kl().sum()
    assert float(vnd.kl(both).detach()) == pytest.approx(float(expected.detach()))


def test_networks_without_a_posterior_have_none_or_that_of_their_layers():
    assert float(vnd.kl(nn.Linear(2, 2))) == 0
    layer = vnd.BayesLinear(3, 2)
    assert float(vnd.kl(nn.Sequential(layer)).detach()) == pytest.approx(float(layer.weight_kl().sum().detach()))
    with pytest.raises(ValueError, match="kl: kl_keep_prob must be one of output, min, released; got 'input'"):
        vnd.kl(layer, "input")


def test_narrower_orders_are_cheaper():
    net = make("decoder")[1]
    values = []
    for logit in (-2.0, 0.0, 2.0, 5.0):
        with torch.no_grad():
            for unit in state_of(net).units.values():
                unit.keep_logits.fill_(logit)
            order = sum(unit.kl() for unit in state_of(net).units.values())
            values.append(float(vnd.kl(net) - order))
    assert values == sorted(values)


# -- the optimizer ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIED)
def test_parameter_groups_hold_every_parameter_once(name):
    net = make(name)[1]
    groups = vnd.parameter_groups(net, lr=0.1, log_alpha_lr=1.0, chain_lr=0.3, weight_decay=5e-4)
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in net.parameters())
    assert len(set(held)) == len(held)
    where = {id(p): group for group in groups for p in group["params"]}
    for key, parameter in net.named_parameters():
        group, last = where[id(parameter)], key.rpartition(".")[2]
        expected = {"log_alpha": 1.0, "keep_logits": 0.3}.get(last, 0.1)
        assert group["lr"] == expected, key
        decays = group["weight_decay"] > 0
        assert decays == (last not in ("log_alpha", "keep_logits", "bias") and parameter.dim() > 1), key
    torch.optim.SGD(groups)


def test_rates_that_are_not_given_are_that_of_the_weights():
    groups = vnd.parameter_groups(make("flatten")[1], lr=0.2)
    assert {group["lr"] for group in groups} == {0.2}
    assert {group["weight_decay"] for group in groups} == {0.0}


def test_a_network_of_gaussian_weights_has_its_variances_among_the_noise():
    net = nn.Sequential(vnd.BayesLinear(3, 2, prior=torch.distributions.Normal(0.0, 1.0)))
    groups = {group["name"]: group["params"] for group in vnd.parameter_groups(net, lr=0.1)}
    assert [p.shape for p in groups["log_alpha"]] == [(2, 3)]


def test_the_temperature_is_that_of_all_units():
    net = make("decoder")[1]
    vnd.set_temperature(net, 0.5)
    assert [float(unit.temperature) for unit in state_of(net).units.values()] == [0.5] * 5
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="set_temperature: temperature must be finite and greater than 0"):
            vnd.set_temperature(net, value)


def test_the_objective_of_a_batch_can_be_descended():
    _, net, x = make("flatten")
    net.train()
    optimizer = torch.optim.SGD(vnd.parameter_groups(net, lr=1e-3, log_alpha_lr=0.1, chain_lr=0.1))

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = net(x).square().mean() + vnd.kl(net) / 100
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = float(vnd.kl(net).detach())
    for _ in range(20):
        assert step().isfinite()
    assert float(vnd.kl(net).detach()) < before


def test_the_kl_of_lengths_alone_keeps_them_apart_as_gibbs_has_it() -> None:
    r"""Where $q_j \propto p_j e^{-(Δ_1 + … + Δ_j) / c}$, the gradient of $\sum_i P(z_i = 1) Δ_i + c\, Φ_1$ is zero."""
    torch.manual_seed(0)
    net = vnd.to_nested(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(1, 3), num_groups=8)
    net = net.double()
    (unit,) = state_of(net).units.values()
    changes, c = torch.randn(unit.num_nested, dtype=torch.float64) * 0.1, 0.05
    energy = torch.cat((torch.zeros(1), changes.cumsum(0)))
    prior = vnd.BernoulliChain(unit.prior_logits.double()).length_log_probs
    logits = vnd.BernoulliChain.from_length_probs((prior - energy / c).softmax(0)).keep_logits
    for shift, still in ((0.0, True), (0.5, False)):  # and it is not zero elsewhere
        with torch.no_grad():
            unit.keep_logits.copy_(logits + shift)
        loss = (unit.posterior().chain.log_survival.exp() * changes).sum() + c * vnd.nn.length_kl(net)
        (gradient,) = torch.autograd.grad(loss, unit.keep_logits)
        assert (float(gradient.abs().max()) < 1e-8) == still


def test_the_kl_has_that_of_the_lengths_in_it() -> None:
    _, net, _ = make("vgg11")
    own = vnd.nn.length_kl(net).detach()
    assert float(own) > 0
    assert float(vnd.nn.length_kl(nn.Linear(2, 2))) == 0.0
    for layer in net.modules():
        if isinstance(layer, BayesLayer):
            layer.bayesian = False
    assert float(vnd.kl(net).detach()) == pytest.approx(float(own))
