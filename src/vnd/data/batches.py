"""Batches of a split by the number of the step alone: in any order, from any process, after any interruption."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vnd.data.augment import Augment, Draw, apply, apply_to_masks, draw, mix
from vnd.data.images import Images

CHUNK = 4096  # images that are looked at together where all of them are
ROOM = 2**30  # bytes of normalised images that are kept in a CPU's memory


def key(*parts: int | str) -> int:
    """A seed made of several numbers: any other parts give an unrelated one.

    >>> key(0, 1) == key(0, 1), key(0, 1) == key(1, 0)
    (True, False)
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "big") >> 1


def statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of pixels between 0 and 1."""
    total, squares, count = 0.0, 0.0, 0
    for start in range(0, len(images), CHUNK):
        part = images.pixels[start : start + CHUNK].astype(np.float64) / 255
        total, squares = total + part.sum((0, 2, 3)), squares + (part**2).sum((0, 2, 3))
        count += part.size // part.shape[1]
    mean = np.asarray(total) / count
    std = np.sqrt(np.maximum(np.asarray(squares) / count - mean**2, 1e-12))
    return tuple(mean.tolist()), tuple(std.tolist())


class Batches:
    r"""Full batches of a shuffled split, each determined by (seed, step): images normalised and augmented, and labels.

    Step t takes the $t \bmod n$-th batch of the permutation of epoch $\lfloor t / n \rfloor$. What is left over in an
    epoch, less than a batch, has its turn in another one. After `repeat_epochs` epochs the batches come again.
    Among W processes each takes its W-th of every batch, and the draws of augmentation are those of one process; so the
    world's size changes nothing but rounding.

    Pixels stay uint8, in memory, memory-mapped, or on a GPU with room for them.

    Args:
        images: The split; without labels each image has 0.
        batch: Images in a batch, all processes together.
        seed: Of the order and the augmentation.
        mean, std: Of each channel, of pixels between 0 and 1.
        device: Where batches go.
        augment: Changes of the images.
        rank: The number of this process.
        world: Number of processes.
        masks: Whether masks stand where labels would: that of one grader of each image, drawn anew in every step.
        repeat_epochs: Number of distinct augmented epochs; later epochs replay them. 0: always new.
    """

    def __init__(
        self,
        images: Images,
        batch: int,
        seed: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device | str = "cpu",
        augment: Augment | None = None,
        rank: int = 0,
        world: int = 1,
        masks: bool = False,
        repeat_epochs: int = 0,
    ) -> None:
        if batch < 1 or batch % world:
            raise ValueError(f"train.batch must be a multiple of the number of processes, {world}; got {batch}")
        if len(images) < batch:
            raise ValueError(f"train.batch must be at most the number of training images, {len(images)}; got {batch}")
        self.images, self.batch, self.seed, self.device = images, batch, seed, torch.device(device)
        self.repeat_epochs = repeat_epochs
        self.augment = augment or Augment()
        self.masks = _masks(images, self.augment) if masks else None
        share = batch // world
        self.part = slice(rank * share, (rank + 1) * share)
        self.normalise = Normalise(mean, std, self.device)
        labels = np.zeros(len(images), np.int64) if images.labels is None else images.labels
        self.labels = torch.from_numpy(np.ascontiguousarray(labels))
        self.resident = _resident(images.pixels, self.device)
        self.marks = None if self.masks is None else _resident(self.masks, self.device)
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.images) // self.batch

    def number(self, step: int) -> int:
        """The first step that has the batch of a step."""
        return step % (self.repeat_epochs * len(self)) if self.repeat_epochs else step

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step, (share, channels, height, width) and (share,), or (share, classes) of mixed images.

        An image is mixed with the one at the mirrored place of the whole batch. With masks, the second is (share,
        height, width), float32: zeros and ones, or numbers of classes.
        """
        step = self.number(step)
        chosen, places = self._chosen(step), torch.arange(self.batch)[self.part]
        changes: Draw | None = None
        if self.augment != Augment():
            changes = draw(self.augment, self.batch, torch.Generator().manual_seed(key(self.seed, "augment", step)))
        if self.masks is not None:
            return self._masked(chosen[places.numpy()], places, step, changes)
        pixels, labels = self._read(chosen[places.numpy()])
        if changes is None:
            return self.normalise(pixels), labels
        pixels = apply(self.augment, pixels, changes.share(places))
        if self.augment.cutmix:
            beside = self.batch - 1 - places
            others, theirs = self._read(chosen[beside.numpy()])
            pixels, share = mix(pixels, apply(self.augment, others, changes.share(beside)), changes.share(places))
            mine, theirs = (F.one_hot(x.long(), len(self.images.classes)) for x in (labels, theirs))
            labels = torch.lerp(mine.float(), theirs.float(), share[:, None])
        return self.normalise(pixels), labels

    def _read(self, chosen: np.ndarray[tuple[int], np.dtype[np.int64]]) -> tuple[Tensor, Tensor]:
        """The pixels and the labels of some images."""
        where = torch.from_numpy(chosen)
        labels = _to(self.labels[where], self.device)
        if self.resident is not None:
            return self.resident[where.to(self.device, non_blocking=True)], labels
        return _to(torch.from_numpy(self.images.pixels[chosen]), self.device), labels

    def _masked(
        self, chosen: np.ndarray[tuple[int], np.dtype[np.int64]], places: Tensor, step: int, changes: Draw | None
    ) -> tuple[Tensor, Tensor]:
        """Images and the masks of one grader each; the draw is that of the place in the whole batch."""
        assert self.masks is not None
        generator = torch.Generator().manual_seed(key(self.seed, "grader", step))
        if (counts := self.images.num_graders) is None:
            grader = torch.randint(self.masks.shape[1], (self.batch,), generator=generator)[places]
        else:  # each of its own graders is as likely
            share = torch.rand(self.batch, generator=generator, dtype=torch.float64)[places]
            grader = (share * torch.from_numpy(counts[chosen])).long()
        pixels, _ = self._read(chosen)
        if self.marks is None:
            masks = _to(torch.from_numpy(self.masks[chosen, grader.numpy()]), self.device)
        else:
            where = (torch.from_numpy(chosen), grader)
            masks = self.marks[tuple(x.to(self.device, non_blocking=True) for x in where)]
        if changes is not None:
            pixels = apply(self.augment, pixels, changes.share(places))
            masks = apply_to_masks(self.augment, masks, changes.share(places))
        return self.normalise(pixels), masks.float()

    def run(self, start: int, stop: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of these steps in order; for a GPU whose memory does not hold the data, read one ahead."""
        held = self.resident is not None and (self.masks is None or self.marks is not None)
        if held or self.device.type == "cpu":
            yield from map(self.at, range(start, stop))
            return
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(self.at, start)
            for step in range(start, stop):
                ready = coming.result()
                if step + 1 < stop:
                    coming = ahead.submit(self.at, step + 1)
                yield ready

    def _chosen(self, step: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        epoch, index = divmod(step, len(self))
        if epoch != self._epoch:
            generator = np.random.default_rng(key(self.seed, "order", epoch))
            self._epoch, self._order = epoch, generator.permutation(len(self.images))
        return self._order[index * self.batch : (index + 1) * self.batch]


class Normalise:
    """From uint8 pixels to what a network is fed: channels of mean 0 and deviation 1 over the training images."""

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], device: torch.device | str) -> None:
        scale = torch.tensor(std, dtype=torch.float64) * 255
        shift = torch.tensor(mean, dtype=torch.float64) / torch.tensor(std, dtype=torch.float64)
        self.scale = (1 / scale).float().view(-1, 1, 1).to(device)
        self.shift = shift.float().view(-1, 1, 1).to(device)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalise a batch, uint8 or floating between 0 and 255.

        One channel gets the strides of channels last, which cost nothing: by those of channels first a network whose
        weights are laid out channels last would run channels first, up to ten times slower in its pools.
        """
        layout = torch.channels_last if pixels.is_cuda else torch.preserve_format  # as fast there, on a CPU it is not
        x = pixels.to(torch.float32, memory_format=layout, copy=True).mul_(self.scale).sub_(self.shift)
        return x if x.size(1) > 1 else x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2)


def in_order(
    images: Images, normalise: Normalise, device: torch.device | str, batch: int | None = None
) -> Iterator[Tensor]:
    """All images of a split in their order, normalised; the last batch is as small as it is.

    By default a batch fits the caches of a CPU, or fills a GPU.
    """
    batch = batch or (128 if torch.device(device).type == "cpu" else 512)
    for start in range(0, len(images), batch):
        yield normalise(_to(torch.from_numpy(images.pixels[start : start + batch].copy()), torch.device(device)))


class Passes:
    """The batches of `in_order`, to be run over again and again: they are made once and stay on the device if they fit.

    Where they would take more than `ROOM` bytes of a CPU's memory, or a third of what a GPU has free, they are made
    anew in every pass; from pixels that lie on the GPU if those fit. They must not be changed in place.
    """

    def __init__(
        self, images: Images, normalise: Normalise, device: torch.device | str, batch: int | None = None
    ) -> None:
        self.images, self.normalise, self.device, self.batch = images, normalise, torch.device(device), batch
        room = torch.cuda.mem_get_info(self.device)[0] / 3 if self.device.type == "cuda" else ROOM
        self.kept = list(self._made()) if images.pixels.size * 4 <= room else None
        self.resident = _resident(images.pixels, self.device) if self.kept is None else None

    def __iter__(self) -> Iterator[Tensor]:
        if self.kept is not None:
            yield from self.kept
        elif self.resident is not None:
            yield from map(self.normalise, self.resident.split(self.batch or 512))
        else:
            yield from self._made()

    def _made(self) -> Iterator[Tensor]:
        return in_order(self.images, self.normalise, self.device, self.batch)


def _to(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def _resident(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], device: torch.device) -> Tensor | None:
    """All pixels on the GPU, where they take less than a third of its free memory."""
    if device.type != "cuda" or pixels.nbytes > torch.cuda.mem_get_info(device)[0] / 3:
        return None
    return torch.from_numpy(np.array(pixels)).to(device)


def _masks(images: Images, augment: Augment) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """The masks of a split that has some, unless the augmentation is one for labels."""
    if images.masks is None:
        raise ValueError("data: must have masks of graders, as lidc and synthetic_graders have; got images without")
    if augment.cutmix:
        raise ValueError(f"data.augment.cutmix must be 0 for masks: it mixes classes; got {augment.cutmix}")
    return images.masks
