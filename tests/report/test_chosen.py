"""Figures and worst errors of the selected probe, shown only if the run has saved them."""

import json

import numpy as np
import pandas as pd
import pytest

from probekit.errors import DataError
from probekit.report.figures.chosen_figures import (
    confusion_matrix,
    direction_map,
    neuron_ranking,
    ranked_neurons,
    scatter_plane,
)
from probekit.report.pages.parts import chosen_parts
from probekit.report.pages.run_page import write_report
from probekit.report.pages.wrong_examples import WrongExamples, errors_section, load_wrong
from tests.report.conftest import HOSTILE, SITES, judged, row, seal_run
from tests.report.pictures import AUDIT

COUNTS = {"n_directions": 1, "n_features": 48}


@pytest.fixture
def confusion():
    return pd.DataFrame(
        [("Plur", "Plur", 30), ("Plur", "NA", 10), ("NA", "Plur", 5), ("NA", "NA", 15)],
        columns=["truth", "guess", "n"],
    )


@pytest.fixture
def scatter():
    points = np.random.default_rng(0).normal(size=(2, 40, 2))
    return pd.concat(
        pd.DataFrame(
            {
                "method": method,
                "x": plane[:, 0],
                "y": plane[:, 1],
                "axis_x": "one",
                "axis_y": "two",
                "label": ["a", HOSTILE] * 20,
            }
        )
        for method, plane in zip(("PCA", "LDA"), points, strict=True)
    )


@pytest.fixture
def wrong():
    token = {"token": HOSTILE, "span": [0, 0], "label": "Sing", "score": 2.0}
    example = {
        "text": HOSTILE,
        "span": None,
        "group": "g",
        "label": "Plur",
        "guess": "Sing",
        "ahead": 3.0,
        "tokens": [token, {**token, "token": " x", "score": -1.0}],
    }
    return {"classes": ["Plur", "Sing"], "examples": [example], "probes": [], "rows": []}


def test_true_labels_stand_down_and_rows_add_up_to_one(confusion):
    trace, _ = confusion_matrix(confusion).data
    figure = confusion_matrix(confusion)
    assert (
        list(figure.layout.yaxis.ticktext) == list(figure.layout.xaxis.ticktext) == ["NA", "Plur"]
    )
    assert np.array(trace.z).tolist() == [[0.75, 0.25], [0.25, 0.75]]
    assert "10 of 40" in trace.hovertext[1][0]


def test_a_label_without_rows_has_no_shares(confusion):
    confusion.loc[confusion["truth"] == "NA", "n"] = 0
    trace, _ = confusion_matrix(confusion).data
    assert np.isnan(np.array(trace.z, dtype=float)[0]).all()


def test_each_label_of_a_plane_has_a_colour_and_a_mark_of_its_own(scatter):
    figure = scatter_plane(scatter, "PCA")
    looks = {(trace.marker.color, trace.marker.symbol) for trace in figure.data}
    assert len(looks) == len(figure.data) == 2
    assert [figure.layout.xaxis.title.text, figure.layout.yaxis.title.text] == ["one", "two"]


def test_many_labels_share_a_look(scatter):
    scatter["label"] = [str(n % 25) for n in range(len(scatter))]
    assert len(scatter_plane(scatter, "LDA").data) == 10


def test_directions_stand_in_the_order_of_the_layers():
    sites = [SITES[2], SITES[0], SITES[-1]]
    rows = pd.DataFrame(
        [{"site_a": a, "site_b": b, "cosine": 1.0 if a == b else 0.5} for a in sites for b in sites]
    )
    figure = direction_map(rows)
    assert list(figure.layout.xaxis.ticktext) == ["embed", "1", "final norm"]
    assert (figure.data[0].zmin, figure.data[0].zmax) == (-1, 1)


def test_cosines_are_compared_with_probes_of_permuted_labels(tmp_path, table):
    rows = pd.DataFrame(
        [
            {"site_a": a, "site_b": b, "cosine": 1.0 if a == b else 0.5} | COUNTS
            for a in SITES[1:3]
            for b in SITES[1:3]
        ]
    )
    with_null = rows.assign(null_high=0.31, n_null=100)
    captions = []
    for one in (with_null, rows.assign(null_high=np.nan)):
        one.to_csv(tmp_path / "cosines.csv", index=False)
        captions += [part.caption for part in chosen_parts(tmp_path, table, judged(table))]
    assert (
        "95 % have an absolute cosine with the probe of the other site of at most 0.31."
        in (captions[0])
    )
    assert "±0.310" in direction_map(with_null).data[0].hovertext[0][1]
    assert "No probes were fitted on permuted labels" in captions[1]


def test_neurons_are_ranked_by_validation_and_shown_by_test(table):
    assert ranked_neurons(table).empty
    rows = []
    for n in range(6):
        site = f"blocks.1.mlp.hook_post[neuron={n}]"
        rows += [
            row(site, "task", 0.5 + 0.05 * n, split="validation"),
            row(site, "task", 0.9 - n / 50),
        ]
    (trace, *_) = neuron_ranking(pd.DataFrame(rows)).data
    assert list(trace.x) == pytest.approx([0.9 - n / 50 for n in reversed(range(6))])


def write_chosen(run, confusion, scatter, wrong):
    confusion.to_csv(run / "confusion.csv", index=False)
    scatter.to_csv(run / "scatter.csv", index=False)
    (run / "wrong.json").write_text(json.dumps(wrong))
    return seal_run(run)


def test_the_page_shows_them_where_the_run_has_them(
    browser, report_of, make_run, confusion, scatter, wrong
):
    titles = ["Confusion matrix", f"{SITES[3]} by PCA", f"{SITES[3]} by LDA"]
    plain = report_of("plain").read_text("utf-8")
    assert not [title for title in titles if title in plain]
    page = write_report(write_chosen(make_run(), confusion, scatter, wrong))
    places = [page.read_text("utf-8").index(f"<summary>{title}</summary>") for title in titles]
    assert places == sorted(places)
    browser.open(page, width=360)
    assert browser.evaluate("document.documentElement.scrollWidth") <= 360
    tokens = "[...document.querySelectorAll('.text .token')].map(token => token.textContent)"
    assert browser.evaluate(tokens)[1] == "␣x"
    assert "<b>%{x}</b>" in browser.evaluate(tokens)[0]
    browser.unfold()
    assert browser.trouble == []


SAW = "I saw the man saw the saw."
SAW_TOKENS = ["I", " saw", " the", " man", " saw", " the", " saw", "."]


@pytest.mark.parametrize("has_tokens", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("guess", ["Sing", "NA"], ids=["two", "three"])
def test_an_error_says_which_word_it_is_about(browser, make_run, wrong, has_tokens, guess):
    ends = np.cumsum([len(token) for token in SAW_TOKENS]).tolist()
    tokens = [
        {"token": token, "span": [end - len(token), end], "label": "Plur", "score": 1.0}
        for token, end in zip(SAW_TOKENS, ends, strict=True)
    ]
    of_a_word = {"text": SAW, "span": [2, 5], "guess": guess, "tokens": tokens * has_tokens}
    wrong["classes"] = sorted({*wrong["classes"], guess})
    wrong["examples"] = [wrong["examples"][0] | of_a_word]
    run = make_run()
    (run / "wrong.json").write_text(json.dumps(wrong))
    browser.open(write_report(seal_run(run)))
    section = "[...document.querySelectorAll('section')].find(one => one.textContent.includes("
    section += "'Worst errors'))"
    marked = f"[...{section}.querySelectorAll('mark')].map(one => one.querySelector('bdi') ?? one)"
    assert browser.evaluate(f"{marked}.map(one => one.textContent)") == ["saw"]
    before = f"{marked}[0].closest('mark').previousElementSibling"
    assert browser.evaluate(f"{before} === null") is not has_tokens
    assert [fault for fault in browser.evaluate(AUDIT) if "<small>" in fault] == []
    note = "The labelled span is underlined."
    assert (note in browser.evaluate(f"{section}.textContent")) is has_tokens


def test_tokens_without_characters_are_not_marked(wrong):
    wrong["examples"][0]["span"] = [0, 3]
    examples = WrongExamples.model_validate(wrong)
    assert not examples.has_marks
    assert "is underlined" not in errors_section(examples, is_nested=False).items[0].html


ERROR = {"row": 0, "guess": "Sing", "ahead": 1.5}
OF_PROBE = {
    "name": "p", "site": SITES[0], "head": None, "position": "last", "probe": "logistic",
    "n_wrong": 1, "n_rows": 2, "errors": [ERROR],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [({"classes": 3}, ""), ({"probes": [OF_PROBE]}, "row that does not exist")],
)
def test_a_damaged_file_is_named(tmp_path, wrong, change, message):
    (tmp_path / "wrong.json").write_text(json.dumps(wrong | change))
    with pytest.raises(DataError, match=rf"(?s)wrong\.json.*{message}"):
        load_wrong(tmp_path)


def test_the_table_of_sites_sorts_by_keys_and_is_saved_whole(browser, report_of, tmp_path):
    page = report_of("plain")
    browser.open(page)
    browser.download_to(tmp_path)
    first = "document.querySelector('.sortable tbody th code').textContent"
    heads = "[...document.querySelectorAll('.sortable thead button')]"
    head = f"{heads}.find(button => button.textContent === 'accuracy')"
    browser.evaluate(f"{head}.focus()")
    browser.evaluate("document.activeElement.click()")
    assert browser.evaluate(first) == "blocks.2.hook_resid_post"
    browser.evaluate("document.activeElement.click()")
    assert browser.evaluate(first) == "blocks.0.hook_resid_pre"
    browser.evaluate("document.querySelector('a.save').click()")
    browser.settle(800)
    (saved,) = tmp_path.glob("*.csv")
    assert saved.read_bytes() == page.with_name("results.csv").read_bytes()
    assert browser.trouble == []


def test_what_is_below_a_number_is_sorted_before_it(browser, report_of):
    browser.open(report_of("plain"))
    cells = "[...document.querySelector('.sortable').tBodies[0].rows].map(row => row.cells[2])"
    shown = ["0.30", "<0.001", "0.004", "−" + "1"]
    browser.evaluate(f"{cells}.forEach((cell, n) => cell.textContent = {shown}[n] ?? '–')")
    browser.evaluate("document.querySelectorAll('.sortable thead button')[2].click()")
    descending = browser.evaluate(f"{cells}.map(cell => cell.textContent)")
    browser.evaluate("document.querySelectorAll('.sortable thead button')[2].click()")
    ascending = browser.evaluate(f"{cells}.map(cell => cell.textContent)")
    numbers = [text for text in shown if text in descending]
    assert "<0.001" in numbers
    order = sorted(numbers, key=["−" + "1", "<0.001", "0.004", "0.30"].index)
    assert ascending[: len(numbers)] == order
    assert descending[: len(numbers)] == order[::-1]


def test_a_figure_is_drawn_once(browser, report_of, tmp_path):
    page, counted = report_of("plain"), tmp_path / "counted.html"
    counting = (
        "<script>window.draws = 0; for (const name of ['newPlot', 'relayout', 'react']) {"
        "const own = Plotly[name]; Plotly[name] = (...given) => { window.draws += 1;"
        'return own(...given); }; }</script><script type="module">'
    )
    counted.write_text(page.read_text().replace('<script type="module">', counting, 1))
    browser.open(counted)
    plots = "[...document.querySelectorAll('.plot')]"
    open_plots = f"{plots}.filter(plot => !plot.closest('details')).length"
    assert browser.evaluate("window.draws") == browser.evaluate(open_plots)


LONG = "a" * 300 + "1"


def test_long_labels_and_direction_marks_do_not_break_figures():
    labels = (LONG, "b\u202e", LONG.replace("1", "2"))
    rows = pd.DataFrame(
        [(a, b, 3) for a in labels for b in labels], columns=["truth", "guess", "n"]
    )
    figure = confusion_matrix(rows)
    shown = figure.layout.xaxis.ticktext
    assert len(set(shown)) == 3
    assert max(map(len, shown)) <= 50
    assert "b&lt;U+202E&gt;" in shown
    assert "\u202e" not in figure.to_json()
    points = pd.DataFrame({"method": "PCA", "x": 0.0, "y": 1.0, "label": labels})
    plane = scatter_plane(points.assign(axis_x="1", axis_y="2"), "PCA")
    assert {trace.name for trace in plane.data} == set(shown)


def test_the_page_states_why_there_is_no_confusion_matrix(report_of, make_run, record):
    reason = "Confusion matrix, scatter plots, cosines of directions and errors are computed for at"
    assert reason not in report_of("plain").read_text()
    record["data"]["labels"] = {"train": {f"c{n}": 10 for n in range(60)}, "test": {}}
    page = write_report(make_run(record=record)).read_text()
    assert f"The data have 60 classes. {reason} most 40." in page


def test_missing_pairs_of_labels_are_no_rows(confusion):
    figure = confusion_matrix(confusion.iloc[1:])
    assert len(figure.data) == 2
