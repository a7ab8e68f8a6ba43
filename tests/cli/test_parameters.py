"""`probekit params`: the table, the JSON, and mistakes; `probekit verify`."""

import json

import pytest
from click.testing import CliRunner

from probekit.cli.main import cli


def run(*arguments):
    result = CliRunner().invoke(cli, ["params", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_table_has_a_line_for_each_component_and_sum():
    lines = {line[:20].strip(): line.split() for line in run("gpt2").splitlines()}
    shown = "1,771,776 12 21,261,312 17.09% 81.11 40.55 40.55"
    assert lines["attn.c_attn"][-7:] == shown.split()
    assert lines["unembedding"][1] == "tied:"
    assert lines["total"][-6:] == ["1", "124,439,808", "100.00%", "474.70", "237.35", "237.35"]


def test_options_change_the_count():
    out = run("gpt2-xl", "--untied", "--no-qkv-bias")
    assert "1,637,792,000" in out
    assert "6,247.68" in out
    assert "163,840" in run("gpt2-medium", "--n-positions", "160")
    assert "102,400" in run("gpt2-medium", "--vocab-size", "100")


def test_json_equals_the_table_and_its_shares_sum_to_one():
    found = json.loads(run("gpt2", "--untied", "--json"))
    assert sum(part["share"] for part in found["components"]) == pytest.approx(1)
    total = found["sums"][-1]
    assert total["name"] == "total"
    assert total["in_all"] == sum(part["in_all"] for part in found["components"])
    assert total["megabytes"]["float32"] == total["in_all"] * 4 / 2**20
    assert found["config"]["tie_word_embeddings"] is False


def test_folder_is_counted_from_its_config(tmp_path):
    (tmp_path / "config.json").write_text('{"n_layer": 1, "bias": false, "n_inner": 5}')
    d = 768
    expected = 50257 * d + 1024 * d + 4 * d * d + 2 * d * 5 + 3 * d
    assert f"{expected:,}" in run(str(tmp_path))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", "5e-05"), ("float64", "1e-10")])
def test_a_model_is_compared_with_transformers_in_a_dtype(dtype, tolerance):
    result = CliRunner().invoke(cli, ["verify", "mini", "--text", "A cat sat.", "--dtype", dtype])
    assert result.exit_code == 0, result.output
    assert f"All 16 tensors agree within {tolerance} of the largest value there." in result.output
    assert ("float64 to float32" in result.output) == (dtype == "float64")
