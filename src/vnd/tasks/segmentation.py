r"""Segmentation: masks that a network draws at every size, held against those of several graders."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from vnd import metrics
from vnd.data.batches import Normalise, in_order
from vnd.data.images import Images
from vnd.methods import METHODS, OrderedSegmenter, Size
from vnd.methods.base import refuse_unless
from vnd.methods.codes import length_of
from vnd.methods.nested import Nested
from vnd.methods.segmenter import Drawer, Segmenter, class_probs, graders_of, most_likely
from vnd.nn import Prediction
from vnd.nn.arguments import describe_value
from vnd.nn.state import unwrap
from vnd.tasks.base import COSTS, PERCENT, SHAPED, Evaluation, Reading, Scores, Task, register, rows_table
from vnd.tasks.classification import LEFT_OUT, check_labels, is_binary
from vnd.tasks.trained import TrainedRun, named_groups, repeatable

THRESHOLD = 0.5  # probability from which on a pixel is foreground
PIXELS = 2**20  # of the images that are drawn for together: 64 of 128×128
DIGITS = 5  # of a number of one image
VALIDATED = 4  # samples of an image in validation

Done = Callable[[int], None]  # called with a number of images that were worked on
Truth = tuple[Tensor, Tensor]  # masks (images, kinds, height, width), and how likely each is, (images, kinds)


@dataclass(frozen=True)
class SegmentationEvaluation(Evaluation):
    """Options of the evaluation of a network that segments.

    Args:
        num_mask_samples: Numbers of masks that are drawn for an image and held against its graders', from few to many.
        bins: Of the calibration error.
    """

    num_mask_samples: tuple[int, ...] = (1, 4, 8, 16)
    bins: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = list(self.num_mask_samples)
        rises = counts and counts[0] >= 1 and counts == sorted(set(counts))
        refuse_unless(bool(rises), "num_mask_samples", "be numbers of masks that rise from 1 or more", counts)
        refuse_unless(self.bins >= 1, "bins", "be at least 1", self.bins)


def groups_of(images: Images) -> list[str] | list[int] | None:
    """Group of each image, by name where they have names, else by number; None where none is known."""
    return None if images.groups is None else named_groups(images, images.groups)


def ready(run: TrainedRun, size: Size, bn_images: int) -> Drawer:
    """Function that draws masks of a size, its statistics collected as if it were the only one."""
    run.recalibrate(size, samples=True, bn_images=bn_images)
    draw: Drawer = _method_of(run).drawer(run.model, size)
    return draw


def _method_of(run: TrainedRun) -> Any:
    """The method of a run, a `Segmenter`."""
    if not isinstance(run.method, Segmenter):
        kind = type(run.method).__name__
        raise ValueError(f"evaluate: the method must be one that segments, a Segmenter; got a {kind}")
    return run.method


def masks_of(images: Images) -> Any:
    """The masks of images, (images, graders, H, W); refused where they have none."""
    if images.masks is None:
        raise ValueError("evaluate: the images have no masks to be held against; give a set that has")
    return images.masks


@dataclass(frozen=True)
class Graders:
    """Masks of the graders of a batch (B, graders, H, W), of which the first so many, (B,), are there.

    Args:
        masks: 0 and 1, or numbers of classes.
        counts: Graders of each image.
    """

    masks: Tensor
    counts: Tensor

    @classmethod
    def of(cls, masks: Tensor | Sequence[Tensor]) -> Graders:
        """Those of a batch as `OrderedSegmenter.loss` takes them: (B, H, W), (B, graders, H, W), or a list of these."""
        own = graders_of(masks)
        most = max(map(len, own))
        padded = torch.stack([F.pad(mask, (0, 0, 0, 0, 0, most - len(mask))) for mask in own])
        return cls(padded, torch.tensor([len(mask) for mask in own]))

    def alike(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Places of images that have equally many graders, and their masks."""
        for count in self.counts.unique().tolist():
            where = (self.counts == count).nonzero().squeeze(1)
            yield where, self.masks[where.to(self.masks.device), :count]


def mask_classes(images: Images) -> tuple[str, ...]:
    """Names of the classes that pixels of masks are of; none of one foreground."""
    return images.classes if images.labels is None else ()


def graded(images: Images, normalise: Normalise, device: torch.device) -> Iterator[tuple[Tensor, Graders]]:
    """A split in its order, (B, channels, H, W), with the masks of all graders."""
    given = masks_of(images)
    batch = max(1, min(PIXELS // math.prod(images.pixels.shape[2:]), 128 if device.type == "cpu" else 512))
    counts = torch.from_numpy(images.grader_counts)
    for number, x in enumerate(in_order(images, normalise, device, batch)):
        some = slice(number * batch, number * batch + len(x))
        yield x, Graders(torch.from_numpy(given[some].copy()).to(device), counts[some])


def in_place(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Numbers of images, one each, from those of some of them by their places; NaN where there are none."""
    size = 1 + max(int(where.max()) for where, _ in parts)
    found = torch.full((size,), math.nan, dtype=torch.float64)
    for where, values in parts:
        found[where] = values.double()
    return found


def distances(table: Tensor, samples: int, count: int, unbiased: bool = False) -> Tensor:
    """GED of each image with so many samples, (B,): the mean over disjoint groups of its samples.

    The table has the distances of all masks from all, (B, samples + graders, samples + graders).
    """
    graders, found = torch.arange(samples, table.size(1)), list[Tensor]()
    for first in range(0, samples - count + 1, count):
        own = torch.cat((torch.arange(first, first + count), graders))
        found.append(metrics.generalized_energy_distance_of(table[:, own[:, None], own], count, unbiased))
    return torch.stack(found).mean(0)


def table_of(samples: Tensor, graders: Tensor, num_classes: int | None) -> Tensor:
    """Distances of all masks from all: of samples (B, n, H, W), then graders (B, G, H, W); pixels are counted here."""
    masks = torch.cat((samples, graders.to(samples.dtype)), 1)
    return metrics.pair_distances(masks if num_classes else masks.bool(), num_classes=num_classes)


def drawn_masks(logits: Tensor) -> tuple[Tensor, int | None]:
    """The masks (B, n, H, W) of samples' logits (n, B, K, H, W), and the number of classes; None for one foreground."""
    classes = logits.size(2)
    hard = (logits > 0).squeeze(2) if classes == 1 else logits.argmax(2).to(torch.uint8)
    return hard.transpose(0, 1), None if classes == 1 else classes


def tidy(row: dict[str, Any]) -> list[dict[str, Any]]:
    """A row as lines of a table, one a number of samples."""
    by_samples = ("ged", "ged_unbiased", "ged_by_group", "ged_interval", "expected_ged", "per_image")
    once, found = {key: value for key, value in row.items() if key not in by_samples}, []
    for count in row["ged"]:
        own = {key: None if row[key] is None else row[key][count] for key in by_samples[:-1]}
        low, high = own.pop("ged_interval") or (None, None)
        own |= {"ged_low": low, "ged_high": high}
        found.append({"label": once["label"], "fraction": once["fraction"], "samples": int(count)} | own | once)
    return found


@dataclass
class _Measured:
    """Measurements at a size so far: numbers of images, and sums over pixels."""

    counts: tuple[int, ...]
    distinct: int | None
    pixels: metrics.PixelSums
    biased: dict[int, list[Tensor]] = field(default_factory=dict)
    unbiased: dict[int, list[Tensor]] = field(default_factory=dict)
    others: dict[str, list[Tensor]] = field(default_factory=dict)
    marked: int = 0
    entropy: float = 0.0  # of the marked pixels, summed

    def add(self, logits: Tensor, graders: Graders, notes: list[str]) -> None:
        """Measure a batch: logits (n, B, K, H, W) against the graders of each image."""
        (samples, classes), probs = drawn_masks(logits), class_probs(logits.float()).mean(0)
        parts: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for where, theirs in graders.alike():
            there = where.to(samples.device)
            for key, values in self._of(samples[there], probs[there], theirs, classes, notes).items():
                parts.setdefault(key, []).append((where, values))
        for key, found in parts.items():
            kind, name = key
            kept: dict[Any, list[Tensor]] = getattr(self, kind)
            kept.setdefault(name, []).append(in_place(found))

    def _of(
        self, samples: Tensor, probs: Tensor, graders: Tensor, classes: int | None, notes: list[str]
    ) -> dict[tuple[str, Any], Tensor]:
        """Numbers of images that have equally many graders: samples (B, n, H, W), probs (B, K, H, W)."""
        found: dict[tuple[str, Any], Tensor] = {}
        n, table = samples.size(1), table_of(samples, graders, classes)
        few = n if self.distinct is None else self.distinct
        for count in self.counts:
            found["biased", count] = distances(table, n, count)
            if 1 < count <= few:
                found["unbiased", count] = distances(table, n, count, unbiased=True)
        entropy = metrics.pixel_entropy(probs.squeeze(1)) if classes is None else metrics.pixel_entropy(probs, dim=1)
        marked = graders.bool().any(1).cpu()
        self.marked += int(marked.sum())
        self.entropy += float(entropy[marked].sum())
        found["others", "dice"] = metrics.dice(most_likely(probs)[:, None], graders, classes).mean(1)
        found["others", "entropy"] = entropy.flatten(1).mean(1)
        if n > 1:
            two = min(n, max(2, few))  # one mask, twice, is 0 apart
            found["others", "diversity"] = metrics.diversity_of(table[:, :two, :two])
        try:
            found["others", "matched_iou"] = metrics.matched_iou_of(table[:, :n, n:])
        except ValueError as error:  # too many to be matched
            notes.append(f"masks are not matched: {error}")
        self.pixels.add(probs, graders)
        return found

    def row(self, groups: list[str] | list[int] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """The numbers of a row, and the bins of its calibration."""
        each = torch.stack([torch.cat(self.biased[count]) for count in self.counts], 1)
        unbiased = {count: float(torch.cat(found).mean()) for count, found in self.unbiased.items()}
        others = {name: _mean(torch.cat(found)) for name, found in self.others.items()}
        names, pixels = [str(count) for count in self.counts], self.pixels.calibration()
        intervals = metrics.bootstrap_interval(each, groups)
        by_owner = None if groups is None else metrics.group_mean(each, groups).tolist()
        ends = [[one.low, one.high] for one in intervals if one.count > 1]  # of one owner there is nothing to go by
        row = {
            "ged": dict(zip(names, each.mean(0).tolist(), strict=True)),
            "ged_unbiased": {str(count): unbiased.get(count) for count in self.counts},
            "ged_by_group": None if by_owner is None else dict(zip(names, by_owner, strict=True)),
            "ged_interval": dict(zip(names, ends, strict=True)) if ends else None,
            **{name: others.get(name) for name in ("matched_iou", "diversity", "dice", "entropy")},
            "entropy_marked": self.entropy / self.marked if self.marked else None,
            "calibration_error": float(pixels.error),
            "per_image": {name: _rounded(own) for name, own in zip(names, each.T, strict=True)},
        }
        return row, {name: getattr(pixels, name).tolist() for name in ("count", "confidence", "frequency")}


def _sizes(run: TrainedRun, options: SegmentationEvaluation) -> list[Size]:
    """The wanted sizes that there are, then what else the method can be read at."""
    method = _method_of(run)
    return [*method.sizes(run.model, options.sizes), *method.others(run.model)]


def _name(method: object) -> str:
    """Name of a method in recipes."""
    return next((name for name, kind in METHODS.items() if type(method) is kind), type(method).__name__)


def _expected(truth: Truth, test: Images, options: SegmentationEvaluation) -> dict[str, float]:
    """Mean GED of samples of the true distribution, for each number of them."""
    masks, probs = truth
    graders = torch.from_numpy(test.masks)
    found = {n: metrics.expected_energy_distance(masks, probs, graders, n) for n in options.num_mask_samples}
    return {str(count): float(own.mean()) for count, own in found.items()}


def _own(test: Images) -> dict[str, Any]:
    """The graders among themselves: how far two are apart, and how well the others together foretell one of them.

    Of the images that have two or more.
    """
    given = masks_of(test)
    own: dict[str, list[Tensor]] = {"diversity": [], "dice": []}
    classes = len(mask_classes(test)) or None
    for start in range(0, len(test), 64):
        some = slice(start, start + 64)
        for _, masks in Graders(
            torch.from_numpy(given[some].copy()), torch.from_numpy(test.grader_counts[some])
        ).alike():
            graders = masks.size(1)
            if graders > 1:
                own["diversity"].append(metrics.diversity(masks, classes))
                own["dice"].append(metrics.dice(_foretold(masks, classes), masks, classes).mean(1))
    return {name: float(torch.cat(found).mean()) if found else None for name, found in own.items()}


def _foretold(masks: Tensor, classes: int | None) -> Tensor:
    """Mask that most of the others have marked, for each grader (B, graders, H, W): of equal classes the first."""
    if classes is None:
        return (masks.sum(1, keepdim=True) - masks) / (masks.size(1) - 1) > THRESHOLD
    marked = torch.stack([masks == label for label in range(classes)], 2).long()
    return (marked.sum(1, keepdim=True) - marked).argmax(2)


def _mean(values: Tensor) -> float | None:
    """The mean of the numbers that there are; None where there are none."""
    found = float(values.nanmean())
    return None if math.isnan(found) else found


def _cost(run: TrainedRun, size: Size, test: Images) -> dict[str, int]:
    """Parameters of a size; of a network with widths, what its extracted one takes."""
    method, model = run.method, run.model
    if not isinstance(method, Nested):
        return {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    example = next(iter(in_order(test, run.normalise, run.device, batch=1)))
    cost = method.cost(method.extract(model, size.width), example)
    return {name: cost[name] for name in ("parameters", "macs")}


def _rounded(values: Tensor) -> list[float]:
    return [round(value, DIGITS) for value in values.tolist()]


def _of_groups(results: dict[str, Any]) -> str:
    """Interval of the distance of the largest size, and the distance where every group of images counts once."""
    count, groups = str(results["samples"][-1]), results["groups"]
    row = next((row for row in reversed(results["rows"]) if row["kind"] != "sampled"), results["rows"][-1])
    if row["ged_interval"] is None:
        return ""
    low, high = row["ged_interval"][count]
    those = "images" if groups is None else f"{len(set(groups))} groups"
    said = f"GED {count} at {row['label']}: {low:.4f} … {high:.4f}, 95 % by resampling {those}"
    return said if groups is None else f"{said}; mean of their means {row['ged_by_group'][count]:.4f}"


# What others published for a data set, on another split of it; and what a group of its images is called.
OF_DATA: dict[str, dict[str, Any]] = {
    "lidc": {"published": {"name": "P-UNet as published, another split", "ged": {"16": 0.29}}, "group_noun": "patient"}
}


class PixelScores(Scores):
    """Scores of classes of pixels, (B, K, H, W) beside whole numbers (B, H, W), or of one logit beside a mask."""

    def __init__(self, reading: Reading, bins: int) -> None:
        self.reading, self.bins, self.counts = reading, bins, metrics.PixelCounts(bins)

    def add(self, prediction: Prediction, target: Tensor) -> None:
        """Count a batch."""
        probs = prediction.probs
        if self.reading.link == "sigmoid":
            probs = torch.cat((1 - probs, probs), 1)
        target = target.squeeze(1) if target.dim() == probs.dim() else target
        if (wanted := (len(probs), *probs.shape[2:])) != target.shape:
            raise ValueError(f"labels must be of shape {wanted}, one a pixel; got {tuple(target.shape)}")
        labels = target.cpu().long()
        if self.reading.link == "sigmoid" and not is_binary(target):
            raise ValueError("masks must be of zeros and ones; got other numbers")
        check_labels(labels[labels != LEFT_OUT], probs.size(1))
        self.counts.add(probs, labels, LEFT_OUT)

    def row(self) -> dict[str, Any]:
        """The scores; IoU and Dice are of the foreground, or the mean over the classes that there are."""
        found = self.counts
        places = slice(1, 2) if self.reading.link == "sigmoid" else slice(None)
        overlap = {"iou": found.iou[places], "dice": found.dice[places]}
        return {
            "accuracy": float(found.accuracy),
            **{name: float(own.nanmean()) if bool(own.isfinite().any()) else None for name, own in overlap.items()},
            "nll": float(found.nll),
            "ece": float(found.error),
        }


LENGTHS = (0.5, 1.0, "drawn")  # of a latent


def mask_rows(
    net: OrderedSegmenter, batches: Iterable[Any], widths: Any, done: Callable[[], Any]
) -> list[dict[str, Any]]:
    """Rows of a network that draws masks, one for each length of its latent.

    Each width is a length: a share of the latent, a whole number of dimensions, or "drawn". Batches are pairs of images
    and masks, which may be all that `net.loss` takes. "ged_4" is the energy distance with four samples.
    """
    options, notes = SegmentationEvaluation(), list[str]()
    wanted = (LENGTHS if net.method.ordered else (1.0,)) if widths is None else widths
    sizes = [_length_size(net, width) for width in (wanted if isinstance(wanted, list | tuple) else (wanted,))]
    measured = {size: _Measured(options.num_mask_samples, None, metrics.PixelSums(options.bins)) for size in sizes}
    device = next(net.parameters()).device
    for number, batch in enumerate(batches):
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise ValueError(f"evaluate: batch {number} must be images and masks; got {describe_value(batch)}")
        images, masks = batch
        try:
            net.check(images)
            graders = Graders.of(masks)
            for each in graders.masks.unbind(1):
                net.check(images, each)
        except ValueError as error:
            raise ValueError(f"evaluate: batch {number}: {error}") from error
        images, graders = images.to(device), dataclasses.replace(graders, masks=graders.masks.to(device))
        for size, own in measured.items():
            own.add(net.method.drawer(net, size)(images, options.num_mask_samples[-1]), graders, notes)
        done()
    if not all(own.biased for own in measured.values()):
        raise ValueError("evaluate: batches must hold at least one batch; got none (a generator that was read?)")
    rows = list[dict[str, Any]]()
    for size, own in measured.items():
        found, _ = own.row(None)
        by_samples = {key: found.pop(key) for key in ("ged", "ged_unbiased", "ged_interval")}
        row = {"label": size.label, "kind": size.kind, "fraction": size.fraction, "task": Segmentation.name}
        row |= {"samples": options.num_mask_samples[-1], "inference": "mc"}
        row |= {"parameters": sum(parameter.numel() for parameter in net.parameters())}
        row |= {"examples": len(found.pop("per_image")[str(row["samples"])])}
        for count in map(str, options.num_mask_samples):
            low, high = (by_samples["ged_interval"] or {}).get(count, (None, None))
            ends = {f"ged_{count}_low": low, f"ged_{count}_high": high}
            row |= {f"ged_{count}": by_samples["ged"][count], **ends}
            row |= {f"ged_unbiased_{count}": by_samples["ged_unbiased"][count]} if count != "1" else {}
        found.pop("ged_by_group")  # nobody is known to own images
        rows.append(row | found)
    return rows


def _length_size(net: OrderedSegmenter, width: Any) -> Size:
    """The size of a share of the latent, a whole number of dimensions, or "drawn"."""
    full, base = net.config["latent"], net.method.base
    share = isinstance(width, float) and 0 < width <= 1
    length = length_of(full, width, base) if share else width
    try:
        return net.size_of(None if length == full else length)
    except ValueError:
        wanted = f"be shares in (0, 1], lengths in {base} … {full}, or 'drawn'" if net.method.ordered else "be 1.0"
        raise ValueError(f"evaluate: widths of this latent must {wanted}; got {width!r}") from None


COLUMNS: list[dict[str, Any]] = [
    {"key": "parameters", "heading": "Parameters", "form": "short"},
    {"key": "ged", "heading": "GED", "digits": 3, "better": "less"},
    {"key": "matched_iou", "heading": "Matched IoU", "digits": 3, "better": "more"},
    {"key": "diversity", "heading": "Diversity", "digits": 3},
    {"key": "dice", "heading": "Dice", "digits": 3, "better": "more"},
    {"key": "calibration_error", "heading": "Pixel ECE", "digits": 4, "better": "less"},
    {"key": "entropy_marked", "heading": "Entropy", "digits": 3},
]  # of its rows, as pages show them
MEASURES: list[dict[str, Any]] = [
    *COSTS,
    {
        **{"key": "ged_16", "heading": "GED 16", "better": "less", "title": "Distance from the graders", "digits": 3},
        **{"axis": "energy distance (GED), 16 samples", "headline": "Nearest to the graders"},
        "description": "Generalised energy distance between 16 samples of an image and the masks of its graders. It "
        "falls with the number of samples whatever the network. Less is better.",
    },
    {"key": "matched_iou", "heading": "Matched IoU", "digits": 3, "better": "more"},
    {"key": "diversity", "heading": "Diversity", "digits": 3},
    {
        **{"key": "iou", "heading": "IoU", "better": "more", "title": "Overlap with the mask", **PERCENT},
        **{"axis": "IoU (%)", "headline": "Overlaps most", "scaled": False},
        "description": "Intersection over union of what is marked and what is to be, of all pixels together: of the "
        "foreground, or the mean over classes. More is better.",
    },
    {"key": "dice", "heading": "Dice", "better": "more", **PERCENT},
    {"key": "accuracy", "heading": "Pixels right", "better": "more", **PERCENT},
    {
        **{"key": "ece", "heading": "Pixel ECE", "better": "less", "title": "Calibration error", **PERCENT},
        **{"axis": "calibration error of pixels, ECE (%)", "headline": "Most honest confidence"},
        "description": "Expected calibration error of pixels: how far, on average, the stated confidence is from the "
        "share of right answers. Less is better.",
    },
    {"key": "nll", "heading": "NLL (nats)", "better": "less", "digits": 3},
    {
        **{"key": "auroc", "heading": "AUROC", "better": "more", "title": "Noticing unfamiliar images"},
        **{"axis": "AUROC, unfamiliar images (%)", "headline": "Notices unfamiliar images best", **PERCENT},
        "description": "Of an image of the kind it was trained on and an unfamiliar one, how often the pixels of the "
        "unfamiliar one are less certain. 50 % is chance. More is better.",
    },
    {"key": "aupr", "heading": "AUPR", "better": "more", "chance": "base_rate", **PERCENT},
    {"key": "base_rate", "heading": "AUPR by chance", **PERCENT},
]  # of the rows of `vnd.evaluate`
PRINTED = {"matched_iou", "diversity", "dice", "calibration_error"}  # by `vnd evaluate`, beside the distances


@register
class Segmentation(Task):
    """Masks of images, of which several may be right."""

    name = "segmentation"
    kind, noun = "a network that segments", "segmenter"
    evaluation, options = SegmentationEvaluation, SHAPED
    scored = ("GED", "{:.4f}".format)
    compare = ("data", "image")
    has_masks = validates_draws = True
    hub_task = "image-segmentation"
    not_extracted = "vnd segment draws its masks at a size, vnd evaluate measures it"
    sections = ("mask_tables", "energy_distance", "training")
    columns, measures = COLUMNS, MEASURES

    def takes(self, net: Any) -> bool:
        """Tell if a network draws masks."""
        return isinstance(unwrap(net), OrderedSegmenter)

    def measure(self, net: Any, batches: Iterable[Any], widths: Any, done: Callable[[], Any]) -> list[dict[str, Any]]:
        """Rows of a network that draws masks, one a length."""
        root: Any = unwrap(net)
        return mask_rows(root, batches, widths, done)

    def reads(self, output: Tensor, target: Tensor, dim: int | None = None) -> Reading | None:
        """Classes of pixels (B, K, H, W), or of voxels, beside whole numbers; one logit a pixel beside a mask."""
        if output.dim() not in (4, 5) or dim not in (None, 1, 1 - output.dim()):
            return None
        pixels, one = (len(output), *output.shape[2:]), output.size(1) == 1
        if target.shape != pixels and not (one and target.shape == output.shape):
            return None
        if one:
            return Reading("sigmoid", 1) if is_binary(target) else None
        return None if target.is_floating_point() or target.dtype == torch.bool else Reading("softmax", 1)

    def scores(self, reading: Reading, bins: int) -> Scores:
        """Empty scores."""
        return PixelScores(reading, bins)

    def check_data(self, images: Images, recipe: Any) -> None:
        """Refuse images that nobody could learn to segment from."""
        if images.masks is None:
            raise ValueError(
                f"data.name: {recipe.name} has no masks to learn; `vnd data list` shows which sets there are"
            )
        if not any(mask.any() for mask in images.masks):
            raise ValueError(f"data.name: nothing is marked in the {len(images)} training images of {recipe.name}")
        if recipe.augment.cutmix:
            raise ValueError(
                f"data.augment.cutmix mixes labels, and masks have none; use 0, got {recipe.augment.cutmix}"
            )

    def check_answer(self, answer: Any, recipe: Any, images: Images) -> None:
        """Refuse what are no logits of pixels, and too few of them for the classes of the masks."""
        if not isinstance(answer, Tensor) or answer.ndim != 4 or answer.shape[2:] != images.pixels.shape[2:]:
            wanted = f"answer each pixel, (2, classes, {', '.join(map(str, images.pixels.shape[2:]))})"
            raise ValueError(f"network.name: {recipe.network.name} must {wanted}; got {describe_value(answer)}")
        classes, count = mask_classes(images), answer.size(1)
        if count < (known := len(classes)):
            names = ", ".join(classes[:5]) + ", …" * (known > 5)
            raise ValueError(
                f"network.num_classes must be {known} or more for the masks of {recipe.data.name}, whose pixels are of "
                f"{known} classes ({names}); got {count}"
            )

    def num_outputs(self, classes: int) -> int:
        """A logit for each class of masks, or the one of the foreground."""
        return classes or 1

    def bn_batch(self, batch: int) -> int:
        """Few: each batch is a draw of the weights, and a large one of large images."""
        return 32

    @torch.no_grad()
    def validate(self, method: Any, model: nn.Module, size: Size, images: Images, normalise: Normalise) -> float:
        """Mean GED at a size, of few masks that are drawn, the same each time."""
        draw, found = method.drawer(model, size), list[Tensor]()
        with repeatable():
            for x, graders in graded(images, normalise, next(model.parameters()).device):
                samples, classes = drawn_masks(draw(x, VALIDATED))
                tables = ((where, table_of(samples[where.to(x.device)], y, classes)) for where, y in graders.alike())
                found.append(in_place([(where, distances(table, VALIDATED, VALIDATED)) for where, table in tables]))
        return float(torch.cat(found).mean())

    @torch.no_grad()
    def evaluate(
        self, run: TrainedRun, options: SegmentationEvaluation, test: Images, done: Done = lambda count: None
    ) -> dict[str, Any]:
        r"""Draw masks at each size and hold them against the graders': rows of distances, and how sure the pixels are.

        Of an image with samples $s_1 … s_n$ and graders $y_1 … y_G$, "ged" is the V-statistic $2\, \overline{d(s, y)} -
        \overline{d(s, s')} - \overline{d(y, y')}$ with d = 1 − IoU of the foreground, on average over the classes but
        the background where there are several, and "ged_unbiased" leaves out the pairs of a sample with itself. Every
        image has as many samples as the largest of `options.num_mask_samples`; for a smaller n it has the mean over
        disjoint groups of n of these, which has the same expectation and less noise. What else there is, is of all
        samples: IoU matched with the graders, diversity, and of their mean probability the Dice coefficient with one
        grader, the entropy and the calibration error.

        Images of one owner (a patient) are alike and may be many: "ged_by_group" is the mean over groups of their
        means, and "ged_interval" a 95 % interval of "ged" by resampling groups, or images where nobody owns them. Of a
        method that has but a few masks of an image, "ged_unbiased" is None for more samples than these, since its
        samples are no independent draws, and "diversity" is that of these few.

        Sizes that the method has beside the wanted ones come last. Where it is known what graders draw from, rows have
        the GED that samples of that would have, "expected_ged". `done` counts images.
        """
        method, notes, _ = _method_of(run), list[str](), masks_of(test)
        distinct, groups = method.distinct(run.model), groups_of(test)
        truth, rows, bins = run.truth(test), list[dict[str, Any]](), dict[str, Any]()
        expected = None if truth is None else _expected(truth, test, options)
        if again := [str(count) for count in options.num_mask_samples if distinct is not None and count > distinct]:
            few, them = (f"{distinct} masks", "them") if distinct != 1 else ("one mask", "it")
            none = f"no unbiased GED of {', '.join(again)} samples"
            notes.append(f"{_name(method)} has {few} of an image, and further samples repeat {them}: {none}")
        for size in _sizes(run, options):
            since = time.perf_counter()
            measured = _Measured(options.num_mask_samples, distinct, metrics.PixelSums(options.bins))
            draw = ready(run, size, options.bn_images)
            with repeatable():
                for x, graders in graded(test, run.normalise, run.device):
                    measured.add(draw(x, options.num_mask_samples[-1]), graders, notes)
                    done(len(x))
            row, bins[size.label] = measured.row(groups)
            about = {"label": size.label, "kind": size.kind, "fraction": size.fraction, **_cost(run, size, test)}
            rows.append({**about, **row, "expected_ged": expected, "seconds": round(time.perf_counter() - since, 2)})
        fewest, most = int(test.grader_counts.min()), int(test.grader_counts.max())
        return {
            "graders": most,
            **({"fewest_graders": fewest} if fewest < most else {}),
            **({"mask_classes": list(mask_classes(test))} if mask_classes(test) else {}),
            "samples": list(options.num_mask_samples),
            "threshold": THRESHOLD,
            "groups": groups,
            "rows": rows,
            "tidy": [line for row in rows for line in tidy(row)],
            "reliability": bins,
            "graders_own": _own(test),
            "notes": list(dict.fromkeys(notes)),
        }

    def work(self, run: TrainedRun, options: SegmentationEvaluation, test: Images) -> int:
        """Images, each as often as it is worked on."""
        return len(_sizes(run, options)) * len(test)

    def tables(self, results: dict[str, Any], split: str, options: SegmentationEvaluation) -> list[Table]:
        """One line a size; then what samples of the true distribution would have, where that is known."""
        rows, own = results["rows"], results["graders_own"]
        images = len(next(iter(rows[0]["per_image"].values())))
        fewest, most = results.get("fewest_graders", results["graders"]), results["graders"]
        apart = f"{images:,} images, {most if fewest == most else f'{fewest} … {most}'} grader{'s' * (most > 1)}"
        if own["diversity"] is not None:
            apart += f", whose masks are {own['diversity']:.4f} apart"
        foretold = "" if own["dice"] is None else f"; Dice of one grader by the others together {own['dice']:.4f}"
        caption = "\n".join(filter(None, (apart + foretold, _of_groups(results))))
        shown = [{**row, **row["ged"]} for row in rows]
        if (expected := rows[0]["expected_ged"]) is not None:
            shown.append({"label": "truth", **expected})
        numbers = {str(count): f"GED {count}" for count in results["samples"]}
        numbers |= {column["key"]: column["heading"] for column in COLUMNS if column["key"] in PRINTED}
        cells = {key: (heading, "{:.4f}".format) for key, heading in numbers.items()}
        return [rows_table(shown, {"size": lambda row: row["label"]}, cells, f"{results['title']}: {split}", caption)]

    def of_data(self, name: str) -> dict[str, Any]:
        """Published results on a data set."""
        return OF_DATA.get(name, {})
