"""The pages of comparisons and transfers, as a browser shows them; names do no harm."""

import itertools

import numpy as np
import pandas as pd
import pytest

from probekit.report.compare_page import comparison_page, difference_figure
from probekit.report.comparison import COLUMNS, Comparison, Setting
from probekit.report.transfer_page import transfer_page
from probekit.report.transfer_table import COSINES, SCORES, Transfer

SITES = ("blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "ln_final.hook_normalized")


@pytest.fixture
def comparison(hostile):
    rows = [
        {"what": "site", "target": "task", "site_a": site, "site_b": site, "position_a": "last",
         "position_b": "last", "view_a": "raw", "view_b": "raw", "probe_a": probe,
         "probe_b": probe, "metric": "accuracy", "value_a": 0.8, "value_b": 0.6,
         "difference": 0.1 * n, "ci_low": 0.1 * n - 0.15, "ci_high": 0.1 * n + 0.15, "p": 0.01,
         "p_holm": 0.04 + n / 50, "holds": n == 0, "n_a": 100, "n_b": 90}
        for n, site in enumerate(SITES) for probe in ("logistic", "mass_mean")
    ]  # fmt: skip
    rows.append(
        rows[0] | {"what": "baseline", "target": "majority", "site_a": None, "site_b": None}
    )
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    setting = Setting("data.name", hostile, "b")
    return Comparison(hostile, "b", "accuracy", "paired", table, (setting,), (hostile,))


@pytest.fixture
def transfer(hostile):
    names = ("short", "a_much_longer_name-of.a.data-set", "third")
    keys = [
        {"model": "mini", "site": site, "position": "last", "view": "raw", "probe": "logistic",
         "train": train, "test": test}
        for site in SITES for train, test in itertools.product(names, names)
    ]  # fmt: skip
    generator = np.random.default_rng(0)
    scores = [
        key | {"metric": "accuracy", "value": value, "ci_low": value - 0.1, "ci_high": value + 0.1,
               "chance": 0.5, "difference": -0.1, "difference_low": -0.2, "difference_high": 0.0}
        for key, value in zip(keys, generator.uniform(0.3, 1, len(keys)), strict=True)
    ]  # fmt: skip
    cosines = [
        key | {"space": space, "cosine": 0.4, "null_low": -0.1, "null_high": 0.1, "p": 0.05}
        for space in ("raw", "standardised") for key in keys
    ]  # fmt: skip
    return Transfer(
        names, "mini", pd.DataFrame(scores, columns=list(SCORES)),
        pd.DataFrame(cosines, columns=list(COSINES)), (SITES[1], "logistic"), (hostile,),
    )  # fmt: skip


def test_marks_are_filled_where_a_difference_holds(comparison):
    logistic, mass_mean = difference_figure(comparison).data
    assert list(logistic.marker.symbol) == ["circle", "circle-open", "circle-open"]
    assert list(mass_mean.marker.symbol) == ["square", "square-open", "square-open"]
    assert list(logistic.x) == [-1, 0, 1]
    assert np.allclose(logistic.error_y.array, 0.15)


@pytest.mark.parametrize("kind", ["comparison", "transfer"])
def test_pages_fit_every_window_in_silence(browser, tmp_path, kind, request):
    made = request.getfixturevalue(kind)
    path = tmp_path / "page.html"
    path.write_text((comparison_page if kind == "comparison" else transfer_page)(made), "utf-8")
    browser.open(path, width=1400)
    n_open = {"comparison": 1, "transfer": 4}[kind]
    drawn = "document.querySelectorAll('.drawing > .plot-container').length"
    assert browser.evaluate(drawn) == n_open
    for width in (1400, 700, 360):
        browser.resize(width)
        browser.settle()
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.trouble == []
