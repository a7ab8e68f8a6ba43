"""Experiment files: types are preserved, and later errors name the line of the value."""

import re

import pytest

from probekit.errors import ConfigError, MissingError
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_experiment, load_recipe
from probekit.experiment.locations import bundled_files
from probekit.experiment.schema import Experiment
from tests.experiment.files import GOOD, RECIPE
from tests.pipeline.intervene.cause_experiment import write_experiment


def test_strings_are_not_converted(write):
    path = write(GOOD.replace("rows.csv", "no").replace("name: rows", "name: 4-8"))
    experiment = load_experiment(path, ["data.columns.label=no", "question=1:30"])
    assert experiment.data.file == "no"
    assert experiment.data.columns.label == "no"
    assert experiment.question == "1:30"


def test_later_errors_name_the_line_of_the_value(write):
    path = write(GOOD + "attention:\n  texts:\n    - one\n    - two\n")
    experiment = load_experiment(path, ["model.source=gpt2"])
    for keys, place in {
        ("attention", "texts", 1): f"{path}, line 14: ",
        ("capture", "sites"): f"{path}, line 1: ",
        ("model", "source"): "--set model.source: ",
    }.items():
        message = f"^{re.escape(place)}it is not there$"
        with pytest.raises(MissingError, match=message), experiment.at(*keys):
            raise MissingError("it is not there")


def test_override_within_a_section_is_named_with_its_section(write):
    columns = GOOD.replace("rows.csv", "rows.csv\n  columns: {text: body}")
    experiment = load_experiment(write(columns), ["data.columns.label=lab"])
    message = r"line 8 or --set data\.columns\.label: no column"
    with pytest.raises(ConfigError, match=message), experiment.at("data", "columns"):
        raise ConfigError("no column")


def test_line_numbers_are_not_part_of_the_experiment(write):
    path = write(GOOD)
    moved = path.with_name("moved.yaml")
    moved.write_text("\n\n" + GOOD)
    assert load_experiment(path) == load_experiment(moved)
    unplaced = Experiment.model_validate(load_experiment(path).model_dump())
    with (
        pytest.raises(ConfigError, match=r"^model\.source: wrong$"),
        unplaced.at("model", "source"),
    ):
        raise ConfigError("wrong")


def test_written_settings_load_as_the_same(write, tmp_path):
    experiment = load_experiment(write(GOOD), ["question=Does it know?"])
    again = tmp_path / "again.yaml"
    again.write_text(dump_settings(experiment))
    assert load_experiment(again) == experiment
    assert "folds: 5" in again.read_text()
    assert "pieces: last" in again.read_text()  # a default, although `at` is not `word`
    recipe = load_recipe(write(RECIPE))
    again.write_text(dump_settings(recipe))
    assert load_recipe(again) == recipe


def test_short_and_long_forms_of_interventions_are_equal(tmp_path):
    path = write_experiment(tmp_path)
    short = load_experiment(path)
    assert [one.name for one in short.measure] == ["logit_difference", "kl"]
    assert short.interventions[0].from_ == "counterfactual"
    assert short.interventions[0].at == ("probed", "all")
    assert short.answer_columns == ("nearest_verb", "nearest_other")
    path.write_text(dump_settings(short))
    assert load_experiment(path) == short


def test_pieces_may_be_set_with_position_word(write):
    columns = ["data.columns.start=s", "data.columns.end=e", "tokens.position.at=word"]
    experiment = load_experiment(write(GOOD), [*columns, "tokens.position.pieces=mean"])
    assert experiment.tokens.position.text == "word:mean"


@pytest.mark.parametrize("path", bundled_files().values(), ids=lambda path: path.stem)
def test_included_files_load_and_name_their_schema(path):
    kind = "recipe" if path.stem.startswith("pretrain_") else "experiment"
    if kind == "recipe":
        assert load_recipe(path).corpus.files
    else:
        assert load_experiment(path).name == path.stem
    first = path.read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema={kind}.schema.json"
