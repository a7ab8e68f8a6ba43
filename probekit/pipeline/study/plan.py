"""The cells of a study before it runs: findings, hours, bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from probekit.amounts import counted, duration, size_in_words
from probekit.data.examples import Finding
from probekit.errors import ProbekitError
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.study import Study
from probekit.pipeline.experiment.plan import Machines, plan_run, slowest_steps
from probekit.pipeline.experiment.validate import ValidationReport, validate
from probekit.pipeline.measure.probers import usable_cores
from probekit.provenance import digest_json
from probekit.terminal import SILENT, Watcher

_OTHER_SECONDS = 1.0  # of a cell on one core: tables, p-values and saved files
_SHOWN = 3  # cells that a line names


@dataclass(frozen=True, repr=False)
class StudyReport:
    """Findings of the data checks of all cells, and the estimated cost of the study.

    Attributes:
        reports: the report of each cell, by name. A cell that cannot be read has one error.
        bytes: size of all captured or given activations; captures that cells share count once.
        seconds: estimated duration on the cores of this machine.
    """

    reports: Mapping[str, ValidationReport]
    bytes: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether no cell has an error."""
        return all(report.ok for report in self.reports.values())

    def __repr__(self) -> str:
        """Return the errors of each cell, the number of cells by warning, and the cost."""
        # The names of the cells with a warning, each once and in order.
        lines, cells_of = list[str](), defaultdict[str, dict[str, None]](dict)
        for name, report in self.reports.items():
            for finding in report.findings:
                if finding.level == "error":
                    lines.append(f"Error: {name}: {finding.message}")
                elif finding.level == "warning":
                    cells_of[finding.code][name] = None
        for code, of_code in cells_of.items():
            names = list(of_code)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            listed = f"{', '.join(names[:_SHOWN])}{more}"
            lines.append(f"warning: {code} in {counted(len(names), 'cell')}: {listed}")
        reports = self.reports.values()
        memory = max(max(report.memory, report.capture_memory) for report in reports)
        lines.append(
            f"{counted(len(reports), 'cell')}, "
            f"{counted(sum(report.n_examples for report in reports), 'example')}, "
            f"{size_in_words(self.bytes)} of rows, {size_in_words(memory)} of memory in each "
            f"process, on this machine {duration(self.seconds)}."
        )
        if cells_of:
            lines.append("For the messages, validate a cell: set `over` to its values.")
        return "\n".join([*lines, "ok" if self.ok else "not ok"])


def validate_study(study: Study, watcher: Watcher = SILENT) -> StudyReport:
    """Return the findings on the data of all cells and the estimated cost of the study.

    Args:
        study: the cells.
        watcher: receives the number of cells that are checked.
    """
    reports, n_bytes, captures = dict[str, ValidationReport](), dict[str, int](), dict[str, float]()
    seconds = len(study.cells) * _OTHER_SECONDS / usable_cores()
    for number, cell in enumerate(study.cells, start=1):
        try:
            report = validate(cell.experiment)
        except ProbekitError as error:
            report = ValidationReport((Finding("error", "cell", str(error)),))
        reports[cell.name] = report
        key = _capture_key(cell.experiment)
        n_bytes[key] = max(report.bytes, n_bytes.get(key, 0))
        captures[key] = max(report.seconds.get("capture", 0.0), captures.get(key, 0.0))
        seconds += sum(time for step, time in report.seconds.items() if step != "capture")
        watcher.progress("cells", number, len(study.cells))
    return StudyReport(reports, sum(n_bytes.values()), seconds + sum(captures.values()))


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
    numbers, known, seen = Counter[str](), dict[Any, tuple[float, ...]](), set[str]()
    times, memory = defaultdict[str, dict[str, float]](dict), Counter[str]()
    for number, cell in enumerate(study.cells, start=1):
        of_cell, key = plan_run(cell.experiment, machines, known), _capture_key(cell.experiment)
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


def _capture_key(experiment: AnyExperiment) -> str:
    """Return a digest that cells share if they read the same activations."""
    settings = experiment.model_dump(mode="json", exclude={"data": {"name", "positive"}})
    names = ("model", "activations", "data", "tokens", "capture")
    return digest_json({name: settings.get(name) for name in names})
