"""Conversion: what is nested, what is left whole and why, and a converted network in training."""

import copy
import importlib.util
import io
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from structures import (
    GROUPS,
    NETWORKS,
    OPEN,
    STRUCTURES,
    VARIED,
    Functional,
    gap,
    make,
    mixed_shapes,
    run,
    uniform_shapes,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import vnd
from vnd.nn import BayesLayer, OrderingUnit, difference_term, update_differences
from vnd.nn.state import InputMask, state_of

pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


# -- what is nested ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRUCTURES)
def test_units_are_found_and_each_whole_layer_has_its_reason(name):
    structure = STRUCTURES[name]
    _, net, _ = make(name)
    plan = state_of(net)
    assert tuple(plan.units) == structure.units
    for layer, words in structure.whole.items():
        assert words in plan.whole[layer]
    mixing = {path for path, m in net.named_modules() if isinstance(m, BayesLayer) and _mixes(m)}
    tied = {producer for group in plan.groups.values() for producer in group.producers}
    assert mixing <= tied | set(plan.whole)  # nothing is passed over in silence
    table = str(vnd.describe(net))
    for unit in structure.units:
        assert f"\n{unit} " in table
    for layer, reason in plan.whole.items():
        assert any(line.startswith(layer) and line.endswith(reason) for line in table.splitlines())


def _mixes(layer: nn.Module) -> bool:
    return getattr(layer, "groups", 1) == 1 or layer.groups != layer.in_channels


@pytest.mark.parametrize(("name", "count"), [("vgg11", 9), ("mobilenet_v2", 19), ("resnext", 6), ("unet", 12)])
def test_the_networks_of_the_paper_have_their_interiors_nested(name, count):
    _, net, _ = make(name)
    assert len(state_of(net).units) == count
    assert {unit.tiles for unit in state_of(net).units.values()} == ({2} if name == "resnext" else {1})


def test_the_table_says_what_is_tied_to_what():
    _, net, _ = make("residual, stream")
    rows = {row["unit"]: row for row in vnd.describe(net).units}
    assert (rows["stem"]["channels"], rows["stem"]["groups"], rows["stem"]["base"]) == (8, 4, 1)
    for other in ("norm", "outer", "outer_norm", "inner", "wide", "shortcut"):
        assert other in rows["stem"]["tied"]
    assert "× 4" in str(vnd.describe(make("grouped")[1]))
    assert vnd.describe(net).whole == tuple(state_of(net).whole.items())


def test_groups_are_as_even_as_can_be_and_no_more_than_the_channels():
    _, net, _ = make("uneven")
    assert [unit.group_sizes for unit in state_of(net).units.values()] == [(4, 3, 3, 3), (2, 2, 2, 1), (1, 1)]


# -- the function, the class, the state -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_conversion_keeps_function_class_and_state_and_leaves_the_model_alone(name):
    plain, net, example = make(name)
    types = [type(m) for m in plain.modules()]
    state = {key: value.clone() for key, value in plain.state_dict().items()}
    assert gap(run(plain.eval(), example), run(net, example)) <= 1e-12
    assert type(net) is type(plain)
    own = net.state_dict()
    assert own.keys() > state.keys()
    for key, value in state.items():
        assert torch.equal(own[key], value)
    new = own.keys() - state.keys() - {"_vnd_converted_at"}
    assert all(key.rpartition(".")[2] == "log_alpha" or ".ordering." in key for key in new)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    assert [type(m) for m in plain.modules()] == types
    assert all(torch.equal(value, state[key]) for key, value in plain.state_dict().items())
    assert not plain._forward_pre_hooks


@pytest.mark.parametrize("name", VARIED)
def test_order_by_magnitude_leaves_the_function_unchanged_at_full_width(name):
    plain, net, example = make(name, order="magnitude")
    assert gap(run(plain.eval(), example), run(net, example)) <= 1e-12
    moved = [key for key, value in plain.state_dict().items() if not torch.equal(value, net.state_dict()[key])]
    assert moved


def test_order_by_magnitude_puts_the_important_channels_first():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    net = vnd.to_nested(plain, torch.randn(2, 2, 4, 4), num_groups=8, order="magnitude")

    def importance(net: nn.Module) -> Tensor:
        return (net[0].weight.flatten(1).norm(dim=1) * net[4].weight.view(3, 8, 4).norm(dim=(0, 2))).detach()

    assert not torch.equal(importance(plain), importance(plain).sort(descending=True).values)
    assert torch.allclose(importance(net), importance(plain).sort(descending=True).values)


def test_order_by_magnitude_sorts_inside_the_groups_of_a_grouped_convolution():
    _, net, example = make("grouped", order="magnitude")
    for shape in mixed_shapes(net):
        with torch.no_grad(), vnd.width(net, shape):
            assert gap(run(net, example), run(vnd.extract(net, shape), example)) <= 1e-12


def test_methods_of_the_model_are_there_and_see_the_width():
    plain, net, x = make("functional")
    assert isinstance(net, Functional)
    assert torch.equal(net.most_likely(x), plain.eval().most_likely(x))
    assert gap(plain.encode(x), net.encode(x)) <= 1e-12
    with torch.no_grad(), vnd.width(net, 0.5):
        code = net.encode(x)
        assert gap(net.head(code), net(x)) <= 1e-12
        assert gap(code[:, :6], vnd.extract(net).encode(x)) <= 1e-12


def test_state_loads_into_another_conversion_and_copies_are_independent():
    _, net, example = make("flatten")
    with torch.no_grad():
        for unit in state_of(net).units.values():
            unit.keep_logits.normal_()
    other = make("flatten")[1]
    other.load_state_dict(net.state_dict())
    assert gap(run(net, example), run(other, example)) == 0
    twin = copy.deepcopy(net)
    with vnd.width(twin, 0.25):
        assert all(int(unit.fixed_groups) == -1 for unit in state_of(net).units.values())
        assert gap(run(twin, example).detach(), run(net, example).detach()) > 1e-3
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert gap(run(net, example), run(other, example)) == 0
    assert state_of(twin) is not state_of(net)
    twin_units = [m for m in twin.modules() if isinstance(m, OrderingUnit)]
    assert list(state_of(twin).units.values()) == twin_units
    readers = [m.input_mask for m in twin.modules() if isinstance(m, BayesLayer) and m.input_mask]
    assert all(unit in twin_units for mask in readers for unit, _ in mask.parts)


def test_a_nested_network_can_be_saved_whole():
    _, net, example = make("flatten")
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    with vnd.width(net, 0.5), vnd.width(again, 0.5):
        assert gap(run(net, example), run(again, example)) == 0


# -- rules and other options ----------------------------------------------------------------------------------------


def test_rules_say_what_to_nest_how_finely_and_where_log_alpha_starts():
    rules = {
        "*": vnd.Rule(log_alpha_init=-1.0),
        "layers.0": vnd.Rule(nest=False, log_alpha_init=-8.0),
        "layers.1": vnd.Rule(num_groups=5, base=3, prior=4.0),
        "layers.3": vnd.Rule(bayesian=False),
    }
    _, net, _ = make("uneven", rules=rules)
    plan = state_of(net)
    assert plan.whole["layers.0"] == "a rule says so"
    assert list(plan.units) == ["layers.1", "layers.2"]
    unit = plan.units["layers.1"]
    assert (unit.num_groups, unit.base) == (5, 3)
    assert 3 + float(unit.prior.expected_length) == pytest.approx(4.0, abs=1e-4)
    assert [float(layer.log_alpha.detach().mean()) for layer in net.layers[:3]] == [-8.0, -1.0, -1.0]
    assert net.layers[3].log_alpha is None


def test_of_two_rules_that_match_the_later_one_wins():
    first, second = vnd.Rule(num_groups=2, base=2), vnd.Rule(num_groups=3)
    unit = state_of(make("uneven", rules={"layers.*": first, "*.1": second})[1]).units["layers.1"]
    assert (unit.num_groups, unit.base) == (3, 2)
    unit = state_of(make("uneven", rules={"*.1": second, "layers.*": first})[1]).units["layers.1"]
    assert unit.num_groups == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": {"layer.0": OPEN}}, "the rule 'layer.0' matches no layer of Uneven"),
        ({"placement": "before"}, "placement must be 'after' or 'before_norm'; got 'before'"),
        ({"coupling": "none"}, "coupling must be 'quantile' or 'independent'; got 'none'"),
        ({"order": "random"}, "order must be 'magnitude', what vnd.taylor_order gives, or None; got 'random'"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make("uneven", **options)


def test_a_nested_network_is_not_nested_again():
    _, net, example = make("uneven")
    with pytest.raises(ValueError, match="is a nested network already"):
        vnd.to_nested(net, example)


def test_without_a_posterior_weights_are_points_and_kl_is_that_of_the_order():
    _, net, example = make("flatten", bayesian=False)
    assert not any("log_alpha" in key for key in net.state_dict())
    order = sum(unit.kl() for unit in state_of(net).units.values())
    assert float(vnd.kl(net).detach()) == pytest.approx(float(order.detach()))
    net.train()
    net[8].eval()
    vnd.set_width(net, 0.5)
    assert torch.equal(run(net, example), run(net, example))  # neither weights nor fixed masks are drawn


# -- placement --------------------------------------------------------------------------------------------------------


def parts(plain: nn.Module, at: int) -> tuple[nn.Sequential, nn.Sequential]:
    layers = list(plain.eval())
    return nn.Sequential(*layers[:at]), nn.Sequential(*layers[at:])


def test_a_dropped_channel_is_zero_after_norm_and_activation():
    plain, net, x = make("flatten")
    first, rest = parts(plain, 4)
    with torch.no_grad(), vnd.width(net, vnd.Shape({"0": 2, "5": GROUPS})):
        hidden = first(x)
        hidden[:, 4:] = 0  # two groups of two channels are left
        assert gap(rest(hidden), net(x)) <= 1e-12


def test_before_norm_a_dropped_channel_still_emits_what_the_norm_makes_of_zero():
    plain, net, x = make("flatten", placement="before_norm")
    first, rest = parts(plain, 1)
    with torch.no_grad(), vnd.width(net, vnd.Shape({"0": 2, "5": GROUPS})):
        hidden = first(x)
        hidden[:, 4:] = 0
        assert gap(rest(hidden), net(x)) <= 1e-12
        assert float(plain[2](plain[1](hidden))[:, 4:].max()) > 0


def test_before_norm_trains_and_predicts():
    _, net, x = make("residual", placement="before_norm")
    run(net.train(), x).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert vnd.predict(net, x, width=0.5, samples=2).probs.isfinite().all()


# -- training ---------------------------------------------------------------------------------------------------------


class Witness(nn.Module):
    """Shows the masks that the two readers of a unit see: its channels are 1, its readers the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(3, 8)
        self.readers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
        with torch.no_grad():
            self.maker.weight.zero_()
            self.maker.bias.fill_(1.0)
            for reader in self.readers:
                reader.weight.copy_(torch.eye(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.maker(x)
        return torch.stack([reader(x) for reader in self.readers], 1)


@pytest.mark.parametrize("coupling", ["quantile", "independent"])
@pytest.mark.parametrize("per_example", [False, True])
def test_all_readers_of_a_unit_see_the_same_draw_in_one_forward(coupling, per_example):
    options = {"coupling": coupling, "per_example": per_example, "initial_logit": 1.0}
    net = vnd.to_nested(Witness(), torch.zeros(6, 3), num_groups=8, bayesian=False, **options).train()
    with torch.no_grad():
        masks = torch.stack([net(torch.zeros(6, 3)) for _ in range(400)])  # pass, example, reader, channel
    assert torch.equal(masks[:, :, 0], masks[:, :, 1])
    assert bool((masks.diff(dim=-1) <= 0).all())
    assert masks.unique().tolist() == [0, 1]
    same = (masks == masks[:, :1]).flatten(1).all(1)
    assert float(same.float().mean()) < 0.5 if per_example else bool(same.all())
    survival = next(iter(state_of(net).units.values())).survival().detach()
    # At most 400 independent draws: 5 standard errors of 1/2 / sqrt(400).
    assert torch.allclose(masks.mean((0, 1, 2)), survival, atol=0.125)
    assert len(masks[:, 0, 0].sum(-1).unique()) > 3


def test_a_mask_drawn_anew_for_each_reader_is_caught(monkeypatch):
    net = vnd.to_nested(Witness(), torch.zeros(6, 3), num_groups=8, bayesian=False, coupling="independent").train()
    monkeypatch.setattr(InputMask, "__call__", lambda mask: mask.parts[0][0].spread(mask.parts[0][0].mask()))
    with torch.no_grad():
        masks = torch.stack([net(torch.zeros(6, 3)) for _ in range(100)])
    assert not torch.equal(masks[:, :, 0], masks[:, :, 1])


OTHERWISE = [{"per_example": True}, {"coupling": "independent"}, {"gradient": "downhill"}]


@pytest.mark.parametrize(
    ("name", "options"), [("transformer", {}), *(("flatten", options) for options in ({}, *OTHERWISE))]
)
def test_the_gradient_reaches_every_parameter(name, options):
    _, net, example = make(name, initial_logit=1.0, **options)
    net.train()
    for _ in range(8):  # of narrow networks not every pass reaches all
        out = run(net, example)
        (out * torch.randn_like(out)).sum().backward()
    vnd.kl(net).backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
    for unit in state_of(net).units.values():
        assert unit.keep_logits.grad.abs().max() > 0


@pytest.mark.parametrize("name", VARIED)
def test_one_pass_in_training_leaves_no_parameter_without_a_gradient(name):
    _, net, example = make(name)
    run(net.train(), example).sum().backward()  # one that were skipped would stop distributed training
    assert [key for key, parameter in net.named_parameters() if parameter.grad is None] == []
    net.eval()
    assert all(unit.current is None for unit in state_of(net).units.values())


def test_distributed_training_finds_no_unused_parameter(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        _, net, x = make("flatten")
        wrapped = nn.parallel.DistributedDataParallel(net.train())
        for _ in range(3):  # an unused parameter in one pass stops the next
            (wrapped(x).square().sum() + vnd.kl(wrapped)).backward()
        with vnd.width(wrapped.eval(), 0.5):  # public functions look through the wrapper
            assert gap(run(wrapped, x).detach(), run(vnd.extract(wrapped), x).detach()) <= 1e-12
        assert vnd.predict(wrapped, x, width=0.5, samples=2).probs.isfinite().all()
    finally:
        distributed.destroy_process_group()


def test_training_moves_the_network():
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0)
    net = vnd.to_nested(mlp(4, 16, 16, 3), x, num_groups=8).train()
    optimizer = torch.optim.SGD(vnd.parameter_groups(net, lr=0.1), momentum=0.9)
    losses = []
    for _ in range(150):
        loss = F.cross_entropy(net(x), y) + 1e-3 / 64 * vnd.kl(net)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])


def test_measured_differences_of_a_converted_network_give_the_enumerated_gradient():
    torch.manual_seed(1)
    x, y = torch.randn(16, 3).double(), torch.randint(2, (16,))
    net = vnd.to_nested(mlp(3, 5, 4, 2).double(), x, num_groups=5, bayesian=False).train()
    units = list(state_of(net).units.values())
    with torch.no_grad():
        for unit in units:
            unit.keep_logits.normal_()

    def loss() -> Tensor:
        return F.cross_entropy(net(x), y)

    for _ in range(80):
        update_differences(net, loss)
    assert all(bool((unit.difference_counts > 0).all()) for unit in units)
    measured = torch.autograd.grad(difference_term(net), [unit.keep_logits for unit in units])

    log_survival = torch.cat([unit.posterior().chain.log_survival for unit in units])
    name_of = [name for name, unit in state_of(net).units.items() for _ in range(unit.num_nested)]
    order = log_survival.detach().sort(descending=True).indices
    groups = {name: unit.base for name, unit in state_of(net).units.items()}
    net.eval()
    losses = []
    with torch.no_grad():
        for index in (None, *order.tolist()):
            if index is not None:
                groups[name_of[index]] += 1
            losses.append(F.cross_entropy(vnd.extract(net, vnd.Shape(groups))(x), y))
    expected = losses[0] + (log_survival[order].exp() * torch.stack(losses).diff()).sum()
    truth = torch.autograd.grad(expected, [unit.keep_logits for unit in units])
    for estimate, exact in zip(measured, truth, strict=True):
        assert float(exact.abs().max()) > 0
        assert torch.allclose(estimate, exact, rtol=1e-5, atol=1e-7)  # the table is kept in float32


# -- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flatten", "convnext, stream", "grouped"])
def test_one_compiled_graph_serves_all_widths(name):
    torch.compiler.reset()
    _, net, example = make(name)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        run(compiled, example)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for shape in uniform_shapes(net) + mixed_shapes(net, 2):
                with vnd.width(compiled, shape):  # public functions look through the wrapper
                    assert gap(run(net, example), run(compiled, example)) <= 1e-12
                    assert gap(run(compiled, example), run(vnd.extract(compiled, shape), example)) <= 1e-12
    torch.compiler.reset()


def test_a_compiled_network_trains_as_an_eager_one():
    torch.compiler.reset()
    net, x = make("flatten", bayesian=False, initial_logit=1.0)[1].train(), torch.randn(8, 1, 8, 8).double()
    net[8].p = 0.0
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for _ in range(4):
        outs = [module(x) for module in (net, compiled)]
        assert gap(*outs) <= 1e-12
        for out in outs:
            out.square().sum().backward()
    for (key, one), other in zip(net.named_parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-6, atol=1e-9), key
    torch.compiler.reset()


# -- what cannot be followed, and what can after all ----------------------------------------------------------------


SOURCE = """
from torch import nn

class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        if x.sum() > 0:
            x = -x
        return self.layer(x)
"""


def test_a_model_that_asks_for_values_gets_an_error_with_the_line(tmp_path):
    folder = tmp_path / "my_pytorch_project"  # whatever the path
    folder.mkdir()
    (folder / "model.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    message = r"to_nested: what Branching does depends on the values .*/my_pytorch_project/model\.py, line 10\)"
    with pytest.raises(ValueError, match=message):
        vnd.to_nested(module.Branching(), torch.randn(2, 4))
    with pytest.raises(
        ValueError, match=r"Branching cannot run on the example: at .*model\.py, line 12: mat1 and mat2"
    ):
        vnd.to_nested(module.Branching(), torch.randn(2, 5))


class Options(nn.Module):
    """Optional tensors and flags that steer the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, shift: Tensor | None = None, scale: Tensor | None = None, act: bool = True) -> Tensor:
        x = self.inner(x)
        if act:
            x = torch.tanh(x)
        if shift is not None:
            x = x + shift
        if scale is not None:
            x = x * scale
        return self.head(x)


@pytest.mark.parametrize(
    "example",
    [
        torch.randn(2, 4),
        (torch.randn(2, 4), torch.randn(2, 1)),
        (torch.randn(2, 4), None, torch.randn(2, 1), False),
        {"x": torch.randn(2, 4), "scale": torch.randn(2, 1)},
        {"scale": torch.randn(2, 1), "act": False, "x": torch.randn(2, 4)},
    ],
    ids=["alone", "positional", "with a flag", "by name", "in another order"],
)
def test_arguments_that_the_example_leaves_out_have_their_defaults(example):
    net = vnd.to_nested(Options(), example, num_groups=4).eval()
    assert list(state_of(net).units) == ["inner"]
    with torch.no_grad(), vnd.width(net, 0.5):
        assert gap(run(net, example), run(vnd.extract(net), example)) <= 1e-5


class ByKeyword(nn.Module):
    """Operands given by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=F.relu(input=torch.mul(self.a(x), other=self.b(input=x))))


class Constant(nn.Module):
    """A tensor made in the forward pass, as wide as a layer: it cannot be sliced, the rest can."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(self.a(x) * torch.linspace(0, 1, 8))))


class TransposedWave(nn.Module):
    """A layer without a Bayesian form, which starts near zero: its weight is masked."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv1d(2, 8, 3), nn.ConvTranspose1d(8, 6, 3), nn.Conv1d(6, 2, 1)
        nn.init.constant_(self.b.weight, 1e-9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))))


class Twisted(nn.Module):
    """Norms over positions that are channels of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.head = nn.Linear(4, 8), nn.InstanceNorm1d(3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.a(x)))


@pytest.mark.parametrize(
    ("model", "x", "units", "whole"),
    [
        (ByKeyword, torch.randn(3, 4), ["a"], {}),
        (Constant, torch.randn(3, 4), ["b"], {"a": "meets a tensor whose channels are not those of a layer"}),
        (TransposedWave, torch.randn(2, 2, 9), ["a", "b"], {}),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_odd_uses_are_followed_or_left_whole(model, x, units, whole):
    net = vnd.to_nested(model(), x, num_groups=4).eval()
    plan = state_of(net)
    assert list(plan.units) == units
    for layer, words in whole.items():
        assert words in plan.whole[layer]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_()
        for shape in mixed_shapes(net):
            with vnd.width(net, shape):
                assert gap(run(net, x), run(vnd.extract(net, shape), x)) <= 1e-5


def test_norms_over_positions_that_are_channels_leave_nothing_to_nest():
    with pytest.raises(ValueError, match=r"nothing of Twisted can be nested.*a: enters norm as positions"):
        vnd.to_nested(Twisted(), torch.randn(2, 3, 4), num_groups=4)


def test_a_transformer_layer_of_torch_is_looked_into_and_runs_by_its_layers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 6), nn.Linear(6, 2))
    plain, x = net.double().eval(), torch.randn(2, 3, 8).double()
    nested = vnd.to_nested(plain, x, num_groups=4).eval()
    assert list(state_of(nested).units) == ["0.self_attn", "0.linear1", "1"]
    with torch.no_grad():  # where torch would take its fused path, past masks and posteriors
        assert gap(plain(x), nested(x)) <= 1e-12
        for shape in mixed_shapes(nested):
            with vnd.width(nested, shape):
                assert gap(nested(x), vnd.extract(nested, shape)(x)) <= 1e-12
                assert gap(nested(x), plain(x)) > 1e-3
    full = vnd.extract(nested)
    assert type(full[0].self_attn) is nn.MultiheadAttention
    assert full[0].activation_relu_or_gelu == plain[0].activation_relu_or_gelu > 0
    assert nested[0].activation_relu_or_gelu == 0


def test_a_single_layer_is_refused():
    with pytest.raises(ValueError, match="a single Linear has nothing to nest"):
        vnd.to_nested(nn.Linear(4, 2), torch.randn(3, 4))


def test_conversion_keeps_the_mode_of_every_module():
    plain = make("flatten")[0].train()
    plain[1].eval()
    net = vnd.to_nested(plain, torch.randn(2, 1, 8, 8).double(), num_groups=GROUPS)
    assert net.training
    assert not net[1].training


def test_a_rule_on_any_producer_of_a_unit_counts():
    _, net, _ = make("residual", rules={"outer": vnd.Rule(nest=True, num_groups=8, base=2)})
    unit = state_of(net).units["stem"]
    assert (unit.num_groups, unit.base) == (8, 2)


def test_a_pass_that_fails_leaves_no_masks_behind():
    _, net, _ = make("flatten")
    with pytest.raises(RuntimeError):
        net.train()(torch.randn(2, 5, 8, 8).double())
    twin = copy.deepcopy(net)
    assert all(unit.current is None for unit in state_of(twin).units.values())
    net.eval()
    assert all(unit.current is None for unit in state_of(net).units.values())


@pytest.mark.parametrize("coupling", ["quantile", "independent"])
def test_activation_checkpointing_gives_the_same_gradients(coupling):
    torch.manual_seed(0)
    x = torch.randn(5, 4).double()
    net = vnd.to_nested(mlp(4, 8, 8, 2).double(), x, num_groups=8, bayesian=False, coupling=coupling).train()
    twin = copy.deepcopy(net)
    inner = twin[2].forward
    twin[2].forward = lambda y: checkpoint(inner, y, use_reentrant=False)
    for module in (net, twin):
        torch.manual_seed(1)
        module(x).square().sum().backward()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad)


class Cached(nn.Module):
    """Keeps what it makes of a parameter in evaluation, and lets go of it in training, as LeViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.bias = nn.Linear(4, 8), nn.Linear(8, 3), nn.Parameter(torch.randn(8))
        self.cache: list[Tensor] = []

    def train(self, mode: bool = True) -> nn.Module:
        if mode:
            self.cache = []
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.b(torch.relu(self.a(x)) + 2 * self.bias)
        self.cache = self.cache or [2 * self.bias.detach()]
        return self.b(torch.relu(self.a(x)) + self.cache[0])


def test_what_a_module_keeps_of_its_parameters_is_made_anew(tmp_path):
    torch.manual_seed(0)
    plain, x = Cached().double().eval(), torch.randn(5, 4).double()
    wanted = plain(x).detach()  # the cache is of the plain network
    net = vnd.to_nested(plain, x, num_groups=4, order="magnitude").eval()
    assert list(state_of(net).units) == ["a"]
    assert gap(wanted, net(x).detach()) <= 1e-12
    again = vnd.load(vnd.save(net, tmp_path), model=plain)
    with torch.no_grad():
        assert gap(net(x), again(x)) == 0
        for shape in mixed_shapes(net):
            with vnd.width(net, shape):
                assert gap(net(x), vnd.extract(net, shape)(x)) <= 1e-12


class CountedBatch(nn.Module):
    """A class token for as many examples as come in, counted before the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 8, 2, stride=2), nn.Parameter(torch.randn(1, 1, 8))
        self.hidden, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.shape[0]
        x = torch.cat((self.token.expand(batch, -1, -1), self.patch(x).flatten(2).transpose(1, 2)), 1)
        return self.head(torch.relu(self.hidden(x)).mean(1))


def test_samples_of_a_network_that_counts_its_examples():
    torch.manual_seed(0)
    x = torch.randn(4, 3, 4, 4)
    net = vnd.to_nested(CountedBatch(), x, num_groups=4).eval()
    assert state_of(net).first_consumers == []  # else the batch would be widened behind that layer
    assert vnd.predict(net, x, width=0.5, samples=3).probs.shape == (4, 3)


class PartialRotary(nn.Module):
    """Attention whose heads are turned in their first half alone, by angles computed from a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, 16), nn.Linear(16, 3)
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.register_buffer("speed", torch.rand(2))

    def turned(self, x: Tensor) -> Tensor:
        x = x.view(*x.shape[:2], -1, 4).transpose(1, 2)
        angles = torch.arange(x.shape[2]).to(x)[:, None] * self.speed
        angles = torch.cat((angles, angles), -1)[:, :2]
        turning, passing = x[..., :2], x[..., 2:]
        half = torch.cat((-turning[..., 1:], turning[..., :1]), -1)
        return torch.cat((turning * angles.cos() + half * angles.sin(), passing), -1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        v = self.v(x).view(*x.shape[:2], -1, 4).transpose(1, 2)
        out = F.scaled_dot_product_attention(self.turned(self.q(x)), self.turned(self.k(x)), v)
        return self.head((x + self.o(out.transpose(1, 2).flatten(2))).mean(1))


def test_heads_that_are_turned_in_part_are_heads():
    torch.manual_seed(0)
    plain, x = PartialRotary().double(), torch.randn(2, 6, 5).double()
    net = vnd.to_nested(plain, x, num_groups=4, residual=True).eval()
    assert {name: unit.channels for name, unit in state_of(net).units.items()} == {"embed": 16, "v": 4}
    with torch.no_grad():
        for shape in mixed_shapes(net):
            with vnd.width(net, shape):
                assert gap(net(x), vnd.extract(net, shape)(x)) <= 1e-12


class Configured(nn.Module):
    """Two attentions whose numbers of heads are those of one configuration."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(heads=4)
        self.embed, self.head = nn.Linear(5, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for q, k, v, o in (self.layers[:4], self.layers[4:]):
            heads = (y(x).view(*x.shape[:2], self.config.heads, 4).transpose(1, 2) for y in (q, k, v))
            x = x + o(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


def test_numbers_of_a_configuration_follow_what_they_count():
    torch.manual_seed(0)
    plain, x = Configured().double(), torch.randn(2, 6, 5).double()
    net = vnd.to_nested(plain, x, num_groups=4, residual=True).eval()
    assert {name: unit.channels for name, unit in state_of(net).units.items()} == {"embed": 16, "layers.0": 4}
    with torch.no_grad():
        for shape in mixed_shapes(net):
            small = vnd.extract(net, shape)
            assert small.config.heads == shape["layers.0"]
            with vnd.width(net, shape):
                assert gap(net(x), small(x)) <= 1e-12
    assert plain.config.heads == net.config.heads == 4
