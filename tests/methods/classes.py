"""Classifiers that tests share: every method with options of its own, a small network, images of noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vnd.methods import BN3, FN3, IBNN, SN3, SVB, Method, OrderedL0, Plain, Step, USNet
from vnd.models import ConvNet
from vnd.nn import OrderingUnit

SMALL: dict[str, Method] = {
    "bn3": BN3(num_groups=4, measure_every=2),
    "bn3 sandwich": BN3(num_groups=4, measure_every=2, sandwich=True, distill=0.5),
    "bn3 fixed_budgets": BN3(
        num_groups=4,
        gradient="survival",
        sandwich=True,
        fixed_budgets=(1200.0,),
        freeze_order_after=0.5,
        length_kl_weight=0.01,
    ),
    "bn3 paper": BN3(num_groups=4, coupling="independent", gradient="downhill"),
    "fn3": FN3(num_groups=4),
    "fn3 independent": FN3(num_groups=4, coupling="independent", draws=2),
    "ibnn": IBNN(fraction=0.5, num_groups=4),
    "svb": SVB(),
    "ordered_l0": OrderedL0(num_groups=4, measure_every=2),
    "us_net": USNet(num_groups=4),
    "us_net fixed_budgets": USNet(num_groups=4, fixed_budgets=(1200.0,)),
    "plain": Plain(),
    "plain, half": Plain(fraction=0.5, num_groups=4),
    "sn3": SN3(keep=0.5, samples=3, student_samples=4, label_weight=1.0),  # its teacher: test_laws.py
}


def network() -> ConvNet:
    torch.manual_seed(1)
    return ConvNet(num_classes=3, width=0.15, image_size=8, in_channels=1, hidden=32)


def batch(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, 1, 8, 8, generator=generator), torch.arange(count) % 3


def step(index: int = 0, kl_weight: float = 0.1) -> Step:
    return Step(index, torch.tensor(kl_weight), 2.0, num_data=50)


def model_of(method: Method) -> nn.Module:
    return method.build(network(), batch()[0][:2]).train()


def same(value: Tensor) -> Tensor:
    return value


def units_of(model: nn.Module) -> list[OrderingUnit]:
    return [module for module in model.modules() if isinstance(module, OrderingUnit)]


def everything(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, those too that a state_dict leaves out."""
    return {key: value.detach().clone() for key, value in (*model.named_parameters(), *model.named_buffers())}


@torch.no_grad()
def put_back(model: nn.Module, state: dict[str, Tensor]) -> None:
    for key, value in (*model.named_parameters(), *model.named_buffers()):
        value.copy_(state[key])


def changed_in(model: nn.Module, state: dict[str, Tensor]) -> set[str]:
    return {key for key, value in everything(model).items() if not torch.equal(value, state[key])}
