"""The section `data`: its sources, and rows in memory."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from probekit.experiment import loader
from probekit.experiment.data import read_examples
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_experiment, make_experiment
from probekit.experiment.schema import Experiment
from tests.pipeline.texts import text_of

HUB = {"name": "org/name", "revision": "0123456789abcdef0123456789abcdef01234567"}
ROWS = [
    {"text": f"The {colour} {noun}", "label": colour, "noun": noun}
    for noun in ("house", "door", "hat")
    for colour in ("red", "black")
]
FRAME = pd.DataFrame(ROWS)
GIVEN = {"name": "a", "activations": {"folder": "x"}, "data": {"name": "rows"}}
VALUES = {
    "name": "small",
    "model": {"source": "mini"},
    "data": {"name": "rows"},
    "tokens": {"bos": False, "position": {"at": "last"}},
}
BY_NOUN = {"columns": {"group": "noun"}}


def values(**data):
    return VALUES | {"data": VALUES["data"] | data}


def experiment(**data):
    return Experiment.from_dict(values(**data))


@pytest.mark.parametrize(
    ("data", "format"),
    [
        ({}, "memory"),
        ({"format": "memory"}, "memory"),
        ({"hub": HUB}, "hub"),
        ({"format": "hub", "hub": HUB}, "hub"),
        ({"format": "parquet", "file": "a.parquet"}, "parquet"),
        ({"format": "columns", "file": "a.txt", "columns": {"text": 1, "label": 4}}, "columns"),
    ],
)
def test_the_format_follows_from_the_source(data, format):
    assert experiment(**data).data.format == format


def test_words_in_columns_have_spans(tmp_path):
    (tmp_path / "words.txt").write_text("The DT\nhouse NN\n")
    given = values(format="columns", root=tmp_path, file="words.txt", columns={"label": 2})
    given["tokens"] = {"bos": False, "position": {"at": "word"}}  # requires spans
    examples = read_examples(Experiment.from_dict(given).data).examples
    assert [(e.label, e.span) for e in examples] == [("DT", (0, 3)), ("NN", (4, 9))]


def test_a_dict_is_read_like_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built = experiment(format="csv", file=Path("rows.csv"))
    (tmp_path / "saved.yaml").write_text(dump_settings(built))
    assert load_experiment("saved.yaml") == built == Experiment.from_file("saved.yaml")
    assert built.data.root == str(tmp_path)


def test_a_dict_may_have_tuples_and_numbers_of_numpy():
    given = {"C": np.array([0.1, 1]), "folds": np.int64(3), "kinds": ({"kind": "lda"},)}
    probe = Experiment.from_dict(VALUES | {"probe": given}).probe
    assert (probe.C, probe.folds, probe.kinds[0].kind) == ((0.1, 1.0), 3, "lda")
    for one in (0.1, [0.1], np.float64(0.1)):
        assert Experiment.from_dict(VALUES | {"probe": {"C": one}}).probe.C == (0.1,)


def test_experiments_have_several_descriptions():
    given = experiment()
    assert make_experiment(given) is given
    assert make_experiment(VALUES) == given
    assert make_experiment("quickstart") == Experiment.from_file("quickstart")
    assert make_experiment(GIVEN).activations.folder == str(Path("x").absolute())


def test_rows_in_memory_are_described():
    with_rows = experiment(**BY_NOUN).with_data(FRAME)
    facts = with_rows.data.memory
    assert (facts.kind, facts.n_rows, facts.is_split) == ("pandas DataFrame", 6, False)
    assert facts.digest == read_examples(with_rows.data).digest
    as_dicts = experiment(**BY_NOUN).with_data(ROWS)
    assert as_dicts.data.memory == facts.model_copy(update={"kind": "list of dicts"})


def test_the_digest_depends_on_the_rows_that_are_read():
    def digest(frame, **others):
        return experiment(columns={"group": "noun"} | others).with_data(frame).data.memory.digest

    first = digest(FRAME)
    assert digest(FRAME.assign(unused=1).set_index("noun", drop=False)) == first
    changed = (FRAME.iloc[::-1], FRAME.iloc[:-1], FRAME.assign(label=FRAME["noun"]))
    assert first not in [*map(digest, changed), digest(FRAME, id="text")]


def test_training_and_test_rows_in_memory_are_split():
    data = experiment(**BY_NOUN).with_data({"train": FRAME, "test": ROWS[:2]}).data
    assert data.is_split
    assert data.memory.is_split
    examples = read_examples(data).examples
    assert [e.split for e in examples] == ["train"] * 6 + ["test"] * 2
    assert (examples[0].id, examples[-1].id) == ("train row 1", "test row 2")
    without = read_examples(experiment().with_data({"train": ROWS, "test": ROWS[:2]}).data)
    assert len({example.group for example in without.examples}) == 8  # each row is a group


def test_mistakes_in_calls_and_rows_in_memory_are_explained(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    assert experiment(hub={"name": "saved"}).data.hub.name == str(tmp_path / "saved")
    for call in text_of("invalid_data.txt").splitlines():
        refused(eval, call, {**globals(), **vars(loader)})


def test_a_saved_experiment_accepts_the_same_rows_only(tmp_path, refused):
    path = tmp_path / "config.yaml"
    path.write_text(dump_settings(experiment().with_data(FRAME)))
    refused(read_examples, load_experiment(path).data)
    same = load_experiment(path).with_data(ROWS)
    assert read_examples(same.data).examples[0].text == "The red house"
    refused(load_experiment(path).with_data, FRAME.iloc[1:])
