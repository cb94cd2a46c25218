"""`vnd generate`: pictures of what a trained auto-encoder has learned, for codes of every length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from vnd._files import write_json
from vnd._text import check_range, command, say
from vnd.data.batches import in_order
from vnd.evaluation import find_network, open_run
from vnd.methods import AutoencoderMethod, Sizes
from vnd.methods.codes import DeterministicAutoencoder, LearnsLength, branching, masked, of_pixel, squared_error
from vnd.report import image_grids
from vnd.report.image_grids import Pixels, Row
from vnd.tasks import TrainedRun
from vnd.tasks.autoencoding import as_pixels
from vnd.tasks.trained import BestOrLast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARING, LEADING = 8, 8  # codes of growing length, and dimensions of traversals, at most
MOST, DEEPEST = 240, 6  # drawn codes and levels of a tree, at most
FARTHEST = 5  # deviations that the first dimension of a tree may be away
SIDE = 1.5  # deviations at both sides of 0 that a tree's dimensions take: far apart, and still likely
WAY = tuple(0.5 * step for step in range(-5, 6))  # deviations that a traversal goes through

SHARES = (0.25, 0.5, 0.75, 1.0)  # of the code, as in the paper
SHOWN, STUDIED, BATCH = 12, 1024, 256  # test images that are shown and looked at, at most; images decoded together

Picture = tuple["Figure", dict[str, Any]]  # and what it shows


def generate(
    run: Path,
    length: int | None = None,
    checkpoint: BestOrLast | None = None,
    out: Path | None = None,
    seed: int = 0,
    count: int = 24,
    depth: int = 3,
    first: float = 0.0,
) -> None:
    """Draw what a trained auto-encoder makes of codes: samples, reconstructions, growing codes, a tree, traversals.

    Each is a PNG file; generate.json says what they show. Lengths are 25, 50, 75 and 100 % of the code if none is
    given; samples are then shown at lengths of their own too, drawn like the codes, where these have a prior. Where a
    code has no order, its dimensions are taken by what they tell of the test images.

    Example: vnd generate runs/faces --length 32 --seed 1

    Args:
        run: Folder of the run.
        length: Dimensions of the codes of samples, reconstructions and traversals.
        checkpoint: The network with the least validation error, or the last; as the recipe says if not given.
        out: Folder of the pictures; RUN/generated if not given.
        seed: Of the codes that are drawn and of the test images that are shown.
        count: Codes in samples.png; of the other pictures those of images show at most 12, of growing codes 8.
        depth: Levels of the tree below its root.
        first: Value of the first dimension in the tree, in deviations; each later one has two.
    """
    recipe, _ = find_network(run, checkpoint)
    if not isinstance(recipe.method, AutoencoderMethod):
        why = "which learns no codes of images; give a run of vnd_ae or of another auto-encoder"
        raise ValueError(f"generate: {run} was trained by {recipe.method_name}, {why}")
    check_range("generate: count", count, 1, MOST)
    check_range("generate: depth", depth, 1, DEEPEST)
    check_range("generate: seed", seed, 0, 2**63 - 1)
    if not abs(first) <= FARTHEST:
        raise ValueError(f"generate: first must lie in {-FARTHEST} … {FARTHEST} deviations; got {first}")
    opened = open_run(run, checkpoint)
    size = recipe.method.dimensions(opened.model)
    check_range("generate: depth", depth, 1, min(DEEPEST, max(size - recipe.method.base, 3)))
    own, folder = latent_views(opened, length, seed, count), out or run / "generated"
    ways: dict[str, Callable[[LatentViews], Picture]] = {
        "samples": samples, "reconstructions": reconstructions, "growing": growing,
        "tree": partial(tree, depth=depth, first=first), "traversals": traversals,
    }  # fmt: skip
    if own.refusal:
        del ways["samples"], ways["growing"]
    drawn = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in track(ways.items(), "pictures", console=Console(stderr=True), transient=True):
        figure, drawn[name] = draw(own)
        (folder / f"{name}.png").write_bytes(image_grids.png(figure))
    given: dict[str, Any] = {
        "length": length,
        "checkpoint": checkpoint,
        "out": out,
        "seed": seed,
        "count": count,
        "depth": depth,
        "first": first,
    }
    facts = {"command": command("vnd", "generate", run, **given), "seed": seed, **opened.about()}
    facts["network"]["latent_dim"] = size
    facts |= {"lengths": list(own.lengths), "pictures": drawn, "not_drawn": own.refusal}
    write_json(folder / "generate.json", facts)
    said = [f"no samples.png and no growing.png: {own.refusal}"] if own.refusal else []
    said += [str(folder / name) for name in (*(f"{name}.png" for name in drawn), "generate.json")]
    say("\n".join(said))


@dataclass(frozen=True)
class LatentViews:
    """A trained auto-encoder, some test images with their codes, and codes drawn from its prior, all on its device."""

    opened: TrainedRun
    method: AutoencoderMethod
    lengths: tuple[int, ...]  # of the codes, in rising order
    order: Tensor  # the Gaussian dimensions, those that tell the most first
    worth: tuple[str, ...]  # what each tells, in the same order, as words; empty ones for an ordered code
    numbers: list[int]  # of the test images that are shown
    images: Tensor  # these, (n, channels, height, width), between −1 and 1
    codes: Tensor  # their most likely codes, (n, dimensions)
    own_lengths: Tensor | None  # how long each of these is, for a method that says so
    center: Tensor  # where each Gaussian dimension lies: 0 under a normal prior, else the mean over the test images
    spread: Tensor  # its deviation
    drawn: Tensor | None  # codes of the prior, (count, dimensions); None where there is a refusal
    stops: Tensor | None  # how long each of them is, drawn too, (count,); where lengths have a prior and none was given
    refusal: str | None  # why nothing can be drawn

    @property
    def size(self) -> int:
        """Dimensions of a code, those of a category included."""
        return self.codes.size(1)

    def shortened(self, codes: Tensor, length: int) -> Tensor:
        """Codes whose Gaussian dimensions beyond the leading ones are zeros: short codes, as the decoder reads them."""
        kept = codes.clone()
        kept[:, self.order[length:]] = 0
        return kept

    @torch.no_grad()
    def decoded(self, codes: Tensor) -> Tensor:
        """Images between −1 and 1."""
        return torch.cat([self.method.decode(self.opened.model, part) for part in codes.split(BATCH)])

    def to_uint8(self, codes: Tensor) -> Pixels:
        """Decoded images as bytes."""
        return to_uint8(self.decoded(codes))

    def branches(self, depth: int, first: float, side: float) -> list[Tensor]:
        """The codes of a tree, see `branching`, in deviations; a category is that of the first image."""
        levels = []
        for values in branching(depth, self.method.base, first, side):
            codes, chosen = self.shortened(self.codes[:1], 0).repeat(len(values), 1), self.order[: values.size(1)]
            placed = self.center[chosen] + values.to(codes) * self.spread[chosen]
            codes[:, chosen] = held(placed)
            levels.append(codes)
        return levels

    def moved(self, code: Tensor, dimension: int, steps: Sequence[float]) -> Tensor:
        """A code, (1, dimensions), with one Gaussian dimension at each of some deviations, and kept at 0 too."""
        codes = code.repeat(len(steps), 1)
        along = torch.tensor(steps, dtype=code.dtype, device=code.device)
        codes[:, dimension] = held(self.center[dimension] + along * self.spread[dimension])
        return codes


def held(values: Tensor) -> Tensor:
    """Values of dimensions that are kept: in the place of 0, which would end a code, a tiny number."""
    return values.where(values != 0, torch.finfo(values.dtype).tiny)


def to_uint8(images: Tensor) -> Pixels:
    """Images between −1 and 1 as bytes."""
    return np.asarray(as_pixels(images.float()).cpu())


@torch.no_grad()
def latent_views(opened: TrainedRun, length: int | None, seed: int, count: int) -> LatentViews:
    """Look at some of a run's test images, and draw `count` codes; the seed decides which."""
    method, name = opened.method, opened.recipe.method_name
    assert isinstance(method, AutoencoderMethod)
    size = method.dimensions(opened.model)
    sizes = method.sizes(opened.model, Sizes(fractions=SHARES))
    lengths = tuple(method.length(opened.model, one) for one in sizes)
    if length is not None:
        if not method.ordered and length != size:
            raise ValueError(f"generate: codes of {name} have no order and one length, {size}; got --length {length}")
        check_range("generate: length", length, method.base, size)
        lengths = (length,)
    test = opened.test()
    numbers = np.random.default_rng(seed).permutation(len(test))[:STUDIED]
    batches = list(in_order(test.take(numbers), opened.normalise, opened.device))
    seen = [method.encode(opened.model, x) for x in batches]
    loc, cost = torch.cat([code.loc for code in seen]), torch.cat([code.cost for code in seen])
    own = torch.cat([method.lengths(code) for code in seen]) if isinstance(method, LearnsLength) else None
    order, worth = _order(method, loc, cost)
    drawn, stops, refusal = _draw(opened, method, count, size, seed)
    center, spread = torch.zeros_like(loc[0]), torch.ones_like(loc[0])
    if drawn is None:  # no prior says where codes lie
        center, spread = loc.mean(0), loc.std(0, correction=0)
    shown = min(count, SHOWN)
    return LatentViews(
        opened, method, lengths, order, worth, numbers[:shown].tolist(), torch.cat(batches)[:shown],
        torch.cat([method.point(code) for code in seen])[:shown], None if own is None else own[:shown],
        center, spread, drawn, stops if length is None else None, refusal,
    )  # fmt: skip


def _order(method: AutoencoderMethod, loc: Tensor, cost: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """The Gaussian dimensions, those that tell the most first, and what each tells: nats, or how much codes differ."""
    if method.ordered:
        return torch.arange(loc.size(1), device=loc.device), ("",) * loc.size(1)
    certain = isinstance(method, DeterministicAutoencoder)  # its codes have no price
    told = loc.std(0, correction=0) if certain else cost.mean(0)
    best, order = told.sort(descending=True, stable=True)
    return order, tuple(f"deviation {value:.2f}" if certain else f"{value:.2f} nats" for value in best.tolist())


def _draw(
    opened: TrainedRun, method: AutoencoderMethod, count: int, size: int, seed: int
) -> tuple[Tensor | None, Tensor | None, str | None]:
    """Codes of the prior, which the seed alone decides, and lengths if these have one too; or why there are none."""
    with torch.random.fork_rng([opened.device] if opened.device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            codes = method.draw(opened.model, count, size)
        except ValueError as error:
            return None, None, str(error)
        return codes, method.draw_lengths(codes) if isinstance(method, LearnsLength) else None, None


def samples(own: LatentViews) -> Picture:
    """Images of drawn codes, a grid a length."""
    assert own.drawn is not None
    shown = [Row(_dimensions(own, n), own.to_uint8(own.shortened(own.drawn, n))) for n in own.lengths]
    several = " The same codes at every length, cut off: one below the other." if len(shown) > 1 else ""
    said: dict[str, Any] = {"lengths": list(own.lengths), "count": len(own.drawn)}
    if own.stops is not None:
        said["drawn_lengths"] = own.stops.tolist()
        captions = [f"length {length}" for length in said["drawn_lengths"]]
        shown.append(Row("drawn lengths", own.to_uint8(masked(own.drawn, own.stops)), captions=captions))
    about = f"{_source(own)}. Codes are drawn from the prior.{several}"
    return image_grids.rows(shown, "Samples", about), said


def reconstructions(own: LatentViews) -> Picture:
    """Test images, and what is left of them at each length."""
    codes, images, lengths = own.codes, own.images, own.own_lengths
    wanted: list[tuple[str, Any, Any, list[str]]]
    wanted = [(_dimensions(own, n), n, own.shortened(codes, n), []) for n in own.lengths]
    if lengths is not None:
        captions = [f"length {length}" for length in lengths.tolist()]
        wanted.append(("own lengths", lengths.tolist(), masked(codes, lengths), captions))
    shown, said = [Row("test images", to_uint8(images))], []
    for label, length, kept, captions in wanted:
        decoded = own.decoded(kept)
        error = of_pixel(float(squared_error(images, decoded).mean()), images[0].numel())
        shown.append(Row(label, to_uint8(decoded), f"error {error:.4f}", captions))
        said.append({"length": length, "mse": error})
    about = f"{_source(own)}. The error is the mean squared error of a pixel between 0 and 1, of the row's images."
    return image_grids.rows(shown, "Reconstructions", about), {"images": own.numbers, "rows": said}


def growing(own: LatentViews) -> Picture:
    """Codes that grow, a row a code."""
    assert own.drawn is not None
    lengths, codes = growing_lengths(len(own.order), own.method.base), own.drawn[:SHARING]
    columns = np.stack([own.to_uint8(own.shortened(codes, length)) for length in lengths], 1)
    shown = [Row(f"code {number + 1}", images) for number, images in enumerate(columns)]
    about = (
        f"{_source(own)}. Each row shares one code drawn from the prior: so many of its dimensions are kept, "
        f"{_leading(own)}, and the others are zeros.{_category(own)}"
    )
    figure = image_grids.rows(shown, "Codes of growing length", about, list(map(str, lengths)), "dimensions")
    return figure, {"lengths": lengths, "codes": len(codes)}


def growing_lengths(size: int, base: int = 1) -> list[int]:
    """Every length of a short code; of a long one its base, the powers of two and all of it.

    >>> growing_lengths(4), growing_lengths(128, 3)
    ([1, 2, 3, 4], [3, 4, 8, 16, 32, 64, 128])
    """
    if size <= 8:
        return list(range(min(base, size), size + 1))
    doubled = [2**power for power in range(size.bit_length()) if base < 2**power < size]
    return sorted({min(base, size), *doubled, size})


def tree(own: LatentViews, depth: int, first: float = 0.0) -> Picture:
    """One value of the first dimension, two of each later one. Paper: Sec. 4.1, the figure of its tree."""
    base = own.method.base
    depth = min(depth, len(own.order) - base)
    levels = [own.to_uint8(codes) for codes in own.branches(depth, first, SIDE)]
    trunk = "The first dimension has" if base == 1 else f"The first {base} dimensions have"
    about = (
        f"{_source(own)}. {trunk} one value, each later one has two: a level has one dimension more, {_leading(own)}; "
        f"the others are zeros. The blocks over an image are its code.{_category(own)}{_deviations(own)}"
    )
    words = (("first", first), ("left", -SIDE), ("right", SIDE))
    only, *values = (f"{word}: {_signed(value)}{_units(own)}" for word, value in words)
    dimensions = (own.order[: base + depth] + 1).tolist()
    said = {"depth": depth, "first": first, "values": [-SIDE, SIDE], "dimensions": dimensions}
    figure = image_grids.tree(levels, "Tree of codes", about, (values[0], values[1]), trunk=base, only=only)
    return figure, said


def traversals(own: LatentViews) -> Picture:
    """One dimension of a test image's code at a time, from one end of the prior to the other."""
    length = min(own.lengths[-1], len(own.order))
    code, chosen = own.shortened(own.codes[:1], length), own.order[: min(LEADING, length)].tolist()
    shown = []
    for dimension, worth in zip(chosen, own.worth, strict=False):
        value = (code[0, dimension] - own.center[dimension]) / own.spread[dimension].clamp(min=1e-12)
        note = f"{worth}, own {_signed(float(value))}" if worth else f"own value {_signed(float(value))}"
        shown.append(Row(f"dimension {dimension + 1}", own.to_uint8(own.moved(code, dimension, WAY)), note))
    pair = np.concatenate([to_uint8(own.images[:1]), own.to_uint8(code)])
    first = Row("one test image", pair, captions=("image", "decoded"))
    about = (
        f"{_source(own)}. The code of one test image, {_dimensions(own, own.lengths[-1])}; in each row one of them "
        f"goes from {_signed(WAY[0])} to {_signed(WAY[-1])}{_units(own)}, {_leading(own)}.{_deviations(own)}"
    )
    heads = [_signed(value) for value in WAY]
    said = {
        "image": own.numbers[0], "length": own.lengths[-1], "dimensions": [one + 1 for one in chosen],
        "values": list(WAY),
    }  # fmt: skip
    return image_grids.rows(shown, "Traversals", about, heads, "value", first=first), said


def _dimensions(own: LatentViews, length: int) -> str:
    return f"{length} of {own.size} dimensions"


def _leading(own: LatentViews) -> str:
    return "in their order" if own.method.ordered else "those that tell the most of the test images first"


def _units(own: LatentViews) -> str:
    """Unit of the values of codes where no prior has one."""
    return " deviations" if own.drawn is None else ""


def _deviations(own: LatentViews) -> str:
    return " Deviations are those of the test images' codes from their mean." if own.drawn is None else ""


def _category(own: LatentViews) -> str:
    return "" if len(own.order) == own.size else " The category stays."


def _source(own: LatentViews) -> str:
    recipe, name = own.opened.recipe, own.opened.folder.resolve().name
    return f"{name}: {recipe.method_name} on {recipe.data.name}, {own.opened.checkpoint} network"


def _signed(value: float) -> str:
    """A number with the signs that printers use.

    >>> _signed(-1.5), _signed(0.01), _signed(2.0)
    ('−1.5', '0', '+2')
    """
    return f"{value:+.1f}".removesuffix(".0").replace("-", "−") if abs(value) >= 0.05 else "0"
