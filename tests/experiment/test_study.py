"""The section `over`: cells are the product of its values, and errors name line and cell."""

import pytest

from probekit.errors import ConfigError
from probekit.experiment.loader import load_any, load_experiment, make_any, make_experiment
from probekit.experiment.study import Study
from tests.experiment.files import GIVEN
from tests.pipeline.texts import text_of

STUDY = text_of("study.yaml")


@pytest.fixture
def study(write, tmp_path):
    """A function that writes files of data, and a study with a text replaced; returns its path."""

    def study(old="", new=""):
        for name in ("rows.csv", "mixed.csv"):
            (tmp_path / name).write_text("text,label\nA red house,red\n")
        (tmp_path / "published.csv").write_text("task,score\nrows,0.9\nother,0.8\n")
        assert old in STUDY
        return write(STUDY.replace(old, new) if old else STUDY)

    return study


def test_cells_are_the_product_of_the_values(study, tmp_path):
    loaded = load_any(study())
    assert loaded.keys == ("data", "probe.C")
    assert [(one.name, *one.values.values()) for one in loaded.cells] == [
        ("mixed-C-0.01", "mixed", "[0.01]"),
        ("mixed-C-1", "mixed", "[1]"),
        ("rows-C-0.01", "rows", "[0.01]"),
        ("rows-C-1", "rows", "[1]"),
        ("nouns-C-0.01", "nouns", "[0.01]"),
        ("nouns-C-1", "nouns", "[1]"),
    ]
    last = loaded.cells[-1].experiment
    assert last.probe.C == (1.0,)
    assert (last.data.name, last.data.file, last.data.format) == ("nouns", "rows.csv", "csv")
    assert (last.data.columns.text, last.data.columns.label) == ("text", "group")
    assert last.data.root == str(tmp_path)
    assert loaded.cells[0].experiment.data.columns.label == "label"
    assert (loaded.published, loaded.n_unused) == ({"rows": 0.9}, 1)


def test_a_cell_is_the_experiment_that_a_file_of_its_own_describes(study, write):
    cell = load_any(study()).cells[-1].experiment
    alone = STUDY.partition("over:")[0].replace("name: small", "name: nouns-C-1")
    alone = alone.replace("C: [0.01]", "C: [1]")
    data = "name: nouns, file: rows.csv, format: csv, columns: {label: group, group: label}"
    alone = alone.replace("data: {columns: {group: group}}", f"data: {{{data}}}")
    assert load_experiment(write(alone)) == cell


def test_nested_sections_overrides_and_values_in_python_vary_keys_too(study, tmp_path, monkeypatch):
    names = [f"rows-C-{value}" for value in ("1", "10")]
    varied = STUDY[STUDY.index("  data:\n") : STUDY.index("published")]
    nested = study(varied, "  probe:\n    C: []\n")
    overrides = ["over.data=[rows.csv]", "over.probe.C=[[1], [10]]"]
    monkeypatch.chdir(tmp_path)  # paths in overrides start there
    assert sorted(one.name for one in load_any(nested, overrides).cells) == sorted(
        f"C-{value}-rows" for value in ("1", "10")
    )
    given = make_any(study(), {"data": [str(tmp_path / "rows.csv")], "probe.C": [[1], [10]]})
    assert isinstance(given, Study)
    assert [one.name for one in given.cells] == names
    one = load_any(study()).cells[0].experiment
    cells = make_any(one, {"probe.folds": [3, 4]}).cells
    assert [cell.name for cell in cells] == ["folds-3", "folds-4"]


def test_a_data_set_may_have_two_files(study, tmp_path):
    loaded = load_any(study('- "[rm]*.csv"', "- {train: rows.csv, test: mixed.csv}"))
    data = loaded.cells[0].experiment.data
    assert (data.name, data.train, data.test, data.file) == ("rows", "rows.csv", "mixed.csv", None)


def test_given_activations_vary_too(write):
    loaded = load_any(write(GIVEN + "over: {split.seed: [0, 1]}\n"))
    assert [one.experiment.split.seed for one in loaded.cells] == [0, 1]


VARIED = "probe.C: [[0.01], [1]]"
MISTAKES = {
    "key": ("probe.C: [", "probe.D: ["),
    "key of a data set": ("columns: {label", "columns: {lable"),
    "single value": ("[[0.01], [1]]", "1"),
    "no value": ("[[0.01], [1]]", "[]"),
    "no key": (STUDY[STUDY.index("over:") :], "over: {}\n"),
    "no match": ('"[rm]*.csv"', "tasks/*.csv"),
    "no data set": ('"[rm]*.csv"', "3"),
    "one name": ("name: nouns", "name: ROWS"),
    "one value": ("[[0.01], [1]]", "[[1], [1]]"),
    "equal numbers": ("[[0.01], [1]]", "[[1], [1.0]]"),
    "equal to true": ("probe.C: [[0.01], [1]]", "model.random_weights: [true, 3]"),
    "whole section": ("probe.C: [[0.01], [1]]", "probe: [{C: [1]}, {C: [2]}]"),
    "fixed": ("probe.C: [", "data.name: ["),
    "no section": ("probe.C: [", "name.x: ["),
    "invalid cell": ("[[0.01], [1]]", "[[0.01], [-1]]"),
    "invalid everywhere": ("bos: false", "bos: no"),
    "invalid name": ("name: small", "name: sm all"),
    "one key twice": (VARIED, f"{VARIED}\n  probe: {{C: [[3], [4]]}}"),
    "section and key": (VARIED, "tokens.position: [{at: last}]\n  tokens.position.at: [first]"),
    "columns and key": (VARIED, "data.columns.label: [label, text]"),
    "over of over": (VARIED, "over.probe.C: [[1], [2]]"),
    "key of a fixed key": (VARIED, "question.x: [a, b]"),
    "number and list": ("[[0.01], [1]]", "[1, [1]]"),
    "one file, two names": ('- "[rm]*.csv"', "- rows.csv\n    - {name: again, file: rows.csv}"),
    "two rules in one": (VARIED, "probe.aggregate: [[{softmax: 1, rolling: 10}]]"),
    "test and folds": ("tokens: {", "split: {test: 0.3, folds: 3}\ntokens: {"),
    "test and sources": ("tokens: {", "split: {test: 0.3, leave_out: x}\ntokens: {"),
    "no task": ("published.csv", "mixed.csv"),
    "no file": ("published.csv", "scores.csv"),
    "no path": ("published: published.csv", "published: 3"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_line(study, refused, mistake):
    refused(load_any, study(*MISTAKES[mistake]))


@pytest.mark.parametrize(
    "overrides", [["probe.C=[3]"], ["probe={C: [3], folds: 3}"], ["data.file=rows.csv"]]
)
def test_an_override_that_another_value_replaces_is_refused(study, refused, overrides):
    refused(load_any, study(), overrides)


def test_an_override_of_another_key_is_kept(study):
    path = study(
        "\nprobe: {folds: 3, control_draws: 0, C: [0.01], description: false, permutations: 50}", ""
    )
    (first, *_) = load_any(path, ["probe.folds=4", "split.test=0.25", "split.folds=3"]).cells
    assert (first.experiment.probe.folds, first.experiment.probe.C) == (4, (0.01,))


def test_a_file_and_a_link_to_it_are_one_data_set(study, tmp_path):
    (tmp_path / "link.csv").symlink_to(tmp_path / "rows.csv")
    for name in ("link.csv", f"../{tmp_path.name}/rows.csv"):
        files = [str(tmp_path / "rows.csv"), {"name": "x", "file": str(tmp_path / name)}]
        with pytest.raises(ConfigError, match="give equal experiments"):
            make_any(study(), {"data": files})


def test_published_scores_must_be_numbers_of_tasks_of_the_study(study, refused, tmp_path):
    path = study()
    scores = ("93.5", "-0.01", "1.001", "inf", "good", "nan", "0_1", "\u0660.\u0665")
    for row in (*(f"rows,{score}" for score in scores), "rows,0.9\nrows,0.8", "raws,0.9"):
        (tmp_path / "published.csv").write_text(f"task,score\n{row}\n")
        refused(load_any, path)


def test_what_requires_a_single_experiment_refuses_a_study(study, refused):
    refused(load_experiment, study())
    refused(make_experiment, study())
    refused(make_any, 3, {"probe.folds": [3, 4]})
