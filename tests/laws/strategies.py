"""What hypothesis draws parameters from."""

import hypothesis.strategies as st
import torch
from torch import Tensor

finite_logit = st.floats(-30, 30, allow_nan=False)
any_logit = st.one_of(finite_logit, st.sampled_from([-torch.inf, torch.inf, -1e4, 1e4, -50.0, 50.0, 0.0]))
temperature = st.floats(0.05, 100.0)
seed = st.integers(0, 2**31)


def vector(elements: st.SearchStrategy[float], low: int = 1, high: int = 12) -> st.SearchStrategy[Tensor]:
    return st.lists(elements, min_size=low, max_size=high).map(lambda x: torch.tensor(x, dtype=torch.float64))


@st.composite
def vectors(draw: st.DrawFn, elements: st.SearchStrategy[float], count: int) -> list[Tensor]:
    """Several vectors of one size."""
    n = draw(st.integers(1, 10))
    return [draw(vector(elements, n, n)) for _ in range(count)]


keep_logits = vector(finite_logit)
any_keep_logits = vector(any_logit)
length_probs = vector(st.one_of(st.just(0.0), st.floats(1e-6, 1.0)), 2, 12).filter(lambda p: bool(p.sum() > 0))
