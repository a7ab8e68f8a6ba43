"""Plans compared with numbers by hand, a written cache, and docs/howto/cluster.md."""

import json
import re
import shlex

import pytest

from probekit.errors import ConfigError
from probekit.pipeline.capture.captures import capture_only, plan_experiment, plan_tokens
from tests.pipeline.scale import load, write_experiment


def test_plan_equals_numbers_computed_by_hand():
    numbers = plan_tokens("gpt2", 10_240_000, sites=["blocks.*.hook_resid_post"])
    assert numbers["rows_of_a_site"] == 10_240_000
    # A batch of 16,384 tokens has 16 sequences of 1,024, which is more than one shard.
    assert numbers["shards_of_a_site"] == 625
    assert numbers["files"] == 2 * 12 * 625 + 3
    assert numbers["bytes"] == pytest.approx(12 * 10_240_000 * 768 * 2, rel=0.01)
    on_cpu = plan_tokens("gpt2", 10_240_000, sites=["hook_embed"], device="cpu", dtype="float32")
    assert on_cpu["shards_of_a_site"] == 2500  # two batches of two sequences each
    assert on_cpu["bytes"] == pytest.approx(10_240_000 * 768 * 4, rel=0.02)


def test_plan_of_an_experiment_equals_the_size_of_its_cache(tmp_path):
    experiment = load(tmp_path)
    numbers = plan_experiment(experiment)
    store = capture_only(experiment, cache_root=tmp_path / "caches")["task"].store
    there = [path for path in store.folder.rglob("*") if path.is_file() and path.name != ".lock"]
    assert numbers["files"] == len(there)
    assert numbers["shards_of_a_site"] == len(store.shards)
    assert numbers["bytes"] == pytest.approx(sum(path.stat().st_size for path in there), rel=0.02)


def test_cluster_page_shows_the_output_of_the_command(repository, call):
    page = (repository / "docs" / "howto" / "cluster.md").read_text()
    block = r"```console\n(probekit cache plan [^\n]*)\n```\n\n```text\n(.*?)```"
    shown = re.findall(block, page, re.DOTALL)
    assert len(shown) == 2
    for command, text in shown:
        assert call(*shlex.split(command)[1:]) == (0, text, "")


def test_hours_are_those_of_the_throughput_and_wrong_options_are_refused(tmp_path, call):
    def plan(*arguments):
        return call("cache", "plan", *arguments)

    write_experiment(tmp_path)
    numbers = json.loads(plan(tmp_path / "scale.yaml", "--device", "cpu", "--json").stdout)
    assert (numbers["shards_of_a_site"], numbers["hours"]) == (4, None)
    of_model = ("gpt2", "--tokens", 72e5, "--json", "--throughput", 1000)
    tokens = 7032 * 1024
    assert json.loads(plan(*of_model, "--workers", 2).stdout)["hours"] == tokens / 1000 / 7200
    few = json.loads(plan("gpt2", "--tokens", 5, *of_model[3:], "--workers", 9).stdout)
    assert few["hours"] == 1024 / 1000 / 3600  # one shard, so one worker
    assert "--tokens is for a MODEL" in plan(tmp_path / "scale.yaml", "--tokens", "5").stderr
    assert "--set requires a FILE" in plan("gpt2", "--tokens", 5, "--set", "a=1").stderr
    assert "number of tokens" in plan("gpt2").stderr


def test_a_site_that_cannot_be_stored_is_refused():
    with pytest.raises(ConfigError, match="query_pos key_pos"):
        plan_tokens("gpt2", 5, sites=["blocks.0.attn.hook_pattern"])
