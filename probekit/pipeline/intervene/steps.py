"""Steps of the interventions of an experiment: their parts, and the rows of their tables.

    EffectStep   patches and ablations: effects.csv
    VerdictStep  directions: verdicts.csv, doses.csv, downstream.csv

A part has the numbers of one patch or ablation at one site (all heads of a layer together), or of
all edits along one direction at a site or head. It is saved when it is complete, and repeated only
if its file is damaged: causes/parts/<name>.json.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from probekit.amounts import counted
from probekit.errors import DamagedError, DataError, StoreError
from probekit.experiment.interventions import At, InterventionSection
from probekit.files import regular, write_atomic
from probekit.interventions import erasure, patching
from probekit.interventions.causes import CauseData, CauseSettings, causal_test
from probekit.interventions.directions import Responder, directions_of
from probekit.interventions.edits import linear_entry
from probekit.interventions.names import Along
from probekit.interventions.verdicts import band_of_draws, best_p_values, summary, why_undecided
from probekit.lazy_rows import Floats
from probekit.model.network import Network
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import SiteSelection
from probekit.pipeline.intervene.inputs import CauseInputs
from probekit.pipeline.measure.run_folder import do_task
from probekit.provenance import digest_json, seal, unseal
from probekit.results.causes import FOLDER

FORMAT = 1  # of the file of a part
_SHOWN = 3  # sites in a warning
Row = dict[str, Any]
_floats = partial(np.array, dtype=np.float64)  # null is NaN


@dataclass(frozen=True)
class Part:
    """One patch or ablation at one site, or the edits along one direction at a site or head.

    Attributes:
        title: name in progress messages.
        identity: settings of the edit, as JSON, that differ between the parts of a run; its digest
            names the file.
        compute: returns the numbers; `plain` turns its arrays and NaN into JSON.
        work: its cost: the number of tokens that go through a block; see `block_tokens`.
    """

    title: str
    identity: Mapping[str, Any]
    compute: Callable[[], dict[str, Any]]
    work: float

    @property
    def file(self) -> Path:
        """Path of the file in the folder of the run."""
        return Path(FOLDER, "parts", f"{digest_json(dict(self.identity))[:24]}.json")


Found = Sequence[tuple[Part, dict[str, Any]]]  # the parts of a step with their numbers


def read_part(part: Part, folder: Path) -> dict[str, Any] | None:
    """Return the numbers of a part that the folder of a run has; None if missing or damaged.

    Raises:
        StoreError: the file cannot be read.
    """
    path = folder / part.file
    try:
        found = unseal(regular(path).read_bytes(), str(path), FORMAT)
        return dict(found["numbers"]) if found["identity"] == dict(part.identity) else None
    except (FileNotFoundError, DamagedError, KeyError):
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error


def compute_part(part: Part, folder: Path) -> dict[str, Any] | None:
    """Compute, save and return the numbers of a part; None if another process does or has done so.

    Raises:
        StoreError: the file cannot be written.
    """

    def compute() -> dict[str, Any]:
        numbers: dict[str, Any] = plain(part.compute())
        content = {"identity": dict(part.identity), "numbers": numbers}
        write_atomic(folder / part.file, seal(content, FORMAT))
        return numbers

    return do_task(folder, part.file, partial(read_part, part, folder), compute)


def plain(value: Any) -> Any:
    """Return a value as JSON: arrays and tuples are lists, keys are texts, and NaN is null.

    >>> plain({"a": np.array([1.5, np.nan])})
    {'a': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


@dataclass(frozen=True, eq=False)
class EffectStep:
    """A patch or ablation at some sites and positions; its passes are scored by all measures.

    Attributes:
        step: settings of the edit.
        selected: its sites, heads or neurons.
        folds: the folds whose test rows are edited.
        inputs: texts and measures, with the rows of these folds.
        at: `probed`, `all` or `each`.
    """

    step: InterventionSection
    selected: tuple[SiteSelection, ...]
    folds: tuple[int, ...]
    inputs: CauseInputs
    at: At

    @property
    def replacement(self) -> str:
        """What replaces the activations: a patch has the key `from`, an ablation `with`."""
        return self.step.from_ or self.step.with_ or ""

    def parts(self, model: Network) -> Iterator[Part]:
        """Yield the parts: one for each site, with all of its heads."""
        by_site: dict[str, list[SiteSelection]] = defaultdict(list)
        for one in self.selected:
            by_site[one.site].append(one)
        for site, selected in by_site.items():
            what = {"do": self.step.do, "replacement": self.replacement, "at": self.at}
            measures = [measure.name for measure in self.inputs.measures]
            where = {"folds": list(self.folds), "sites": [one.text for one in selected]}
            identity = {**what, "measures": measures, **where}
            title, compute = f"{self.step.do} {site} at {self.at}", partial(self._numbers, model)
            n_passes = len(selected) * (self.inputs.batch.ids.shape[1] if self.at == "each" else 1)
            work = self.inputs.block_tokens(model, site, n_passes, self.at)
            yield Part(title, identity, partial(compute, selected), work)

    def _numbers(self, model: Network, selected: Sequence[SiteSelection]) -> dict[str, Any]:
        """Return the scores of each test row by each measure, without the edit and with it.

        The scores without it are `base`, and `source` for the counterfactual texts; for an ablation
        `source` equals `base`. An entry of `patched` has the site, the position, and the scores.
        """
        inputs = self.inputs
        # The rows that are averaged, which only `mean` uses, and the rows that are edited.
        folds = [(inputs.test, inputs.test)]
        if self.step.with_ == "mean":  # the mean is that of the training rows of the fold
            folds = [(split.train, split.test) for split in inputs.splits]
        by_fold = []  # for each fold, the values of each measure
        for averaged_rows, edited_rows in folds:
            rows, averaged = torch.from_numpy(edited_rows), torch.from_numpy(averaged_rows)
            batch, measures = inputs.batch[rows], [one[rows] for one in inputs.measures]
            at: patching.Positions = inputs.position[rows] if self.at == "probed" else self.at
            averaged_at = inputs.position[averaged] if self.at == "probed" else None
            if self.step.with_ is None:
                assert inputs.sources is not None
                sources = inputs.sources[rows]
                values = patching.patched_values(model, batch, sources, measures, selected, at=at)
            else:
                values = patching.ablated_values(
                    model, batch, measures, selected, self.step.with_, at=at,
                    averaged=(inputs.batch[averaged], averaged_at),
                    seed=inputs.experiment.probe.seed,
                )  # fmt: skip
            by_fold.append(values)
        # The rows of all folds in ascending order, as in `inputs.test`.
        order = np.argsort(np.concatenate([edited_rows for _, edited_rows in folds]))
        joined = []
        for of_folds in zip(*by_fold, strict=True):  # of one measure
            # A fold of shorter texts lacks the last positions.
            patches = dict.fromkeys(patch for values in of_folds for patch in values.patched)
            columns = []
            for values in of_folds:
                without = np.full(len(values.base), np.nan)
                patched = [values.patched.get(patch, without) for patch in patches]
                columns.append([values.base, values.source, *patched])
            base, source, *patched = np.concatenate(columns, axis=1)[:, order]
            listed = [
                [patch.selection.text, patch.position, scores]
                for patch, scores in zip(patches, patched, strict=True)
            ]
            joined.append({"base": base, "source": source, "patched": listed})
        return {"measures": joined}

    def rows(self, found: Found) -> Iterator[tuple[str, Row]]:
        """Yield the name "effects" with each row of effects.csv, given the numbers of all parts."""
        test = self.inputs.test
        selection = {one.text: one for one in self.selected}
        for number, measure in enumerate(self.inputs.measures):
            of_sites = [numbers["measures"][number] for _, numbers in found]
            patched = {
                patching.Patch(selection[text], position): _floats(scores)
                for of_site in of_sites
                for text, position, scores in of_site["patched"]
            }
            first = of_sites[0]  # the scores without edits are the same in all parts
            scored = patching.PatchedValues(
                _floats(first["base"]), _floats(first["source"]), patched
            )
            test_measure = measure[torch.from_numpy(test)]
            for effect in patching.effects_of(scored, test_measure, self.inputs.groups[test]):
                row = asdict(effect) | {"do": self.step.do, "at": self.at, "unit": measure.unit}
                row |= {"recovery_low": effect.low, "recovery_high": effect.high}
                if self.step.do == "ablate":  # there is no source, and thus no share of its effect
                    names = ("source", "recovery", "recovery_low", "recovery_high")
                    row |= dict.fromkeys(names)
                row |= {"replacement": self.replacement, "site": effect.site.partition("[head")[0]}
                row |= {"edited": effect.patched, "folds": len(self.folds)}
                if self.at != "each":
                    row["position"] = None
                yield "effects", row


@dataclass(frozen=True, eq=False)
class VerdictStep:
    """The directions of one method at some sites, for the edits erase, swap and steer together.

    Attributes:
        along: method of the directions.
        at: `probed` or `all`.
        selected: the sites or heads; parts of the residual stream.
        folds: the folds whose test rows are edited.
        inputs: texts and measures, with the rows of these folds.
        draws: number of permutations.
        by: doses of steering.
        has_swap: whether directions are exchanged with counterfactuals.
        has_downstream: whether probes are fitted again after an erasure at the probed token.
    """

    along: Along
    at: str
    selected: tuple[SiteSelection, ...]
    folds: tuple[int, ...]
    inputs: CauseInputs
    draws: int
    by: tuple[float, ...]
    has_swap: bool
    has_downstream: bool

    def parts(self, model: Network) -> Iterator[Part]:
        """Yield the parts: one for each site."""
        for selection in self.selected:
            linear_entry(model, selection)  # raises unless it is a part of the residual stream
            identity: dict[str, Any] = {"along": self.along, "at": self.at, "site": selection.text}
            identity |= {"folds": list(self.folds), "draws": self.draws, "by": list(self.by)}
            identity |= {"swap": self.has_swap, "downstream": self.has_downstream}
            title = f"{self.along} direction at {selection.text}"
            # Each direction is erased, added at each dose and, with counterfactuals, exchanged.
            n_directions = 1 + self.draws + CauseSettings.matched
            n_passes = n_directions * (1 + len(self.by) + self.has_swap)
            work = self.inputs.block_tokens(model, selection.site, n_passes, self.at)
            yield Part(title, identity, partial(self._numbers, model, selection), work)

    def _numbers(self, model: Network, selection: SiteSelection) -> dict[str, Any]:
        """Return verdicts, null distributions and doses at a site.

        With `has_downstream`, and only at the probed token, also the scores after the erasure.

        Raises:
            DataError: all rows have the same right answer.
        """
        inputs, probe = self.inputs, self.inputs.experiment.probe
        position, measure, C = inputs.position, inputs.measures[0], strength_of(probe.C)
        if len(torch.unique(measure.answer)) == 1:
            raise DataError(
                "All rows have the same right answer, so that it is not related to the label, "
                "which erase, swap and steer compare. Name columns with the right and the wrong "
                "answer of each row in `measure`."
            )
        at = position if self.at == "probed" else None
        sources = inputs.sources if self.has_swap else None
        rows_of_data = (inputs.batch, inputs.codes, inputs.groups, inputs.splits, measure)
        data = CauseData(*rows_of_data, at, read=position, sources=sources, other=inputs.others)
        settings = CauseSettings(self.along, self.draws, by=self.by, C=C, seed=probe.seed)
        result = causal_test(model, data, selection, settings)
        names = ("kernel_share", "n", "groups", "folds", "draws")
        facts = {name: getattr(result, name) for name in names} | {"summary": summary(result)}
        rows = []
        for verdict in filter(None, [*result.verdicts, result.swap]):
            row = asdict(verdict) | facts | {"reason": why_undecided(verdict)}
            row["wrong_way"] = result.wrong_way if verdict.question == "steers" else None
            row["null_low"], row["null_high"] = band_of_draws(verdict.null)
            row["matched_low"], row["matched_high"] = band_of_draws(row.pop("matched"))
            rows.append(row)
        found: dict[str, Any] = {"verdicts": rows, "doses": list(result.doses), "unit": result.unit}
        found["dose_limit"] = result.dose_limit
        if self.has_downstream and self.at == "probed":
            # Of several folds, only the first is used here.
            split, codes = inputs.splits[0], inputs.codes
            X = Responder(model, inputs.batch, selection, position, measure).features()
            eraser = eraser_of(self.along, X[split.train], codes[split.train], C)
            # Probes are fitted again after the erased block and every later one; the embedding
            # counts as block 0.
            first, n_layers = layer_of(selection.site) or 0, model.axis_sizes["n_layers"]
            later = [SiteSelection(f"blocks.{n}.hook_resid_post") for n in range(first, n_layers)]
            # The rows of this fold, and the indices of its training rows among them.
            used = np.sort(np.r_[split.train, split.test])
            rows_used, train = torch.from_numpy(used), np.flatnonzero(np.isin(used, split.train))
            found["downstream"] = erasure.downstream_scores(
                model, inputs.batch[rows_used], codes[used], inputs.groups[used],
                train, (selection, eraser), later, position[rows_used],
            )  # fmt: skip
        return found

    def rows(self, found: Found) -> Iterator[tuple[str, Row]]:
        """Yield a row with the name of its table before it: verdicts, doses or downstream.

        The parts are in the order of `selected`.
        """
        # Each question with a null distribution is tested at all sites together.
        for question in ("steers", "silences", "swap"):
            every = [row for _, of_site in found for row in of_site["verdicts"]]
            tested = [
                row for row in every if row["question"] == question and row["effect"] is not None
            ]
            if tested:
                effects = np.array([row["effect"] for row in tested])
                null = np.stack([_floats(row["null"]) for row in tested])
                for row, p in zip(tested, best_p_values(effects, null).tolist(), strict=True):
                    row["p_best"] = p
        for selection, (_, of_site) in zip(self.selected, found, strict=True):
            method = {"at": self.at, "along": self.along}
            place = method | {"site": selection.site, "head": selection.head}
            place["layer"] = layer_of(selection.site)
            for row in of_site["verdicts"]:
                yield "verdicts", place | row
            for row in of_site["doses"]:
                yield "doses", place | row | {"unit": of_site["unit"]}
            for row in of_site.get("downstream", []):
                yield "downstream", method | row | {"erased": selection.text}

    def warnings(self, found: Found) -> Iterator[str]:
        """Yield sentences on the doses that were left out, each with its sites."""
        sites_of: dict[tuple[float, ...], list[str]] = defaultdict(list)
        for selection, (_, of_site) in zip(self.selected, found, strict=True):
            kept = [dose["by"] for dose in of_site["doses"]]
            if dropped := tuple(by for by in self.by if by not in kept):
                sites_of[dropped].append(f"{selection.text} (at most {of_site['dose_limit']:.2g})")
        for dropped, sites in sites_of.items():
            listed = ", ".join(sites[:_SHOWN]) + (", ..." if len(sites) > _SHOWN else "")
            doses = " and ".join(f"{by:g}" for by in dropped)
            yield (
                f"Doses {doses} along {self.along} are left out at {counted(len(sites), 'site')}, "
                "because they move activations beyond the range of the data, 99 % of the training "
                f"rows in standard deviations of the projection: {listed}."
            )


def strength_of(strengths: Sequence[float]) -> float:
    """Return the inverse regularisation strength of the directions of probes.

    It is that of the experiment if it lists only one, otherwise 1. A choice by the true labels
    would differ from that by permuted labels, whose directions are the null distribution.

    >>> strength_of([0.01]), strength_of([0.01, 0.1])
    (0.01, 1.0)
    """
    return strengths[0] if len(strengths) == 1 else CauseSettings.C


def eraser_of(
    along: Along, X: Floats, codes: np.ndarray, C: float = CauseSettings.C
) -> erasure.Eraser:
    """Return the eraser of a method, fitted on rows X (n_rows, n_features) with label codes.

    C is the inverse regularisation strength of probes.

    >>> X = np.array([[0.0, 1.0], [2.0, 1.0]])
    >>> eraser_of("mean_difference", X, np.array([0, 1]))(X).round(6).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    if along == "leace":
        return erasure.leace(X, codes)
    if along == "mean_difference":
        return erasure.mean_projection(X, codes)
    return erasure.probe_projection(
        directions_of("probe", X, codes[None], C=C).unit, X.mean(axis=0)
    )
