r"""Exported networks without torch: NumPy and onnxruntime give the predictions that `vnd.predict` gives.

    ready = vnd.runtime.load("any.onnx")
    prediction = ready.predict(images, width=0.5, samples=6, seed=0)

What `vnd.export` wrote says which widths there are and what the outputs stand for. Draws are a function of noise, so
the same noise gives the same draws as in torch; a seed fixes NumPy's own, and gives other draws than the seed of torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from os import PathLike, fspath
from os.path import isfile
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cascade", "Decoder", "Masks", "Network", "Prediction", "Selective", "cascade", "load", "selective"]

Array = NDArray[Any]
Link = Literal["softmax", "dirichlet", "sigmoid", "identity"]
Score = Literal["entropy", "mutual_information", "confidence"]
Width = Mapping[str, int] | float | None
NUMBERS = 2**25  # most numbers of noise in one pass


@dataclass(frozen=True, eq=False)
class Prediction:
    """Prediction for a batch, averaged over draws: the fields of `vnd.Prediction`, as NumPy arrays.

    >>> p = Prediction(np.ones((1, 1)), None, None, np.zeros((1, 1)), samples=1)
    >>> p.probs.shape, p.samples
    ((1, 1), 1)
    """

    probs: Array
    entropy: Array | None
    mutual_information: Array | None
    variance: Array
    samples: int


def load(path: str | PathLike[str], threads: int | None = None) -> Network | Decoder | Masks:
    """Open an `.onnx` file that `vnd.export` wrote: a `Network`, or the `Decoder` of an auto-encoder.

    Args:
        path: The file. Of a probabilistic UNet, of which there are two, NAME-features.onnx and NAME-combine.onnx,
            NAME.onnx as it was exported to: `Masks`.
        threads: How many it runs in; None for as many as onnxruntime likes.

    >>> load("nowhere.onnx")
    Traceback (most recent call last):
    ...
    FileNotFoundError: load: nowhere.onnx is not there
    """
    name = fspath(path)
    pair = [f"{name.removesuffix('.onnx')}-{end}.onnx" for end in ("features", "combine")]
    if not isfile(name) and all(map(isfile, pair)):
        features, combine = (_open(part, threads) for part in pair)
        return Masks(features, combine, name)
    engine = _open(name, threads)
    told = engine.get_modelmeta().custom_metadata_map
    return Decoder(engine, name) if told.get("kind") == "decoder" else Network(engine, name)


def _open(name: str, threads: int | None) -> Any:
    """A session of onnxruntime."""
    if not isfile(name):
        raise FileNotFoundError(f"load: {name} is not there")
    try:
        import onnxruntime
    except ImportError:
        raise ImportError(
            "load: onnxruntime is not installed; pip install 'variational-nested-dropout[runtime]'"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        if not _whole(threads, 1):
            raise ValueError(f"load: threads must be a whole number, 1 or more, or None; got {threads!r}")
        options.intra_op_num_threads = int(threads)
    try:
        return onnxruntime.InferenceSession(name, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds have no base
        raise ValueError(f"load: {name} is no ONNX file that onnxruntime can read: {_line(error)}") from None


def _facts(engine: Any, name: str) -> dict[str, Any]:
    """Facts that a file tells of itself."""
    told = engine.get_modelmeta().custom_metadata_map
    try:
        return {key: value if key in ("vnd", "link", "kind") else json.loads(value) for key, value in told.items()}
    except ValueError:
        raise _unknown(name) from None


def _unknown(name: str) -> ValueError:
    return ValueError(f"load: {name} does not say what vnd.export tells of a network; export it again")


class Network:
    """An exported network, ready to run.

    Attributes:
        widths: What is known of each width: "fraction", "shape", "parameters", "macs".
        classes: Names of the classes, None where none are known.
        card: What was told of the network.
        link: What its outputs stand for, as `vnd.predict` takes it.
        columns: Number of standard normal numbers that one draw of one example takes; 0 where it does not draw.
        inputs: Names of the inputs that `predict` is given.
    """

    def __init__(self, engine: Any, name: str) -> None:
        self._engine = engine
        told = _facts(engine, name)
        try:
            self.widths: list[dict[str, Any]] = told["widths"]
            self.card: dict[str, Any] = told["card"]
            self.classes: list[str] | None = told.get("classes")
            self.link: str = told["link"]
            self.columns, self._means, self._numbered = int(told["noise"]), told["means"], told["numbered"]
            self._shared = bool(told["shared"])
        except (KeyError, TypeError):
            raise _unknown(name) from None
        own = ("width",) * bool(self._numbered) + ("noise",) * bool(self.columns)
        values = [value for value in engine.get_inputs() if value.name not in own]
        self._expected = {value.name: (_dtype(value.type), value.shape) for value in values}
        self._batched = {value.name: value.shape[:1] == ["batch"] for value in values}
        self.inputs = [*self._expected]

    def __repr__(self) -> str:
        return f"Network(inputs={self.inputs}, widths={[self._words(row) for row in self.widths]}, link={self.link!r})"

    def predict(
        self,
        x: Any,
        width: Width = None,
        samples: int = 6,
        seed: int | None = None,
        *,
        noise: Array | None = None,
        rows: int | None = None,
        link: Link | None = None,
        dim: int | None = None,
    ) -> Prediction:
        r"""Predict at a width with several draws of the weights, averaging probabilities, as `vnd.predict` does.

        Args:
            x: A batch of inputs, (batch, …); a tuple of them or a dict by name where the network has several.
            width: A fraction or a shape that the file has; None for its widest.
            samples: Draws of the weights; 0 for the posterior means. A file without a posterior runs once.
            seed: Makes the draws repeatable.
            noise: The noise of the draws itself, (samples, batch, columns), or (samples, 1, columns)
                where a draw of the weights is one for all examples, in the place of `samples` and `seed`.
            rows: Most examples times samples in one pass; by default as many as 128 MiB of noise allow.
            link: What the outputs stand for; None for what the file says.
            dim: The dimension of classes; None for 1, or of three dimensions refused, as in `vnd.predict`.
        """
        given = self._given(x)
        batch = next(len(value) for name, value in given.items() if self._batched[name])
        stands_for = link or self.link
        if stands_for not in get_args(Link):
            raise ValueError(f"predict: link must be one of {', '.join(get_args(Link))}; got {link!r}")
        if not _whole(samples, 0):
            raise ValueError(f"predict: samples must be a whole number, 0 (posterior means) or more; got {samples!r}")
        if rows is not None and not _whole(rows, 1):
            raise ValueError(f"predict: rows must be at least 1, a whole number, or None; got {rows!r}")
        count = self._draws(int(samples), noise, batch)
        own: dict[str, Array] = {"width": np.asarray(self._number(width), np.int64)} if self._numbered else {}
        most = rows or max(1, min(16384, NUMBERS // max(1, self.columns)))
        source = np.random.default_rng(seed) if count and noise is None else None  # to make one takes a while
        if source is not None and self._shared:  # a draw of the weights is the same for all examples
            noise = source.standard_normal((count, 1, self.columns), np.float32)
        size = max(1, most // max(1, count))
        parts = []
        for start in range(0, max(1, batch), size):
            part = slice(start, start + size)
            some = {name: value[part] if self._batched[name] else value for name, value in given.items()}
            draws = []
            at_once = 1 if self._shared else most
            for done in range(0, max(1, count), at_once):
                now = min(at_once, count - done) if count else 1
                many = {name: _repeat(value, now) if self._batched[name] else value for name, value in some.items()}
                total = now * (min(start + size, batch) - start)
                if self._shared:
                    own["noise"] = np.zeros((1, 0)) if noise is None else np.asarray(noise[done])
                    own["noise"] = own["noise"].astype(np.float32)
                elif self.columns and noise is not None:
                    own["noise"] = np.ascontiguousarray(noise[done : done + now, part], np.float32).reshape(total, -1)
                elif self.columns:
                    own["noise"] = np.zeros((total, 0), np.float32)
                    if source is not None:
                        own["noise"] = source.standard_normal((total, self.columns), np.float32)
                out = self._run({**many, **own})
                draws.append(_linked(out.reshape(now, total // now, *out.shape[1:]), stands_for, dim))
            parts.append(np.concatenate(draws) if len(draws) > 1 else draws[0])
        return _summarize(np.concatenate(parts, 1) if len(parts) > 1 else parts[0], stands_for, max(1, count), dim)

    def _run(self, given: dict[str, Array]) -> Array:
        """The first output, in float32 or wider."""
        try:
            out = self._engine.run(None, given)[0]
        except Exception as error:  # onnxruntime's own kinds have no base
            raise ValueError(f"predict: onnxruntime cannot run the network on this input: {_line(error)}") from None
        return np.asarray(out, np.promote_types(out.dtype, np.float32))

    def _given(self, x: Any) -> dict[str, Array]:
        """Inputs by name, in the file's dtypes; a ValueError where they cannot be its."""
        if isinstance(x, Mapping):
            named = dict(x)
        else:
            several = x if isinstance(x, tuple) else (x,)
            named = dict(zip(self.inputs, several, strict=False)) if len(several) == len(self.inputs) else {}
        if set(named) != set(self.inputs):
            raise ValueError(f"predict: x must be the inputs {', '.join(self.inputs)}; got {_described(x)}")
        found = {}
        for name, (dtype, shape) in self._expected.items():
            value = np.asarray(named[name])
            if value.dtype.kind not in "fiub" or (dtype.kind in "iub" and value.dtype.kind == "f"):
                raise ValueError(f"predict: {name} must be of {dtype}; got {value.dtype}")
            wanted = ["batch" if isinstance(size, str) else size for size in shape]
            free = [isinstance(size, str) for size in shape]
            if value.ndim != len(shape) or any(
                not any_size and size != own for any_size, size, own in zip(free, shape, value.shape, strict=True)
            ):
                told = ", ".join(map(str, wanted))
                raise ValueError(f"predict: {name} must have shape ({told}); got {value.shape}")
            found[name] = np.asarray(value, dtype, order="C")
        sizes = {len(value) for name, value in found.items() if self._batched[name]}
        if len(sizes) != 1:
            raise ValueError(f"predict: x must have as many examples in every input; got {sorted(sizes)}")
        return found

    def _draws(self, samples: int, noise: Array | None, batch: int) -> int:
        """Number of draws; 0 for the means."""
        if noise is not None:
            if self.columns == 0:
                raise ValueError("predict: noise must be None; the file has no posterior")
            shape = np.shape(noise)
            rows = 1 if self._shared else batch
            if len(shape) != 3 or shape[1:] != (rows, self.columns) or not shape[0]:
                raise ValueError(f"predict: noise must have shape (samples, {rows}, {self.columns}); got {shape}")
            return int(shape[0])
        if samples == 0 and self.columns and not self._means:
            raise ValueError(
                "predict: samples must be at least 1; the file has draws alone, since BatchNorm had no statistics of "
                "the means: recalibrate with samples='both', and export again"
            )
        return samples if self.columns else 0

    def _number(self, width: Width) -> int:
        """The place of a width in the file."""
        if width is None:
            return max(range(len(self.widths)), key=lambda index: self.widths[index]["parameters"])
        shape = dict(width) if isinstance(width, Mapping) else None
        for index, row in enumerate(self.widths):
            if shape is not None:
                if row["shape"] == shape:
                    return index
            elif isinstance(width, Real) and not isinstance(width, bool):
                known = row["fraction"]
                if known is not None and abs(known - float(width)) < 1e-9:
                    return index
        listed = ", ".join(self._words(row) for row in self.widths)
        raise ValueError(f"predict: width must be one of the file's: {listed}; got {width!r}")

    @staticmethod
    def _words(row: Mapping[str, Any]) -> str:
        return str(row["shape"] if row["fraction"] is None else row["fraction"])


class Decoder:
    """The decoder of an exported auto-encoder.

    Attributes:
        length: Largest length of a code.
        card: What was told of the network.
    """

    def __init__(self, engine: Any, name: str) -> None:
        self._engine, told = engine, _facts(engine, name)
        self.length, self.card = int(told["length"]), told["card"]

    def decode(self, code: Array, length: int | None = None) -> Array:
        """Images of codes (B, b), of which the first `length` entries count, all if None; what is missing is zero."""
        value = np.asarray(code, np.float32)
        if value.ndim != 2 or not 1 <= value.shape[1] <= self.length:
            raise ValueError(f"decode: code must have shape (B, b) with b in 1 … {self.length}; got {value.shape}")
        kept = _checked_length("decode", length, value.shape[1])
        whole = np.pad(value, ((0, 0), (0, self.length - value.shape[1])))
        images: Array = self._engine.run(None, {"code": whole, "length": np.asarray(kept)})[0]
        return images


class Masks:
    """An exported probabilistic UNet: masks of images.

    Attributes:
        length: Largest length of a latent.
        card: What was told of the network.
    """

    def __init__(self, features: Any, combine: Any, name: str) -> None:
        self._features, self._combine, told = features, combine, _facts(features, name)
        self.length, self._step, self.card = int(told["length"]), int(told["step"]), told["card"]

    def draw(
        self,
        images: Array,
        samples: int = 6,
        length: int | None = None,
        seed: int | None = None,
        *,
        noise: Array | None = None,
    ) -> Array:
        """Logits of masks drawn for each image, (samples, B, K, H, W).

        Args:
            images: (B, channels, H, W), with H and W multiples of the network's step.
            samples: Number of masks of an image.
            length: How many entries of the latent count; all if None.
            seed: Makes the draws repeatable.
            noise: Standard normal noise of the latents, (samples, B, length of the whole), in the place of both.
        """
        x = np.asarray(images, np.float32)
        if x.ndim != 4 or x.shape[2] % self._step or x.shape[3] % self._step:
            raise ValueError(
                f"draw: images must have shape (B, channels, H, W), H and W multiples of {self._step}; got {x.shape}"
            )
        if noise is None and not _whole(samples, 1):
            raise ValueError(f"draw: samples must be a whole number, 1 or more; got {samples!r}")
        shape = (int(samples), len(x), self.length)
        drawn = np.random.default_rng(seed).standard_normal(shape, np.float32) if noise is None else np.asarray(noise)
        if drawn.ndim != 3 or drawn.shape[1:] != shape[1:]:
            raise ValueError(f"draw: noise must have shape (samples, {len(x)}, {self.length}); got {drawn.shape}")
        held = dict(zip(("features", "loc", "scale"), self._features.run(None, {"image": x}), strict=True))
        kept = _checked_length("draw", length, self.length)
        given = {**held, "noise": drawn.astype(np.float32), "length": np.asarray(kept)}
        logits: Array = self._combine.run(None, given)[0]
        return logits


def _checked_length(who: str, length: int | None, most: int) -> int:
    if length is None:
        return most
    if not _whole(length, 1) or length > most:
        raise ValueError(f"{who}: length must lie in 1 … {most}; got {length!r}")
    return int(length)


# -- predictions ------------------------------------------------------------------------------------------------------


def _repeat(value: Array, count: int) -> Array:
    """All examples `count` times, one whole batch after the other."""
    return value if count == 1 else np.concatenate([value] * count)


def _class_dim(shape: tuple[int, ...], dim: int | None) -> int:
    """The dimension of classes of an output (batch, …)."""
    if dim is None and len(shape) == 3:
        raise ValueError(
            f"predict: the output of shape {shape} does not say where its classes are; pass dim=-1 or dim=1"
        )
    if len(shape) < 2 or (dim is None and len(shape) > 5):
        raise ValueError(f"predict: the output of shape {shape} must have one dimension of classes; see link= and dim=")
    found = 1 if dim is None else dim + len(shape) if dim < 0 else dim
    if not 0 < found < len(shape):
        raise ValueError(f"predict: dim must be a dimension of the output {shape} other than 0; got {dim}")
    return found


def _linked(out: Array, link: str, dim: int | None) -> Array:
    """Outputs (samples, batch, …) after the link."""
    if link == "identity":
        return out
    if link == "sigmoid":
        return _sigmoid(out)
    classes = _class_dim(out.shape[1:], dim) + 1
    if link == "softmax":
        if out.shape[classes] == 1:
            wanted = 'give link="sigmoid" for a probability, "identity" for regression'
            raise ValueError(f"predict: link softmax must have two or more classes, of one it is always 1; {wanted}")
        powers = np.exp(out - out.max(classes, keepdims=True))
        softmax: Array = powers / powers.sum(classes, keepdims=True)
        return softmax
    return _concentration(out, classes)


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    probs: Array = np.where(x >= 0, 1, small) / (1 + small)
    return probs


def _entr(p: Array) -> Array:
    """−p log p, 0 where p is."""
    return -p * np.log(np.where(p > 0, p, 1))


def _summarize(parts: Array, link: str, samples: int, dim: int | None) -> Prediction:
    if len(parts) == 1 and link == "softmax":  # one draw has nothing to disagree with
        entropy = _entr(parts[0]).sum(_class_dim(parts.shape[1:], dim))
        return Prediction(parts[0], entropy, entropy - entropy, parts[0] - parts[0], samples)
    probs, variance = parts.mean(0), parts.var(0)
    if link == "identity":
        return Prediction(probs, None, None, variance, samples)
    if link == "sigmoid":
        entropy = _entr(probs) + _entr(1 - probs)
        inner = (_entr(parts) + _entr(1 - parts)).mean(0)
        return Prediction(probs, entropy, np.maximum(entropy - inner, 0), variance, samples)
    classes = _class_dim(probs.shape, dim)
    if link == "dirichlet":
        total = parts.sum(classes + 1, keepdims=True)
        means = parts / total
        probs = means.mean(0)
        inner = (_digamma(total + 1).squeeze(classes + 1) - (means * _digamma(parts + 1)).sum(classes + 1)).mean(0)
        variance = (means * (1 - means) / (total + 1)).mean(0) + means.var(0)
    else:
        inner = _entr(parts).sum(classes + 1).mean(0)
    entropy = _entr(probs).sum(classes)
    return Prediction(probs, entropy, np.maximum(entropy - inner, 0), variance, samples)


def _concentration(out: Array, classes: int) -> Array:
    """Concentration of the Dirichlet that outputs stand for: `vnd.functional.concentration`."""
    excess = out.max(classes, keepdims=True) - 10
    concentration: Array = 0.01 + np.exp(out - np.maximum(excess, 0))
    return concentration


def _digamma(x: Array) -> Array:
    r"""ψ(x) of x > 0: ψ(x) = ψ(x + 6) − Σ 1/(x + k), and beyond 6 the asymptotic series."""
    x = x.astype(np.float64)
    below = sum(1 / (x + step) for step in range(6))
    far = 1 / np.square(x + 6)
    series = far * (1 / 12 - far * (1 / 120 - far * (1 / 252 - far * (1 / 240 - far / 132))))
    value: Array = np.log(x + 6) - 0.5 / (x + 6) - series - below
    return value


# -- what to do with an answer that is not sure -----------------------------------------------------------------------


@dataclass(frozen=True)
class Selective:
    """Rule of acceptance: predictions whose uncertainty is at most `threshold`; the fields of `vnd.Selective`.

    >>> rule = Selective(0.5, coverage=1.0, risk=0.0, score="confidence", samples=1)
    >>> rule.accept(Prediction(np.array([[0.9, 0.1], [0.4, 0.6]]), np.zeros(2), np.zeros(2), np.zeros((2, 2)), 1))
    array([ True,  True])
    """

    threshold: float
    coverage: float
    risk: float | None
    score: Score
    samples: int

    def accept(self, prediction: Prediction) -> Array:
        """Tell which predictions of a batch to accept, (B,); never one whose uncertainty is not a number.

        Args:
            prediction: What `predict` gave, at the width and with the samples that the threshold was fitted for.
        """
        if prediction.samples != self.samples:
            raise ValueError(
                f"accept: the threshold is for predictions of {self.samples} samples; got one of {prediction.samples}"
            )
        accepted: Array = _uncertainty(prediction, self.score, "accept") <= self.threshold
        return accepted


def selective(
    net: Network,
    x: Any,
    y: Array,
    *,
    risk: float = 0.05,
    width: Width = None,
    samples: int = 6,
    score: Score = "entropy",
    seed: int | None = None,
) -> Selective:
    r"""Fit on validation data the largest threshold on the uncertainty at which the accepted are seldom wrong.

    $$t = \max \Big\{ u : \frac{\sum_n [u_n \le u]\,[\hat y_n \ne y_n]}{\sum_n [u_n \le u]} \le \text{risk} \Big\}$$

    The threshold that `vnd.selective` fits, without a confidence.

    Args:
        net: An exported network.
        x: Inputs that it was not trained on.
        y: Their classes (N,).
        risk: Largest share of wrong ones among the accepted.
        width: As `predict` takes it.
        samples: As `predict` takes it.
        score: "entropy" of the averaged probabilities, "mutual_information" between draws, or "confidence", one minus
            the largest probability.
        seed: Makes the draws repeatable.
    """
    classes = np.asarray(y)
    if classes.ndim != 1 or classes.dtype.kind not in "iu" or not len(classes):
        raise ValueError(
            f"selective: y must be classes of shape (N,), whole numbers; got {classes.dtype} {classes.shape}"
        )
    if isinstance(risk, bool) or not isinstance(risk, Real) or not 0 <= risk <= 1:
        raise ValueError(f"selective: risk must lie in [0, 1]; got {risk!r}")
    answer = net.predict(x, width, samples, seed)
    uncertainty = _uncertainty(answer, score, "selective")
    if len(uncertainty) != len(classes):
        raise ValueError(f"selective: y must have a class for each of {len(uncertainty)} examples; got {len(classes)}")
    if not np.isfinite(uncertainty).all():
        raise ValueError("selective: uncertainties must be finite; the network gives others")
    levels, group, sizes = np.unique(uncertainty, return_inverse=True, return_counts=True)
    accepted = sizes.cumsum()
    wrong = np.bincount(group[answer.probs.argmax(1) != classes], minlength=len(sizes)).cumsum()
    good = np.flatnonzero(wrong / accepted <= risk)
    if not len(good):
        return Selective(-np.inf, 0.0, None, score, answer.samples)
    last = good[-1]
    share = float(accepted[last] / accepted[-1])
    return Selective(float(levels[last]), share, float(wrong[last] / accepted[last]), score, answer.samples)


@dataclass(frozen=True, eq=False)
class Cascade:
    """Answers of a cascade to a batch of B examples, and their cost; the fields of `vnd.Cascade`.

    >>> answer = Cascade(np.ones((1, 1)), np.zeros(1), np.zeros(1, int), np.full(1, 26))
    >>> answer.macs.tolist()
    [26]
    """

    probs: Array
    uncertainty: Array
    step: Array
    macs: Array


def cascade(
    net: Network,
    x: Any,
    widths: Sequence[Width],
    *,
    threshold: float | Sequence[float],
    samples: int = 0,
    score: Score = "entropy",
    seed: int | None = None,
) -> Cascade:
    r"""Run the narrowest width on all examples, and each wider one on those that are still uncertain.

    $$\text{step}(x) = \min \{ l : u_l(x) \le t_l \}, \qquad
      \text{macs}(x) = \sum_{l \le \text{step}(x)} \max(1, S)\, c_l$$

    As `vnd.cascade`, with the cost $c_l$ of one pass that the file tells; each width costs what its network does.

    Args:
        net: An exported network.
        x: A batch of inputs.
        widths: Those of the file to go through, each costlier than the one before.
        threshold: The uncertainty above which an example goes on; one for all steps, or one for each but the last.
        samples: Draws of the weights at each step; 0 for posterior means.
        score: The uncertainty; see `selective`.
        seed: Makes the draws repeatable.
    """
    given, steps = net._given(x), [*widths]
    costs = [net.widths[net._number(width)]["macs"] for width in steps]
    limits = [*threshold] if isinstance(threshold, Sequence) else [float(threshold)] * (len(steps) - 1)
    if not steps or any(after <= before for before, after in pairwise(costs)):
        raise ValueError(f"cascade: widths must be one or more, each costlier than the one before; got {steps}")
    if len(limits) != len(steps) - 1 or any(np.isnan(limits)):
        raise ValueError(
            f"cascade: threshold must be one number, or {len(steps) - 1}, one a step but the last; got {threshold!r}"
        )
    count = next(len(value) for name, value in given.items() if net._batched[name])
    if not count:
        raise ValueError("cascade: x must hold at least one example; got none")
    waiting, step, macs = np.arange(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    probs = uncertainty = np.zeros(0)
    for index, (width, limit) in enumerate(zip(steps, [*limits, np.inf], strict=True)):
        rows = given
        if index:  # the first step has all, as they are
            rows = {name: value[waiting] if net._batched[name] else value for name, value in given.items()}
        answer = net.predict(rows, width, samples, None if seed is None else seed + index)
        found = _uncertainty(answer, score, "cascade")
        if index == 0:
            probs, uncertainty = answer.probs, found
        else:
            probs[waiting], uncertainty[waiting] = answer.probs, found
        step[waiting] = index
        macs[waiting] += costs[index] * answer.samples
        waiting = waiting[~(found <= limit)]
        if not len(waiting):
            break
    return Cascade(probs, uncertainty, step, macs)


def _uncertainty(prediction: Prediction, score: str, who: str) -> Array:
    """Uncertainty of a prediction of classes, of each example, (B,); larger is less sure."""
    if score not in get_args(Score):
        raise ValueError(f"{who}: score must be 'entropy', 'mutual_information' or 'confidence'; got {score!r}")
    if prediction.probs.ndim != 2 or prediction.entropy is None or prediction.mutual_information is None:
        raise ValueError(f"{who}: the network must give class scores of shape (B, C); got {prediction.probs.shape}")
    if score == "confidence":
        confidence: Array = 1 - prediction.probs.max(1)
        return confidence
    if score == "entropy":
        return prediction.entropy
    if prediction.samples < 2:  # it is zero, and says nothing
        raise ValueError(f"{who}: score 'mutual_information' needs 2 samples or more of a posterior; got 1 pass")
    return prediction.mutual_information


# -- words ------------------------------------------------------------------------------------------------------------


def _dtype(name: str) -> np.dtype[Any]:
    """The dtype of what onnxruntime calls `tensor(float)`."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(inner, inner))


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _described(x: Any) -> str:
    """A value in a few words."""
    if isinstance(x, Mapping):
        return f"a dict with the keys {', '.join(map(repr, x)) or 'none'}"
    return f"{len(x)} values" if isinstance(x, tuple) else f"a {type(x).__name__}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
