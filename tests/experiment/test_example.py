"""`probekit init` writes an experiment that is valid as it is, and overwrites nothing."""

import pytest

from probekit.data.table import Columns
from probekit.errors import StoreError
from probekit.experiment.data import read_examples
from probekit.experiment.example import keys_of, write_example
from probekit.experiment.loader import SCHEMA, load_experiment
from probekit.experiment.schema import Experiment
from probekit.pipeline.experiment.validate import validate


def test_the_example_is_valid_with_all_its_commented_keys(tmp_path):
    yaml, data, schema = write_example(tmp_path / "folder" / "my_data")
    assert [path.name for path in (yaml, data, schema)] == ["my_data.yaml", "my_data.csv", SCHEMA]
    experiment = load_experiment(yaml)
    assert (experiment.name, experiment.data.file) == ("my_data", "my_data.csv")
    report = validate(experiment)
    assert report.ok
    assert report.n_examples >= 150
    section = ("#   sites", "#   kinds", "#   metric", "#   texts", "# capture", "# probe", "# att")
    lines = [
        line.replace("# ", "", 1) if line.startswith(section) else line
        for line in yaml.read_text().splitlines()
    ]
    yaml.write_text("\n".join(lines) + "\n")
    assert load_experiment(yaml).probe.metric == "balanced_accuracy"


def test_no_file_is_overwritten(tmp_path, refused):
    paths = write_example(tmp_path / "mine.yaml")
    before = [path.read_bytes() for path in paths]
    refused(write_example, tmp_path / "mine")
    write_example(tmp_path / "second")  # the schema is the same
    assert [path.read_bytes() for path in paths] == before
    (tmp_path / SCHEMA).write_text("{}")
    refused(write_example, tmp_path / "third")
    assert not (tmp_path / "third.yaml").exists()


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StoreError, match="too large"):
            write_example(tmp_path / "mine")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not any(tmp_path.iterdir())
    write_example(tmp_path / "mine")


def test_a_name_that_is_no_folder_is_refused(tmp_path, refused):
    refused(write_example, tmp_path / "my question")
    refused(write_example, tmp_path / ".hidden")
    (tmp_path / "file").touch()
    refused(write_example, tmp_path / "file" / "mine")


@pytest.mark.parametrize("name", ["yes", "1e3", "null", "2024", "my_question_2"])
def test_a_name_that_yaml_reads_as_another_value_is_quoted(tmp_path, name):
    assert load_experiment(write_example(tmp_path / name)[0]).name == name


@pytest.mark.parametrize("group", ["doc: x", None])
def test_the_experiment_of_a_table_has_its_columns_and_labels(tmp_path, call, refused, group):
    rows = [f"{kind} {noun},{kind},{noun}" for kind in ("big", "2") for noun in ("a cat", "a dog")]
    (tmp_path / "my data.tsv").write_text("\n".join(["it,yes,doc: x", *rows]).replace(",", "\t"))
    words = ["--data", "my data.tsv", "--text", "it", "--label", "yes"]
    done = call("init", "here/mine", *words, *(["--group", group] if group else []))
    assert "sample" not in done.stdout + (tmp_path / "here" / "mine.yaml").read_text()
    experiment = load_experiment(tmp_path / "here" / "mine.yaml")
    assert experiment.question == "Can the yes (2, big) be decoded at the last token?"
    assert len(read_examples(experiment.data)) == 4
    assert experiment.data.columns.group == group
    assert "--label" in call("init", "other", *words[:4]).stderr
    columns = Columns(text="it", label="No")
    refused(write_example, tmp_path / "other", tmp_path / "my data.tsv", columns)
    refused(write_example, tmp_path / "other", tmp_path / "my data.txt", columns)


def test_the_commands_print_what_to_do_next(call):
    done = call("init", "mine").stdout
    assert done.endswith("Next:\n  probekit validate mine.yaml\n  probekit run mine.yaml\n")
    listed = call("experiments").stdout
    assert "probekit run capitals" in listed or "quickstart" in listed


def test_columns_are_listed_where_one_is_missing(tmp_path, call):
    (tmp_path / "rows.csv").write_text("it;class\na;x\nb;y\n")
    done = call("init", "mine", "--data", "rows.csv")
    assert done.code == 2
    assert "Columns of rows.csv: it, class." in done.stderr


@pytest.mark.parametrize("odd", ["A ", "l\u0430bel", "a sentence that is no label"])
def test_labels_that_need_work_are_not_in_the_question(tmp_path, odd):
    rows = [f"text {number},{'a' if number % 2 else odd}" for number in range(8)]
    (tmp_path / "rows.csv").write_text("\n".join(["it,class", *rows]))
    columns = Columns(text="it", label="class")
    yaml, *_ = write_example(tmp_path / "mine", tmp_path / "rows.csv", columns)
    experiment = load_experiment(yaml)
    assert experiment.question == "Can the class (2 labels) be decoded at the last token?"


def test_keys_of_a_section_are_those_of_the_schema(call, refused):
    done = call("keys", "data.columns")
    assert "column with the text" in " ".join(done.stdout.split())
    assert [name for name, *_ in keys_of("")] == [*Experiment.model_fields]
    kinds = {name: (values, default) for name, values, default, _ in keys_of("probe.kinds")}
    assert kinds["kind"][0].startswith("logistic, ridge, lda")
    assert kinds["kind"][1] == "required"
    assert {name: default for name, _, default, _ in keys_of("split")}["seed"] == "0"
    assert all(description for name in ("", "data", "tokens") for *_, description in keys_of(name))
    assert [row[:3] for row in keys_of("split.folds")] == [("folds", "integer", "null")]
    values = {name: words for name, words, *_ in keys_of("probe")}
    assert values["C"] == "number, list of number"
    assert values["class_weight"] == "balanced"
    assert {words for name, words, *_ in keys_of("monitor") if name == "fpr"} == {"list of number"}
    refused(keys_of, "data.colums")
