"""A network of each family from an experiment file to its page, and in every command on a model."""

import pytest

from probekit import run
from tests.model.families.configurations import ONE_PER_NETWORK, rows
from tests.pipeline.intervene.cause_experiment import write_experiment
from tests.pipeline.tiny_models import write_model

YAML = """\
name: family
model: {{source: {source}, random_weights: 1}}
data:
  name: nouns
  format: csv
  file: nouns.csv
  columns: {{text: text, label: nearest, group: group}}
tokens: {{bos: true, position: {{at: last}}}}
split: {{test: 0.5}}
capture: {{sites: [blocks.*.hook_resid_post, "blocks.1.attn.hook_z[head=*]"]}}
probe: {{C: [0.1], folds: 2, permutations: 0, control_draws: 0, baselines: [majority]}}
attention: {{texts: [The keys to the cabinet]}}
"""


FIRST, *OTHERS = rows(ONE_PER_NETWORK)
AT_NIGHT = [pytest.param(row, marks=pytest.mark.nightly) for row in OTHERS]


@pytest.fixture(scope="module", params=[FIRST, *AT_NIGHT], ids=lambda row: row.name)
def model(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), request.param)


def test_an_experiment_on_heads_has_its_page(model, tmp_path):
    result = run(
        write_experiment(tmp_path, YAML.format(source=model)), out=tmp_path / "runs", progress=False
    )
    assert {"task", "random weights"} <= {*result.table["target"].str.replace("_", " ")}
    heads = result.table[result.table["head"].notna()]
    assert set(heads["head"]) == set(range(int(heads["head"].max()) + 1))
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert "blocks.1.attn.hook_z" in page


def test_commands_on_a_model(model, call, tmp_path):
    text = "The keys to the old cabinet are here."
    for command in (
        f"sites {model}",
        f"params {model}",
        f"verify {model}",
        f"heads --model {model}",
        f"generate --model {model} --max-new-tokens 5 --prompt",
        f"attribution --model {model} --text",
        f"lens --model {model} --out {tmp_path / 'lens.html'} --text",
        f"attention --model {model} --out {tmp_path / 'attention.html'} --text",
    ):
        words = command.split()
        found = call(*words, text) if words[-1].startswith("--") else call(*words)
        assert found.code == 0, f"{command}: {found.stderr}"
