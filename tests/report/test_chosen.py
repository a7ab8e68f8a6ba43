"""Figures and worst errors of the selected probe, shown only if the run has saved them."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from probekit.chosen.directions.page import (
    direction_map,
    neuron_ranking,
    ranked_neurons,
    scatter_plane,
)
from probekit.chosen.errors.page import WrongExamples, confusion_matrix, errors_section
from probekit.chosen.page import Shown, of_analyses
from probekit.chosen.predictions.page import curves_part, histogram_part
from probekit.chosen.projections.page import projection_part, token_part
from probekit.chosen.registry import ANALYSES
from probekit.errors import DataError
from probekit.report.pages.run_page import write_report
from probekit.results.scores import Scores
from tests.report.conftest import CHOSEN, HOSTILE, SITES, difference, judged, row, seal_run
from tests.report.pictures import AUDIT
from tests.report.sentences.cases import with_kinds
from tests.stored import drawn

CONFUSION = pd.DataFrame(
    [("Plur", "Plur", 30), ("Plur", "NA", 10), ("NA", "Plur", 5), ("NA", "NA", 15)],
    columns=["truth", "guess", "n"],
)
NO_ROWS = CONFUSION.assign(n=CONFUSION["n"].mask(CONFUSION["truth"] == "NA", 0))
POINTS = np.random.default_rng(0).normal(size=(2, 40, 2)).round(3)
SCATTER = pd.concat(
    pd.DataFrame({"method": method, "x": plane[:, 0], "y": plane[:, 1]})
    for method, plane in zip(("PCA", "LDA"), POINTS, strict=True)
).assign(axis_x="one", axis_y="two", label=["a", HOSTILE] * 40)
LONG = "a" * 300 + "1"
LABELS = (LONG, "b\u202e", LONG.replace("1", "2"))
LONG_CONFUSION = pd.DataFrame({"truth": np.repeat(LABELS, 3), "guess": LABELS * 3, "n": 3})
AXES = {"method": "PCA", "axis_x": "1", "axis_y": "2"}
LONG_SCATTER = pd.DataFrame(AXES | {"x": 0.0, "y": 1.0, "label": LABELS})
COSINES = pd.DataFrame(
    [
        {"site_a": a, "site_b": b, "cosine": 1.0 if a == b else 0.5}
        for a in (SITES[2], SITES[0], SITES[-1])
        for b in (SITES[2], SITES[0], SITES[-1])
    ]
).assign(n_directions=1, n_features=48, half_cosine=np.nan, certainty=np.nan, n_halvings=0)
IS_ITSELF = COSINES["site_a"] == COSINES["site_b"]
HALVES = {"half_cosine": 0.6, "certainty": 0.87, "n_halvings": 10}
WITH_NULL = COSINES.assign(null_high=0.31, n_null=100)
WITH_NULL.loc[IS_ITSELF, [*HALVES]] = [*HALVES.values()]
NEURONS = pd.DataFrame(
    [
        row(f"blocks.1.mlp.hook_post[neuron={n}]", "task", value, split=split)
        for n in range(6)
        for split, value in (("validation", 0.5 + 0.05 * n), ("test", 0.9 - n / 50))
    ]
)
RANKED = ranked_neurons(Scores.of(NEURONS))
FIGURES = {
    "true labels are rows, which sum to 1": lambda: confusion_matrix(CONFUSION),
    "a label without rows has no shares": lambda: confusion_matrix(NO_ROWS),
    "missing pairs of labels are no rows": lambda: confusion_matrix(CONFUSION.iloc[1:]),
    "each label of a plane has a colour and a mark": lambda: scatter_plane(SCATTER, "PCA"),
    "directions are in the order of the layers": lambda: direction_map(COSINES),
    "cosines are compared with permuted labels": lambda: direction_map(WITH_NULL),
    "neurons are ranked by validation and shown by test": lambda: neuron_ranking(RANKED),
    "long labels are cut and differ": lambda: confusion_matrix(LONG_CONFUSION),
    "so do those of planes": lambda: scatter_plane(LONG_SCATTER, "PCA"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_that_are_stored(snapshot, name):
    figure = FIGURES[name]()
    assert "\u202e" not in figure.to_json()
    assert drawn(figure) == snapshot


def test_many_labels_share_a_look_and_no_neuron_is_ranked_in_other_runs(table):
    many = SCATTER.assign(label=[str(n % 25) for n in range(len(SCATTER))])
    assert len(scatter_plane(many, "LDA").data) == 10
    assert ranked_neurons(Scores.of(table)).empty


def test_captions_state_the_null_of_cosines_or_that_there_is_none(tmp_path, table, snapshot):
    scores = Scores.of(table)
    is_first = IS_ITSELF & (WITH_NULL["site_a"] == SITES[0])
    some = WITH_NULL.assign(certainty=WITH_NULL["certainty"].mask(is_first))
    none = WITH_NULL.assign(certainty=np.nan)
    for one in (WITH_NULL, some, none, COSINES.assign(null_high=np.nan)):
        one.to_csv(tmp_path / "cosines.csv", index=False)
        shown = Shown(tmp_path, SimpleNamespace(verdict=judged(table)))
        vars(shown)["scores"] = scores
        assert [part.caption for part in of_analyses("figures", shown)] == snapshot


TOKENS = pd.DataFrame({"token": [" are", HOSTILE, "\n", "nan"], "cosine": [0.3, 0.1, -0.1, -0.25]})
OF_TOKENS = TOKENS.assign(direction="plural", null_high=0.2)
LAYER = {site: depth for depth, site in enumerate(SITES[:2])}
OF_SITES = pd.DataFrame({"site": np.repeat(SITES[:2], 2), "label": ["plural", HOSTILE] * 2})
OF_SITES = OF_SITES.assign(depth=OF_SITES["site"].map(LAYER), direction=HOSTILE, metric="auroc")
OF_SITES = OF_SITES.assign(mean=[-0.1, 0.1, -0.9, 0.9], low=-1.0, high=1.0)
OF_SITES = OF_SITES.assign(value=[np.nan, np.nan, 0.9, 0.9], ci_low=0.8, ci_high=0.95)
OF_SITES["is_selected"] = OF_SITES["depth"] == 1


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_direction_is_shown_by_its_tokens_and_by_projections(snapshot, is_nested):
    best = SimpleNamespace(probe="logistic", name=SITES[1])
    own = OF_SITES.drop_duplicates("site").assign(value=0.9)
    parts = [
        token_part(OF_TOKENS, best, is_nested=is_nested),
        token_part(TOKENS.assign(direction="value", null_high=np.nan), best, is_nested=is_nested),
        projection_part(OF_SITES, own, {0: "0", 1: "1"}, best, is_nested=is_nested),
    ]
    beyond, within = parts[0].figure["data"]
    assert (beyond["x"], within["x"]) == ([0.3, -0.25], [0.1, -0.1])
    assert "Of these tokens, beyond it: “␣are” and “nan”." in parts[0].caption
    assert [(one.caption, one.description) for one in parts] == snapshot
    if not is_nested:
        figures = [go.Figure(one.figure) for one in parts]
        assert [drawn(figure) for figure in figures] == snapshot


def test_the_threshold_of_a_monitor_is_one_for_scores_of_its_label():
    truth, own = np.array(["a", "b", "c"] * 2), np.array([3.0, -1, -2] * 2)
    detected = {"a": own, "b": np.full(6, 5.0), "c": np.full(6, 5.0)}
    monitor = pd.DataFrame({"fpr": [0.01], "threshold": [2.0], "tpr": [1.0]})
    run = SimpleNamespace(
        probe="the probe",
        rows=lambda _: pd.DataFrame({"score": [0.0, 2.5]}),
        scores=SimpleNamespace(rows=pd.DataFrame({"positive": ["a"]})),
        verdict=SimpleNamespace(is_nested=False),
    )
    words = histogram_part(truth, detected, run, monitor).description.replace("\u00a0", " ")
    assert "a, n = 2, 100.0 % above the 1 % threshold" in words
    assert "b, n = 2, 0.0 % above" in words
    assert "negatives of the monitor, n = 2, 50.0 % above" in words


def test_a_threshold_without_alarms_has_no_precision():
    run = SimpleNamespace(probe="the probe", verdict=SimpleNamespace(is_nested=False))
    monitor = pd.DataFrame({"fpr": [0.01], "threshold": [9.0]})
    detected = {"b": np.array([-1.0, 1.0, 2.0])}
    part = curves_part(np.array(["a", "b", "b"]), detected, run, monitor)
    own = "b, threshold for 1 % FPR: TPR 0.00, FPR 0.00, no alarm."
    assert part.description == f"b, decision: TPR 1.00, FPR 0.00, precision 1.00; {own}"
    assert [one["y"] for one in part.figure["data"][-2:]] == [[0.0], [None]]


@pytest.fixture
def wrong():
    token = {"token": HOSTILE, "span": [0, 0], "label": "Sing", "score": 2.0}
    tokens = [token, {**token, "token": " x", "score": -1.0}]
    example = {"text": HOSTILE, "span": None, "group": "g", "label": "Plur", "guess": "Sing"}
    example |= {"ahead": 3.0, "tokens": tokens}
    return {"classes": ["Plur", "Sing"], "examples": [example], "probes": [], "rows": []}


def test_the_page_shows_them_where_the_run_has_them(browser, report_of, make_run, wrong):
    titles = ["Confusion matrix", f"{SITES[3]} by PCA", f"{SITES[3]} by LDA"]
    plain = report_of("plain").read_text("utf-8")
    assert not [title for title in titles if title in plain]
    run = make_run()
    CONFUSION.to_csv(run / "confusion.csv", index=False)
    SCATTER.to_csv(run / "scatter.csv", index=False)
    (run / "wrong.json").write_text(json.dumps(wrong))
    page = write_report(seal_run(run))
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
    marks = f"[...{section}.querySelectorAll('mark, .token.span')]"
    marked = f"{marks}.map(one => one.querySelector('bdi') ?? one)"
    assert browser.evaluate(f"{marked}.map(one => one.textContent)") == ["saw"]
    before = f"{marked}[0].closest('mark, .token.span').previousElementSibling"
    assert browser.evaluate(f"{before} === null") is not has_tokens
    assert [fault for fault in browser.evaluate(AUDIT) if "<small>" in fault] == []
    note = "The labelled span is underlined."
    assert (note in browser.evaluate(f"{section}.textContent")) is has_tokens


def test_tokens_without_characters_are_not_marked(wrong):
    wrong["examples"][0]["span"] = [0, 3]
    examples = WrongExamples.model_validate(wrong)
    assert not examples.has_marks
    assert "is underlined" not in errors_section(examples, is_nested=False).items[0].html


def test_a_damaged_file_is_named(tmp_path, wrong):
    (tmp_path / "wrong.json").write_text(json.dumps(wrong | {"classes": 3}))
    with pytest.raises(DataError, match=r"(?s)wrong\.json"):
        list(of_analyses("examples", Shown(tmp_path, None)))


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
    assert browser.evaluate("document.activeElement.closest('th').ariaSort") == "descending"
    browser.evaluate("document.activeElement.click()")
    assert browser.evaluate(first) == "blocks.0.hook_resid_pre"
    browser.evaluate(head.replace("accuracy", "site") + ".click()")  # texts are sorted, too
    assert browser.evaluate(first) == "ln_final.hook_normalized"
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
        "document.head.append(library);"
        "window.draws = 0; for (const name of ['newPlot', 'relayout', 'react']) {"
        "const own = Plotly[name]; Plotly[name] = (...given) => { window.draws += 1;"
        "return own(...given); }; }"
    )
    counted.write_text(page.read_text().replace("document.head.append(library);", counting, 1))
    browser.open(counted)
    plots = "[...document.querySelectorAll('.plot')]"
    open_plots = f"{plots}.filter(plot => !plot.closest('details')).length"
    assert browser.evaluate("window.draws") == browser.evaluate(open_plots)


def interval(name, value, low, high):
    """A number of a file with its interval."""
    return {name: value, f"{name}_low": low, f"{name}_high": high}


AHEAD = {"score": 1.0}
MONITOR = {"fpr": 0.01, "fpr_bound": 0.008, "n_positive": 48, "n_test_negative": 50}
MONITOR |= {"n_negatives": 900, "score": -1.0}  # of a negative
DIFFERENCE = {"metric": "accuracy", "n_sites": 8, "value": 0.9, "single": 0.86, "p": 0.01}
CUES = {"value": 0.9, "without_others": 0.88, "metric": "accuracy", "cues": "not, never", "p": 0.02}
LEFT = {"confounds": "length", "metric": "auroc", "joint_score": 0.61, "known_score": 0.6}
RULE = {"rule": "max", "is_selected": True, "metric": "accuracy", "value": 0.8, "n_texts": 240}
RULE |= interval("difference", np.nan, np.nan, np.nan) | {"p": np.nan}
OTHERS = [
    RULE | {"rule": rule, "is_selected": False, "auroc": 0.88, "difference": lead, "p": p}
    for rule, lead, p in (
        ("mean", 0.02, 0.2),
        ("rolling:3", 0.02, 0.01),
        ("softmax:1", 0.02, np.nan),
        ("last", -0.02, 0.01),
    )
]
# Analysis, row of its first file, whether it found nothing of use, and words of its sentence.
ANSWERS = {
    "a monitor": (
        "monitor",
        MONITOR | interval("tpr", 0.7, 0.5, 0.8) | interval("test_fpr", 0.02, 0.0, 0.1),
        False,
        "The monitor detects 70 % [50, 80] of the 48 test rows labelled red, at a threshold for "
        "at most 1 % false positives (95 % confidence, 900 separate negatives).",
    ),
    "no detection": (
        "monitor",
        MONITOR | interval("tpr", 0.0, 0.0, 0.0151) | interval("test_fpr", 0.0, 0.0, 0.1) | AHEAD,
        True,
        "The monitor detects only 0 % [0, 1.5] of the 48 test rows labelled red, at a threshold "
        "for at most 1 % false positives (95 % confidence, 900 separate negatives). 100 % of these "
        "negatives are predicted as red; 0 % [0, 10] of the 50 other test rows exceed this "
        "threshold.",
    ),
    "other negatives": (
        "monitor",
        MONITOR | interval("tpr", 0.7, 0.5, 0.8) | interval("test_fpr", 0.3, 0.2, 0.4),
        True,
        "but also raises an alarm on 30 % [20, 40] of the 50 other test rows.",
    ),
    "a stack": (
        "stack",
        DIFFERENCE | interval("difference", 0.04, 0.01, 0.07),
        False,
        "All 8 sites together are better than the best one, block 5: accuracy 0.900 and 0.860, "
        "difference +0.040 [0.010, 0.070], p = 0.010.",
    ),
    "no better stack": (
        "stack",
        DIFFERENCE | interval("difference", 0.0, -0.1, 0.1) | {"p": 0.8},
        False,
        "are not significantly better than the best one",
    ),
    "a worse stack": (
        "stack",
        DIFFERENCE | interval("difference", -0.04, -0.07, -0.01),
        True,
        "are worse than the best one",
    ),
    "cues": (
        "leakage",
        CUES | interval("difference", -0.3, -0.4, -0.2) | {"without_cues": 0.58},
        True,
        "The probe depends on the cues (not, never): accuracy is 0.900, 0.580 without them and "
        "0.880 without as many other words, difference −0.300 [−0.400, −0.200], p = 0.020.",
    ),
    "no cues": (
        "leakage",
        CUES | interval("difference", 0.01, -0.1, 0.1) | {"without_cues": 0.89},
        False,
        "No evidence that the probe depends on the cues (not, never)",
    ),
    "cues that help less": (
        "leakage",
        CUES | interval("difference", 0.1, 0.05, 0.15) | {"without_cues": 0.89},
        False,
        "The probe depends less on the cues (not, never) than on other words",
    ),
    "confounds": (
        "left",
        LEFT | interval("gain", 0.001, -0.02, 0.02) | {"p": 0.4},
        True,
        "activations are not shown to predict the label: AUROC 0.61 instead of 0.60, a gain of "
        "0.00 [−0.02, 0.02] bits a row, p = 0.40.",
    ),
    "confounds of numbers": (
        "left",
        LEFT | interval("gain", np.nan, np.nan, np.nan) | {"metric": "spearman", "p": 0.01},
        False,
        "activations predict the label: Spearman's ρ 0.61 instead of 0.60, p = 0.010.",
    ),
    "a rule": (
        "aggregation",
        RULE | interval("auroc", 0.9, 0.85, 0.95) | interval("equal", 0.6, 0.51, 0.7),
        False,
        "The rule max is selected, but untested against softmax:1, significantly worse than "
        "last and not shown to be better than mean: on 240 training texts, cross-validated AUROC "
        "is 0.90 [0.85, 0.95] with max, 0.88 with mean, 0.88 with rolling:3, 0.88 with softmax:1 "
        "and 0.88 with last. The rule was selected on these texts, which favours its score. At "
        "equal length its AUROC is 0.60 [0.51, 0.70].",
    ),
    "a rule of length": (
        "aggregation",
        RULE | interval("auroc", 0.9, 0.85, 0.95) | interval("equal", 0.52, 0.45, 0.6),
        True,
        "At equal length its AUROC is 0.52 [0.45, 0.60].",
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_first_sentence_of_an_analysis_is_red_if_it_found_nothing_of_use(name):
    analysis, row, is_useless, words = ANSWERS[name]
    scores = SimpleNamespace(rows=pd.DataFrame({"positive": ["red"]}))
    best, score = SimpleNamespace(place="block 5"), SimpleNamespace(probe="logistic")
    verdict, others = SimpleNamespace(score=score, best=best), OTHERS * (analysis == "aggregation")
    rows = pd.DataFrame([row, *others])
    record = SimpleNamespace(data=SimpleNamespace(training_labels=["red", "black"]))
    run = SimpleNamespace(rows=lambda _: rows, scores=scores, verdict=verdict, record=record)
    (of_analysis,) = (one for one in ANALYSES if one.name == analysis)
    found = list(of_analysis.door("page", "answers")(run))
    assert words in " ".join(one.text for one in found)
    assert (found[0].css == "bad") == is_useless
    assert not list(of_analysis.door("page", "answers")(SimpleNamespace(rows=lambda _: None)))


def test_kinds_of_probe_are_compared_at_the_selected_site(tmp_path):
    table = with_kinds(**{"lda": 0.01, "svm": 0.2})
    others = [CHOSEN.replace("logistic", kind) for kind in ("lda", "svm")]
    rows = [
        difference(others[0], 0.01, p=0.6),
        difference(others[1], 0.2, reach=0.05, p_adjusted=0.004),
    ]
    run = Shown(tmp_path, SimpleNamespace(verdict=judged(table, rows)))
    vars(run)["scores"] = Scores.of(table)
    (kinds,) = (one for one in ANALYSES if one.name == "kinds")
    tie, lead = kinds.door("page", "remarks")(run)
    assert tie.text == (
        "At block 2, logistic does not differ significantly from lda (+0.010 [−0.065, 0.085]), "
        "adjusted for all comparisons."
    )
    assert lead.text == "It is better than svm (+0.200 [0.125, 0.275]), adjusted."
    (part,) = kinds.door("page", "screen")(run)
    scores, differences = part.figure["data"][:3], part.figure["data"][3:]
    assert [one["name"] for one in scores] == ["logistic", "lda", "svm"]
    assert np.diff([one["x"][0] for one in scores]) == pytest.approx([-0.01, -0.19])
    assert [one["x"] for one in differences] == [[0.01], [0.2]]
    assert {one["xaxis"] for one in differences} == {"x2"}
    colours = [one["marker"]["color"] for one in part.figure["data"]]
    assert colours.count(colours[0]) == 1  # the selected kind alone
    vars(run)["record"] = SimpleNamespace(verdict=judged(table[table["probe"] == "logistic"]))
    assert not [*kinds.door("page", "remarks")(run), *kinds.door("page", "screen")(run)]
