"""The page of coloured texts: tokens and scores, hostile text, legibility, window sizes."""

from dataclasses import replace

import numpy as np
import pytest

from probekit.probes.probe_files import HeldOutScore, ProbeFacts
from probekit.probes.saved_probe import SavedProbe
from probekit.report.figures.figure_files import figures_of
from probekit.report.pages.texts_page import layers_page, layers_rows, texts_answer, texts_page
from probekit.results.network import RowPrediction, TextReading
from tests.report.page_text import text_of
from tests.report.pictures import AUDIT
from tests.stored import changed

TOKENS = ("The", " keys", "\n", "\t", "<0xE2>", " שלום", "  ")


def make_facts(**others):
    given = {
        "kind": "logistic", "scores_are_logits": True, "sites": ("blocks.1.attn.hook_z[head=2]",),
        "position": {"at": "index", "index": 3}, "bos": False, "model": "mini",
        "compute": "float32", "dtype": "float32", "weights": "w", "tokenizer": "t", "cache": "c",
        "seed": 0, "created": "2025-01-01", "versions": {},
    }  # fmt: skip
    score = HeldOutScore(value=0.9, ci_low=0.85, ci_high=0.95, n=1200, chance=0.5)
    return ProbeFacts(**(given | {"metrics": {"accuracy": score}} | others))


def make_reading(tokens, labels=("no", "yes"), n_cut=0, score=1.5):
    answers = tuple(
        RowPrediction(labels[n % len(labels)], (n % 2 * 2 - 1) * score / (n + 1))
        for n in range(len(tokens))
    )
    spans = tuple((n, n + 1) for n in range(len(tokens)))
    return TextReading("".join(tokens), tokens, spans, answers, answers[-1], n_cut)


def page_of(tokens=TOKENS, classes=("no", "yes"), facts=None, **others):
    return texts_page([make_reading(tokens, classes, **others)], classes, facts or make_facts())


def test_the_text_of_the_page_is_the_stored_one(snapshot):
    """Tokens are complete, and whitespace has glyphs; the page of a probe of mini in a folder."""
    page = page_of(facts=make_facts(model="/data/mine/models/mine"), n_cut=1234)
    assert "/data/mine" not in page
    assert text_of(page) == snapshot
    assert page.count("<br>") == 1
    assert 'data-answer="yes +0.75"' in page


NUMBERS = [RowPrediction(None, value) for value in (0.0, 1.0, 2.0)]
REGRESSION = TextReading("a b c", ("a", " b", " c"), ((0, 1), (1, 3), (3, 5)), tuple(NUMBERS), None)
OF_WORDS = {"at": "word", "pieces": "last", "offset": -1}
VARIANTS = {
    "a probe of all tokens": lambda: page_of(facts=make_facts(position={"at": "all"})),
    "a probe of words": lambda: page_of(facts=make_facts(position=OF_WORDS)),
    "an untested probe is named as such": lambda: page_of(facts=make_facts(is_tested=False)),
    "more classes are named at each token": lambda: page_of(classes=("a", "b", "c", "d")),
    "a regression has values and no labels": lambda: texts_page([REGRESSION], (), make_facts()),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_text_changes_with_the_probe(snapshot, name):
    assert changed(text_of(page_of()), text_of(VARIANTS[name]())) == snapshot


LAYERS = ("blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "blocks.1.hook_resid_post")
ROWS = np.random.default_rng(0).normal(size=(3, 4, 3))  # of layers, tokens and features


def layers_of(classes=("no", "yes"), **facts):
    """The selected probe, and those of three layers with their predictions for a text."""
    layers = []
    for number, site in enumerate(LAYERS):
        n = len(classes) if len(classes) > 2 else 1
        weight = (number + 1) * np.eye(3)[:n]
        given = make_facts(**({"sites": (site,), "projection_sd": (2.0,) * n} | facts))
        probe = SavedProbe(((weight, np.full(n, 0.5)),), classes, given)
        found = probe.scores(ROWS[number]).reshape(4, -1).tolist()
        answers = [
            RowPrediction(label if classes else None, max(row), tuple(row) if n > 1 else ())
            for label, row in zip(probe.predict(ROWS[number]).tolist(), found, strict=True)
        ]
        tokens = ("The", " keys", " <b>", ".")
        spans = tuple((at, at + 1) for at in range(4))
        text = "The keys <b>."
        whole = (answers[3], 0, 3) if given.at != "word" else ()
        layers.append((probe, [TextReading(text, tokens, spans, tuple(answers), *whole)]))
    return layers[1][0], layers


KINDS = {
    "two": {},
    "labels": {"classes": ("a", "b", "c")},
    "labels of tokens": {"classes": ("a", "b", "c"), "position": {"at": "word", "pieces": "last"}},
    "numbers": {"classes": ()},
    "all": {"position": {"at": "all"}, "projection_sd": ()},
}


@pytest.mark.parametrize("name", KINDS)
def test_a_map_of_layers_has_the_score_of_each_probe_at_each_token(name, snapshot):
    selected, layers = layers_of(**KINDS[name])
    shown = layers_page(selected, layers)
    (part,) = figures_of(shown)
    raw = ROWS * np.arange(1, 4)[:, None, None] + 0.5  # the scores of each class
    label = layers[1][1][0].answers[3].label
    if "labels" in name:
        own = np.full(4, "abc".index(label))
        if name == "labels of tokens":  # those that the selected probe predicts
            own = raw[1].argmax(axis=1)
        one = np.arange(3) == own[:, None]
        others = np.where(one, -np.inf, raw).max(axis=2)
        expected = np.where(one, raw, -np.inf).max(axis=2) - others
    else:
        expected = raw[..., 0]
    if name != "numbers" and selected.facts.projection_sd:
        expected = expected / (2 * np.arange(1, 4)[:, None])
    drawn, *_, last = part.figure["data"]
    is_framed = name not in ("all", "labels of tokens")
    if is_framed:  # the other columns are pale
        assert np.isnan(np.array(last["z"], float)).tolist() == [[True] * 3 + [False]] * 3
        assert [row[3] for row in last["z"]] == [row[3] for row in drawn["z"]]
        assert drawn["opacity"] < 0.5 < last.get("opacity", 1)
    np.testing.assert_allclose(drawn["z"], expected, atol=1e-9)
    assert (drawn["zmin"] == -drawn["zmax"]) == (name != "numbers")
    shapes = part.figure["layout"].get("shapes", ())
    framed = [(one["x0"], one["x1"], one["y0"], one["y1"]) for one in shapes]
    # The token that the probes were trained at, at all layers.
    assert framed == [(2.5, 3.5, -0.5, 2.5)] * 2 * is_framed
    texts = [shown.title, shown.answer, part.caption, part.description]
    assert "\n".join([*texts, *part.figure["layout"]["yaxis"]["ticktext"]]) == snapshot
    ticks = part.figure["layout"]["xaxis"]["ticktext"]
    assert (len({tick.partition("<br>")[2] for tick in ticks}) > 1) == (name == "labels of tokens")
    assert "&lt;b&gt;" in part.figure["layout"]["xaxis"]["ticktext"][2]


def test_rows_of_layers_are_those_of_tokens_with_the_site():
    _, layers = layers_of()
    rows = layers_rows(layers)
    assert rows["site"].unique().tolist() == list(LAYERS)
    np.testing.assert_allclose(rows["score"], (ROWS * [[[1]], [[2]], [[3]]])[..., 0].ravel() + 0.5)
    assert rows.columns.tolist()[:4] == ["site", "number", "position", "token"]


def test_a_regression_shows_its_value_at_a_token():
    assert 'data-answer="2.00"' in VARIANTS["a regression has values and no labels"]()


@pytest.mark.parametrize("classes", [("no", "yes"), ("a", "b", "c"), ()])
def test_only_the_token_of_the_probe_is_framed_and_the_others_are_pale(classes):
    reading = replace(make_reading(TOKENS, classes or (None,)), place=0)
    page = texts_page([reading], classes, make_facts())
    assert page.count('class="token probed"') == 1
    assert page.index('class="token probed"') < page.index('class="token pale"')
    assert page.count('class="token pale"') == len(TOKENS) - 1
    assert page.count("was never tested at the pale ones") == 1
    of_all = texts_page([reading], classes, make_facts(position={"at": "all"}))
    assert "pale" not in text_of(of_all)


def test_hostile_tokens_stay_text(hostile):
    facts = make_facts(model=hostile, kind=hostile)
    page = page_of((hostile, f" {hostile}"), (hostile, "</style><i>"), facts)
    assert page.count("</script>") == page.count("<script")
    assert page.count("</style>") == page.count("<style>") == 1
    assert "<b>%" not in page
    assert "\u202e" not in text_of(page)
    assert hostile.replace("\u202e", "<U+202E>") in text_of(page)


def labelled(*labels):
    """Texts with these predicted labels; None for a text without a prediction."""
    answers = [None if label is None else RowPrediction(label, 1.0) for label in labels]
    one = RowPrediction("token", 1.0)
    return [TextReading("a", ("a",), ((0, 1),), (one,), answer) for answer in answers]


@pytest.mark.parametrize("labels", ["bab", "a", "aabcdef", ("a", None, "a"), (None, None)], ids=str)
def test_the_answer_counts_the_labels_of_texts(snapshot, labels):
    assert texts_answer(labelled(*labels)) == snapshot


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("n_classes", [2, 11])
def test_ink_is_legible_and_the_page_fits_every_window(browser, tmp_path, hostile, n_classes, dark):
    path = tmp_path / "page.html"
    classes = tuple(f"class {n}" for n in range(n_classes))
    tokens = (*(f" {n}" for n in range(22)), *TOKENS * 20, hostile, "long" * 300)
    path.write_text(page_of(tokens, classes, score=100.0), "utf-8")
    browser.open(path, dark=dark)
    browser.unfold()
    assert browser.evaluate(AUDIT) == []
    for width in (1400, 700, 360):
        browser.resize(width)
        browser.settle()
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.trouble == []


def test_hovering_over_a_token_shows_its_score(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of(), "utf-8")
    browser.open(path)
    browser.hover(*browser.middle("document.querySelectorAll('.token')[1]"))
    readout = "document.querySelector('.readout').textContent"
    assert browser.evaluate(readout) == "[1] ␣keys  yes +0.75"
    browser.hover(2, 2)
    assert browser.evaluate("document.querySelector('.readout').hidden")
