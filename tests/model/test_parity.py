"""Our GPT-2 against the reference implementation on the same weights, at every site."""

import pytest
import torch

from tests.model.reference import SMALL, TINY, differences

CASES = [
    pytest.param(TINY, [5, 1, 8, 3], id="tiny"),
    pytest.param(SMALL, [7, 2], id="gpt2-shape"),
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("dtype", "logit_bound", "site_bound"),
    [(torch.float32, 5e-5, 1e-5), (torch.float64, 1e-10, 1e-10)],
    ids=["float32", "float64"],
)
@pytest.mark.parametrize(("config", "lengths"), CASES)
def test_every_site_equals_the_reference(config, lengths, dtype, logit_bound, site_bound, side):
    worst = differences(config, dtype, side, lengths)
    assert len(worst) == 2 + 4 + 18 * config.n_layer
    for site, (absolute, relative) in worst.items():
        if site.startswith("logits"):
            assert absolute < logit_bound, site
        else:
            assert relative < site_bound, site
