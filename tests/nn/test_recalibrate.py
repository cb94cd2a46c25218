"""BatchNorm's statistics for every width: reset, averaged, kept, and missed when they are not there."""

import warnings
from collections.abc import Iterator

import pytest
import torch
from structures import gap, make, run, uniform_shapes
from torch import Tensor, nn

import vnd
from vnd.nn import BayesLayer
from vnd.nn.plan import plan_of


def statistics_of(norm):
    """What a BatchNorm normalises with in evaluation, nested or plain."""
    return norm.statistics() if hasattr(norm, "statistics") else (norm.running_mean, norm.running_var)


def batches(count: int = 3, seed: int = 0) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(7, 1, 8, 8, generator=draw).double() * 2 + 1 for _ in range(count)]


def norms(net: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    return [m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def state(net: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in net.state_dict().items()}


def collected(net: nn.Module, shape: vnd.Shape) -> list[Tensor]:
    """Statistics of an extracted network that collects them as torch does: reset, then a cumulative average."""
    small = vnd.extract(net, shape).eval()
    for norm in norms(small):
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in batches():
            small(batch)
    return [buffer for norm in norms(small) for buffer in statistics_of(norm)]


def test_statistics_are_those_that_the_extracted_network_would_collect():
    net = make("flatten")[1]
    shapes = uniform_shapes(net)
    vnd.recalibrate(net, batches(), widths=shapes)
    for shape in shapes:
        small = vnd.extract(net, shape)
        own = [buffer for norm in norms(small) for buffer in statistics_of(norm)]
        assert all(gap(a, b) <= 1e-12 for a, b in zip(own, collected(net, shape), strict=True))
        with vnd.width(net, shape):
            for norm, cut in zip(norms(net), norms(small), strict=True):
                assert gap(cut.running_mean, statistics_of(norm)[0][: cut.num_features]) == 0


def test_a_calibrated_width_is_masked_as_it_is_extracted_and_warns_of_nothing():
    _, net, x = make("flatten")
    vnd.recalibrate(net, batches(), widths=(0.25, 0.5, 1.0, None))
    with torch.no_grad():
        for width in (0.25, 0.5, 1.0, None):
            with vnd.width(net, width):
                assert gap(run(net, x), run(vnd.extract(net), x)) <= 1e-12


def test_collecting_again_forgets_the_former_statistics():
    net = make("flatten")[1]
    vnd.recalibrate(net, batches(seed=1), widths=(0.5,))
    vnd.recalibrate(net, batches(), widths=(0.5,))
    small = vnd.extract(net, 0.5)
    own = [buffer for norm in norms(small) for buffer in statistics_of(norm)]
    assert all(gap(a, b) <= 1e-12 for a, b in zip(own, collected(net, vnd.shape(net, fraction=0.5)), strict=True))


def test_one_pass_over_a_generator_serves_all_widths():
    net, other = make("flatten")[1], make("flatten")[1]
    handed = []

    def once() -> Iterator[Tensor]:
        for batch in batches():
            handed.append(len(handed))
            yield batch

    vnd.recalibrate(net, once(), widths=(0.25, 0.5, 1.0))
    assert handed == [0, 1, 2]
    for width in (0.25, 0.5, 1.0):
        vnd.recalibrate(other, batches(), widths=(width,))
    assert plan_of(net).statistics.keys() == plan_of(other).statistics.keys()
    for key, found in plan_of(net).statistics.items():
        for name, pair in found.items():
            assert all(torch.equal(a, b) for a, b in zip(pair, plan_of(other).statistics[key][name], strict=True))


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: (x, torch.zeros(7)), lambda x: [x, "label"], lambda x: {"input": x}]
)
def test_batches_come_as_tensors_pairs_or_keywords(wrap):
    net = make("flatten")[1]
    vnd.recalibrate(net, (wrap(batch) for batch in batches()), widths=(0.5,))
    assert len(plan_of(net).statistics) == 1


def test_means_and_samples_have_statistics_of_their_own():
    net = make("flatten", log_alpha_init=0.0)[1]
    shape = vnd.shape(net, fraction=0.5)
    vnd.recalibrate(net, batches(), widths=(shape,))
    vnd.recalibrate(net, batches(), widths=(shape,), samples=True)
    means, samples = (plan_of(net).statistics[shape, kind]["6"][1][:6] for kind in (False, True))
    assert float((samples / means).mean()) > 1.2  # noise adds variance
    vnd.set_width(net, shape, samples=True)
    assert torch.equal(net[6].statistics()[1][:6], samples)
    vnd.set_width(net, shape)
    assert torch.equal(net[6].statistics()[1][:6], means)
    assert torch.equal(vnd.extract(net, shape, bayesian=True)[6].running_var, samples)
    assert torch.equal(vnd.extract(net, shape)[6].running_var, means)


@pytest.mark.parametrize("training", [True, False])
def test_everything_else_is_left_as_it_was(training):
    net = make("flatten")[1].train(training)
    net[6].eval()
    net[1].momentum = 0.3
    before = state(net)
    vnd.recalibrate(net, batches(), widths=(0.25, 0.5))
    assert all(torch.equal(value, before[key]) for key, value in state(net).items())
    assert [net.training, net[1].training, net[6].training] == [training, training, False]
    assert (net[1].momentum, net[6].momentum) == (0.3, 0.1)
    assert all(m.sampling is None for m in net.modules() if isinstance(m, BayesLayer))
    assert plan_of(net).shape is None


@pytest.mark.parametrize("training", [True, False])
def test_the_width_that_is_set_has_its_statistics_at_once(training):
    net = make("flatten")[1].train(training)
    vnd.recalibrate(net, batches(), widths=(0.25, 1.0))
    wide = plan_of(net).statistics[vnd.shape(net, fraction=1.0), False]
    assert torch.equal(net[1].statistics()[0], wide["1"][0])
    x = batches()[0]
    assert gap(net.eval()(x).detach(), vnd.extract(net, 1.0)(x).detach()) <= 1e-12


def test_an_error_on_the_way_leaves_the_network_as_it_was():
    net = make("flatten")[1].train()
    before = state(net)
    with pytest.raises(RuntimeError):
        vnd.recalibrate(net, [*batches(1), torch.zeros(2, 3, 8, 8).double()], widths=(0.25,))
    assert all(torch.equal(value, before[key]) for key, value in state(net).items())
    assert net.training
    assert net[1].training
    assert not plan_of(net).statistics


def test_no_batches_and_odd_batches_are_refused():
    net = make("flatten")[1]
    with pytest.raises(ValueError, match="recalibrate: batches must hold at least one batch; got none"):
        vnd.recalibrate(net, [])
    with pytest.raises(ValueError, match="a batch must be a tensor, begin with one, or be a dict; got str"):
        vnd.recalibrate(net, ["batch"])


def test_a_network_without_batch_norm_needs_none_of_this():
    _, net, x = make("grouped")
    vnd.recalibrate(net, iter([x]), widths=(0.5,))
    with vnd.width(net, 0.5):  # and warns of nothing
        run(net, x)


# -- the warning ------------------------------------------------------------------------------------------------------


def test_an_uncalibrated_width_warns_once_naming_the_call_that_mends_it():
    _, net, x = make("flatten")
    with pytest.warns(UserWarning, match=r"run vnd\.recalibrate\(net, batches, widths=\(0\.5,\)\) first"):
        vnd.set_width(net, 0.5)
    vnd.set_width(net, None, warn=False)
    vnd.set_width(net, 0.5)  # warnings are errors: this one is silent
    with pytest.warns(UserWarning, match=r"widths=\(0\.25,\)\) first"), vnd.width(net, 0.25):
        pass
    with pytest.warns(UserWarning, match=r"widths=\(0\.25,\), samples=True\) first"):
        vnd.predict(net, x, width=0.25, samples=2)
    vnd.predict(net, x, width=0.25, samples=2)
    with pytest.warns(UserWarning, match=r"widths=\(1\.0,\)\) first"):
        vnd.set_width(net, None)
    shape = vnd.Shape.of({"0": 1, "5": 4})
    with pytest.warns(UserWarning, match=r"widths=\(shape,\)\) first"):
        vnd.set_width(net, shape)


def test_the_call_that_the_warning_names_mends_it():
    _, net, x = make("flatten")
    vnd.recalibrate(net, batches(), widths=(0.5,))
    vnd.recalibrate(net, batches(), widths=(0.5,), samples=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vnd.set_width(net, 0.5)
        vnd.predict(net, x, samples=2)
        vnd.predict(net, x, samples=0)


def test_in_training_nothing_warns():
    net = make("flatten")[1].train()
    with vnd.width(net, 0.5):
        net(batches()[0])


@pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")
def test_an_uncalibrated_width_does_not_run_on_the_statistics_of_another():
    _, net, x = make("flatten")
    as_trained = run(net, x)
    vnd.recalibrate(net, batches(), widths=(0.25,))
    vnd.set_width(net, 0.25)
    vnd.set_width(net, None)
    assert gap(as_trained, run(net, x)) == 0
