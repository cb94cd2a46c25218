"""Progress of training: the bar, the rows of the log, and the signals that stop it."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from vnd.methods import Terms
from vnd.nn import OrderingUnit

if TYPE_CHECKING:
    from vnd.train.state import TrainState

SURE = 0.99  # an ordering unit that is as sure of its length as that has stopped learning it


class ProgressLogger:
    """The progress bar and the log of a run, if `quiet` the log alone; in the processes beside the first, neither."""

    def __init__(self, state: TrainState, quiet: bool) -> None:
        self.state, self.options = state, state.recipe.train
        self.main = state.accelerator.is_main_process
        self.units = [(n, m) for n, m in state.root.named_modules() if isinstance(m, OrderingUnit)]
        self.console = Console(stderr=True, quiet=quiet or not self.main)
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[parts]}"), console=self.console, disable=quiet or not self.main,
            refresh_per_second=2,
        )  # fmt: skip
        self.task = self.bar.add_task("train", total=state.steps, completed=state.step, parts="")
        self.warned: set[str] = set()
        self.norms: dict[str, float] = {}

    def __enter__(self) -> Self:
        self.bar.start()
        self.since, self.counted = time.perf_counter(), self.state.step
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def gradients(self, step: int) -> None:
        """Look at the gradients of the order, in a step that the log has a row of."""
        if self._is_logged(step):
            grads = {name: unit.keep_logits.grad for name, unit in self.units}
            self.norms = {name: float(grad.norm()) for name, grad in grads.items() if grad is not None}

    def step(self, step: int, terms: Terms, numbers: dict[str, float], norm: Tensor | None) -> None:
        """Count a step; now and then read its loss, which waits for the device, and write a row."""
        if not self._is_logged(step):
            return
        parts = {name: float(self.state.average(part)) for name, part in terms.parts.items()}
        loss = {"loss": float(self.state.average(terms.total.detach())), **parts}
        if not self.main:
            return
        now = time.perf_counter()
        speed = (step - self.counted) * self.options.batch / max(now - self.since, 1e-9)
        self.since, self.counted = now, step
        row: dict[str, Any] = {"step": step, "epoch": self.state.epoch(step - 1), **loss, **numbers}
        row["images_per_second"] = round(speed, 1)
        if norm is not None:
            row["gradient_norm"] = float(norm)
        if (log_loss_temperature := self.state.confidence.state()) is not None:
            row["log_loss_temperature"] = log_loss_temperature
        shown = " ".join(f"{name} {part:.3g}" for name, part in loss.items())
        if self.units:
            row["units"] = {
                name: {**vars(unit.report()), "gradient_norm": self.norms.get(name, 0.0)} for name, unit in self.units
            }
            kept = [row["units"][name]["expected_length"] / unit.num_groups for name, unit in self.units]
            shown += f" · widths {_few(kept)}"
            self._warn(row["units"])
        self.state.log.append(row)
        self.bar.update(self.task, completed=step, parts=shown)

    def validated(self, found: dict[str, float]) -> None:
        """Write what validation found."""
        if not self.main:
            return
        step, epoch = self.state.step, self.state.epoch(self.state.step - 1)
        self.state.log.append({"step": step, "epoch": epoch, "validation": found, "best": self.state.best})
        what, shown = self.state.task.scored
        words = ", ".join(f"{label}: {shown(score)}" for label, score in found.items())
        self.console.print(
            f"epoch {epoch + 1} of {self.options.epochs}: validation {what} at {words}", highlight=False, markup=False
        )
        self.since, self.counted = time.perf_counter(), step

    def _is_logged(self, step: int) -> bool:
        return step % self.options.log_every == 0 or step == self.state.steps

    def _warn(self, units: dict[str, dict[str, float]]) -> None:
        for name, report in units.items():
            for end, words in (("prob_shortest", "its base alone"), ("prob_full", "all its groups")):
                if report[end] > SURE and name not in self.warned:
                    self.warned.add(name)
                    self.console.print(
                        f"{name}: keeps {words} with probability {report[end]:.3f}", highlight=False, markup=False
                    )


class GracefulStop(ExitStack):
    """Turns the first Ctrl-C or SIGTERM into a wish to stop between two steps; the second one stops at once."""

    def __init__(self) -> None:
        super().__init__()
        self.wished = False
        self.enter_context(handled((signal.SIGINT, signal.SIGTERM), self._wish))

    def asked(self, accelerator: Any) -> bool:
        """Tell if any process was asked to stop."""
        if accelerator.num_processes == 1:
            return self.wished
        wish = torch.tensor(float(self.wished), device=accelerator.device)
        return bool(accelerator.reduce(wish, "sum") > 0)

    def _wish(self, number: int, frame: FrameType | None) -> None:
        if self.wished:
            raise KeyboardInterrupt
        self.wished = True
        print("stopping after this step; once more to stop at once", file=sys.stderr, flush=True)


@contextmanager
def handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let a handler take signals, in the main thread, for as long as this lasts."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


def _few(shares: list[float]) -> str:
    """Shares of the width, of ten layers at most.

    >>> _few([0.5, 1.0])
    '50 100 %'
    """
    shown = " ".join(f"{100 * share:.0f}" for share in shares[:10])
    return f"{shown}{' …' if len(shares) > 10 else ''} %"
