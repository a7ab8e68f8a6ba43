"""The numbers of each part are those of its version.

`golden.json` contains a few numbers of each part, by its version. Weights and data follow from
integers, so that no random generator is involved. If a test fails and the change is intended, raise
the version that the message names, then run `make golden`, which adds numbers of new versions and
never changes those of others.
"""

import inspect
import json
import math
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from ruamel.yaml import YAML

from probekit.activations.capture import Work, fill
from probekit.activations.outputs import OutputNumbers, with_output
from probekit.activations.records import FORMAT, Identity, Manifest, ShardRecord, Spec, pack_layout
from probekit.data.positions import RowPlan
from probekit.interventions.erasure import leace
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.patching import patch
from probekit.model.families.table import FAMILIES, config_of, network_class, random_network
from probekit.model.passes.inputs import TokenBatch
from probekit.probes.kinds.registry import KINDS
from probekit.probes.score.differences import paired_differences
from probekit.probes.score.exchange import holm, permuted_labels
from probekit.probes.score.intervals import jackknife_interval, score_interval
from probekit.probes.score.metrics import ClassPredictions, Resamples, accuracy, auroc, macro_f1
from probekit.probes.score.scored import parts_of
from probekit.provenance import PART_VERSIONS, digest

GOLDEN = Path(__file__).with_name("golden.json")

NETWORKS = YAML(typ="safe").load(GOLDEN.with_name("golden_networks.yaml"))
TOKENS = np.arange(22).reshape(2, 11) * 7 % 97


def numbers(*shape, start=0):
    """Return numbers between -1 and 1 without a pattern that a matrix product would cancel."""
    n = np.arange(math.prod(shape), dtype=np.int64) + 7919 * (start + 1)
    return ((n * n % 10007 * 31 + n * 17) % 10007 / 5003.5 - 1).reshape(shape)


def some(values, n=12):
    """Return n values of an array from all of its axes."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    return flat[np.arange(min(n, flat.size)) * 7919 % flat.size]


def network(model_type, **changes):
    """Return a network whose weights bend every activation and softcap."""
    config = config_of({"model_type": model_type, **NETWORKS[model_type], **changes})
    model = random_network(config, seed=0)
    for start, (_, parameter) in enumerate(sorted(model.named_parameters())):
        values = 0.6 * torch.from_numpy(numbers(*parameter.shape, start=start))
        gain_or_bias = parameter.data if parameter.ndim == 1 else 0.0  # constants before training
        parameter.data = gain_or_bias + values.float()
    return model.eval().requires_grad_(False)


def values_of_network(model_type, **changes):
    model = network(model_type, **changes)
    either = ("mlp.hook_post", "mlp.hook_chosen_weights")  # of a dense block, of one with experts
    names = ("attn.hook_pattern", "attn.hook_z", *either, "hook_resid_post")
    sites = [f"blocks.{layer}.{name}" for layer in (0, 1) for name in names]
    sites = [site for site in sites if site in model.sites]
    logits, cache = model.run_with_cache(torch.from_numpy(TOKENS), sites)
    return {"logits": some(logits), **{site: some(cache[site]) for site in sites}}


def initial_values():
    found = {}
    for model_type in ("gpt2", "llama", "gemma2"):  # their gains and output maps differ
        config = config_of({"model_type": model_type, **NETWORKS[model_type]})
        for name, parameter in random_network(config, seed=3).named_parameters():
            if ".1." not in name:
                found[f"{model_type} {name}"] = parameter.detach().flatten()[:3]
    return found


def captured_rows():
    tokens = [*TOKENS, TOKENS[0, :4], TOKENS[1, 2:3]]
    plan = RowPlan(np.arange(4), np.array([0, 4, 10, 9, 0, 1, 2, 3, 0]), np.array([0, 3, 4, 8, 9]))
    sites = ["blocks.0.hook_resid_post", "blocks.1.mlp.hook_post"]
    with tempfile.TemporaryDirectory() as root:
        how = {"root": root, "dtype": "float16"}
        store = fill(Work.begin(network("gpt2"), "t", tokens, plan, sites, **how), root).store
        return {site: store.read(site)[:, ::5] for site in sites}


def output_numbers():
    tokens, numbers = list(TOKENS), OutputNumbers(np.array([[3, 5], [8, 1], [2, 90]]))
    plan = RowPlan(np.array([0, 0, 1]), np.array([4, 2, 3, 10]), np.array([0, 1, 3, 4]))
    found = {}
    for model_type in ("gpt2", "gemma2"):  # without and with a cap of the logits
        with tempfile.TemporaryDirectory() as root:
            how, sites = {"root": root, "dtype": "float16"}, ["blocks.0.hook_resid_post"]
            work = Work.begin(network(model_type), "t", tokens, plan, sites, **how)
            store = fill(with_output(work, numbers), root).store
            found[model_type] = store.read(numbers.column)
    return found


def store_files():
    texts = dict.fromkeys(("weights", "tokenizer", "tokens", "rows"), "d")
    how = {"dtype": "float32", "compute": "float32", "device": "cpu", "torch": "2"}
    sizes = {"network": 1, "capture": 1, "shard_rows": 2, "batch_tokens": 3, "format": 1}
    identity = Identity(config={"n": 1}, **texts, **how, **sizes)
    plan = RowPlan(np.array([0, 1, 1]), np.array([2, 0, 1, 1]), np.array([0, 1, 3, 4]))
    layout, chunks = pack_layout(plan, [np.array([1, 0]), np.array([2])])
    spec = Spec(identity, layout)
    record = ShardRecord("k", "hook_embed", 3, "F16", (2, 5), "ab" * 32)
    manifest = Manifest.of(spec, {"hook_embed": [record.digest]})
    files = {"layout": chunks, "record": [record.file.encode(), record.header, record.pack()]}
    files |= {"spec": [spec.pack()], "manifest": [manifest.pack()]}
    return {name: digest(content) for name, content in files.items()}


def fitted_probes():
    X = numbers(60, 10) @ numbers(10, 10, start=1)
    score = X[:, 0] + 0.8 * numbers(60, start=2)
    texts = np.repeat(np.arange(15), 4)
    heads = np.tile([1, -1, 1, 2], 15)  # in a text of four words
    targets = {
        "classification": (np.digitize(score, [-0.5, 0.5]),),
        "regression": (score,),
        "text": (np.repeat(score[::4] > 0, 4), texts),
        "tree": (heads, texts),
    }
    found = {}
    for name, kind in KINDS.items():
        if name == "structural_distance":  # its epochs amplify rounding errors
            continue
        options = {option: 3 for option in ("rank", "k", "hidden") if option in kind.options}
        probe = kind.build(options, random_state=0, max_iter=2000, folds=3)
        probe.fit(X, *targets[kind.task])
        known = [getattr(probe, name, None) for name in ("coef_", "projection_", "query_")]
        values = [value for value in known if value is not None]
        found[name] = some(values[0] if values else probe.decision_function(X))
    few_rows = KINDS["logistic"].build({}, random_state=0, max_iter=2000, folds=3)
    few_rows.fit(numbers(60, 40, start=3), *targets["classification"])
    found["logistic, few rows"] = some(few_rows.coef_)
    return found


def scores_with_intervals():
    groups = np.repeat(np.arange(12), 4)
    truth = np.tile([0, 1, 1, 2], 12)
    resamples, found = Resamples.leave_one_out(groups), {}
    several = []
    for start in (0, 1):
        noise = numbers(48, 3, start=start)
        scores = np.eye(3)[truth] + (1.2 + 0.3 * start) * noise
        several.append(ClassPredictions(truth, scores.argmax(1), 3, scores))
    for metric in (accuracy, macro_f1, auroc):
        pair = [metric(predictions, resamples) for predictions in several]
        parts = parts_of(metric.__name__, several[:1])
        interval = score_interval(pair[0], resamples, (0, 1), parts)
        found[metric.__name__] = [interval.value, interval.low, interval.high]
        [difference] = paired_differences([tuple(pair)], resamples)
        found[f"{metric.__name__}, difference"] = [difference.value, difference.p]
        found[f"{metric.__name__}, difference"] += [difference.ci_low, difference.ci_high]
    losses = 1 + np.abs(numbers(13))
    for limits in ((0, math.inf), (-math.inf, math.inf)):
        interval = jackknife_interval(losses, resamples, limits)
        found[f"jackknife in {limits}"] = [interval.low, interval.high]
    found["holm"] = holm(np.array([0.01, 0.04, 0.03]))
    found["permutations"] = permuted_labels(truth, groups, draws=2, seed=0).ravel()[::7]
    return found


def effects():
    model, ids = network("gpt2"), torch.from_numpy(numbers(8, 5) * 48 + 48).long()
    other = ids.clone()
    other[:, 1] = (other[:, 1] + 11) % 97
    batches = [
        TokenBatch(one, torch.ones_like(one, dtype=torch.bool), torch.zeros(8, 5, 2).long())
        for one in (ids, other)
    ]
    measure = AnswerMeasure(ids[:, 0], (ids[:, 0] + 1) % 97)
    sites = ["blocks.0.hook_resid_post", "blocks.1.attn.hook_z[head=1]"]
    rows = patch(model, *batches, measure, sites)
    names = ("base", "source", "patched", "effect_low", "recovery", "low", "p")
    X, codes = numbers(20, 4), np.arange(20) % 3
    return {
        **{row.site: [getattr(row, name) for name in names] for row in rows},
        "leace": some(leace(X, codes)(X)),
    }


class Part(NamedTuple):
    """Numbers, and the versions that they depend on; the first is the part's own."""

    versions: dict[str, int]
    compute: object
    place: str


def part_of_family(model_type):
    family = network_class(config_of({"model_type": model_type, **NETWORKS[model_type]}))
    versions = {f"{family.__name__}.VERSION": family.VERSION}
    place = Path(inspect.getsourcefile(family)).name
    return Part(versions, lambda: values_of_network(model_type), f"probekit/model/families/{place}")


def part_of(*names):
    return {name: PART_VERSIONS[name] for name in names}


GPT2_VERSION = part_of_family("gpt2").versions
PLACE = "PART_VERSIONS in probekit/provenance.py"
PARTS = {model_type: part_of_family(model_type) for model_type in NETWORKS} | {
    "initialisation": Part(part_of("initialisation"), initial_values, PLACE),
    "capture": Part(part_of("capture") | GPT2_VERSION, captured_rows, PLACE),
    "output": Part(part_of("output") | GPT2_VERSION, output_numbers, PLACE),
    "store": Part({"FORMAT": FORMAT}, store_files, "probekit/activations/records.py"),
    "probes": Part(part_of("probes"), fitted_probes, PLACE),
    "statistics": Part(part_of("statistics"), scores_with_intervals, PLACE),
    "interventions": Part(part_of("interventions", "statistics") | GPT2_VERSION, effects, PLACE),
}


def version_of(part):
    return ", ".join(f"{name} {version}" for name, version in part.versions.items())


def differing(found, stored):
    """Return the names of the values that differ by more than rounding."""
    names = found.keys() ^ stored.keys()
    for name in found.keys() & stored.keys():
        value, other = found[name], stored[name]
        if isinstance(value, str) or np.shape(value) != np.shape(other):
            is_same = value == other
        else:
            pair = (np.asarray(one, dtype=float) for one in (value, other))
            is_same = np.allclose(*pair, rtol=1e-4, atol=1e-5, equal_nan=True)
        names |= set() if is_same else {name}
    return sorted(names)


def as_json(values):
    """Return values with six significant digits."""
    return {
        name: value
        if isinstance(value, str)
        else [float(f"{number:.6g}") for number in np.asarray(value, dtype=float).ravel()]
        for name, value in values.items()
    }


def with_new_versions(golden, parts):
    """Return golden numbers with those of versions that are missing; others are not computed."""
    return golden | {
        name: {version_of(part): as_json(part.compute()), **golden.get(name, {})}
        if version_of(part) not in golden.get(name, {})
        else golden[name]
        for name, part in parts.items()
    }


@pytest.mark.parametrize("name", PARTS)
def test_numbers_are_those_of_the_version(name):
    part = PARTS[name]
    stored = json.loads(GOLDEN.read_text())[name]
    version = version_of(part)
    assert version in stored, f"There are no numbers for {version}: run `make golden`."
    changed = differing(as_json(part.compute()), stored[version])
    raised, *used = part.versions
    assert not changed, (
        f"Numbers changed: {', '.join(changed)}. If that is intended, raise {raised} in "
        f"{part.place} and run `make golden`."
        + f" If the numbers of {' or '.join(used)} changed, raise that version only."
        * bool(used)
    )


def test_every_architecture_and_every_version_has_numbers():
    assert set(NETWORKS) == {name for family in FAMILIES for name in family.model_types}
    assert set(PART_VERSIONS) <= set(PARTS)


@pytest.mark.parametrize("model_type", NETWORKS)
def test_numbers_of_a_network_depend_on_its_settings(model_type):
    before = as_json(values_of_network(model_type))
    for name, value in NETWORKS[model_type].items():
        if name.endswith(("eps", "epsilon", "softcapping", "scalar", "theta", "freq")):
            assert differing(as_json(values_of_network(model_type, **{name: 1.2 * value})), before)
        if name == "rope_parameters":
            sections = {key: one for key, one in value.items() if isinstance(one, dict)}
            wider = {key: one | {"rope_theta": 77.0} for key, one in sections.items()}
            wider = wider or value | {"rope_theta": 1.2 * value["rope_theta"]}
            assert differing(as_json(values_of_network(model_type, **{name: wider})), before)


def test_new_versions_are_added_and_others_are_kept():
    old, new = ({"x": np.array([number])} for number in (1.0, 2.0))
    parts = {"a": Part({"a": 1}, lambda: new, ""), "b": Part({"b": 2}, lambda: new, "")}
    golden = {"a": {"a 1": as_json(old)}, "b": {"b 1": as_json(old)}}
    after = with_new_versions(golden, parts)
    assert after["a"] == golden["a"]
    assert after["b"] == {"b 1": as_json(old), "b 2": as_json(new)}


@pytest.mark.parametrize("change", [{"x": [1.001]}, {"x": [1.0, 1.0]}, {}, {"x": [1.0], "y": [0]}])
def test_a_change_beyond_rounding_is_noticed(change):
    assert differing(change, {"x": [1.0]})
    assert not differing({"x": [1.0 + 1e-6]}, {"x": [1.0]})


if __name__ == "__main__":
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    lines = json.dumps(with_new_versions(known, PARTS), indent=1)
    GOLDEN.write_text(lines.replace("\n    ", " ").replace("\n   ]", " ]") + "\n")
