"""Every block of the README runs; what it names is there."""

import doctest
import re
import shlex
import sys

import pandas as pd
import pytest

from probekit.cli.main import main
from probekit.experiment.loader import load_experiment
from probekit.pipeline.experiment.prepare import prepare


@pytest.fixture(scope="session")
def readme(repository):
    return (repository / "README.md").read_text()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_python_runs_with_the_output_shown(repository):
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testfile(
        str(repository / "README.md"), module_relative=False, optionflags=options
    )
    assert result.attempted > 5
    assert result.failed == 0


@pytest.fixture
def workplace(tmp_path, repository, readme, monkeypatch):
    """A folder with the README's own YAML, a CSV that fits it, and the shipped experiments."""
    yaml, *_ = blocks(readme, "yaml")
    (tmp_path / "my_question.yaml").write_text(yaml)
    rows = [
        {"text": f"The {size} {noun} was {end}", "label": size, "topic": noun}
        for noun in ("house", "door", "river", "garden", "letter", "table", "ship", "horse")
        for end in ("there", "here", "gone")
        for size in ("large", "little")
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "my_data.csv", index=False)
    for name in ("experiments", "data"):
        (tmp_path / name).symlink_to(repository / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_every_command_runs(readme, workplace, monkeypatch, capsys):
    commands = [line for block in blocks(readme, "console") for line in block.splitlines()]
    assert commands[0] == "make quickstart"
    for command in commands[1:]:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in (0, None), f"{command}: {capsys.readouterr().err}"
    assert len(list(workplace.glob("runs/my_question/*/report.html"))) == 2
    assert (workplace / "attention.html").is_file()


def test_the_keys_that_say_where_to_probe_are_right(readme, tmp_path):
    _, where, _ = blocks(readme, "yaml")
    begin = "name: where\nmodel: {source: mini}\n"
    columns = "columns: {start: start, end: end}"
    data = f"data: {{name: where, format: csv, file: where.csv, {columns}}}\n"
    (tmp_path / "where.yaml").write_text(begin + data + where)
    frames = ("Oh the {} is over there", "Now my {} was found here")
    nouns = ("house", "door", "river", "garden")
    rows = [
        {
            "text": f.format(noun),
            "label": label,
            "start": f.index("{"),
            "end": f.index("{") + len(noun),
        }
        for noun in nouns
        for f, label in zip(frames, "ab", strict=True)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "where.csv", index=False)
    prepared = prepare(load_experiment(tmp_path / "where.yaml"))
    assert len(prepared.positions) == 4
    assert len(prepared.selections) == 6 + 6 * 4 + 2 + 1


def test_the_keys_that_say_which_probe_are_right(readme, repository, tmp_path):
    _, _, probe = blocks(readme, "yaml")
    shipped = (repository / "experiments" / "quickstart.yaml").read_text()
    root = f"root: {repository / 'data'}"
    shipped = shipped.replace("split: {folds: 5}\n", "").replace("root: ../data", root)
    shipped = shipped.replace("probe:\n  C: [0.001, 0.01, 0.1, 1, 10]\n", "")
    (tmp_path / "which.yaml").write_text(shipped + probe)
    experiment = load_experiment(tmp_path / "which.yaml")
    assert [spec.text for spec in experiment.probe.settings().kinds] == [
        "logistic",
        "mass_mean:covariance",
        *(f"k_sparse:{k}" for k in (1, 4, 16, 64)),
        "mlp:64",
    ]
    assert len(prepare(experiment).splits) == 5


def test_files_that_are_named_are_there(readme, repository):
    named = re.findall(
        r"`((?:probekit|docs|experiments|data|model|probes|report)/[\w./]+)`", readme
    )
    for name in named:
        found = (repository / name).exists() or (repository / "probekit" / name).exists()
        assert found, name
    listed = set(re.findall(r"^\| `(\w+\.yaml)` \|", readme, re.MULTILINE))
    assert listed == {path.name for path in (repository / "experiments").glob("*.yaml")}
