"""Answers and warnings have the stored wording, and one table has every kind of warning."""

import re
from pathlib import Path

import pytest

import probekit
from probekit.chosen.page import Shown
from probekit.cli.runs import show_warnings
from probekit.report.notebooks.run_result import RunResult
from probekit.report.pages.run_page import run_answers, write_report
from probekit.report.sentences.answer import answer, is_yes_no, method, score_words
from probekit.report.sentences.caveats import (
    DOUBTS,
    INVALIDATES,
    KINDS,
    NOTE,
    WEAKENS,
    Caveat,
    caveats,
    merged,
)
from probekit.results.record import RunRecord
from probekit.results.verdict import HeadlineScore, Verdict
from tests.report.conftest import judged, make_record
from tests.report.sentences.cases import CASES, WHICH, YES_NO, trees, with_metric


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
    content = make_record() | {"verdict": judged(CASES["better"].table.assign(view=view))}
    for norms in content["norms"]:
        norms["read"] = {position: 0.0625 * (norms["site"] == site)}
    record = RunRecord.model_validate(content)
    lines = [one.message for one in caveats(record.verdict, record) if one.kind == "massive"]
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


PACKAGE = Path(probekit.__file__).parent
CHECKS = ("data/checks.py", "data/labels.py", "pipeline/measure/record.py")
FINDING = re.compile(r'(?:Finding\(\s*"(?:warning|error)",|\bwarning\()\s*f?"([^"]+)"')


@pytest.mark.parametrize("name", CHECKS)
def test_every_finding_has_a_place_in_the_order(name):
    codes = FINDING.findall((PACKAGE / name).read_text())
    assert codes
    for code in codes:
        for side, field in (("train", "group"), ("test", "source")):
            assert code.format(side=side, field=field) in KINDS


def test_every_kind_of_score_and_rival_has_a_place_in_the_order():
    source = (PACKAGE / "report/sentences/caveats.py").read_text()
    kinds = re.findall(r'Caveat\("([^"]+)"', source.partition("def caveats")[2])
    assert len(kinds) > 5
    assert {*kinds, *DOUBTS} - {"few-groups", "lost"} <= set(KINDS)
    assert len(set(KINDS)) == len(KINDS)


def test_terminal_page_and_notebook_have_the_same_warnings(make_run, record, capsys):
    folder = make_run(trees(), record)
    result = RunResult(folder)
    show_warnings(result)
    printed, page = capsys.readouterr().err, write_report(folder).read_text("utf-8")
    page = page.replace("&nbsp;", " ").replace("\xa0", " ").replace("\u2011", "-")
    # Both probes are not better than networks with random weights: one warning.
    assert [one.partition(":")[0] for one in result.warnings] == [INVALIDATES, WEAKENS]
    assert "(1 more like this on the page)" in result.warnings[0]
    assert "structural_depth" in page
    for sentence in result.warnings:
        assert f"warning: {sentence}\n" in printed
        assert sentence.partition(": ")[2].removesuffix(" (1 more like this on the page)") in page


@pytest.mark.parametrize("level", ["error", "warning"])
def test_what_invalidates_the_score_changes_the_first_sentence(level, tmp_path):
    content = make_record() | {"question": "Is number decodable?"}
    content["verdict"] = judged(CASES["better"].table, CASES["better"].differences)
    rare = {"level": "warning", "code": "rare-labels", "message": "y"}
    content["data"]["findings"] = [
        rare,
        {"level": level, "code": "crossing-groups", "message": "x"},
    ]
    record = RunRecord.model_validate(content)
    CASES["better"].table.to_csv(tmp_path / "results.csv", index=False)
    invalid, found = run_answers(Shown(tmp_path, record))
    (first, *_) = caveats(record.verdict, record)
    assert (first.kind, first.weight) == ("crossing-groups", INVALIDATES)
    assert record.verdict.case == "yes"
    assert invalid.text == "Not valid as it stands: see the first warning."
    assert invalid.css == found.css == "bad"


def test_warnings_of_a_kind_are_one_and_all_of_them_are_kept():
    found = [Caveat("edge-of-baseline", f"number {n}") for n in (*range(8), 0)]
    (one,) = merged(found)
    assert (one.message, len(one.similar), one.weight) == ("number 0", 7, NOTE)
    assert str(one) == "note: number 0 (7 more like this on the page)"
    kinds = ["edge-of-grid", "of a newer release", "majority", "length"]
    ordered = [one.kind for one in merged(Caveat(kind, kind) for kind in kinds)]
    assert ordered == ["majority", "of a newer release", "length", "edge-of-grid"]


def test_a_level_that_is_no_share_of_equal_labels_is_explained():
    facts = {"site": "", "p": None, "n": 9, "n_groups": 9, "sites": {}, "position": "last"}
    facts |= {"metric": "accuracy", "probe": "logistic", "view": "raw", "value": 0.9}
    facts |= {"ci_low": 0.8, "ci_high": 0.95}
    levels = [score_words(HeadlineScore(**facts, chance=level))[1] for level in (0.49, 0.5, 1 / 3)]
    assert levels == ["chance 49 % (the commonest training label)", "chance 50 %", "chance 33 %"]
