"""`probekit init` writes an experiment that is valid as it is, and overwrites nothing."""

import pytest

from probekit.cli.main import cli
from probekit.errors import ConfigError, StoreError
from probekit.experiment.loader import SCHEMA, load_experiment, write_example
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


def test_no_file_is_overwritten(tmp_path):
    paths = write_example(tmp_path / "mine.yaml")
    before = [path.read_bytes() for path in paths]
    with pytest.raises(ConfigError, match=r"mine.yaml exists already.* Give another name"):
        write_example(tmp_path / "mine")
    write_example(tmp_path / "second")  # the schema is the same
    assert [path.read_bytes() for path in paths] == before
    (tmp_path / SCHEMA).write_text("{}")
    with pytest.raises(ConfigError, match=f"{SCHEMA} exists already"):
        write_example(tmp_path / "third")
    assert not (tmp_path / "third.yaml").exists()


@pytest.mark.parametrize(("name", "other"), [("my question", "my_question"), (".hidden", "hidden")])
def test_a_name_that_is_no_folder_is_refused(tmp_path, name, other):
    with pytest.raises(ConfigError, match=f"try '{other}'"):
        write_example(tmp_path / name)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        write_example(tmp_path / "file" / "mine")


@pytest.mark.parametrize("name", ["yes", "1e3", "null", "2024"])
def test_a_name_that_yaml_reads_as_another_value_is_quoted(tmp_path, name):
    assert load_experiment(write_example(tmp_path / name)[0]).name == name


def test_the_commands_print_what_to_do_next(tmp_path, monkeypatch):
    from click.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["init", "mine"])
    assert done.output.endswith("Next:\n  probekit validate mine.yaml\n  probekit run mine.yaml\n")
    listed = CliRunner().invoke(cli, ["experiments"]).output
    assert "probekit run capitals" in listed or "quickstart" in listed
