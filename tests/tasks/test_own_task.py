"""A task and a method of one's own, registered here: the commands train, evaluate and report them without more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from rich.table import Table
from torch import Tensor, nn

from vnd.cli import main
from vnd.data.batches import Normalise, in_order
from vnd.data.images import Images
from vnd.methods import METHODS, Batch, Size, Step, Terms, register
from vnd.methods.base import TRAITS, Single, Traits
from vnd.tasks import TASKS, Evaluation, Task, TrainedRun
from vnd.tasks import register as register_task


def error(model: nn.Module, images: Images, normalise: Normalise, power: float = 2.0) -> float:
    model.eval()
    with torch.no_grad():
        answers = torch.cat([model(x)[:, 0] for x in in_order(images, normalise, "cpu")])
    return float((answers - torch.as_tensor(images.labels)).abs().pow(power).mean())


@dataclass(frozen=True)
class Powers(Evaluation):
    power: float = 2.0  # of the error: an option of this task alone


@pytest.fixture
def known() -> Iterator[None]:
    """A task that answers with a number, and a method for it."""

    @register_task
    class Brightness(Task):
        name = "brightness"
        kind, noun = "a regressor", "regressor"
        evaluation = Powers
        scored = ("squared error", "{:.4f}".format)
        columns = (
            {"key": "parameters", "heading": "Parameters", "form": "short"},
            {"key": "mse", "heading": "Squared error", "digits": 4, "better": "less"},
        )
        sections = ("numbers", "training")

        def validate(self, method: Any, model: nn.Module, size: Size, images: Images, normalise: Normalise) -> float:
            return error(method.extract(model, size.width), images, normalise)

        def evaluate(self, run: TrainedRun, options: Powers, test: Images, done: Any) -> dict[str, Any]:
            (size,) = run.method.sizes(run.model, options.sizes)
            example = torch.zeros(1, *test.pixels.shape[1:])
            row = {
                "kind": size.kind, "label": size.label, "fraction": size.fraction,
                **run.method.cost(run.model, example), "mse": error(run.model, test, run.normalise, options.power),
            }  # fmt: skip
            done(1)
            return {"rows": [row], "tidy": [row]}

        def work(self, run: TrainedRun, options: Powers, test: Images) -> int:
            return 1

        def tables(self, results: dict[str, Any], split: str, options: Powers) -> list[Table]:
            table = Table("size", "squared error", title=f"{results['title']}: {split}")
            table.add_row(results["rows"][0]["label"], f"{results['rows'][0]['mse']:.3f}")
            return [table]

    @register("least_squares", Traits("least squares", stochastic=False))
    @dataclass(frozen=True)
    class LeastSquares(Single):
        task = "brightness"  # type: ignore[assignment]

        def build(self, network: nn.Module, example: Tensor) -> nn.Module:
            return network

        def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
            total = (model(batch[0])[:, 0] - batch[1]).square().mean()
            return Terms(total, {"mse": total.detach()})

    yield
    del METHODS["least_squares"], TRAITS["least_squares"], TASKS["brightness"]


def test_the_commands_train_evaluate_and_report_it(
    known: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    brightness = generator.integers(0, 4, 96)  # what is learned
    pixels = (brightness[:, None, None] * 60 + generator.integers(0, 20, (96, 8, 8))).astype(np.uint8)
    data = tmp_path / "blobs.npz"
    np.savez(data, x_train=pixels[:80], y_train=brightness[:80], x_test=pixels[80:], y_test=brightness[80:])
    network = {"name": "convnet", "width": 0.15, "image_size": 8, "in_channels": 1, "num_classes": 1, "hidden": 16}
    recipe = {
        "method": {"name": "least_squares"}, "network": network,
        "data": {"name": "npz", "folder": str(data), "validation": 16},
        "optimizer": {"name": "adam", "lr": 0.01}, "train": {"epochs": 30, "batch": 16, "device": "cpu"},
    }  # fmt: skip
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(recipe))
    run = tmp_path / "run"
    main(["train", str(tmp_path / "own.yaml"), "--out", str(run)])
    assert "validation squared error" in capsys.readouterr().err
    main(["evaluate", str(run)])
    results = json.loads((run / "results.json").read_text())
    assert results["task"]["name"] == "brightness"
    assert results["rows"][0]["mse"] < 0.3  # of brightness 0 … 3, whose variance is 1.25
    main(["evaluate", str(run), "--evaluate.power", "1", "--out", str(tmp_path / "absolute")])
    absolute = json.loads((tmp_path / "absolute" / "results.json").read_text())
    assert absolute["rows"][0]["mse"] > results["rows"][0]["mse"] > absolute["rows"][0]["mse"] ** 2
    assert absolute["command"] == f"vnd evaluate {run} --evaluate.power 1"
    main(["report", str(run), "--out", str(tmp_path / "report")])
    page = (tmp_path / "report" / "report.html").read_text()
    assert "least squares" in page
