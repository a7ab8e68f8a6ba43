"""The files of a probing run, of one that is not finished, and of a probe by itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.damage_kinds import Kind, RefusedError
from probekit.experiment.loader import load_experiment
from probekit.files import csv_text
from probekit.pipeline.compare.compare import FinishedRun
from probekit.pipeline.experiment.run import run
from probekit.pipeline.look.apply import check_saved_probe
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.score.scored import Predictions, Predictor
from probekit.results.site_results import SavedSiteResults
from tests.pipeline.planted import YAML, write_rows

SITES = ["blocks.0.hook_resid_pre", "blocks.1.hook_resid_post"]


def run_kinds(folder: Path, model: Path) -> Iterator[Kind]:
    """Yield the files of a run, those that a run is resumed from, and a probe by itself."""
    folder.mkdir()
    write_rows(folder / "rows.csv")
    (folder / "planted.yaml").write_text(YAML)
    first, second = (_run(folder, model, seed) for seed in (0, 1))

    def read() -> Any:
        opened = FinishedRun(first)
        answers = [_arrays(opened.predictions(site, "last")) for site in SITES]
        tables = [csv_text(table) for table in (opened.table, opened.test_rows)]
        return opened.record, opened.experiment, tables, answers

    names = [name for name in ("run.json", *_files(first)) if "/" not in name]
    for name in names:
        yield Kind(f"run: {name}", first / name, read, (second / name,))
    for name, pattern in _PATTERNS.items():
        paths = sorted(first.glob(pattern))
        yield Kind(f"run: {name}", paths[0], read, (*paths, *second.glob(pattern)))
    yield from _resumed_kinds(first, second)
    yield from _probe_kinds(folder / "alone", first, second)


def _arrays(said: Mapping[Predictor, Predictions]) -> dict[Predictor, dict[str, Any]]:
    """Return the contents of predictions, as values to compare."""
    return {who: {n: _plain(v) for n, v in vars(one).items()} for who, one in said.items()}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


_PATTERNS = {
    "sites/*.json": "sites/blocks*.json",
    "sites/*.safetensors": "sites/blocks*.safetensors",
    "probes/*/*.json": "probes/*/*.json",
    "probes/*/*.safetensors": "probes/*/*.safetensors",
}


def _run(folder: Path, model: Path, seed: int) -> Path:
    settings = (
        f"model.source={model}",
        "model.random_weights=false",
        f"capture.sites={SITES}",
        "probe.kinds=[{kind: logistic}, {kind: k_sparse, k: [2]}]",
        "probe.control_draws=0",
        "probe.baselines=[majority]",
        "probe.C=[0.01]",
        "probe.folds=2",
        "probe.bootstrap=100",
        f"probe.seed={seed}",
    )
    experiment = load_experiment(folder / "planted.yaml", settings)
    return run(experiment, out=folder / "runs", cache_root=folder / "cache", workers=1).folder


def _files(run_dir: Path) -> list[str]:
    return sorted(p.relative_to(run_dir).as_posix() for p in run_dir.rglob("*.*") if _is_result(p))


def _is_result(path: Path) -> bool:
    return path.is_file() and path.name not in ("run.json", "report.html", ".lock")


def _resumed_kinds(first: Path, second: Path) -> Iterator[Kind]:
    """Yield the files of a site as `run` reads them to continue: without run.json."""
    opened = FinishedRun(first)
    saved = SavedSiteResults(first, lambda _: opened.truth, len(opened.classes))
    stem = Path("sites") / SITES[0]
    origin = {"run": opened.record.key, "position": "last", "site": SITES[0]}

    def read() -> Any:
        site = saved.read(stem, origin)
        if site is None:
            raise RefusedError
        return repr(site.measurements), _arrays(site.predictions), site.probes, site.files

    for ending in ("json", "safetensors"):
        name = f"{stem}.{ending}"
        others = (first / f"sites/{SITES[1]}.{ending}", second / name)
        yield Kind(f"unfinished run: sites/*.{ending}", first / name, read, others)
    for name in sorted(opened.record.files):
        if name.startswith(f"probes/{SITES[0]}/logistic"):
            others = (first / name.replace(SITES[0], SITES[1]), second / name)
            ending = Path(name).suffix
            yield Kind(f"unfinished run: probes/*/*{ending}", first / name, read, others)


def _probe_kinds(folder: Path, first: Path, second: Path) -> Iterator[Kind]:
    """Yield the two files of a probe that was copied out of its run."""
    shutil.copytree(first / "probes" / SITES[0], folder)

    def read() -> Any:
        probe = SavedProbe.load(folder / "logistic")
        check_saved_probe(folder / "logistic")
        return [part.tobytes() for layer in probe.layers for part in layer], repr(probe.facts)

    for ending in ("json", "safetensors"):
        name = f"logistic.{ending}"
        others = tuple(
            run_dir / "probes" / site / name for run_dir in (first, second) for site in SITES
        )
        yield Kind(f"saved probe: .{ending}", folder / name, read, others)
