"""BatchNorm in whatever class it comes: statistics per width as torch's own, or named as what has none."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vnd
from vnd.nn.state import batch_norms


class NormAndReLU(nn.BatchNorm2d):
    """A subclass that calls the forward of its parent."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


class NormAct(nn.BatchNorm2d):
    """A subclass that normalises by itself, as timm's BatchNormAct2d does."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
        batch = self.training or (self.running_mean is None and self.running_var is None)
        mean = self.running_mean if not self.training or self.track_running_stats else None
        variance = self.running_var if not self.training or self.track_running_stats else None
        return self.act(F.batch_norm(x, mean, variance, self.weight, self.bias, batch, self.momentum or 0.0, self.eps))


class Functional(nn.Module):
    """A norm that is no BatchNorm: its buffers and `F.batch_norm`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, self.running_mean, self.running_var, training=self.training))


def network(norm: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3)
    return nn.Sequential(*first, norm, nn.Flatten(), nn.Linear(96, 5), nn.ReLU(), nn.Linear(5, 2)).double()


def lived(norm: nn.Module, x: Tensor) -> nn.Module:
    """A nested network with this norm behind a layer that stays whole, trained a little and recalibrated."""
    rules = {"3": vnd.Rule(nest=False)}
    net = vnd.to_nested(network(norm), x[:2], num_groups=4, rules=rules, bayesian=False, initial_logit=1.0)
    torch.manual_seed(1)
    net.train()
    for _ in range(3):
        net(x + 1)
    vnd.recalibrate(net.eval(), [x, x + 1], widths=(1.0, 0.5, 0.25))
    return net


@torch.no_grad()
def answers(net: nn.Module, x: Tensor) -> list[Tensor]:
    found = []
    for width in (1.0, 0.5, 0.25):
        with vnd.width(net, width):
            found.append(net(x))
        found.append(vnd.extract(net, width)(x))
    return found


@pytest.mark.parametrize("kind", [NormAndReLU, NormAct])
def test_a_class_that_inherits_from_batch_norm_is_recalibrated_as_torchs_own(kind):
    x = torch.randn(16, 3, 8, 8).double()
    net, own = lived(kind(6), x), lived(nn.Sequential(nn.BatchNorm2d(6), nn.ReLU()), x)
    assert [name for name, _ in batch_norms(net)] == ["1", "4"]
    assert all(torch.equal(a, b) for a, b in zip(answers(net, x), answers(own, x), strict=True))
    twin = copy.deepcopy(net)
    assert all(torch.equal(a, b) for a, b in zip(answers(net, x), answers(twin, x), strict=True))
    assert type(vnd.extract(net, 0.5)[4]) is kind
    assert isinstance(net[4], kind)


@pytest.mark.filterwarnings("ignore:1, 4")
def test_a_class_that_is_left_out_answers_otherwise(monkeypatch):
    x = torch.randn(16, 3, 8, 8).double()
    own = lived(nn.Sequential(nn.BatchNorm2d(6), nn.ReLU()), x)
    monkeypatch.setattr("vnd.nn.conversion._swap_norms", lambda net, functional: None)
    net = lived(NormAct(6), x)
    assert not any(torch.equal(a, b) for a, b in zip(answers(net, x), answers(own, x), strict=True))


def test_functional_statistics_are_named():
    x = torch.randn(16, 3, 8, 8).double()
    with pytest.warns(UserWarning, match=r"recalibrate: 4 normalises by F\.batch_norm with statistics of its own"):
        net = lived(Functional(6), x)
    assert [name for name, _ in batch_norms(net)] == ["1"]


class Borrowed(nn.Module):
    """Calls `F.batch_norm` with the buffers of a BatchNorm that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)
        self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(self.first(x), self.norm.running_mean, self.norm.running_var, training=self.training)
        return self.head(self.last(x))


def test_so_are_the_statistics_of_a_norm_that_another_module_reads():
    net = vnd.to_nested(Borrowed(), torch.randn(4, 3), num_groups=4)
    assert type(net.norm) is nn.BatchNorm1d
    with pytest.warns(UserWarning, match=r"recalibrate: norm normalises by F\.batch_norm"):
        vnd.recalibrate(net, [torch.randn(4, 3)])


class Buffers(nn.Module):
    """Calls `F.batch_norm` with buffers of its own, under names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("variance", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.last(F.relu(self.first(x))), self.mean, self.variance, training=self.training)


def test_and_buffers_of_any_name():
    net = vnd.to_nested(Buffers(), torch.randn(4, 3), num_groups=4)
    with pytest.warns(UserWarning, match=r"recalibrate: the network normalises by F\.batch_norm"):
        vnd.recalibrate(net, [torch.randn(4, 3)])


def test_a_norm_that_comes_in_after_the_conversion_is_named_once():
    x = torch.randn(16, 3, 8, 8).double()
    net = nn.SyncBatchNorm.convert_sync_batchnorm(lived(nn.BatchNorm2d(6), x))
    with pytest.warns(
        UserWarning, match="1, 4: BatchNorm that came in after the conversion has no statistics of widths"
    ):
        vnd.predict(net, x, samples=0, dim=1)
    vnd.predict(net, x, samples=0, dim=1)  # warnings are errors: this one is silent
    before = nn.SyncBatchNorm.convert_sync_batchnorm(network(nn.BatchNorm2d(6)))
    vnd.to_nested(before, x[:2], num_groups=4).eval()(x)


def test_a_norm_without_a_count_of_batches_is_nested():
    x = torch.randn(16, 3, 8, 8).double()
    norm = nn.BatchNorm2d(6)
    norm.num_batches_tracked = None
    counted = lived(nn.BatchNorm2d(6), x)
    assert all(torch.equal(a, b) for a, b in zip(answers(lived(norm, x), x), answers(counted, x), strict=True))


@pytest.mark.parametrize("tracked", [True, False])
def test_an_instance_norm_with_running_statistics_is_named(tracked, recwarn):
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, track_running_stats=tracked), nn.ReLU(), nn.Conv2d(8, 2, 3)
    )
    x = torch.randn(4, 3, 8, 8)
    vnd.recalibrate(vnd.to_nested(net, x, num_groups=4), [x])
    assert [
        str(w.message) for w in recwarn if "1 is an InstanceNorm with running" in str(w.message)
    ] != [] or not tracked
    assert tracked or not recwarn.list
