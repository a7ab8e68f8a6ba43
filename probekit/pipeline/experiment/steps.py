"""The order of the steps: capture, probe, compare, look, intervene, report."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import safetensors.numpy
from joblib import cpu_count

from probekit.activations.records import Location
from probekit.chosen.selected_probe import SelectedProbe, write_selected_probe
from probekit.errors import ConfigError
from probekit.experiment.document import dump_settings
from probekit.files import csv_text, exclusive, write_atomic
from probekit.memory import available_memory
from probekit.pipeline.capture.captures import capture_models
from probekit.pipeline.engines.engine import Engine
from probekit.pipeline.experiment.finished import finished_result, is_finished, write_page
from probekit.pipeline.experiment.plan import Probing, expected_seconds, scheduled, usable_cores
from probekit.pipeline.experiment.run_job import RunJob
from probekit.pipeline.experiment.run_study import over_training
from probekit.pipeline.intervene.run import write_causes
from probekit.pipeline.measure import probing, significance
from probekit.pipeline.measure.choices import chosen_sites
from probekit.pipeline.measure.record import described_run, run_key
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.setup.texts import read_card
from probekit.probes.prober import Prober
from probekit.probes.score.scored import SiteResult
from probekit.probes.targets import HEADLINE
from probekit.progress import StageWriter, recorded_stage
from probekit.report.notebooks.run_result import RunResult
from probekit.results.judging import judge
from probekit.results.network import AttentionPrompt
from probekit.results.record import RunRecord, pack_record
from probekit.results.scores import Scores
from probekit.results.site_results import NESTED_SITE, SavedSiteResults, site_stem
from probekit.results.table import DIFFERENCES, RESULTS, make_table, page_table, read_columns
from probekit.terminal import Watcher

# Leaves the tasks of a run, in its folder, to other processes; inside, its function waits for them.
Crew = Callable[[Path, Watcher], AbstractContextManager[Callable[[], None]]]


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Set the duration of a block that does not fail in `seconds`, under the name of the step."""
    start = time.perf_counter()
    yield
    seconds[step] = round(time.perf_counter() - start, 3)


def run_source(
    source: Engine,
    *,
    inputs: str | None = None,
    out: Path | str,
    cache_root: Location | None = None,
    device: str = "cpu",
    workers: int | None = None,
    crew: Crew | None = None,
    watcher: Watcher,
    page: bool = True,
) -> RunResult:
    """Run the experiment of a source.

    `source` is the experiment with its rows and activations, `inputs` the digest of its input files
    (see `inputs_digest`), `crew` who does the tasks, None for this process and its `workers`. The
    other arguments are those of `run`.
    """
    experiment, seconds = source.experiment, dict[str, float]()
    step = partial(_timed, seconds)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    with step("prepare"):
        card = read_card(experiment.data)
        probers = probing.make_probers(experiment, source.design, device.split(",")[0])
        path = Path(out) / experiment.name / run_key(source, card)
    n_bytes = probing.probing_bytes(probers, source.widths)
    n_workers = 1  # processes cannot share one accelerator
    if device == "cpu":  # by default, or with 0 (none of this process), as many as memory allows
        n_workers = workers or int(max(1, min(cpu_count(), available_memory() / n_bytes)))
    with (
        exclusive(path, "experiment"),
        recorded_stage(path, watcher) as watched,
        ExitStack() as others,
    ):
        if is_finished(path):
            return finished_result(path, watcher, page=page)
        expected = _expect(source, probers, watched, n_workers)
        # Before the long work, so that an unusable folder fails immediately.
        folder = RunFolder(path, created)
        with step("capture"):
            source = source.open(partial(capture_models, cache_root=cache_root, watcher=watched))
        if (job := RunJob.of(source, created, n_bytes)) is not None:
            job.write(path)
        elif crew is not None:
            raise ConfigError(
                "Other processes cannot read replies, nor rows or a network passed in Python. "
                "Write rows and network to files, or probe with a worker of this process."
            )
        wait = None if crew is None else others.enter_context(crew(path, watched))
        with step("probe"):
            of_sites = expected and sum(expected.tasks)
            results = _measured_sites(source, probers, folder, watched, n_workers, of_sites, wait)
        with step("compare"):
            table = _write_scores(source, probers[0], results, folder)
        with step("checkpoints"):
            run_one = partial(run_source, cache_root=cache_root, workers=workers, watcher=watched)
            crew = None if wait is None else lambda *_: nullcontext(wait)
            over_training(experiment, table, partial(run_one, crew=crew), device, folder)
        with step("look"):
            write_selected_probe(SelectedProbe(
                Scores.of(table), results, source, probers, folder, cache_root, watched, n_workers,
                expected and expected.analyses,
            ))  # fmt: skip
            prompts = _write_attention(source, folder)
            norms = source.norms()
        with step("intervene"):
            write_causes(source, table, folder, watched, wait)
        # The verdict is that of the saved numbers, so that it can be repeated from the files.
        scores = Scores.load(path / "results.csv")
        differences = read_columns(path / "differences.csv", DIFFERENCES)
        verdict = judge(scores, differences, experiment.probe.C, partial(page_table, path))
        record = RunRecord(
            **described_run(source, probers, prompts, card),
            key=path.name,
            created=created,
            inputs=inputs,
            verdict=verdict,
            norms=norms,
            seconds=seconds,
            files=folder.digests(),
        )
        write_atomic(path / "run.json", pack_record(record.model_dump()))
        folder.finish()
        if page:
            write_page(path)
        return RunResult(path)


def _expect(source: Engine, probers: Sequence[Prober], out: StageWriter, n: int) -> Probing | None:
    """Return the predicted seconds of probing, which `n` processes share; None if not known."""
    if (predicted := expected_seconds(source, probers)) is not None:
        out.expect("probe", scheduled(predicted.tasks, n, usable_cores()))
        out.expect("probes of permuted labels", predicted.analyses / min(n, usable_cores()))
    return predicted


def _measured_sites(
    source: Engine,
    probers: Sequence[Prober],
    folder: RunFolder,
    watcher: Watcher,
    n_workers: int,
    seconds: float | None,
    wait: Callable[[], None] | None,
) -> list[SiteResult]:
    """Return the results of all sites at all positions, and of the nested choice among them."""
    names, results = [one.text for one in source.design.positions], list[SiteResult]()
    for position, (name, prober) in enumerate(zip(names, probers, strict=True)):
        if len(probers) > 1:
            watcher.tell(f"position {name}")
        of_position = None if seconds is None else seconds / len(probers)
        results += probing.probe_sites(
            source, position, prober, folder, watcher, n_workers, of_position, wait
        )
    chosen = chosen_sites(results, dict(zip(names, probers, strict=True)))
    if chosen is not None:
        origin = {"run": folder.path.name, "position": chosen.place["position"]}
        saved = SavedSiteResults(folder.path, probers[0].truth_of, len(probers[0].data.classes))
        results.append(saved.write(site_stem(NESTED_SITE), origin | {"site": NESTED_SITE}, chosen))
        folder.note(results[-1].files)
    return results


def _write_scores(
    source: Engine, prober: Prober, results: Sequence[SiteResult], folder: RunFolder
) -> pd.DataFrame:
    """Write settings, scores, differences and calibration; return results.csv."""
    rows = [row for site in results for row in site.rows]
    table = make_table(rows, RESULTS)
    # The probe that the others are compared with; the p-values of its score are added below.
    chosen = Scores.of(table).reported
    predictions = significance.scored(results, prober.main_metric)
    draws = source.experiment.probe.permutations
    for target in ("task", HEADLINE):
        rows += significance.p_value_rows(predictions, prober, draws, target)
    table = make_table(rows, RESULTS)
    differences = []
    if chosen is not None:
        differences = significance.difference_rows(
            predictions, chosen, table, prober, has_p_values=draws > 0
        )
    folder.write("config.yaml", dump_settings(source.experiment))
    for name, text in source.files.items():
        folder.write(name, text)
    for name, content in (
        ("results", table),
        ("differences", make_table(differences, DIFFERENCES)),
        ("reliability", significance.reliability_rows(results, table, prober)),
    ):
        folder.write(f"{name}.csv", csv_text(content))
    return table


def _write_attention(source: Engine, folder: RunFolder) -> list[AttentionPrompt]:
    """Write the attention patterns of the experiment's texts, if any, and return them."""
    prompts = source.attention_prompts()
    # The patterns of text n have the name "n", its head scores "n.SCORE".
    arrays = {str(n): prompt.patterns for n, prompt in enumerate(prompts)}
    for n, prompt in enumerate(prompts):
        arrays |= {f"{n}.{name}": score for name, score in prompt.scores.items()}
    if arrays:
        # safetensors writes wrong values for arrays that are not contiguous.
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        folder.write("attention.safetensors", safetensors.numpy.save(contiguous))
    return prompts
