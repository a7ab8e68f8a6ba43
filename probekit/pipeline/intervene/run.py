"""The interventions of a run, after its probes; or alone, without any probe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch

from probekit.amounts import percent
from probekit.errors import ConfigError
from probekit.experiment.interventions import CHOSEN
from probekit.experiment.loader import make_text_experiment
from probekit.experiment.schema import Experiment
from probekit.files import Waiting, csv_text, exclusive
from probekit.interventions.causes import CauseSettings
from probekit.interventions.directions import TEXTS_AT_ONCE
from probekit.interventions.edits import BasePass, stream_entry
from probekit.interventions.measures import AnswerMeasure
from probekit.model.network import Network
from probekit.model.sites.sites import JOINT, SiteSelection
from probekit.pipeline.engines.engine import TASK, Engine
from probekit.pipeline.engines.network import NetworkEngine
from probekit.pipeline.engines.table import How, prepare
from probekit.pipeline.intervene.inputs import CauseInputs, cause_bytes, cause_inputs
from probekit.pipeline.intervene.steps import (
    EffectStep,
    Part,
    Row,
    VerdictStep,
    compute_part,
    read_part,
)
from probekit.pipeline.measure.record import run_key
from probekit.pipeline.measure.run_folder import RunFolder, pause, until_done
from probekit.pipeline.setup.texts import read_card
from probekit.progress import recorded_stage, shown_progress
from probekit.provenance import pretty_json
from probekit.report.pages.causes_page import write_causes_page
from probekit.results.causes import FOLDER, MOSTLY, RECORD, TABLES, CausesRecord, CauseTables
from probekit.results.scores import Scores, site_with_head
from probekit.results.table import make_table
from probekit.terminal import Watcher

_OF_PAIRS = ("patch", "swap")  # edits that write values of the counterfactual
Step = EffectStep | VerdictStep


@dataclass(frozen=True, eq=False)
class Edits:
    """The interventions of an experiment.

    Attributes:
        inputs: texts and measures.
        steps: patches and ablations, then directions; each with its parts.
        unedited: the part with the answers without edits; None if they are not reported.
    """

    inputs: CauseInputs
    steps: Sequence[tuple[Step, Sequence[Part]]]
    unedited: Part | None

    @classmethod
    def of(cls, source: NetworkEngine, table: pd.DataFrame | None) -> Edits:
        """Return the interventions of a source.

        `table` has the rows of results.csv, for `sites: chosen`; None if no step needs them.
        """
        inputs, model = cause_inputs(source), source.models(TASK)
        steps = steps_of(source.experiment, inputs, model, table)
        with_parts = [(step, list(step.parts(model))) for step in steps]
        return cls(inputs, with_parts, _unedited(inputs, model))

    @property
    def parts(self) -> list[Part]:
        """All parts, the one without edits first."""
        first = [] if self.unedited is None else [self.unedited]
        return [*first, *chain.from_iterable(parts for _, parts in self.steps)]


def write_causes(
    source: Engine,
    table: pd.DataFrame | None,
    folder: RunFolder,
    watcher: Watcher,
    wait: Callable[[], None] | None = None,
) -> None:
    """Compute the interventions of a run and write their tables.

    Does nothing without interventions, or for given activations, which have no model. Parts that an
    earlier run saved are not computed again.

    Args:
        source: experiment, rows and network.
        table: the rows of results.csv, for `sites: chosen`; None if no step needs it.
        folder: the folder of the run.
        watcher: receives progress.
        wait: waits for other processes that compute all parts; None if this process computes them.

    Raises:
        ConfigError: a site cannot be edited, or no chosen site is in the residual stream.
        DataError: no rows are left, all rows have the same right answer, or there are not the two
            labels that an edit along a direction needs.
        StoreError: a file of the run cannot be read or written.
    """
    if not source.experiment.interventions:
        return
    source = cast(NetworkEngine, source)
    edits = Edits.of(source, table)
    experiment, inputs, parts = source.experiment, edits.inputs, edits.parts

    def attempt(to_do: Sequence[Part]) -> Iterator[dict[str, Any] | None]:
        """Yield the numbers of each part; None if another process computes them."""
        folder.note({})  # raises if the folder was deleted
        for part in to_do:
            found = read_part(part, folder.path)
            if found is None and wait is None:
                watcher.tell(part.title)
                found = compute_part(part, folder.path)
            yield found

    numbers, work = dict[Path, dict[str, Any]](), sum(one.work for one in parts)
    pausing = partial(pause, Waiting(folder.path, watcher.tell), folder.path)
    for part, found in until_done(parts, attempt, wait or pausing):
        numbers[part.file] = found
        # Parts count by their cost, so that the time left is that of the work left.
        done = sum(one.work for one in parts if one.file in numbers)
        watcher.progress("interventions", round(len(parts) * done / work, 1), len(parts))
    preferred = None if edits.unedited is None else numbers[edits.unedited.file]["share"]
    rows: dict[str, list[Row]] = {name: [] for name in TABLES}
    warnings = []
    if preferred is not None and preferred < MOSTLY:
        warnings.append(
            f"Without edits, the network prefers the right answer over the wrong one in "
            f"{percent(preferred)} of {len(inputs.test):,} test texts: effects on an answer "
            "that it does not give say little about how it finds the right one. Leave out the "
            "texts that it answers wrongly, or use another network."
        )
    for step, parts_of_step in edits.steps:
        of_step = [(part, numbers[part.file]) for part in parts_of_step]
        for name, row in step.rows(of_step):
            rows[name].append(row)
        if isinstance(step, VerdictStep):
            warnings += step.warnings(of_step)
    for name, table_rows in rows.items():
        if table_rows:
            folder.write(f"{FOLDER}/{name}.csv", csv_text(make_table(table_rows, TABLES[name])))
    # Tokens of the first test text, and whether all texts have each; empty without effects by
    # position, or if the texts differ in length.
    tokens, same = [], []
    batch = inputs.batch[torch.from_numpy(inputs.test)]
    lengths = batch.mask.sum(1)
    by_position = any(isinstance(step, EffectStep) and step.at == "each" for step, _ in edits.steps)
    if by_position and int(lengths.min()) == int(lengths.max()):
        ids = batch.ids[:, : int(lengths[0])]
        tokens, same = inputs.tokenizer.strings(ids[0].tolist()), (ids == ids[0]).all(0).tolist()
    verdicts = [step for step, _ in edits.steps if isinstance(step, VerdictStep)]
    # The sites of all directions; `select` below puts them into forward order.
    used = list(dict.fromkeys(one for step in verdicts for one in step.selected))
    columns, first = dict(inputs.examples[0].values), experiment.measure[0]
    record = CausesRecord(
        name=experiment.name,
        question=experiment.question,
        model=experiment.model.name,
        dataset=experiment.data.name,
        classes=inputs.classes if verdicts else (),
        position=experiment.tokens.position.text,
        measures=tuple(one.name for one in experiment.measure),
        answers={
            key: f"column {name}" if name in columns else repr(name)
            for key, name in (("answer", first.answer), ("wrong", first.wrong))
            if name is not None
        },
        tokens=tuple(tokens),
        same_tokens=tuple(same),
        n=len(inputs.test),
        groups=len(set(inputs.groups[inputs.test].tolist())),
        folds=len(inputs.splits),
        draws=max((step.draws for step in verdicts), default=0),
        seed=experiment.probe.seed,
        left_out=inputs.left_out,
        sites=tuple(one.text for one in source.models(TASK).sites.select(used)) if used else (),
        preferred=preferred,
        warnings=tuple(warnings),
    )
    folder.write(f"{FOLDER}/{RECORD}", pretty_json(record.model_dump(mode="json")))


def predicted_work(source: NetworkEngine, model: Network) -> tuple[float, int]:
    """Return the work of all interventions (see `Part`), and the bytes of their activations.

    A site that the probes choose counts as one in the middle of the network.

    Args:
        source: the experiment and its rows.
        model: a network of the right shape, whose weights are not used.
    """
    middle = f"blocks.{model.axis_sizes['n_layers'] // 2}.hook_resid_post"
    steps = [
        step.model_copy(update={"sites": [middle if one == CHOSEN else one for one in step.sites]})
        for step in source.experiment.interventions
    ]
    experiment = source.experiment.model_copy(update={"interventions": steps})
    inputs = cause_inputs(source)
    every = steps_of(experiment, inputs, model, None)
    work = sum(part.work for step in every for part in step.parts(model))
    return work, cause_bytes(source, inputs)


def intervene(
    experiment: Experiment | Mapping[str, Any] | str | Path,
    *,
    model: Network | None = None,
    data: Any = None,
    out: Path | str = "runs",
    device: str = "cpu",
    watcher: Watcher | None = None,
    progress: bool = True,
) -> CauseTables:
    """Run the interventions of an experiment without its probes, and return their tables.

    The tables are in the folder `causes` of the run, and the page is causes.html. Every
    edit at a site is saved when it is complete, so that an interrupted run resumes there, and
    `probekit.run` does not repeat it.

    Args:
        experiment: an experiment, the path of its file, or nested dicts with the keys of a file.
        model: network in memory; see `run`.
        data: rows in memory; see `run`.
        out: results folder; the tables are written to `<out>/<name>/<key>/causes`.
        device: device that the model runs on.
        watcher: receives progress; None shows it in the notebook, on the terminal or on stderr.
        progress: False shows no progress, unless a watcher is given.

    Raises:
        ConfigError: the experiment has no interventions, or edits the site that probes choose.
        ProbekitError: one of its subclasses; the message names the problem and its location.
    """
    experiment = make_text_experiment(experiment, data, model)
    if not experiment.interventions:
        raise ConfigError(
            f"The experiment {experiment.name} has no interventions. Add the sections "
            "`interventions` and `measure`, as in experiments/causes.yaml."
        )
    if any(CHOSEN in step.sites for step in experiment.interventions):
        raise ConfigError(
            "The interventions edit the site that the probes choose (`sites: chosen`), so that "
            "the probes are needed. Use `probekit run`, or name the sites."
        )
    with shown_progress(watcher, progress=progress) as shown:
        card = read_card(experiment.data)
        source = prepare(experiment, How(device)).ready(device)
        path = Path(out) / experiment.name / run_key(source, card)
        with exclusive(path, "experiment"), recorded_stage(path, shown) as watched:
            folder = RunFolder(path, datetime.now(UTC).isoformat(timespec="seconds"))
            write_causes(source, None, folder, watched)
            folder.finish()
    write_causes_page(path)
    return CauseTables.open(path)


def steps_of(
    experiment: Experiment, inputs: CauseInputs, model: Network, table: pd.DataFrame | None
) -> list[Step]:
    """Return the steps of an experiment: patches and ablations, then directions.

    Raises:
        ConfigError: a pattern matches no site, or no chosen site is in the residual stream.
    """
    effects: list[Step] = []
    # Edits along the same directions, by their method, position and folds.
    together = defaultdict(list)
    for number, step in enumerate(experiment.interventions):
        # Named sites are edited in the test rows of all folds, a chosen site only in those of the
        # folds that chose it: the choices of other folds have seen these rows.
        folds_of: dict[SiteSelection, tuple[int, ...]] = {}
        with experiment.at("interventions", number, "sites"):
            if named := [pattern for pattern in step.sites if pattern != CHOSEN]:
                every = tuple(range(len(inputs.splits)))
                folds_of = dict.fromkeys(model.sites.select(named), every)
            if CHOSEN in step.sites:
                # A site that is also named keeps all folds.
                folds_of = _chosen(model, table) | folds_of
        sites_of: dict[tuple[int, ...], tuple[SiteSelection, ...]] = {}
        for selection, folds in folds_of.items():
            sites_of[folds] = (*sites_of.get(folds, ()), selection)
        for folds, selected in sites_of.items():
            if step.has_direction:
                for along, at in product(step.along or ("probe",), step.at):
                    together[along, at, folds].append((step, selected))
                continue
            inputs_of_folds = inputs.of_folds(folds)
            effects += [EffectStep(step, selected, folds, inputs_of_folds, at) for at in step.at]
    verdicts = []
    for (along, at, folds), edits in together.items():
        steered = [step.by or CauseSettings.by for step, _ in edits if step.do == "steer"]
        doses = tuple(sorted({dose for by in steered for dose in by})) or CauseSettings.by
        selected = tuple(dict.fromkeys(one for _, of_edit in edits for one in of_edit))
        draws = max(step.draws or CauseSettings.draws for step, _ in edits)
        do = {step.do for step, _ in edits}
        where = (along, at, selected, folds, inputs.of_folds(folds))
        verdicts.append(
            VerdictStep(*where, draws, doses, has_swap="swap" in do, has_downstream="erase" in do)
        )
    return [*effects, *verdicts]


def _chosen(model: Network, table: pd.DataFrame | None) -> dict[SiteSelection, tuple[int, ...]]:
    """Return the best sites of the probes in the residual stream, with the folds that chose them.

    Better sites that are concatenations, or not a part of the residual stream, are skipped.

    Raises:
        ConfigError: no site of the residual stream was probed.
    """
    assert table is not None, "`intervene` refuses a chosen site"
    chosen: dict[SiteSelection, tuple[int, ...]] = {}
    for fold, rows in enumerate(Scores.of(table).fold_ranks()):
        texts = (site_with_head(row["site"], row["head"]) for _, row in rows.iterrows())
        single = (model.sites.select([text])[0] for text in texts if JOINT not in text)
        best = next((one for one in single if stream_entry(model, one) is not None), None)
        if best is None:
            raise ConfigError(
                "`chosen` is the best site of the probes that is a part of the residual stream, "
                "but none was probed. Name the sites, such as blocks.*.hook_resid_post."
            )
        chosen[best] = (*chosen.get(best, ()), fold)
    return chosen


def _unedited(inputs: CauseInputs, model: Network) -> Part | None:
    """Return the part with the share of test texts whose right answer the network prefers.

    None if there is no wrong answer, or if no edit writes values of counterfactuals.
    """
    first, experiment = inputs.measures[0], inputs.experiment
    if first.wrong is None or not any(one.do in _OF_PAIRS for one in experiment.interventions):
        return None
    test = torch.from_numpy(inputs.test)
    measure = AnswerMeasure(first.answer[test], first.wrong[test], "accuracy")

    def compute() -> dict[str, float]:
        """Return the share, computed for some texts at a time."""
        is_right = []
        for rows in torch.split(torch.arange(len(test)), TEXTS_AT_ONCE):
            base = BasePass.keep(model, inputs.batch[test[rows]])
            every = torch.arange(len(rows), device=base.final.device)
            # Without an edit, the pass is its own base.
            is_right.append(measure[rows].score(model, base.final, every, base.final))
        return {"share": float(torch.cat(is_right).mean())}

    work = inputs.block_tokens(model, "", 0, "all") / 2  # the texts alone
    return Part("answers without edits", {"do": "none"}, compute, work)
