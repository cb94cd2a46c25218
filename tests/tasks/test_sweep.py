"""The sweep: its costs are those of the extracted networks, its scores those of their predictions."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vnd
from train.small import CLASSES, blobs, recipe, write_blobs
from vnd import metrics
from vnd.data.augment import Augment
from vnd.data.batches import in_order
from vnd.data.images import Images
from vnd.evaluation import choose, open_run, settings_of
from vnd.methods import Plain, Sizes
from vnd.tasks import TrainedRun, task_of
from vnd.tasks import classification as results_module
from vnd.tasks import classification as sweep_module
from vnd.tasks.classification import (
    Answers,
    ClassificationEvaluation,
    _one_ahead,
    accuracy_of,
    answer,
    at_temperature,
    evaluate,
    measure,
    scores,
)
from vnd.tasks.trained import bn_batches
from vnd.train.config import parse
from vnd.train.loop import fit

OPTIONS = ClassificationEvaluation(Sizes(fractions=(0.5, 1.0), levels=(0.5,), learned=3), samples=0, bn_images=64)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("sweep")
    data = write_blobs(folder / "blobs.npz", train=160, test=64)
    torch.manual_seed(0)
    assert fit(recipe(data, train={"epochs": 8}, evaluate={"samples": 3}), folder / "run", quiet=True)
    return open_run(folder / "run", "last")


@pytest.fixture(scope="module")
def noise() -> Images:
    """Dark images without a bright corner: none of the classes."""
    pixels = np.random.default_rng(5).integers(0, 120, (50, 1, 8, 8), dtype=np.uint8)
    return Images(pixels, np.zeros(50, np.int64), ("dark",))


def swept(run: TrainedRun, options: ClassificationEvaluation, outside: Images | None = None) -> list[dict[str, Any]]:
    run = replace(run, augmented=options.augmented)
    return [one.row for one in measure(run, options, run.test(), outside, run.splits.validation)]


@pytest.fixture(scope="module")
def rows(run: TrainedRun, noise: Images) -> list[dict[str, Any]]:
    return swept(run, OPTIONS, noise)


def test_a_row_costs_what_the_extracted_network_costs(run: TrainedRun, rows: list[dict[str, Any]]) -> None:
    assert len(rows) == len({row["label"] for row in rows}) >= 5
    for row in rows:
        small = vnd.extract(run.model, vnd.Shape(row["shape"]))
        cost = vnd.profile(small, example_input=torch.zeros(1, 1, 8, 8))
        assert (row["parameters"], row["macs"], row["bytes"]) == (cost.parameters, cost.macs, cost.bytes)
        assert row["parameters"] == sum(p.numel() for p in small.parameters())
        assert row["latency_ms"] > 0
    full = rows[1]
    assert full["label"] == "100 %"
    assert full["parameters"] == max(row["parameters"] for row in rows)


def test_scores_are_those_of_the_extracted_network_by_hand(
    run: TrainedRun, rows: list[dict[str, Any]], noise: Images
) -> None:
    test, normalise = run.test(), run.splits.normalise("cpu")
    labels = torch.as_tensor(test.labels)
    mean, std = run.splits.mean[0], run.splits.std[0]
    x = (torch.from_numpy(test.pixels.copy()).double() / 255 - mean) / std
    torch.testing.assert_close(torch.cat(list(in_order(test, normalise, "cpu"))).double(), x, rtol=1e-5, atol=1e-5)
    outside = torch.cat(list(in_order(noise, normalise, "cpu")))
    for row in rows:
        small = vnd.extract(run.model, vnd.Shape(row["shape"])).eval()
        with torch.no_grad():
            probs, strange = small(x.float()).softmax(1), vnd.predict(small, outside).probs
        entropy, other = (torch.special.entr(p).sum(1) for p in (probs, strange))
        expected = {
            "accuracy": float((probs.argmax(1) == labels).double().mean()),
            "nll": float(-probs[range(len(x)), labels].double().log().mean()),
            "ece": float(metrics.expected_calibration_error(probs, labels, OPTIONS.bins)),
            "brier": float(metrics.brier_score(probs, labels)),
            "auroc": float(
                (other[:, None] > entropy).double().mean() + (other[:, None] == entropy).double().mean() / 2
            ),
            "aupr": float(metrics.aupr(entropy, other)),
            "base_rate": 50 / (50 + len(test)),
        }
        assert {key: row[key] for key in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_network_has_learned_and_knows_what_it_does_not_know(rows: list[dict[str, Any]]) -> None:
    full = rows[1]
    assert full["accuracy"] > 0.9
    assert full["auroc"] > 0.6


def test_swapped_sets_are_noticed(run: TrainedRun, noise: Images, rows: list[dict[str, Any]]) -> None:
    method, normalise = run.method, run.splits.normalise("cpu")
    network = method.extract(run.model, 1.0)
    said, strange = (answer(method, network, in_order(x, normalise, "cpu"), 0) for x in (run.test(), noise))
    labels = torch.as_tensor(run.test().labels)
    right = scores(said.probs, said.entropy, labels, 15, (said.entropy, strange.entropy))["auroc"]
    swapped = scores(said.probs, said.entropy, labels, 15, (strange.entropy, said.entropy))["auroc"]
    assert right == pytest.approx(rows[1]["auroc"])
    assert swapped == pytest.approx(1 - right)
    assert swapped < 0.4


def test_without_a_strange_set_there_is_no_score_of_one(run: TrainedRun) -> None:
    (row,) = swept(run, ClassificationEvaluation(Sizes(fractions=(1.0,)), samples=0))
    assert not {"auroc", "aupr", "base_rate"} & row.keys()


def test_samples_are_averaged_with_the_statistics_of_samples(run: TrainedRun) -> None:
    options = ClassificationEvaluation(Sizes(fractions=(1.0,)), samples=400, bn_images=64)
    (row,) = swept(run, options)
    small = vnd.extract(run.model, 1.0, keep="posterior")
    x = torch.cat(list(in_order(run.test(), run.splits.normalise("cpu"), "cpu")))
    other = vnd.predict(small, x, samples=400, seed=9)
    labels = torch.as_tensor(run.test().labels)
    assert row["nll"] == pytest.approx(float(metrics.negative_log_likelihood(other.probs, labels)), rel=0.05)
    means = swept(run, ClassificationEvaluation(Sizes(fractions=(1.0,)), samples=0))[0]
    assert abs(row["nll"] - means["nll"]) > 1e-4


def test_statistics_are_of_images_as_they_are_or_as_they_were_in_training(run: TrainedRun) -> None:
    def collected(augment: Augment, augmented: bool | None) -> torch.Tensor:
        own = replace(run.recipe, data=replace(run.recipe.data, augment=augment))
        batches = bn_batches(own, run.splits, task_of(run.method), "cpu", 60, augmented=augmented)
        return torch.cat(list(batches)).flatten(1)

    plain = collected(Augment(cutmix=1.0), augmented=False)
    torch.testing.assert_close(collected(Augment(), augmented=True).sort(0).values, plain.sort(0).values)
    mixed = collected(Augment(cutmix=1.0), augmented=True)
    assert mixed.shape == plain.shape
    torch.testing.assert_close(collected(Augment(cutmix=1.0), augmented=None), mixed)
    torch.testing.assert_close(collected(Augment(pad=3), augmented=None), plain)
    same_image = (mixed[:, None] == plain).all(2).any(1)
    assert same_image.float().mean() < 0.5  # the others have a box of another image, and nothing else:
    assert (mixed[:, None] == plain).any(1).all()
    full = replace(OPTIONS, sizes=Sizes(fractions=(1.0,)))
    said = [swept(run, replace(full, augmented=augmented))[0]["nll"] for augmented in (False, True, True)]
    assert said[0] != said[1] == said[2]


def test_a_sweep_can_be_repeated_and_leaves_the_generator_alone(run: TrainedRun, noise: Images) -> None:
    options = ClassificationEvaluation(Sizes(fractions=(0.5, 1.0)), samples=3, bn_images=64)
    state = torch.random.get_rng_state()
    first = swept(run, options, noise)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(99)
    again = swept(run, options, noise)
    alone = swept(run, ClassificationEvaluation(Sizes(fractions=(1.0,)), samples=3, bn_images=64), noise)
    for one, other in (*zip(first, again, strict=True), (first[1], alone[0])):
        for timed in ("latency_ms", "test_seconds"):
            one.pop(timed, None), other.pop(timed, None)
        assert one == other


def test_the_sweep_leaves_the_network_as_it_was(run: TrainedRun) -> None:
    swept(run, OPTIONS)
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    mode, shape = run.model.training, run.model._vnd_state.shape  # type: ignore[union-attr]
    swept(run, OPTIONS)
    assert all(torch.equal(value, before[key]) for key, value in run.model.state_dict().items())
    assert (run.model.training, run.model._vnd_state.shape) == (mode, shape)  # type: ignore[union-attr]


def test_accuracy_of_a_size_is_that_of_its_row(run: TrainedRun, rows: list[dict[str, Any]]) -> None:
    method, normalise = run.method, run.splits.normalise("cpu")
    for size, row in zip(method.sizes(run.model, OPTIONS.sizes), rows, strict=True):
        assert accuracy_of(method, run.model, size, run.test(), normalise, samples=0) == row["accuracy"]


# What results.json holds


def test_results_are_plain_numbers_that_agree_with_each_other(run: TrainedRun, noise: Images) -> None:
    seen: list[str] = []
    found = evaluate(run, OPTIONS, run.test(), run.splits.validation, noise, done=lambda row: seen.append(row["label"]))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    labels = [row["label"] for row in found["rows"]]
    assert seen == labels
    by_label = {row["label"]: row for row in found["rows"]}
    for diagram in found["reliability"]:
        count, confidence, right = (np.array(diagram[key], float) for key in ("count", "confidence", "accuracy"))
        assert len(count) == OPTIONS.bins
        assert count.sum() == 64
        row = by_label[diagram["label"]]
        assert (count * right).sum() / 64 == pytest.approx(row["accuracy"])
        assert (count * abs(right - confidence)).sum() / 64 == pytest.approx(row["ece"])
    sizes = [by_label[diagram["label"]]["parameters"] for diagram in found["reliability"]]
    assert sizes[0] == min(row["parameters"] for row in found["rows"])
    assert sizes[-1] == max(row["parameters"] for row in found["rows"])
    assert found["groups"] == dict.fromkeys(("features.0", "features.4", "features.8", "classifier.0"), 4)
    for layer, survival in found["survival"].items():
        assert len(survival) in (found["groups"][layer], found["groups"][layer] - 1)
        assert all(a >= b for a, b in pairwise(survival))
    examples = found["examples"]
    assert [len(examples[kind]) for kind in ("most_certain", "least_certain", "ood")] == [8, 8, 8]
    certain, uncertain = ([x["entropy"] for x in examples[kind]] for kind in ("most_certain", "least_certain"))
    assert max(certain) <= min(uncertain)
    assert {x["label"] for x in examples["ood"]} == {"dark"}
    assert {x["prediction"] for x in examples["ood"]} <= set("012")
    assert np.array(examples["most_certain"][0]["image"]).shape == (8, 8)


def test_examples_show_the_images_that_they_speak_of() -> None:
    pixels, labels = blobs(30, 3)
    images = Images(pixels[:, None], labels, tuple("abc"))
    entropy = torch.linspace(0.1, 1, 30).flip(0)
    probs = torch.full((30, 3), 0.1)
    probs[range(30), labels] = 0.8
    said = Answers(probs, entropy, torch.zeros(30))
    shown = results_module._examples(images, None, said, None)
    assert shown["most_certain"][0]["image"] == pixels[29].tolist()
    assert shown["least_certain"][-1]["image"] == pixels[0].tolist()
    assert all(x["label"] == x["prediction"] for x in (*shown["most_certain"], *shown["least_certain"]))
    assert shown.keys() == {"most_certain", "least_certain"}


def row(label: str, parameters: int) -> dict[str, Any]:
    return {"label": label, "parameters": parameters}


CHOICES = [
    ({"a": 0.80, "b": 0.895, "c": 0.90}, "b"),  # within one point of the largest
    ({"a": 0.80, "b": 0.88, "c": 0.90}, "c"),  # none is
    ({"a": 0.89, "b": 0.70, "c": 0.90}, "a"),  # the smallest, whatever lies between
    ({"a": 0.95, "b": 0.96, "c": 0.90}, "a"),  # better than the largest is good too
]


@pytest.mark.parametrize(("accuracy", "chosen"), CHOICES)
def test_the_smallest_that_loses_little_is_chosen(accuracy: dict[str, float], chosen: str) -> None:
    rows = [row("b", 20), row("c", 30), row("a", 10)]
    assert choose(rows, accuracy)["label"] == chosen
    assert choose(rows, accuracy, margin=1.0)["label"] == "a"


def test_a_loss_of_exactly_the_margin_is_allowed() -> None:
    rows = [row("a", 10), row("b", 20)]
    for right in range(10, 1001):
        assert choose(rows, {"a": (right - 10) / 1000, "b": right / 1000})["label"] == "a"
        assert choose(rows, {"a": (right - 11) / 1000, "b": right / 1000})["label"] == "b"


def test_a_threshold_of_scaled_answers_is_fitted_on_scaled_answers(
    run: TrainedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "fit_temperature", lambda probs, labels: 1.7)  # so few images are all right
    options = ClassificationEvaluation(
        Sizes(fractions=(0.5, 1.0)), samples=0, inference=("temperature_scaled",), bn_images=64
    )
    found = evaluate(run, options, run.test(), run.splits.validation)
    by_label = {row["label"]: row for row in found["tidy"]}
    known = torch.as_tensor(run.splits.validation.labels)
    for row, size in zip(found["selective"]["rows"], run.method.sizes(run.model, options.sizes), strict=True):
        network = run.extract(size, "mean", 64)
        said = answer(run.method, network, run.batches(run.splits.validation), 0)
        warm = at_temperature(said, by_label[row["label"]]["temperature"])
        wanted = metrics.threshold_for_risk(warm.probs, known, warm.entropy, 0.05)
        assert row["threshold"] == pytest.approx(wanted)
        assert metrics.threshold_for_risk(said.probs, known, said.entropy, 0.05) != pytest.approx(wanted)


def test_random_masks_of_a_network_without_any_are_refused_at_once(run: TrainedRun) -> None:
    trained_run = TrainedRun(Plain(), vnd.extract(run.model, 1.0), run.splits.normalise("cpu"))
    with pytest.raises(ValueError, match=r"^inference: mc_mask needs a nested network"):
        next(measure(trained_run, ClassificationEvaluation(inference=("mc", "mc_mask")), run.test()))


def test_settings_are_those_of_a_curve() -> None:
    base = settings_of(parse("fashion/ibnn"))
    for same in ("--train.seed=7", "--method.fraction=0.25", "--train.device=cpu", "--evaluate.repeats=3"):
        assert settings_of(parse("fashion/ibnn", [same])) == base
    for other in ("--train.epochs=7", "--optimizer.lr=0.3", "--method.log_alpha_init=-4", "--data.limit=9000"):
        assert settings_of(parse("fashion/ibnn", [other])) != base


# A run, opened again


def test_a_run_is_opened_as_it_was_trained(run: TrainedRun) -> None:
    assert run.recipe.data.name == "npz"
    assert (len(run.splits.train), len(run.splits.validation), len(run.test())) == (144, 16, 64)
    assert not run.model.training
    x: Tensor = next(iter(in_order(run.test(), run.splits.normalise("cpu"), "cpu")))
    assert run.model(x).shape == (64, CLASSES)


def test_strange_images_are_brought_to_the_size_and_channels_of_the_others(run: TrainedRun, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x_test=pixels, y_test=np.arange(6) % 2, x_train=pixels, y_train=np.arange(6) % 2)
    options = ClassificationEvaluation(ood="npz", ood_folder=str(tmp_path / "x.npz"))
    outside = run.outside(options)
    assert outside is not None
    assert outside.pixels.shape == (6, 1, 8, 8)
    assert run.outside(ClassificationEvaluation()) is None


@pytest.mark.parametrize("checkpoint", ["best", "last"])
def test_what_is_no_run_is_refused(checkpoint: Any, run: TrainedRun, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is not a run: it holds no recipe\.yaml; make one with vnd train"):
        open_run(tmp_path, checkpoint)
    (tmp_path / "recipe.yaml").write_text(run.recipe.to_yaml())
    with pytest.raises(ValueError, match=f"has no {checkpoint} network yet; go on with vnd train --resume"):
        open_run(tmp_path, checkpoint)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_measurement_is_read_when_the_next_has_begun_and_none_is_lost(count: int) -> None:
    events: list[str] = []

    def read(index: int) -> int:
        events.append(f"read {index}")
        return index

    def begun() -> Any:
        for index in range(count):
            events.append(f"begin {index}")
            yield partial(read, index)

    found: list[Any] = list(_one_ahead(begun()))
    assert found == list(range(count))
    if count == 4:
        assert events == ["begin 0", "begin 1", "read 0", "begin 2", "read 1", "begin 3", "read 2", "read 3"]


def test_an_evaluation_that_reads_one_behind_gives_the_same_rows(run: TrainedRun, monkeypatch: Any) -> None:
    options = replace(OPTIONS, inference=("mean", "mc", "temperature_scaled"), samples=2, repeats=2)
    times = {"test_seconds", "latency_ms"}

    def rows() -> list[dict[str, Any]]:
        found = measure(run, options, run.test(), validation=run.splits.validation)
        return [{key: x for key, x in one.row.items() if key not in times} for one in found]

    in_turn = rows()
    begun = sweep_module._Measurements.all
    monkeypatch.setattr(
        sweep_module._Measurements, "all", lambda self: (partial(lambda x: x, x) for x in _one_ahead(begun(self)))
    )
    assert rows() == in_turn
    assert len({json.dumps(row) for row in in_turn}) == len(in_turn)
