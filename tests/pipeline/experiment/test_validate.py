"""Checks of the data that `validate` makes, and counts of labels and examples of a run."""

import time
from types import SimpleNamespace

import numpy as np

from probekit.data.examples import Dataset, RowExamples
from probekit.data.splits import Split
from probekit.experiment.loader import load_any, load_experiment
from probekit.pipeline.experiment.validate import (
    _odd_labels,
    _same_token,
    _separating_words,
    validate,
)
from probekit.pipeline.measure.record import _label_counts, _shown_examples
from probekit.probes.settings import ProbeSettings, ProbeSpec
from tests.pipeline.texts import text_of

NOUNS = [f"{start}{end}" for start in "bdfglm" for end in ("ack", "ell", "ing", "oat")]


def messages(folder, group, is_plural=lambda n, _: n % 2):
    """The findings of a file with each noun in each template, by code."""
    rows = [
        (f"{template} saw the {noun} there .", f"label{is_plural(n, t)}", f"t{t}", f"n{n}")
        for n, noun in enumerate(NOUNS)
        for t, template in enumerate(["We", "They", "She", "He", "You", "I", "Ann", "Bob"])
    ]
    lines = ["text,label,template,noun", *map(",".join, rows)]
    (folder / "nouns.csv").write_text("\n".join(lines) + "\n")
    (folder / "nouns.yaml").write_text(text_of("templates.yaml").replace("GROUP", group))
    report = validate(load_experiment(folder / "nouns.yaml"))
    return {one.code: one.message for one in report.findings if one.level == "warning"}


def test_words_that_separate_the_labels_in_other_groups_are_reported(tmp_path, snapshot):
    assert messages(tmp_path, "template")["separating-words"] == snapshot


def test_groups_by_word_and_labels_that_words_do_not_give_are_fine(tmp_path):
    assert "separating-words" not in messages(tmp_path, "noun")
    assert "separating-words" not in messages(tmp_path, "template", lambda n, t: (n + t) % 2)


def test_the_check_of_words_is_quick_on_many_long_texts():
    rng = np.random.default_rng(0)
    words = np.array([f"word{n}" for n in range(5000)])
    texts = [" ".join(words[rng.integers(5000, size=1000)]) for _ in range(2500)]
    prepared = SimpleNamespace(
        texts_at=lambda _: (texts, None),
        labels=rng.integers(5, size=2500).astype(str),
        positions=[SimpleNamespace(types=words[rng.integers(5000, size=2500)])],
        splits=[Split(np.arange(1250), np.arange(1250, 2500))],
    )
    start = time.process_time()
    assert _separating_words(prepared) == []
    assert time.process_time() - start < 5  # about 1 s on an idle machine


SPLITS = (Split(np.arange(30), np.arange(30, 40)),)


def prober(kind):
    return SimpleNamespace(settings=ProbeSettings(kinds=(ProbeSpec(kind=kind),)))


def counts(labels, kind):
    return _label_counts(SimpleNamespace(labels=np.array(labels), splits=SPLITS), prober(kind))


def test_many_numbers_are_counted_in_ranges():
    found = counts([str(n) for n in range(40)], "ridge_regression")
    assert list(found["train"]) == ["0 to 7.8", "7.8 to 15.6", "15.6 to 23.4", "23.4 to 31.2"]
    assert (sum(found["train"].values()), sum(found["test"].values())) == (30, 10)
    assert counts(["1", "2"] * 20, "ridge_regression")["train"] == {"1": 15, "2": 15}


def test_roots_of_trees_are_counted():
    found = counts(["-1", "0", "1", "2"] * 10, "structural_depth")
    assert found["test"] == {"other words": 8, "roots": 2}


def test_examples_are_shown_for_some_numbers_only():
    labels = np.array([str(n) for n in range(40)], dtype=object)
    dataset = Dataset("numbers", RowExamples(np.arange(40), labels))

    def shown(kind):
        return [one.label for one in _shown_examples(dataset, np.arange(40), prober(kind))]

    assert shown("ridge_regression") == ["0", "8", "16", "24", "32"]
    assert len(shown("logistic")) == 40


def a_design(labels, groups, types=("a",)):
    """Rows with these labels, groups and tokens."""
    columns = [None if one is None else np.array(one, dtype=object) for one in (labels, groups)]
    examples = RowExamples(np.arange(len(labels)), *columns)
    places = [SimpleNamespace(types=np.array(types), text="last")]
    return SimpleNamespace(dataset=Dataset("x", examples), positions=places, has_types=True)


def test_a_token_that_all_rows_read_is_reported():
    (found,) = _same_token(a_design(["x", "y"], None, [".", "."]))
    assert found.message.startswith("Every row probes the token '.' at last")
    assert not [*_same_token(a_design(["x", "y"], None, [".", "!"]))]


def test_an_odd_label_in_a_group_of_one_label_is_reported():
    groups = np.repeat([f"g{n}" for n in range(8)], 5)
    labels = np.repeat(list("xyxyxyxy"), 5)
    assert not [*_odd_labels(a_design(labels, groups))]
    labels[7] = "x"
    (found,) = _odd_labels(a_design(labels, groups))
    assert "'x' in row 7, where the other 4 rows of group 'g1' are 'y'" in found.message
    labels[[20, 21]] = "y"  # a group of both labels: labels do not belong to groups
    assert not [*_odd_labels(a_design(labels, groups))]


def test_one_cell_of_a_study_is_checked_by_its_name(refused):
    cell = load_any("study").cells[0]
    report = validate("study", cell=cell.name)
    assert report.n_cells == 1
    assert len({one.code for one in report.findings}) > 2
    refused(validate, "study", cell="nowhere")
    refused(validate, "quickstart", cell="nowhere")
