"""Cascades: every row is answered as if it were alone, by the first step that is sure, and pays for all before it."""

import importlib
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from structures import gap, make
from torch import Tensor, nn

import vnd
from vnd.nn.bayesian import BayesLayer
from vnd.nn.state import state_of

module = importlib.import_module("vnd.nn.selective")  # its function has its name
cascade, Cascade = module.cascade, module.Cascade
WIDTHS = (0.25, 0.5, 1.0)
NETWORKS = ("flatten", "functional", "transformer", "convnext, stream")


def ready(name: str, rows: int = 17, **options: Any) -> tuple[nn.Module, Tensor]:
    """A nested network with statistics for all steps, and a batch of other inputs."""
    _, net, example = make(name, **options)
    calibration, x = (torch.randn(size, *example.shape[1:], dtype=example.dtype) for size in (64, rows))
    for samples in (False, True):
        vnd.recalibrate(net, [calibration], widths=WIDTHS, samples=samples)
    return net, x


def middle(net: nn.Module, x: Tensor) -> list[float]:
    """A threshold for each step but the last that about half of the rows that reach it pass, and none is near."""
    limits = []
    for width in WIDTHS[:-1]:
        entropy = vnd.predict(net, x, width=width, samples=0).entropy
        limits.append(float(entropy.sort().values[len(x) // 2 - 1 : len(x) // 2 + 1].mean()))
        x = x[entropy > limits[-1]]
    return limits


def one_by_one(net: nn.Module, x: Tensor, limits: list[float]) -> Cascade:
    """What a cascade is: a loop over the rows, each by itself."""
    costs = [vnd.profile(net, width, x[:1]).macs for width in WIDTHS]
    rows = []
    for row in x.split(1):
        for step, (width, limit) in enumerate(zip(WIDTHS, [*limits, math.inf], strict=True)):
            answer = vnd.predict(net, row, width=width, samples=0)
            if float(answer.entropy) <= limit:
                rows.append((answer.probs[0], answer.entropy[0], step, sum(costs[: step + 1])))
                break
    probs, entropy, step, spent = zip(*rows, strict=True)
    return Cascade(torch.stack(probs), torch.stack(entropy), torch.tensor(step), torch.tensor(spent))


def assert_same(found: Cascade, wanted: Cascade, tolerance: float = 1e-10) -> None:
    assert torch.equal(found.step, wanted.step)
    assert torch.equal(found.macs, wanted.macs)
    assert found.probs.isfinite().all()
    assert gap(found.probs, wanted.probs) <= tolerance
    assert gap(found.uncertainty, wanted.uncertainty) <= tolerance


def check_against_the_loop(call: Callable[..., Cascade], name: str) -> None:
    net, x = ready(name)
    limits = middle(net, x)
    wanted = one_by_one(net, x, limits)
    assert set(wanted.step.tolist()) == {0, 1, 2}, "the example must reach every step"
    assert_same(call(net, x, WIDTHS, threshold=limits), wanted)
    shapes = [vnd.shape(net, fraction=width) for width in WIDTHS]
    assert_same(call(net, x, shapes, threshold=torch.tensor(limits, dtype=torch.float64)), wanted)
    assert_same(call([vnd.extract(net, width) for width in WIDTHS], x, threshold=limits), wanted)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_cascade_is_a_loop_over_the_rows(name):
    check_against_the_loop(cascade, name)


FAULTS = {
    "answers to the first rows": (
        "probs[waiting], uncertainty[waiting] =",
        "probs[: len(found)], uncertainty[waiting] =",
    ),
    "the first rows go on": ("inputs.rows(waiting)", "inputs.rows(waiting.argsort())"),
    "the sure go on": ("waiting[~(found", "waiting[(found"),
    "cost of the last step alone": ("spent[waiting] +=", "spent[waiting] ="),
    "cost for all rows": ("spent[waiting] +=", "spent +="),
    "steps one too low": ("step[waiting] = index", "step[waiting] = max(0, index - 1)"),
    "a step's threshold at the next": ("limits[index]", "limits[max(0, index - 1)]"),
    "uncertainty of the first step": ("found.to(uncertainty)", "uncertainty[waiting]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_cascades_are_caught(fault):
    source, (right, wrong) = inspect.getsource(module), FAULTS[fault]
    assert source.count(right) == 1, "the fault is planted nowhere, or in several places"
    faulty = types.ModuleType(module.__name__)
    exec(compile(source.replace(right, wrong), "faulty cascade", "exec"), faulty.__dict__)
    with pytest.raises(AssertionError):
        check_against_the_loop(faulty.cascade, "flatten")


@pytest.mark.parametrize("score", ["entropy", "confidence"])
def test_thresholds_at_the_ends_send_all_rows_to_an_end(score):
    net, x = ready("flatten")
    costs = [vnd.profile(net, width, x[:1]).macs for width in WIDTHS]
    last, first = (cascade(net, x, WIDTHS, threshold=t, score=score) for t in (0.0, math.inf))
    assert last.step.tolist() == [2] * len(x)
    assert first.step.tolist() == [0] * len(x)
    assert set(last.macs.tolist()) == {sum(costs)}
    assert set(first.macs.tolist()) == {costs[0]}
    for found, width in ((last, 1.0), (first, 0.25)):
        alone = vnd.predict(net, x, width=width, samples=0)
        assert torch.equal(found.probs, alone.probs)
        assert torch.equal(found.uncertainty, alone.entropy if score == "entropy" else 1 - alone.probs.amax(1))


def test_a_larger_threshold_sends_no_row_further_and_one_row_is_a_batch():
    net, x = ready("functional")
    scores = vnd.predict(net, x, width=0.25, samples=0).entropy.tolist()
    before = None
    for threshold in (-math.inf, *sorted(scores), math.inf):
        found = cascade(net, x, WIDTHS, threshold=threshold)
        alone = cascade(net, x[3:4], WIDTHS, threshold=threshold + 1e-9)
        assert gap(alone.probs, cascade(net, x, WIDTHS, threshold=threshold + 1e-9).probs[3:4]) <= 1e-10
        assert before is None or bool((found.step <= before).all())
        before = found.step
    assert before.tolist() == [0] * len(x)
    equal = cascade(net, x, WIDTHS, threshold=[max(scores), 0])
    assert equal.step.tolist() == [0] * len(x), "a row goes on above the threshold, not at it"


def test_the_curve_of_the_metrics_is_that_of_cascades():
    net, x = ready("functional")
    y = torch.randint(3, (len(x),))
    answers = [vnd.predict(net, x, width=width, samples=0) for width in WIDTHS]
    costs = torch.tensor([vnd.profile(net, width, x[:1]).macs for width in WIDTHS])
    probs, entropy = torch.stack([a.probs for a in answers]), torch.stack([a.entropy for a in answers])
    thresholds = (entropy.flatten().sort().values + 1e-9)[::8]
    curve = vnd.metrics.cascade_curve(probs, entropy, costs, y, thresholds)
    for threshold, accuracy, cost, share in zip(*vars(curve).values(), strict=True):
        found = cascade(net, x, WIDTHS, threshold=float(threshold))
        assert torch.allclose(vnd.metrics.accuracy(found.probs, y), accuracy)
        assert torch.allclose(found.macs.double().mean(), cost)
        assert torch.allclose(torch.bincount(found.step, minlength=3) / len(x), share.float())


def test_an_uncertainty_that_is_not_a_number_goes_on():
    net, x = ready("flatten")
    broken = vnd.extract(net, 0.25)
    with torch.no_grad():
        broken[9].bias[0] = math.nan
    assert cascade([broken, vnd.extract(net, 1.0)], x, threshold=math.inf).step.tolist() == [1] * len(x)


# -- samples, and lists of networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["entropy", "mutual_information", "confidence"])
def test_samples_are_paid_for_and_a_seed_repeats_them(score):
    net, x = ready("flatten", log_alpha_init=0.0)
    costs = [vnd.profile(net, width, x[:1]).macs for width in WIDTHS]
    scores = {
        "entropy": lambda p: p.entropy,
        "mutual_information": lambda p: p.mutual_information,
        "confidence": lambda p: 1 - p.probs.max(1).values,
    }
    first = scores[score](vnd.predict(net, x, width=0.25, samples=5, seed=3))
    limits = [float(first.median()), math.inf]
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    found, again = (cascade(net, x, WIDTHS, threshold=limits, samples=5, score=score, seed=3) for _ in range(2))
    assert torch.equal(torch.rand(3), wanted)
    assert_same(found, again, tolerance=0)
    assert torch.equal(found.step, (first > limits[0]).long())
    assert torch.equal(found.macs, 5 * torch.tensor([costs[0], sum(costs[:2])])[found.step])
    sure = found.step == 0
    assert torch.equal(found.uncertainty[sure], first[sure])


def test_networks_in_a_list_see_only_the_rows_that_reach_them_and_plain_ones_run_once():
    net, x = ready("flatten")
    limits = middle(net, x)
    networks = [vnd.extract(net, width) for width in WIDTHS]
    networks[1] = vnd.extract(net, 0.5, keep="posterior")
    costs = [vnd.profile(network, None, x[:1]).macs for network in networks]
    seen: list[list[int]] = [[], [], []]
    for network, rows in zip(networks, seen, strict=True):
        network.register_forward_hook(lambda _, args, __, rows=rows: rows.append(len(args[0])))
    found = cascade(networks, x, threshold=limits, samples=4, macs=costs)
    first, second = (int((found.step >= step).sum()) for step in (1, 2))
    assert sum(seen[0]) == len(x) > first > second > 0
    assert [sum(seen[1]), sum(seen[2])] == [4 * first, second]  # the only one with a posterior draws from it
    spent = torch.tensor([costs[0], costs[0] + 4 * costs[1], costs[0] + 4 * costs[1] + costs[2]])
    assert torch.equal(found.macs, spent[found.step])
    for rows in seen:
        rows.clear()
    assert cascade(networks, x, threshold=math.inf).step.max() == 0
    assert [sum(rows) for rows in seen] == [len(x) + 1, 1, 1]  # costs that are not given are counted on one example


def test_networks_of_other_precision_join_that_of_the_first():
    net, x = ready("flatten")
    small, full = vnd.extract(net, 0.25).float(), vnd.extract(net, 1.0).float()
    found = cascade(nn.ModuleList([small, full]), x.float(), threshold=0.0)
    assert found.probs.dtype == torch.float32
    assert gap(found.probs.double(), vnd.predict(net, x, width=1.0, samples=0).probs) <= 1e-4


# -- wrappers, devices, state -----------------------------------------------------------------------------------------


def test_a_compiled_network_cascades():
    net, x = ready("flatten")
    limits = middle(net, x)
    wanted = cascade(net, x, WIDTHS, threshold=limits)
    torch.compiler.reset()
    assert_same(cascade(torch.compile(net, backend="eager"), x, WIDTHS, threshold=limits), wanted)
    networks = [vnd.extract(net, width) for width in WIDTHS]
    networks[1] = torch.compile(networks[1], backend="eager")
    assert_same(cascade(networks, x, threshold=limits), wanted)
    torch.compiler.reset()


def test_processes_do_not_wait_for_each_other(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net, x = ready("flatten")
        limits = middle(net, x)
        wanted = cascade(net, x, WIDTHS, threshold=limits)
        wrapped = nn.parallel.DistributedDataParallel(net)
        wrapped.register_forward_pre_hook(lambda *_: pytest.fail("a pass that synchronises buffers"))
        assert_same(cascade(wrapped, x, WIDTHS, threshold=limits), wanted)
        assert_same(cascade(torch.compile(wrapped, backend="eager"), x, WIDTHS, threshold=limits), wanted)
    finally:
        distributed.destroy_process_group()
        torch.compiler.reset()


def test_a_cascade_runs_where_its_input_is(device):
    net, x = ready("flatten")
    limits = middle(net, x)
    wanted = one_by_one(net, x, limits)
    found = cascade(net.to(device), x.to(device), WIDTHS, threshold=limits)
    assert {t.device.type for t in (found.probs, found.uncertainty, found.step, found.macs)} == {device.type}
    assert_same(Cascade(*(t.cpu() for t in vars(found).values())), wanted)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_mode_width_sampling_and_weights_are_put_back_also_after_an_error(training, listed):
    net, x = ready("flatten")
    vnd.set_width(net, 0.75, warn=False)
    limits = middle(net, x)
    watched = [net] if not listed else [vnd.extract(net, width, keep="posterior") for width in WIDTHS]
    for network in watched:
        network.train(training)
        network[1].train(not training)
    before = [{key: value.clone() for key, value in network.state_dict().items()} for network in watched]
    given: Any = (watched, x) if listed else (net, x, WIDTHS)
    cascade(*given, threshold=limits, samples=2)
    passes = 0

    def stop(*_: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 2:
            raise RuntimeError("in the middle")

    for network in watched:
        network.register_forward_pre_hook(stop)
    macs = [1, 2, 3]
    with pytest.raises(RuntimeError, match="in the middle"):
        cascade(*given, threshold=-math.inf, samples=2, macs=macs)
    assert passes == 2
    for network, state in zip(watched, before, strict=True):
        assert [network.training, network[1].training, network[2].training] == [training, not training, training]
        assert all(m.sampling is None and m.expansion == 1 for m in network.modules() if isinstance(m, BayesLayer))
        assert all(torch.equal(value, state[key]) for key, value in network.state_dict().items())
    assert state_of(net).shape == vnd.shape(net, fraction=0.75)


def test_a_width_without_statistics_warns_as_predict_does():
    _, net, x = make("flatten")
    vnd.recalibrate(net, [x], widths=(0.5, 1.0))
    with pytest.warns(
        UserWarning, match=r"no statistics for this width; run vnd.recalibrate\(net, batches, widths=\(0.25"
    ):
        cascade(net, x, WIDTHS, threshold=0.0)
    assert not cascade(net, x, WIDTHS, threshold=0.0).probs.requires_grad


# -- thresholds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listed", [True, False])
def test_thresholds_chosen_on_data_keep_the_accuracy_of_the_best_width_there(listed):
    net, x = ready("flatten", rows=60)
    y = vnd.predict(net, x, width=1.0, samples=0).probs.argmax(1)  # the widest is right, the others now and then
    given: Any = [vnd.extract(net, width) for width in WIDTHS] if listed else net
    widths = {} if listed else {"widths": WIDTHS}
    limits = vnd.cascade_thresholds(given, x, y, **widths)
    answer = cascade(given, x, **widths, threshold=limits)
    assert torch.equal(answer.probs.argmax(1), y)
    assert answer.macs.sum() < len(x) * int(answer.macs.max())
    parts = zip(x.split(25), y.split(25), strict=True)
    assert vnd.cascade_thresholds(given, parts, **widths) == pytest.approx(limits, abs=1e-10)
    cheap = vnd.cascade_thresholds(given, x, y, **widths, loss=1.0)
    assert cascade(given, x, **widths, threshold=cheap).step.max() == 0
    assert vnd.cascade_thresholds(given, x, y, **widths, costs=[1.0, 1.0, 0.0])[1] == -math.inf


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_levels_of_other_classes_and_outputs_that_are_no_classes_are_refused():
    x = torch.randn(3, 4)
    two, three = nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 3))
    with pytest.raises(ValueError, match="the same classes; step 1 gives 3 classes, step 0 gave 2"):
        cascade([two, three], x, threshold=0.0)
    with pytest.raises(ValueError, match=r"class scores of shape \(B, C\), link 'softmax'; got \(1, 5, 2\)"):
        cascade([two], torch.randn(1, 5, 4), threshold=0.0)


# -- arguments and outputs of any form --------------------------------------------------------------------------------


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 12), nn.Linear(3, 12), nn.Linear(24, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(torch.tanh(torch.cat((self.a(a), self.b(b)), 1)))


def test_every_tensor_of_the_batch_goes_on_with_its_rows_and_the_logits_are_found():
    torch.manual_seed(0)
    a, b = torch.randn(40, 4).double(), torch.randn(40, 3).double()
    net = vnd.to_nested(TwoInputs().double(), (a[:2], b[:2]), num_groups=6, log_alpha_init=-1.0).eval()
    alone = [vnd.predict(net, (a, b), width=width, samples=0) for width in WIDTHS]
    limit = float(alone[0].entropy.median())
    for x in ((a, b), {"b": b, "a": a}):
        answer = cascade(net, x, WIDTHS, threshold=limit)
        assert len(answer.step.unique()) > 1
        for step, wanted in enumerate(alone):
            assert torch.allclose(answer.probs[answer.step == step], wanted.probs[answer.step == step])
    net.register_forward_hook(lambda module, args, out: {"hidden": 2 * out, "scores": out})
    again = cascade(net, (a, b), WIDTHS, threshold=limit, output="scores", dim=1)
    assert torch.equal(
        again.probs, cascade(net, (a, b), WIDTHS, threshold=limit, output=lambda out: out["scores"]).probs
    )
    assert torch.allclose(again.probs[again.step == 0], alone[0].probs[again.step == 0])
