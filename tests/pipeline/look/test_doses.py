"""The dose at which the loss on plain texts has risen by a factor."""

import math

import numpy as np
import pytest
import torch

from probekit.interventions.edits import add, run_edited
from probekit.model.families.table import load_model
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.look.apply import ProbedModel, calibrated_doses
from probekit.report.pages.doses_page import doses_page

SITE = "blocks.1.hook_resid_post"
TEXTS = ["The keys to the old cabinet are on the table", "A dog", "The old man sat near the sea"]


@pytest.fixture(scope="module")
def network():
    model = load_model("mini")
    return ProbedModel(model, Tokenizer.from_pretrained("mini"), (SITE,))


@pytest.fixture(scope="module")
def vector(network):
    return np.random.default_rng(0).normal(size=network.model.config.d_model)


def test_the_loss_at_the_dose_is_the_factor_within_two_per_cent_of_the_dose(network, vector):
    dose, rows = calibrated_doses(network, vector, TEXTS, 1.2)
    nats, n_tokens = {0.0: 0.0, dose: 0.0, 1.02 * dose: 0.0}, 0
    for text in TEXTS:  # one by one, without padding
        ids = torch.tensor(network.tokenizer.encode(text).ids)[None].long()
        n_tokens += ids.shape[1] - 1
        for by in nats:
            logits = run_edited(network.model, ids, [(SITE, add(torch.from_numpy(by * vector)))])
            own = logits[0, :-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])
            nats[by] -= float(own.sum().detach())
    base, at, above = (value / n_tokens for value in nats.values())
    assert at / base <= 1.2 < above / base
    stored = rows.set_index("dose")["loss"]
    assert stored[0.0] == pytest.approx(base, rel=1e-6)
    assert stored[dose] == pytest.approx(at, rel=1e-6)
    page = doses_page(dose, rows, 1.2, "towards x", {"network": "mini", "texts": "8 of x"}).html()
    assert (
        f"A dose of {dose:.3g} standard deviations reaches the given limit, a loss 20 % higher"
        in page
    )
    assert "Only this cost is measured here" in page


@pytest.mark.parametrize(
    ("texts", "factor"),
    [(TEXTS, 1.0), (TEXTS, math.nan), (["A"], 1.1), ([], 1.1), (TEXTS, 1e6)],
    ids=["one", "nan", "short", "none", "beyond"],
)
def test_a_dose_that_cannot_be_found_is_refused(network, vector, refused, texts, factor):
    refused(calibrated_doses, network, 0.1 * vector, texts, factor)
