"""Activations that the network of an experiment on texts computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, cast

import numpy as np
import torch

from probekit.accelerators import check_device
from probekit.activations.capture import StoredRows, Work
from probekit.activations.given.given import GivenSite
from probekit.activations.local import Files, as_place
from probekit.activations.outputs import OutputNumbers, read_output, with_output
from probekit.activations.records import CODES, FloatArray, Location, identity_of
from probekit.activations.store import ActivationStore
from probekit.chosen.registry import asked
from probekit.data.examples import Dataset, Finding
from probekit.data.positions import IntArray
from probekit.errors import ConfigError
from probekit.experiment.schema import Experiment
from probekit.lazy_rows import LOADED_BYTES, Floats, LazyRows
from probekit.memory import fits_in_memory
from probekit.model.config import count_parameters
from probekit.model.families.table import config_of, in_dtype, load_model, random_network
from probekit.model.network import Network
from probekit.model.proven.choice import Proving
from probekit.model.proven.loading import compared_with, words_of_proof
from probekit.model.weights.checkpoint import file_checks
from probekit.model.weights.files import ITEM_SIZES
from probekit.model.weights.hub import find_model
from probekit.pipeline.engines.engine import TASK, Activations, Capture, Engine, Readings
from probekit.pipeline.engines.table import How
from probekit.pipeline.setup.design import (
    ExperimentDesign,
    Probed,
    normalized,
    part_of,
    position_rows,
)
from probekit.pipeline.setup.output import digests_of_output, noting_left_out, output_numbers
from probekit.pipeline.setup.texts import (
    ReadTexts,
    TextReader,
    check_examples,
    n_features,
    network_config,
    read_rows,
    width_of,
)
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.targets import NETWORKS, TARGETS
from probekit.provenance import digest_json
from probekit.results.network import AttentionPrompt
from probekit.results.record import ModelFacts, Norms

N_SEEDS = 2**32  # number of seeds of a random generator


def target_network(
    experiment: Experiment, device: str, target: str, *, to_compute: bool = True,
    dtype: torch.dtype | None = None,
) -> Network:  # fmt: skip
    """Return the network of one target on a device; all on that of a network in memory, if any.

    Its weights are in memory if they fit. With `to_compute=False`, for a process that only digests
    them or computes few rows, they are read one at a time. `dtype` replaces that of the experiment.

    Raises:
        MissingError: the model does not exist.
    """
    given = experiment.model.in_memory
    if target == TASK and given is not None:
        return cast(Network, given) if dtype is None else in_dtype(given, dtype)
    dtype = dtype or getattr(torch, experiment.model.dtype)
    config = network_config(experiment, Proving(device))
    device = device if given is None else given.devices
    fits = to_compute and fits_in_memory(count_parameters(config) * dtype.itemsize, device)
    if target == TASK:
        with experiment.at("model", "source"):
            return load_model(experiment.model.name, dtype, device, in_memory=fits)
    number = TARGETS[target].network
    assert number is not None
    seed = (experiment.model.random_seed + number) % N_SEEDS
    return random_network(config, seed, dtype, device, in_memory=fits)


class Networks:
    """The networks of an experiment, by target; only the last one that was used is in memory."""

    def __init__(self, experiment: Experiment, device: str, *, to_compute: bool = True) -> None:
        self._make = partial(target_network, experiment, device, to_compute=to_compute)
        self._last: tuple[str, Network] | None = None

    def __call__(self, target: str) -> Network:
        """Return the network of a target, which is loaded or made if another one was used last."""
        if self._last is None or self._last[0] != target:
            self._last = None  # its memory is free before the next network needs it
            self._last = target, self._make(target)
        return self._last[1]


def read_inputs(experiment: Experiment, how: How) -> tuple[TextReader, Networks, Dataset]:
    """Return the reader of an experiment on a device, its networks, and its examples."""
    experiment = experiment.on_device(how.device)
    models = Networks(experiment, how.device, to_compute=how.to_compute)
    at = Proving(how.device, how.watcher)
    return TextReader.of(experiment, at), models, read_rows(experiment)


def checks_of_files(experiment: Experiment) -> dict[str, str]:
    """Return how the files of the probed model are verified; empty for a network in memory."""
    has_files = experiment.model.memory is None
    return file_checks(find_model(experiment.model.source)) if has_files else {}


@dataclass(frozen=True, eq=False)
class CapturedRows(Activations):
    """Rows in the caches of an experiment.

    Attributes:
        experiment: the settings.
        stores: the cache of each network, by target.
        output: the numbers of the output of the probed network; None for none.
    """

    experiment: Experiment
    stores: Mapping[str, ActivationStore]
    output: OutputNumbers | None = None
    # The last site and position that was read of each network, with its rows, so that several heads
    # of a site need one read.
    _last: dict[str, tuple[tuple[str, int], FloatArray]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_last": {}}

    def block(self, site: Probed, position: int = 0, network: str = TASK) -> LazyRows:
        """Return the rows of a site, shape (n_rows, n_features), in the view of the experiment."""
        assert not isinstance(site, GivenSite), "captures have no given sites"
        store = self.stores[network]
        # The rows of all positions are interleaved; see `interleave`.
        numbers = np.arange(position, store.n_rows, len(self.experiment.tokens.positions))
        sizes = [math.prod(store.row_shape(part.site)) for part in site.parts]
        is_large = store.files.is_mapped and 4 * len(numbers) * sum(sizes) > LOADED_BYTES

        def read(place: slice | IntArray) -> FloatArray:
            """Return the features of some rows."""
            parts = []
            for part in site.parts:
                if is_large:
                    values = self._viewed(network, part.site, numbers[place])
                else:
                    values = self._read(part.site, position, network, numbers)[place]
                parts.append(part_of(values, part))
            return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

        if not is_large:
            return LazyRows.of(read(slice(None)))
        first = read(slice(1))
        return LazyRows(read, (len(numbers), first.shape[1]), first.dtype)

    def _read(self, site: str, position: int, network: str, numbers: IntArray) -> FloatArray:
        """Return the rows of a whole site, shape (n_rows, ...), read once for all of its heads."""
        last = self._last.get(network)
        if last is not None and last[0] == (site, position):
            return last[1]
        # Drop both references to the last site before the next one is read, to save memory.
        self._last.pop(network, None)
        del last
        values = self._viewed(network, site, numbers)
        self._last[network] = ((site, position), values)
        return values

    def _viewed(self, network: str, site: str, numbers: IntArray) -> FloatArray:
        """Return some rows of a whole site, shape (n_rows, ...), in the view of the experiment."""
        store = self.stores[network]
        values = store.read(site, numbers)
        if self.experiment.capture.view == "normalized":
            config = config_of(store.identity.config)
            values = normalized(values, config.norm_epsilon, is_centred=config.norm_is_centred)
        return values

    def outputs(self, position: int) -> dict[str, Floats] | None:
        """Return numbers of the network's output by name, each (n_rows,); None without them."""
        n_positions = len(self.experiment.tokens.positions)
        return read_output(self.stores[TASK], self.output, position, n_positions)

    def probe_facts(self, position: int) -> dict[str, Any]:
        """Return the fields of `ProbeFacts` that describe the rows of a position."""
        experiment, identity = self.experiment, self.stores[TASK].identity
        config = config_of(identity.config)
        rule = experiment.tokens.positions[position]
        of_position = rule.model_dump(exclude={"share", "between"}) | experiment.tokens.asking
        of_position |= {} if rule.share is None else {"share": rule.share[0]}
        of_position |= dict(zip(("after", "before"), rule.between or (), strict=False))
        model, capture = experiment.model, experiment.capture
        facts = {"position": of_position} | experiment.tokens.model_dump(include={"bos", "chat"})
        facts |= {"special_tokens": experiment.data.special_tokens, "model": model.name}
        facts["tokenizer_source"] = model.source if model.memory else None
        facts |= {"compute": model.dtype, "dtype": capture.dtype, "view": capture.view}
        facts |= {"n_heads": config.n_heads, "layer_norm_epsilon": config.norm_epsilon}
        facts |= {"norm_is_centred": config.norm_is_centred, "weights": identity.weights}
        return facts | {"tokenizer": identity.tokenizer, "cache": identity.key}


@dataclass(frozen=True, eq=False, kw_only=True)
class NetworkEngine(Engine):
    """Texts, and the network that computes their activations; also networks with random weights.

    Attributes:
        models: returns the network of a target.
        reader: reads texts as the network does.
        stored: rows of the probed network that exist already; None if it computes them.
        output: the numbers of the output that are captured of the texts; None for none.
    """

    experiment: Experiment
    activations: CapturedRows
    texts: ReadTexts
    models: Callable[[str], Network]
    reader: TextReader
    stored: StoredRows | None = None
    output: OutputNumbers | None = None

    @classmethod
    def prepare(cls, experiment: Experiment, how: How) -> Self:
        """Return the engine of an experiment; the network is loaded on first use."""
        return cls.of_rows(*read_inputs(experiment, how))

    @classmethod
    def of_rows(
        cls,
        reader: TextReader,
        models: Callable[[str], Network],
        dataset: Dataset,
        findings: Sequence[Finding] = (),
        **own: Any,
    ) -> Self:
        """Return the engine of the rows of an experiment.

        Args:
            reader: reads the rows.
            models: returns the network of a target.
            dataset: the rows.
            findings: findings about the rows.
            **own: other fields of the engine.

        Raises:
            ConfigError: a text of the section `attention` has no token or too many.
        """
        experiment = reader.experiment
        check_examples(experiment, dataset)
        texts, data, model = reader.read(dataset), experiment.data, experiment.model
        findings = [*findings, *texts.findings]
        tokens, n_ctx = experiment.tokens, texts.config.n_ctx
        if not tokens.chat and (doubt := texts.tokenizer.doubt_of_bos(tokens.bos)):
            findings.append(Finding("warning", "other-bos", doubt))
        for number, text in enumerate(experiment.attention.texts):
            with experiment.at("attention", "texts", number):
                texts.config.sites.select("blocks.*.attn.hook_pattern")
                n_ids = len(reader.encoder.encode(text).ids)
                if not 0 < n_ids <= n_ctx:
                    raise ConfigError(f"{text[:60]!r} has {n_ids} tokens; allowed: 1 to {n_ctx}.")
        how = texts.dataset, texts.tokens, texts.tokenizer
        positions = tuple(
            position_rows(position, plan, *how)
            for position, plan in zip(tokens.positions, texts.plans, strict=True)
        )
        design = ExperimentDesign.of(
            experiment, texts.dataset, texts.example, positions, n_read=len(dataset)
        )
        engine = cls(
            experiment=experiment,
            design=replace(design, findings=(*findings, *design.findings)),
            activations=CapturedRows(experiment, {}),
            selections=texts.selections,
            widths=[width_of(one, texts.config) for one in texts.selections],
            axis_sizes=texts.config.axis_sizes,
            networks=(TASK, *NETWORKS[: model.random_weights]),
            texts=texts,
            models=models,
            reader=reader,
            output=output_numbers(experiment, texts),
            **{"is_shared": not (data.in_memory or model.in_memory)} | own,
        )
        return engine.with_stored().with_further()

    def with_stored(self) -> Self:
        """Return the engine with the rows of its texts that exist already."""
        return self

    def with_further(self) -> Self:
        """Return the engine with the texts that analyses of the chosen probe need."""
        engine = self
        for analysis, settings in asked(self.experiment):
            texts = analysis.door("measure", "texts")
            if texts is not None:
                found: ReadTexts = texts(settings, self)
                design = replace(engine.design, findings=(*engine.design.findings, *found.findings))
                further = {**engine.further, analysis.texts: found}
                engine = replace(engine, design=design, further=further)
        return engine

    def reading(self, texts: ReadTexts) -> Self:
        """Return the engine with other texts, in place of those of the experiment."""
        return replace(self, texts=texts)

    def ready(self, device: str) -> Self:
        """Return the engine, checked before the network runs, with what `bos: auto` means."""
        check_device(device, several=not self.experiment.interventions)
        self.models(TASK)  # a missing model is reported now
        experiment = self.experiment.with_bos(self.texts.tokenizer.has_bos)
        return replace(self, experiment=experiment)  # recorded with the results

    @property
    def n_bytes(self) -> int:
        """Size of the captured rows of all positions and networks."""
        texts = self.texts
        n_features_of_row = sum(n_features(site, texts.config) for site in texts.sites)
        n_numbers = len(self.networks) * len(texts.plan.example) * n_features_of_row
        return n_numbers * ITEM_SIZES[CODES[self.experiment.capture.dtype]]

    @property
    def origin(self) -> str:
        """Where the rows of the probed network come from; see `Identity`."""
        return "" if self.stored is None else self.stored.origin

    def identity(self) -> Any:
        """Return the identity of the cache of the probed model, as JSON.

        Networks with random weights follow from it and from the settings, so they are not built.
        """
        texts, model = self.texts, self.models(TASK)
        how = texts.tokenizer.digest, texts.ids, texts.plan, self.experiment.capture.dtype
        return identity_of(model, *how, origin=self.origin).to_json()

    def work(self, target: str, root: Location | Files, device: str | None = None) -> Work:
        """Return the capture of the texts from one network, with its store.

        Args:
            target: what the network is, `task` or one of `NETWORKS`.
            root: folder or URL of all caches, or the files of the cache to use.
            device: type of the devices that will compute; None for that of the model.

        Raises:
            StoreMismatchError: the files belong to another capture.
            StoreError: the store cannot be written.
            DataError: hidden states of requests are not those of the sites.
        """
        model, texts = self.models(target), self.texts
        exact = partial(target_network, self.experiment, str(model.device), target)
        exact = partial(exact, to_compute=False, dtype=torch.float32)
        read = texts.tokenizer.digest, texts.ids, texts.plan, texts.sites
        dtype = self.experiment.capture.dtype
        reader = self.stored if target == TASK else None  # untrained networks read the texts
        work = Work.begin(
            model, *read, root=root, dtype=dtype, device=device, reader=reader,
            exact=compared_with(model, exact),
        )  # fmt: skip
        return with_output(work, self.output if target == TASK else None)

    def open(self, capture: Capture) -> Self:
        """Return the engine with the activations of all targets, captured where missing."""
        return self._with({name: one.store for name, one in capture(self).items()})

    def reopened(self, caches: Mapping[str, str]) -> Self:
        """Return the engine with the activations in caches, by target."""
        return self._with({n: ActivationStore.open(as_place(one)) for n, one in caches.items()})

    def _with(self, stores: Mapping[str, ActivationStore]) -> Self:
        """Return the engine with caches by target, and a finding if the output is left out."""
        rows = CapturedRows(self.experiment, stores, self.output)
        design = noting_left_out(self.design, stores[TASK], self.output)
        return replace(self, design=design, activations=rows)

    def described(self) -> dict[str, Any]:
        """Return sizes and file checks of the model, digests, the first random seed, and caches."""
        model, stores, sites = self.models(TASK), self.activations.stores, self.texts.sites
        errors = stores[TASK].errors(sites)
        sizes = ("n_layers", "n_heads", "d_model", "d_vocab", "n_ctx")
        facts = ModelFacts(
            source=self.experiment.model.name,
            **{name: getattr(model.config, name) for name in sizes},
            parameters=count_parameters(model.config),
            compared_with=checks_of_files(self.experiment),
            relative_errors={site: one[0] for site, one in errors.items()} or None,
            computed_by=words_of_proof(model, sites, is_drawn=len(stores) > 1),
        )
        digests = {
            "tokenizer": self.texts.tokenizer.digest,
            **{f"weights ({name})": one.identity.weights for name, one in stores.items()},
            "config": digest_json(stores[TASK].identity.config),
            **{f"activations ({name})": one.digest_of(sites) for name, one in stores.items()},
            **digests_of_output(stores[TASK], self.output),
        }
        return {
            "model": facts,
            "digests": digests,
            "seeds": {"random_weights": self.experiment.model.random_seed},
            "caches": {name: str(one.folder) for name, one in stores.items()},
        }

    def norms(self) -> list[Norms]:
        """Return the norms at the probed sites along d_model; see `residual_norms`."""
        from probekit.pipeline.look.lenses import residual_norms  # imports pandas

        return residual_norms(self.models(TASK), self.texts, self.design)

    def attention_prompts(self) -> list[AttentionPrompt]:
        """Return the attention patterns of the texts in the section `attention`."""
        from probekit.pipeline.look.attention import attention_prompt  # imports plotly

        settings, texts = self.experiment.tokens, self.experiment.attention.texts
        model, tokenizer = self.models(TASK), self.texts.tokenizer
        read = partial(attention_prompt, model, tokenizer, bos=settings.bos, chat=settings.chat)
        special_tokens = self.experiment.data.special_tokens
        return [read(text, special_tokens=special_tokens) for text in texts]

    def readings(self, probe: SavedProbe, texts: Sequence[str]) -> Readings:
        """Return the predictions of a probe at each token of texts, up to the context."""
        from probekit.pipeline.look.apply import predict_texts  # imports pandas

        read = self.models(TASK), self.texts.tokenizer, texts
        return predict_texts([probe], *read, too_long="truncate")[0]
