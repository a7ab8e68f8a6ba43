"""The pages about weights: their answers, and no paths of this machine."""

import numpy as np
import pandas as pd

from probekit.report.pages.weights_page import overview_page, weight_page, weights_answer
from probekit.results.network import HeadWeights, WeightTensor


def rows(*tensors):
    columns = ("name", "shape", "least", "most")
    table = pd.DataFrame(tensors, columns=columns)
    return table.assign(dtype="float16", mean=0.0, std=0.5, norm=2.0)


def heads(qk):
    spectra = {"QK": np.array(qk)[:, None]}
    return HeadWeights(parts={}, norms=np.ones((4, len(qk))), spectra=spectra, drawn=())


def test_the_answer_of_an_overview_names_the_tensor_with_the_largest_weight():
    table = rows(("wte.weight", (8, 4), -1.0, 2.0), ("h.0.ln_1.bias", (4,), -3.0, 0.5))
    assert weights_answer(table) == (
        "36 weights in 2 tensors, all between −3 and 2; the largest in absolute value is in "
        "h.0.ln_1.bias."
    )
    page = overview_page(table, "/data/mine/models/mine")
    assert "How large are the weights of mine?" in page
    assert "/data/mine" not in page


def test_the_answer_of_an_attention_tensor_names_the_strongest_head():
    table = rows(("h.0.attn.c_attn.weight", (4, 12), -1.0, 1.0))
    answer = weights_answer(table, heads([2.0, 3.5, 3.0]))
    assert answer == (
        "48 weights between −1 and 1, with a standard deviation of 0.5; head 1 has the largest "
        "singular value of W_QK (3.5, next 3)."
    )
    assert weights_answer(table, heads([2.0])).endswith("value of W_QK (2).")


def test_the_page_of_one_tensor_has_its_numbers_once():
    table = rows(("ln_f.bias", (3,), -1.0, 1.0))
    values = np.array([-1.0, 0.0, 1.0], np.float32)
    page = weight_page(WeightTensor(table, values, (), None, None), "mini")
    assert "Which values does ln_f.bias have?" in page
    assert "<bdi>shape</bdi></th><td>3</td>" in page
    assert "Table of tensors" not in page
