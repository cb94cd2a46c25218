"""Options of optimizers and schedules that make no sense: refused in one line by name."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from refusals import refused, table
from vnd.optim import Optimizer, Schedule
from vnd.optim.ngd import NGD


def sparse_gradient() -> None:
    weights = nn.Parameter(torch.zeros(3, 2))
    optimizer = NGD([weights], lr=0.1)
    weights.grad = torch.eye(3)[:, :2].to_sparse()
    optimizer.step()


@table(
    {
        "lr": (lambda: Optimizer(lr=-1.0), "lr must be 0 or more; got -1.0"),
        "chain_lr": (lambda: Optimizer(chain_lr=-1.0), "chain_lr must be 0 or more; got -1.0"),
        "log_alpha_lr": (lambda: Optimizer(log_alpha_lr=-1.0), "log_alpha_lr must be 0 or more; got -1.0"),
        "weight_decay": (lambda: Optimizer(weight_decay=-1.0), "weight_decay must be 0 or more; got -1.0"),
        "momentum": (lambda: Optimizer(momentum=1.0), "momentum must lie in [0, 1); got 1.0"),
        "beta2": (lambda: Optimizer(beta2=-0.1), "beta2 must lie in [0, 1); got -0.1"),
        "warmup of all": (lambda: Schedule(warmup=1.0), "warmup must lie in [0, 1); got 1.0"),
        "warmup below 0": (lambda: Schedule(warmup=-0.1), "warmup must lie in [0, 1); got -0.1"),
        "milestones": (
            lambda: Schedule(milestones=(20, 10)),
            "milestones must be epochs of at least 1 that rise; got [20, 10]",
        ),
        "step_size": (lambda: Schedule(step_size=0), "step_size must be at least 1 epoch; got 0"),
        "start": (lambda: Schedule(start=-1.0), "start must be 0 or more; got -1.0"),
        "end": (lambda: Schedule(end=-1.0), "end must be 0 or more; got -1.0"),
        "gamma": (lambda: Schedule(gamma=-0.5), "gamma must be 0 or more; got -0.5"),
        "exponential to 0": (
            lambda: Schedule(kind="exponential", end=0.0),
            "start and end of an exponential must be greater than 0; got 1.0, 0.0",
        ),
        "nesterov alone": (
            lambda: NGD([nn.Parameter(torch.zeros(3, 2))], lr=0.1, momentum=0, nesterov=True),
            "NGD: momentum must be greater than 0 with nesterov; got 0",
        ),
        "complex": (
            lambda: NGD([nn.Parameter(torch.zeros(3, 2, dtype=torch.complex64))], lr=0.1),
            "NGD: parameters must be real floating-point tensors; got torch.complex64",
        ),
        "sparse": (sparse_gradient, "NGD: gradients must be dense tensors"),
    }
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], words: str) -> None:
    refused(call, words)


OPTIONS: list[tuple[str, Any]] = [
    *[("lr", x) for x in (-0.1, math.nan, math.inf, "fast", True, None)],
    *[("momentum", x) for x in (-0.1, 1.0, math.nan)],
    *[("weight_decay", x) for x in (-1e-4, math.inf)],
    *[("rank", x) for x in (0, 1.5, True)],
    *[("alpha", x) for x in (-1.0, math.nan)],
    *[("eta", x) for x in (0.0, 1.0, math.nan)],
    *[("update_period", x) for x in (0, 2.5)],
    *[("epsilon", x) for x in (0.0, -1.0)],
    ("nesterov", 1),
    ("precondition", None),
]


@pytest.mark.parametrize(("name", "value"), OPTIONS, ids=str)
def test_options_of_ngd_are_refused_for_all_parameters_and_for_a_group(name: str, value: Any) -> None:
    weights, words = nn.Parameter(torch.zeros(2, 2)), f"NGD: {name} must be "
    refused(lambda: NGD([weights], **({"lr": 0.1} | {name: value})), words)
    refused(lambda: NGD([{"params": [weights], name: value}], lr=0.1), words)
