import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import probekit
from probekit.errors import ConfigError, UnknownNameError
from probekit.experiment.probe import KindSection
from probekit.probes.kinds.registry import KINDS, find_kind
from probekit.probes.settings import ProbeSettings, ProbeSpec

ON_ROWS = [kind for kind in KINDS.values() if kind.task in ("classification", "regression")]


def test_names_and_tasks_agree_everywhere():
    assert {name: kind.name for name, kind in KINDS.items()} == {name: name for name in KINDS}
    assert {kind.task for kind in KINDS.values()} == {
        "classification",
        "regression",
        "tree",
        "text",
    }
    for kind in KINDS.values():
        assert kind.summary.endswith(".")
        assert kind.summary.count(". ") == 0


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_what_is_chosen_reaches_the_estimator(kind):
    other = {
        name: not value if isinstance(value, bool) else value + 3
        for name, value in kind.options.items()
    }
    values = kind.build(other, random_state=7, max_iter=11, folds=3).get_params()
    expected = {"random_state": 7, "max_iter": 11, "folds": 3, **other}
    if kind.grid:
        expected[kind.grid[0]] = kind.grid[1]
    assert values == {name: expected.get(name, value) for name, value in values.items()}
    assert set(other) <= set(values)


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_defaults_of_the_registry_are_those_of_the_estimators(kind):
    own = kind.estimator().get_params()
    if kind.grid:
        assert own[kind.grid[0]] == kind.grid[1]
    assert {name: own[name] for name in kind.options if name != "k"} == {
        name: value for name, value in kind.options.items() if name != "k"
    }


def test_the_penalties_are_those_of_the_settings_or_of_the_grid():
    settings = ProbeSettings(C=(0.5,))
    assert ProbeSpec("svm").build(settings).C == (0.5,)
    assert ProbeSpec("ridge").build(settings).alpha == KINDS["ridge"].grid[1]


def test_unknown_names_offer_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'mas_mean'\. Nearest: mass_mean"):
        find_kind("mas_mean")
    with pytest.raises(UnknownNameError, match=r"mlp has no option 'hiden'\. Nearest: hidden"):
        KINDS["mlp"].build({"hiden": 3})
    with pytest.raises(UnknownNameError, match=r"svm has no option 'k'\. It has no options"):
        KINDS["svm"].text({"k": 3})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mass_mean", {"covariance": "no"}, "covariance is 'no', but must be true or false"),
        ("mass_mean", {"covariance": 1}, "covariance is 1, but must be true or false"),
        ("k_sparse", {"k": True}, "k is True, but must be an integer"),
        ("k_sparse", {"k": 0}, "k is 0, but must be an integer of at least 1"),
    ],
)
def test_options_are_what_they_say(name, options, message):
    with pytest.raises(ConfigError, match=message):
        KINDS[name].build(options)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("logistic", {}, "logistic"),
        ("mass_mean", {}, "mass_mean"),
        ("mass_mean", {"covariance": True}, "mass_mean:covariance"),
        ("k_sparse", {"k": 4}, "k_sparse:4"),
        ("k_sparse", None, "k_sparse:16"),
        ("structural_depth", {"rank": 8}, "structural_depth:8"),
    ],
)
def test_options_are_part_of_the_text(name, options, text):
    assert KINDS[name].text(options) == text


ROW = """
    ProbeKind("guess", "A guess.", "probekit.probes.kinds.guess:Guess"),"""
CODE = """
from probekit.experiment.probe import KindSection, ProbeSection
from probekit.probes.kinds.registry import KINDS
print(KindSection(kind="guess").specs[0].text, KINDS["guess"].estimator.__name__)
assert "guess" in str(ProbeSection.model_json_schema())
"""


@pytest.mark.nightly
def test_a_kind_is_added_by_its_file_and_its_row(tmp_path):
    package = tmp_path / "probekit"
    ignored = shutil.ignore_patterns("mini", "__pycache__", "assets")
    shutil.copytree(Path(probekit.__file__).parent, package, ignore=ignored)
    table = package / "probes" / "kinds" / "registry.py"
    head, rows, tail = table.read_text().partition("_ROWS = (")
    table.write_text(head + rows + ROW + tail)
    table.with_name("guess.py").write_text("class Guess:\n    pass\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "guess Guess\n", done.stderr


def test_every_option_of_a_kind_is_a_key_of_the_experiment_file():
    keys = set(KindSection.model_fields) - {"kind"}
    assert {option for kind in KINDS.values() for option in kind.options} == keys
