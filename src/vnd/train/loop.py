"""The training loop: one for all methods, none of which it knows by name; its progress, and the signals to stop it."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from vnd.data.batches import key
from vnd.methods import Batch, Step, Terms
from vnd.nn import OrderingUnit, Quantile
from vnd.optim import set_rates, value
from vnd.train import track
from vnd.train.config import parse_run
from vnd.train.recipe import Recipe
from vnd.train.run import lock
from vnd.train.state import TrainState

SURE = 0.99  # an ordering unit that is as sure of its length as that has stopped learning it


def fit(recipe: Recipe, folder: Path, *, quiet: bool = False, new_epochs: bool = False) -> bool:
    """Train a recipe in a folder, or go on where that run stopped; the same bits either way.

    Args:
        recipe: What decides the run.
        folder: Where it is kept; one process at a time.
        quiet: Show nothing.
        new_epochs: Go on although the run was begun with another number of epochs; the recipe that it keeps becomes
            this one. Schedules are those of the new number, from the step on that the run stands at.

    Returns:
        Whether it is done; False if it was stopped, by Ctrl-C or SIGTERM, after saving where it stands.
    """
    accelerator = make_accelerator(recipe, folder)
    held = lock(folder) if accelerator.is_main_process else nullcontext()
    with held, deterministic(recipe.train.deterministic):
        accelerator.wait_for_everyone()  # a refusal of the lock comes before anything is touched
        check_same(recipe, folder, new_epochs)
        state = TrainState(recipe, folder, accelerator)
        if not state.resume(new_epochs):
            state.begin()
        track.start(accelerator, recipe, folder, state.step)
        done = _train(state, quiet)
        if done:
            state.finish()
        accelerator.wait_for_everyone()  # gloo aborts where a process leaves while another still speaks
    accelerator.end_training()
    return done


def _train(state: TrainState, quiet: bool) -> bool:
    """The steps of a run; False if it was stopped."""
    recipe, accelerator, method = state.recipe, state.accelerator, state.method
    model, optimizer, options = state.model, state.optimizer, recipe.train
    objective, measured = (_compiled(x, state) for x in (method.loss, state.root))
    seed, rank, epoch_length = options.seed, accelerator.process_index, len(state.batches)
    kl_weight = torch.zeros((), device=accelerator.device)
    model.train()
    with GracefulStop() as stop, ProgressLogger(state, quiet) as progress:
        for index, batch in enumerate(state.batches.run(state.step, state.steps), state.step):
            epoch = state.epoch(index)
            rate, temperature, weight = (
                value(schedule, index, state.steps, epoch)
                for schedule in (recipe.schedule.lr, recipe.schedule.temperature, recipe.schedule.kl_weight)
            )
            set_rates(optimizer, rate)
            step = Step(
                index, kl_weight.fill_(weight), temperature, len(state.splits.train), index / state.steps,
                state.confidence.log, state.batches.number(index) if recipe.data.repeat_epochs else None,
            )  # fmt: skip

            _seed(key(seed, "common", index))  # all processes draw alike: which unit is measured
            with accelerator.autocast():
                method.prepare(measured, batch, step, state.average)
            _seed(key(seed, "noise", index, rank))  # each process draws its own: the weights
            with accelerator.autocast():
                terms = objective(model, batch, step)
            finite = arrival(terms.total)  # on its way to the CPU while the gradient is computed
            accelerator.backward(terms.total)
            if not finite():
                raise FloatingPointError(diagnosis(state, batch, step, key(seed, "noise", index, rank)))
            norm = None if options.clip is None else accelerator.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            progress.gradients(index + 1)
            optimizer.zero_grad(set_to_none=True)
            state.move_average()
            state.step = index + 1

            progress.step(state.step, terms, {"lr": rate, "temperature": temperature, "kl_weight": weight}, norm)
            epoch_ends = state.step % epoch_length == 0
            if epoch_ends:
                _seed(key(seed, "temper", index))  # all processes draw alike
                state.confidence.move()
            if epoch_ends and ((epoch + 1) % options.validate_every == 0 or state.step == state.steps):
                progress.validated(state.validate())
            halt = stop.asked(accelerator)
            due = epoch_ends and (epoch + 1) % options.save_every == 0
            due |= options.checkpoint_every is not None and state.step % options.checkpoint_every == 0
            if halt or due or state.step == state.steps:
                state.save()
            if halt and state.step < state.steps:
                return False
    return True


def check_same(recipe: Recipe, folder: Path, new_epochs: bool = False) -> None:
    """Refuse a folder that holds a run of another recipe, which may differ in its epochs if that is allowed."""
    if not (folder / "recipe.yaml").exists():
        return
    kept = parse_run(folder)
    if new_epochs:
        kept = kept.with_train(epochs=recipe.train.epochs)
    if kept != recipe:
        raise ValueError(f"train: {folder} holds a run of another recipe; give another folder, or go on with that one")


def make_accelerator(recipe: Recipe, folder: Path | None = None) -> Any:
    """Accelerate's handle on devices, processes, precision and, of a run in a folder, on its trackers."""
    try:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "training needs accelerate; pip install 'variational-nested-dropout[train]'"
        ) from None
    options = recipe.train
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("train.device is cuda, and there is no GPU here; use auto or cpu")
    if options.precision == "fp16" and (options.device == "cpu" or not torch.cuda.is_available()):
        raise ValueError("train.precision fp16 needs a GPU; use bf16 or no")
    AcceleratorState._reset_state()  # a run before this one, in the same process, may have had another precision
    tracked = {} if folder is None else track.options(options.track, folder)
    cpu = options.device == "cpu" or not torch.cuda.is_available()
    return Accelerator(cpu=cpu, mixed_precision=options.precision, **tracked)


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    """Let torch use only algorithms that give the same bits each time, then whatever it used before."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    own: Any = torch.utils.deterministic
    fill, own.fill_uninitialized_memory = own.fill_uninitialized_memory, False  # that would only cost time
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is not
    torch.use_deterministic_algorithms(on, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        own.fill_uninitialized_memory = fill


def _seed(number: int) -> None:
    """Seed the generators that a step draws from; `torch.manual_seed` looks for other kinds of devices each time."""
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)


def _compiled(what: Any, state: TrainState) -> Any:
    """A function or a network, compiled where the recipe asks for it; on a GPU with CUDA graphs."""
    if not state.recipe.train.compile:
        return what
    return torch.compile(what, mode="reduce-overhead" if state.accelerator.device.type == "cuda" else None)


def arrival(loss: Tensor) -> Callable[[], bool]:
    """Tell, when asked, if a loss is finite: it is copied to the CPU while the GPU goes on, and asking waits for that.

    So the check costs nothing, and a bad step is seen before its gradient reaches the weights.
    """
    value = loss.detach()
    if not loss.is_cuda:
        return lambda: bool(value.isfinite())
    copy, event = torch.empty((), dtype=loss.dtype, pin_memory=True), torch.cuda.Event()
    copy.copy_(value, non_blocking=True)
    event.record()

    def finite() -> bool:
        event.synchronize()
        return bool(copy.isfinite())

    return finite


@torch.no_grad()
def diagnosis(state: TrainState, batch: Batch, step: Step, seed: int) -> str:
    """One line on a loss that is not finite, from running the step again and looking at every layer."""
    root = state.root
    where = f"train: the loss is not finite at step {step.index} (epoch {state.epoch(step.index)})"
    last = f"; the last checkpoint in {state.folder / 'checkpoints'} is from before it"
    for name, parameter in root.named_parameters():
        if not parameter.isfinite().all():
            return f"{where}: parameter {name} is not, so the step before spoilt it; lower optimizer.lr or clip{last}"
    if not batch[0].isfinite().all():
        return f"{where}: the images are not{last}"
    for module in root.modules():
        if isinstance(module, Quantile):
            module.count -= module.strata  # the same masks again
    found: list[str] = []

    def look(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if not found and isinstance(output, Tensor) and not output.isfinite().all():
            found.append(f"{name} ({type(module).__name__})")

    named = [(name, module) for name, module in root.named_modules() if name]  # what holds all of them comes last
    hooks = [module.register_forward_hook(partial(look, name)) for name, module in named]
    try:
        torch.manual_seed(seed)
        with state.accelerator.autocast():
            terms = state.method.loss(root, batch, step)
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"{where}: first in the output of layer {found[0]}{last}"
    parts = ", ".join(f"{name} {float(part):.4g}" for name, part in terms.parts.items())
    return f"{where}: all layers are, its parts are {parts}{last}"


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
        self._write(row)
        self.bar.update(self.task, completed=step, parts=shown)

    def validated(self, found: dict[str, float]) -> None:
        """Write what validation found."""
        if not self.main:
            return
        step, epoch = self.state.step, self.state.epoch(self.state.step - 1)
        self._write({"step": step, "epoch": epoch, "validation": found, "best": self.state.best})
        what, shown = self.state.task.scored
        words = ", ".join(f"{label}: {shown(score)}" for label, score in found.items())
        self.console.print(
            f"epoch {epoch + 1} of {self.options.epochs}: validation {what} at {words}", highlight=False, markup=False
        )
        self.since, self.counted = time.perf_counter(), step

    def _write(self, row: dict[str, Any]) -> None:
        """Add a row to the log, and send it to the trackers."""
        self.state.log.append(row)
        self.state.accelerator.log(
            track.flat({key: value for key, value in row.items() if key != "step"}), step=row["step"]
        )

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
