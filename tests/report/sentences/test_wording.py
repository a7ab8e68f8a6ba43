"""Answers and warnings have the stored wording."""

import pytest

from probekit.report.sentences.answer import answer, is_yes_no, method
from probekit.report.sentences.caveats import caveats
from probekit.results.record import RunRecord
from probekit.results.verdict import Verdict
from tests.report.conftest import judged, make_record
from tests.report.sentences.cases import CASES, WHICH, YES_NO, with_metric


@pytest.mark.parametrize("name", CASES)
def test_answer_and_warnings_are_those_that_are_stored(snapshot, name):
    """The verdict is one that was written and read."""
    case = CASES[name]
    written = judged(case.table, case.differences, case.grid).model_dump_json()
    v = Verdict.model_validate_json(written)
    assert "NaN" not in written
    assert v.model_dump_json() == written
    content = make_record() | {"verdict": v, "control_by": case.control_by}
    content["data"]["findings"] = case.findings
    lines = caveats(v, RunRecord.model_validate(content))
    text = [f"Case: {v.case}", answer(v, case.question), *(f"- {line}" for line in lines)]
    assert "\n".join(text) == snapshot


@pytest.mark.parametrize(
    ("site", "position", "view", "is_warned"),
    [
        ("blocks.2.hook_resid_post", "last", "raw", True),
        ("blocks.2.hook_resid_post", "mean", "raw", False),
        ("blocks.1.hook_resid_post", "last", "raw", False),
        ("blocks.2.hook_resid_post", "last", "normalized", False),
    ],
)
def test_rows_of_massive_tokens_at_the_selected_site_are_a_warning(site, position, view, is_warned):
    table = CASES["better"].table.assign(view=view)
    content = make_record() | {"verdict": judged(table)}
    for norms in content["norms"]:
        norms["read"] = {position: 0.0625 * (norms["site"] == site)}
    record = RunRecord.model_validate(content)
    lines = [one for one in caveats(record.verdict, record) if "massive" in one]
    expected = f"6.3 % of the sampled rows at {site} read a token with a massive activation, "
    assert [line.startswith(expected) for line in lines] == [True] * is_warned


@pytest.mark.parametrize(
    ("metric", "n_groups", "stated"),
    [
        ("accuracy", 15, "22 % of a rival"),
        ("accuracy", 4, ""),
        ("macro_f1", 15, "22 % of a rival"),
        ("auroc", 15, ""),
        ("auprc", 15, ""),
    ],
)
def test_a_lead_that_could_vanish_is_that_of_metrics_that_count_hits(metric, n_groups, stated):
    table = with_metric(CASES["better"].table, metric).assign(n_groups=n_groups)
    (line,) = [one for one in method(judged(table)) if "A sort of group" in one]
    assert ("could vanish" in line, stated in line) == (bool(stated), True)


@pytest.mark.parametrize(
    "question",
    [
        YES_NO,
        "Does the network encode whether it is singular or plural, past another noun?",
        "Can it be decoded in a sentence in which negation reverses the words?",
    ],
)
def test_plain_questions_are_answered_with_yes(question):
    assert is_yes_no(question)


@pytest.mark.parametrize(
    "question",
    [
        WHICH,
        "In the last layer, can it be decoded?",
        "In which layer, if any, does a token encode the previous word?",
        "Is number absent from the embedding?",
        "Is number decodable from the embedding?",
        "Is number erased?",
        "Is number independent of gender?",
        "Is it impossible to decode number?",
        "Is number confined to block 3?",
        "Do all layers encode number?",
        "Does the network use the number of the subject?",
        "Isn't it decodable?",
        "Is it decoded at the noun or at the verb?",
        "Is block 3 better than block 5?",
        "Can it be decoded before block 3?",
        "How early can it be decoded?",
        "Kann man es dekodieren?",
        "Subject number",
        "",
        None,
    ],
)
def test_other_questions_are_not_answered_with_yes(question):
    assert not is_yes_no(question)
