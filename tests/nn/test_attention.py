"""Attention whose heads can be dropped: with all of them it is torch's, with fewer that of the masked network."""

import copy

import pytest
import torch
from structures import gap
from torch import Tensor, nn

import vnd
from covering import pairs
from vnd.nn.attention import HeadwiseAttention, close_attention, open_attention
from vnd.nn.state import state_of

HEADS, WIDTH, BATCH, QUERIES, KEYS = 2, 8, 3, 4, 5


def masks(kind: str, batched: bool) -> dict[str, Tensor]:
    """Arguments of attention that keep queries from some keys."""
    torch.manual_seed(3)
    allowed = torch.rand(QUERIES, KEYS) > 0.4
    allowed[:, 0] = True
    padded = torch.zeros(BATCH, KEYS, dtype=torch.bool)
    padded[1:, 3:] = True
    by_head = torch.randn(BATCH * HEADS if batched else HEADS, QUERIES, KEYS).double()
    padded = padded if batched else padded[1]
    return {
        "none": {},
        "pairs": {"attn_mask": ~allowed},
        "added to scores": {"attn_mask": torch.randn(QUERIES, KEYS).double()},
        "by head": {"attn_mask": by_head},
        "padding": {"key_padding_mask": padded},
        "padding, added": {"key_padding_mask": padded.double() * -3},
        "both": {"attn_mask": by_head, "key_padding_mask": padded.double() * -3},
    }[kind]


OPTIONS = {
    "mask": ("none", "pairs", "added to scores", "by head", "padding", "padding, added", "both"),
    "batch_first": (True, False),
    "batched": (True, False),
    "bias": (True, False),
    "sizes": ({}, {"kdim": 6, "vdim": 7}),
    "weights": ({"need_weights": False}, {"need_weights": True}, {"average_attn_weights": False}),
}


@pytest.mark.parametrize("case", pairs(*OPTIONS.values()), ids=lambda case: ", ".join(map(str, case)))
def test_with_all_heads_it_is_torch_s_layer(case):
    case = dict(zip(OPTIONS, case, strict=True))
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(WIDTH, HEADS, bias=case["bias"], batch_first=case["batch_first"], **case["sizes"])
    plain = plain.double().eval()
    sizes = WIDTH, case["sizes"].get("kdim", WIDTH), case["sizes"].get("vdim", WIDTH)
    given = [torch.randn(BATCH, n, size).double() for n, size in zip((QUERIES, KEYS, KEYS), sizes, strict=True)]
    if not case["batched"]:
        given = [x[0] for x in given]
    elif not case["batch_first"]:
        given = [x.transpose(0, 1) for x in given]
    opened = nn.Sequential(copy.deepcopy(plain))
    open_attention(opened)
    assert type(opened[0]) is HeadwiseAttention
    options = {**masks(case["mask"], case["batched"]), **case["weights"]}
    for wanted, found in zip(plain(*given, **options), opened[0](*given, **options), strict=True):
        assert (wanted is None) == (found is None)
        assert wanted is None or gap(wanted, found) <= 1e-12
    close_attention(opened)
    assert type(opened[0]) is nn.MultiheadAttention


def test_a_mask_that_is_left_out_is_caught(monkeypatch):
    plain = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double().eval()
    opened, x = nn.Sequential(copy.deepcopy(plain)), torch.randn(BATCH, KEYS, WIDTH).double()
    open_attention(opened)
    monkeypatch.setattr(HeadwiseAttention, "_mask", lambda *_: None)
    options = {"key_padding_mask": masks("padding", True)["key_padding_mask"]}
    assert gap(plain(x, x, x, **options)[0], opened[0](x, x, x, **options)[0]) > 1e-3


def test_causal_attention_is_torch_s():
    plain, x = (
        nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double().eval(),
        torch.randn(2, KEYS, WIDTH).double(),
    )
    opened = nn.Sequential(copy.deepcopy(plain))
    open_attention(opened)
    mask = nn.Transformer.generate_square_subsequent_mask(KEYS, dtype=x.dtype)
    for weights in (True, False):
        options = {"attn_mask": mask, "is_causal": True, "need_weights": weights}
        assert gap(plain(x, x, x, **options)[0], opened[0](x, x, x, **options)[0]) <= 1e-12


class Cross(nn.Module):
    """A stream that attends to a memory of another width, padded."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        self.attention = nn.MultiheadAttention(WIDTH, 4, kdim=6, vdim=7, batch_first=batch_first)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, padding: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attention(x, keys, values, key_padding_mask=padding, need_weights=False)[0]
        return self.head(x)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kept", [1, 2, 3, 4])
def test_with_fewer_heads_and_channels_it_is_what_the_masked_layer_does(batch_first, kept):
    torch.manual_seed(0)
    given = [torch.randn(BATCH, n, size).double() for n, size in ((QUERIES, 5), (KEYS, 6), (KEYS, 7))]
    if not batch_first:
        given = [x.transpose(0, 1) for x in given]
    example = (*given, masks("padding", True)["key_padding_mask"])
    net = vnd.to_nested(Cross(batch_first).double().eval(), example, num_groups=4, residual=True).eval()
    assert set(state_of(net).units) == {"embed", "attention"}
    shape = vnd.Shape({"embed": 5 - kept, "attention": kept})
    small = vnd.extract(net, shape)
    with torch.no_grad(), vnd.width(net, shape):
        assert gap(net(*example), small(*example)) <= 1e-12
    assert small.attention.q_proj_weight.shape == (2 * kept, 2 * (5 - kept))
    assert (small.attention.num_heads, small.attention.head_dim) == (kept, 2)
    assert (small.attention.kdim, small.attention.vdim) == (6, 7)
