"""Checks that `validate` makes of the data, beyond those that a run records."""

import time
from types import SimpleNamespace

import numpy as np

from probekit.data.splits import Split
from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment.validate import _separating_words, validate

YAML = """\
name: nouns
model: {source: mini}
data: {name: nouns, format: csv, file: nouns.csv, columns: {text: text, label: label, group: GROUP}}
tokens: {bos: false, position: {at: last}}
"""
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
    (folder / "nouns.yaml").write_text(YAML.replace("GROUP", group))
    report = validate(load_experiment(folder / "nouns.yaml"))
    return {one.code: one.message for one in report.findings if one.level == "warning"}


def test_words_that_separate_the_labels_in_other_groups_are_reported(tmp_path):
    found = messages(tmp_path, "template")["separating-words"]
    assert "a bag of words of the text predicts them with a balanced accuracy of 1.00 in" in found
    assert "(chance 0.50)" in found
    assert "rows with the same word into one group" in found


def test_groups_by_word_and_labels_that_words_do_not_give_are_fine(tmp_path):
    assert "separating-words" not in messages(tmp_path, "noun")
    by_both = messages(tmp_path, "template", lambda n, t: (n + t) % 2)
    assert "separating-words" not in by_both


def test_the_check_of_words_is_quick_on_many_long_texts():
    rng = np.random.default_rng(0)
    words = np.array([f"word{n}" for n in range(5000)])
    texts = [" ".join(words[rng.integers(5000, size=1000)]) for _ in range(2500)]
    prepared = SimpleNamespace(
        texts=np.array(texts, dtype=object),
        labels=rng.integers(5, size=2500).astype(str),
        positions=[SimpleNamespace(types=words[rng.integers(5000, size=2500)])],
        splits=[Split(np.arange(1250), np.arange(1250, 2500))],
    )
    start = time.process_time()
    assert _separating_words(prepared) == []
    assert time.process_time() - start < 5  # about 1 s on an idle machine
