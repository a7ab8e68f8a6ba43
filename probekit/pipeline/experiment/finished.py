"""Finished runs of an experiment, recognised before its data are read as rows.

This module does not import torch, so that a command on a finished run answers at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from probekit.chosen.registry import asked
from probekit.errors import DataError, MissingError, StoreError
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.schema import Experiment
from probekit.files import inside
from probekit.model.weights.sources import local_folder
from probekit.pipeline.engines.table import engine_of
from probekit.provenance import PART_VERSIONS, digest_file, digest_json, digest_sources, versions
from probekit.results.record import check_finished, open_record
from probekit.terminal import Watcher

if TYPE_CHECKING:
    from probekit.report.notebooks.run_result import RunResult


def inputs_digest(experiment: AnyExperiment, device: str) -> str | None:
    """Return one digest of everything that the results of an experiment depend on.

    It covers settings, files of data and model, the kind of device, source code and versions. None
    unless all data and weights are in local files that are read whole: not for rows or a network in
    memory, data or models of the hub, given activations, requests of a serving engine, and several
    checkpoints. None also if the
    user lets products be computed in a reduced precision.

    Raises:
        ConfigError: the name of the model is invalid.
        MissingError: there is no such model.
    """
    is_on_texts = isinstance(experiment, Experiment) and not engine_of(experiment).folder
    experiment = cast(Experiment, experiment)
    if not (
        is_on_texts and experiment.model.memory is None and experiment.model.checkpoints is None
    ):
        return None
    torch = sys.modules.get("torch")  # unless it is imported, nobody has changed its settings
    for backend in () if torch is None else (torch.backends.cuda, torch.backends.mkldnn):
        if backend.matmul.fp32_precision not in ("none", "ieee"):
            return None
    with experiment.at("model", "source"):
        model = local_folder(experiment.model.source)
    data = experiment.data
    names = [name for name in (data.file, data.train, data.test, data.card) if name is not None]
    names += [file for _, settings in asked(experiment) for file in getattr(settings, "files", ())]
    if model is None or data.hub is not None or not names or data.format == "memory":
        return None
    files = {name: Path(data.root) / name for name in names}
    files |= {f"model/{path.name}": path for path in model.iterdir() if path.is_file()}
    if not all(path.is_file() for path in files.values()):  # reported when the file is read
        return None
    config = experiment.model_dump(mode="json")
    config["data"].pop("root")  # results depend on the contents, not on their place
    try:
        contents = {name: digest_file(path) for name, path in files.items()}
    except OSError:  # reported when the file is read
        return None
    given = {"config": config, "files": contents, "device": device.partition(":")[0]}
    code = {"parts": PART_VERSIONS, "sources": digest_sources(), "versions": versions()}
    return digest_json(given | code)


def find_finished(folder: Path, inputs: str | None) -> Path | None:
    """Return the folder of a finished, undamaged run with these inputs; None if there is none.

    Args:
        folder: folder of the runs of an experiment, `<out>/<name>`.
        inputs: digest of the inputs; see `inputs_digest`.
    """
    for path in sorted(folder.glob("*/run.json")) if inputs is not None else ():
        try:
            is_same = json.loads(inside(path, folder).read_bytes())["inputs"] == inputs
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            continue  # damaged, or the record of another release
        if is_same and is_finished(path.parent):
            return path.parent
    return None


def is_finished(folder: Path) -> bool:
    """Return whether a folder has a finished run whose files are as they were written."""
    try:
        check_finished(folder)
        open_record(folder)
    except (MissingError, DataError):
        return False
    return True


def finished_result(folder: Path, watcher: Watcher, *, page: bool) -> RunResult:
    """Return the results of a finished run; write its page if it is requested and missing."""
    from probekit.report.notebooks.run_result import RunResult  # imports pandas and plotly

    watcher.tell(f"finished before: results of {folder}")
    report = folder / "report.html"
    if page and not (report.is_file() and report.stat().st_size):
        write_page(folder)
    return RunResult(folder)


def write_page(folder: Path) -> None:
    """Write the page of a finished run.

    Raises:
        StoreError: the page cannot be written; the message names the command to repeat.
    """
    from probekit.report.pages.run_page import write_report  # imports pandas and plotly

    try:
        write_report(folder)
    except StoreError as error:
        raise StoreError(
            f"The run is complete, but its page is not written. {error} Then run "
            f"`probekit report {folder}`; nothing is computed again."
        ) from error
