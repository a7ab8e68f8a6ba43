"""The sections `interventions` and `measure`: their short forms, and that they belong together."""

import pytest

from probekit.errors import ConfigError
from probekit.experiment.document import dump_settings
from probekit.experiment.loader import load_experiment
from probekit.experiment.schema import Experiment
from tests.pipeline.intervene.cause_experiment import write_experiment


def test_short_and_long_forms_are_equal(tmp_path):
    path = write_experiment(tmp_path)
    short = load_experiment(path)
    assert [one.name for one in short.measure] == ["logit_difference", "kl"]
    assert short.interventions[0].from_ == "counterfactual"
    assert short.interventions[0].at == ("probed", "all")
    assert short.answer_columns == ("nearest_verb", "nearest_other")
    path.write_text(dump_settings(short))
    assert load_experiment(path) == short


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
