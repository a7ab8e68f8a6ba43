"""Answers and warnings have the stored wording; run this file as a module to store a new one."""

from pathlib import Path

import pytest

from probekit.report.sentences.answer import answer, is_yes_no
from probekit.report.sentences.caveats import caveats
from probekit.results.record import RunRecord
from probekit.results.verdict import Verdict
from tests.report.conftest import judged, make_record
from tests.report.sentences.cases import CASES, WHICH, YES_NO

STORED = Path(__file__).with_name("wording.txt")


def worded(case):
    """Answer and warnings of a case, from a verdict that was written and read."""
    written = judged(case.table, case.differences, case.grid).model_dump_json()
    v = Verdict.model_validate_json(written)
    assert "NaN" not in written
    assert v.model_dump_json() == written
    content = make_record() | {"verdict": v, "control_by": case.control_by}
    content["data"]["findings"] = case.findings
    lines = caveats(v, RunRecord.model_validate(content))
    return "\n".join([answer(v, case.question), *(f"- {line}" for line in lines)])


def stored():
    blocks = STORED.read_text("utf-8").removeprefix("# ").split("\n\n# ")
    return dict(block.strip().split("\n", 1) for block in blocks)


@pytest.mark.parametrize("name", CASES)
def test_answer_and_warnings_are_those_that_are_stored(name):
    assert worded(CASES[name]) == stored()[name]


def test_no_stored_wording_is_left_over():
    assert list(stored()) == list(CASES)


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (YES_NO, True),
        (WHICH, False),
        ("Does the network encode whether it is singular or plural, past another noun?", True),
        ("In the last layer, can it be decoded?", False),
        ("In which layer, if any, does a token encode the previous word?", False),
        ("Can it be decoded in a sentence in which negation reverses the words?", True),
        ("Is number absent from the embedding?", False),
        ("Is number decodable from the embedding?", False),
        ("Is number erased?", False),
        ("Is number independent of gender?", False),
        ("Is it impossible to decode number?", False),
        ("Is number confined to block 3?", False),
        ("Do all layers encode number?", False),
        ("Does the network use the number of the subject?", False),
        ("Isn't it decodable?", False),
        ("Is it decoded at the noun or at the verb?", False),
        ("Is block 3 better than block 5?", False),
        ("Can it be decoded before block 3?", False),
        ("How early can it be decoded?", False),
        ("Kann man es dekodieren?", False),
        ("Subject number", False),
        ("", False),
        (None, False),
    ],
)
def test_only_plain_questions_are_answered_with_yes(question, expected):
    assert is_yes_no(question) == expected


if __name__ == "__main__":
    blocks = [f"# {name}\n{worded(case)}" for name, case in CASES.items()]
    STORED.write_text("\n\n".join(blocks) + "\n", "utf-8")
