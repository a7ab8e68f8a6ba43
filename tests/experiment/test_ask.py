"""A question follows each text, its answers are swapped by the text, and rules are checked."""

import pytest

from probekit.data.examples import Dataset, Example, join_turns
from probekit.errors import DataError
from probekit.experiment.ask import SWAPPED, AskSection

QUESTION = "True? Answer {a} or {b}."
BALANCED = AskSection(ask=QUESTION, answers=("Yes", "No"), balance=True)


def example(text, turns=(), **more):
    return Example(text, "x", "g", text, turns=turns, **more)


def test_half_of_the_texts_have_their_answers_swapped_and_each_always_the_same():
    texts = [f"Statement {n}." for n in range(400)]
    swapped = [text for text in texts if BALANCED.swaps(text)]
    assert 160 < len(swapped) < 240  # of a fair coin with probability 1 - 6e-5
    for text in texts:
        asked = "True? Answer No or Yes." if text in swapped else "True? Answer Yes or No."
        assert BALANCED.asked(text) == f"{text}\n\n{asked}"
        assert BALANCED.answers_to(text) == (("No", "Yes") if text in swapped else ("Yes", "No"))
    of_file = AskSection.of_probe({"at": "last", **BALANCED.asking})
    assert of_file == BALANCED
    found = BALANCED.asked_of(Dataset("tiny", tuple(map(example, texts))))
    assert [dict(one.values)[SWAPPED] == "yes" for one in found.examples] == [
        text in swapped for text in texts
    ]
    assert f"swapped in {len(swapped)} of 400 texts" in BALANCED.findings(found)[0].message


def test_an_answer_may_contain_the_other_placeholder():
    section = AskSection(ask="{a} or {b}?", answers=("{b}", "No"))
    assert section.asked("So.") == "So.\n\n{b} or No?"


def test_a_question_is_a_turn_of_the_user_and_follows_the_counterfactual_too():
    plain = AskSection(ask="Is it true?")
    assert AskSection().asked_of(Dataset("tiny", (example("A."),))).examples == (example("A."),)
    for parts, roles in ((["Hi", "It rains."], ["user", "assistant"]), (["Hi"], ["user"])):
        text, turns = join_turns(parts, roles)
        one = example(text, turns, counterfactual=text.replace("Hi", "Hello"))
        (asked,) = plain.asked_of(Dataset("tiny", (one,))).examples
        assert asked.text == f"{text}\n\nIs it true?"
        assert asked.counterfactual == f"{text.replace('Hi', 'Hello')}\n\nIs it true?"
        own = [asked.text[turn.start : turn.end] for turn in asked.turns]
        with_question = [*parts, "Is it true?"] if len(parts) == 2 else ["Hi\n\nIs it true?"]
        assert own == with_question
        assert asked.turns[-1].role == "user"
    assert AskSection(ask=" That is").asked("It rains.") == "It rains. That is"


def test_a_column_of_the_name_of_the_swap_is_refused(refused):
    own = example("A.", values=((SWAPPED, "x"),))
    refused(BALANCED.asked_of, Dataset("tiny", (own,)))
    with pytest.raises(DataError, match="Rename it"):
        BALANCED.asked_of(Dataset("tiny", (own,)))
