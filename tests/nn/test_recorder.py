"""The recorder: what a run of an example writes down."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vnd.nn.recorder import INTEGERS, NUMBERS, TracedInt, record, signature


class Block(nn.Module):
    """Sizes from tensors, attributes and literals; an input by name; a branch on a size; a dict as output."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.scale = 4, nn.Parameter(torch.ones(8))
        self.inner, self.act = nn.Linear(8, 8), nn.ReLU(inplace=True)

    def forward(self, x: Tensor, *, ids: Tensor) -> dict[str, Tensor]:
        batch, time, channels = x.shape
        if time > 3:
            x = self.act(self.inner(x))
        x = x.view(batch, time, self.heads, channels // self.heads).transpose(1, 2)
        return {"a": x.reshape(batch, -1) * 2, "b": x[ids]}


def leaf(path: str, module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, nn.ReLU))


def run(model: nn.Module, *args: Tensor, **kwargs: Tensor):
    return record(model.eval(), args, kwargs, leaf)


def test_a_run_is_written_down_in_order():
    block = Block()
    recording = run(block, torch.randn(2, 5, 8), ids=torch.tensor([0, 1]))
    assert [call.name for call in recording.calls] == [
        *("Linear", "ReLU", "view", "transpose", "reshape", "mul", "getitem")
    ]
    linear, relu, view = recording.calls[:3]
    assert linear.module is block.inner
    assert linear.scope == "inner"
    assert view.args[0] is relu.outputs[0]  # in place: the tensor is a new value
    assert view in relu.outputs[0].users
    assert view.args[1:] == (2, 5, 4, 2)
    assert view.args[1].source == ("size", recording.inputs[0], 0)
    assert view.args[3].source == ("attribute", "", "heads", None)
    assert view.args[4].evaluate(lambda source: 40 if source[0] == "size" else 4) == 10
    assert __file__ in view.where
    assert [value.shape for value in recording.outputs] == [(2, 40), (2, 4, 5, 2)]
    assert [(s.path, s.first, s.last) for s in recording.scopes] == [("", 0, 7)]
    assert "forward" not in vars(block.inner)  # it is as it was
    assert block(torch.randn(2, 5, 8), ids=torch.tensor([0]))["b"].shape == (1, 4, 5, 2)


def test_parameters_are_known_by_name_and_what_depends_on_data_is():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            if self.other > 0 or ids.max().item() > 5:
                x = x + 1
            return x * self.w if float(x.sum()) > 0 else x

    recording = run(Model(), torch.ones(2, 3), torch.tensor([1, 2]))
    assert [value.parameter for value in recording.calls[-1].inputs] == [None, "w"]
    assert [(level, name) for level, name, _ in recording.seen] == [(INTEGERS, "item"), (NUMBERS, "__float__")]
    assert all(__file__ in where for _, _, where in recording.seen)


def test_two_runs_are_compared_but_for_their_sizes():
    block = Block()
    first, second, third = (run(block, torch.randn(2, n, 8), ids=torch.tensor([0])) for n in (5, 6, 3))
    assert signature(first) == signature(second)
    assert signature(first) != signature(third)


def test_traced_integers_are_integers_through_sums_and_products():
    size = TracedInt.of(6, "attribute", "layer", "n", None)
    made = (2 * size - 1) // 3 + size % 4
    assert made == 5
    assert isinstance(made, TracedInt)
    assert [source[2] for source in made.leaves()] == ["n", "n"]
    assert made.evaluate(lambda source: 10) == 8
    assert isinstance(size / 2, float)
    assert torch.zeros(size).shape == (6,)
    assert F.pad(torch.zeros(1), (0, size)).shape == (7,)
