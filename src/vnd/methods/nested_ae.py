"""The plain nested-dropout auto-encoder: deterministic codes, ordered by lengths that are drawn from a fixed chain."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vnd.distributions import BernoulliChain
from vnd.methods.coding import DeterministicAutoencoder, check_options, masked
from vnd.methods.method import Batch, Step, Terms, register
from vnd.methods.traits import DOTTED, Traits, mc


@register("nested_ae", Traits(rank=13, name="nested AE", order="fixed", looks=mc("#7a4b9a", "P", DOTTED)))
@dataclass(frozen=True)
class NestedAE(DeterministicAutoencoder):
    r"""Learn an order by dropping the end of every code, at lengths that nothing learns.

    $$\mathcal L = \frac1P\, \mathbb E_{b \sim p(b)} \lVert x - g(h_{\le b}) \rVert^2$$

    Rippel et al. (2014). With one linear layer each way its codes are the principal components, in their order.

    Args:
        likelihood_std: σ of a pixel between −1 and 1; it says what the distortion is in nats, and is not in the loss.
        base: Dimensions that are always kept.
        keep: Probability that a dimension is kept given the one before; None for lengths that are all alike likely.
    """

    ordered = True
    likelihood_std: float = 1.0
    base: int = 1
    keep: float | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.keep is not None and not 0 < self.keep < 1:
            raise ValueError(f"keep must lie in (0, 1); got {self.keep}")

    def heads(self, code: int) -> dict[str, int]:
        """The code itself; it may be all base, which is an auto-encoder without an order."""
        if self.base > code:
            raise ValueError(f"network.latent_dim must be at least method.base = {self.base}; got {code}")
        return super().heads(code)

    def draw(self, model: nn.Module, count: int, length: int | None = None) -> Tensor:
        """Refused: its codes have no distribution."""
        raise ValueError("nested_ae: its codes have no prior to draw from; use vnd_ae to generate images")

    def loss(self, model: nn.Module, batch: Batch, step: Step) -> Terms:
        """Mean squared error at a length drawn for each image."""
        code = self.encode(model, batch[0]).loc
        logits = _chain_logits(code.size(1) - self.base, self.keep, str(code.device))
        lengths = self.base + BernoulliChain(logits, validate_args=False).sample((len(code),)).sum(1).long()
        return self._terms(model, batch[0], masked(code, lengths), torch.zeros_like(code[:, 0]), {})


def _chain_logits(count: int, keep: float | None, device: str) -> Tensor:
    chain = BernoulliChain.uniform(count) if keep is None else BernoulliChain.geometric(count, keep)
    return chain.keep_logits.to(device)


# What torch.compiler.assume_constant_result does, which would load the compiler with every program: a second.
_chain_logits._dynamo_marked_constant = True  # type: ignore[attr-defined]
