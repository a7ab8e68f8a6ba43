"""The pages about weights: their answers, and no paths of this machine."""

import numpy as np
import pandas as pd

from probekit.report.pages.weights_page import overview_page, weight_page, weights_answer
from probekit.results.network import HeadWeights, WeightTensor
from tests.report.page_text import text_of


def rows(*tensors):
    table = pd.DataFrame(tensors, columns=("name", "shape", "least", "most"))
    return table.assign(dtype="float16", mean=0.0, std=0.5, norm=2.0)


def heads(qk):
    spectra = {"QK": np.array(qk)[:, None]}
    return HeadWeights(parts={}, norms=np.ones((4, len(qk))), spectra=spectra, drawn=())


def test_pages_and_answers_are_those_that_are_stored(snapshot):
    table = rows(("wte.weight", (8, 4), -1.0, 2.0), ("h.0.ln_1.bias", (4,), -3.0, 0.5))
    attention = rows(("h.0.attn.c_attn.weight", (4, 12), -1.0, 1.0))
    vector = rows(("ln_f.bias", (3,), -1.0, 1.0))
    values = np.array([-1.0, 0.0, 1.0], np.float32)
    assert weights_answer(attention, heads([2.0, 3.5, 3.0])) == snapshot
    assert weights_answer(attention, heads([2.0])) == snapshot
    overview = overview_page(table, "/data/mine/models/mine").html()
    assert "/data/mine" not in overview
    assert text_of(overview) == snapshot
    one = WeightTensor(vector, values, (), None, None)
    assert text_of(weight_page(one, "mini").html()) == snapshot
