"""All that a run holds while it is trained: made from a recipe, saved to its folder, and brought back from there."""

from __future__ import annotations

import copy
import math
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from vnd._files import write_json, write_text
from vnd._text import one_line
from vnd.data.augment import Augment, draw, mix
from vnd.data.batches import Batches, Passes, key
from vnd.data.images import Images
from vnd.methods import Sizes
from vnd.methods.base import Single
from vnd.nn.state import state_of, unwrap
from vnd.serialization import save
from vnd.tasks import task_of
from vnd.tasks.trained import bn_batches, read_splits
from vnd.train import checkpoint
from vnd.train.recipe import Recipe, differing_keys, digest_of
from vnd.train.run import Log, environment

IMAGES = 1000  # of validation, about as many in a batch, which has BatchNorm's statistics of its own
FEWEST = 50  # validation images that say anything of calibration


class TrainState:
    """A run in training; Hugging Face Accelerate's `accelerator` knows the devices and the other processes."""

    def __init__(self, recipe: Recipe, folder: Path, accelerator: Any) -> None:
        self.recipe, self.folder, self.accelerator, self.method = recipe, folder, accelerator, recipe.method
        self.task = task_of(recipe.method)
        with accelerator.main_process_first():  # who decodes a folder of images leaves a cache for the others
            self.splits = read_splits(recipe.data, self.task)
        options = recipe.train
        self.batches = Batches(
            self.splits.train, options.batch, options.seed, self.splits.mean, self.splits.std,
            accelerator.device, recipe.data.augment, accelerator.process_index, accelerator.num_processes,
            masks=self.task.has_masks, repeat_epochs=recipe.data.repeat_epochs,
        )  # fmt: skip
        model = build_model(recipe, self.splits.train).to(accelerator.device)
        if options.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = recipe.optimizer.build(model)
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)  # the loop says where to autocast
        self.root = unwrap(self.model)
        self.ema = {n: p.detach().clone() for n, p in self.root.named_parameters()} if options.ema else None
        self.confidence = ConfidenceController(self)
        self.steps = options.epochs * len(self.batches)
        self.step, self.best = 0, -1e9  # JSON has no infinity
        self.log = Log(folder / "metrics.jsonl")

    def epoch(self, step: int) -> int:
        """The epoch of a step."""
        return step // len(self.batches)

    def begin(self) -> None:
        """Write down what this run is, and where it runs."""
        if not self.accelerator.is_main_process:
            return
        self.method.sizes(self.root, self.recipe.evaluate.sizes)  # one that it cannot have is refused now
        self.task.check_model(self.root, self.recipe.evaluate)
        self.folder.mkdir(parents=True, exist_ok=True)
        splits = self.splits
        about = splits.about(self.recipe.data.name) | {"mean": list(splits.mean), "std": list(splits.std)}
        about |= splits.groups() | ({"sha256": splits.sha256} if splits.sha256 else {})
        write_json(self.folder / "data.json", about)
        write_json(self.folder / "environment.json", environment())
        write_text(self.folder / "recipe.yaml", self.recipe.to_yaml())
        self.log.truncate(-1)  # of a run that was killed before its first checkpoint

    def resume(self, new_epochs: bool = False) -> bool:
        """Go back to the newest good checkpoint; False if there is none.

        Args:
            new_epochs: The checkpoint may be of a recipe with another number of epochs. The recipe that is kept becomes
                this one, and the last network of a run that was finished goes, until there is a new one.
        """
        found = checkpoint.read(self.folder / "checkpoints")
        if found is None:
            return False
        best, trained_by = self._check(found, new_epochs)
        self.splits.check_same(self.folder)
        checkpoint.restore(self.root, self.optimizer, self.ema, self.accelerator.scaler, found)
        self.confidence.restore(found.state.get("log_loss_temperature"))
        self.step, self.best = found.step, best
        world = self.accelerator.num_processes
        if trained_by != world:
            text = f"train: this run was trained by {trained_by} processes and goes on with {world}: other noise"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if self.accelerator.is_main_process:
            if found.state["recipe"]["train"]["epochs"] != self.recipe.train.epochs:
                (self.folder / "last" / "network.json").unlink(missing_ok=True)  # first: without it there is none
                shutil.rmtree(self.folder / "last", ignore_errors=True)
                write_text(self.folder / "recipe.yaml", self.recipe.to_yaml())
            self.log.truncate(self.step)
        return True

    def _check(self, found: checkpoint.Checkpoint, new_epochs: bool) -> tuple[float, int]:
        """Refuse a checkpoint of another recipe, or beyond the end of this one; its best score, and its processes."""
        recipe, state = self.recipe.to_dict(), found.state
        try:
            other, epochs = digest_of(state["recipe"]), state["recipe"]["train"]["epochs"]
            best, world = float(state["best"]), state["world"]
            if type(world) is not int or type(epochs) is not int:
                raise ValueError("world and train.epochs must be whole numbers")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"train: {found.path} is damaged: {one_line(error)}") from None
        if digest_of(recipe) != other:
            keys = differing_keys(state["recipe"], recipe)
            if keys == ["train.epochs"] and not new_epochs:
                wanted = self.recipe.train.epochs
                raise ValueError(
                    f"train: {found.path} is of a recipe with train.epochs {epochs}, and recipe.yaml says {wanted}; "
                    f"change it back, or allow it by --new_epochs {wanted}"
                )
            if keys != ["train.epochs"]:
                raise ValueError(
                    f"train: {found.path} is of another recipe than recipe.yaml; it differs in {', '.join(keys)}; "
                    "change that back, or train in another folder"
                )
        if found.step > self.steps:
            raise ValueError(
                f"train: {found.path} is at step {found.step}, beyond the {self.steps} steps that train.epochs "
                f"{self.recipe.train.epochs} has; give more epochs, or train in another folder"
            )
        return best, world

    def save(self) -> None:
        """Write a checkpoint, unless a parameter is not finite: the ones before are worth more."""
        for name, parameter in self.root.named_parameters():
            if not parameter.isfinite().all():
                raise FloatingPointError(
                    f"train: parameter {name} is not finite after step {self.step - 1}; lower optimizer.lr or set"
                    f" train.clip; the last checkpoint in {self.folder / 'checkpoints'} is from before it"
                )
        if self.accelerator.is_main_process:
            tensors, state = checkpoint.capture(self.root, self.optimizer, self.ema, self.accelerator.scaler)
            state |= {"best": self.best, "world": self.accelerator.num_processes, "recipe": self.recipe.to_dict()}
            state |= {"log_loss_temperature": self.confidence.state()}
            checkpoint.write(self.folder / "checkpoints", self.step, tensors, state)

    def validate(self) -> dict[str, float]:
        """Look at the validation images at some widths; keep the network if it is the best.

        Runs in one process; the others go on to wait for it at the next step.
        """
        if not self.accelerator.is_main_process:
            return {}
        wanted = Sizes(fractions=self.recipe.train.validate_at, leading=self.recipe.evaluate.sizes.leading)
        normalise = self.splits.normalise(self.accelerator.device)
        with self.averaged():
            sizes = self.method.sizes(self.root, wanted)
            self.method.recalibrate(
                self.root, self.bn_batches, [size.width for size in sizes], samples=self.task.validates_draws
            )
            looked = self.splits.validation, normalise
            found = {size.label: self.task.validate(self.method, self.root, size, *looked) for size in sizes}
            score = self.task.score(sum(found.values()) / len(found))
            if score > self.best:
                self.best = score
                save(self.root, self.folder / "best")
        return found

    def finish(self) -> None:
        """Keep the last network too, recalibrated for the recipe's sizes.

        What validation left is dropped: a run that was stopped after its last checkpoint does not have it.
        """
        if self.accelerator.is_main_process:
            with self.averaged():
                if hasattr(self.root, "_vnd_state"):
                    state = state_of(self.root)
                    state.statistics.clear()
                    state.stamps.clear()
                sizes = self.method.sizes(self.root, self.recipe.evaluate.sizes)
                for samples in (False, True):
                    torch.manual_seed(key(self.recipe.train.seed, "calibration"))
                    self.method.recalibrate(self.root, self.bn_batches, [s.width for s in sizes], samples=samples)
                save(self.root, self.folder / "last")

    def bn_batches(self) -> Iterator[Tensor]:
        """A few batches of training images, always the same ones, that BatchNorm's statistics are collected from."""
        return bn_batches(self.recipe, self.splits, self.task, self.accelerator.device)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The moving average of the weights in place of the weights, if there is one.

        BatchNorm's statistics are those of other weights then. A nested network has them collected for each width by
        its method; one of a single size gets those that it shows in training, of the images of `bn_batches`. Layers
        that inference never runs (the posterior net) keep their training statistics.
        """
        if self.ema is None:
            yield
            return
        single = not hasattr(self.root, "_vnd_state")
        places: dict[str, Tensor] = dict(self.root.named_parameters())
        if single:
            places |= dict(self.root.named_buffers())
        own = {name: place.detach().clone() for name, place in places.items()}
        try:
            _fill(places, self.ema)
            if single:
                torch.manual_seed(key(self.recipe.train.seed, "statistics"))  # of the noise in weights and dropout
                if not isinstance(self.method, Single):
                    got = f"{type(self.method).__name__} with a network that is not nested"
                    raise ValueError(f"train.ema: a method of one network must be a Single; got {got}")
                update_bn(self.bn_batches(), _Shown(self.root, self.method))
                _keep_unseen(self.root, own)
            yield
        finally:
            _fill(places, own)

    @torch.no_grad()
    def move_average(self) -> None:
        """Move the average of the weights to where they now are."""
        if self.ema is not None and self.recipe.train.ema is not None:
            parameters = [parameter.detach() for parameter in self.root.parameters()]
            torch._foreach_lerp_(list(self.ema.values()), parameters, 1 - self.recipe.train.ema)
            for name, parameter in self.root.named_parameters():
                if not parameter.requires_grad:  # a frozen order is what it is, at once
                    self.ema[name].copy_(parameter)

    def average(self, value: Tensor) -> Tensor:
        """The mean of a number over all processes."""
        return value if self.accelerator.num_processes == 1 else torch.as_tensor(self.accelerator.reduce(value, "mean"))


class _Shown(nn.Module):
    """A model that is run as its method's training runs it."""

    def __init__(self, root: nn.Module, method: Single) -> None:
        super().__init__()
        self.root, self.method, self.training = root, method, root.training  # the mode that `update_bn` goes back to

    def forward(self, x: Tensor) -> None:
        """Show it images."""
        self.method.show(self.root, x)


def build_model(recipe: Recipe, images: Images) -> nn.Module:
    """The model of a recipe, on the CPU, with the weights that its seed gives; refused if the data do not fit it."""
    torch.manual_seed(recipe.train.seed)
    task = task_of(recipe.method)
    network = recipe.network.build(images.pixels.shape[1:], task.num_outputs(len(images.classes)))
    task.check_network(network, recipe, images)
    example = torch.rand(2, *images.pixels.shape[1:])
    if task.calls_network or not recipe.network.is_own:
        task.check_answer(_answer(network, example, recipe), recipe, images)
    torch.manual_seed(recipe.train.seed + 1)
    return recipe.method.build(network, example)


@torch.no_grad()
def _answer(network: nn.Module, example: Tensor, recipe: Recipe) -> Any:
    """Answer of a plain network to an example; refused where it has none."""
    try:
        return copy.deepcopy(network).eval()(example)
    except Exception as error:  # one's own network may raise any
        said = " ".join(str(error).split())[:200] if isinstance(error, RuntimeError) else one_line(error)
        raise ValueError(
            f"network {recipe.network.name} cannot read the images of {recipe.data.name}, "
            f"{'×'.join(map(str, example.shape[1:]))}: {said}"
        ) from None


@torch.no_grad()
def _keep_unseen(root: nn.Module, own: dict[str, Tensor]) -> None:
    """Give statistics back to the layers of a network that have seen nothing since they were reset."""
    for name, module in root.named_modules():
        counted = getattr(module, "num_batches_tracked", None)
        if counted is not None and int(counted) == 0:
            _fill(dict(module.named_buffers()), {place: own[f"{name}.{place}"] for place, _ in module.named_buffers()})


@torch.no_grad()
def _fill(places: dict[str, Tensor], values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        places[name].copy_(value)


class ConfidenceController:
    r"""Loss temperatures of a run's networks of fixed size, so that each is as sure as it is right.

    A large network learns its labels by heart and is then too sure of itself; a small one learns on augmented images,
    which are harder than those of a test, and is there not sure enough. So the loss of network k sees its logits times
    a loss temperature (an inverse one: it multiplies),

    $$\ell_k = \mathrm{CE}(\operatorname{softmax}(τ_k z_k), y), \qquad
      \log τ_k \leftarrow \log τ_k + g\, (\bar c_k - a_k) \quad \text{after each epoch,}$$

    with the mean confidence $\bar c_k = \frac1n \sum_i \max_y \operatorname{softmax}(z_{k i})_y$ and the accuracy $a_k$
    of its own logits on n validation images. BatchNorm sees these among as many mixed ones as in training. Where it was
    too sure, τ grows, and logits 1/τ as large give the same loss. When training ends τ is forgotten: nothing is
    rescaled, neither in the network nor after it. Like AdaFocal (Ghosh et al., 2022), which steers a loss by the
    calibration on validation images as well; not in the paper. Of a student of SN³ the mean of its Dirichlet has a loss
    temperature.
    """

    def __init__(self, train_state: TrainState) -> None:
        self.train_state, self.rate = train_state, train_state.recipe.train.loss_temperature
        self.log: Tensor | None = None
        if not self.rate:
            return
        networks = train_state.method.num_loss_temperatures
        if not networks:
            raise ValueError(
                f"train.loss_temperature: {train_state.recipe.method_name} trains no network of a fixed size in every "
                "step; use 0"
            )
        if train_state.recipe.train.ema is not None:
            raise ValueError(
                "train.loss_temperature and train.ema exclude each other: it is the moving average that is kept"
            )
        images, device = train_state.splits.validation, train_state.accelerator.device
        if images.labels is None or len(images) < FEWEST:
            raise ValueError(f"train.loss_temperature needs data.validation to be at least {FEWEST}; got {len(images)}")
        mixed = train_state.recipe.data.augment.cutmix if train_state.recipe.augmented() else 0.0
        if mixed == 1:
            raise ValueError(
                "train.loss_temperature needs images that are not mixed; use data.augment.cutmix below 1, got 1"
            )
        size = math.ceil(len(images) / math.ceil(len(images) / IMAGES))  # as even as can be
        self.beside = round(size * mixed / (1 - mixed))  # mixed ones
        self.batches = Passes(images, train_state.splits.normalise(device), device, size)
        self.labels = torch.from_numpy(images.labels).to(device).long().split(size)
        self.log = torch.zeros(networks, device=device)

    def state(self) -> list[float] | None:
        """State that a checkpoint keeps."""
        return None if self.log is None else list(self.log.tolist())

    def restore(self, state: list[float] | None) -> None:
        """Go back to what a checkpoint kept."""
        if self.log is not None and state is not None:
            self.log.copy_(torch.tensor(state))

    @torch.no_grad()
    def move(self) -> None:
        """Compare confidence with accuracy on the validation images, and move every loss temperature."""
        if self.log is None:
            return
        train_state, sums = self.train_state, torch.zeros_like(self.log)
        before = [(buffer, buffer.clone()) for buffer in train_state.root.buffers()]
        for images, labels in zip(self.batches, self.labels, strict=True):
            with train_state.accelerator.autocast():
                answers = train_state.method.answers(train_state.root, self._among_mixed(images))
            if not answers:
                return
            sums += torch.stack([_excess(logits[: len(labels)], labels) for logits in answers])
        for buffer, value in before:  # BatchNorm's: it has been shown images that are not for training
            buffer.copy_(value)
        self.log += self.rate * train_state.average(sums / sum(map(len, self.labels)))

    def _among_mixed(self, images: Tensor) -> Tensor:
        """The images, and as many mixed ones as stand beside them in training, always with the same boxes."""
        if not self.beside:
            return images
        turns = torch.arange(self.beside, device=images.device)
        own, others = (images[x % len(images)] for x in (turns, len(images) - 1 - turns))
        drawn = draw(Augment(cutmix=1.0), self.beside, torch.Generator().manual_seed(0))
        return torch.cat([images, mix(own, others, drawn)[0]])


def _excess(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over a batch of confidence less correctness."""
    confidence, answer = logits.float().softmax(1).max(1)
    return (confidence - (answer == labels).float()).sum()
