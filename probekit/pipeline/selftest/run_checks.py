"""Checks of model, capture and runs on tiny models with a planted signal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from torch import Tensor

from probekit.activations.capture import stream_rows
from probekit.activations.store.layout import FloatArray, IntArray
from probekit.data.positions import PositionRule, RowPlan, plan_rows
from probekit.experiment.schema import Experiment
from probekit.model.gpt2 import GPT2
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.catalogue import describe, layer_of
from probekit.model.text.tokenizer import Tokenizer
from probekit.pipeline.experiment.run import run
from probekit.pipeline.selftest.planted_runs import (
    SIGNAL_LAYER,
    class_of_letter,
    first_letter,
    random_model,
    random_words,
    tiny_tokenizer,
)
from probekit.probes.selftest.checks import CheckResult, SimulationSize, Tools

RELATIVE = 1e-4  # largest difference of activations in float32, relative to the largest activation


def run_table(experiment: Experiment, folder: Path) -> pd.DataFrame:
    """Run an experiment in a folder and return the rows of its results.csv."""
    return run(
        experiment, out=folder / "runs", cache_root=folder / "cache", workers=1, page=False
    ).table


def forward(model: GPT2, batch: TokenBatch, sites: Sequence[str]) -> Mapping[str, Tensor]:
    """Return the activations of a batch at each site, shape [batch pos ...]."""
    return model.run_with_cache(batch, sites)[1]


def captured_rows(
    model: GPT2, tokens: Sequence[IntArray], plan: RowPlan, sites: Sequence[str]
) -> Mapping[str, FloatArray]:
    """Return the rows of a plan at each site, shape (n_rows, ...)."""
    parts = list(stream_rows(model, tokens, plan, sites))
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    return {site: np.concatenate([values[site] for _, values in parts])[order] for site in sites}


@dataclass(frozen=True)
class PipelineTools(Tools):
    """The functions under test, with those of the model, the capture and the pipeline."""

    run: Callable[[Experiment, Path], pd.DataFrame] = run_table
    forward: Callable[[GPT2, TokenBatch, Sequence[str]], Mapping[str, Tensor]] = forward
    capture: Callable[
        [GPT2, Sequence[IntArray], RowPlan, Sequence[str]], Mapping[str, FloatArray]
    ] = captured_rows


def planted_layer(tools: PipelineTools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that a signal is decoded from the block that writes it on, and not before."""
    for site, accuracy in _accuracies(tools, first_letter).items():
        layer, is_output = layer_of(site), not site.endswith("resid_pre")
        assert layer is not None
        has_signal = layer + is_output > SIGNAL_LAYER
        if site.endswith("attn_out"):
            has_signal = layer == SIGNAL_LAYER
        expected = "over 0.95" if has_signal else "within 0.1 of 0.5"
        ok = accuracy > 0.95 if has_signal else abs(accuracy - 0.5) < 0.1
        yield CheckResult("planted layer", site, expected, f"{accuracy:.3f}", ok)


def first_position(tools: PipelineTools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that position 0, where activations are large, is left out of the scaling."""
    for site, accuracy in _accuracies(tools, class_of_letter).items():
        found, ok = f"{accuracy:.3f}", accuracy > 0.8
        yield CheckResult("large norm at position 0", site, "over 0.8", found, ok)


def _accuracies(
    tools: PipelineTools, make_experiment: Callable[[Path], Experiment]
) -> dict[str, float]:
    """Return the test accuracy of the task at each site of an experiment."""
    with TemporaryDirectory() as folder:
        rows = tools.run(make_experiment(Path(folder)), Path(folder))
    rows = rows[(rows["target"] == "task") & (rows["split"] == "test")]
    rows = rows[rows["metric"] == "accuracy"]
    return {
        str(site): float(value) for site, value in zip(rows["site"], rows["value"], strict=True)
    }


def padded_batches(tools: PipelineTools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that padding on either side does not change the activations of a text at any site."""
    model, tokenizer, texts, sites = _model_and_texts()
    alone = [_alone(tools, model, tokenizer, text, sites) for text in texts]
    for side in ("left", "right"):
        batch = tokenizer.batch(texts, bos=False, side=side)
        together = tools.forward(model, batch, sites)
        gap = max(
            _gap(together[site][row, batch.mask[row]].numpy(), alone[row][site])
            for row in range(len(texts))
            for site in sites
        )
        yield _near("padded batch", f"{side} padding", gap)


POSITIONS: Mapping[str, tuple[PositionRule, Callable[[FloatArray], FloatArray]]] = {
    "last": (PositionRule("last"), lambda values: values[-1:]),
    "first": (PositionRule("first"), lambda values: values[:1]),
    "all": (PositionRule("all"), lambda values: values),
    "mean": (PositionRule("mean"), lambda values: values[1:].mean(axis=0, keepdims=True)),
    "index:1": (PositionRule("index", index=1), lambda values: values[1:2]),
    "index:-2": (PositionRule("index", index=-2), lambda values: values[-2:-1]),
}


def captured_positions(tools: PipelineTools, _: SimulationSize) -> Iterator[CheckResult]:
    """Check that captured rows equal those of each text run alone, at the same token."""
    model, tokenizer, texts, sites = _model_and_texts()
    alone = [_alone(tools, model, tokenizer, text, sites) for text in texts]
    encoded = [tokenizer.encode(text, bos=False) for text in texts]
    for name, (rule, select) in POSITIONS.items():
        offsets = [one.offsets for one in encoded]
        plan, _unaligned = plan_rows(offsets, [None] * len(texts), texts, rule, bos=False)
        rows = tools.capture(model, [one.ids for one in encoded], plan, sites)
        gap = max(
            _gap(rows[site], np.concatenate([select(values[site]) for values in alone]))
            for site in sites
        )
        yield _near("captured position", name, gap)


def _model_and_texts() -> tuple[GPT2, Tokenizer, list[str], list[str]]:
    """Return a model, its tokenizer, texts of several lengths, and the sites with a pos axis."""
    model = random_model(seed=0)
    with TemporaryDirectory() as folder:
        tokenizer = tiny_tokenizer(Path(folder))
    sites = [site for site in model.sites if "pos" in describe(site).axes]
    return model, tokenizer, random_words(8, seed=0), sites


def _alone(
    tools: PipelineTools, model: GPT2, tokenizer: Tokenizer, text: str, sites: Sequence[str]
) -> dict[str, FloatArray]:
    """Return the activations of a text that is not padded at each site, shape (pos, ...)."""
    batch = tokenizer.batch([text], bos=False, side="right")
    values = tools.forward(model, batch, sites)
    return {site: values[site][0].numpy() for site in sites}


def _gap(found: FloatArray, expected: FloatArray) -> float:
    """Return the largest difference, relative to the largest expected value."""
    if found.shape != expected.shape:
        return float("inf")
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _near(check: str, kind: str, gap: float) -> CheckResult:
    return CheckResult(check, kind, f"difference below {RELATIVE:g}", f"{gap:.1g}", gap < RELATIVE)
