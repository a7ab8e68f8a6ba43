"""A network of each family from an experiment file to its page, and in every command on a model."""

import pytest

from probekit import run
from tests.model.families.configurations import ONE_PER_NETWORK, rows
from tests.pipeline.intervene.cause_experiment import write_experiment
from tests.pipeline.texts import text_of
from tests.pipeline.tiny_models import write_model

FIRST, *OTHERS = rows(ONE_PER_NETWORK)
COMMANDS = (  # a text follows those that end with an option
    "sites {model}",
    "params {model}",
    "verify {model}",
    "attention --scores --model {model}",
    "generate --model {model} --max-new-tokens 5 --prompt",
    "attribution --model {model} --text",
    "lens --model {model} --out {folder}/lens.html --text",
    "attention --model {model} --out {folder}/attention.html --text",
)
AT_NIGHT = [pytest.param(row, marks=pytest.mark.nightly) for row in OTHERS]


@pytest.fixture(scope="module", params=[FIRST, *AT_NIGHT], ids=lambda row: row.name)
def model(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"), request.param)


def test_an_experiment_on_heads_has_its_page(model, tmp_path):
    path = write_experiment(tmp_path, text_of("family.yaml").replace("SOURCE", str(model)))
    result = run(path, out=tmp_path / "runs", progress=False)
    assert {"task", "random weights"} <= {*result.table["target"].str.replace("_", " ")}
    heads = result.table[result.table["head"].notna()]
    assert set(heads["head"]) == set(range(int(heads["head"].max()) + 1))
    assert "blocks.1.attn.hook_z" in (result.folder / "report.html").read_text(encoding="utf-8")


def test_commands_on_a_model(model, call, tmp_path):
    text = "The keys to the old cabinet are here."
    for command in COMMANDS:
        words = command.format(model=model, folder=tmp_path).split()
        found = call(*words, text) if words[-1].startswith("--") else call(*words)
        assert found.code == 0, f"{command}: {found.stderr}"
