"""Prediction: what is averaged, how samples are drawn, and what is left behind."""

import importlib
import math
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy import stats
from structures import gap, make
from torch import Tensor, nn

import vnd
from vnd.nn.bayesian import BayesLayer
from vnd.nn.state import state_of

module = importlib.import_module("vnd.nn.predict")  # its function has its name
pytestmark = pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")


def network(log_alpha: float = -1.0, outputs: int = 3, **options: object) -> nn.Module:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, outputs)).double()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(3)
    return vnd.to_nested(plain, torch.randn(2, 4).double(), num_groups=4, log_alpha_init=log_alpha, **options)


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(1)).double()


# -- known answers ----------------------------------------------------------------------------------------------------


def given_logits(monkeypatch: pytest.MonkeyPatch, net: nn.Module, draws: list[Tensor]) -> None:
    """Let the network's samples be these."""
    left = iter(draws)
    monkeypatch.setattr(module, "_draw", lambda net, x, count: torch.cat([next(left) for _ in range(count)]))


def test_probabilities_are_averaged_not_logits(monkeypatch):
    net = network()
    draws = [torch.tensor([[0.0, 10.0]]).double(), torch.tensor([[4.0, 0.0]]).double()]
    given_logits(monkeypatch, net, draws)
    p = vnd.predict(net, X[:1], samples=2)
    each = torch.stack([draw.softmax(1) for draw in draws])
    assert torch.allclose(p.probs, each.mean(0))
    assert not torch.allclose(p.probs, torch.stack(draws).mean(0).softmax(1), atol=0.1)
    entropy = -(p.probs * p.probs.log()).sum(1)
    inner = -(each * each.log()).sum(2).mean(0)
    assert torch.allclose(p.entropy, entropy)
    assert torch.allclose(p.mutual_information, entropy - inner)
    assert float(p.mutual_information) > 0.4
    assert torch.allclose(p.variance, each.var(0, correction=0))
    assert p.samples == 2


def test_the_sigmoid_has_an_entropy_for_each_output(monkeypatch):
    net = network()
    draws = [torch.randn(1, 3, 2).double() for _ in range(4)]
    given_logits(monkeypatch, net, draws)
    p = vnd.predict(net, X[:1], samples=4, link="sigmoid")
    each = torch.stack(draws).sigmoid()

    def entropy(q: Tensor) -> Tensor:
        return -(q * q.log() + (1 - q) * (1 - q).log())

    assert torch.allclose(p.probs, each.mean(0))
    assert torch.allclose(p.entropy, entropy(each.mean(0)))
    assert torch.allclose(p.mutual_information, entropy(each.mean(0)) - entropy(each).mean(0))


def test_the_identity_averages_outputs_and_has_no_entropy(monkeypatch):
    net = network()
    draws = [torch.randn(1, 2).double() for _ in range(3)]
    given_logits(monkeypatch, net, draws)
    p = vnd.predict(net, X[:1], samples=3, link="identity")
    assert torch.allclose(p.probs, torch.stack(draws).mean(0))
    assert torch.allclose(p.variance, torch.stack(draws).var(0, correction=0))
    assert p.entropy is None
    assert p.mutual_information is None


def test_the_entropy_of_certain_and_of_uniform_predictions():
    net = network()
    with torch.no_grad():
        net[4].weight.zero_()
        net[4].bias.zero_()
    p = vnd.predict(net, X, samples=3)
    assert torch.allclose(p.entropy, torch.full((5,), math.log(3)).double())
    assert float(p.mutual_information.max()) <= 1e-12
    with torch.no_grad():
        net[4].bias.copy_(torch.tensor([1000.0, 0.0, -1000.0]))  # a probability of exactly 0 is no NaN
    p = vnd.predict(net, X, samples=3)
    assert torch.equal(p.entropy, torch.zeros(5).double())


# -- means and samples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [None, 0.5])
def test_no_samples_are_one_pass_with_the_means(width):
    net = network().eval()
    p = vnd.predict(net, X, width=width, samples=0)
    with torch.no_grad(), vnd.width(net, width):
        assert torch.equal(p.probs, net(X).softmax(1))
    assert p.samples == 1
    assert float(p.mutual_information.abs().max()) == 0
    assert float(p.variance.max()) == 0


def test_without_noise_samples_are_the_means_and_nothing_is_uncertain_of_the_weights():
    net = network(log_alpha=-80.0)
    p, means = vnd.predict(net, X, samples=5), vnd.predict(net, X, samples=0)
    assert torch.allclose(p.probs, means.probs, atol=1e-6)  # the variance has a floor
    assert float(p.mutual_information.max()) < 1e-6
    plain = network(bayesian=False)
    p = vnd.predict(plain, X, samples=5)
    assert torch.equal(p.probs, vnd.predict(plain, X, samples=0).probs)
    assert p.samples == 1


def test_noise_makes_mutual_information_and_it_is_never_negative():
    net = network(log_alpha=0.0)
    p = vnd.predict(net, X, samples=16)
    assert float(p.mutual_information.min()) >= 0
    assert float(p.mutual_information.mean()) > 0.05
    assert bool((p.mutual_information <= p.entropy).all())
    assert torch.allclose(p.probs.sum(1), torch.ones(5).double())


def test_the_width_that_is_set_is_the_default_and_masks_are_fixed():
    net = network(bayesian=False).eval()
    vnd.set_width(net, 0.25)
    assert torch.equal(vnd.predict(net, X).probs, vnd.predict(net, X, width=0.25).probs)
    assert gap(vnd.predict(net, X).probs, vnd.predict(net, X, width=1.0).probs) > 1e-2


# -- one batch or several passes --------------------------------------------------------------------------------------


class ResidualOutput(nn.Module):
    """Adds the input at the end, so that the samples cannot begin at the first layer alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 10), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(torch.tanh(self.inner(x)))


class Recurrent(nn.Module):
    """Uses its first layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class TimeFirst(nn.Module):
    """Puts the examples along dimension 1 before its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(2, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.view(x.size(0), 2, 2).transpose(0, 1)
        return self.head(torch.tanh(self.inner(x)).transpose(0, 1).sum(1))


def samples_of(net: nn.Module, x: Tensor, samples: int, rows: int) -> Tensor:
    """The outputs of each sample, (samples, batch, outputs)."""
    net.eval()
    with torch.no_grad(), module.sampling(net, True):
        return module._run(net, module.Arguments.of(x, "predict"), samples, rows, module._Reading("identity"))


def nested(make_model: type[nn.Module] | None) -> nn.Module:
    if make_model is None:
        return network(log_alpha=-1.0)
    torch.manual_seed(0)
    rules = None if make_model is ResidualOutput else {"*": vnd.Rule(nest=False)}  # else nothing can be nested
    return vnd.to_nested(make_model().double(), X[:2], num_groups=4, log_alpha_init=-1.0, rules=rules)


@pytest.mark.parametrize("model", [None, ResidualOutput, Recurrent, TimeFirst])
@pytest.mark.parametrize("rows", [3, 10, 100_000])
def test_samples_in_one_batch_and_in_chunks_have_the_same_law(model, rows):
    net, x = nested(model), X[:2]
    torch.manual_seed(rows)
    count = 600 if rows == 3 else 3000
    chunked = torch.cat([samples_of(net, x, 30, rows) for _ in range(count // 30)])
    with torch.no_grad(), module.sampling(net, True):
        single = net(x.repeat(count, 1)).view(count, 2, -1)  # each row its own draw
    assert chunked.shape == single.shape
    for example in range(2):
        for output in range(chunked.size(2)):
            assert stats.ks_2samp(chunked[:, example, output], single[:, example, output]).pvalue > 1e-6
    # Samples are separate draws: neighbours in one pass are uncorrelated, and so are examples. 5 standard errors.
    centred = (chunked - chunked.mean(0)) / chunked.std(0)
    assert float((centred[1:] * centred[:-1]).mean((0, 1, 2)).abs()) < 5 / math.sqrt(count)
    assert float((centred[:, 0] * centred[:, 1]).mean(0).abs().max()) < 5 / math.sqrt(count)


@pytest.mark.parametrize("estimator", ["weight", "flipout"])
def test_samples_of_shared_weights_are_separate_draws(estimator):
    net = network(log_alpha=-1.0)
    for layer in net.modules():
        if isinstance(layer, BayesLayer):
            layer.estimator = estimator
    draws = torch.cat([samples_of(net, X[:1], 10, 100_000) for _ in range(150)])[:, 0]
    centred = ((draws - draws.mean(0)) / draws.std(0)).view(150, 10, 3)
    between = centred.mean(1).var(0)  # 1/10 if the ten of a pass are independent, 1 if they are one
    assert float(between.max()) < 0.25


def test_samples_that_share_the_noise_of_a_weight_are_caught(monkeypatch):
    monkeypatch.setattr(module, "_separable", lambda *_: True)
    with pytest.raises(AssertionError):
        test_samples_of_shared_weights_are_separate_draws("weight")


def test_the_first_layer_alone_is_expanded_where_it_can_be():
    assert state_of(nested(None)).first_consumers == ["0"]
    assert state_of(make("vgg11")[1]).first_consumers == ["features.0"]
    for model in (ResidualOutput, Recurrent, TimeFirst):
        assert state_of(nested(model)).first_consumers == []


def test_chunks_split_examples_too_and_keep_their_order():
    net = network(log_alpha=-80.0)
    x = torch.randn(11, 4).double()
    whole = vnd.predict(net, x, samples=3)
    for rows in (1, 2, 7, 11, 12, 33, 34):
        assert torch.allclose(vnd.predict(net, x, samples=3, rows=rows).probs, whole.probs, atol=1e-5)


def test_memory_that_does_not_suffice_halves_the_chunk(monkeypatch):
    net, seen, right = network(), [], module._draw

    def draw(net: nn.Module, x: Tensor, count: int) -> Tensor:
        seen.append(count * len(x))
        if seen[-1] > 4:
            raise torch.OutOfMemoryError("too large")
        return right(net, x, count)

    monkeypatch.setattr(module, "_draw", draw)
    assert vnd.predict(net, X, samples=6).probs.isfinite().all()
    assert seen[0] == 30
    assert max(seen[-5:]) <= 4
    monkeypatch.setattr(module, "_draw", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("too large")))
    with pytest.raises(torch.OutOfMemoryError):
        vnd.predict(net, X, samples=6)


# -- seeds, modes, refusals -------------------------------------------------------------------------------------------


def test_a_seed_repeats_the_draws_and_leaves_the_generator_alone():
    net = network()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b = (vnd.predict(net, X, seed=7).probs for _ in range(2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(a, b)
    assert not torch.equal(a, vnd.predict(net, X, seed=8).probs)
    assert not torch.equal(vnd.predict(net, X).probs, vnd.predict(net, X).probs)


@pytest.mark.parametrize("training", [True, False])
def test_mode_width_statistics_and_sampling_are_put_back(training):
    _, net, x = make("flatten")
    net.train(training)
    net[1].train(not training)
    before = {key: value.clone() for key, value in net.state_dict().items()}
    vnd.predict(net, x, width=0.5, samples=3)
    with pytest.raises(RuntimeError):
        vnd.predict(net, x[:, :, :2], width=0.5, samples=3)
    assert [net.training, net[1].training] == [training, not training]
    assert state_of(net).shape is None
    assert all(m.sampling is None and m.expansion == 1 for m in net.modules() if isinstance(m, BayesLayer))
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_no_graph_is_kept_and_precision_is_that_of_the_network_but_float32_at_least():
    p = vnd.predict(network(), X)
    assert p.probs.dtype == torch.float64
    assert not p.probs.requires_grad
    half = vnd.predict(network().bfloat16(), X.bfloat16(), samples=8)
    assert half.probs.dtype == half.entropy.dtype == torch.float32
    assert torch.allclose(half.probs.sum(1), torch.ones(5))


def test_predictions_at_a_calibrated_width_use_the_statistics_of_samples():
    _, net, x = make("flatten", log_alpha_init=0.0)
    vnd.recalibrate(net, [torch.randn(64, 1, 8, 8).double()], widths=(0.5,), samples=True)
    shape = vnd.shape(net, fraction=0.5)
    seen = []
    net[1].register_forward_hook(lambda norm, *_: seen.append(norm.statistics()[1].clone()))
    vnd.predict(net, x, width=0.5, samples=2)
    assert torch.equal(seen[0], state_of(net).statistics[shape, True]["1"][1])


def test_replicas_in_threads_are_refused():
    net = nn.DataParallel(network())
    vnd.predict(net, X, samples=0)
    net.device_ids = [0, 1]
    with pytest.raises(ValueError, match=r"nn\.DataParallel runs a network in threads, which no width reaches"):
        vnd.predict(net, X, samples=0)


# -- inputs and outputs of any form -----------------------------------------------------------------------------------


class Pair(nn.Module):
    """Two inputs, a number that belongs to the whole batch, and a table that every example reads."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 8), nn.Linear(3, 8), nn.Linear(16, 3)

    def forward(self, a: Tensor, b: Tensor, scale: Any = 1.0, table: Tensor | None = None) -> Tensor:
        if table is not None:
            b = b + table.mean(0)
        return self.head(torch.tanh(torch.cat((self.left(a), self.right(b)), 1))) * scale


def pair(log_alpha: float = -80.0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    a, b = torch.randn(5, 4).double(), torch.randn(5, 3).double()
    return vnd.to_nested(Pair().double(), (a[:2], b[:2]), num_groups=4, log_alpha_init=log_alpha), a, b


class Wrapped(nn.Module):
    """Gives the logits of a linear layer in some form."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(4, 3).double(), form

    def forward(self, x: Tensor) -> Any:
        return self.form(self.layer(x))


class ModelOutput(OrderedDict):
    """As Hugging Face has it: keys, attributes and places."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


@dataclass
class Answer:
    scores: Tensor
    note: str


Both = namedtuple("Both", ["hidden", "logits"])


@pytest.mark.parametrize("link", ["softmax", "dirichlet"])
def test_three_dimensions_are_refused_unless_it_is_said_which_counts_classes(link):
    net, x = nn.Linear(4, 6).double(), torch.randn(2, 5, 4).double()
    with pytest.raises(ValueError, match=r"predict: the output of shape \(2, 5, 6\) .* pass dim=-1 or dim=1") as caught:
        vnd.predict(net, x, link=link)
    assert "\n" not in str(caught.value)
    flat = vnd.predict(net, x.flatten(0, 1), link=link)
    for dim in (-1, 2):
        p = vnd.predict(net, x, link=link, dim=dim)
        assert torch.allclose(p.probs.sum(-1), torch.ones(2, 5).double())
        for name in ("probs", "entropy", "mutual_information", "variance"):
            assert torch.allclose(getattr(p, name).flatten(0, 1), getattr(flat, name)), name
    other = vnd.predict(Wrapped(lambda out: out.transpose(1, 2)), x, link=link, dim=1)
    assert other.probs.shape == (2, 3, 5)
    assert other.entropy.shape == (2, 5)
    assert torch.allclose(other.probs.sum(1), torch.ones(2, 5).double())


@pytest.mark.parametrize("link", ["sigmoid", "identity"])
def test_links_without_classes_need_no_dimension(link):
    assert vnd.predict(nn.Linear(4, 6), torch.randn(2, 5, 4), link=link).probs.shape == (2, 5, 6)


@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 4, 5, 6)])
def test_images_and_volumes_have_their_classes_first(size):
    p = vnd.predict(nn.Identity(), torch.randn(size))
    assert torch.allclose(p.probs.sum(1), torch.ones(2, *size[2:]))


def test_samples_of_several_dimensions_have_the_entropy_of_their_classes(monkeypatch):
    draws = [torch.randn(1, 5, 3).double() for _ in range(4)]
    net = network()
    given_logits(monkeypatch, net, draws)
    p = vnd.predict(net, X[:1], samples=4, dim=-1)
    each = torch.stack(draws).softmax(-1)
    entropy = -(each.mean(0) * each.mean(0).log()).sum(-1)
    assert torch.allclose(p.entropy, entropy)
    assert torch.allclose(p.mutual_information, entropy + (each * each.log()).sum(-1).mean(0))


def test_arguments_by_position_and_by_name_are_split_and_repeated_alike():
    net, a, b = pair()
    table = torch.randn(7, 3).double()
    plain = vnd.predict(net, (a, b, torch.tensor(2.0).double(), table), samples=0).probs
    assert torch.allclose(plain, net.eval()(a, b, 2.0, table).softmax(1))
    for rows in (1, 2, 7, 11, 100):
        for x in (
            (a, b, torch.tensor(2.0).double(), table),
            {"a": a, "b": b, "scale": 2.0, "table": table},
            UserDict(b=b, table=table, a=a, scale=2.0),
        ):
            assert torch.allclose(vnd.predict(net, x, samples=3, rows=rows).probs, plain, atol=1e-5)


class Together(Pair):
    """The two inputs in one argument."""

    def forward(self, both: Any, scale: Any = 1.0) -> Tensor:
        a, b = (both[key] for key in ("a", "b")) if isinstance(both, dict) else both
        return super().forward(a, b, scale)


@pytest.mark.parametrize("form", ["tuple", "list", "dict", "named tuple"])
def test_inputs_within_an_argument_are_split_and_repeated_too(form):
    torch.manual_seed(0)
    a, b, scale = torch.randn(5, 4).double(), torch.randn(5, 3).double(), torch.rand(5, 1).double() + 1
    both = {"tuple": (a, b), "list": [a, b], "dict": {"a": a, "b": b}, "named tuple": Both(a, b)}[form]
    net = vnd.to_nested(Together().double(), (both, scale), num_groups=4, log_alpha_init=-80.0)
    plain = net.eval()(both, scale).softmax(1)
    for rows in (1, 3, 100):
        for x in ((both, scale), {"scale": scale, "both": both}):
            assert torch.allclose(vnd.predict(net, x, samples=3, rows=rows).probs, plain, atol=1e-5)
    assert torch.allclose(vnd.predict(net, (both,), samples=3, rows=2).probs, net(both).softmax(1), atol=1e-5)


def test_a_further_argument_keeps_samples_from_beginning_at_the_first_layer():
    class Optional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.middle, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
            h = self.middle(torch.tanh(self.inner(x)))
            return self.head(h if shift is None else h + shift)

    net = vnd.to_nested(Optional().double(), X[:2], num_groups=3, log_alpha_init=-80.0)
    assert state_of(net).first_consumers == ["inner"]
    shift = torch.randn(5, 6).double()
    p = vnd.predict(net, (X, shift), samples=4)
    assert torch.allclose(p.probs, net.eval()(X, shift).softmax(1), atol=1e-5)


FORMS: dict[str, tuple[Any, Any]] = {
    "a dict with logits": (lambda z: {"hidden": z * 2, "logits": z}, None),
    "a dict of one": (lambda z: {"scores": z}, None),
    "a key": (lambda z: {"logits": z * 2, "scores": z}, "scores"),
    "a ModelOutput": (lambda z: ModelOutput(loss=None, logits=z, states=(z * 2, z)), None),
    "a named tuple": (lambda z: Both(z * 2, z), None),
    "an attribute of a data class": (lambda z: Answer(z, "fine"), "scores"),
    "the only tensor of a data class": (lambda z: Answer(z, "fine"), None),
    "a list of one": (lambda z: [z], None),
    "a place": (lambda z: (z * 2, z), 1),
    "a place from the end": (lambda z: (z * 2, z), -1),
    "a function": (lambda z: {"states": (z * 2, z)}, lambda out: out["states"][1]),
}


@pytest.mark.parametrize("case", FORMS)
def test_outputs_of_any_form_are_understood(case):
    form, output = FORMS[case]
    net = Wrapped(form)
    assert torch.allclose(vnd.predict(net, X, output=output).probs, net.layer(X).softmax(1))
    nested = vnd.to_nested(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double(), X[:2], num_groups=4)
    nested.register_forward_hook(lambda module, args, out: form(out))
    assert vnd.predict(nested, X, samples=3, output=output, rows=4).probs.shape == (5, 3)
