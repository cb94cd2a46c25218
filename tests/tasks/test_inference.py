"""Readings of a trained network: means, samples, random masks, scaled answers; what is repeated, and what is kept."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vnd
from train.small import recipe, write_blobs
from vnd import metrics
from vnd.data.batches import in_order
from vnd.data.images import Images
from vnd.evaluation import open_run, training_seconds, write
from vnd.methods import FN3, SVB, Sizes
from vnd.methods.classification_baselines import fit_temperature, scaled
from vnd.nn.width import sample_shapes
from vnd.tasks import TrainedRun
from vnd.tasks.classification import ClassificationEvaluation, Measured, answer, evaluate, measure
from vnd.train.loop import fit

ALL = ClassificationEvaluation(
    Sizes(fractions=(0.5, 1.0)), samples=3, inference=("mc", "mean", "mc_mask", "temperature_scaled"), bn_images=64,
    repeats=2, bn_images_sweep=(32, 0),
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("inference")
    data = write_blobs(folder / "blobs.npz", train=160, test=60)
    settings: dict[str, Any] = {"method": {"name": "bn3", "num_groups": 4, "measure_every": 2, "log_alpha_init": -1}}
    assert fit(recipe(data, **settings, train={"epochs": 3}), folder / "run", quiet=True)
    return open_run(folder / "run", "last")


@pytest.fixture(scope="module")
def noise() -> Images:
    pixels = np.random.default_rng(5).integers(0, 120, (50, 1, 8, 8), dtype=np.uint8)
    return Images(pixels, np.zeros(50, np.int64), ("dark",))


@pytest.fixture(scope="module")
def measured(run: TrainedRun, noise: Images) -> list[Measured]:
    return list(measure(run, ALL, run.test(), noise, run.splits.validation))


def only(measured: list[Measured], **wanted: Any) -> list[Measured]:
    return [one for one in measured if all(one.row[key] == value for key, value in wanted.items())]


def test_every_reading_size_and_repeat_has_a_row_and_only_the_main_one_is_studied(measured: list[Measured]) -> None:
    found = {(one.row["inference"], one.row["label"], one.row["repeat"], one.row["bn_images"]): one for one in measured}
    expected = {
        (reading, label, repeat, 64)
        for reading in ("mc", "mean", "temperature_scaled") for label in ("50 %", "100 %") for repeat in (0, 1)
    }  # fmt: skip
    expected |= {("mc_mask", "random masks", repeat, 64) for repeat in (0, 1)}
    expected |= {("mc", label, repeat, n) for label in ("50 %", "100 %") for repeat in (0, 1) for n in (32, 144)}
    assert found.keys() == expected
    assert len(measured) == len(expected)


def test_means_are_drawn_once_and_repeats_draw_anew(measured: list[Measured], run: TrainedRun) -> None:
    samples, again = only(measured, inference="mc", label="100 %", bn_images=64)
    assert not torch.equal(samples.said.probs, again.said.probs)
    means = only(measured, inference="mean", label="100 %")[0]
    run.extract(means.size, "mean", 64)
    x = torch.cat(list(in_order(run.test(), run.splits.normalise("cpu"), "cpu")))
    small = vnd.extract(run.model, means.size.width).eval()
    torch.testing.assert_close(means.said.probs, small(x).softmax(1).detach(), rtol=1e-5, atol=1e-6)
    assert means.said.mutual_information.max() < 1e-6
    assert samples.said.mutual_information.mean() > 1e-4


def test_more_images_for_the_statistics_change_them(measured: list[Measured]) -> None:
    rows = {count: only(measured, inference="mc", label="50 %", repeat=0, bn_images=count) for count in (64, 32, 144)}
    probs = [one[0].said.probs for one in rows.values()]
    assert not torch.equal(probs[0], probs[1])
    assert not torch.equal(probs[0], probs[2])


def test_scaled_answers_have_the_temperature_of_the_validation_images(
    measured: list[Measured], run: TrainedRun
) -> None:
    for label in ("50 %", "100 %"):
        plain, warm = (
            only(measured, inference=r, label=label, repeat=0, bn_images=64)[0] for r in ("mc", "temperature_scaled")
        )
        trained_run = run
        network = trained_run.extract(plain.size, "posterior", 64)
        known = answer(trained_run.method, network, trained_run.batches(run.splits.validation), 3)
        temperature = fit_temperature(known.probs, torch.as_tensor(run.splits.validation.labels))
        assert warm.row["temperature"] == pytest.approx(temperature, rel=1e-3)
        torch.testing.assert_close(warm.said.probs, scaled(plain.said.probs, warm.row["temperature"]))
        assert warm.row["accuracy"] == plain.row["accuracy"]
        assert "temperature" not in plain.row


def test_random_masks_average_networks_of_the_learned_lengths(measured: list[Measured], run: TrainedRun) -> None:
    one = only(measured, inference="mc_mask", repeat=0)[0]
    shapes = sample_shapes(run.model, 3, seed=0)
    sizes = [vnd.profile(run.model, shape, count_macs=False).parameters for shape in shapes]
    assert one.row["parameters"] == round(sum(sizes) / 3)
    assert one.row["usage_std"] == pytest.approx(float(np.std(sizes)))
    assert one.row["kind"] == "sampled"
    torch.testing.assert_close(one.said.probs.sum(1), torch.ones(60))
    torch.testing.assert_close(one.said.entropy, torch.special.entr(one.said.probs).sum(1))
    assert one.said.mutual_information.mean() > 1e-3


def test_inference_that_cannot_be_are_refused(run: TrainedRun) -> None:
    with pytest.raises(ValueError, match="scaled needs validation images to fit a temperature on"):
        list(measure(run, ClassificationEvaluation(inference=("temperature_scaled",), samples=0), run.test()))


def test_a_threshold_is_fitted_on_answers_of_the_reading_that_it_is_for(run: TrainedRun) -> None:
    options = dataclasses.replace(ALL, inference=("temperature_scaled",), repeats=1, bn_images_sweep=(), risk=0.3)
    validation = run.splits.validation
    for row in evaluate(run, options, run.test(), validation)["selective"]["rows"]:
        known = only(list(measure(run, options, validation, None, validation)), label=row["label"])[0].said
        threshold = metrics.threshold_for_risk(known.probs, torch.as_tensor(validation.labels), known.entropy, 0.3)
        assert row["threshold"] == (pytest.approx(threshold) if math.isfinite(threshold) else None)


def test_scaled_answers_are_scaled_in_the_study_of_statistics_too(run: TrainedRun) -> None:
    options = dataclasses.replace(ALL, inference=("temperature_scaled",), repeats=1, bn_images_sweep=(32,))
    rows = [one.row for one in measure(run, options, run.test(), None, run.splits.validation)]
    assert {row["bn_images"] for row in rows} == {64, 32}
    assert all("temperature" in row for row in rows)


def test_no_row_comes_twice(run: TrainedRun) -> None:
    options = dataclasses.replace(ALL, inference=("mc", "temperature_scaled"), repeats=1, bn_images_sweep=(64, 32, 32))
    rows = [one.row for one in measure(run, options, run.test(), None, run.splits.validation)]
    keys = [(row["inference"], row["label"], row["bn_images"]) for row in rows]
    assert len(set(keys)) == len(keys)


def test_the_images_that_statistics_were_collected_from_are_counted(run: TrainedRun) -> None:
    options = dataclasses.replace(ALL, inference=("mc",), repeats=1, bn_images_sweep=(100_000,))
    rows = [one.row for one in measure(run, options, run.test())]
    assert {row["bn_images"] for row in rows} == {64, len(run.splits.train)}


def test_sizes_whose_rounded_labels_are_alike_are_told_apart(run: TrainedRun) -> None:
    full = vnd.profile(run.model, 1.0, count_macs=False).parameters
    budgets = (full - 0.6, float(full))  # of one label, and of two networks
    options = ClassificationEvaluation(Sizes(fractions=(), parameters=budgets), samples=0, bn_images=64)
    results = evaluate(run, options, run.test(), run.splits.validation)
    assert len({row["label"] for row in results["rows"]}) == 2
    shapes = [dict(vnd.shape(run.model, parameters=n)) for n in budgets]
    assert [row["shape"] for row in results["rows"]] == shapes
    assert results["rows"][0]["parameters"] < results["rows"][1]["parameters"] == full


def test_one_image_is_enough(run: TrainedRun) -> None:
    one = run.test().take(np.array([0]))
    results = evaluate(run, dataclasses.replace(ALL, repeats=1), one, run.splits.validation, one)
    told = json.loads(json.dumps(results, allow_nan=False))
    assert all(row["accuracy"] in (0.0, 1.0) and row["auroc"] == 0.5 for row in told["tidy"])


def test_a_test_without_labels_is_refused(run: TrainedRun) -> None:
    test = run.test()
    with pytest.raises(ValueError, match="labels"):
        list(measure(run, ALL, Images(test.pixels, None, test.classes)))


def test_a_network_that_was_pruned_away_still_has_finite_numbers(run: TrainedRun, noise: Images) -> None:
    """All weights are noise: every image gets the same answer, and one class alone is ever predicted."""
    method, example = SVB(), torch.rand(2, 1, 8, 8)
    plain = vnd.models.ConvNet(num_classes=3, width=0.15, image_size=8, in_channels=1, hidden=32)
    model = method.build(plain, example).eval()
    for layer in model.modules():
        if isinstance(layer, vnd.nn.BayesLayer):
            layer.log_variance.data.fill_(20.0)  # type: ignore[union-attr]
    trained_run = TrainedRun(method, model, run.splits.normalise("cpu"))
    options = dataclasses.replace(ALL, inference=("mc", "mean", "temperature_scaled"), bn_images_sweep=())
    results = json.loads(
        json.dumps(evaluate(trained_run, options, run.test(), run.splits.validation, noise), allow_nan=False)
    )
    (row,) = results["rows"]
    assert row["parameters"] == sum(p.numel() for p in model.parameters() if p.dim() == 1)
    assert row["nll"] == pytest.approx(math.log(3), abs=0.01)
    assert row["auroc"] == 0.5
    assert results["cascade"] is results["correlation"] is None
    assert results["selective"]["rows"][0]["coverage"] == 0


# Shapes from the posterior


def lengths_drawn(coupling: str, count: int) -> tuple[np.ndarray, torch.Tensor]:
    network = vnd.models.ConvNet(num_classes=3, width=0.15, image_size=8, in_channels=1, hidden=32)
    model = FN3(num_groups=4, coupling=coupling).build(network, torch.rand(2, 1, 8, 8))  # type: ignore[arg-type]
    for unit in model._vnd_state.units.values():  # type: ignore[union-attr]
        unit.keep_logits.data = torch.tensor([1.0, -0.5, 0.5])
    shapes = sample_shapes(model, count, seed=3)
    return np.array([list(dict(shape).values()) for shape in shapes]), unit.posterior().chain.length_log_probs.exp()


def test_coupled_shapes_share_a_quantile_and_cover_it_evenly() -> None:
    drawn, probs = lengths_drawn("quantile", 200)
    assert (drawn == drawn[:, :1]).all()
    counts = np.bincount(drawn[:, 0] - 1, minlength=4)
    assert np.abs(counts - 200 * probs.numpy()).max() <= 1  # spread evenly, so to the nearest whole number


def test_independent_shapes_follow_the_lengths_and_know_nothing_of_each_other() -> None:
    drawn, probs = lengths_drawn("independent", 1000)
    for layer in range(drawn.shape[1]):
        counts = np.bincount(drawn[:, layer] - 1, minlength=4)
        expected = 1000 * probs.numpy()
        assert ((counts - expected) ** 2 / expected).sum() < 21.1  # chi-square of 3 degrees, 1e-4
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.13


# What is kept


@pytest.fixture(scope="module")
def results(run: TrainedRun, noise: Images) -> dict[str, Any]:
    found = evaluate(run, ALL, run.test(), run.splits.validation, noise)
    return json.loads(json.dumps(found, allow_nan=False))  # type: ignore[no-any-return]


def test_the_rows_are_the_main_reading_averaged_over_repeats(results: dict[str, Any]) -> None:
    assert [row["label"] for row in results["rows"]] == ["50 %", "100 %"]
    for row in results["rows"]:
        same = [
            one for one in results["tidy"]
            if (one["inference"], one["label"], one["bn_images"]) == ("mc", row["label"], 64)
        ]  # fmt: skip
        assert len(same) == 2
        for key in ("accuracy", "nll", "ece", "auroc", "aurc"):
            assert row[key] == pytest.approx((same[0][key] + same[1][key]) / 2)
        assert row["parameters"] == same[0]["parameters"]
        assert {"inference", "repeat", "bn_images"}.isdisjoint(row)


def test_the_table_beside_holds_the_same_rows(results: dict[str, Any], tmp_path: Path) -> None:
    series = {"run": "a", "method": "bn3", "network": "convnet", "data": "npz", "seed": 7}
    assert write(results | {"series": series}, tmp_path) == tmp_path / "results.json"
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results["tidy"])
    for row, expected in zip(rows, results["tidy"], strict=True):
        assert (row["run"], row["method"], row["train_seed"]) == ("a", "bn3", "7")
        for key, value in expected.items():
            assert row[key] == ("" if value is None else str(value)), key


def test_correlations_are_those_of_the_entropies(results: dict[str, Any], measured: list[Measured]) -> None:
    main = only(measured, inference="mc", repeat=0, bn_images=64)
    expected = np.corrcoef([one.said.entropy.numpy() for one in main])
    found = results["correlation"]
    assert found["labels"] == ["50 %", "100 %"]
    np.testing.assert_allclose(found["inside"], expected, atol=1e-6)
    strange = np.corrcoef([one.outside.entropy.numpy() for one in main])  # type: ignore[union-attr]
    np.testing.assert_allclose(found["outside"], strange, atol=1e-6)


def test_what_may_be_withheld_is_decided_on_validation_and_measured_on_test(
    results: dict[str, Any], measured: list[Measured], run: TrainedRun
) -> None:
    labels = torch.as_tensor(run.test().labels)
    assert results["selective"]["risk"] == 0.05
    assert [row["label"] for row in results["selective"]["rows"]] == ["50 %", "100 %"]
    for row in results["selective"]["rows"]:
        one = only(measured, inference="mc", label=row["label"], repeat=0, bn_images=64)[0]
        threshold = -math.inf if row["threshold"] is None else row["threshold"]
        accepted = one.said.entropy.double() <= threshold
        assert row["coverage"] == pytest.approx(float(accepted.double().mean()))
        if row["risk"] is not None:
            wrong = one.said.probs.argmax(1) != labels
            assert row["risk"] == pytest.approx(float(wrong[accepted].double().mean()))
        curve = row["curve"]
        assert curve["coverage"][-1] == 1.0
        assert curve["risk"][-1] == pytest.approx(1 - one.row["accuracy"])
        area = metrics.area_under_risk_coverage(one.said.probs, labels, one.said.entropy)
        assert row["aurc"] == pytest.approx(float(area))


def test_a_cascade_goes_from_the_narrowest_to_the_widest(results: dict[str, Any]) -> None:
    found, rows = results["cascade"], {row["label"]: row for row in results["rows"]}
    assert found["levels"] == ["50 %", "100 %"]
    assert {one["label"]: one["macs"] for one in found["single"]} == {k: row["macs"] for k, row in rows.items()}
    ends = sorted(found["curve"], key=lambda point: point["macs"])
    narrow, wide = rows["50 %"]["macs"], rows["100 %"]["macs"]
    assert ends[0]["macs"] == pytest.approx(narrow)  # all are answered at once
    assert ends[-1]["macs"] == pytest.approx(narrow + wide)  # none is
    singles = {one["label"]: one["accuracy"] for one in found["single"]}
    assert (ends[0]["accuracy"], ends[-1]["accuracy"]) == pytest.approx((singles["50 %"], singles["100 %"]))
    assert all(sum(point["share"]) == pytest.approx(1) for point in found["curve"])


def test_seconds_of_training_are_those_of_its_steps() -> None:
    log = [
        {"step": 10, "images_per_second": 50.0},
        {"step": 10, "validation": {}},
        {"step": 30, "images_per_second": 100.0},
    ]
    assert training_seconds(log, batch=5) == pytest.approx(10 * 5 / 50 + 20 * 5 / 100)
    assert training_seconds([], batch=5) == 0


def test_random_masks_of_the_released_sampler_have_its_law() -> None:
    """P(all 32 groups) is .039 by the released code at its own start, .233 by its probabilities."""
    full = {}
    for sampler in ("exact", "released"):
        net = vnd.to_nested(
            torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)), torch.zeros(1, 3),
            num_groups=32, base=2, coupling="independent", sampler=sampler,
        )  # fmt: skip
        full[sampler] = sum(shape["0"] == 32 for shape in sample_shapes(net, 2000)) / 2000
    assert full["exact"] == pytest.approx(0.233, abs=0.04)
    assert full["released"] == pytest.approx(0.039, abs=0.018)
