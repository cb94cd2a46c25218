"""Fixtures of every test: one seed, each device there is, and hypothesis without a clock."""

import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("vnd", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("vnd")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script; but tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def fresh_start() -> None:
    """One seed; and validation on, which torch.compile turns off for the whole process."""
    torch.manual_seed(20260)
    torch.distributions.Distribution.set_default_validate_args(True)


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def float64() -> Iterator[None]:
    """Float64 as the default dtype, for tests of closed forms."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
