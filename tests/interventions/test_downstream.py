"""After erasure the label is gone at its site, and comes back where another position brings it."""

import numpy as np
import pytest
import torch

from probekit.errors import ConfigError
from probekit.interventions.directions import Responder
from probekit.interventions.erasure import downstream_scores, leace
from probekit.interventions.measures import AnswerMeasure
from probekit.model.sites.sites import SiteSelection
from tests.interventions.hand_set import LAST, hand_set, texts

PRE = SiteSelection("blocks.0.hook_resid_pre")
SITES = ["blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post"]


def scores(position, labelled):
    model = hand_set()
    batch, codes, groups = texts(200, at=labelled)
    at = torch.full((200,), position)
    answers = AnswerMeasure(torch.zeros(200, dtype=torch.int64), torch.ones(200, dtype=torch.int64))
    X = Responder(model, batch, PRE, at, answers).features()
    train = np.flatnonzero(groups < np.median(groups))
    eraser = leace(X[train], codes[train])
    return downstream_scores(model, batch, codes, groups, train, (PRE, eraser), SITES, at)


def test_information_comes_back_where_attention_brings_it():
    first, second, third = scores(LAST, labelled=(1, LAST))
    assert first["before"] > 0.95
    assert first["after"] < 0.65
    for later in (second, third):
        assert later["before"] > 0.95
        assert later["after"] > 0.95
    assert first["chance"] == 0.5
    assert (first["n"], first["site"]) == (100, PRE.text)


def test_information_that_is_nowhere_else_stays_erased():
    for one in scores(2, labelled=(2,)):
        assert one["before"] > 0.95
        assert one["after"] < 0.65
        assert one["after_low"] <= 0.5 <= one["after_high"]


def test_sites_before_the_erasure_are_refused():
    model = hand_set()
    batch, codes, groups = texts(20)
    later = SiteSelection("blocks.1.hook_resid_pre")
    eraser = leace(np.random.default_rng(0).normal(size=(20, 24)), codes)
    with pytest.raises(ConfigError, match=r"blocks\.0\.hook_resid_pre is before blocks\.1"):
        downstream_scores(
            model,
            batch,
            codes,
            groups,
            np.arange(10),
            (later, eraser),
            SITES,
            torch.ones(20).long(),
        )
