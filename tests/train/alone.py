"""Train a recipe in a process of its own, one of several where the environment says so; for test_loop.py."""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

from torch import Tensor, nn

from vnd.models import MODELS
from vnd.train import state
from vnd.train.config import parse
from vnd.train.loop import fit


class Dense(nn.Module):
    """A network without BatchNorm."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.config = {"num_classes": num_classes}
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, num_classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    MODELS["dense"] = Dense
    if os.environ.get("VND_TEST_DIES", "nobody") == os.environ.get("RANK"):
        state.TrainState.move_average = lambda self: os.kill(os.getpid(), signal.SIGKILL) if self.step == 3 else None
    fit(parse(json.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2]), quiet=True)
