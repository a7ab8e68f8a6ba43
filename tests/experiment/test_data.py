"""The section `data`: its sources, and rows in memory."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from probekit.errors import ConfigError, DataError, MissingError, UnknownNameError
from probekit.experiment.data import read_examples
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_experiment, make_experiment, make_text_experiment
from probekit.experiment.schema import Experiment

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [
    {"text": f"The {colour} {noun}", "label": colour, "noun": noun}
    for noun in ("house", "door", "hat")
    for colour in ("red", "black")
]
FRAME = pd.DataFrame(ROWS)
GIVEN = {"name": "a", "activations": {"folder": "x"}, "data": {"name": "rows"}}


def values(**data):
    return {
        "name": "small",
        "model": {"source": "mini"},
        "data": {"name": "rows"} | data,
        "tokens": {"bos": False, "position": {"at": "last"}},
    }


def experiment(**data):
    return Experiment.from_dict(values(**data))


def refusal(**data):
    with pytest.raises(ConfigError) as error:
        experiment(**data)
    return str(error.value)


HUB = {"name": "org/name", "revision": COMMIT}


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


def test_a_folder_has_no_revision(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    assert experiment(hub={"name": "saved"}).data.hub.name == str(tmp_path / "saved")
    assert "a folder has no revision" in refusal(hub={"name": "saved", "revision": COMMIT})
    with pytest.raises(MissingError, match="There is no folder"):
        read_examples(experiment(hub={"name": "./none"}).data)


def test_words_in_columns_have_spans(tmp_path):
    (tmp_path / "words.txt").write_text("The DT\nhouse NN\n")
    given = values(format="columns", root=tmp_path, file="words.txt", columns={"label": 2})
    given["tokens"]["position"]["at"] = "word"  # requires spans
    examples = read_examples(Experiment.from_dict(given).data).examples
    assert [(e.label, e.span) for e in examples] == [("DT", (0, 3)), ("NN", (4, 9))]


def test_a_dict_is_read_like_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built = experiment(format="csv", file=Path("rows.csv"))
    (tmp_path / "saved.yaml").write_text(dump_settings(built))
    assert load_experiment("saved.yaml") == built == Experiment.from_file("saved.yaml")
    assert built.data.root == str(tmp_path)


def test_a_dict_may_have_tuples_and_numbers_of_numpy():
    kinds = ({"kind": "lda"},)
    given = {"C": np.array([0.1, 1]), "folds": np.int64(3), "kinds": kinds}
    probe = Experiment.from_dict(values() | {"probe": given}).probe
    assert (probe.C, probe.folds, probe.kinds[0].kind) == ((0.1, 1.0), 3, "lda")


def test_errors_in_a_dict_name_the_key():
    with pytest.raises(ConfigError, match=r"^unknown key 'modle'\. Nearest: model\.$"):
        Experiment.from_dict(values() | {"modle": 1})
    with pytest.raises(ConfigError, match=r"^The settings are of type list\. Pass a dict"):
        Experiment.from_dict([])


def test_experiments_have_several_descriptions():
    given = experiment()
    assert make_experiment(given) is given
    assert make_experiment(values()) == given
    assert make_experiment("quickstart") == Experiment.from_file("quickstart")
    assert make_experiment(GIVEN).activations.folder == str(Path("x").absolute())
    for make in (make_experiment, make_text_experiment):
        with pytest.raises(ConfigError, match=r"of type int\. Pass an Experiment, a dict or"):
            make(3)


def test_rows_do_not_apply_to_given_activations():
    with pytest.raises(ConfigError, match=r"Pass labels and activations to probekit\.probe"):
        make_experiment(GIVEN, FRAME)
    with pytest.raises(ConfigError, match="has given activations; this step reads texts"):
        make_text_experiment(GIVEN)


def test_rows_in_memory_are_described():
    with_rows = experiment(columns={"group": "noun"}).with_data(FRAME)
    facts = with_rows.data.memory
    assert (facts.kind, facts.n_rows, facts.is_split) == ("pandas DataFrame", 6, False)
    assert facts.digest == read_examples(with_rows.data).digest
    as_dicts = experiment(columns={"group": "noun"}).with_data(ROWS)
    assert as_dicts.data.memory == facts.model_copy(update={"kind": "list of dicts"})


def test_the_digest_depends_on_the_rows_that_are_read():
    columns = {"group": "noun"}
    first = experiment(columns=columns).with_data(FRAME).data.memory.digest

    def digest(frame, **others):
        return experiment(columns=columns | others).with_data(frame).data.memory.digest

    assert digest(FRAME.assign(unused=1).set_index("noun", drop=False)) == first
    assert digest(FRAME.iloc[::-1]) != first
    assert digest(FRAME.iloc[:-1]) != first
    assert digest(FRAME.assign(label=FRAME["noun"])) != first
    assert digest(FRAME, id="text") != first


def test_training_and_test_rows_in_memory_are_split():
    data = experiment(columns={"group": "noun"}).with_data({"train": FRAME, "test": ROWS[:2]}).data
    assert data.is_split
    assert data.memory.is_split
    examples = read_examples(data).examples
    assert [e.split for e in examples] == ["train"] * 6 + ["test"] * 2
    assert (examples[0].id, examples[-1].id) == ("train row 1", "test row 2")
    without = read_examples(experiment().with_data({"train": ROWS, "test": ROWS[:2]}).data)
    assert len({example.group for example in without.examples}) == 8  # each row is a group
    folds = Experiment.from_dict(values() | {"split": {"folds": 2}})
    with pytest.raises(ConfigError, match=r"`split\.folds` requires data without a given split"):
        folds.with_data({"train": FRAME, "test": FRAME})


def test_errors_in_rows_in_memory():
    with pytest.raises(UnknownNameError, match=r"^data\.columns: DataFrame: no column 'textt'\."):
        experiment(columns={"text": "textt"}).with_data(FRAME)
    with pytest.raises(DataError, match=r"^DataFrame index 3: The text is empty"):
        experiment().with_data(FRAME.replace("The black door", ""))
    with pytest.raises(ConfigError, match=r"^the experiment has data of its own, rows\.csv"):
        experiment(format="csv", file="rows.csv").with_data(FRAME)
    with pytest.raises(ConfigError, match=r"^the experiment has data of its own, org/name"):
        experiment(hub=HUB).with_data(FRAME)


def test_a_saved_experiment_accepts_the_same_rows_only(tmp_path):
    with pytest.raises(ConfigError, match=r"names no file\. Pass the rows: probekit\.run"):
        read_examples(experiment().data)
    path = tmp_path / "config.yaml"
    path.write_text(dump_settings(experiment().with_data(FRAME)))
    with pytest.raises(ConfigError, match=r"were passed in Python \(pandas DataFrame, 6 rows, dig"):
        read_examples(load_experiment(path).data)
    same = load_experiment(path).with_data(ROWS)
    assert read_examples(same.data).examples[0].text == "The red house"
    with pytest.raises(ConfigError, match=r"config\.yaml, line \d+: these are not the rows of the"):
        load_experiment(path).with_data(FRAME.iloc[1:])
