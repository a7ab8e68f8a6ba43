"""Running and planning the cells of a study, and an experiment at each checkpoint of a model.

Cells that use the same model, texts and positions have one identity of activations, so that the
cache captures them once. Finished cells are recognised as finished runs, which resumes a study.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from joblib import cpu_count

from probekit.amounts import counted, first_names
from probekit.chosen.registry import without_analyses
from probekit.errors import DeviceLostError, ProbekitError
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.schema import AttentionSection, Experiment
from probekit.experiment.study import DATA, Study, StudyCell
from probekit.files import csv_text, exclusive, write_atomic
from probekit.memory import available_memory, release_memory, used_memory
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.experiment.plan import Machines, Probing, plan_run, slowest_steps
from probekit.pipeline.experiment.validate import capture_key
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.progress import recorded_stage
from probekit.provenance import digest, seal
from probekit.report.notebooks.run_result import RunResult
from probekit.report.pages.study_page import study_page
from probekit.results import study as studies
from probekit.results.record import CELLS, FORMAT, STARTED, load_record
from probekit.results.table import TableColumn, make_table, only
from probekit.results.verdict import RIVALS
from probekit.terminal import SILENT, SilentWatcher, Watcher
from probekit.training.run_files import find_checkpoints
from probekit.workers import parallel_map

_LEAST_MEMORY = 500e6  # bytes of a process that runs cells
_LEAST_SECONDS = 1.0  # of a cell that is not finished yet


@dataclass(frozen=True)
class _Messages(SilentWatcher):
    """A watcher of one cell, which passes on messages; the progress is that of the study."""

    watcher: Watcher
    cell: str

    def tell(self, message: str) -> None:
        """Report a message with the name of the cell."""
        self.watcher.tell(f"{self.cell}: {message}")


def run_study(
    study: Study,
    run_one: Callable[..., RunResult],
    *,
    out: Path,
    workers: int | None,
    shares_cells: bool,
    page: bool,
    watcher: Watcher,
) -> studies.StudyResult:
    """Run all cells of a study, write its tables and report.html, and return the result.

    A cell that fails is reported, and its row has the error; the other cells are run.

    Args:
        study: the cells.
        run_one: runs an experiment, with the keywords `out`, `workers` and `watcher` of `run`.
        out: results folder; the study is written to `<out>/<name>`.
        workers: number of processes; see `run`.
        shares_cells: whether processes of this machine may run whole cells at the same time. They
            do if memory allows as many as there are workers; otherwise they share the sites of one
            cell after the other.
        page: whether to write report.html.
        watcher: receives the number of finished cells, and messages.

    Raises:
        ConfigError: another process runs the study in this folder.
        DeviceLostError: the device failed; the same call resumes the study.
        StoreError: the table cannot be written.
    """
    folder, failed = out / study.name, defaultdict[str, list[str]](list)
    with exclusive(folder, "study"), recorded_stage(folder, watcher) as watched:
        # Until the study ends, workers wait for its next cell.
        write_atomic(folder / STARTED, datetime.now(UTC).isoformat(timespec="seconds"))
        for name in (studies.STUDY_RECORD, "report.html"):
            (folder / name).unlink(missing_ok=True)
        rows = list[dict[str, Any]]()
        job = partial(_row, run_one=run_one, folder=folder, workers=workers, watcher=watched)
        found = _rows(study.cells, job, workers or cpu_count(), shares_cells=shares_cells)
        watched.progress("cells", 0, len(study.cells))
        for cell, row in zip(study.cells, found, strict=True):
            rows.append(row | {"published": study.published.get(row["dataset"])})
            if error := row.get("error"):
                text, kind = cell.plain_error(error)
                if kind not in failed:
                    watched.tell(f"Error in cell {cell.name}: {text}")
                failed[kind].append(cell.name)
            watched.progress("cells", len(rows), len(study.cells))
        for one, *alike in failed.values():
            if alike:
                names = f"{counted(len(alike), 'other cell')}: {first_names(alike)}"
                watched.tell(f"The error in cell {one} also occurs in {names}.")
        first, second, *others = studies.STUDY_COLUMNS
        keys = [TableColumn(key, "value of the varied key") for key in study.keys if key != DATA]
        rivals = [{"cell": row["cell"]} | one for row in rows for one in row.get("rivals", ())]
        tables = {
            studies.STUDY: make_table(rows, [first, second, *keys, *others]),
            studies.STUDY_RIVALS: make_table(rivals, studies.RIVAL_COLUMNS),
        }
        contents = {name: csv_text(table).encode() for name, table in tables.items()}
        for name, content in contents.items():
            write_atomic(folder / name, content)
        record: dict[str, Any] = {"study": study.name, "question": study.question}
        record |= {"keys": list(study.keys), "n_unused": study.n_unused}
        record["files"] = {name: digest([content]) for name, content in contents.items()}
        write_atomic(folder / studies.STUDY_RECORD, seal(record, FORMAT))
        (folder / STARTED).unlink()
        result = studies.StudyResult(folder)
        if page:
            write_atomic(folder / "report.html", study_page(result).html())
    return result


def _rows(
    cells: Sequence[StudyCell], job: partial[dict[str, Any]], workers: int, *, shares_cells: bool
) -> Iterator[dict[str, Any]]:
    """Yield the row of each cell, in order; `job` is `_row` with all arguments but the cell."""
    # The first cell that is not finished shows how much time and memory a cell takes.
    others, seconds = list(cells), 0.0
    while others and seconds < _LEAST_SECONDS:
        start = time.perf_counter()
        yield job(others.pop(0))
        seconds = time.perf_counter() - start
    n = min(workers, len(others))
    if (
        not shares_cells
        or n < 2
        or n * max(used_memory("VmHWM"), _LEAST_MEMORY) > available_memory()
    ):
        yield from map(job, others)
        return
    alone, n_threads = partial(job, workers=1, watcher=SILENT), max(1, cpu_count() // n)
    yield from parallel_map(alone, others, n, n_threads, seconds * len(others))


def _row(
    cell: StudyCell,
    *,
    run_one: Callable[..., RunResult],
    folder: Path,
    workers: int | None,
    watcher: Watcher,
) -> dict[str, Any]:
    """Run a cell and return its row of study.csv, with the rows of its `rivals`.

    Args:
        cell: the cell.
        run_one: runs an experiment; see `run_study`.
        folder: the folder of the study.
        workers: number of workers that share the sites of the cell.
        watcher: receives messages.
    """
    row: dict[str, Any] = dict(cell.values)
    row |= {"cell": cell.name, "dataset": cell.experiment.data.name}
    messages = _Messages(watcher, cell.name)
    try:
        result = run_one(cell.experiment, out=folder / CELLS, workers=workers, watcher=messages)
        return row | _scores(result) | {"folder": result.folder.relative_to(folder).as_posix()}
    except DeviceLostError:
        raise  # the next cells would fail, too
    except ProbekitError as error:
        return row | {"error": str(error)}
    finally:
        release_memory()


def _scores(result: RunResult) -> dict[str, Any]:
    """Return the columns of study.csv of a finished cell, and the rows of its `rivals`."""
    record = load_record(result.folder / "run.json")
    verdict = record.verdict
    row = {} if verdict.score is None else verdict.score.model_dump()
    rivals = [dict(one) | {"rival": name} for name, one in verdict.rivals.items() if name in RIVALS]
    row |= {"metric": verdict.metric, "score": row.get("value"), "verdict": verdict.case}
    row |= {"p": verdict.p, "layer": None if verdict.best is None else verdict.best.layer}
    row |= {"repeated": record.data.repeated, "caveats": "\n".join(result.warnings)}
    return row | {"rivals": rivals}


def plan_study(study: Study, machines: Machines, watcher: Watcher = SILENT) -> dict[str, Any]:
    """Return the sizes of all cells, their memory, and the times of capture and probing.

    The keys are those of `plan_run` that can be added up, and `cells`, their number. Captures that
    cells share count once.

    Args:
        study: the cells.
        machines: what computes the cells, one after the other.
        watcher: receives the number of cells that are planned.

    Raises:
        ProbekitError: a cell cannot be planned; the message names the problem and its location.
    """
    numbers, known, seen = Counter[str](), dict[Any, Probing](), set[str]()
    times, memory = defaultdict[str, dict[str, float]](dict), Counter[str]()
    for number, cell in enumerate(study.cells, start=1):
        of_cell, key = plan_run(cell.experiment, machines, known), capture_key(cell.experiment)
        added = ["tasks"] if key in seen else ["tasks", "tokens", "bytes", "files"]
        numbers.update({name: of_cell[name] for name in added if name in of_cell})
        for step, seconds in of_cell["seconds"].items():
            if step != "capture" or key not in seen:
                for name, time in seconds.items():
                    times[step][name] = times[step].get(name, 0.0) + time
        for name in ("memory", "capture_memory"):
            memory[name] = max(memory[name], of_cell.get(name, 0))
        seen.add(key)
        watcher.progress("cells", number, len(study.cells))
    return {"cells": len(study.cells), **numbers, **memory} | slowest_steps(**times)


def over_training(
    experiment: AnyExperiment,
    last: pd.DataFrame,
    run_one: Callable[..., RunResult],
    device: str,
    folder: RunFolder,
) -> None:
    """Write the task's rows at each checkpoint, with the column `step`, if there are checkpoints.

    Args:
        experiment: the experiment; its `model.source` is the last checkpoint.
        last: results at the last checkpoint.
        run_one: `run_source`, with its keywords that do not depend on the checkpoint.
        device: where networks run.
        folder: the folder of the run.

    Raises:
        MissingError: there are no checkpoints, or one of the hub does not exist.
    """
    if not isinstance(experiment, Experiment) or (model := experiment.model).checkpoints is None:
        return
    with experiment.at("model"):
        sources: Mapping[int, str | Path] = model.steps_on_hub
        if model.path is not None:
            sources = find_checkpoints(Path(model.path))
    # An empty list of checkpoints means all.
    *first, latest = sorted(model.checkpoints or sources)
    # The map by step shows only scores; the last checkpoint has controls and statistics, too.
    counts = dict.fromkeys(("control_draws", "learning_steps", "permutations"), 0)
    probe = experiment.probe.model_copy(update=counts | {"baselines": (), "description": False})
    changes = {"probe": probe, "attention": AttentionSection(), "interventions": (), "measure": ()}
    plain = without_analyses(experiment.model_copy(update=changes))
    tables = []
    for step in first:
        weights = {"source": str(sources[step]), "path": None, "checkpoints": None}
        network = model.model_copy(update={**weights, "random_weights": 0})
        earlier = plain.model_copy(update={"name": f"step-{step}", "model": network})
        source = prepare(earlier, How(device)).ready(device)
        out = folder.path / "checkpoints"
        table = run_one(source, out=out, device=device, page=False).table
        tables.append(only(table, target="task").assign(step=step))
    tables.append(only(last, target="task").assign(step=latest))
    folder.write("training.csv", csv_text(pd.concat(tables, ignore_index=True)))
