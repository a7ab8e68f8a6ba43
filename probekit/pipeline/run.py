"""The order of the steps: prepare, capture, probe, look, report."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
import torch

from probekit.activations.capture import Captured, capture
from probekit.activations.identity import digest_weights
from probekit.activations.store import default_root
from probekit.data.checks import check_dataset
from probekit.errors import ConfigError
from probekit.experiment.loader import dump_experiment, load_experiment
from probekit.experiment.schema import Experiment
from probekit.model.gpt2 import GPT2
from probekit.model.sites import layer_of
from probekit.pipeline.attention import attention_prompt
from probekit.pipeline.norms import residual_norms
from probekit.pipeline.prepare import Prepared, prepare, read_card
from probekit.pipeline.probing import COLUMNS, probe_sites
from probekit.provenance import (
    digest_code,
    digest_json,
    pretty_json,
    versions,
    write_atomic,
)
from probekit.report.attention import AttentionPrompt
from probekit.report.page import write_report
from probekit.watcher import SILENT, Watcher

# What a run's numbers depend on beside its inputs.
_CODE = (
    "probekit.probes",
    "probekit.data",
    "probekit.pipeline.prepare",
    "probekit.pipeline.probing",
)
_LIBRARIES = ("scikit-learn", "numpy", "scipy", "torch")


@dataclass(frozen=True)
class RunResult:
    """What a run left behind.

    Attributes:
        folder: `<out>/<name>/<key>`, with config.yaml, run.json and the files below.
        table: the rows of results.csv.
        results: the path of results.csv.
        report: the path of report.html, None if no page was asked for.
        record: the contents of run.json.
    """

    folder: Path
    table: pd.DataFrame
    results: Path
    report: Path | None
    record: Mapping[str, Any]


@dataclass(frozen=True)
class _Models:
    """The model of an experiment and, if wanted, the same architecture untrained, by target."""

    by_target: Mapping[str, GPT2]

    @classmethod
    def load(cls, experiment: Experiment, device: str) -> _Models:
        dtype = getattr(torch, experiment.model.dtype)
        try:
            trained = GPT2.from_pretrained(experiment.model.source, dtype, device)
        except (RuntimeError, AssertionError) as error:  # torch's own words for a device
            raise ConfigError(f"--device {device}: {str(error).splitlines()[0]}") from error
        models = {"task": trained}
        if experiment.model.random_weights:
            untrained = GPT2(trained.config, seed=experiment.model.random_seed)
            models["random_weights"] = untrained.to(device=device, dtype=dtype)
        return cls(models)


@dataclass
class _Clock:
    """Seconds spent in each step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


def run(
    experiment: Experiment | str | Path,
    *,
    out: Path | str = "runs",
    cache_root: Path | None = None,
    device: str = "cpu",
    watcher: Watcher = SILENT,
    page: bool = True,
) -> RunResult:
    """Run an experiment and return what it left behind.

    A second run of the same experiment recomputes nothing; an interrupted one goes on where it
    was: captured shards and probed sites are kept.

    Args:
        experiment: an experiment, or the path of its file.
        out: folder that gets `<name>/<key>`.
        cache_root: folder of the activation caches, None for the user's own.
        device: where the model computes.
        watcher: hears how far the work has come.
        page: whether report.html is written.

    Raises:
        ProbekitError: one of its subclasses, whose message says what was wrong and where.
    """
    if not isinstance(experiment, Experiment):
        experiment = load_experiment(experiment)
    clock = _Clock()
    created = datetime.now(UTC).isoformat(timespec="seconds")
    with clock.step("prepare"):
        prepared = prepare(experiment)
        card = read_card(experiment.data)
        models = _Models.load(experiment, device)
        key = _key(experiment, prepared, models, card)
        folder = Path(out) / experiment.name / key
        write_atomic(folder / "config.yaml", dump_experiment(experiment))
    with clock.step("capture"):
        captured = _capture(experiment, prepared, models, cache_root, watcher)
    with clock.step("probe"):
        stores = {target: part.store for target, part in captured.items()}
        rows = probe_sites(experiment, prepared, stores, folder, watcher)
        table = pd.DataFrame(rows, columns=list(COLUMNS))
        write_atomic(folder / "results.csv", table.to_csv(index=False, lineterminator="\n"))
    with clock.step("look"):
        prompts = _attention(experiment, prepared, models)
        _write_patterns(folder / "attention.safetensors", prompts)
        norms = residual_norms(models.by_target["task"], prepared)
    record = {
        "run": experiment.name,
        "key": key,
        "question": experiment.question,
        "created": created,
        "model": _model_facts(experiment, models.by_target["task"]),
        "data": _data_facts(prepared, card),
        "best": best_site(table),
        "warnings": _warnings(captured),
        "attention": [{"text": p.text, "tokens": list(p.tokens)} for p in prompts],
        "norms": norms,
        "versions": versions(),
        "digests": _digests(prepared, models, captured),
        "seeds": {
            "split": experiment.split.seed,
            "probe": experiment.probe.seed,
            "random_weights": experiment.model.random_seed,
        },
        "seconds": clock.seconds,
    }
    write_atomic(folder / "run.json", pretty_json(record))
    report = write_report(folder) if page else None
    return RunResult(folder, table, folder / "results.csv", report, record)


def capture_only(
    experiment: Experiment,
    *,
    cache_root: Path | None = None,
    device: str = "cpu",
    watcher: Watcher = SILENT,
) -> dict[str, Captured]:
    """Return the captured activations of an experiment: `task` and, if wanted, `random_weights`."""
    prepared = prepare(experiment)
    return _capture(experiment, prepared, _Models.load(experiment, device), cache_root, watcher)


def best_site(table: pd.DataFrame) -> dict[str, Any] | None:
    """Return the site with the best cross-validated accuracy; test rows have no say in it."""
    scored = (table["target"] == "task") & (table["split"] == "validation")
    chosen = table[scored & (table["metric"] == "accuracy")]
    if chosen.empty:
        return None
    row = chosen.iloc[int(chosen["value"].astype(float).to_numpy().argmax())].to_dict()
    return {
        "site": row["site"],
        "layer": layer_of(row["site"]),
        "head": None if pd.isna(row["head"]) else int(row["head"]),
        "chosen_by": "cross-validated accuracy on the training rows",
    }


def _capture(
    experiment: Experiment,
    prepared: Prepared,
    models: _Models,
    cache_root: Path | None,
    watcher: Watcher,
) -> dict[str, Captured]:
    return {
        target: capture(
            model,
            prepared.tokenizer.digest,
            prepared.ids,
            prepared.plan,
            prepared.sites,
            root=default_root() if cache_root is None else cache_root,
            dtype=experiment.capture.dtype,
            watcher=watcher,
        )
        for target, model in models.by_target.items()
    }


def _key(experiment: Experiment, prepared: Prepared, models: _Models, card: str | None) -> str:
    """Return what names the run's folder: a hash of all that its files depend on."""
    config = experiment.model_dump(mode="json")
    del config["data"]["root"]  # where the files lie does not change what they say
    found = versions()
    return digest_json(
        {
            "config": config,
            "card": card,
            "data": prepared.dataset.digest,
            "models": {name: digest_weights(model) for name, model in models.by_target.items()},
            "tokenizer": prepared.tokenizer.digest,
            "code": digest_code(*_CODE),
            "libraries": {name: found[name] for name in _LIBRARIES},
        }
    )[:12]


def _attention(
    experiment: Experiment, prepared: Prepared, models: _Models
) -> list[AttentionPrompt]:
    return [
        attention_prompt(
            models.by_target["task"], prepared.tokenizer, text, bos=experiment.tokens.bos
        )
        for text in experiment.attention.texts
    ]


def _write_patterns(path: Path, prompts: list[AttentionPrompt]) -> None:
    if prompts:
        arrays = {str(n): prompt.patterns for n, prompt in enumerate(prompts)}
        write_atomic(path, safetensors.numpy.save(arrays))


def _model_facts(experiment: Experiment, model: GPT2) -> dict[str, Any]:
    config = model.config
    return {
        "source": experiment.model.source,
        "n_layers": config.n_layer,
        "n_heads": config.n_head,
        "d_model": config.n_embd,
        "d_vocab": config.vocab_size,
        "n_ctx": config.n_positions,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def _data_facts(prepared: Prepared, card: str | None) -> dict[str, Any]:
    dataset, split = prepared.dataset, prepared.split
    sides = {"train": prepared.train, "test": prepared.test}
    examples = {"train": split.train, "test": split.test}
    return {
        "name": dataset.name,
        "digest": dataset.digest,
        "n_examples": len(dataset),
        "n_rows": len(prepared.labels),
        "labels": {
            side: {label: int(n) for label, n in zip(*np.unique(prepared.labels[rows],
                   return_counts=True), strict=True)}
            for side, rows in sides.items()
        },
        "groups": {side: len(set(prepared.groups[rows])) for side, rows in sides.items()},
        "examples": [
            {"text": e.text, "span": e.span, "label": e.label, "split": side}
            for side, indices in examples.items()
            for e in dataset.select(indices[:: max(1, len(indices) // 4)][:4]).examples
        ],
        "notes": list(dataset.notes),
        "findings": [
            {"level": f.level, "code": f.code, "message": f.message}
            for f in check_dataset(dataset, split)
        ],
        "card": card,
    }  # fmt: skip


def _warnings(captured: Mapping[str, Captured]) -> list[str]:
    stored = captured["task"].store.identity.dtype
    return [] if stored == "float32" else [f"Activations were stored as {stored}."]


def _digests(
    prepared: Prepared, models: _Models, captured: Mapping[str, Captured]
) -> dict[str, str]:
    weights = {f"weights ({name})": digest_weights(m) for name, m in models.by_target.items()}
    roots = {f"activations ({name})": part.root for name, part in captured.items()}
    return {
        "dataset": prepared.dataset.digest,
        "tokenizer": prepared.tokenizer.digest,
        **weights,
        **roots,
    }
