"""Test-time scaling by the probability of being kept, the paper's appendix B.2."""

import pytest
import torch
from structures import VARIED, make, run

import vnd
from vnd.nn import OrderingUnit
from vnd.nn.state import state_of


def test_an_expected_mask_scales_by_the_survival():
    unit = OrderingUnit(6, 6, base=2, rescale=True).eval()
    with torch.no_grad():
        unit.keep_logits.copy_(torch.tensor([2.0, 1.0, 0.0, -1.0]))
        unit.fixed_groups.fill_(4)
        survival = unit.posterior().chain.mean
        assert torch.equal(unit.mask(), torch.cat((torch.ones(2), survival[:2], torch.zeros(2))))
        # E over masks of what a linear reader sees in training is what it sees at full width in evaluation
        unit.fixed_groups.fill_(-1)
        weight = torch.randn(6)
        masks = unit.posterior().chain.enumerate_support()
        probs = unit.posterior().length_log_probs.exp()
        full = torch.cat((torch.ones(5, 2), masks), 1)
        torch.testing.assert_close(unit.mask() @ weight, probs @ (full @ weight))


@pytest.mark.filterwarnings("ignore:BatchNorm has no statistics")
@pytest.mark.parametrize("name", VARIED)
def test_masked_and_extracted_agree_with_rescaling(name):
    _, net, example = make(name, rescale="expected")
    net.eval()
    with torch.no_grad():
        for unit in state_of(net).units.values():
            unit.keep_logits.uniform_(-1, 2)
        for fraction in (0.5, 1.0):
            with vnd.width(net, fraction):
                masked = run(net, example)
            extracted = run(vnd.extract(net, fraction), example)
            assert masked.isfinite().all()
            assert float((masked - extracted).abs().max() / masked.abs().max()) <= 1e-12


def test_a_wrong_rescale_is_refused():
    with pytest.raises(ValueError, match="rescale must be 'none' or 'expected'; got 'half'"):
        vnd.to_nested(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(1, 2), rescale="half")
