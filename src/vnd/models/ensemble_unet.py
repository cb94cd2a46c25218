"""Several UNets side by side, each from a random start of its own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vnd.models.initialise import check_counts
from vnd.models.unet import UNet


class EnsembleUNet(nn.Module):
    r"""M UNets that share nothing but their images; together they answer with the mean of their probabilities.

    $$p = \frac1M \sum_m σ(\ell_m), \qquad \text{logit} = \log p - \log (1 - p)$$

    Paper: Sec. 6.3, "a deep ensemble of UNet".

    Args:
        in_channels: Channels of the images.
        channels: Channels of each level.
        members: How many there are.

    Shape: (B, in_channels, H, W) to logits (B, 1, H, W); H and W multiples of 2^(L−1), by default 8.

    >>> network = EnsembleUNet(channels=(4, 8), members=3)
    >>> network(torch.ones(2, 1, 8, 8)).shape, network.logits(torch.ones(2, 1, 8, 8)).shape
    (torch.Size([2, 1, 8, 8]), torch.Size([3, 2, 8, 8]))
    """

    def __init__(self, in_channels: int = 1, channels: Sequence[int] = (32, 64, 128, 192), members: int = 4) -> None:
        super().__init__()
        check_counts("EnsembleUNet", members=members)
        self.members = nn.ModuleList(UNet(in_channels, 1, channels) for _ in range(members))
        self.config: dict[str, Any] = {"in_channels": in_channels, "channels": list(channels), "members": members}

    def logits(self, x: Tensor) -> Tensor:
        """Those of every member, (M, B, H, W)."""
        return torch.stack([member(x).squeeze(1) for member in self.members])

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the members' mean probabilities."""
        logits = self.logits(x)
        return (F.logsigmoid(logits).logsumexp(0) - F.logsigmoid(-logits).logsumexp(0)).unsqueeze(1)
