"""`vnd segment`: masks of images by a trained network, what they have in common and where they differ."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import rich
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.text import Text
from torch import Tensor
from torch.nn import functional as F

from vnd import metrics
from vnd._files import write_json
from vnd._text import check_range, command, one_line, say, table
from vnd.data.decode import LARGEST, Form, picture, probe
from vnd.evaluation import fed, find_network, open_run
from vnd.methods import Size, Sizes
from vnd.methods.segmenter import Drawer, Segmenter, class_probs, most_likely
from vnd.report import image_grids as drawn
from vnd.tasks import TrainedRun
from vnd.tasks.segmentation import THRESHOLD, drawn_masks, ready
from vnd.tasks.trained import BestOrLast, repeatable

MOST = 256  # masks of an image
TILE, THUMB = 512, 160  # pixels of the longer side of a mask in a grid and over its image; larger ones become smaller
KINDS = ("", "-samples", "-mean", "-classes", "-uncertainty")  # of pictures, by the ends of their names


def segment(
    run: Path,
    images: list[Path],
    num_mask_samples: int = 16,
    fraction: float = 1.0,
    resize: bool = True,
    checkpoint: BestOrLast | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Segment images by a trained run: masks that it draws, their mean, and a map of where they differ, as PNG files.

    Of each image, by its file's name and, where two are alike, by that of its folders: NAME.png with all of it side by
    side, NAME-samples.png with the masks, NAME-mean.png with the mean probability of a pixel, white for 1, and
    NAME-uncertainty.png with its entropy. Of several classes there is no NAME-mean.png, but NAME-classes.png: the class
    of the highest mean probability, a picture with a palette whose pixels hold its number. Images are brought to the
    size that the network was trained on, and masks back to theirs. segment.json has the numbers.

    Example: vnd segment runs/lungs scans/*.png --num_mask_samples 16 --fraction 0.33 --out masks

    Args:
        run: Folder of the run.
        images: PNG, JPEG or BMP files of any size.
        num_mask_samples: Masks to draw of each image.
        fraction: Share of the latent or of the width, in (0, 1], rounded up: 0.34 of a latent of 6 is 3.
        resize: Bring images to the size of training; false segments them as large as they are, which is right where
            what is seen has the same size in pixels as there.
        checkpoint: The network with the least validation distance, or the last; as the recipe says if not given.
        seed: Of the masks that are drawn.
        out: Folder of the pictures; RUN/segmented if not given.
    """
    check_range("segment: num_mask_samples", num_mask_samples, 1, MOST)
    check_range("segment: seed", seed, 0, 2**63 - 1)
    if not 0 < fraction <= 1:
        raise ValueError(f"segment: fraction must lie in (0, 1]; got {fraction}")
    recipe, checkpoint = find_network(run, checkpoint)
    if not isinstance(recipe.method, Segmenter):
        why = "which draws no masks; give a run of vnd_punet or of another method that segments"
        raise ValueError(f"segment: {run} was trained by {recipe.method_name}, {why}")
    folder = out or run / "segmented"
    shapes, names = _check(images, folder), names_of(images)
    opened = open_run(run, checkpoint)
    size = _size(opened, fraction)
    draw, (channels, *frame) = ready(opened, size, recipe.evaluate.bn_images), fed(run)[0]
    classes = _classes(run)
    folder.mkdir(parents=True, exist_ok=True)
    source = f"{run.resolve().name}: {recipe.method_name}, {size.label}, {checkpoint} network"
    rows, bar = list[dict[str, Any]](), Console(stderr=True)
    for path, (height, width) in track(list(shapes.items()), "segment", console=bar, transient=True):
        pixels = picture(path, Form(channels, height, width, luma=True))
        with repeatable(seed):
            logits = _draw(draw, opened, pixels, frame if resize else [height, width], num_mask_samples)
        named = _named(classes, logits.size(1))
        about = {"name": names[path], "image": str(path), "height": height, "width": width}
        rows.append(about | _measure(logits, named))
        _write(folder, names[path], pixels, logits, source, named)
    given = {
        "num_mask_samples": num_mask_samples,
        "fraction": fraction,
        "resize": resize,
        "checkpoint": checkpoint,
        "seed": seed,
        "out": out,
    }
    facts = {
        "command": command("vnd", "segment", run, *images, **given), "seed": seed, **opened.about(),
        "num_mask_samples": num_mask_samples, "size": size.label, "threshold": THRESHOLD,
        "measured_at": frame if resize else None,
        "images": rows,
    }  # fmt: skip
    write_json(folder / "segment.json", facts)
    shown = table(("image", "pixels", "foreground", "entropy", "diversity"), ["image"], ["image"], title=Text(source))
    for row in rows:
        apart = "–" if row["diversity"] is None else f"{row['diversity']:.3f}"
        numbers = f"{100 * row['foreground']:.2f} %", f"{row['entropy']:.4f}", apart
        shown.add_row(Text(row["name"]), f"{row['width']}×{row['height']}", *numbers)
    rich.print(shown)
    say(f"pictures: {folder.resolve()}\nnumbers:  {folder.resolve() / 'segment.json'}")


def names_of(images: list[Path]) -> dict[Path, str]:
    """Name each image by its file, or where two would be called alike, with folders before it.

    >>> names_of([Path("a/one.png"), Path("b/one.png")]).values()
    dict_values(['a-one', 'b-one'])
    """
    parts = {path: path.absolute().with_suffix("").parts for path in images}
    deepest = max(map(len, parts.values()))
    for depth in range(1, deepest):
        names = {path: "-".join(own[-depth:]) for path, own in parts.items()}
        if len(set(names.values())) == len(names):
            return names
    return {path: own[-1] for path, own in parts.items()}


def _check(images: list[Path], folder: Path) -> dict[Path, tuple[int, int]]:
    """Height and width of each image; refused before any work where one cannot be read or two write the same file."""
    forms = {path: probe(path) for path in images}
    for path, form in forms.items():
        if form.height * form.width > LARGEST:
            raise ValueError(f"{path}: must have at most {LARGEST} pixels; got {form.width}×{form.height}")
    written = Counter(f"{name}{kind}.png" for name in names_of(images).values() for kind in KINDS)
    name, times = written.most_common(1)[0]
    if times > 1:
        raise ValueError(
            f"segment: two images would be written to {folder / name}; give them in turn, with other --out"
        )
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"segment: --out must be a folder, and {folder} is a file; give another")
    given = {path.resolve() for path in forms}
    over = next((name for name in written if (folder / name).resolve() in given), None)
    if over is not None:
        raise ValueError(f"segment: {folder / over} is one of the images and would be written over; give another --out")
    return {path: (form.height, form.width) for path, form in forms.items()}


def _size(opened: TrainedRun, fraction: float) -> Size:
    """The size of a run's network that a fraction is."""
    recipe, run = opened.recipe, opened.folder
    size, *_ = opened.method.sizes(opened.model, Sizes((fraction,), leading=recipe.evaluate.sizes.leading))
    if size.fraction != fraction:
        how = f"as {recipe.method_name} was trained; leave out --fraction, got {fraction:g}"
        raise ValueError(f"segment: {run} has one size, {how}")
    return size


def _classes(run: Path) -> list[str]:
    """The names of the classes that a run's masks have; none where they have one foreground."""
    about = json.loads((run / "data.json").read_text(encoding="utf-8"))
    return [str(name) for name in about.get("classes", ())]


def _named(names: Sequence[str], count: int) -> list[str]:
    """Names of so many classes: those that are known, and numbers for others; none of one foreground."""
    return [] if count == 1 else [*names[:count], *map(str, range(len(names), count))]


@torch.no_grad()
def _draw(draw: Drawer, opened: TrainedRun, pixels: NDArray[np.uint8], frame: list[int], samples: int) -> Tensor:
    """Logits (samples, classes, height, width) of an image (channels, …) that is brought to a frame, on the CPU."""
    fitted = _resized(torch.from_numpy(pixels.copy()).float(), frame[0], frame[1]).round().clamp(0, 255)
    try:
        return draw(opened.normalise(fitted[None].to(opened.device)), samples)[:, 0].float().cpu()
    except RuntimeError as error:  # of a network that takes images of one size
        if tuple(frame) == fed(opened.folder)[0][1:]:
            raise
        size = f"{frame[1]}×{frame[0]}"
        raise ValueError(
            f"segment: the network fails on an image of {size}: {one_line(error)}; leave out --resize false"
        ) from None


def _measure(logits: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Share of foreground, mean entropy of pixels, and mean distance of masks of an image; shares of classes."""
    probs = class_probs(logits).mean(0)
    masks, count = drawn_masks(logits[:, None])
    marked, entropy = most_likely(probs), _entropy(probs)
    shares = {name: float((marked == label).double().mean()) for label, name in enumerate(classes)}
    return {
        "foreground": float((marked > 0).double().mean()),
        "entropy": float(entropy.mean()),
        "diversity": float(metrics.diversity(masks, count)[0]) if len(logits) > 1 else None,
        **({"shares": shares} if shares else {}),
    }


def _entropy(probs: Tensor) -> Tensor:
    """Entropy of each pixel (H, W), of mean probabilities (K, H, W)."""
    return metrics.pixel_entropy(probs[0]) if len(probs) == 1 else metrics.pixel_entropy(probs, dim=0)


def _write(
    folder: Path, name: str, pixels: NDArray[np.uint8], logits: Tensor, source: str, classes: Sequence[str]
) -> None:
    """The pictures of one image."""
    height, width = pixels.shape[1:]
    mean = _resized(class_probs(logits).mean(0), height, width).clamp(0, 1)
    mean = mean / mean.sum(0) if classes else mean
    entropy, likely = np.asarray(_entropy(mean)), np.asarray(most_likely(mean).byte())
    image, masks = _small(pixels, logits, TILE)
    thumb, small = _small(pixels, logits, THUMB)
    samples = [drawn.tinted(thumb, mask) for mask in small]
    several = f"{len(masks)} masks" if len(masks) > 1 else "one mask"
    of = "a pixel's mean probabilities" if classes else "a pixel's mean probability"
    about = f"{source}; {several}. The uncertainty is the entropy of {of}, in nats."
    middle = (
        drawn.tinted(image, _small(pixels, mean.log()[None], TILE)[1][0]) if classes else np.asarray(mean[0].double())
    )
    whole = drawn.overview(image, middle, entropy, samples, name, about, classes)
    contents = {
        "": drawn.png(whole, 144),
        "-samples": _png(drawn.grid(masks)),
        **(
            {"-classes": _png(likely, drawn.palette())}
            if classes
            else {"-mean": _png(np.asarray((255 * mean[0]).round().byte()))}
        ),
        "-uncertainty": drawn.png(drawn.uncertainty(entropy, f"{name}: uncertainty", max(2, len(classes))), 144),
    }
    for kind, content in contents.items():
        (folder / f"{name}{kind}.png").write_bytes(content)


def _small(pixels: NDArray[np.uint8], logits: Tensor, side: int) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """An image, (height, width) or (height, width, 3), and its masks, with a longer side of at most so many pixels."""
    height, width = pixels.shape[1:]
    scale = min(1.0, side / max(height, width))
    frame = max(1, round(height * scale)), max(1, round(width * scale))
    image = np.asarray(_resized(torch.from_numpy(pixels.copy()).float(), *frame).round().clamp(0, 255).byte())
    masks = np.asarray(drawn_masks(_resized(logits, *frame)[:, None])[0][0])
    return image[0] if len(image) == 1 else image.transpose(1, 2, 0), masks


def _resized(maps: Tensor, height: int, width: int) -> Tensor:
    """Maps (…, H, W) of another height and width: bilinear, antialiased where they become smaller."""
    if maps.shape[-2:] == (height, width):
        return maps
    flat = maps.reshape(1, -1, *maps.shape[-2:])
    found = F.interpolate(flat, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return found.reshape(*maps.shape[:-2], height, width)


def _png(pixels: NDArray[np.uint8], palette: bytes | None = None) -> bytes:
    from PIL import Image  # is there: it read the images

    buffer, picture = BytesIO(), Image.fromarray(pixels)
    if palette is not None:
        picture = picture.convert("P")
        picture.putdata(pixels.ravel().tolist())
        picture.putpalette(palette)
    picture.save(buffer, "PNG")
    return buffer.getvalue()
