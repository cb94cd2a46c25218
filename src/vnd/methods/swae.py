"""SWAE: an auto-encoder whose codes are held to a normal distribution by a sliced Wasserstein distance."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vnd.methods.coding import DeterministicAutoencoder, check_options
from vnd.methods.method import Batch, Step, Terms, register
from vnd.methods.traits import DASH_DOTS, Traits, mc


@register("swae", Traits(rank=12, name="SWAE", sizes="each", looks=mc("#8a6d00", "v", DASH_DOTS)))
@dataclass(frozen=True)
class SWAE(DeterministicAutoencoder):
    r"""Deterministic codes, as a whole distributed as the prior.

    $$\mathcal L = \frac1P \lVert x - g(h) \rVert^2 + \frac{w}{B (B - 1)}\, \frac1{L B} \sum_{l, b}
      \bigl| ⟨θ_l, h⟩_{(b)} - ⟨θ_l, \tilde h⟩_{(b)} \bigr|^p$$

    with B codes h, as many draws $\tilde h$ of the prior, unit vectors $θ_l$ and values in rising order. Kolouri et al.
    (2019); the scale $1 / B (B - 1)$ is that of the code most use, which adds the absolute error to the squared one.

    Args:
        likelihood_std: σ of a pixel between −1 and 1; it says what the distortion is in nats, and is not in the loss.
        projections: L.
        power: p.
        weight: w.
    """

    likelihood_std: float = 1.0
    projections: int = 200
    power: float = 2.0
    weight: float = 100.0

    def __post_init__(self) -> None:
        check_options(self)
        if self.projections < 1:
            raise ValueError(f"projections must be at least 1; got {self.projections}")
        if self.power < 1 or self.weight < 0:
            raise ValueError(f"power must be at least 1 and weight 0 or more; got {self.power} and {self.weight}")

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean squared error and the distance of the codes from the prior."""
        code = self.encode(model, batch[0]).loc
        if len(code) < 2:
            raise ValueError(f"swae: train.batch must be at least 2, a cloud of codes; got {len(code)}")
        apart = sliced_distance(code, torch.randn_like(code), self.projections, self.power)
        count, pixels = len(code), batch[0][0].numel()
        penalty = step.kl_weight * self.weight / (count * (count - 1)) * apart * pixels / (2 * self.likelihood_std**2)
        return self._terms(model, batch[0], code, penalty[None], {"sliced": apart})


def sliced_distance(a: Tensor, b: Tensor, projections: int, power: float) -> Tensor:
    r"""Sliced Wasserstein distance of two clouds (n, D), to the power p: mean over directions and sorted pairs."""
    directions = torch.randn(a.size(1), projections, device=a.device, dtype=a.dtype)
    directions = directions / directions.norm(dim=0, keepdim=True)
    first, second = ((x @ directions).sort(0).values for x in (a, b))
    apart: Tensor = (first - second).abs().pow(power).mean()
    return apart
