"""`vnd generate`: pictures of what a trained auto-encoder has learned, for codes of every length."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import track

from vnd._files import write_json
from vnd.cli.latent_views import LatentViews, coder, scene, to_uint8
from vnd.cli.output import check_range, command, say
from vnd.evaluation import find_network, open_run
from vnd.methods import AutoencoderMethod
from vnd.methods.codes import masked, of_pixel, squared_error
from vnd.report import image_grids
from vnd.report.image_grids import Row
from vnd.tasks.trained import BestOrLast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARING, LEADING = 8, 8  # codes of growing length, and dimensions of traversals, at most
MOST, DEEPEST = 240, 6  # drawn codes and levels of a tree, at most
SIDE = 1.5  # deviations at both sides of 0 that a tree's dimensions take: far apart, and still likely
WAY = tuple(0.5 * step for step in range(-5, 6))  # deviations that a traversal goes through

Picture = tuple["Figure", dict[str, Any]]  # and what it shows


def generate(
    run: Path,
    length: int | None = None,
    checkpoint: BestOrLast | None = None,
    out: Path | None = None,
    seed: int = 0,
    count: int = 24,
    depth: int = 4,
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
    """
    recipe, _ = find_network(run, checkpoint)
    if not isinstance(recipe.method, AutoencoderMethod):
        why = "which learns no codes of images; give a run of vnd_ae or of another auto-encoder"
        raise ValueError(f"generate: {run} was trained by {recipe.method_name}, {why}")
    size = recipe.network.config["latent_dim"]
    check_range("generate: count", count, 1, MOST)
    check_range("generate: depth", depth, 1, min(DEEPEST, max(size, 4)))
    check_range("generate: seed", seed, 0, 2**63 - 1)
    opened = open_run(run, checkpoint)
    own, folder = scene(opened, length, seed, count), out or run / "generated"
    ways: dict[str, Callable[[LatentViews], Picture]] = {
        "samples": samples, "reconstructions": reconstructions, "growing": growing,
        "tree": partial(tree, depth=depth), "traversals": traversals,
    }  # fmt: skip
    if own.refusal:
        del ways["samples"], ways["growing"]
    drawn = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in track(ways.items(), "pictures", console=Console(stderr=True), transient=True):
        figure, drawn[name] = draw(own)
        (folder / f"{name}.png").write_bytes(image_grids.png(figure))
    given = {"length": length, "checkpoint": checkpoint, "out": out, "seed": seed, "count": count, "depth": depth}
    manifest = json.loads((run / opened.checkpoint / "network.json").read_text(encoding="utf-8"))
    facts = {
        "command": command("vnd", "generate", run, **given), "seed": seed, "method": recipe.method_name,
        "data": recipe.data.name, "checkpoint": opened.checkpoint,
        "network": {"name": recipe.network.name, "latent_dim": size, "checksum": manifest["checksum"]},
        "lengths": list(own.lengths), "pictures": drawn, "not_drawn": own.refusal,
    }  # fmt: skip
    write_json(folder / "generate.json", facts)
    said = [f"no samples.png and no growing.png: {own.refusal}"] if own.refusal else []
    said += [str(folder / name) for name in (*(f"{name}.png" for name in drawn), "generate.json")]
    say("\n".join(said))


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
    lengths, codes = growing_lengths(len(own.order), coder(own.opened).base), own.drawn[:SHARING]
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


def tree(own: LatentViews, depth: int) -> Picture:
    """Two values a dimension, each level with a dimension more. Paper: Sec. 4.1, the figure of its tree."""
    depth = min(depth, len(own.order))
    levels = [own.to_uint8(codes) for codes in own.branches(depth, SIDE)]
    about = (
        f"{_source(own)}. Each level gives one more dimension one of two values, {_leading(own)}; the others are "
        f"zeros. The blocks over an image are its code.{_category(own)}{_deviations(own)}"
    )
    values = (f"left: {_signed(-SIDE)}{_units(own)}", f"right: {_signed(SIDE)}{_units(own)}")
    said = {"depth": depth, "values": [-SIDE, SIDE], "dimensions": (own.order[:depth] + 1).tolist()}
    return image_grids.tree(levels, "Tree of codes", about, values), said


def traversals(own: LatentViews) -> Picture:
    """One dimension of a test image's code at a time, from one end of the prior to the other."""
    length = min(own.lengths[-1], len(own.order))
    code, chosen = own.shortened(own.codes[:1], length), own.order[: min(LEADING, length)].tolist()
    shown = []
    for dimension, worth in zip(chosen, own.worth, strict=False):
        value = (code[0, dimension] - own.centre[dimension]) / own.spread[dimension].clamp(min=1e-12)
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
    return "in their order" if own.ordered else "those that tell the most of the test images first"


def _units(own: LatentViews) -> str:
    """What values are counted in, where no prior says it."""
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
