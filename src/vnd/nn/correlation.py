"""Correlation of uncertainty between widths: which smaller network is unsure where the full one is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vnd._text import short
from vnd.metrics import pearson, smallest_width
from vnd.metrics._checks import check_count
from vnd.nn.arguments import Arguments, Output, batch_inputs
from vnd.nn.predict import Link, predict
from vnd.nn.profile import profile
from vnd.nn.recalibrate import recalibrate
from vnd.nn.state import Shape, batch_norms, nested_part, state_of, unwrap
from vnd.nn.width import Width, as_shape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = tuple(round(0.1 * k, 1) for k in range(1, 11))  # of the paper
Batches = Iterable[Any] | Callable[[], Iterable[Any]]


@dataclass(frozen=True)
class UncertaintyCorrelation:
    """Pearson's correlations of predictive entropy between widths, (W, W), of examples in and out of domain.

    Args:
        labels: The widths in words.
        inside: Correlations on examples of the domain.
        outside: Those on examples out of it; None where there were none.
        widths: The widths themselves.

    >>> found = UncertaintyCorrelation.of(["50 %", "100 %"], torch.tensor([[0.1, 0.5, 0.9], [0.2, 0.5, 0.9]]))
    >>> round(float(found.inside[0, 1]), 3), found.smallest(0.9)
    (0.997, 0)
    """

    labels: tuple[str, ...]
    inside: Tensor
    outside: Tensor | None = None
    widths: tuple[Width, ...] = ()

    @classmethod
    def of(
        cls, labels: Sequence[str], inside: Tensor, outside: Tensor | None = None, widths: Sequence[Width] = ()
    ) -> UncertaintyCorrelation:
        """Correlations of entropies, (W, N) in domain and (W, M) out of it, widths in rising order."""
        strange = None if outside is None else pearson(outside)
        return cls(tuple(labels), pearson(inside), strange, tuple(widths))

    def smallest(self, threshold: float = 0.9) -> int:
        """Index of the first width whose correlation with the last one exceeds a threshold: what SN³ keeps."""
        return smallest_width(self.inside, threshold)

    def to_dict(self) -> dict[str, Any]:
        """The correlations as result files have them, and as a heat map is drawn from."""
        strange = None if self.outside is None else self.outside.tolist()
        return {"labels": list(self.labels), "inside": self.inside.tolist(), "outside": strange}

    def plot(self, path: str | Path | None = None, name: str = "predictive entropy") -> Figure:
        """Draw the heat maps of the report, and write them to a PNG file if a path is given."""
        from vnd.report.curves import correlation_maps, heat_maps
        from vnd.report.style import png

        found = self.to_dict()
        figure = heat_maps(found["labels"], correlation_maps([found]), name)
        if path is not None:
            Path(path).write_bytes(png(figure, 130, 400_000))
        return figure


def uncertainty_correlation(
    net: nn.Module,
    batches: Batches,
    widths: Sequence[Width] = WIDTHS,
    samples: int = 6,
    *,
    ood: Batches | None = None,
    link: Link | None = None,
    dim: int | None = None,
    output: Output | None = None,
    seed: int | None = 0,
) -> UncertaintyCorrelation:
    r"""Correlate the predictive entropies of a nested network at several widths.

    $$r_{ij} = \operatorname{corr}_n(u_{in}, u_{jn}), \qquad
      u_{in} = H\bigl[\mathbb E_{q(θ \mid v_i)}\, p(y \mid x_n, θ)\bigr]$$

    A narrow network that correlates strongly with the full one is unsure where that is. Paper: Sec. 3.5, the analysis
    that says which share of a network SN³ keeps.

    A network with BatchNorm that has no statistics for a width gets them from the batches in domain, in a copy: the
    network itself is left as it is.

    Args:
        net: A nested network.
        batches: Batches in domain, without labels or with, as `vnd.recalibrate` takes them: a list, a data loader, or a
            function that gives them.
        widths: Shapes, or fractions in (0, 1], in rising order.
        samples: Draws of the weights; 0 for posterior means.
        ood: Batches out of domain.
        link: As in `vnd.predict`, one that gives an entropy.
        dim: The dimension of classes, as in `vnd.predict`.
        output: The tensor that counts, as in `vnd.predict`.
        seed: Of the draws, the same ones at every width; None for others each time.

    >>> import torch, vnd
    >>> plain = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    >>> net = vnd.to_nested(plain, torch.zeros(1, 2), num_groups=4)
    >>> found = vnd.uncertainty_correlation(net, [torch.randn(16, 2)], widths=(0.5, 1.0), ood=[9 * torch.randn(8, 2)])
    >>> found.labels, found.inside.shape, found.outside.shape
    (('50 %', '100 %'), torch.Size([2, 2]), torch.Size([2, 2]))
    """
    state = state_of(net)
    widths = [widths] if isinstance(widths, Shape) or not isinstance(widths, Iterable) else list(widths)
    if len(widths) < 2:
        raise ValueError(f"uncertainty_correlation: widths must be two or more; got {widths}")
    shares = [float(width) for width in widths if isinstance(width, int | float)]
    if shares != sorted(shares):
        raise ValueError(f"uncertainty_correlation: widths must rise, the last one being the full one; got {widths}")
    check_count("uncertainty_correlation", "samples", samples, 0)
    sizes = [as_shape(net, width) for width in widths]
    read = [None if given is None else _list_once(given) for given in (batches, ood)]
    part, drawn = nested_part(net), samples > 0
    missing = [size for size in dict.fromkeys(sizes) if state.valid_statistics(part, (size, drawn)) is None]
    if missing and any(batch_norms(net)):
        net = copy.deepcopy(unwrap(net))
        recalibrate(net, read[0](), missing, samples=drawn)  # type: ignore[misc]
    labels = [_label(net, width) for width in widths]
    options = {"link": link, "dim": dim, "output": output}
    entropies = [None if given is None else _entropies(net, given, sizes, samples, seed, options) for given in read]
    assert entropies[0] is not None
    return UncertaintyCorrelation.of(labels, entropies[0], entropies[1], widths)


def _list_once(batches: Any) -> Callable[[], Iterable[Any]]:
    """A function that gives the batches again and again, also those of an iterator."""
    if isinstance(batches, Tensor) or not (callable(batches) or isinstance(batches, Iterable)):
        raise ValueError(
            f"uncertainty_correlation: batches must be an iterable of batches; got a {type(batches).__name__}"
        )
    held: Any = list(batches) if isinstance(batches, Iterator) else batches
    return lambda: held() if callable(held) else held


def _label(net: nn.Module, width: Width) -> str:
    """A fraction in percent; a shape by its number of parameters."""
    if isinstance(width, Shape) or width is None:
        return short(profile(net, width, count_macs=False).parameters)
    return f"{100 * width:.4g} %"


def _entropies(
    net: nn.Module,
    batches: Callable[[], Iterable[Any]],
    sizes: Sequence[Shape],
    samples: int,
    seed: int | None,
    options: dict[str, Any],
) -> Tensor:
    """Entropies of the predictions at each width, (widths, examples), on the CPU."""
    device, root, rows = next(net.parameters()).device, unwrap(net), list[Tensor]()
    for number, batch in enumerate(batches()):
        try:
            args, kwargs = batch_inputs(root, batch, device)
        except ValueError as error:
            raise ValueError(f"uncertainty_correlation: batch {number}: {error}") from None
        x = Arguments.of(kwargs or args, "uncertainty_correlation").given
        found = list[Tensor]()
        for size in sizes:
            entropy = predict(net, x, size, samples, seed=None if seed is None else seed + number, **options).entropy
            if entropy is None:
                raise ValueError("uncertainty_correlation: link must be one that gives an entropy; got 'identity'")
            found.append(entropy.flatten().cpu())
        rows.append(torch.stack(found))
    if not rows:
        raise ValueError("uncertainty_correlation: batches must hold at least one batch; got none")
    entropies = torch.cat(rows, 1)
    if entropies.size(1) < 2:
        raise ValueError("uncertainty_correlation: batches must hold two or more examples; got one")
    return entropies
