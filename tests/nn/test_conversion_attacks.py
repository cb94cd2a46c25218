"""Networks that could be converted wrongly without a word: each is right at mixed shapes, or whole with a reason."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from structures import cast, gap, mixed_shapes, randomise, run
from torch import Tensor, nn

import vnd
import vnd.nn.verify_slicing as trial
from vnd.nn.channel_flow import _Flow
from vnd.nn.state import state_of

Example = Callable[[], Any]


def rows() -> Tensor:
    return torch.randn(4, 6)


def sequences(length: int) -> Example:
    return lambda: torch.randn(2, length, 6)


class Statistics(nn.Module):
    """Centers channels, and gates by means over positions: at 16 positions both run over 16 entries of dimension −1."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(torch.relu(self.a(x)))
        h = h - h.mean(-1, keepdim=True)
        return self.head(h * h.transpose(1, 2).mean(-1).unsqueeze(1))


class NormOfPositions(nn.Module):
    """The same of layer norms."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.b(torch.relu(self.a(x)))
        h, turned = F.layer_norm(h, h.shape[-1:]), h.transpose(1, 2)
        return self.head(h + F.layer_norm(turned, turned.shape[-1:]).transpose(1, 2))


class Chosen(nn.Module):
    """Takes the channels that its second input names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 16), nn.Linear(4, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(self.a(x).gather(1, index))))


class Table(nn.Module):
    """A table of words that is indexed and not called, and of positions that is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Parameter(torch.randn(20, 16)), nn.Parameter(torch.randn(12, 16))
        self.up, self.down, self.head = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 3)

    def forward(self, index: Tensor) -> Tensor:
        h = self.words[index] + self.places[: index.shape[1]]
        return self.head(h + self.down(torch.relu(self.up(h))))


class OneBias(nn.Module):
    """Two layers of one bias."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.b.bias = self.a.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))))


class BiasAgain(nn.Module):
    """Adds the bias of one layer to what another makes."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(torch.relu(self.a(x)))) + self.a.bias)


class WrittenOver(nn.Module):
    """Writes the output of one layer over that of another, by a view."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.head = nn.Linear(6, 16), nn.Linear(6, 16), nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        h[:].copy_(self.b(x))
        return self.head(torch.relu(self.c(h)))


class InPlaceSums(nn.Module):
    """Sums over channels in place, of a view that nobody reads again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 12, 1), nn.Conv2d(12, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        h.transpose(1, 3).cumsum_(-1)
        return self.head(torch.relu(self.b(h)))


class Repeated(nn.Module):
    """Expands a mask to the scores of all heads, as XLM does."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.i, self.qkv = 4, nn.Linear(6, 16), nn.Linear(16, 48)
        self.o, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.i(x)
        q, k, v = (y.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for y in self.qkv(h).chunk(3, -1))
        scores = q @ k.transpose(-1, -2)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later[None, None].expand_as(scores), -1e9)
        return self.head(h + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))


class Attributes(nn.Module):
    """Gives an object that is no dataclass, or a generator."""

    def __init__(self, form: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.a, self.head, self.form = nn.Linear(6, 16), nn.Linear(16, 12), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.head(torch.relu(self.a(x))))


class Rows(nn.Module):
    """Applies a function to rows of channels, between two layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.a, self.b, self.head = function, nn.Linear(6, 16), nn.Linear(16, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.b(self.function(self.a(x)))))


class Folded(nn.Module):
    """A norm folded into the convolution before it, at the root of the network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        bias = self.norm.bias - self.norm.running_mean * scale
        return self.head(torch.relu(F.conv2d(x, self.conv.weight * scale.view(-1, 1, 1, 1), bias)))


def prefix_sums(h: Tensor) -> Tensor:
    return (h.unsqueeze(-1) * torch.ones(h.shape[-1], dtype=h.dtype)).tril().sum(-1)


def words(length: int) -> Example:
    return lambda: torch.randint(0, 20, (2, length))


def chosen(*index: int) -> Example:
    return lambda: (torch.randn(2, 6), torch.tensor([index, index]))


# name → network, example, other inputs on which it has to be right, the most that may be left at a quarter
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Example, tuple[Example, ...], float]] = {
    "one statistic of channels and of positions": (Statistics, sequences(5), (sequences(16), sequences(7)), 0.5),
    "one norm of channels and of positions": (NormOfPositions, sequences(5), (sequences(16), sequences(7)), 0.5),
    "channels chosen by the input": (Chosen, chosen(0, 1, 2, 3), (chosen(15, 3, 15, 9),), 0.8),
    "tables by index": (Table, words(6), (words(9),), 0.2),
    "one bias": (OneBias, rows, (), 0.2),
    "a bias again": (BiasAgain, rows, (), 0.2),
    "written over": (WrittenOver, rows, (), 0.8),
    "prefix sums": (lambda: Rows(prefix_sums), rows, (), 0.6),
    "gated linear units": (lambda: Rows(lambda h: F.glu(torch.cat((h, h.flip(-1)), -1))), rows, (), 0.2),
    "halves of gates": (lambda: Rows(lambda h: torch.cat((F.glu(h), F.glu(h)), -1)), rows, (), 0.2),
    "pooling over channels": (lambda: Rows(lambda h: F.max_pool1d(h, 2).repeat(1, 2)), rows, (), 0.6),
    "pooling that keeps the size": (lambda: Rows(lambda h: F.avg_pool1d(h, 3, 1, 1)), rows, (), 0.6),
    "sums in place": (InPlaceSums, lambda: torch.randn(2, 3, 4, 4), (), 0.6),
    "a repeated mask": (Repeated, sequences(5), (sequences(16),), 0.3),
    "a folded norm": (Folded, lambda: torch.randn(2, 3, 8, 8), (), 0.3),
}


@pytest.mark.filterwarnings("ignore:recalibrate", "ignore:BatchNorm has no statistics")
@pytest.mark.parametrize("order", [None, "magnitude"])
@pytest.mark.parametrize("name", NETWORKS)
def test_masked_and_extracted_networks_agree_at_mixed_shapes(name, order):
    made, example, others, left = NETWORKS[name]
    torch.manual_seed(0)
    plain = randomise(made()).double().eval()
    given = [cast(one(), torch.float64) for one in (example, *others)]
    net = vnd.to_nested(plain, given[0], num_groups=8, residual=True, order=order).eval()
    with torch.no_grad():
        for x in given:
            assert gap(run(plain, x), run(net, x)) <= 1e-12
        for shape in mixed_shapes(net):
            small = vnd.extract(net, shape)
            for x in given:
                with vnd.width(net, shape):
                    assert gap(run(net, x), run(small, x)) <= 1e-12
    sizes = [sum(p.numel() for p in m.parameters()) for m in (vnd.extract(net, 0.25), plain)]
    assert sizes[0] <= left * sizes[1]
    assert "" not in state_of(net).units


def test_units_that_hang_together_unnoticed_are_found_at_a_mixed_shape(monkeypatch):
    plain, x = WrittenOver().double().eval(), torch.randn(4, 6, dtype=torch.float64)
    monkeypatch.setattr(_Flow, "overwrite", lambda *_: None)  # that one layer writes over another is not noticed
    assert not {"a", "b"} & {*state_of(vnd.to_nested(plain, x, num_groups=8)).units}
    monkeypatch.setattr(trial, "GOLDEN", 0.0)  # all units at base: uniform shapes alone let it pass
    assert {"a", "b"} <= {*state_of(vnd.to_nested(plain, x, num_groups=8)).units}


@pytest.mark.parametrize("form", [lambda y: SimpleNamespace(y=y), lambda y: torch.distributions.Bernoulli(logits=y)])
def test_outputs_are_found_in_attributes(form):
    net = vnd.to_nested(Attributes(form).eval(), torch.randn(2, 6), num_groups=8)
    assert list(state_of(net).units) == ["a"]
    assert "head" in state_of(net).whole


def test_an_output_in_which_no_tensor_is_found_is_refused():
    model, x = Attributes(lambda y: iter(y.unbind(-1))).eval(), torch.randn(2, 6)
    with pytest.raises(ValueError, match="in the output of Attributes no tensor can be found"):
        vnd.to_nested(model, x, num_groups=8)
    net = vnd.to_nested(model, x, num_groups=8, output=lambda y: torch.stack(list(y), -1))
    assert list(state_of(net).units) == ["a"]
