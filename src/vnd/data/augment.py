"""Augmentation of whole batches, on the device that they are on: pad and crop, flip, rotate."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Augment:
    """Random changes of training images; by default none.

    Args:
        pad: Black pixels put around an image before a crop of its own size is cut at random.
        flip: Mirror every second image, at random.
        rotation: Largest angle in degrees, to either side; corners become black.
    """

    pad: int = 0
    flip: bool = False
    rotation: float = 0.0

    def __post_init__(self) -> None:
        if self.pad < 0:
            raise ValueError(f"pad must be 0 or more; got {self.pad}")
        if not 0 <= self.rotation <= 180:
            raise ValueError(f"rotation must lie in [0, 180] degrees; got {self.rotation}")


@dataclass(frozen=True)
class Draw:
    """What is done to each image: offset (batch, 2) of its crop, whether it is mirrored, its angle in degrees."""

    offset: Tensor
    mirrored: Tensor
    angle: Tensor

    def share(self, part: slice) -> "Draw":
        """The draws of some of the images."""
        return Draw(self.offset[part], self.mirrored[part], self.angle[part])


def draw(augment: Augment, batch: int, generator: torch.Generator) -> Draw:
    """Draw on the CPU, so that a seed means the same on every device; all three, whatever is asked for."""
    offset = torch.randint(2 * augment.pad + 1, (batch, 2), generator=generator)
    mirrored = (torch.rand(batch, generator=generator) < 0.5) & augment.flip
    angle = (2 * torch.rand(batch, generator=generator) - 1) * augment.rotation
    return Draw(offset, mirrored, angle)


def apply(augment: Augment, images: Tensor, drawn: Draw) -> Tensor:
    r"""Augment a batch, (batch, channels, height, width), uint8 or floating; float32 if it is rotated.

    Crop and mirror are one gather: pixel (r, c) comes from row $o_r + r$ and column $o_c + c$, or
    $o_c + W - 1 - c$ where mirrored, of the padded image.

    >>> images = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> still = Draw(torch.tensor([[1, 1]]), torch.tensor([True]), torch.zeros(1))
    >>> apply(Augment(pad=1, flip=True), images, still).flatten().tolist()
    [1, 0, 3, 2]
    """
    if augment.pad or augment.flip:
        images = _crop(images, augment.pad, drawn)
    return _rotate(images, drawn.angle) if augment.rotation else images


def _crop(images: Tensor, pad: int, drawn: Draw) -> Tensor:
    batch, channels, height, width = images.shape
    device = images.device
    padded = F.pad(images, (pad, pad, pad, pad)) if pad else images
    offset = drawn.offset.to(device, non_blocking=True)
    columns = torch.arange(width, device=device).expand(batch, width)
    columns = torch.where(drawn.mirrored.to(device, non_blocking=True)[:, None], columns.flip(1), columns)
    rows = offset[:, :1] + torch.arange(height, device=device)
    places = rows[:, :, None] * padded.size(3) + (offset[:, 1:] + columns)[:, None, :]
    flat = padded.flatten(2)
    return flat.gather(2, places.view(batch, 1, -1).expand(batch, channels, -1)).view(images.shape)


def _rotate(images: Tensor, angle: Tensor) -> Tensor:
    turn = torch.deg2rad(angle).to(images.device, non_blocking=True)
    cosine, sine, zero = turn.cos(), turn.sin(), torch.zeros_like(turn)
    ratio = images.size(3) / images.size(2)  # the grid is in shares of width and height
    matrix = torch.stack((cosine, -sine / ratio, zero, sine * ratio, cosine, zero), 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, align_corners=False)
