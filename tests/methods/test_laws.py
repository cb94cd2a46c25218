"""Laws of every registered method: it learns by heart, compiles once, is saved and loaded, and stopped equals whole.

The methods are read from the registry. A new one needs an entry in `SMALL` of `classes.py`, `codes.py` or `masks.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import train.masks
import vnd
from methods import classes, codes, masks
from train.small import settings, write_blobs
from train.test_loop import assert_same_run, stopping_at
from vnd.methods import BN3, METHODS, Sizes
from vnd.methods.codes import squared_error
from vnd.train.config import parse
from vnd.train.loop import fit

Entries = dict[str, Any]
NAMES = {kind: name for name, kind in METHODS.items()}
ENTRIES: Entries = {**classes.SMALL, **codes.SMALL, **masks.SMALL}
VARIANTS = [name for name in ENTRIES if name not in METHODS]
STOPPED = ["bn3 sandwich", "bn3 fixed_budgets", "vnd_ae, decoded twice", "beta_vae, capacity", "vnd_punet, lengths"]
# The exact KL from a log-uniform prior is an autograd.Function that torch does not trace: a step of it has more graphs.
IN_PARTS = ("vnd_ae, log-uniform",)


def entry(name: str) -> Any:
    """The method of a name, with options that suit the small networks of these tests."""
    assert name in ENTRIES, f"{name} is registered, but SMALL of tests/methods/classes.py, codes.py, masks.py lacks it"
    return ENTRIES[name]


def options_of(method: Any) -> dict[str, Any]:
    """Its section of a recipe."""
    given = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return {"name": NAMES[type(method)], **{k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}}


@dataclass(frozen=True)
class Trial:
    """What the methods of a task are tried on."""

    model: Callable[[Any], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    steps: Callable[[str], int]
    rate: float
    kl_weight: float
    error: Callable[[Any, nn.Module, Tensor, Tensor], float]
    untrained: float  # an error that is greater before,
    learned: float  # and one that is less after
    answers: Callable[[Any, nn.Module, Tensor], Tensor]
    settings: Callable[[Any, Path], dict[str, Any]]


def ready(method: Any, model: nn.Module, x: Tensor, samples: bool) -> Any:
    """Its full size, with statistics."""
    size = method.sizes(model, Sizes(fractions=(1.0,)))[0]
    method.recalibrate(model, lambda: [x], [size.width], samples=samples)
    return size


def probs(method: Any, model: nn.Module, x: Tensor) -> Tensor:
    size = ready(method, model, x, False)
    return method.predict(method.extract(model, size.width), x, 0).probs  # type: ignore[no-any-return]


def error_of_classes(method: Any, model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((probs(method, model, x).argmax(1) != y).float().mean())


@torch.no_grad()
def decoded(method: Any, model: nn.Module, x: Tensor) -> Tensor:
    model.eval()
    return method.decode(model, method.point(method.encode(model, x)))  # type: ignore[no-any-return]


def error_of_codes(method: Any, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Relative to that of the mean image."""
    return float((squared_error(x, decoded(method, model, x)) / squared_error(x, x.mean(0).expand_as(x)).mean()).mean())


def logits(method: Any, model: nn.Module, x: Tensor) -> Tensor:
    size = ready(method, model, x, True)
    torch.manual_seed(7)
    return method.drawer(model, size)(x, 8)  # type: ignore[no-any-return]


def error_of_masks(method: Any, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """One minus the mean IoU of eight samples with the mask of each image."""
    found, wanted = logits(method, model, x)[:, :, 0] > 0, y > 0
    both, either = ((found & wanted).sum((2, 3)), (found | wanted).sum((2, 3)))
    return 1 - float(torch.where(either == 0, 1.0, both / either.clamp(min=1)).mean())


def classes_settings(method: Any, folder: Path) -> dict[str, Any]:
    data = write_blobs(folder / "blobs.npz")
    # A moving average, too, of what is frozen or was cut out of a wider network.
    return settings(data, method=options_of(method), train={"epochs": 1, "ema": 0.9}, evaluate={"samples": 1})


def codes_settings(method: Any, folder: Path) -> dict[str, Any]:
    pixels = ((codes.dots(97) + 1) * 127.5).round().byte().numpy()[:, 0]
    np.savez(folder / "dots.npz", x_train=pixels, x_test=pixels[:33])
    given = settings(folder / "dots.npz", method=options_of(method), network=codes.DENSE)
    given["optimizer"]["chain_lr"] = None
    given["evaluate"] = {"sizes": {"fractions": [0.5, 1.0]}}
    given["train"] |= {"epochs": 2} | ({"ema": 0.9} if type(method).__name__ == "VNDAE" else {})
    return given


def masks_settings(method: Any, folder: Path) -> dict[str, Any]:
    name = NAMES[type(method)]
    return train.masks.settings(name, method=options_of(method), train={"epochs": 2, "ema": 0.9})


TRIALS: dict[str, Trial] = {
    "classification": Trial(
        model=classes.model_of,
        batch=lambda: classes.batch(32),  # noise: there is nothing to learn but the images themselves
        steps=lambda name: 160 if "half" in name or name in ("ibnn", "sn3") else 60,
        rate=0.02,
        kl_weight=0.001,
        error=error_of_classes,
        untrained=0.4,
        learned=0.1,
        answers=probs,
        settings=classes_settings,
    ),
    "autoencoding": Trial(
        model=lambda method: codes.model_of(method, codes.dense(hidden=(64,)), seed=0),
        batch=lambda: (codes.dots(64), torch.zeros(64, dtype=torch.int64)),
        steps=lambda name: 200,
        rate=0.01,
        kl_weight=1.0,
        error=error_of_codes,
        untrained=1 / 2,
        learned=1 / 10,
        answers=decoded,
        settings=codes_settings,
    ),
    "segmentation": Trial(
        model=masks.model_of,
        batch=masks.shapes,
        steps=lambda name: 90,
        rate=0.01,
        kl_weight=0.01,
        error=error_of_masks,
        untrained=0.5,
        learned=0.05,
        answers=logits,
        settings=masks_settings,
    ),
}
STEP = {"classification": classes.step, "autoencoding": codes.at, "segmentation": masks.at}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a nested network that knows the images by heart, for a method that learns from one."""
    folder = tmp_path_factory.mktemp("teacher")
    method, trial = BN3(num_groups=4, measure_every=2, log_alpha_init=-4.0), TRIALS["classification"]
    model = trial.model(method)
    learn(method, model, trial, 100, method.loss)
    vnd.save(model, folder / "last")
    return folder


@pytest.fixture
def taught(teacher: Path) -> Callable[[str], Any]:
    """The entry of a name, with its teacher where it has one."""

    def made(name: str) -> Any:
        method = entry(name)
        return dataclasses.replace(method, teacher=str(teacher)) if hasattr(method, "teacher") else method

    return made


def learn(method: Any, model: nn.Module, trial: Trial, steps: int, loss: Callable[..., Any]) -> None:
    """Train a model on all images at once, at a rate that falls to 0."""
    optimizer = torch.optim.Adam(model.parameters(), lr=trial.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batch = trial.batch()
    torch.manual_seed(0)
    for index in range(steps):
        step = dataclasses.replace(STEP[method.task](index), kl_weight=torch.tensor(trial.kl_weight))
        method.prepare(model, batch, step, lambda value: value)
        terms = loss(model, batch, step)
        assert terms.total.isfinite()
        optimizer.zero_grad()
        terms.total.backward()
        optimizer.step()
        schedule.step()


@pytest.fixture
def graphs() -> Iterator[list[Any]]:
    """What is compiled, as it comes."""
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch, of its own Dirichlet
@pytest.mark.parametrize("name", [*METHODS, *VARIANTS])
def test_a_method_learns_by_heart_compiles_once_and_comes_back(
    name: str, taught: Callable[[str], Any], graphs: list[Any], tmp_path: Path
) -> None:
    method = taught(name)
    trial = TRIALS[method.task]
    model = trial.model(method)
    x, y = trial.batch()
    if not hasattr(method, "teacher"):  # a student knows from the start what its teacher does
        assert trial.error(method, trial.model(method), x, y) > trial.untrained

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    whole = name not in IN_PARTS
    loss = torch.compile(method.loss, backend=backend, fullgraph=True) if whole else method.loss
    learn(method, model, trial, trial.steps(name), loss)
    assert len(graphs) == whole
    assert trial.error(method, model, x, y) < trial.learned
    answers = trial.answers(method, model, x)
    vnd.save(model, tmp_path)
    torch.testing.assert_close(trial.answers(method, vnd.load(tmp_path), x), answers, rtol=0, atol=0)


@pytest.mark.parametrize("name", [*METHODS, *STOPPED])
def test_a_stopped_run_is_the_whole_one_bit_for_bit(
    name: str, taught: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train.masks.few(monkeypatch)
    method = taught(name)
    wanted = parse(TRIALS[method.task].settings(method, tmp_path))
    assert fit(wanted, tmp_path / "whole", quiet=True)
    stopping_at(monkeypatch, 3)
    assert [fit(wanted, tmp_path / "parts", quiet=True) for _ in range(2)] == [False, True]
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_method_without_an_entry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "new", BN3)
    with pytest.raises(AssertionError, match=r"^new is registered, but SMALL of tests/methods/classes\.py"):
        [entry(name) for name in METHODS]
