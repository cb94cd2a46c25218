"""Ordered bits of weights: levels, nesting, gradients, cuts, price and size."""

import itertools
import math

import pytest
import torch
from torch import nn

import vnd
from vnd.nn.bits import quantize
from vnd.nn.state import state_of

torch.manual_seed(0)
WEIGHT = torch.cat([torch.randn(2000), torch.tensor([0.0, 1.0, -1.0, 1e-12, -1e-12, 30.0, -30.0])])
LOG_SCALE = torch.tensor(0.3)


def leading(count, bits=8):
    return (torch.arange(bits) < count).float()


# The quantizer


def check_levels(quantizer):
    """At most 2ᵇ levels, an error of at most c 2⁻ᵇ, and a bit more halves the cell, the leading ones unchanged."""
    scale = float(LOG_SCALE.exp())
    inside = WEIGHT.abs() <= scale
    coarse = [quantizer(WEIGHT, LOG_SCALE, leading(count)) for count in range(1, 9)]
    for count, values in enumerate(coarse, 1):
        assert values.isfinite().all()
        assert len(values.unique()) <= 2**count
        assert (values - WEIGHT)[inside].abs().max() <= scale * 2.0**-count * (1 + 1e-6)
        assert (values.sign() == torch.where(WEIGHT >= 0, 1.0, -1.0)).all()
        assert torch.equal(values[~inside].unique(), torch.tensor([-1.0, 1.0]) * scale * (1 - 2.0**-count))
    for count, (values, finer) in enumerate(itertools.pairwise(coarse), 1):
        steps = (finer - values).abs() * 2.0 ** (count + 1) / scale
        torch.testing.assert_close(steps, torch.ones_like(steps), rtol=0, atol=1e-4)


def nearest(weight, log_scale, mask):
    """Rounds to the nearest level of so many bits: the leading ones change when others are added."""
    steps, scale = 2.0 ** (mask.sum() - 1), log_scale.exp()
    return ((weight / scale * steps).round().clamp(-steps, steps - 1) + 0.0) * scale / steps


FAULTS = {
    "the nearest level": nearest,
    "no clipping": lambda w, s, z: ((w / s.exp() * 2 ** (z.sum() - 1)).floor() + 0.5) * s.exp() / 2 ** (z.sum() - 1),
    "the lower end of a cell": lambda w, s, z: quantize(w, s, z) - s.exp() * 2.0 ** -z.sum(),
    "trailing bits": lambda w, s, z: quantize(w, s, z.flip(0)),
    "half the scale": lambda w, s, z: quantize(w, s - math.log(2), z),
}


def test_levels_are_few_near_and_nested():
    check_levels(quantize)


@pytest.mark.parametrize("fault", FAULTS)
def test_another_quantizer_is_caught(fault):
    with pytest.raises(AssertionError):
        check_levels(FAULTS[fault])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_weight_keeps_its_dtype(dtype):
    values = quantize(WEIGHT.to(dtype), LOG_SCALE, leading(3))
    assert values.dtype == dtype
    assert len(values.unique()) == 8
    assert values.isfinite().all()


def check_gradients(quantizer):
    weight = WEIGHT.double().requires_grad_()
    log_scale, mask = LOG_SCALE.double().requires_grad_(), leading(3).double().requires_grad_()
    values = quantizer(weight, log_scale, mask)
    towards = torch.randn_like(values)
    by_weight, by_scale, by_mask = torch.autograd.grad(values, (weight, log_scale, mask), towards, allow_unused=True)
    with torch.no_grad():
        scale = log_scale.exp()
        torch.testing.assert_close(by_weight, towards * (weight.abs() <= scale))
        ratio = (weight / scale).clamp(-1, 1)
        rounding = (values - scale * ratio) + torch.where(weight.abs() > scale, scale * ratio, 0.0)
        torch.testing.assert_close(by_scale, (towards * rounding).sum())
        bits = [quantize(weight, log_scale, leading(i + 1)) - quantize(weight, log_scale, leading(i)) for i in range(8)]
        torch.testing.assert_close(by_mask, torch.stack([(towards * bit).sum() for bit in bits]))


def test_the_gradient_is_straight_through_for_weights_and_exact_for_bits():
    check_gradients(quantize)


@pytest.mark.parametrize(
    "fault",
    [
        lambda w, s, z: quantize(w.detach(), s, z) + 0 * w,
        lambda w, s, z: quantize(w, s.detach(), z) + 0 * s,
        lambda w, s, z: quantize(w, s, z.detach()) + 0 * z.sum(),
        lambda w, s, z: quantize(w.detach(), s, z) + (w - w.detach()),  # also beyond the scale
    ],
)
def test_a_gradient_that_is_lost_or_not_clipped_is_caught(fault):
    with pytest.raises(AssertionError):
        check_gradients(fault)


# Networks


class Mixed(nn.Module):
    """Every kind of layer that has bits, in groups and transposed, with a norm, and a layer of the user's own class."""

    class Own(nn.Linear):
        """A linear layer by another name."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.grouped = nn.Conv2d(8, 12, 3, groups=2)
        self.up = nn.ConvTranspose2d(12, 6, 2, stride=2, groups=3)
        self.head = Mixed.Own(6, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.relu(self.up(torch.tanh(self.grouped(x)))).mean((2, 3)))


X = torch.randn(5, 2, 6, 6)


def make(nest=None, dtype=torch.float32, rule=None, **options):
    torch.manual_seed(1)
    rule = rule or vnd.Rule(granularity="bits", bits=6, nest=nest)
    net = vnd.to_nested(Mixed().to(dtype), X.to(dtype), num_groups=3, rules={"*": rule}, **options)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("log_scale"):
                parameter -= 0.5 * torch.rand_like(parameter)  # some weights are clipped
    return net


def shapes(net):
    state = state_of(net)
    draw = torch.Generator().manual_seed(0)
    for count in range(1, 7):
        groups = dict.fromkeys(state.bits.values(), count)
        others = [name for name in state.units if name not in groups]
        kept = {name: int(torch.randint(1, state.units[name].num_groups + 1, (), generator=draw)) for name in others}
        yield vnd.Shape(groups | kept)
    yield vnd.Shape({name: 1 + number % unit.num_groups for number, (name, unit) in enumerate(state.units.items())})


def largest_difference(net, widths):
    """Between a network at each shape and what is cut out, relative; outputs have to hang on the bits at all."""
    outputs, differences = [], []
    for shape in widths:
        with torch.no_grad(), vnd.width(net, shape):
            outputs.append(net(X.to(next(net.parameters()).dtype)))
        with torch.no_grad():
            cut = vnd.extract(net, shape)(X.to(outputs[-1].dtype))
        differences.append((cut - outputs[-1]).abs().max() / outputs[-1].abs().max())
    assert all((a - b).abs().max() > 1e-5 for a, b in itertools.pairwise(outputs))
    assert all(x.isfinite() for x in differences)
    return max(map(float, differences))


@pytest.mark.parametrize("rescale", ["none", "expected"])
@pytest.mark.parametrize("nest", [None, True])
def test_masked_and_extracted_agree_at_every_number_of_bits(nest, rescale):
    net = make(nest, torch.float64, rescale=rescale).eval()
    vnd.recalibrate(net, [X.double()], widths=(widths := [*shapes(net)]))
    assert largest_difference(net, widths) <= 1e-12
    small = vnd.extract(net, widths[0])
    assert type(small.head) is Mixed.Own
    if not (nest and rescale == "expected"):  # which multiplies the weights that read a channel
        assert {len(row.unique()) for layer in (small.conv, small.grouped) for row in layer.weight} == {2}  # of one bit
    assert {name for name, _ in small.named_parameters()} == {name for name, _ in Mixed().named_parameters()}
    state_of(net).bits = {}  # planted: the cut forgets that weights have few bits
    assert largest_difference(net, widths) > 1e-3


def test_a_trained_number_of_bits_is_what_was_drawn():
    net = make().train()
    units = [state_of(net).units[name] for name in state_of(net).bits.values()]
    for unit in units:
        unit.keep_logits.data.copy_(unit.prior_logits)  # 1 … 6 bits, equally likely
    weights, seen = [], []
    for layer in (net.conv, net.head):  # what each pass really computes with
        layer.quantized = lambda mask, layer=layer, of=layer.quantized: weights.append(of(mask)) or weights[-1]
    for _ in range(60):
        weights.clear()
        net(X)
        kept = {math.ceil(math.log2(max(len(row.unique()) for row in weight))) for weight in weights}
        seen.append(int(units[0].mask().sum()))
        assert kept <= {*range(1, seen[-1] + 1)}
        assert max(kept) >= min(seen[-1], 3)  # a row of six or 18 weights has few levels
        assert len({int(unit.mask().sum()) for unit in units}) == 1  # coupled
    counts = torch.bincount(torch.tensor(seen), minlength=7)[1:]
    assert counts.min() >= 8
    assert counts.max() <= 12


@pytest.mark.parametrize("gradient", ["survival", "downhill"])
def test_every_parameter_gets_a_gradient(gradient):
    net = make(True, gradient=gradient).train()
    (net(X).square().sum() + vnd.kl(net)).backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
    rates = {id(p): group for group in vnd.parameter_groups(net, lr=1.0, weight_decay=0.1) for p in group["params"]}
    assert rates[id(net.conv.log_scale)]["weight_decay"] == 0
    assert rates[id(net.conv.weight)]["weight_decay"] == 0.1


def test_the_scale_starts_at_the_largest_weight_and_follows_the_others():
    layer = vnd.BayesLinear(7, 4, bayesian=False)
    layer.set_weight_bits(lambda: torch.ones(2))
    with torch.no_grad():
        torch.testing.assert_close(layer.quantized(torch.ones(16)), layer.weight, rtol=0, atol=2.0**-15)  # none clipped
        coarse = quantize(layer.weight, layer.weight.abs().amax(1, keepdim=True).log(), torch.ones(2))
        torch.testing.assert_close(layer.quantized(torch.ones(2)), coarse)
        layer.weight *= 3.0
        torch.testing.assert_close(layer.quantized(torch.ones(2)), 3 * coarse)
        layer.weight.zero_()
        assert layer.quantized(torch.ones(2)).abs().max() <= 1e-7


def test_a_bit_that_is_kept_costs_the_logarithm_of_two():
    net = make()
    state, expected = state_of(net), torch.zeros(())
    for number, (name, key) in enumerate(state.bits.items()):
        unit = state.units[key]
        unit.keep_logits.data.normal_(1.0, 1.0, generator=torch.Generator().manual_seed(number))
        lengths = unit.posterior().chain.length_log_probs.exp()
        expected_bits = (lengths * torch.arange(1, 7)).sum()  # the sign is always kept
        expected = expected + unit.kl() + net.get_submodule(name).weight.numel() * math.log(2) * expected_bits
    for price in ("output", "min"):
        torch.testing.assert_close(vnd.kl(net, price), expected)


@pytest.mark.parametrize("price", ["output", "min"])
def test_a_bit_of_a_channel_costs_while_both_are_kept(price):
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    rules = {"0": vnd.Rule(granularity="bits", bits=3, nest=True)}
    net = vnd.to_nested(plain, torch.randn(2, 3), bayesian=False, rules=rules, num_groups=4)
    units = state_of(net).units
    channels, bits = units["0"].survival(), units["0[bits]"].survival()
    both = torch.minimum(channels[:, None], bits) if price == "min" else channels[:, None] * bits
    expected = units["0"].kl() + units["0[bits]"].kl() + 3 * math.log(2) * both.sum()
    torch.testing.assert_close(vnd.kl(net, price), expected)


def test_bytes_are_of_packed_bits_and_budgets_keep_to_them():
    net = make()
    weights = [layer.weight.numel() for layer in (net.conv, net.grouped, net.up, net.head)]
    scales = 8 + 12 + 2 + 3  # the groups of a transposed convolution share theirs
    others = (8 + 12 + 6 + 3) + 4 * 8  # biases, and the norm
    for bits, shape in enumerate(shapes(net), 1):
        if bits > 6:
            break
        packed = sum(math.ceil(count * bits / 8) for count in weights) + 4 * (scales + others) + 8  # batches tracked
        assert vnd.profile(net, shape).bytes == vnd.profile(net, shape, count_macs=False).bytes == packed
        assert vnd.profile(net, shape).parameters == sum(p.numel() for p in Mixed().parameters())
        chosen = vnd.shape(net, bytes=packed)
        assert vnd.profile(net, chosen, count_macs=False).bytes <= packed
    smallest, largest = (vnd.profile(net, shape, count_macs=False).bytes for shape in [*shapes(net)][0:6:5])
    assert len({vnd.shape(net, bytes=budget) for budget in range(smallest, largest, 20)}) > 10


@pytest.mark.parametrize("nest", [None, True])
def test_what_is_counted_is_what_is_cut(nest):
    net = make(nest).eval()
    state = state_of(net)
    for shape in shapes(net):
        small = vnd.extract(net, shape, warn=False)
        counted = vnd.profile(net, shape)
        extracted = vnd.profile(small, example_input=X)
        assert (counted.parameters, counted.macs) == (extracted.parameters, extracted.macs)
        expected = extracted.bytes
        for name, key in state.bits.items():
            weight = small.get_submodule(name).weight
            expected += math.ceil(weight.numel() * shape[key] / 8) - 4 * weight.numel()
            expected += 4 * weight.size(1 if name == "up" else 0)
        assert counted.bytes == expected


def test_the_table_shows_bits_and_why_channels_are_whole():
    net = make(rule=vnd.Rule(granularity="bits", bits=4, base=2))
    described = vnd.describe(net)
    row = next(row for row in described.rows() if row["unit"] == "conv[bits]")
    assert (row["channels"], row["groups"], row["base"]) == (4, 4, 2)
    assert "conv     a rule orders its bits instead" in str(described)
    assert "conv[bits]     4         2 + 2" in str(described)
    weights = sum(p.numel() for p in Mixed().parameters() if p.dim() > 1)
    assert described.share == pytest.approx(weights / 2 / sum(p.numel() for p in Mixed().parameters()))


def test_groups_of_bits_priors_and_defaults():
    net = make(rule=vnd.Rule(granularity="bits", num_groups=4, prior=2.0))
    unit = state_of(net).units["conv[bits]"]
    assert unit.group_sizes == (2, 2, 2, 2)
    assert float(unit.prior.expected_length) + unit.base == pytest.approx(2.0, abs=1e-4)
    plain = make(rule=vnd.Rule(granularity="bits"))
    assert state_of(plain).units["conv[bits]"].num_groups == 8


def test_bits_of_a_block_that_may_be_dropped():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 6), nn.Linear(6, 4)

        def forward(self, x):
            return x + self.outer(torch.relu(self.inner(x)))

    plain = nn.Sequential(nn.Linear(3, 4), nn.Sequential(*(Block() for _ in range(3))), nn.Linear(4, 2)).double()
    x = torch.randn(2, 3).double()
    rules = {"1.*": vnd.Rule(granularity="bits", bits=3)}
    net = vnd.to_nested(plain, x, depth=True, bayesian=False, rules=rules).eval()
    state = state_of(net)
    for blocks, bits in itertools.product((1, 2, 3), (1, 3)):
        shape = vnd.Shape({name: bits if name.endswith("[bits]") else blocks for name in state.units})
        with vnd.width(net, shape), torch.no_grad():
            assert torch.equal(net(x), vnd.extract(net, shape)(x))
    survival = state.units["1[depth]"].survival()
    expected = state.units["1[depth]"].kl()
    for name, key in state.bits.items():
        unit, kept = state.units[key], survival[int(name.split(".")[1])]
        expected = expected + kept * (unit.kl() + 24 * math.log(2) * unit.survival().sum())
    torch.testing.assert_close(vnd.kl(net), expected.to(vnd.kl(net).dtype))


def test_a_layer_that_knows_no_bits_is_named():
    plain = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with pytest.warns(UserWarning, match=r"granularity='bits' of the rule '0' has no effect: 0 is a Embedding"):
        vnd.to_nested(plain, torch.tensor([1, 2]), num_groups=4, rules={"0": vnd.Rule(granularity="bits")})
