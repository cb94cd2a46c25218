r"""Autoencoding: errors and rates at every length of a code, the length of each image's, images that are drawn."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.table import Table
from torch import Tensor, nn

from vnd import metrics
from vnd.data.batches import Normalise, Passes, in_order
from vnd.data.images import Images
from vnd.methods import AutoencoderMethod, Size
from vnd.methods.base import refuse_unless
from vnd.methods.codes import (
    Code,
    LearnsLength,
    coded,
    distortion,
    length_of,
    masked,
    of_pixel,
    shortest,
    squared_error,
)
from vnd.tasks.base import BATCH, Evaluation, Task, register, rows_table
from vnd.tasks.classification import check_classes
from vnd.tasks.features import Extractor, extractor
from vnd.tasks.trained import TrainedRun, repeatable

SHOWN = 400  # images whose length is drawn against their size as a PNG
Done = Callable[[int], None]  # called with a number of images that were worked on


@dataclass(frozen=True)
class AutoencodingEvaluation(Evaluation):
    """Options of the evaluation of an auto-encoder.

    Args:
        num_generated: Images that are drawn at each length, to be held against test images; 0 for none.
        inception: File with the weights of FID's Inception; None for EfficientNet-Lite0, and then it is no FID.
        target: Mean squared error that the shortest codes are sought for; None for the one at half the length.
    """

    num_generated: int = 10_000
    inception: str | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unless(self.target is None or self.target > 0, "target", "be greater than 0", self.target)
        possible = self.num_generated == 0 or self.num_generated >= 2
        refuse_unless(possible, "num_generated", "be at least 2 images, or 0 for none", self.num_generated)
        drawn = self.inception is None or self.num_generated > 0
        refuse_unless(drawn, "inception", "measure images that are drawn; give num_generated 10000 too", "none")


@dataclass(frozen=True)
class Coded:
    """An auto-encoder, the images that it is read on, and their codes."""

    method: AutoencoderMethod
    model: nn.Module
    images: Passes
    codes: list[Code]
    done: Done

    def __iter__(self) -> Iterator[tuple[Tensor, Code]]:
        for x, code in zip(self.images, self.codes, strict=True):
            yield x, code
            self.done(len(x))

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.images.images)

    @property
    def pixels(self) -> int:
        """Numbers in an image."""
        return int(self.images.images.pixels[0].size)

    @property
    def code(self) -> int:
        """Dimensions of a code."""
        return coded(self.model).dimensions


def _method_of(run: TrainedRun) -> AutoencoderMethod:
    """The method of a run, which learns codes."""
    if not isinstance(run.method, AutoencoderMethod):
        kind = type(run.method).__name__
        raise ValueError(f"evaluate: the method must be one of codes, an AutoencoderMethod; got a {kind}")
    return run.method


def read_fixed(found: Coded, length: int, size: Size | None = None) -> dict[str, Any]:
    """The row of one length for all images."""
    method, error, drawn = found.method, 0.0, 0.0
    rate: float | None = 0.0
    with repeatable():
        for x, code in found:
            error += _summed(found, x, method.point(code, length))
            drawn += _summed(found, x, method.sample(code, length))
            own = method.rate(code, length)
            rate = None if own is None or rate is None else rate + float(own.double().sum())
    row: dict[str, Any] = {"length_rule": "fixed", "length": length}
    if size is not None:
        row |= {"label": size.label, "fraction": size.fraction}
    return row | _measures(found, error) | _nats(found, drawn, rate)


def read_posterior(found: Coded, method: LearnsLength, lengths: Tensor) -> dict[str, Any]:
    """The row of each image at the median length of its posterior; in nats, of lengths and codes that are drawn."""
    own, error, drawn, rate = found.method, 0.0, 0.0, 0.0
    places = lengths.split([len(code.loc) for code in found.codes])
    with repeatable():
        for (x, code), length in zip(found, places, strict=True):
            error += _summed(found, x, masked(own.point(code), length.to(x.device)))
            kept = method.survival(code)
            some = (kept >= torch.rand(len(x), 1, device=x.device)).sum(1).clamp(min=own.base)  # P(length ≥ i) = kept_i
            drawn += _summed(found, x, masked(own.sample(code), some))
            if (nats := own.rate(code)) is None:
                raise ValueError(f"evaluate: {type(own).__name__} learns lengths and must have a rate; got none")
            rate += float(nats.double().sum())
    return {"length_rule": "posterior", **spread(lengths), **_measures(found, error), **_nats(found, drawn, rate)}


def read_target(found: Coded, target: float) -> tuple[Tensor, dict[str, Any]]:
    """The shortest length of each image whose error is at most a target, and the row of these."""
    method, error, reached, every = found.method, 0.0, 0, list[Tensor]()
    for x, code in found:
        length = shortest(method, found.model, x, code, target)
        own = squared_error(x, method.decode(found.model, masked(method.point(code), length))).double()
        error += float(own.sum())
        reached += int((of_pixel(own, found.pixels) <= target * (1 + 1e-5)).sum())
        every.append(length.cpu())
    lengths = torch.cat(every)
    about = {"target": target, "reached": reached / found.count}
    return lengths, {"length_rule": "target", **spread(lengths), **_measures(found, error), **about}


def spread(lengths: Tensor) -> dict[str, float]:
    """The mean of some lengths, and how they are spread.

    >>> spread(torch.tensor([1, 2, 3, 4, 10]))["length"]
    4.0
    """
    places = torch.tensor((0, 0.25, 0.5, 0.75, 1), dtype=torch.float64)
    names = ("length_min", "length_low", "length_median", "length_high", "length_max")
    own = lengths.double()
    quantiles = own.sort().values[(places * (len(own) - 1)).round().long()]  # torch.quantile has a limit of numbers
    return {"length": float(own.mean()), **dict(zip(names, quantiles.tolist(), strict=True))}


def png_sizes(images: Images) -> Tensor:
    """Bytes of each image as a PNG file, (images,): how much there is to see in it."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise ModuleNotFoundError("PNG sizes need Pillow; pip install 'variational-nested-dropout[data]'") from None
    sizes = []
    for pixels in images.pixels:
        buffer = io.BytesIO()
        Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(buffer, "PNG")
        sizes.append(buffer.tell())
    return torch.tensor(sizes)


def _summed(found: Coded, x: Tensor, code: Tensor) -> float:
    """The squared error of a batch, of pixels between −1 and 1."""
    return float(squared_error(x, found.method.decode(found.model, code)).double().sum())


def _measures(found: Coded, error: float) -> dict[str, float]:
    """Errors of pixels between 0 and 1, from the sum over all images of those between −1 and 1."""
    mse = of_pixel(error / found.count, found.pixels)
    return {"mse": mse, "summed": mse * found.pixels}


def _nats(found: Coded, error: float, rate: float | None) -> dict[str, float | None]:
    lost = float(
        distortion(torch.tensor(error / found.count, dtype=torch.float64), found.method.likelihood_std, found.pixels)
    )
    rate = None if rate is None else rate / found.count
    return {"rate": rate, "distortion": lost, "negative_elbo": None if rate is None else lost + rate}


def _half(found: Coded, rows: list[dict[str, Any]]) -> float:
    """The error at half the code."""
    length = length_of(found.code, 0.5, found.method.base)
    row = next((row for row in rows if row["length"] == length), None)
    return float((row or read_fixed(found, length))["mse"])


def _gallery(
    method: AutoencoderMethod, model: nn.Module, device: torch.device, options: AutoencodingEvaluation, notes: list[str]
) -> Gallery | None:
    """Measure of generated images; None, and a note that says why, where none can be."""
    if not options.num_generated:
        return None
    try:
        with repeatable():
            method.draw(model, 1)
    except ValueError as error:
        notes.append(f"no images are drawn: {error}")
        return None
    try:
        read = extractor(Path(options.inception) if options.inception else None, device)
    except ModuleNotFoundError as error:
        notes.append(f"generated images are not measured: {error}")
        return None
    return Gallery(read, options.num_generated, 128 if device.type == "cpu" else 512)


def _look(found: Coded, notes: list[str]) -> None:
    """Note where the decoder gives no pixel below the middle, while images have some."""
    x, decoded = next(iter(found.images)), found.method.decode(found.model, found.method.point(found.codes[0]))
    if float(x.min()) < 0 <= float(decoded.min()):
        got = f"{float(decoded.min()):.3g} … {float(decoded.max()):.3g}"
        notes.append(f"images lie between −1 and 1, what is decoded in {got}, as after a sigmoid: end in a tanh")


def _complexity(test: Images, lengths: dict[str, Tensor], notes: list[str]) -> dict[str, Any] | None:
    """Correlate the lengths of codes with the sizes of images as PNG; with some images to draw."""
    if not lengths or len(test) < 2:
        return None
    try:
        sizes = png_sizes(test)
    except ModuleNotFoundError as error:
        notes.append(f"code lengths are not held against PNG sizes: {error}")
        return None
    found = {
        name: {
            "spearman": float(metrics.spearman(own.double(), sizes.double())),
            "pearson": float(metrics.pearson(torch.stack((own.double(), sizes.double())))[0, 1]),
        }
        for name, own in lengths.items()
    }
    some = spaced(len(test), SHOWN)
    shown = {"png": sizes[some].tolist(), **{name: own[some].tolist() for name, own in lengths.items()}}
    return {"measure": "bytes as a PNG", "images": len(test), "correlation": found, "shown": shown}


LENGTHS = (0.125, 0.25, 0.5, 1.0)  # shares of a code


def code_rows(net: Any, batches: Iterable[Any], widths: Any, done: Callable[[], Any]) -> list[dict[str, Any]]:
    """Rows of an ordered code, of any object with `latent_dim`, `encode(x, length)` and `decode(codes)`.

    Each width is a length: a share of the code, at least its `base`, a whole number of dimensions, or "posterior" for
    the length that the code itself says of each input. The squared error is that of a number of an input; `rate` is
    what `net.kl(x, length)` says, in nats, and at the "posterior" `net.kl(x)`, that of lengths that are drawn.
    """
    wanted = LENGTHS if widths is None else widths if isinstance(widths, list | tuple) else (widths,)
    code = int(net.latent_dim)
    lengths = {_label(length, code): length for length in (_length(net, width) for width in wanted)}
    errors: dict[str, list[Tensor]] = {label: [] for label in lengths}
    kept: dict[str, list[Tensor]] = {label: [] for label in lengths}
    rates: dict[str, list[Tensor]] = {label: [] for label in lengths if hasattr(net, "kl")}
    numbers, device = 0, next((parameter.device for parameter in net.parameters()), None)
    for number, batch in enumerate(batches):
        x = batch[0] if isinstance(batch, list | tuple) and len(batch) else batch
        if not isinstance(x, Tensor) or not x.numel() or not bool(x.isfinite().all()):
            got = "NaN or infinity" if isinstance(x, Tensor) and x.numel() else "none"
            raise ValueError(f"evaluate: batch {number} must be inputs, finite, or begin with them; got {got}")
        x, numbers = x.to(device), x[0].numel()
        for label, length in lengths.items():
            codes = net.encode(x, length=length)
            decoded = net.decode(codes)
            if decoded.shape != x.shape or not bool(decoded.isfinite().all()):
                got = f"shape {tuple(decoded.shape)}" if decoded.shape != x.shape else "NaN or infinity"
                raise ValueError(f"evaluate: batch {number} must be decoded as {tuple(x.shape)}, finite; got {got}")
            errors[label].append((x - decoded).double().square().flatten(1).mean(1).cpu())
            kept[label].append((codes != 0).sum(1).double().cpu())
            if label in rates:
                rates[label].append((net.kl(x) if length == "posterior" else net.kl(x, length)).detach().double().cpu())
        done()
    if not any(errors.values()):
        raise ValueError("evaluate: batches must hold at least one batch; got none (a generator that was read?)")
    rows = []
    for label, wanted_length in lengths.items():
        found, own = metrics.confidence_interval(torch.cat(errors[label]).tolist()), wanted_length == "posterior"
        length = float(torch.cat(kept[label]).mean()) if own else float(wanted_length)
        row = {
            "label": label,
            "length_rule": "posterior" if own else "fixed",
            "fraction": None if own else length / code,
        }
        row |= {"task": Autoencoding.name, "samples": 0, "inference": "mean", "length": length, "latent_dim": code}
        row |= {"parameters": sum(parameter.numel() for parameter in net.parameters()), "examples": found.count}
        row |= {
            "mse": found.mean,
            "mse_low": max(0.0, found.low),
            "mse_high": found.high,
            "summed": found.mean * numbers,
        }
        rows.append(row | ({"rate": float(torch.cat(rates[label]).mean())} if label in rates else {}))
    return rows


def _length(net: Any, width: Any) -> Any:
    """The length that a share of a code is, or a whole number, or "posterior"."""
    code, base = int(net.latent_dim), getattr(net, "base", 1)
    base = base if isinstance(base, int) else 1
    whole = isinstance(width, int) and not isinstance(width, bool) and base <= width <= code
    if whole or (isinstance(width, str) and width == "posterior"):
        return width
    if isinstance(width, float) and 0 < width <= 1:
        return length_of(code, width, base)
    wanted = f"be shares in (0, 1], lengths in {base} … {code}, or 'posterior'"
    raise ValueError(f"evaluate: widths of a code must {wanted}; got {width!r}")


def _label(length: Any, code: int) -> str:
    return "by input" if length == "posterior" else f"{length} of {code}"


PAIRS = 1000  # images whose features are held against each other
SPLITS = 10  # of the Inception Score


@dataclass
class Gallery:
    """An extractor, how many images are drawn, and the features of real ones once they are known."""

    extractor: Extractor
    num_generated: int
    batch: int
    real: Tensor = field(default_factory=lambda: torch.empty(0))

    def compare(self, images: Images, done: Any) -> dict[str, Any]:
        """Read the real images, as many as are drawn or as there are; what stands beside every number of this."""
        some = spaced(len(images), self.num_generated).numpy()
        found = []
        for start in range(0, len(some), self.batch):
            pixels = torch.from_numpy(images.pixels[some[start : start + self.batch]].copy())
            found.append(self.extractor.read(pixels)[0])
            done(len(pixels))
        self.real = torch.cat(found)
        return {
            **{key: getattr(self.extractor, key) for key in ("name", "sha256", "distance_name", "score_name")},
            "num_generated": self.num_generated,
            "real": len(self.real),
            "real_diversity": self._diversity(self.real),
        }

    def read(self, method: AutoencoderMethod, model: nn.Module, length: int, done: Any) -> dict[str, Any]:
        """Measures of images that are drawn at a length; the same draws each time, and at every length."""
        features, probs = list[Tensor](), list[Tensor]()
        with repeatable():
            for start in range(0, self.num_generated, self.batch):
                count = min(self.batch, self.num_generated - start)
                some = self.extractor.read(as_pixels(method.decode(model, method.draw(model, count, length))))
                features.append(some[0])
                probs.append(some[1])
                done(count)
        made = torch.cat(features)
        score, std = metrics.inception_score(torch.cat(probs), min(SPLITS, self.num_generated))
        return {
            "frechet": float(metrics.frechet_distance(made, self.real)),
            "inception_score": float(score),
            "inception_score_std": float(std),
            "diversity": self._diversity(made),
        }

    def _diversity(self, features: Tensor) -> float:
        return float(
            metrics.pairwise_distance(features[spaced(len(features), min(PAIRS, self.num_generated, len(self.real)))])
        )


def spaced(count: int, most: int) -> Tensor:
    """Places of at most so many of `count` things, spread evenly: those of a sorted set are of all its classes.

    >>> spaced(9, 3), spaced(2, 5)
    (tensor([0, 4, 8]), tensor([0, 1]))
    """
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def as_pixels(images: Tensor) -> Tensor:
    """Images between −1 and 1 as whole numbers in 0 … 255.

    >>> as_pixels(torch.tensor([-1.2, -1.0, 0.0, 0.5, 1.0]))
    tensor([  0,   0, 128, 191, 255], dtype=torch.uint8)
    """
    return ((images + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


TABLE = {  # key of a row → heading, and how a number is shown
    "mse": ("MSE", "{:.5f}".format),
    "summed": ("summed", "{:.4g}".format),
    "rate": ("rate", "{:.2f}".format),
    "distortion": ("distortion", "{:.2f}".format),
    "negative_elbo": ("−ELBO", "{:.2f}".format),
    "frechet": ("Fréchet", "{:.2f}".format),
    "inception_score": ("score", "{:.3f}".format),
    "diversity": ("diversity", "{:.3f}".format),
}
COLUMNS: list[dict[str, Any]] = [
    {"key": "mse", "heading": "MSE", "digits": 5, "better": "less"},
    {"key": "summed", "heading": "Summed error", "digits": 4, "form": "short", "better": "less"},
    {"key": "rate", "heading": "Rate", "digits": 2},
    {"key": "distortion", "heading": "Distortion", "digits": 2},
    {"key": "negative_elbo", "heading": "−ELBO", "digits": 2, "better": "less"},
    {"key": "frechet", "heading": "Fréchet", "digits": 3, "better": "less"},
    {"key": "inception_score", "heading": "Score", "digits": 3},
    {"key": "diversity", "heading": "Diversity", "digits": 3},
]  # of its rows, as pages show them


@register
class Autoencoding(Task):
    """Codes of images, and images of codes."""

    name = "autoencoding"
    kind, noun = "an auto-encoder", "auto-encoder"
    evaluation = AutoencodingEvaluation
    scored = ("mean squared error", "{:.5f}".format)
    compare = ("data", "network", "image")
    widths = ("network", ("latent_dim",))
    calls_network = False  # but its encoder and its decoder
    hub_task = "feature-extraction"
    not_extracted = "whose decoder takes codes of every length; use vnd generate"
    sections = ("code_lengths", "code_error", "rate_distortion", "image_lengths", "training")
    columns = COLUMNS
    measures: ClassVar[list[dict[str, Any]]] = [
        {"key": "parameters", "heading": "Parameters", "form": "short"},
        {"key": "length", "heading": "Length", "form": "short"},
        {"key": "mse", "heading": "MSE", "digits": 5, "better": "less"},
        {"key": "rate", "heading": "Rate", "digits": 2},
    ]

    drawn = ("code_error",)

    def takes(self, net: Any) -> bool:
        """Tell an ordered code by what it can do."""
        return hasattr(net, "latent_dim") and all(callable(getattr(net, name, None)) for name in ("encode", "decode"))

    def measure(self, net: Any, batches: Iterable[Any], widths: Any, done: Callable[[], Any]) -> list[dict[str, Any]]:
        """Rows of an ordered code, one a length."""
        return code_rows(net, batches, widths, done)

    def check_data(self, images: Images, recipe: Any) -> None:
        """Refuse mixed images."""
        if recipe.augment.cutmix:
            raise ValueError(
                f"data.augment.cutmix mixes labels, and a code has none; use 0, got {recipe.augment.cutmix}"
            )

    def moments(self, train: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Those that bring pixels between −1 and 1."""
        middle = (0.5,) * train.pixels.shape[1]
        return middle, middle

    def check_network(self, network: nn.Module, recipe: Any, images: Images) -> None:
        """Refuse another number of classes, where the network has any."""
        check_classes(recipe, images)

    def bn_batch(self, batch: int) -> int:
        """As in training: gradients are kept, too."""
        return min(BATCH, batch)

    @torch.no_grad()
    def validate(self, method: Any, model: nn.Module, size: Size, images: Images, normalise: Normalise) -> float:
        """Mean squared error of a pixel between 0 and 1, of images decoded from their most likely codes of a length."""
        network = coded(model)
        length = method.length(network, size)
        training = network.training
        network.eval()
        try:
            total = 0.0
            for x in in_order(images, normalise, network.device):
                decoded = method.decode(network, method.point(method.encode(network, x), length))
                total += float(squared_error(x, decoded).sum())
        finally:
            network.train(training)
        return of_pixel(total / len(images), int(images.pixels[0].size))

    def score(self, mean: float) -> float:
        """Difference of the error to 1."""
        return 1 - mean

    @torch.no_grad()
    def evaluate(
        self, run: TrainedRun, options: AutoencodingEvaluation, test: Images, done: Done = lambda count: None
    ) -> dict[str, Any]:
        r"""Read an auto-encoder at its lengths: rows of errors and rates, generated images, lengths by image.

        A row is a rule for lengths of codes. "fixed": one length for all images. "posterior": each image at the median
        length that its own posterior says. "target": each image at the shortest length whose error is at most a target.
        The error is that of the most likely codes; the distortion, in nats, is that of codes drawn from the posterior,
        lengths included where they have one, so that with the rate it is the negative bound on the log-likelihood:
        $-\mathrm{ELBO} = \text{distortion} + \text{rate}$. `done` counts images.
        """
        method, model = _method_of(run), run.model
        notes: list[str] = []
        sizes = method.sizes(model, options.sizes)
        made = _gallery(method, model, run.device, options, notes)
        images = Passes(test, run.normalise, run.device)
        found = Coded(method, model, images, [method.encode(model, x) for x in images], done)
        _look(found, notes)
        rows = [read_fixed(found, method.length(model, size), size) for size in sizes]
        lengths: dict[str, Tensor] = {}
        others: list[dict[str, Any]] = []
        if isinstance(method, LearnsLength):
            lengths["posterior"] = torch.cat([method.lengths(code).cpu() for code in found.codes])
            others.append(read_posterior(found, method, lengths["posterior"]))
        if method.ordered:
            target = options.target or _half(found, rows)
            lengths["target"], row = read_target(found, target)
            others.append(row)
        if made is not None:
            about = made.compare(test, found.done)
            for row in rows:
                row |= made.read(method, model, row["length"], found.done)
        return {
            "latent_dim": found.code,
            "likelihood_std": method.likelihood_std,
            "features": None if made is None else about,
            "rows": rows,
            "tidy": [*rows, *others],
            "lengths": {name: torch.bincount(own, minlength=found.code + 1).tolist() for name, own in lengths.items()},
            "complexity": _complexity(test, lengths, notes),
            "notes": notes,
        }

    def work(self, run: TrainedRun, options: AutoencodingEvaluation, test: Images) -> int:
        """Images, each as often as it is worked on; no fewer than `evaluate` says."""
        method = _method_of(run)
        lengths = len(method.sizes(run.model, options.sizes))
        passes = lengths + isinstance(method, LearnsLength) + 2 * method.ordered
        return passes * len(test) + (
            min(len(test), options.num_generated) + lengths * options.num_generated if options.num_generated else 0
        )

    def tables(self, results: dict[str, Any], split: str, options: AutoencodingEvaluation) -> list[Table]:
        """One line a length rule; below it, what measures of features are of."""
        features, rows = results["features"] or {}, results["tidy"]
        caption, numbers = None, dict(TABLE)
        if features:
            of = f"{features['distance_name']} and {features['score_name']}"
            caption = f"{of}: {features['num_generated']:,} drawn images, {features['real']:,} real ones"
            numbers["frechet"] = features["distance_name"].partition(" distance")[0], TABLE["frechet"][1]
        lead: dict[str, Callable[[dict[str, Any]], str]] = {
            "length": lambda row: row.get("label", f"{row['length']:.1f} of {results['latent_dim']}"),
            "length rule": lambda row: row["length_rule"],
        }
        return [rows_table(rows, lead, numbers, f"{results['title']}: {split}", caption)]
