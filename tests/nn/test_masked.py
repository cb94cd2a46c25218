"""Statistics over kept channels, by functions: those of a slice."""

import inspect
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from structures import gap
from torch import Tensor, nn

import vnd
from vnd.nn import masked
from vnd.nn.masked import KeptChannels, MaskedModule, mask_module, unmask_module


class Case(NamedTuple):
    """A statistic of a tensor and a parameter for each channel; these lie along a dimension from the end."""

    function: str
    dim: int
    statistic: Callable[[Tensor, Tensor], Tensor]


BLOCKS = 2  # groups of a norm, each of which keeps as many channels
CASES = {
    "mean": Case("mean", -1, lambda x, w: x.mean(-1)),
    "mean of positions, too": Case("mean", -2, lambda x, w: torch.mean(x, (1, 2), keepdim=True)),
    "mean of all": Case("mean", -1, lambda x, w: x.mean()),
    "mean in float32": Case("mean", -1, lambda x, w: x.mean(-1, dtype=torch.float32)),
    "sum": Case("sum", -2, lambda x, w: x.sum(dim=-2)),
    "var": Case("var", -1, lambda x, w: x.var(-1)),
    "biased var": Case("var", -1, lambda x, w: x.var(-1, unbiased=False, keepdim=True)),
    "var by its correction": Case("var", -2, lambda x, w: torch.var(x, dim=(-2, -1), correction=2)),
    "std": Case("std", -2, lambda x, w: x.std(1, False)),
    "amax": Case("amax", -1, lambda x, w: (x - 9).amax(-1)),
    "amin": Case("amin", -1, lambda x, w: (x + 9).amin((0, 2))),
    "max": Case("max", -1, lambda x, w: (x - 9).max(-1).values),
    "max of all": Case("max", -1, lambda x, w: (x - 9).max()),
    "min": Case("min", -2, lambda x, w: (x + 9).min(dim=1, keepdim=True)[0]),
    "norm": Case("norm", -1, lambda x, w: x.norm(dim=-1)),
    "norm of another order": Case("norm", -2, lambda x, w: torch.norm(x, 1, 1, keepdim=True)),
    "vector norm": Case("linalg_vector_norm", -1, lambda x, w: torch.linalg.vector_norm(x, 3, -1)),
    "largest entry": Case("linalg_vector_norm", -1, lambda x, w: torch.linalg.vector_norm(x, float("inf"), dim=(1, 2))),
    "normalize": Case("normalize", -1, lambda x, w: F.normalize(x, dim=-1)),
    "normalize along the first": Case("normalize", -2, lambda x, w: F.normalize(x, 1.0)),
    "layer norm": Case("layer_norm", -1, lambda x, w: F.layer_norm(x, w.shape, w, w - 1, 1e-3)),
    "layer norm without parameters": Case("layer_norm", -1, lambda x, w: F.layer_norm(x, w.shape)),
    "rms norm": Case("rms_norm", -1, lambda x, w: F.rms_norm(x, w.shape, w, eps=1e-2)),
    "group norm": Case("group_norm", -2, lambda x, w: F.group_norm(x, BLOCKS, w, w - 1)),
    "batch norm of a weight": Case("batch_norm", -1, lambda x, w: F.batch_norm(x, None, None, training=True, eps=1e-2)),
}
KEEPING = ("normalize", "layer_norm", "rms_norm", "group_norm", "batch_norm")  # the output has the channels


def tensors(case: Case, examples: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """An input of 8 channels, its parameters, and which channels are kept: 5, or 2 and 3 of the examples."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 6, 8).double(), torch.rand(8).double() + 0.5
    kept = torch.tensor([1, 1, 0, 1, 0, 0, 1, 1], dtype=torch.bool)
    if case.function == "group_norm":
        kept = torch.tensor([1, 0, 1, 0, 0, 1, 0, 1], dtype=torch.bool)
    if examples:
        kept = torch.stack([kept, torch.tensor([1, 0, 0, 0, 1, 0, 0, 0], dtype=torch.bool)])
    return (x if case.dim == -1 else x.mT.contiguous()), w, kept


def worst(case: Case, examples: bool = False) -> float:
    """The difference between a statistic over kept channels and that of a slice."""
    x, w, kept = tensors(case, examples)
    with KeptChannels({(case.function, case.dim, 8): kept}):
        found = case.statistic(x, w)
    gaps = []
    for number, channels in enumerate(kept.view(-1, 8)):
        part, own = (x, found) if not examples else (x[number, None], found[number, None])
        index = channels.nonzero().flatten()
        wanted = case.statistic(part.index_select(case.dim, index), w[index])
        if case.function in KEEPING:
            own = own.index_select(case.dim, index)
        gaps.append(gap(wanted.double(), own.double()))
    return max(gaps)


@pytest.mark.parametrize("name", CASES)
def test_a_statistic_of_kept_channels_is_that_of_the_slice(name):
    assert worst(CASES[name]) <= (1e-6 if "float32" in name else 1e-12)


@pytest.mark.parametrize(
    "name", [name for name in CASES if "all" not in name and name not in ("amin", "batch norm of a weight")]
)
def test_so_it_is_with_a_mask_for_each_example(name):
    assert worst(CASES[name], examples=True) <= (1e-6 if "float32" in name else 1e-12)


@pytest.mark.parametrize("name", CASES)
def test_a_mask_of_another_channel_is_caught(name, monkeypatch):
    right = masked._aligned
    monkeypatch.setattr(masked, "_aligned", lambda kept, x, dim: right(kept.roll(1, -1), x, dim))
    if CASES[name].function == "group_norm":
        monkeypatch.setattr(masked, "_aligned", lambda kept, x, dim: right(~kept, x, dim))
    assert worst(CASES[name]) > 1e-3


# A denominator that counts dropped channels, or a maximum over their zeros: the function, what it says, and the fault.
FAULTS = {
    "mean": ("_statistic", "zeros.sum(dims, keepdim=True) / count.to(x.dtype)", "zeros.mean(dims, keepdim=True)"),
    "var": ("_statistic", "(count - correction).clamp(min=1).to(x.dtype)", "(x.size(dim) - correction)"),
    "std": ("_statistic", "correction = arguments.get(", "correction = 1 - arguments.get("),
    "amax": ("_statistic", 'float("-inf") if low else float("inf")', "0.0"),
    "amin": ("_statistic", 'float("-inf") if low else float("inf")', "0.0"),
    "normalize": ("_statistic", "zeros.norm(p, dims", "x.norm(p, dims"),
    "layer norm": ("_layer_norm", "count = mask.sum(-1, keepdim=True).clamp(min=1)", "count = x.size(-1)"),
    "rms norm": (
        "_layer_norm",
        "(wide.square() * mask).sum(-1, keepdim=True) / count",
        "wide.square().mean(-1, keepdim=True)",
    ),
    "group norm": ("_group_norm", "((parts - mean).square() * mask)", "(parts - mean).square()"),
    "batch norm of a weight": ("_standardized", "* x.size(0)", "* x.size(0) + 1"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_statistic_that_dropped_channels_enter_is_caught(name, monkeypatch):
    function, right, wrong = FAULTS[name]
    source = inspect.getsource(getattr(masked, function))
    assert right in source
    scope = dict(vars(masked))
    exec(source.replace(right, wrong), scope)
    monkeypatch.setattr(masked, function, scope[function])
    assert worst(CASES[name]) > 1e-3


def test_other_dimensions_sizes_and_functions_are_left_alone():
    x = torch.randn(3, 4, 8)
    calls = (lambda: x.mean(1), lambda: x[..., :7].mean(-1), lambda: x.sum(-1), lambda: x.var(-1))
    plain = [call() for call in calls]
    with KeptChannels({("mean", -1, 8): torch.arange(8) < 3}):
        assert all(torch.equal(call(), wanted) for call, wanted in zip(calls, plain, strict=True))
        assert not torch.equal(x.mean(-1), x.sum(-1) / 8)


class Projection(nn.Module):
    """A weight that a function reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(8, 3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight * self.scale


def test_a_masked_weight_is_the_parameter_times_its_mask_where_it_is_read():
    module, x = Projection(), torch.randn(2, 8)
    plain, kept = module(x), torch.arange(8) < 3
    mask_module(module, {"weight": (lambda: kept, 0)}, ())
    assert isinstance(module, Projection)
    assert isinstance(module, MaskedModule)
    assert torch.equal(module(x), x @ (module._parameters["weight"] * kept[:, None]) * module.scale)
    module(x).sum().backward()
    assert not module._parameters["weight"].grad[3:].any()
    assert set(dict(module.named_parameters())) == set(module.state_dict()) == {"weight", "scale"}
    unmask_module(module)
    assert type(module) is Projection
    assert torch.equal(module(x), plain)


def test_a_network_with_masked_weights_has_its_class_back_once_it_is_cut():
    class Net(nn.Sequential):
        pass

    net = vnd.to_nested(Net(nn.Linear(4, 8), nn.Tanh(), Projection()), torch.randn(2, 4), num_groups=4)
    assert isinstance(net[2], MaskedModule)
    small = vnd.extract(net, 0.5)
    assert type(small[2]) is Projection
    assert small[2].weight.shape == (4, 3)
