"""Metadata that a run saves with a probe."""

import numpy as np

from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import digest_weights
from probekit.pipeline.experiment.source import captured_facts
from probekit.pipeline.measure.probing import make_probers, save_probe
from probekit.probes.saved_probe import SavedProbe

SITE = "blocks.2.hook_resid_post"


def test_metadata_describes_the_run(kept, number_probe):
    facts = number_probe.facts
    assert facts.sites == (SITE,)
    assert (facts.at, facts.bos, facts.model) == ("last", False, "mini")
    assert (facts.compute, facts.dtype, facts.view) == ("float32", "float32", "raw")
    assert facts.cache == kept.store.identity.key == kept.store.folder.name
    assert facts.weights == digest_weights(GPT2.from_pretrained("mini"))
    assert (facts.n_heads, facts.layer_norm_epsilon) == (4, 1e-5)
    assert facts.tokenizer == Tokenizer.from_pretrained("mini").digest
    assert facts.hyperparameters == {"C": 0.01}
    assert facts.versions["torch"]


def test_metrics_are_of_the_task_on_test_rows(kept, tmp_path):
    (prober,) = make_probers(kept.experiment, kept.prepared)
    measured = prober.site(kept.rows(SITE)).measurements
    layer = np.ones((1, 256)), np.zeros(1)
    facts = captured_facts(kept.experiment, kept.store.identity) | {
        "kind": "logistic",
        "scores_are_logits": True,
        "sites": [SITE],
        "seed": 0,
    }
    path = save_probe(tmp_path / "p", (layer,), ("plural", "singular"), facts, measured)
    metrics = SavedProbe.load(path).facts.metrics
    wanted = {m.metric: m for m in measured if (m.target, m.split) == ("task", "test")}
    assert metrics.keys() == wanted.keys() >= {"accuracy", "auroc"}
    for name, score in metrics.items():
        assert score.value == wanted[name].value
        assert (score.ci_low, score.ci_high) == (wanted[name].ci_low, wanted[name].ci_high)
        assert (score.n, score.n_groups) == (wanted[name].n_test, wanted[name].n_groups)
        assert score.chance == wanted[name].chance
