"""Activations that a serving engine has written with its requests.

The network computes those of networks with random weights, and some rows again, which show the site
of each layer of the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from probekit.activations.capture import Work
from probekit.activations.local import Files
from probekit.activations.records import Location
from probekit.activations.requests import Requests, read_requests
from probekit.activations.upkeep import described_errors, removed_after_failure
from probekit.amounts import counted, joined_names
from probekit.analysis.identify import LOGITS, compare_tokens, identify
from probekit.data.examples import Dataset, Finding
from probekit.data.positions import RowPlan
from probekit.errors import DataError, nearest
from probekit.experiment.replies import RequestsSection
from probekit.experiment.schema import Experiment
from probekit.model.network import Network
from probekit.model.sites.catalogue import DIFFERS, VERIFIED
from probekit.pipeline.engines.engine import TASK
from probekit.pipeline.engines.network import NetworkEngine, read_inputs
from probekit.pipeline.engines.table import How
from probekit.pipeline.setup.design import Tokens
from probekit.pipeline.setup.texts import ReadTexts, TextReader
from probekit.results.record import TensorIdentity

IDENTIFIED_ROWS = 32  # rows of requests that are computed again
_WITHOUT_OUTPUT = (
    "The baseline `output`, the network's own confidence, is left out: requests have no logits, "
    "and the network does not read the texts again. To compare with it, leave out "
    "`capture.requests`."
)


@dataclass(frozen=True, eq=False)
class ServedReader(TextReader):
    """Reads texts as the network does, and leaves out those without a request."""

    requests: Requests

    def served(self, dataset: Dataset, tokens: Tokens, plan: RowPlan) -> tuple[Dataset, Tokens]:
        """Return the examples that requests serve, with a note on the others, and their tokens.

        Raises:
            DataError: a text has no request, and the experiment does not skip it, or none has one.
        """
        served = self.requests.choose([of_text.ids for of_text in tokens], plan).chosen
        unserved = [n for n, of_text in enumerate(tokens) if of_text.ids.tobytes() not in served]
        if not unserved:
            return dataset, tokens
        first = dataset.examples[unserved[0]]
        note = f"{len(unserved):,} of {counted(len(dataset), 'text')} have no hidden states"
        missing = cast(RequestsSection, self.experiment.capture.requests).missing
        if missing == "error" or len(unserved) == len(dataset):
            with self.experiment.at("capture", "requests"):
                raise DataError(
                    f"{note} in {self.requests.folder}, the first is {first.text[:60]!r} "
                    f"({first.where}). {self.requests.why_unserved(tokens[unserved[0]].ids)}"
                )
        left = np.setdiff1d(np.arange(len(dataset)), unserved)
        kept = replace(dataset.select(left), notes=(*dataset.notes, f"skipped: {note}"))
        return kept, tuple(tokens[index] for index in left)


@dataclass(frozen=True, eq=False, kw_only=True)
class RequestsEngine(NetworkEngine):
    """Texts whose activations are in the files of a serving engine.

    Attributes:
        stored: the requests that serve the texts.
    """

    stored: Requests

    @classmethod
    def prepare(cls, experiment: Experiment, how: How) -> Self:
        """Return the engine of an experiment whose section `capture` has requests."""
        reader, models, dataset = read_inputs(experiment, how)
        section = cast(RequestsSection, experiment.capture.requests)
        with experiment.at("capture", "requests"):
            requests = read_requests(Path(section.folder), reader.config.d_model)
        reader = ServedReader(**vars(reader), requests=requests)
        return cls.of_rows(reader, models, dataset, stored=requests)

    def with_stored(self) -> Self:
        """Return the engine with the requests that serve its texts, and a finding on these."""
        chosen = self.reading(self.texts)
        found = [Finding("info", "requests", chosen.stored.described)]
        if "output" in self.experiment.probe.baselines:
            found.append(Finding("warning", "left-out", _WITHOUT_OUTPUT))
        design = replace(self.design, findings=(*self.design.findings, *found))
        return replace(chosen, design=design)

    def reading(self, texts: ReadTexts) -> Self:
        """Return the engine with other texts, and the requests that serve these."""
        return replace(self, texts=texts, stored=self.stored.choose(texts.ids, texts.plan))

    def work(self, target: str, root: Location | Files, device: str | None = None) -> Work:
        """Return the capture from requests, after some rows are computed again by the network."""
        work = super().work(target, root, device)
        layers = cast(RequestsSection, self.experiment.capture.requests).layers
        if target != TASK or not (layers or work.missing_sites()):
            return work
        with self.experiment.at("capture", "requests"), removed_after_failure(work.store):
            return replace(work, reader=self._verified(work.model, layers))

    def _verified(self, model: Network, stated: Mapping[str, str]) -> Requests:
        """Return the requests with the layer of each site, after some rows are computed again.

        Raises:
            DataError: a layer is not the site that the experiment states, or no layer is a site
                that it probes.
        """
        requests, texts = self.stored, self.texts
        of_layer, ids, places = requests.sample(texts.ids, texts.plan, IDENTIFIED_ROWS)
        logits = of_layer.pop(LOGITS, None)
        # Files number their layers, or name the site of each.
        names = {one: one for one in of_layer if not one.lstrip("-").isdecimal()}
        names |= stated
        for layer, site in names.items():
            if layer not in of_layer:
                near = nearest(layer, of_layer)
                raise DataError(f"`layers` lists {layer}, but the files have no such layer. {near}")
            if site not in model.sites:
                raise DataError(
                    f"layer {layer} has the name {site}, which is no site. "
                    f"{nearest(site, model.sites)} `layers` gives the site of each name."
                )
        if len(set(names.values())) < len(names):
            raise DataError(f"several layers have the same site: {names}. Give each its own.")
        named = {names.get(layer, f"tensor {layer}"): layer for layer in of_layer}
        arrays = {name: of_layer[layer][:, -1] for name, layer in named.items()}
        if logits is not None and model.has_lens:
            arrays[LOGITS] = logits[:, -1]
        found = identify(arrays, ids, model, positions=places[:, -1].tolist())
        if LOGITS in found and found[LOGITS].label == DIFFERS:
            raise DataError(f"the logits are not the network's: {found[LOGITS].sentence}.")
        layers = dict[str, str]()
        for name, layer in named.items():
            if found[name].label.startswith(VERIFIED):
                layers |= dict.fromkeys(found[name].names, layer)
            elif layer in names:
                raise DataError(f"layer {layer} is not {name}: {found[name].sentence}.")
        absent = [site for site in texts.sites if site not in layers]
        if absent:
            lines = (f"\n  layer {layer}: {found[name].sentence}" for name, layer in named.items())
            raise DataError(
                f"no layer in {requests.folder} is {joined_names(absent)}:{''.join(lines)}\nProbe "
                "the layers that the files have (`capture.sites`), or let the engine write the "
                "others."
            )
        given = {site: of_layer[layers[site]].flatten(2) for site in texts.sites}
        for site, one in compare_tokens(given, ids, places, model).items():
            if one.is_rounding:
                continue
            row, column = divmod(int(one.errors.nan_to_num(inf).argmax()), places.shape[1])
            request = requests.chosen[np.asarray(ids[row]).tobytes()].parts[0].place
            raise DataError(
                f"{request}: token {places[row, column]} at {site} is not the network's: its error "
                f"is {one.errors[row, column]:.3g} standard deviations, and precision explains "
                f"{one.largest:.2g}; the median of {one.errors.numel():,} tokens is "
                f"{one.errors.median():.2g}, and precision explains {one.median:.2g}. Let the "
                "engine write its requests again, each token from the same layer and prompt."
            )
        return replace(requests, layers=layers)

    def described(self) -> dict[str, Any]:
        """Return facts of the network, as of other texts, and the tensor that each site is."""
        errors = self.activations.stores[TASK].errors(self.texts.sites)
        identities = {}
        # A store has rows of another engine only of sites that they were verified as.
        for site in self.texts.sites:
            sentence = f"{site}; {described_errors(errors[site])}" if site in errors else site
            identities[site] = TensorIdentity(label=f"{VERIFIED} {site}", sentence=sentence)
        return super().described() | {"identities": identities}
