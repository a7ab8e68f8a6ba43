"""Metadata that a run saves with a probe."""

from pathlib import Path

from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import digest_weights
from probekit.results.table import only
from tests.pipeline.planted import QUICK, QUICK_SITES


def test_metadata_describes_the_run(planted, probe):
    facts, result = probe.facts, planted.run(*QUICK)
    assert facts.sites == QUICK_SITES[1:]
    assert (facts.at, facts.bos, facts.model) == ("last", False, "mini")
    assert (facts.compute, facts.dtype, facts.view) == ("float32", "float32", "raw")
    assert facts.cache == Path(result.record["caches"]["task"]).name
    assert facts.weights == digest_weights(GPT2.from_pretrained("mini"))
    assert (facts.n_heads, facts.layer_norm_epsilon) == (4, 1e-5)
    assert facts.tokenizer == Tokenizer.from_pretrained("mini").digest
    assert facts.hyperparameters == {"C": 0.01}
    assert facts.versions["torch"]


def test_metrics_are_of_the_task_on_test_rows(planted, probe):
    table = planted.run(*QUICK).table
    rows = only(table, site=QUICK_SITES[1], target="task", split="test").set_index("metric")
    tested = rows[~rows.index.str.startswith("p_")]
    assert probe.facts.metrics.keys() == set(tested.index) >= {"accuracy", "auroc"}
    for name, score in probe.facts.metrics.items():
        row = tested.loc[name]
        assert (score.value, score.chance) == (row["value"], row["chance"])
        assert (score.ci_low, score.ci_high) == (row["ci_low"], row["ci_high"])
        assert (score.n, score.n_groups) == (row["n_test"], row["n_groups"])
