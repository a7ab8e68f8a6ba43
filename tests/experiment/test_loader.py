"""Experiment files: types stay what was written, and every mistake gets its line."""

import re
from pathlib import Path

import pytest

from probekit.errors import ConfigError, MissingError
from probekit.experiment.loader import dump_experiment, load_experiment

GOOD = """\
name: small
model:
  source: mini
data:
  name: rows
  format: csv
  file: rows.csv
tokens:
  bos: false
  position: {at: last}
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "file.yaml"
        path.write_text(text)
        return path

    return write


def refusal(path, overrides=()):
    with pytest.raises(ConfigError) as error:
        load_experiment(path, overrides)
    return str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model:", "modle:", r"line 2: unknown key 'modle'. Nearest: model\."),
        ("  source:", "  sorce:", r"line 3: unknown key 'model.sorce'. Nearest: source\."),
        ("bos: false", "bos: no", r"line 9: tokens\.bos is 'no'"),
        ("  bos: false\n", "", r"line 8: the key 'tokens\.bos' is missing; whether <\|endoftext"),
        ("name: small\n", "", r"the key 'name' is missing; the folder of its runs"),
        ("format: csv", "format: xls", r"line 6: data\.format is 'xls'.*'csv', 'tsv'"),
        ("{at: last}", "{at: lasd}", r"line 10: tokens\.position\.at is 'lasd'"),
        ("{at: last}", "{at: index}", r"line 10: `index` must be given for `at: index`"),
        ("{at: last}", "{at: word}", r"data\.columns has no start and end"),
        ("  file: rows.csv\n", "  train: a.csv\n", r"line 4: give either `file`, or both"),
        ("name: small", "name: ../up", r"line 1: name is '\.\./up'"),
        ("name: small", "name: [a]", r"line 1: name is \['a'\]"),
        ("name: small", "name: small\nname: again", r"line 2: the key 'name' stands there twice"),
        ("name: small", "name: [a", r"line \d+: expected"),
        ("name: small", "name: &x small\nquestion: *x", r"line 2: aliases \(\*x\)"),
        ("name: small", "name: !!python/object:os.system x", r"line 1: tags \(.*python/object"),
        ("name: small", "name: !x small", r"line 1: tags \(!x\)"),
        ("model:\n  source: mini", "model: mini", r"line 2: model is 'mini'"),
        ("source: mini", "source: mini\n  random_seed: 1.5", r"line 4: model\.random_seed is 1\.5"),
        ("source: mini", "source: mini\n  random_seed: '1'", r"line 4: model\.random_seed is '1'"),
        ("source: mini", "source: mini\nprobe: {C: []}", r"line 4: probe\.C is \[\]"),
        ("source: mini", "source: mini\nprobe: {C: [0.1, 0]}", r"line 4: probe\.C\.1 is 0\. "),
        ("source: mini", "source: mini\nsplit: {test: 1.0}", r"line 4: split\.test is 1\.0"),
        ("source: mini", "source: mini\nprobe: {folds: 1}", r"line 4: probe\.folds is 1"),
        ("source: mini", "source: mini\nprobe:\n  bootstrap: 10", r"line 5: probe\.bootstrap"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_its_line(write, old, new, message):
    text = GOOD.replace(old, new)
    assert text != GOOD
    path = write(text)
    answer = refusal(path)
    assert re.search(message, answer), answer
    assert str(path) in answer


def test_all_mistakes_are_listed_at_once(write):
    path = write(GOOD.replace("source", "sauce").replace("bos: false", "bos: 1"))
    assert len(refusal(path).splitlines()) == 3  # unknown key, missing key, wrong type


@pytest.mark.parametrize("text", ["", "- a\n", "text\n", "\x00", "a: 1\n---\nb: 2\n", "\ta: 1"])
def test_what_is_no_mapping_is_refused(write, text):
    assert "file.yaml" in refusal(write(text))


def test_exploding_aliases_and_large_files_are_refused_before_they_are_built(write):
    bomb = "a: &a [x, x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
    )
    assert "line 2: aliases" in refusal(write(bomb))
    assert "1,200,000 bytes" in refusal(write("#" * 1_200_000))
    assert "deeper than 20" in refusal(write("a: " + "[" * 10_000))


def test_strings_stay_strings(write):
    path = write(GOOD.replace("rows.csv", "no").replace("name: rows", "name: 4-8"))
    experiment = load_experiment(path, ["data.columns.label=no", "question=1:30"])
    assert experiment.data.file == "no"
    assert experiment.data.columns.label == "no"
    assert experiment.question == "1:30"


def test_overrides_are_typed_and_named_in_messages(write):
    path = write(GOOD)
    assert load_experiment(path, ["probe.C=[1, 0.1]"]).probe.C == (1.0, 0.1)
    assert load_experiment(path, ["probe.folds=3", "probe.seed=2"]).probe.seed == 2
    assert "--set probe.folds: probe.folds is 'x'" in refusal(path, ["probe.folds=x"])
    assert "--set probe.fold: unknown key 'probe.fold'" in refusal(path, ["probe.fold=3"])
    assert "section.key=value" in refusal(path, ["probe.folds"])
    assert "not a section" in refusal(path, ["name.x=1"])
    assert "--set name" in refusal(path, ["name=[a"])


def test_folders_are_found_from_the_file_or_for_overrides_from_here(write, monkeypatch, tmp_path):
    path = write(GOOD + "")
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    assert load_experiment(path).data.root == str(tmp_path)
    assert load_experiment(path, ["data.root=sub"]).data.root == str(here / "sub")
    path.write_text(GOOD.replace("source: mini", "source: ./model"))
    assert load_experiment(path).model.source == str(tmp_path / "model")


def test_what_is_written_back_means_the_same(write, tmp_path):
    experiment = load_experiment(write(GOOD), ["question=Does it know?"])
    again = tmp_path / "again.yaml"
    again.write_text(dump_experiment(experiment))
    assert load_experiment(again) == experiment
    assert "folds: 5" in again.read_text()


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(MissingError, match=str(tmp_path / "none.yaml")):
        load_experiment(tmp_path / "none.yaml")
    assert "cannot be read" in refusal(tmp_path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"name: caf\xe9\n")
    assert "not UTF-8" in refusal(path)


def shipped():
    folder = Path(__file__).parents[2] / "experiments"
    return sorted(folder.glob("*.yaml"))


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_every_shipped_experiment_loads_and_names_its_schema(path):
    assert load_experiment(path).name == path.stem
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=experiment.schema.json"
