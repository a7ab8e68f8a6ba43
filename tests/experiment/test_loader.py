"""Files: types are preserved, later errors name the line of the value, and paths are resolved."""

import pytest

from probekit.errors import ConfigError
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_any, load_experiment, load_recipe
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


def test_later_errors_name_the_line_of_the_value(write, refused):
    text = GOOD.replace("rows.csv", "rows.csv\n  columns: {text: body}")
    path = write(text + "attention:\n  texts:\n    - one\n    - two\n")
    experiment = load_experiment(path, ["model.source=gpt2", "data.columns.label=lab"])

    def fail(experiment, *keys):
        with experiment.at(*keys):
            raise ConfigError("it is not there")

    # The section `capture` is not in the file, and an override is in the section `data.columns`.
    places = [("attention", "texts", 1), ("capture", "sites"), ("model", "source")]
    for keys in (*places, ("data", "columns")):
        refused(fail, experiment, *keys)
    refused(fail, Experiment.model_validate(experiment.model_dump()), "model", "source")


def test_line_numbers_are_not_part_of_the_experiment(write):
    assert load_experiment(write(GOOD)) == load_experiment(write("\n\n" + GOOD))


def test_written_settings_load_as_the_same(write):
    experiment = load_experiment(write(GOOD), ["question=Does it know?"])
    again = write(dump_settings(experiment))
    assert load_experiment(again) == experiment
    assert "folds: 5" in again.read_text()
    assert "pieces: last" in again.read_text()  # a default, although `at` is not `word`
    recipe = load_recipe(write(RECIPE))
    assert load_recipe(write(dump_settings(recipe))) == recipe


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
    kind = "study" if path.stem == "study" else kind
    if kind == "recipe":
        assert load_recipe(path).corpus.files
    else:
        assert load_any(path).name == path.stem
    first = path.read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema={kind}.schema.json"
