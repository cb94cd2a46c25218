"""Where a loss stopped being a number: the step, and the first layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vnd.methods import Batch, Step
from vnd.nn import Quantile

if TYPE_CHECKING:
    from vnd.train.state import TrainState


class Arrival:
    """A loss that is copied to the CPU while the GPU goes on: looking at it waits for the forward pass alone.

    So the check costs nothing, and a bad step is seen before its gradient reaches the weights.
    """

    def __init__(self, loss: Tensor) -> None:
        self.event: Any = None
        if loss.is_cuda:
            self.value = torch.empty((), dtype=loss.dtype, pin_memory=True)
            self.value.copy_(loss.detach(), non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()
        else:
            self.value = loss.detach()

    def finite(self) -> bool:
        """Whether it is a number."""
        if self.event is not None:
            self.event.synchronize()
        return bool(self.value.isfinite())


@torch.no_grad()
def diagnosis(session: TrainState, batch: Batch, step: Step, seed: int) -> str:
    """One line on a loss that is not finite, from running the step again and looking at every layer."""
    root = session.root
    where = f"train: the loss is not finite at step {step.index} (epoch {session.epoch(step.index)})"
    state = f"; the last checkpoint in {session.folder / 'checkpoints'} is from before it"
    for name, parameter in root.named_parameters():
        if not parameter.isfinite().all():
            return f"{where}: parameter {name} is not, so the step before spoilt it; lower optimizer.lr or clip{state}"
    if not batch[0].isfinite().all():
        return f"{where}: the images are not{state}"
    for module in root.modules():
        if isinstance(module, Quantile):
            module.count -= module.strata  # the same masks again
    found: list[str] = []
    hooks = [
        module.register_forward_hook(_look(f"{name} ({type(module).__name__})", found))
        for name, module in root.named_modules()
        if name  # of modules that hold others, those come first
    ]
    try:
        torch.manual_seed(seed)
        with session.accelerator.autocast():
            terms = session.method.loss(root, batch, step)
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        return f"{where}: first in the output of layer {found[0]}{state}"
    parts = ", ".join(f"{name} {float(part):.4g}" for name, part in terms.parts.items())
    return f"{where}: all layers are, its parts are {parts}{state}"


def _look(name: str, found: list[str]) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if not found and isinstance(output, Tensor) and not output.isfinite().all():
            found.append(name)

    return hook
