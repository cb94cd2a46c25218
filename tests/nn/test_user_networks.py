"""Networks as people bring them: what holds for every network, with residual streams and without."""

import copy
import io
from functools import cache
from typing import Any

import pytest
import torch
from structures import cast, gap, mixed_shapes, randomise, run
from test_extract import nested_gap
from torch import Tensor, nn
from user_networks import USER_NETWORKS

import vnd
from vnd.nn.state import state_of

pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics", "ignore:to_nested. only")

# At most so much is left of the parameters at a quarter of the width: without residual streams, and with them.
LEFT = {
    "MNIST net": (0.08, 0.08),
    "old MNIST net": (0.29, 0.29),  # the size of its view is written into the code
    "attention UNet": (0.09, 0.08),
    "PReLU by channel": (0.15, 0.15),
    "pixel shuffles": (0.08, 0.08),
    "temporal convolutions": (0.51, 0.20),
    "squeeze, expand_as": (0.14, 0.14),
    "shuffle unit": (0.24, 0.24),
    "inverted residual": (0.35, 0.14),
    "standardised convolutions": (0.13, 0.13),
    "module lists": (0.16, 0.16),
    "LSTM": (0.72, 0.72),  # torch's recurrent layers stay whole
    "GRU": (0.67, 0.67),
    "gate by chunk": (0.15, 0.15),
    "weight norm": (0.48, 0.48),  # a spectral norm stays whole
    "normalised": (0.15, 0.15),
    "dict output": (0.19, 0.19),
    "torch encoder": (0.29, 0.08),
    "vision transformer": (0.68, 0.10),
    "BERT layout": (0.35, 0.12),
    "Llama layout": (0.39, 0.10),
    "GPT-2 layout": (0.38, 0.10),
    "T5 layout": (0.31, 0.08),
    "Swin layout": (0.29, 0.09),
}
OUTPUT = {"BERT layout": "logits"}  # its other output is the stream
CASES = [pytest.param(name, way, id=f"{name}{', residual' if way else ''}") for name in LEFT for way in (False, True)]
TURNS = [CASES[2 * i + i % 2] for i in range(len(LEFT))]  # each network, residual streams in every other one


def original(name: str) -> tuple[nn.Module, Any]:
    """A network with every number of it random, and an example."""
    make, example = USER_NETWORKS[name]
    torch.manual_seed(len(name))
    return randomise(make()).double().eval(), cast(example(), torch.float64)


@cache
def converted(name: str, residual: bool) -> tuple[nn.Module, nn.Module, Any]:
    """A network, its nested form with statistics of some widths, and an example."""
    plain, example = original(name)
    net = vnd.to_nested(plain, example, num_groups=8, residual=residual, output=OUTPUT.get(name)).eval()
    vnd.recalibrate(net, [example], widths=(0.25, 0.5, 1.0, *mixed_shapes(net)))
    return plain, net, example


def answer(net: nn.Module, name: str, example: Any) -> Tensor:
    """The output that counts, as one vector."""
    if name not in OUTPUT:
        return run(net, example)
    args, named = arguments(example)
    return net(*args, **named)[OUTPUT[name]].flatten()


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, dict):
        return (), example
    return (example if isinstance(example, tuple) else (example,)), {}


def test_every_network_is_here():
    assert LEFT.keys() | {"branching"} == USER_NETWORKS.keys()


@pytest.mark.parametrize(("name", "residual"), TURNS)
def test_full_width_is_the_plain_network_which_is_left_as_it_was(name, residual):
    plain, example = original(name)
    before, kinds = copy.deepcopy(plain.state_dict()), [type(m) for m in plain.modules()]
    net = vnd.to_nested(plain, example, num_groups=8, residual=residual, output=OUTPUT.get(name)).eval()
    with torch.no_grad():
        assert gap(run(plain, example), run(net, example)) <= 1e-12
    after = plain.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in after.items())
    assert [type(m) for m in plain.modules()] == kinds
    assert isinstance(net, type(plain))


@pytest.mark.parametrize(("name", "residual"), CASES)
def test_masked_is_extracted_at_mixed_shapes(name, residual):
    _, net, example = converted(name, residual)
    with torch.no_grad():
        for shape in mixed_shapes(net):
            with vnd.width(net, shape):
                masked = answer(net, name, example)
            assert gap(masked, answer(vnd.extract(net, shape), name, example)) <= 1e-12


@pytest.mark.parametrize(("name", "residual"), CASES)
def test_at_most_so_much_is_left_at_a_quarter(name, residual):
    plain, net, _ = converted(name, residual)
    small, whole = (sum(p.numel() for p in m.parameters()) for m in (vnd.extract(net, 0.25), plain))
    assert small / whole <= LEFT[name][residual]


@pytest.mark.parametrize("name", [name for name in LEFT if name not in OUTPUT])
def test_what_stays_nested_is_cut_again_as_the_whole_is(name):
    _, net, example = converted(name, True)
    assert nested_gap(net, example) <= 1e-12


@pytest.mark.parametrize(("name", "residual"), TURNS)
def test_gradients_are_finite_and_reach_what_the_plain_network_trains(name, residual):
    plain, net, example = (copy.deepcopy(x) for x in converted(name, residual))
    (answer(net.train(), name, example).square().mean() + 1e-6 * vnd.kl(net)).backward()
    answer(plain.train(), name, example).square().mean().backward()
    ours = dict(net.named_parameters())
    for key, value in plain.named_parameters():
        if value.grad is not None and key in ours:
            assert ours[key].grad is not None, key
    for key, value in ours.items():
        assert value.grad is None or value.grad.isfinite().all(), key


@pytest.mark.parametrize("name", LEFT)
def test_saved_and_loaded_it_is_the_same_function(name, tmp_path):
    plain, net, example = converted(name, True)
    with torch.no_grad():
        for kind, one in (("nested", net), ("extracted", vnd.extract(net, 0.5))):
            again = vnd.load(vnd.save(one, tmp_path / kind), model=plain)
            assert torch.equal(answer(one, name, example), answer(again, name, example))


def pickled(net: nn.Module) -> nn.Module:
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


# In turns; torch pickles no network with a spectral norm.
COPIES = [(name, pickled if i % 2 and name != "weight norm" else copy.deepcopy) for i, name in enumerate(LEFT)]


@pytest.mark.parametrize(("name", "copied"), COPIES, ids=lambda x: getattr(x, "__name__", x))
def test_a_copy_is_the_same_function_at_a_width_of_its_own(name, copied):
    _, net, example = converted(name, True)
    with torch.no_grad(), vnd.width(net, 0.5):
        wanted = answer(net, name, example)
    twin = copied(net)
    vnd.set_width(twin, 0.5)
    with torch.no_grad():
        assert torch.equal(answer(twin, name, example), wanted)
        assert gap(wanted, answer(net, name, example)) > 1e-6  # it has its own width still


@pytest.mark.parametrize("name", LEFT)
def test_one_compiled_graph_serves_two_widths(name):
    torch.compiler.reset()
    _, net, example = (copy.deepcopy(x) for x in converted(name, True))
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        for width, again in ((0.5, False), (0.25, True)):
            with vnd.width(compiled, width), torch._dynamo.config.patch(error_on_recompile=again):
                assert gap(answer(net, name, example), answer(compiled, name, example)) <= 1e-12
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore:The tensor attributes self.rnn")  # torch's own, of its recurrent layers
@pytest.mark.parametrize("name", LEFT)
def test_what_is_extracted_can_be_exported(name):
    _, net, example = converted(name, True)
    small = vnd.extract(net, 0.5)
    args, named = arguments(example)
    exported = torch.export.export(small, args, named).module()
    with torch.no_grad():
        assert gap(answer(small, name, example), answer(exported, name, example)) <= 1e-12


def test_a_network_whose_layers_depend_on_the_values_is_refused_with_its_line():
    make, example_of = USER_NETWORKS["branching"]
    with pytest.raises(ValueError, match=r"depends on the values of its input \(.*user_networks\.py, line \d+\)"):
        vnd.to_nested(make(), example_of())


def test_masks_for_each_example_leave_whole_what_a_function_reads():
    torch.manual_seed(0)
    make, example = USER_NETWORKS["torch encoder"]
    net = vnd.to_nested(make(), example(), residual=True, num_groups=4, per_example=True).train()
    assert any("no mask for each example" in reason for reason in state_of(net).whole.values())
    assert state_of(net).units
    (run(net, example()).square().mean() + 1e-6 * vnd.kl(net)).backward()
    assert all(x.grad is None or bool(x.grad.isfinite().all()) for x in net.parameters())
