r"""Networks that are as sure as they are right, of every size, by what their loss asks of them.

A large network learns its labels by heart and is then too sure of itself; a small one learns on augmented images, which
are harder than those of a test, and is there not sure enough. So the loss of network k sees its logits times a
loss temperature (an inverse one: it multiplies),

$$\ell_k = \mathrm{CE}(\operatorname{softmax}(τ_k z_k), y), \qquad
  \log τ_k \leftarrow \log τ_k + g\, (\bar c_k - a_k) \quad \text{after each epoch,}$$

with the mean confidence $\bar c_k = \frac1n \sum_i \max_y \operatorname{softmax}(z_{k i})_y$ and the accuracy $a_k$ of
its own logits on n validation images. BatchNorm sees these among as many mixed ones as in training. Where it was too
sure, τ grows, and logits 1/τ as large give the same loss. When training ends τ is forgotten: nothing is rescaled,
neither in the network nor after it. Like AdaFocal (Ghosh et al., 2022), which steers a loss by the calibration on
validation images as well; not in the paper. Of a student of SN³ the mean of its Dirichlet has a loss temperature.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vnd.data.augment import Augment, draw, mix
from vnd.data.batches import Passes

if TYPE_CHECKING:
    from vnd.train.state import TrainState

IMAGES = 1000  # about as many in a batch, which has BatchNorm's statistics of its own
FEWEST = 50  # validation images that say anything of calibration


class ConfidenceController:
    """Loss temperatures of a run's networks of fixed size."""

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
