"""Augmentation of whole batches, on the device that they are on: pad and crop, flip, turn, rotate, cut out, mix."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

Padding = Literal["black", "reflect"]
GREY = 128  # of 255: near the mean of photographs; that of the data is not known here


@dataclass(frozen=True)
class Augment:
    """Random changes of training images; by default none.

    Args:
        pad: Pixels put around an image before a crop of its own size is cut at random.
        flip: Mirror every second image, at random.
        rotation: Largest angle in degrees, to either side; corners become black, and pixels are interpolated.
        padding: What is put around it: "black", or "reflect" for its own mirror image about the outermost pixels.
        cutout: Side in pixels of a grey square laid over every image, its centre anywhere in it; what lies beyond the
            edges is cut off (DeVries and Taylor, 2017). Grey is 128 of 255.
        cutout_share: Share of the images that get a square, at random.
        cutmix: Share of the images that get a box of another image of the batch, at random: its share of the area is
            uniform, its centre anywhere, what lies beyond the edges is cut off, and labels are mixed as pixels are
            (Yun et al., 2019).
        turn: Turn every image by 0, 90, 180 or 270 degrees, at random: no pixel is lost or blurred. Squares only.
    """

    pad: int = 0
    flip: bool = False
    rotation: float = 0.0
    padding: Padding = "black"
    cutout: int = 0
    cutout_share: float = 1.0
    cutmix: float = 0.0
    turn: bool = False

    def __post_init__(self) -> None:
        for name in ("pad", "cutout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more; got {getattr(self, name)}")
        for name, high in (("rotation", 180), ("cutout_share", 1), ("cutmix", 1)):
            if not 0 <= getattr(self, name) <= high:
                raise ValueError(f"{name} must lie in [0, {high}]; got {getattr(self, name)}")
        if self.padding not in get_args(Padding):
            raise ValueError(f"padding must be {' or '.join(get_args(Padding))}; got {self.padding!r}")


@dataclass(frozen=True)
class Draw:
    """Random changes of a batch: offset (batch, 2) of each crop, whether it is mirrored, its angle in degrees.

    Centres (batch, 2) of squares are shares of height and width, boxes (batch, 3) centres and sides, the side 0 for an
    image that gets none, turns (batch,) numbers of right angles; None for what is not asked for.
    """

    offset: Tensor
    mirrored: Tensor
    angle: Tensor
    centre: Tensor | None = None
    covered: Tensor | None = None
    box: Tensor | None = None
    turns: Tensor | None = None

    def share(self, part: slice | Tensor) -> "Draw":
        """The draws of some of the images."""
        some = (None if x is None else x[part] for x in (self.centre, self.covered, self.box, self.turns))
        return Draw(self.offset[part], self.mirrored[part], self.angle[part], *some)


def draw(augment: Augment, batch: int, generator: torch.Generator) -> Draw:
    """Draw on the CPU, so that a seed means the same on every device.

    Crop, mirror and angle come first, whatever is asked for: no option changes the draws of another one.
    """
    offset = torch.randint(2 * augment.pad + 1, (batch, 2), generator=generator)
    mirrored = (torch.rand(batch, generator=generator) < 0.5) & augment.flip
    angle = (2 * torch.rand(batch, generator=generator) - 1) * augment.rotation
    centre = covered = box = None
    if augment.cutout:
        centre = torch.rand(batch, 2, generator=generator)
        covered = torch.rand(batch, generator=generator) < augment.cutout_share
    if augment.cutmix:
        box = torch.rand(batch, 3, generator=generator)
        box[:, 2] = box[:, 2].sqrt() * (torch.rand(batch, generator=generator) < augment.cutmix)
    turns = torch.randint(4, (batch,), generator=generator) if augment.turn else None
    return Draw(offset, mirrored, angle, centre, covered, box, turns)


def apply(augment: Augment, images: Tensor, changes: Draw) -> Tensor:
    r"""Augment a batch, (batch, channels, height, width), uint8 or floating, of pixels between 0 and 255.

    The type stays, but for float32 where images are rotated.

    Crop and mirror are one gather: pixel (r, c) comes from row $o_r + r$ and column $o_c + c$, or
    $o_c + W - 1 - c$ where mirrored, of the padded image. A square of side s with its centre in row m covers s rows
    from $m - \lfloor s/2 \rfloor$ on, columns alike; it comes last, and is upright whatever the angle.

    >>> images = torch.arange(4, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> still = Draw(torch.tensor([[1, 1]]), torch.tensor([True]), torch.zeros(1))
    >>> apply(Augment(pad=1, flip=True), images, still).flatten().tolist()
    [1, 0, 3, 2]
    """
    images = _move(augment, images, changes, "bilinear")
    return _cover(images, augment.cutout, changes) if augment.cutout else images


def apply_to_masks(augment: Augment, masks: Tensor, changes: Draw) -> Tensor:
    r"""Crop, mirror, turn and rotate masks (batch, height, width), 0 and 1 or classes, as `apply` does their images.

    They stay such numbers, of the same type: a rotated pixel is the nearest one. What comes from beyond the edges is
    0, or the mirror image, as in the images. A square that covers pixels covers no mask: what lies below is still to be
    marked.

    >>> masks = torch.tensor([[[0, 1], [0, 0]]])
    >>> mirror = Draw(torch.zeros(1, 2, dtype=torch.int64), torch.tensor([True]), torch.zeros(1))
    >>> apply_to_masks(Augment(flip=True), masks, mirror).flatten().tolist()
    [1, 0, 0, 0]
    """
    return _move(augment, masks[:, None], changes, "nearest").to(masks.dtype)[:, 0]


def mix(images: Tensor, others: Tensor, changes: Draw) -> tuple[Tensor, Tensor]:
    """Lay boxes of other images, cut at the same place, over images; and the share of each that they take, (batch,).

    >>> images, changes = torch.zeros(1, 1, 4, 4), draw(Augment(cutmix=1.0), 1, torch.Generator().manual_seed(0))
    >>> mixed, share = mix(images, images + 1, changes)
    >>> float(share) == float(mixed.mean())
    True
    """
    if changes.box is None:
        raise ValueError("mix: no boxes were drawn; draw with cutmix above 0")
    box, (height, width) = changes.box.to(images.device, non_blocking=True), images.shape[2:]
    rows, columns = (
        _within(box[:, axis], size, (box[:, 2:] * size).round().long()) for axis, size in ((0, height), (1, width))
    )
    inside = rows[:, :, None] & columns[:, None, :]
    return torch.where(inside[:, None], others, images), inside.float().mean((1, 2))


def _move(augment: Augment, images: Tensor, changes: Draw, mode: Literal["bilinear", "nearest"]) -> Tensor:
    """Crop, mirror, turn and rotate, as far as that is asked for."""
    if augment.pad or augment.flip:
        images = _crop(images, augment.pad, augment.padding, changes)
    if augment.turn:
        images = _turn(images, changes)
    return _rotate(images, changes.angle, mode) if augment.rotation else images


def _crop(images: Tensor, pad: int, padding: Padding, changes: Draw) -> Tensor:
    batch, channels, height, width = images.shape
    device = images.device
    padded = F.pad(images, (pad, pad, pad, pad)) if pad and padding == "black" else images
    offset = changes.offset.to(device, non_blocking=True)
    columns = torch.arange(width, device=device).expand(batch, width)
    columns = torch.where(changes.mirrored.to(device, non_blocking=True)[:, None], columns.flip(1), columns)
    rows, columns = offset[:, :1] + torch.arange(height, device=device), offset[:, 1:] + columns
    if pad and padding == "reflect":  # by place: torch pads no uint8 by reflection, and nothing is copied
        rows, columns = _reflected(rows - pad, height), _reflected(columns - pad, width)
    places = rows[:, :, None] * padded.size(3) + columns[:, None, :]
    flat = padded.flatten(2)
    return flat.gather(2, places.view(batch, 1, -1).expand(batch, channels, -1)).view(images.shape)


def _reflected(place: Tensor, size: int) -> Tensor:
    """The place within 0 … size - 1 that a place outside shows: back and forth, as often as need be."""
    period = max(2 * (size - 1), 1)
    place = place.remainder(period)
    return torch.minimum(place, period - place)


def _turn(images: Tensor, changes: Draw) -> Tensor:
    """Turn images as `torch.rot90` does: mirrored about the diagonal or not, then upside down or not, then sideways."""
    if changes.turns is None:
        raise ValueError("apply: turn is set, and no turns were drawn; draw with the same options")
    if images.size(2) != images.size(3):
        raise ValueError(f"augment.turn is for square images; got {images.size(2)}×{images.size(3)}")
    turns = changes.turns.to(images.device, non_blocking=True).view(-1, 1, 1, 1)
    images = torch.where(turns % 2 == 1, images.transpose(2, 3), images)
    images = torch.where((turns == 1) | (turns == 2), images.flip(2), images)
    return torch.where(turns >= 2, images.flip(3), images)


def _rotate(images: Tensor, angle: Tensor, mode: Literal["bilinear", "nearest"]) -> Tensor:
    turn = torch.deg2rad(angle).to(images.device, non_blocking=True)
    cosine, sine, zero = turn.cos(), turn.sin(), torch.zeros_like(turn)
    ratio = images.size(3) / images.size(2)  # the grid is in shares of width and height
    matrix = torch.stack((cosine, -sine / ratio, zero, sine * ratio, cosine, zero), 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images.float(), grid, mode=mode, align_corners=False)


def _cover(images: Tensor, side: int, changes: Draw) -> Tensor:
    if changes.centre is None or changes.covered is None:
        raise ValueError(f"apply: cutout is {side}, and no squares were drawn; draw with the same options")
    device = images.device
    centre = changes.centre.to(device, non_blocking=True)
    rows, columns = (_within(centre[:, axis], images.size(2 + axis), side) for axis in (0, 1))
    rows = rows & changes.covered.to(device, non_blocking=True)[:, None]
    return torch.where(rows[:, None, :, None] & columns[:, None, None, :], GREY, images)


def _within(centre: Tensor, size: int, side: int | Tensor) -> Tensor:
    """Rows, of so many, that a square takes, (batch, size), by its centre as a share; side may be (batch, 1)."""
    first = (centre * size).long()[:, None] - side // 2
    place = torch.arange(size, device=centre.device)
    return (place >= first) & (place < first + side)
