"""The key of a run, and the contents of run.json: data, model, settings and digests."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from itertools import pairwise, product
from typing import Any

import numpy as np

from probekit.amounts import counted, first_names
from probekit.chosen.registry import doors
from probekit.data.checks import check_dataset, repeated_share
from probekit.data.examples import Dataset, Example, Finding, by_level
from probekit.data.positions import IntArray
from probekit.data.splits import Split
from probekit.pipeline.engines.engine import Engine
from probekit.pipeline.engines.table import engine_of
from probekit.pipeline.setup.design import ExperimentDesign
from probekit.probes.prober import Prober
from probekit.probes.score.exchange import FEWEST_ARRANGEMENTS
from probekit.probes.score.metric_table import METRICS
from probekit.probes.score.metrics import has_heavy_tails
from probekit.probes.training_rows import Scaling
from probekit.products import library
from probekit.provenance import PART_VERSIONS, digest_json, digest_sources, versions
from probekit.results.network import AttentionPrompt
from probekit.results.record import ALL_FOLDS, NO_CONTROL, AttentionText, DataFacts, ExampleRecord

SHOWN_PER_LABEL = 2  # examples of each label on the page
MOST_LABELS = 20  # with more distinct numbers, rows are counted by range
N_RANGES = 5  # of numbers, when rows are counted by range
N_SAMPLED = 512  # rows that show which features are left out
ROOT = "-1"  # head of a root, as written by the treebank reader
FEWEST_POSITIVES = 20  # in each fold, for the AUPRC of all folds
MOST_LOST = 0.05  # largest share of examples without a row before a warning

_LIBRARIES = ("scikit-learn", "numpy", "scipy", "torch")  # their versions are part of the run key


def run_key(source: Engine, card: str | None) -> str:
    """Return the run key, which names the folder: a hash of all inputs that affect the results.

    It covers all source files. Unlike activations, results of changed code are always computed
    again: a run costs minutes, and a table must not mix numbers of two versions of the code.
    """
    config = source.experiment.model_dump(mode="json")
    for key in ("root", "hub", "memory"):  # results depend on the contents, not on their source
        config["data"].pop(key, None)
    *sections, folder = engine_of(source.experiment).folder or ("",)
    reduce(dict.__getitem__, sections, config).pop(folder, None)
    given = {"config": config, "card": card, "data": source.design.dataset.digest}
    given |= {"further": source.further_digests, "activations": source.identity()}
    given |= {one.name: of(source) for one, of in doors("measure", "identity")}
    installed, code = versions(), {"parts": PART_VERSIONS, "sources": digest_sources()}
    libraries = {name: installed[name] for name in _LIBRARIES}
    return digest_json(given | code | {"libraries": libraries})[:12]


def described_run(
    source: Engine, probers: Sequence[Prober], prompts: Sequence[AttentionPrompt], card: str | None
) -> dict[str, Any]:
    """Return the fields of a run's record that follow from its experiment and data.

    Args:
        source: experiment, rows and activations.
        probers: the prober of each position.
        prompts: the texts whose attention patterns are saved.
        card: description of the data in Markdown; None if there is none.
    """
    experiment, described = source.experiment, source.described()
    seeds = {"split": experiment.split.seed, "probe": experiment.probe.seed}
    digests = {"dataset": source.design.dataset.digest} | described["digests"]
    facts = {"run": experiment.name, "question": experiment.question, "model": described["model"]}
    facts["data"] = data_facts(source.design, probers, card, _features_left_out(source))
    facts["attention"] = [AttentionText.model_validate(p, from_attributes=True) for p in prompts]
    facts["versions"] = versions() | {"products on CPU": library()}
    facts |= {"C_grid": list(experiment.probe.C), "control_by": experiment.probe.control_by}
    facts |= {"positive": probers[0].positive, "seeds": seeds | described["seeds"]}
    facts |= {"digests": digests | source.further_digests, "caches": described["caches"]}
    return facts | {"identities": described.get("identities", {})}


def data_facts(
    design: ExperimentDesign, probers: Sequence[Prober], card: str | None, more: Sequence[Finding]
) -> DataFacts:
    """Return counts by split and label, a few examples, and the findings of the data checks."""
    dataset = design.dataset
    is_nested, sides = len(design.splits) > 1, _sides(design.splits)
    return DataFacts(
        name=dataset.name,
        n_examples=len(dataset),
        n_rows=len(design.labels),
        labels=_label_counts(design, probers[0]),
        groups={side: len(np.unique(design.groups[indices])) for side, indices in sides.items()},
        repeated=repeated_share(dataset, design.examples) if design.texts_are_rows else None,
        examples=[
            ExampleRecord(
                text=e.text,
                span=e.turns[-1][:2] if e.reply_ids else e.span,  # generated replies are marked
                label=e.label,
                split="" if is_nested else side,
            )
            for side, indices in _sides(design.examples).items()
            for e in _shown_examples(dataset, indices, probers[0])
        ],
        notes=list(dataset.notes),
        findings=list(by_level((*findings(design, probers), *more))),
        card=card,
    )


def _sides(splits: Sequence[Split]) -> dict[str, IntArray]:
    """Return the indices by side: train and test of one split, or all test indices of the folds."""
    if len(splits) == 1:
        return {"train": splits[0].train, "test": splits[0].test}
    return {ALL_FOLDS: np.sort(np.concatenate([split.test for split in splits]))}


def findings(design: ExperimentDesign, probers: Sequence[Prober]) -> tuple[Finding, ...]:
    """Return the findings on the data, on dropped examples and on the controls, errors first."""
    settings = probers[0].settings
    check = partial(check_dataset, has_classes=settings.reads == "classes")
    results = list(check(design.dataset, design.examples, has_texts=design.texts_are_rows))
    if settings.metric is not None:  # the finding `imbalance` proposes to set a metric
        results = [finding for finding in results if finding.code != "imbalance"]
    metric = METRICS[probers[0].main_metric]
    if metric.is_main or metric.lower_is_better:  # these do not weight labels equally
        results = [finding for finding in results if finding.code != "few-groups-of-label"]
    n_lost = design.n_read - len(design.dataset)
    if n_lost > MOST_LOST * design.n_read:
        message = f"{n_lost:,} of {design.n_read:,} examples have no row"
        results.append(Finding("warning", "lost", f"{message}; see the notes for reasons."))
    results += [*_imprecise(probers[0]), *design.findings]
    pairs = zip(design.positions, probers, strict=True)
    reasons = {one.text: prober.why_no_control for one, prober in pairs if prober.why_no_control}
    if reasons:
        *_, (position, reason) = reasons.items()
        if len(set(reasons.values())) > 1:
            n = f"{len(reasons)} of {len(probers)} positions"
            reason += f" These are the numbers at {position}; {n} have no control task."
        results.append(Finding("info", NO_CONTROL, reason))
    return by_level(results)


def _features_left_out(source: Engine) -> list[Finding]:
    """Return a warning of features that fits leave out, although they are not constant.

    Some training rows are read, evenly spaced: fits scale by those. Constant features are counted
    where a given array has no others: a network embeds equal tokens, such as the full stop of all
    texts, alike.
    """
    left_out = dict[str, None]()
    train = np.unique(np.concatenate([split.train for split in source.design.splits]))
    chosen = train[np.linspace(0, len(train) - 1, min(len(train), N_SAMPLED)).astype(int)]
    where = f" in {len(chosen)} sampled rows" if len(chosen) < len(train) else ""
    about = "about " if where else ""
    for site, position in product(source.selections, range(len(source.design.positions))):
        X = source.activations.block(site, position)[chosen]
        is_out = np.isinf(Scaling.standard(X).scale)
        is_odd = is_out.all() and source.constants_are_odd
        n = np.count_nonzero(is_out & (is_odd | (X[:1] != X).any(axis=0)))
        left_out |= {f"{about}{n:,} of {len(is_out):,} at {site.text}{where}": None} if n else {}
    message = (
        "Features that are constant or vary only by rounding are left out: "
        f"{first_names([*left_out], 3)}. To keep small differences, subtract means in float64."
    )
    return [Finding("warning", "constant-features", message)] if left_out else []


def _imprecise(prober: Prober) -> Iterator[Finding]:
    """Yield warnings on few arrangements of labels, heavy tails, and few positive rows in a fold.

    They concern p-values, R2 and AUPRC of the first kind of probe. There are none for trees.
    """
    if prober.settings.reads == "trees":
        return
    probe, positive = prober.settings.specs[0].text, prober.positive
    truth, reads_numbers = prober.truth_of(probe), prober.settings.reads_numbers
    # Numbers, or one-hot classes, shape (n_rows, n_labels).
    labels = truth[:, None] if reads_numbers else np.eye(truth.max() + 1)[truth]
    exchange = prober.label_exchange(labels, probe, draws=0)
    if not exchange.is_enough:
        ways = counted(round(exchange.n_arrangements), "way")
        message = (
            f"The labels of the {exchange.n_groups} test groups can be exchanged in only {ways}: "
            f"too few for a p-value, which needs {FEWEST_ARRANGEMENTS}. Give test more groups, "
            "above all of the rarest label; with `split.folds` all groups are test groups."
        )
        yield Finding("warning", "few-exchanges", message)
    if reads_numbers and has_heavy_tails(truth):
        message = "A few labels determine R² (heavy tails): read Spearman's ρ."
        yield Finding("warning", "heavy-tails", message)
    if prober.is_nested and positive is not None and prober.main_metric == "auprc":
        is_positive = prober.data.y[prober.rows_of(probe)] == positive
        fewest = int(np.bincount(prober.fold_of(probe), weights=is_positive).min())
        message = f"A fold tests {counted(fewest, 'row')} of {positive!r}: use fewer folds. Below "
        message += f"{FEWEST_POSITIVES} AUPRC is approximate; cross-validated scores are too high."
        if fewest < FEWEST_POSITIVES:
            yield Finding("warning", "few-positives", message)


def _label_counts(design: ExperimentDesign, prober: Prober) -> dict[str, dict[str, int]]:
    """Return the number of rows by split and label.

    Many numbers are counted by range; tree heads as roots and other words.
    """
    labels, names = design.labels, None  # names: those of ranges, in ascending order
    if prober.settings.reads == "trees":
        labels = np.where(labels == ROOT, "roots", "other words")
    elif prober.settings.reads_numbers and len(np.unique(labels)) > MOST_LABELS:
        numbers = labels.astype(np.float64)
        ends = np.unique(np.quantile(numbers, np.linspace(0, 1, N_RANGES + 1)))
        names = [f"{low:g} to {high:g}" for low, high in pairwise(ends)]
        # A range contains its upper end, the first one also its lower end.
        labels = np.array(names)[np.searchsorted(ends[1:-1], numbers, side="left")]
    shown = {}
    for side, indices in _sides(design.splits).items():
        counts = Counter(labels[indices].tolist())
        shown[side] = {name: counts[name] for name in (names or sorted(counts)) if counts[name]}
    return shown


def _shown_examples(dataset: Dataset, indices: IntArray, prober: Prober) -> Iterator[Example]:
    """Yield the first examples of each label, or of some numbers or tree heads, one per group.

    There are at most `SHOWN_PER_LABEL` of each.
    """
    labels = sorted(set(dataset.labels))
    if prober.settings.reads in ("numbers", "trees"):
        # At most N_RANGES of them, evenly spaced; without any labels the step would be 0.
        labels = sorted(labels, key=float)[:: max(1, math.ceil(len(labels) / N_RANGES))]
    for label in labels:
        of_label = indices[dataset.labels[indices] == label]
        _, firsts = np.unique(dataset.group_codes[of_label], return_index=True)
        for index in of_label[np.sort(firsts)[:SHOWN_PER_LABEL]]:
            yield dataset.examples[index]
