"""Rules by which channels flow through what users write: attributes, sizes, heads, weights that functions read."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from structures import gap, mixed_shapes, randomise, run
from torch import Tensor, nn
from user_networks import HIDDEN, VOCABULARY, Conv1D, GPT2Like, LlamaLike, RelativeBias, VisionTransformer

import vnd
from vnd.nn.channel_flow.layers import Layers
from vnd.nn.channel_flow.movements import Movements
from vnd.nn.channel_flow.walk import Walk
from vnd.nn.state import state_of


def nested(model: nn.Module, example: Any, **options: Any) -> nn.Module:
    """A nested network, which agrees at mixed shapes with what is cut out of it."""
    torch.manual_seed(0)
    net = vnd.to_nested(randomise(model).double().eval(), example, **{"num_groups": 4, **options}).eval()
    assert worst(net, example) <= 1e-12
    return net


def worst(net: nn.Module, example: Any) -> float:
    """The largest difference between a masked network and what is cut out of it, at mixed shapes."""
    gaps = [0.0]
    with torch.no_grad():
        for shape in mixed_shapes(net):
            with vnd.width(net, shape):
                gaps.append(gap(run(net, example), run(vnd.extract(net, shape), example)))
    return max(gaps)


def x_of(*shape: int) -> Tensor:
    return torch.randn(3, *shape).double()


class Net(nn.Module):
    """Two linear layers around something."""

    def __init__(self, between: Callable[..., Tensor], inputs: int = 8, **attributes: Any) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(5, 8), nn.Linear(inputs, 3), between
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, F.relu(self.first(x))))


# -- sizes and attributes ---------------------------------------------------------------------------------------------


def checked(net: Any, h: Tensor) -> Tensor:
    if h.shape[-1] != net.channels:
        raise ValueError(f"{h.shape[-1]} channels for {net.channels}")
    return h


ATTRIBUTES: dict[str, tuple[nn.Module, dict[str, int]]] = {
    "compared": (Net(checked, channels=8), {"channels": 4}),
    "viewed": (Net(lambda net, h: h.view(-1, net.channels), channels=8), {"channels": 4}),
    "in a tuple": (Net(lambda net, h: h.unflatten(-1, net.sizes).flatten(1), sizes=(8, 1)), {"sizes": (4, 1)}),
    "split": (Net(lambda net, h: torch.cat(h.split(net.part, -1), -1), part=8), {"part": 4}),
    "bounds of slices": (Net(lambda net, h: h[:, : net.n] * h[:, -net.n :], 4, n=4), {"n": 2}),
    "made as large": (Net(lambda net, h: h + torch.ones(1, net.channels).to(h), channels=8), {"channels": 4}),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_counts_channels_is_cut_with_them(name):
    model, wanted = ATTRIBUTES[name]
    net = nested(model, x_of(5))
    assert list(state_of(net).units) == ["first"]
    small = vnd.extract(net, 0.5)
    assert {key: getattr(small, key) for key in wanted} == wanted
    assert {key: getattr(net, key) for key in wanted} == {key: getattr(model, key) for key in wanted}


def test_an_attribute_that_stays_as_it_was_is_caught(monkeypatch):
    net = nested(Net(checked, channels=8), x_of(5))
    monkeypatch.setattr(importlib.import_module("vnd.nn.extract"), "_count_anew", lambda *_: None)
    with pytest.raises(ValueError, match="4 channels for 8"):
        vnd.extract(net, 0.5)(x_of(5))


def literal(net: Any, h: Tensor) -> Tensor:
    return h.view(-1, 8)


def shifted(net: Any, h: Tensor) -> Tensor:
    return torch.cat([h[:, 3:], h[:, :3]], -1)


@pytest.mark.parametrize("between", [literal, shifted])
def test_a_number_in_the_code_keeps_its_channels_whole_and_is_named_with_its_line(between):
    line = inspect.getsourcelines(between)[1] + 1
    with pytest.raises(ValueError, match=rf"first: its size is written into the code, .*{__name__}.*\.py, line {line}"):
        vnd.to_nested(Net(between), torch.randn(3, 5))


# -- values -----------------------------------------------------------------------------------------------------------


def in_range(net: Any, h: Tensor) -> Tensor:
    if h.abs().max() > 1e12:
        raise ValueError("values out of range")
    return h


def branching(net: Any, h: Tensor) -> Tensor:
    return h if h.mean() > 0.4 else h.flip(0) * 2


def selecting(net: Any, h: Tensor) -> Tensor:
    return h[h.sum(-1) > 0]


def test_a_check_of_values_that_only_raises_is_no_branch():
    assert list(state_of(nested(Net(in_range), x_of(5))).units) == ["first"]


@pytest.mark.parametrize("between", [branching, selecting])
def test_what_depends_on_values_is_refused_with_the_line(between):
    line = inspect.getsourcelines(between)[1] + 1
    with pytest.raises(ValueError, match=rf"depends on the values of its input \(.* at .*{__name__}.*, line {line}\)"):
        vnd.to_nested(Net(between), torch.randn(3, 5))


# -- attention --------------------------------------------------------------------------------------------------------


def tokens() -> Tensor:
    return torch.randint(1, VOCABULARY, (2, 6))


def test_grouped_queries_go_with_the_head_that_answers_them():
    net = nested(LlamaLike(), tokens(), residual=True)
    heads = next(name for name, unit in state_of(net).units.items() if unit.num_groups == 2)
    small = vnd.extract(net, vnd.Shape({**state_of(net).full, heads: 1}))
    assert (small.q_proj.out_features, small.k_proj.out_features, small.v_proj.out_features) == (16, 8, 8)
    assert small.o_proj.in_features == 16
    assert torch.equal(small.q_proj.weight, net.q_proj.weight[:16])


def test_a_head_that_is_tied_to_the_embedding_is_cut_as_its_columns():
    net = nested(LlamaLike(), tokens(), residual=True)
    small = vnd.extract(net, 0.5)
    assert small.lm_head.weight is small.embed_tokens.weight
    assert small.embed_tokens.weight.shape == (VOCABULARY, HIDDEN // 2)
    assert small.embed_tokens.embedding_dim == HIDDEN // 2


def test_fused_projections_are_cut_alike_in_each_third():
    net = nested(VisionTransformer(), torch.randn(2, 3, 8, 8).double(), residual=True)
    small = vnd.extract(net, 0.5)
    whole, part = (m.attention[0].qkv.weight for m in (net, small))
    assert part.shape == (3 * 16, 16)
    assert torch.equal(part, torch.cat([third[:16, :16] for third in whole.chunk(3)]))


def test_self_and_cross_attention_have_one_number_of_heads():
    net = nested(RelativeBias(), (tokens(), tokens()), residual=True)
    units = {name: unit.num_groups for name, unit in state_of(net).units.items()}
    assert len(units) == 2
    small = vnd.extract(net, 0.5)
    assert (small.n_heads, small.inner_dim, small.key_value_proj_dim) == (2, 24, 12)
    assert small.relative.weight.shape == (8, 2)
    assert small.own["q"].weight.shape == small.cross["v"].weight.shape == (24, 16)


def test_transposed_weights_of_functions_are_cut():
    net = nested(GPT2Like(), tokens(), residual=True)
    small = vnd.extract(net, 0.5)
    assert type(small.c_fc) is Conv1D
    assert (small.c_fc.weight.shape, small.c_fc.bias.shape, small.c_fc.nf) == ((16, 32), (32,), 32)
    assert small.c_attn.weight.shape == (16, 48)
    assert (small.split_size, small.num_heads) == (16, 4)  # nothing asks for the number of heads


# -- weights of functions ---------------------------------------------------------------------------------------------


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def with_weight(*shape: int, bias: tuple[int, ...] = (4,), outputs: int = 4, **how: Callable[..., Tensor]) -> Any:
    """A maker of a network with a weight and a bias that functions read, and the name of what they do."""
    ((name, between),) = how.items()
    return pytest.param(lambda: Net(between, outputs, w=parameter(*shape), b=parameter(*bias)), id=name)


@pytest.mark.parametrize(
    "make",
    [
        with_weight(8, 4, matmul=lambda net, h: h @ net.w + net.b),
        with_weight(4, 8, transpose=lambda net, h: torch.mm(h, net.w.t()) + net.b),
        with_weight(4, 8, einsum=lambda net, h: torch.einsum("bi,oi->bo", h, net.w) + net.b),
        with_weight(8, 4, implicit_einsum=lambda net, h: torch.einsum("ij,jk", h, net.w) * net.b),
        with_weight(4, 8, linear=lambda net, h: F.linear(h, net.w, net.b)),
        with_weight(8, 4, addmm=lambda net, h: torch.addmm(net.b, h, net.w)),
        with_weight(4, 8, 1, convolution=lambda net, h: F.conv1d(h[:, :, None], net.w, net.b)[..., 0]),
        with_weight(8, 4, 1, transposed=lambda net, h: F.conv_transpose1d(h[:, :, None], net.w, net.b)[..., 0]),
        with_weight(8, outputs=8, bias=(1, 8), slope=lambda net, h: F.prelu(h - 1, net.w) * net.b),
        with_weight(8, outputs=8, bias=(1, 8), scale=lambda net, h: torch.addcmul(net.b, h, net.w)),
    ],
)
def test_a_weight_that_a_function_reads_is_cut_where_it_reads_and_where_it_makes(make):
    model = make()
    small = vnd.extract(nested(model, x_of(5)), 0.5)
    for name in ("w", "b"):
        assert getattr(small, name).shape == tuple(max(1, n // 2) for n in getattr(model, name).shape)
    assert (small.first.out_features, small.last.in_features) == (4, model.last.in_features // 2)


def test_prelu_by_channel_is_cut_with_its_channels():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.PReLU(8), nn.Conv2d(8, 6, 3), nn.PReLU(), nn.Flatten(), nn.Linear(96, 3)
    )
    small = vnd.extract(nested(model, x_of(1, 8, 8)), 0.5)
    assert (small[1].weight.shape, small[1].num_parameters, small[3].weight.shape) == ((4,), 4, (1,))


def test_embeddings_that_are_one_tensor_stay_one():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.widen = nn.Embedding(9, 8), nn.Embedding(9, 8), nn.Linear(8, 16)
            self.head, self.b.weight = nn.Linear(16, 3), self.a.weight

        def forward(self, i: Tensor, j: Tensor) -> Tensor:
            return self.head(F.relu(self.widen(self.a(i) + self.b(j))))

    small = vnd.extract(nested(Tied(), (torch.arange(6), torch.arange(6).flip(0)), residual=True), 0.5)
    assert small.a.weight is small.b.weight
    assert small.a.weight.shape == (9, 4)


def test_of_a_weight_norm_the_copy_has_the_result_and_the_users_network_is_as_it_was():
    normed = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(normed(nn.Linear(5, 8)), nn.ReLU(), normed(nn.Linear(8, 6)), nn.ReLU(), nn.Linear(6, 3))
    kinds, before = [type(m) for m in model.modules()], {k: v.clone() for k, v in model.double().state_dict().items()}
    net = nested(model, x_of(5))
    assert list(state_of(net).units) == ["0", "2"]
    assert set(net.state_dict()) >= {"0.weight", "0.bias"}
    assert [type(m) for m in model.modules()] == kinds
    assert set(model.state_dict()) == set(before)
    assert model[0].parametrizations.weight.original0.shape == (8, 1)
    small = vnd.extract(net, 0.5)
    assert torch.equal(small[0].weight, model[0].weight[:4])


# -- movements, norms -------------------------------------------------------------------------------------------------


def shift(net: Any, h: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[1:] = h[:-1]
    out[0] = 0.5
    return out


def spread(net: Any, h: Tensor) -> Tensor:
    return torch.stack((h, h * 2), 1).amax(1)


def beside(net: Any, h: Tensor) -> Tensor:
    return torch.cat((h, F.pad(h, (0, 0, 1, -1))), 0).chunk(2)[1]


def grouped(net: Any, h: Tensor) -> Tensor:
    return net.norm(h.unflatten(1, (-1, 1)).transpose(1, 2))[:, 0]


SHARED = nn.LayerNorm(8)
FOLLOWED: dict[str, nn.Module] = {
    "written into another tensor": Net(shift),
    "stacked": Net(spread),
    "padded along examples": Net(beside),
    "a norm of a view": Net(grouped, norm=nn.LayerNorm(8)),
    "two norms of one weight": Net(lambda net, h: net.b(net.a(h) * 2), a=SHARED, b=nn.LayerNorm(8)),
    "divided by its length": Net(lambda net, h: h / (1 + torch.norm(h, 2, -1, keepdim=True))),
    "standardised": Net(lambda net, h: (h - h.mean(-1, True)) * (h.var(-1, False, True) + 0.1).rsqrt()),
    "masked by what is not in range": Net(lambda net, h: h.masked_fill(h > 1, 0.0).clamp(max=2)),
    "one after the other": Net(lambda net, h: h.flip(-1).roll(1, -1)),
}
FOLLOWED["two norms of one weight"].b.weight = SHARED.weight  # type: ignore[union-attr]


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_moves_and_norms_channels_is_followed(name):
    assert list(state_of(nested(FOLLOWED[name], x_of(5))).units) == ["first"]


def square(net: Any, h: Tensor) -> Tensor:
    return F.layer_norm(h.unflatten(-1, (4, 2)), (4, 2)).flatten(1)


WHOLE: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "cut off": (lambda net, h: F.pad(F.pad(h, (0, -2)), (0, 2)), "enters pad"),
    "mirrored": (lambda net, h: F.pad(h[:, None], (1, 0), mode="reflect")[:, 0, 1:], "enters pad"),
    "a norm over two dimensions": (square, "layer_norm over several dimensions"),
    "a softmax over channels": (lambda net, h: h.softmax(-1), "enters softmax over its channels"),
    "sorted": (lambda net, h: h.sort(-1).values, "enters sort over its channels"),
    "an unknown function": (lambda net, h: torch.fft.fft(h).real, "enters fft_fft"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_reads_channels_together_keeps_them_whole_and_says_why(name):
    between, reason = WHOLE[name]
    with pytest.raises(ValueError, match=rf"nothing of Net can be nested; .*first: {reason}"):
        vnd.to_nested(Net(between), torch.randn(3, 5))


# -- planted faults ---------------------------------------------------------------------------------------------------

# Rules that tie too little, each with a network that they cut apart where no trial by slicing refuses it.
FAULTS: dict[str, tuple[type, str, Callable[..., Any], Callable[[], nn.Module]]] = {
    "what meets is not tied": (
        *(Walk, "join", lambda self, output, operands, *_: setattr(output, "labels", next(iter(operands)).labels)),
        lambda: Net(lambda net, h: h * net.other(h), other=nn.Linear(8, 8)),
    ),
    "parts are cut apart": (
        *(Movements, "tie_chunks", lambda *_: None),
        lambda: Net(lambda net, h: torch.cat([part * (i + 1) for i, part in enumerate(h.chunk(2, -1))], -1)),
    ),
    "what a weight reads is not tied": (
        *(Layers, "read", lambda *_: None),
        lambda: Net(lambda net, h: h @ net.w, 4, w=parameter(8, 4)),
    ),
    "a size is not noted": (
        *(Movements, "note_size", lambda *_: None),
        lambda: Net(lambda net, h: h.view(-1, net.channels), channels=8),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_rule_that_ties_too_little_is_caught(fault, monkeypatch):
    owner, name, wrong, make = FAULTS[fault]
    nested(make(), x_of(5))
    monkeypatch.setattr(owner, name, wrong)
    monkeypatch.setattr("vnd.nn.conversion.try_slicing", lambda *_: {})
    with pytest.raises((AssertionError, RuntimeError)):
        nested(make(), x_of(5))


class Halves(nn.Module):
    """Two halves of a layer by `split`, of which one is worked on."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner, self.head = nn.Linear(4, 16), nn.Linear(8, 8), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        passed, worked = self.stem(x).split(8, -1)
        return self.head(torch.cat((passed, torch.relu(self.inner(worked))), -1))


class HalvesOfSize(Halves):
    """The same by the size of what is split."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        passed, worked = x.split(x.shape[-1] // 2, -1)
        return self.head(torch.cat((passed, torch.relu(self.inner(worked))), -1))


def test_parts_of_one_size_are_cut_alike():
    torch.manual_seed(0)
    plain, x = HalvesOfSize().double(), torch.randn(3, 4).double()
    net = vnd.to_nested(plain, x, num_groups=4).eval()
    assert {name: unit.channels for name, unit in state_of(net).units.items()} == {"stem": 8, "inner": 8}
    with torch.no_grad():
        for shape in mixed_shapes(net):
            with vnd.width(net, shape):
                assert gap(net(x), vnd.extract(net, shape)(x)) <= 1e-12
    literal = vnd.to_nested(Halves().double(), x, num_groups=4)
    assert "written into the code" in state_of(literal).whole["stem"]
