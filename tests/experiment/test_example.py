import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from probekit.errors import ConfigError, StoreError
from probekit.experiment.example import SCHEMA, sample_rows, write_example
from probekit.experiment.loader import load_experiment
from probekit.experiment.schema import Experiment


@pytest.mark.parametrize("name", ["my_question", "other.yaml", "2024", "true", "1e3", "new/mine"])
def test_the_example_is_a_valid_experiment(tmp_path, name):
    yaml, data, schema = write_example(tmp_path / name)
    assert yaml == (tmp_path / name).with_name(yaml.name)
    experiment = load_experiment(yaml)
    assert experiment.name == experiment.data.name == yaml.stem
    assert Path(experiment.data.root, experiment.data.file).samefile(data)
    assert f"$schema={schema.name}\n" in yaml.read_text()
    assert json.loads(schema.read_text())["properties"].keys() >= Experiment.model_fields.keys()


def test_commented_keys_are_valid_too(tmp_path):
    """A key that is commented out becomes valid by removing the `# ` in front of it."""
    yaml, *_ = write_example(tmp_path / "a")
    text = re.sub(r"^# (?=(capture|probe|attention):|  )", "", yaml.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^  probekit .*\n", "", text, flags=re.MULTILINE)
    text = text.replace("# start: start", "start: start").replace("# end: end ", "end: end ")
    yaml.write_text(text)
    experiment = load_experiment(yaml)
    assert [kind.kind for kind in experiment.probe.kinds] == ["logistic", "mass_mean"]
    assert experiment.probe.metric == "balanced_accuracy"
    assert experiment.data.columns.end == "end"
    assert experiment.attention.texts
    assert len(experiment.capture.sites) == 2


def test_the_sample_is_balanced_and_the_same_each_time():
    rows = list(csv.DictReader(sample_rows().splitlines()))
    assert sample_rows() == sample_rows()
    assert set(Counter(row["label"] for row in rows).values()) == {len(rows) // 2}
    groups = Counter((row["group"], row["label"]) for row in rows)
    assert len(set(groups.values())) == 1
    assert len(groups) >= 2 * 20  # with fewer groups, validation warns
    assert len({row["text"] for row in rows}) == len(rows)


@pytest.mark.parametrize("name", ["a.yaml", "a.csv"])
def test_existing_files_are_kept(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"{name} exists already"):
        write_example(tmp_path / "a")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_the_schema_is_shared_unless_it_differs(tmp_path):
    write_example(tmp_path / "a")
    write_example(tmp_path / "b")
    (tmp_path / SCHEMA).write_text("{}")
    with pytest.raises(ConfigError, match="the schema of another version; delete or move it"):
        write_example(tmp_path / "c")
    assert not (tmp_path / "c.yaml").exists()
    assert (tmp_path / SCHEMA).read_text() == "{}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a b", "try 'a_b'"),
        ("über", "try 'ber'"),
        ("-", "try 'my_question'"),
        ("con", "Windows reserves"),
        ("..", "try 'my_question'"),
    ],
)
def test_a_name_that_no_folder_can_have_is_refused(tmp_path, name, message):
    with pytest.raises(ConfigError, match=message):
        write_example(tmp_path / "x" / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Cannot write"):
        write_example(tmp_path / "file" / "mine")
