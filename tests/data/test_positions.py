"""Rules select the intended tokens, or no row."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probekit.data.positions import PositionRule, plan_rows
from tests.stored import each_line, each_row

TEXT = "The keys fell\n"
OFFSETS = np.array([[0, 3], [3, 7], [7, 8], [8, 13], [13, 14]])  # The| key|s| fell|\n
BOS = np.array([[0, 0]])


def of(at, **details):
    return PositionRule(at=at, **details)


def positions(rule, *, offsets=OFFSETS, span=(4, 8), text=TEXT, bos=False):
    """The positions of each row of one example."""
    given_offsets = np.concatenate([BOS, offsets]) if bos else offsets
    plan, unaligned = plan_rows([given_offsets], [span], [text], rule, bos=bos)
    assert unaligned == ()
    assert plan.example.tolist() == [0] * (len(plan.offsets) - 1)
    assert plan.offsets[-1] == len(plan.positions)
    return [row.tolist() for row in np.split(plan.positions, plan.offsets[1:-1])]


@each_row("rule, expected")
def test_each_rule_reads_its_tokens(rule, expected):
    assert positions(rule) == expected
    # BOS moves every token by one, is never read itself, and leaves no sink among them.
    shifted = [[position + 1 for position in row] for row in expected]
    if rule == of("mean"):
        shifted = [[1, 2, 3, 4, 5]]
    assert positions(rule, bos=True) == shifted


@pytest.mark.parametrize("rule", ["span", "word"])
@pytest.mark.parametrize(("offset", "expected"), [(-1, 0), (1, 3), (2, 4)])
@pytest.mark.parametrize("bos", [False, True])
def test_an_offset_is_counted_from_the_ends_of_the_span(rule, offset, expected, bos):
    # The| key|s| fell|\n: the word has two tokens, and the line end is a token like others.
    assert positions(of(rule, offset=offset), bos=bos) == [[expected + bos]]


def test_share_0_is_before_spaces_at_the_start_of_a_reply():
    rule, text = of("share", share=0.0), "Why?\n\nSo"
    for offsets, expected in (
        ([[0, 3], [3, 4], [4, 6], [6, 8]], 1),
        ([[0, 3], [3, 4], [4, 4], [4, 6], [6, 8]], 2),  # a token of a template
        ([[0, 3], [3, 6], [6, 8]], 0),  # a token of both
    ):
        assert positions(rule, offsets=np.array(offsets), text=text, span=(4, 8)) == [[expected]]


def test_shares_of_ten_tokens_end_with_each_of_them():
    offsets = np.stack([np.arange(12), np.arange(1, 13)], axis=1)
    read = [
        positions(of("share", share=n / 10), offsets=offsets, span=(1, 11), text="x" * 12)
        for n in range(11)
    ]
    assert read == [[[n]] for n in range(11)]


def test_tokens_of_spaces_alone_are_counted():
    text, offsets = "The   keys", np.array([[0, 3], [3, 4], [4, 5], [5, 10]])  # The| | | keys
    for offset, expected in {-1: 2, -2: 1, -3: 0}.items():
        rule = of("word", offset=offset)
        assert positions(rule, offsets=offsets, text=text, span=(6, 10)) == [[expected]]


@pytest.mark.parametrize("bos", [False, True])
def test_an_offset_never_leaves_the_text_nor_reads_bos(bos):
    offsets = [np.concatenate([BOS, OFFSETS])] * 3 if bos else [OFFSETS] * 3
    spans = [(0, 3), (9, 13), None]
    for offset, kept, said in ((-1, 1, "no token 1 before the span"), (2, 0, "2 after the span")):
        plan, unaligned = plan_rows(offsets, spans, [TEXT] * 3, of("word", offset=offset), bos=bos)
        assert plan.example.tolist() == [kept]
        reasons = {fault.example: fault.reason for fault in unaligned}
        assert said in reasons.pop(1 - kept)
        assert reasons == {2: "it has no span"}


def test_the_first_position_stays_in_a_mean_that_has_no_other():
    assert positions(of("span"), span=(0, 3)) == [[0]]
    assert positions(of("span"), span=(0, 8)) == [[1, 2]]
    assert positions(of("span", skip_first=False), span=(0, 8)) == [[0, 1, 2]]
    assert positions(of("mean"), offsets=OFFSETS[:1]) == [[0]]


# The space before belongs to no word, and the line end is no character of one.
SPANS = {(4, 8): [1, 2], (3, 8): [1, 2], (0, 4): [0], (7, 9): [2], (5, 6): [1], (9, 14): [3]}


@pytest.mark.parametrize(("span", "expected"), SPANS.items())
def test_spaces_do_not_tie_a_token_to_a_span(span, expected):
    assert positions(of("word", pieces="all"), span=span) == [[position] for position in expected]


def test_tokens_of_half_a_character_belong_to_the_whole_one():
    offsets = np.array([[0, 2], [2, 3], [2, 3], [3, 5]])  # a | half| half| b
    rule = of("word", pieces="all")
    assert positions(rule, offsets=offsets, text="a\u3000\U0001f511 b", span=(2, 3)) == [[1], [2]]


NO_TOKEN = "it has no token {} (it has: 0 to 4, or -5 to -1 from its end)"


@each_row("rule, span, n_tokens, reason")
@pytest.mark.parametrize("bos", [False, True])
def test_examples_without_tokens_get_no_row_but_a_reason(rule, span, n_tokens, reason, bos):
    whole = np.concatenate([OFFSETS, [[14, 15]]])  # one additional token, for the indices
    offsets = [whole, OFFSETS[:n_tokens], whole]
    if bos:
        offsets = [np.concatenate([BOS, tokens]) for tokens in offsets]
    texts = [f"{TEXT}!", TEXT, f"{TEXT}!"]
    plan, unaligned = plan_rows(offsets, [(0, 3), span, (0, 3)], texts, rule, bos=bos)
    assert plan.example.tolist() == [0, 2]
    assert unaligned == ((1, reason),)


def plan(at, span=(4, 8), **options):
    return plan_rows([OFFSETS], [span], [TEXT], of(at, **options), bos=False)


@each_line("call")
def test_an_empty_plan_is_an_error_that_names_the_first_example(call, refused):
    refused(eval, call, globals())


@st.composite
def marked_texts(draw):
    """A text that is cut into tokens anywhere, with a span anywhere."""
    text = draw(st.text("ab \n\u00a0", min_size=1, max_size=12))
    bounds = np.array(sorted({0, len(text)} | draw(st.sets(st.integers(0, len(text))))))
    start = draw(st.integers(0, len(text) - 1))
    span = (start, draw(st.integers(start + 1, len(text))))
    return np.column_stack([bounds[:-1], bounds[1:]]), span, text


@settings(max_examples=200, deadline=None)
@given(examples=st.lists(marked_texts()), bos=st.booleans())
def test_a_span_has_the_tokens_that_share_a_visible_character(examples, bos):
    # One more, so that there is at least one row; all twice, like words of one sentence.
    examples = [(np.array([[0, 1]]), (0, 1), "y"), *examples] * 2
    offsets, spans, texts = zip(*examples, strict=True)
    inputs = [np.concatenate([BOS, tokens]) for tokens in offsets] if bos else offsets
    plan, unaligned = plan_rows(inputs, spans, texts, of("word", pieces="all"), bos=bos)
    for number, (tokens, span, text) in enumerate(examples):
        expected = [
            token
            for token, (start, end) in enumerate(tokens)
            if text[max(start, span[0]) : min(end, span[1])].strip()
        ]
        assert (plan.positions[plan.example == number] - bos).tolist() == expected
        assert (number in [example for example, _ in unaligned]) == (not expected)
