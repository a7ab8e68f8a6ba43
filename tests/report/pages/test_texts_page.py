"""The page of coloured texts: tokens and scores, hostile text, legibility, window sizes."""

import html
import re

import pytest

from probekit.probes.saved_probe import HeldOutScore, ProbeFacts
from probekit.report.pages.texts_page import texts_answer, texts_page
from probekit.results.network import RowPrediction, TextReading

TOKENS = ("The", " keys", "\n", "\t", "<0xE2>", " שלום", "  ")


def make_facts(**others):
    facts = {
        "kind": "logistic",
        "scores_are_logits": True,
        "sites": ("blocks.1.attn.hook_z[head=2]",),
        "position": {"at": "index", "index": 3},
        "bos": False,
        "model": "mini",
        "compute": "float32",
        "dtype": "float32",
        "weights": "w",
        "tokenizer": "t",
        "cache": "c",
        "seed": 0,
        "created": "2025-01-01",
        "versions": {},
        "metrics": {
            "accuracy": HeldOutScore(value=0.9, ci_low=0.85, ci_high=0.95, n=1200, chance=0.5)
        },
    }
    return ProbeFacts(**(facts | others))


def make_reading(tokens, labels=("no", "yes"), n_cut=0, score=1.5):
    answers = tuple(
        RowPrediction(labels[n % len(labels)], (n % 2 * 2 - 1) * score / (n + 1))
        for n in range(len(tokens))
    )
    spans = tuple((n, n + 1) for n in range(len(tokens)))
    return TextReading("".join(tokens), tokens, spans, answers, answers[-1], n_cut)


def page_of(tokens=TOKENS, classes=("no", "yes"), facts=None, **others):
    return texts_page([make_reading(tokens, classes, **others)], classes, facts or make_facts())


def tokens_of(page):
    """Displayed text of each token, without markup."""
    found = re.findall(r'<span class="token".*?</span>', page, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]*>", "", token)) for token in found]


def test_tokens_are_complete_and_show_whitespace_as_glyphs():
    page = page_of()
    assert tokens_of(page) == ["The", "␣keys", "⏎", "⇥", "<0xE2>", "␣שלום", "␣␣"]
    assert page.count("<br>") == 1
    assert 'data-answer="yes +0.75"' in page
    assert '<td>1</td><th scope="row"><bdi>␣keys</bdi></th><td>yes</td><td>0.750</td>' in page


def test_hostile_tokens_stay_text(hostile):
    facts = make_facts(model=hostile, kind=hostile)
    page = page_of((hostile, f" {hostile}"), (hostile, "</style><i>"), facts)
    assert page.count("</script>") == page.count("<script") == 1
    assert page.count("</style>") == page.count("<style>") == 1
    assert "<b>%" not in page
    assert "\u202e" not in "".join(tokens_of(page))
    assert tokens_of(page)[0] == hostile.replace("\u202e", "<U+202E>")


def test_the_page_states_position_and_held_out_score_of_the_probe():
    page = page_of(n_cut=1234)
    assert "<code>index:3</code>" in page
    assert "On its own data set: accuracy 0.900 [0.850, 0.950] on 1,200 held-out rows" in page
    assert "not what the model uses" in page
    assert "never tested" in page
    assert "1,234 more tokens do not fit" in page
    everywhere = page_of(facts=make_facts(position={"at": "all"}))
    assert "never tested" not in everywhere
    assert "<code>word:last</code>" in page_of(
        facts=make_facts(position={"at": "word", "pieces": "last"})
    )


def labelled(*labels):
    """Texts with these predicted labels; None for a text without a prediction."""
    answers = [None if label is None else RowPrediction(label, 1.0) for label in labels]
    one = RowPrediction("token", 1.0)
    return [TextReading("a", ("a",), ((0, 1),), (one,), answer) for answer in answers]


def test_the_answer_counts_the_labels_of_texts():
    untested = "The probe was not tested on these texts."
    assert texts_answer(labelled("b", "a", "b")) == (
        f"2 of 3 texts are predicted as b, 1 a. {untested}"
    )
    assert texts_answer(labelled("a")).startswith("The text is predicted as a. The probe was not")
    many = texts_answer(labelled(*"aabcdef"))
    assert (
        many == f"2 of 7 texts are predicted as a, 1 b, 1 c, 1 d, 2 with other labels. {untested}"
    )
    some = texts_answer(labelled("a", None, "a"))
    assert some.startswith("2 of 2 texts are predicted as a. 1 text without a prediction.")
    assert texts_answer(labelled(None, None)).startswith("2 of 2 tokens are predicted as token.")


def test_a_model_in_a_folder_is_named_without_its_path():
    page = page_of(facts=make_facts(model="/data/mine/models/mine"))
    assert "<bdi>mine</bdi> ·" in page
    assert "/data/mine" not in page


def test_more_classes_are_named_at_each_token():
    page = page_of(classes=("a", "b", "c", "d"))
    assert "Which of 4 classes? Predictions of a logistic probe" in page
    assert tokens_of(page)[:3] == ["Thea", "␣keysb", "⏎c"]


def test_numbers_have_no_labels():
    answers = tuple(RowPrediction(None, float(n)) for n in range(3))
    reading = TextReading("abc", ("a", "b", "c"), ((0, 1), (1, 2), (2, 3)), answers)
    page = texts_page([reading], (), make_facts(kind="ridge"))
    assert "Which number? Predictions of a ridge probe" in page
    assert "Predicted for 3 tokens: 0.00 to 2.00." in page
    assert "label</th>" not in page
    assert 'data-answer="2.00"' in page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("classes", [("no", "yes"), ("NOUN", "VERB", "PUNCT")], ids=["two", "more"])
def test_the_page_fits_every_window_without_console_messages(
    browser, tmp_path, hostile, classes, dark
):
    path = tmp_path / "page.html"
    tokens = (*TOKENS * 20, hostile, "long" * 300)
    path.write_text(page_of(tokens, classes), "utf-8")
    browser.open(path, dark=dark)
    browser.evaluate("document.querySelector('summary').click()")
    for width in (1400, 700, 360):
        browser.resize(width)
        browser.settle()
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.trouble == []


def test_hovering_over_a_token_shows_its_score(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page_of(), "utf-8")
    browser.open(path)
    x, y = browser.evaluate(
        "(() => { const box = document.querySelectorAll('.token')[1].getBoundingClientRect();"
        "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    readout = "document.querySelector('.readout').textContent"
    assert browser.evaluate(readout) == "[1] ␣keys  yes +0.75"
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    assert browser.evaluate("document.querySelector('.readout').hidden")


CONTRAST = """(() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const light = (...colours) => {
        for (const colour of colours) {
            canvas.fillStyle = colour;
            canvas.fillRect(0, 0, 1, 1);
        }
        const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(part => part / 255)
            .map(part => part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
        return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2] + .05;
    };
    const page = getComputedStyle(document.body);
    return Math.min(...[...document.querySelectorAll('.token')].map(token => {
        const ground = light(page.backgroundColor, getComputedStyle(token).backgroundColor);
        const ink = light(getComputedStyle(token).color);
        return Math.max(ground, ink) / Math.min(ground, ink);
    }));
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("n_classes", [2, 11])
def test_ink_is_legible_on_every_token(browser, tmp_path, n_classes, dark):
    path = tmp_path / "page.html"
    classes = tuple(f"class {n}" for n in range(n_classes))
    tokens = tuple(f" {n}" for n in range(22))
    path.write_text(page_of(tokens, classes, score=100.0), "utf-8")
    browser.open(path, dark=dark)
    assert browser.evaluate(CONTRAST) >= 4.5
