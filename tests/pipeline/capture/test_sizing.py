"""Plans compared with numbers by hand, a written cache, and docs/howto/cluster.md."""

import json
import math
import re
import shlex
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from probekit.activations.sizing import Volume, operations

from probekit.activations.forward import make_batches, make_shards
from probekit.activations.identity import BATCH_TOKENS, SHARD_ROWS
from probekit.cli.plans import lines
from probekit.data.positions import RowPlan
from probekit.errors import ConfigError
from probekit.model.families.gpt2 import PUBLISHED, GPT2Config
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.capture.sizing import Speed, plan_experiment, plan_tokens
from tests.pipeline.scale import load, write_experiment


def test_plan_equals_numbers_computed_by_hand():
    plan = plan_tokens("gpt2", 10_240_000, sites=["blocks.*.hook_resid_post"], length=512)
    numbers = plan.numbers
    assert numbers["rows_of_a_site"] == 10_240_000
    # A batch of 16,384 tokens has 32 sequences of 512, which is more than one shard.
    assert numbers["shards_of_a_site"] == 625
    header = 8 + len('{"rows":{"dtype":"F16","shape":[16384,768],"data_offsets":[0,25165824]}}')
    assert numbers["bytes_of_rows"] == 12 * (10_240_000 * 768 * 2 + 625 * (header + -header % 8))
    # A block of GPT-2 small has 12 x 768^2 weights in its matrices; a token sees 256.5 on average.
    of_a_token = 12 * (2 * 12 * 768**2 + 4 * 768 * 256.5)
    assert numbers["operations"] == 10_240_000 * of_a_token
    assert numbers["files"] == 2 * 12 * 625 + 3
    assert numbers["bytes_of_weights_read"] == 4 * 124_439_808
    assert numbers["hours"] is None


def test_hours_are_the_maximum_of_computing_and_writing():
    plan = plan_tokens("gpt2", 1_024_000, sites=["hook_embed"], dtype="float32", position="last")
    assert plan.numbers["rows_of_a_site"] == 1000
    plan = replace(plan, workers=4, speed=Speed(tokens_per_second=1000))
    shards = plan.numbers["shards_of_a_site"]
    assert plan.numbers["workers"] == shards == 1  # at most one worker per shard
    plan = replace(plan_tokens("gpt2", 7_200_000, sites=["hook_embed"], length=100), workers=2)
    plan = replace(plan, speed=Speed(tokens_per_second=1000))
    assert plan.numbers["hours"] == 1.0
    assert plan.numbers["worker_hours_of_computing"] == 2.0
    assert plan.numbers["megabytes_per_second"] == plan.numbers["bytes"] / 3600 / 1e6
    slow = replace(plan, bandwidth=1.0).numbers
    assert slow["hours"] == slow["hours_of_writing"] == slow["bytes"] / 1e6 / 3600
    assert slow["megabytes_per_second_of_a_worker"] == pytest.approx(0.5)
    plan = plan_tokens("gpt2", 7_200_000, sites=["blocks.0.hook_resid_post"])
    fast = replace(plan, workers=2, speed=Speed(tflops=1.0, utilisation=0.5)).numbers
    assert fast["hours"] == fast["operations"] / 0.5e12 / 2 / 3600


def test_embeddings_cost_no_operations():
    plan = replace(plan_tokens("gpt2", 1000, sites=["hook_embed"]), speed=Speed(tflops=1.0))
    assert plan.numbers["hours"] == 0
    assert "network" not in dict(lines(plan.numbers))
    assert dict(lines(replace(plan, bandwidth=1.0).numbers))["network"].startswith("1 MB/s")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("length", "each"), [(7, 7), (7, 1), (300, 300), (20_000, 20_000), (64, 1)]
)
def test_uniform_sequences_have_the_layout_of_a_capture(device, length, each):
    tokens = [np.array([n, *range(length - 1)]) for n in range(700 if length < 1000 else 5)]
    n = len(tokens)
    positions = np.tile(np.arange(each), n) if each > 1 else np.full(n, length - 1)
    plan = RowPlan(np.repeat(np.arange(n), each), positions, np.arange(n * each + 1))
    assert Volume.uniform(n * length, length, each, device) == Volume.of(tokens, plan, device)
    shards = make_shards(make_batches(tokens, plan, BATCH_TOKENS[device]), SHARD_ROWS)
    assert len(shards) == sum(Volume.of(tokens, plan, device).shards.values())


def test_forward_pass_stops_at_the_deepest_site():
    one, config = Volume.uniform(64, 64, 1, "cpu"), GPT2Config()
    block = operations(config, one, ["blocks.0.mlp.hook_post"])
    assert operations(config, one, ["hook_embed", "blocks.0.hook_resid_pre"]) == 0
    assert operations(config, one, ["blocks.3.hook_resid_pre", "hook_embed"]) == 3 * block
    assert operations(config, one, ["ln_final.hook_scale"]) == 12 * block


def test_plan_of_an_experiment_equals_the_size_of_its_cache(tmp_path):
    experiment = load(tmp_path)
    numbers = plan_experiment(experiment).numbers
    folder = capture_only(experiment, cache_root=tmp_path / "caches")["task"].store.folder
    there = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    sizes = [path.stat().st_size for path in there]
    rows = [path.stat().st_size for path in folder.glob("*/*.safetensors")]
    assert numbers["bytes_of_rows"] == sum(rows)
    assert numbers["bytes_of_the_largest_file"] == max(rows)
    assert numbers["files"] == len(sizes)
    index, planned = sum(sizes) - sum(rows), numbers["bytes"] - numbers["bytes_of_rows"]
    assert math.isclose(planned, index, rel_tol=0.02)


def test_cluster_page_shows_the_output_of_the_command(repository, call):
    page = (repository / "docs" / "howto" / "cluster.md").read_text()
    block = r"```console\n(probekit cache plan [^\n]*)\n```\n\n```text\n(.*?)```"
    shown = re.findall(block, page, re.DOTALL)
    assert len(shown) == 2
    for command, text in shown:
        assert call(*shlex.split(command)[1:]) == (0, text, "")


def test_json_contains_all_printed_numbers_and_wrong_options_are_refused(tmp_path, call):
    write_experiment(tmp_path)
    plan = partial(call, "cache", "plan")
    done = plan(tmp_path / "scale.yaml", "--device", "cpu", "--throughput", "1e4", "--json")
    numbers = json.loads(done.stdout)
    assert numbers["shards_of_a_site"] == 4
    assert dict(lines(numbers))["hours in all"] == f"{numbers['hours']:,.2f}"
    assert "--tokens is for a MODEL" in plan(tmp_path / "scale.yaml", "--tokens", "5").stderr
    assert "not both" in plan("gpt2", "--tokens", 5, "--tflops", 1, "--throughput", 1).stderr


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="--length 2000 exceeds the context"):
        plan_tokens("gpt2", 5, sites=["hook_embed"], length=2000)
    with pytest.raises(ConfigError, match="query_pos key_pos"):
        plan_tokens("gpt2", 5, sites=["blocks.0.attn.hook_pattern"])
    assert PUBLISHED["gpt2-xl"].n_layer == 48
