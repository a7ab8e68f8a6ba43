"""Validation of an experiment and its data before the model runs."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from probekit.activations.replies import NotGeneratedError
from probekit.amounts import counted, duration, first_names, percent, size_in_words
from probekit.chosen.registry import doors
from probekit.data.examples import WORD, Finding, by_level
from probekit.errors import DataError, ProbekitError, UnknownNameError, nearest
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.loader import make_any, make_experiment
from probekit.experiment.schema import Experiment
from probekit.experiment.study import Study
from probekit.lazy_rows import Codes, Features
from probekit.model.network import Network
from probekit.pipeline.engines.engine import Engine
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.experiment import plan
from probekit.pipeline.measure.probing import make_probers
from probekit.pipeline.measure.record import findings
from probekit.pipeline.setup.design import ExperimentDesign
from probekit.pipeline.setup.texts import read_card
from probekit.probes.controls import word_identity_log_frequencies
from probekit.probes.solve.solver import Problem, Solver
from probekit.provenance import digest_json
from probekit.terminal import SILENT, Watcher

_MOST_ROWS = 1000  # of each side that the check of words reads, so that it is fast
_MOST_CHARACTERS = 2000  # at the end of each of their texts
_SEPARATED = 0.95  # balanced accuracy of words from which there is a warning
_LEAST_OF_GROUP = 4  # rows of a group in which a single label may be odd
_MOST_ODD = 0.2  # share of the groups
_FIRST = re.compile(r".+?(?:\.(?= [A-Z`])|$)", re.DOTALL)  # the first sentence of a message
_OTHER_SECONDS = 2.0  # of a cell of a study on one core: tables, p-values and saved files


@dataclass(frozen=True, repr=False)
class ValidationReport:
    """Findings of the data checks and the estimated cost of the run.

    If the data cannot be read or split, there is one finding, and the numbers keep their defaults.
    Of a study, rows, bytes and seconds are those of all cells together, where captures that cells
    share count once; sites and memory are those of the largest cell.

    Attributes:
        findings: findings of the data checks, errors first. Of a study, the errors of each cell,
            and the cells with each warning.
        n_examples: examples that have rows.
        n_rows: rows per captured or given site.
        n_groups: groups of the examples.
        n_sites: captured or given sites.
        bytes: size of all files of the captures, of all networks together, or of given activations.
        seconds: estimated duration of each step on this machine's CPU, by name: `capture`, `probe`,
            `look` (probes of permuted labels) and `interventions`; see `Cost`. A step that the run
            does not have is missing.
        memory: predicted peak memory of a worker process that probes, in bytes.
        run_memory: predicted peak memory of the process that runs the experiment, in bytes, with
            pages of mapped files.
        remedy: what takes most of the time, and the setting that halves it; "" for a study.
        n_cells: number of cells of a study; 1 for a single experiment.
        cells: a line for each cell of a study with its rows, groups and warnings, and one for each
            warning that several cells have.
    """

    findings: tuple[Finding, ...]
    n_examples: int = 0
    n_rows: int = 0
    n_groups: int = 0
    n_sites: int = 0
    bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory: int = 0
    run_memory: int = 0
    remedy: str = ""
    n_cells: int = 1
    cells: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no finding is an error, which would stop a run or invalidate its results."""
        return all(finding.level != "error" for finding in self.findings)

    def __repr__(self) -> str:
        """Return the findings and the cost as `probekit validate` prints them."""
        # "Error" is spelled as in errors that end a command.
        heads = {"error": "Error"}
        shown = [one for one in self.findings if one.level == "error" or not self.cells]
        lines = [f"{heads.get(one.level, one.level)}: {one.message}" for one in shown]
        lines += self.cells
        if self.n_rows:
            steps = [f"{name} {duration(seconds)}" for name, seconds in self.seconds.items()]
            cost = f"on this machine: {', '.join(steps)}"
            if self.memory:
                workers = f"{size_in_words(self.memory)} in each further one that probes"
                cost = f"{size_in_words(self.run_memory)} of memory, {workers}, {cost}"
            rows = f"{counted(self.n_examples, 'example')}, {counted(self.n_rows, 'row')}"
            if self.n_cells > 1:
                rows = f"{counted(self.n_cells, 'cell')}, {rows}"
            lines.append(
                f"{rows} at each of {counted(self.n_sites, 'site')}, "
                f"{self.bytes / 1e6:,.1f} MB of rows, {cost}."
            )
            lines += [self.remedy] if self.remedy else []
        return "\n".join([*lines, "ok" if self.ok else "not ok"])


def validate(
    experiment: AnyExperiment | Study | Mapping[str, Any] | str | Path,
    *,
    over: Mapping[str, Any] | None = None,
    model: Network | None = None,
    data: Any = None,
    cell: str | None = None,
    watcher: Watcher = SILENT,
) -> ValidationReport:
    """Return the findings on the data of an experiment or study and the estimated cost of its run.

    Args:
        experiment: an experiment, the path of its file, or nested dicts with the keys of a file.
        over: values of each varied key of a study; see `run`.
        model: network in memory; see `run`.
        data: rows in memory; see `run`.
        cell: name of the only cell of a study to check, with all its findings.
        watcher: receives the number of cells of a study that were checked.

    Raises:
        ProbekitError: a file is missing or cannot be read, or there is no such cell. Problems in
            readable data are returned as findings.
    """
    # Problems of the file itself are raised, those of the data are findings.
    made = make_any(experiment, over)
    if cell is not None:
        cells = {one.name: one.experiment for one in made.cells} if isinstance(made, Study) else {}
        if cell not in cells:
            near = nearest(cell, list(cells)) if cells else "Only studies have cells."
            raise UnknownNameError(f"No cell {cell!r}. {near}")
        made = cells[cell]
    if isinstance(made, Study) and model is None and data is None:
        return _of_study(made, watcher)
    return _of_experiment(make_experiment(made, model=model), data, {})


def _of_experiment(
    experiment: AnyExperiment, data: Any, known: dict[Any, plan.Probing]
) -> ValidationReport:
    """Return the report on an experiment; `known` has times of other cells, see `cost_of`."""
    read_card(experiment.data)
    try:
        experiment = make_experiment(experiment, data)
        source = prepare(experiment, How(to_compute=False, replies="stored"))
        if source.texts is None:
            source = source.open(lambda _: {})
        design, texts = source.design, source.texts
        found = [*findings(design, probers := make_probers(experiment, design))]
        if texts is not None and experiment.probe.reads == "classes":
            found += [*_separating_words(design), *_same_token(design), *_odd_labels(design)]
        for _, door in doors("measure", "further_findings"):
            found += door(source)
        if isinstance(experiment, Experiment) and experiment.interventions:
            from probekit.pipeline.intervene.inputs import cause_findings  # imports pandas

            found += cause_findings(cast(NetworkEngine, source))
    except NotGeneratedError as error:
        return ValidationReport((Finding("info", "replies", str(error)),))
    except DataError as error:
        return ValidationReport((Finding("error", "data", str(error)),))
    here = plan.Machines(workers=plan.usable_cores())
    cost = plan.cost_of(source, probers, here, known)
    sizes, seconds = cost.sizes, dict[str, float]()
    if cost.note:
        found.append(Finding("info", "weights-larger-than-memory", cost.note))
    if cost.capture is not None:
        seconds["capture"] = cost.capture
    assert cost.probing is not None, "a processor is always there"
    (seconds["probe"],) = plan.probing_times(cost.probing.tasks, sizes["memory"], 0, here).values()
    if cost.probing.analyses > 1e-3:
        seconds["look"] = cost.probing.analyses / here.units
    if cost.interventions is not None:
        seconds["interventions"] = cost.interventions
    return ValidationReport(
        by_level(found),
        n_examples=len(design.dataset),
        n_rows=len(design.example if texts is None else texts.plan.example),  # at all positions
        n_groups=len(np.unique(design.dataset.group_codes)),
        n_sites=len(source.widths if texts is None else texts.sites),
        bytes=sizes.get("bytes", source.n_bytes),
        seconds=seconds,
        memory=sizes["memory"],
        run_memory=sizes["run_memory"],
        remedy=_remedy(seconds, cost.probing, source),
    )


def _remedy(seconds: Mapping[str, float], probing: plan.Probing, source: Engine) -> str:
    """Return a sentence on what takes most of the time, and on the setting that halves it."""
    step = max(seconds, key=lambda one: seconds[one])
    share = percent(seconds[step] / sum(seconds.values()))
    other = {"interventions": "half of its `draws` or sites", "capture": "half of the rows"}
    n_random = len(source.networks) - 1
    section = "activations" if source.texts is None else "capture"
    of_sites = f"half of the sites in `{section}.sites`"
    halving = other.get(step, of_sites if len(source.widths) > 1 else "half of the rows")
    of_untrained = {"probe": probing.untrained / sum(probing.tasks), "capture": n_random - 0.5}
    if of_untrained.get(step, 0.0) > 0.5:
        halving = f"`model.random_weights: {n_random // 2}`, or {halving},"
    return f"{share} of the time is the step `{step}`: {halving} would take about half of that."


def _of_study(study: Study, watcher: Watcher) -> ValidationReport:
    """Return the report on a study; see `ValidationReport`."""
    found, errors = list[Finding](), dict[str, tuple[Finding, list[str]]]()
    cells_of, first_message = defaultdict[str, list[str]](list), dict[str, str]()
    reports, known = list[ValidationReport](), dict[Any, plan.Probing]()
    seen, n_bytes, seconds = set[str](), 0, defaultdict[str, float](float)
    for number, cell in enumerate(study.cells, start=1):
        try:
            report = _of_experiment(cell.experiment, None, known)
        except ProbekitError as error:
            report = ValidationReport((Finding("error", "cell", str(error)),))
        reports.append(report)
        for one in report.findings:
            if one.level == "error":
                text, kind = cell.plain_error(one.message)
                first = replace(one, message=f"{cell.name}: {text}")
                errors.setdefault(kind, (first, []))[1].append(cell.name)
        warnings = {one.code: one.message for one in report.findings if one.level == "warning"}
        for code, message in warnings.items():
            cells_of[code].append(cell.name)
            first_message.setdefault(code, message)
        if report.n_rows:
            key = capture_key(cell.experiment)
            for step, time in report.seconds.items():
                if step != "capture" or key not in seen:
                    seconds[step] += time
            n_bytes += 0 if key in seen else report.bytes
            seen.add(key)
        watcher.progress("cells", number, len(study.cells))
    seconds["tables"] = len(reports) * _OTHER_SECONDS / plan.usable_cores()
    for one, (_, *others) in errors.values():
        also = f" Also in {counted(len(others), 'other cell')}: {first_names(others)}."
        found.append(replace(one, message=f"{one.message}{also if others else ''}"))
    for code, names in cells_of.items():
        listed = f"{counted(len(names), 'cell')}: {first_names(names)}"
        text = f"{code} in {listed}. In {names[0]}: {first_message[code]}"
        found.append(Finding("warning", code, text))
    return ValidationReport(
        tuple(found),
        cells=tuple(_lines(study, reports)),
        n_examples=sum(one.n_examples for one in reports),
        n_rows=sum(one.n_rows for one in reports),
        n_groups=sum(one.n_groups for one in reports),
        n_sites=max(one.n_sites for one in reports),
        bytes=n_bytes,
        seconds=seconds,
        memory=max(one.memory for one in reports),
        run_memory=max(one.run_memory for one in reports),
        n_cells=len(reports),
    )


def _lines(study: Study, reports: Sequence[ValidationReport]) -> Iterator[str]:
    """Yield the line of each cell, then warnings that several have; see `ValidationReport`.

    Of a message the first sentence is given.
    """
    texts, cells_of = list[list[str]](), defaultdict[str, list[str]](list)
    for cell, report in zip(study.cells, reports, strict=True):
        found = [one for one in report.findings if one.level == "warning"]
        texts.append([f"warning {one.code}: {_FIRST.findall(one.message)[0]}" for one in found])
        for text in texts[-1]:
            cells_of[text].append(cell.name)
    for cell, report, own in zip(study.cells, reports, texts, strict=True):
        rows = f"{counted(report.n_rows, 'row')}, {counted(report.n_groups, 'group')}"
        alone = [text for text in own if len(cells_of[text]) == 1]
        yield "; ".join([f"{cell.name}: {rows if report.n_rows else 'error'}", *alone])
    for text, names in cells_of.items():
        if len(names) > 1:
            yield f"{len(names)} of {len(reports)} cells ({first_names(names)}): {text}"


def capture_key(experiment: AnyExperiment) -> str:
    """Return a digest that cells of a study share if they read the same activations."""
    settings = experiment.model_dump(mode="json", exclude={"data": {"name", "positive"}})
    for column in ("label", "group", "id", "split"):  # activations do not depend on them
        settings["data"].get("columns", {}).pop(column, None)
    names = ("model", "activations", "data", "tokens", "capture")
    return digest_json({name: settings.get(name) for name in names})


def _separating_words(design: ExperimentDesign) -> list[Finding]:
    """Return a warning if words alone give the labels of held-out groups, in a sample of rows.

    Of several splits the first is used, of several positions the last, which reads most of a reply.
    There is no warning if the training rows of the sample have a single label.
    """
    last = len(design.positions) - 1
    read, _ = design.texts_at(last)
    assert read is not None
    texts = np.array([text[-_MOST_CHARACTERS:] for text in read], dtype=object)
    types = design.positions[last].types
    classes, codes = np.unique(design.labels, return_inverse=True)
    split = design.splits[0]
    train = np.random.default_rng(0).permutation(split.train)[:_MOST_ROWS]
    test = np.random.default_rng(0).permutation(split.test)[:_MOST_ROWS]
    if len(np.unique(codes[train])) < 2:
        return []
    by_word = word_identity_log_frequencies(types[train], codes[train], types[test], len(classes))
    guesses = {
        "a bag of words of the text": _quick_word_guess(texts[train], codes[train], texts[test]),
        "the probed word": by_word.argmax(axis=1),
    }
    truth = codes[test]
    scores = {}  # balanced accuracy
    for name, guess in guesses.items():
        recalls = [np.mean(guess[truth == code] == code) for code in np.unique(truth)]
        scores[name] = np.mean(recalls)
    best = max(scores, key=lambda name: scores[name])
    if scores[best] < _SEPARATED:
        return []
    message = (
        f"Words alone separate the labels: {best} predicts them with a balanced accuracy of "
        f"{scores[best]:.2f} in {counted(len(test), 'row')} of held-out groups (chance "
        f"{1 / len(classes):.2f}), so that a probe that scores as high need not read more than "
        "words. Put rows with the same word into one group (data.columns.group; without "
        "split.folds also split.word_disjoint), or probe a word or span whose label its own text "
        "does not give."
    )
    return [Finding("warning", "separating-words", message)]


def _same_token(design: ExperimentDesign) -> Iterator[Finding]:
    """Yield a note for each position at which all rows probe the same token."""
    for position in design.positions:
        tokens = np.unique(position.types.astype(str))
        if design.has_types and len(tokens) == 1:
            message = (
                f"Every row probes the token {str(tokens[0])!r} at {position.text}: the probe "
                "reads what the network has gathered there; word identity scores as the majority."
            )
            yield Finding("info", "same-token", message)


def _odd_labels(design: ExperimentDesign) -> Iterator[Finding]:
    """Yield a warning on rows whose label is the only one of its kind in a group of one label.

    There is none unless nearly all groups of `_LEAST_OF_GROUP` rows have one label.
    """
    labels, codes = design.dataset.labels, design.dataset.group_codes
    n_odd, first = 0, ""
    large = [code for code, n in enumerate(np.bincount(codes)) if n >= _LEAST_OF_GROUP]
    for code in large:
        rows = np.flatnonzero(codes == code)
        names, counts = np.unique(labels[rows], return_counts=True)
        if len(names) == 2 and counts.min() == 1:
            odd = design.dataset.examples[rows[labels[rows] == names[counts.argmin()]][0]]
            n_odd += 1
            first = first or (
                f"{odd.label!r} in {odd.where or odd.id}, where the other "
                f"{len(rows) - 1} rows of group {odd.group!r} are {names[counts.argmax()]!r}"
            )
        elif len(names) > 1:
            return
    if n_odd and n_odd <= _MOST_ODD * len(large):
        message = f"{counted(n_odd, 'group')} of one label with one odd row: {first}. Check it."
        yield Finding("warning", "odd-labels", message)


def _quick_word_guess(train: NDArray[Any], codes: Codes, others: NDArray[Any]) -> Codes:
    """Return labels of other texts by a bag of words, with balanced classes and C = 1.

    >>> texts, codes = np.array(["so good", "so bad"]), np.array([1, 0])
    >>> _quick_word_guess(texts, codes, np.array(["a good day"])).tolist()
    [1]
    """
    number: dict[str, int] = {}  # of each word of the training texts
    words = [re.findall(WORD, text.lower()) for text in train]
    for word in chain.from_iterable(words):
        number.setdefault(word, len(number))

    def counts(texts: Sequence[Sequence[str]]) -> Features:
        """Return how often each word of the training texts occurs, (n_texts, n_words)."""
        found = np.zeros((len(texts), len(number)), dtype=np.float32)
        for row, of_text in zip(found, texts, strict=True):
            np.add.at(row, [number[word] for word in of_text if word in number], 1)
        return found

    solver = Solver(counts(words), [np.ones(len(train), dtype=np.float32)])
    (fit,) = solver.solve([Problem(codes, C=1.0, balanced=True)])
    others_words = [re.findall(WORD, text.lower()) for text in others]
    guess: Codes = fit.outputs(counts(others_words), int(codes.max()) + 1).argmax(axis=1)
    return guess
