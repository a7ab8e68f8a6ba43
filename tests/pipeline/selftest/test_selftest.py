"""The self-test passes, and every check fails for a broken tool."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from probekit.model.passes.inputs import TokenBatch
from probekit.pipeline.selftest.run_checks import captured_rows, forward, run_table
from probekit.pipeline.selftest.selftest import CHECKS, TOOLS, selftest
from probekit.probes.kinds.k_sparse import best_features
from probekit.probes.score.metrics import Resamples
from probekit.probes.selftest.checks import QUICK, exchanged, probe_arrays


def keys(verdicts):
    return {(v.check, v.kind) for v in verdicts}


@pytest.mark.parametrize("name", CHECKS)
def test_the_engine_passes_a_check(name):
    verdicts = list(CHECKS[name](TOOLS, QUICK))
    assert verdicts
    assert [verdict for verdict in verdicts if not verdict.ok] == []


def with_rows(change):
    """Tools that probe changed rows."""

    def broken(data, settings, sites):
        return probe_arrays(data, settings, [change(X, data) for X in sites])

    return replace(TOOLS, probe=broken)


def with_data(**change):
    """Tools that probe with changed data."""

    def broken(data, settings, sites):
        return probe_arrays(
            replace(data, **{k: f(data) for k, f in change.items()}), settings, sites
        )

    return replace(TOOLS, probe=broken)


def leaked(X, data):
    """Rows that contain their label."""
    return X + 50 * np.unique(data.y, return_inverse=True)[1][:, None]


def mixed_up(X, data):
    """Rows in a different order from their labels."""
    return X[np.random.default_rng(0).permutation(len(X))]


def unsteady():
    generator = np.random.default_rng(0)
    return with_rows(lambda X, data: X + generator.normal(size=X.shape))


def of_rows(groups):
    """Resamples without single rows instead of groups."""
    return Resamples.leave_one_out(np.arange(len(groups)))


def exchanged_rows(rows, groups, draws, seed):
    """Scores under fewer exchanges, of single rows instead of groups."""
    return exchanged(rows, np.arange(len(groups)), draws // 5, seed)


def unexchanged(rows, groups, draws, seed):
    """Scores without exchange."""
    return np.full(1 + draws, exchanged(rows, groups, draws, seed)[0])


def too_wide(groups):
    """Resamples of a tenth of the groups, as if the sample were as small."""
    found = Resamples.leave_one_out(groups)
    kept = np.random.default_rng(0).random(found.counts[:, 1:].shape) < 0.1
    counts = np.concatenate([found.counts[:, :1], kept.astype(np.float32)], axis=1)
    return Resamples(found.group_of_row, counts)


def shifted(metrics):
    return {
        name: lambda answers, resamples, metric=metric: metric(answers, resamples) + 1e-6
        for name, metric in metrics.items()
    }


def ranked_on_all_rows(X, data):
    """The features that separate the labels best, those of held-out rows included."""
    return X[:, best_features(X, np.unique(data.y, return_inverse=True)[1], k=16)]


def without_outliers(X, data):
    """Rows whose outliers have no more weight than other values."""
    return X.clip(-2, 2)


def without_mask(model, batch, sites):
    """Activations of a batch whose padding counts as tokens."""
    ids = batch.ids.clamp(min=0)
    return forward(model, TokenBatch(ids, torch.ones_like(batch.mask), batch.offsets), sites)


def turned(model, batch, sites):
    """Activations in the reverse order of the texts, for batches of several texts."""
    return {site: value.flip(0) for site, value in forward(model, batch, sites).items()}


def with_plan(change):
    """Tools that capture other positions of the same texts."""

    def broken(model, tokens, plan, sites):
        lengths = np.array([len(ids) for ids in tokens])[plan.example]
        lengths = np.repeat(lengths, np.diff(plan.offsets))
        moved = replace(plan, positions=change(plan.positions, lengths))
        return captured_rows(model, tokens, moved, sites)

    return replace(TOOLS, capture=broken)


def shifted_layers(by):
    """Tools whose runs attribute the scores of each layer to another one."""

    def broken(experiment, folder):
        table = run_table(experiment, folder)
        parts = table["site"].str.extract(r"blocks\.(\d)(.*)")
        layers = parts[0].astype(int) + by
        return table.assign(site="blocks." + layers.astype(str) + parts[1])[layers.between(0, 3)]

    return replace(TOOLS, run=broken)


def equally_good(experiment, folder):
    """Results of a run with the same score at all sites."""
    return run_table(experiment, folder).assign(value=0.7)


def scaled_with_first(experiment, folder):
    """Results of a run whose scaling includes the rows at position 0."""
    position = experiment.tokens.position.model_copy(update={"skip_first": False})
    return run_table(experiment.with_position(position), folder)


BROKEN = {
    "padded_batches": [replace(TOOLS, forward=without_mask), replace(TOOLS, forward=turned)],
    "captured_positions": [
        with_plan(lambda positions, lengths: lengths - 1 - positions),
        with_plan(lambda positions, lengths: (positions + 1) % lengths),
    ],
    "planted_layer": [replace(TOOLS, run=equally_good)],
    "first_position": [replace(TOOLS, run=scaled_with_first)],
    "ranked_in_folds": [with_rows(ranked_on_all_rows)],
    "scaled_in_folds": [with_rows(without_outliers)],
    "planted_direction": [with_rows(mixed_up)],
    "planted_exclusive_or": [with_rows(leaked), with_rows(mixed_up)],
    "pure_noise": [with_rows(leaked)],
    "labels_looked_up": [
        # PITFALL 22: control labels that are not those of the rows' words cannot be looked up.
        with_data(types=lambda data: np.random.default_rng(0).permutation(data.types)),
    ],
    "signal_is_selective": [with_rows(mixed_up)],
    "imbalanced_labels": [with_rows(leaked), with_rows(mixed_up)],
    "copied_groups_checks": [
        # PITFALL 19: each row a group of its own, so that folds contain copies of held-out rows.
        with_data(groups=lambda data: np.arange(len(data.y)).astype(str)),
        with_rows(leaked),
        replace(TOOLS, folds=lambda labels, groups, folds, seed: np.arange(len(labels)) % folds),
    ],
    "description_length": [with_rows(leaked), with_rows(mixed_up)],
    "texts_and_trees": [with_rows(mixed_up)],
    "uniform_p_values": [
        replace(TOOLS, exchange=exchanged_rows),
        replace(TOOLS, exchange=unexchanged),
    ],
    "interval_coverage": [replace(TOOLS, resample=of_rows), replace(TOOLS, resample=too_wide)],
    "metrics_agree": [
        replace(TOOLS, metrics=shifted(TOOLS.metrics), number_metrics=shifted(TOOLS.number_metrics))
    ],
    "same_for_all": [unsteady()],
    "bad_rows": [with_rows(mixed_up), with_rows(lambda X, data: np.nan_to_num(X, posinf=0))],
}


@pytest.mark.parametrize("name", CHECKS)
def test_every_line_of_a_check_fails_on_an_engine_that_is_broken_there(name):
    found = [list(CHECKS[name](tools, QUICK)) for tools in BROKEN[name]]
    failed = set.union(*(keys(v for v in verdicts if not v.ok) for verdicts in found))
    assert failed == keys(found[0])


@pytest.mark.parametrize("by", [-1, 1])
def test_scores_of_an_adjacent_layer_fail_a_check(by):
    bad = {v.kind for v in CHECKS["planted_layer"](shifted_layers(by), QUICK) if not v.ok}
    assert {"blocks.2.hook_attn_out", f"blocks.{2 + by}.hook_attn_out"} < bad
    assert len(bad) == 4


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "macro_f1", "auroc", "auprc"])
def test_a_metric_that_ignores_ties_or_classes_fails_a_check(name):
    def by_first(answers, resamples):
        noise = np.linspace(0, 1e-6, len(answers.truth))[:, None] * np.arange(answers.n_classes)
        guess = np.minimum(answers.guess, 1)
        other = replace(answers, guess=guess, scores=answers.scores + noise)
        return TOOLS.metrics[name](other, resamples)

    tools = replace(TOOLS, metrics={**TOOLS.metrics, name: by_first})
    bad = {v.kind for v in CHECKS["metrics_agree"](tools, QUICK) if not v.ok}
    assert bad == {name}


def test_progress_is_reported_to_the_end():
    seen = []

    class Watching:
        def progress(self, step, done, total):
            seen.append((step, done, total))

        def tell(self, message):
            raise AssertionError(message)

    tools = replace(TOOLS, forward=lambda *_: pytest.fail("not called"))
    with pytest.raises(pytest.fail.Exception):
        selftest(quick=True, tools=tools, watcher=Watching())
    assert seen == [("selftest", 0, len(CHECKS))]
