"""The sections `interventions` and `measure`: short forms, and a message for each mistake."""

import pytest

from probekit.errors import ConfigError
from probekit.experiment.loader import dump_experiment, load_experiment
from probekit.experiment.schema import Experiment
from tests.pipeline.intervene.cause_experiment import YAML, write_experiment


def test_short_and_long_forms_are_equal(tmp_path):
    path = write_experiment(tmp_path)
    short = load_experiment(path)
    assert [one.name for one in short.measure] == ["logit_difference", "kl"]
    assert short.interventions[0].from_ == "counterfactual"
    assert short.interventions[0].at == ("probed", "all")
    assert short.answer_columns == ("nearest_verb", "nearest_other")
    path.write_text(dump_experiment(short))
    assert load_experiment(path) == short


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("from: counterfactual, ", "", "`do: patch` requires `from`"),
        ("with: mean", "with: median", "interventions.*with is 'median'"),
        ("with: mean", "with: mean, by: [-1, 1]", "`by` is not a key of `do: ablate`; it is for s"),
        ("do: steer", "do: stear", "interventions.*do is 'stear'. Nearest: steer"),
        ("rank: 1", "rank: 2", "rank is 2"),
        ("by: [-2, 2]", "by: [2]", "by"),
        ("by: [-2, 2]", "by: [0, 2]", "a dose is at least 0.01 or at most -0.01"),
        ("by: [-2, 2]", "by: [2, 2]", "`2.0` is listed twice"),
        ("at: [probed, all]", "at: [all, all]", "`all` is listed twice"),
        ("along: mean_difference, by", "along: prob, by", "'prob'. Nearest: probe. Allowed: leace"),
        ("along: mean_difference, by", "along: 1, by", r"a list, such as \[?probe"),
        ("draws: 59}", "draws: 39}", r"`draws` is 39, .* is at least 0\.075\. Use at least 59"),
        ("draws: 59}", "draws: -1}", "draws is -1"),
        ("  pairs: nearest_flipped\n", "", "`do: patch` requires `data.pairs`"),
        ("  - kl\n", "  - entropy\n", "measure.*name is 'entropy'"),
        (", wrong: nearest_other", "", "`logit_difference` requires `wrong`"),
        (
            "logit_difference: {answer: nearest_verb, wrong: nearest_other}",
            "kl",
            "needs `answer`",
        ),
        ("logit_difference:", "accuracy:", "measure with a direction"),
        ("at: [probed, all]", "at: [first]", "at.* is 'first'"),
        (
            "along: mean_difference, by",
            "at: each, by",
            "`at: each` is for patch and ablate",
        ),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path, old, new, message):
    assert old in YAML
    path = write_experiment(tmp_path, YAML.replace(old, new))
    with pytest.raises(ConfigError, match=message) as raised:
        load_experiment(path)
    assert "line" in str(raised.value)


def test_interventions_and_measures_belong_together():
    values = {
        "name": "a",
        "model": {"source": "mini"},
        "data": {"name": "rows"},
        "tokens": {"bos": False, "position": {"at": "last"}},
    }
    steps = [{"do": "ablate", "with": "zero", "sites": "blocks.0.hook_mlp_out"}]
    with pytest.raises(ConfigError, match="`interventions` require `measure`"):
        Experiment.from_dict(values | {"interventions": steps})
    with pytest.raises(ConfigError, match="`measure` is for `interventions`"):
        Experiment.from_dict(values | {"measure": ["kl"]})
