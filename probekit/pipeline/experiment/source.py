"""Where the activations of a run come from: a base class, and the model of an experiment on texts.

Nothing that reads a `Source` depends on which one it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from probekit.activations.forward import ranges
from probekit.activations.given.given import GivenSite
from probekit.activations.records import FloatArray, Location, described_errors, identity_of
from probekit.activations.replies import Replies
from probekit.data.positions import MASSIVE, IntArray
from probekit.experiment.activations import AnyExperiment
from probekit.experiment.schema import Experiment
from probekit.lazy_rows import LOADED_BYTES, LazyRows
from probekit.memory import fits_in_memory
from probekit.model.config import count_parameters
from probekit.model.families.table import config_of, in_dtype, load_model, random_network
from probekit.model.network import Network
from probekit.model.passes.taps import Tap
from probekit.model.sites.catalogue import VERIFIED, describe, layer_of
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.checkpoint import file_checks
from probekit.model.weights.sources import find_model
from probekit.pipeline.experiment.prepare import TextRows, network_config, prepare, width_of
from probekit.pipeline.experiment.replies import experiment_replies
from probekit.pipeline.experiment.rows import Probed, Rows, normalized, part_of
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.targets import NETWORKS, TARGETS
from probekit.products import check_device
from probekit.provenance import digest_json
from probekit.results.network import AttentionPrompt, TextReading
from probekit.results.record import ModelFacts, Norms, TensorIdentity
from probekit.terminal import SILENT, Watcher

if TYPE_CHECKING:  # code that finds and fills caches does not affect the results
    from probekit.activations.capture import Captured

    Capture = Callable[["ModelSource"], Mapping[str, Captured]]

TASK = "task"  # target of the probed model, as opposed to those of untrained networks
N_SEEDS = 2**32  # number of seeds of a random generator
SAMPLE = 64  # sequences for norms; few suffice, because the ratio is large (about 30 in GPT-2)
MOST_TOKENS = 4  # of the massive ones at a site, in the record
NORM_TOKENS = 1024  # of one pass for norms


def targets(experiment: Experiment) -> tuple[str, ...]:
    """Return the targets that need activations: `task`, and one for each untrained network."""
    return (TASK, *NETWORKS[: experiment.model.random_weights])


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
    config = network_config(experiment)
    device = device if given is None else given.devices
    n_bytes = count_parameters(config) * dtype.itemsize
    fits = to_compute and fits_in_memory(n_bytes, device)
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


def checks_of_files(experiment: Experiment) -> dict[str, str]:
    """Return how the files of the probed model are verified; empty for a network in memory."""
    has_files = experiment.model.memory is None
    return file_checks(find_model(experiment.model.source)) if has_files else {}


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(ABC):
    """Activation rows of an experiment, by site, position and network.

    Attributes:
        experiment: the settings.
        rows: labels, groups and splits of the rows.
    """

    experiment: AnyExperiment
    rows: Rows

    @abstractmethod
    def described(self) -> dict[str, Any]:
        """Return `model`, `digests`, `seeds` and `caches` of run.json."""

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks that there are rows of: `task`, then each untrained network."""
        return (TASK,)

    @property
    @abstractmethod
    def widths(self) -> Sequence[int]:
        """The number of features of each site."""

    @abstractmethod
    def identity(self) -> Any:
        """Return the identity of the activations, as JSON, for the run key."""

    def open(self, _capture: Capture) -> Source:
        """Return the source, ready to be read; `capture` computes activations that it lacks."""
        return self

    @abstractmethod
    def block(self, site: Probed, position: int = 0, network: str = TASK) -> LazyRows:
        """Return the rows of a site, shape (n_rows, n_features), read when they are needed.

        Args:
            site: the site, one head or neuron of it, or a concatenation.
            position: index of the position.
            network: one of `networks`.
        """

    @abstractmethod
    def probe_facts(self, position: int) -> dict[str, Any]:
        """Return the fields of `ProbeFacts` that describe the rows of a position."""

    def norms(self) -> list[Norms]:
        """Return the norms of the residual stream; empty if the model is unknown."""
        return []

    def attention_prompts(self) -> list[AttentionPrompt]:
        """Return the attention patterns that the report shows."""
        return []

    def readings(
        self, _probe: SavedProbe, _site: Probed, texts: Sequence[str]
    ) -> Sequence[TextReading | None]:
        """Return the predictions of a probe at each token of texts; None without a model."""
        return [None] * len(texts)


@dataclass(frozen=True, eq=False, kw_only=True)
class ModelSource(Source):
    """Activations that the model of an experiment computes, and networks with random weights.

    Attributes:
        models: returns the network of a target.
        captured: the stored rows of each target; by default empty before `open`.
    """

    experiment: Experiment
    rows: TextRows
    models: Callable[[str], Network]
    captured: Mapping[str, Captured] = field(default_factory=dict)
    # The last site and position that was read of each network, with its rows, so that several heads
    # of a site need one read.
    _last: dict[str, tuple[tuple[str, int], FloatArray]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes call only `block` and `probe_facts`.
        return self.__dict__ | {"rows": None, "models": None, "_last": {}}

    def described(self) -> dict[str, Any]:
        """Return sizes and file checks of the model, digests, the first random seed, and caches."""
        model, captured = self.models(TASK), self.captured
        errors = captured[TASK].store.errors(self.rows.sites)
        # A store has rows of another engine only of sites that they were verified as.
        is_read = self.rows.requests is not None
        identities = {
            site: TensorIdentity(
                label=f"{VERIFIED} {site}",
                sentence=f"{site}; {described_errors(errors[site])}" if site in errors else site,
            )
            for site in (self.rows.sites if is_read else ())
        }
        sizes = ("n_layers", "n_heads", "d_model", "d_vocab", "n_ctx")
        facts = ModelFacts(
            source=self.experiment.model.name,
            **{name: getattr(model.config, name) for name in sizes},
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            compared_with=checks_of_files(self.experiment),
            relative_errors={site: one[0] for site, one in errors.items()} or None,
        )
        # The `root` of a capture is a digest of its rows, not a folder.
        digests = {
            "tokenizer": self.rows.tokenizer.digest,
            **{f"weights ({name})": one.store.identity.weights for name, one in captured.items()},
            "config": digest_json(captured[TASK].store.identity.config),
            **{f"activations ({name})": one.root for name, one in captured.items()},
        }
        return {
            "model": facts,
            "digests": digests,
            "seeds": {"random_weights": self.experiment.model.random_seed},
            "caches": {name: str(one.store.folder) for name, one in captured.items()},
            "identities": identities,
        }

    @property
    def networks(self) -> tuple[str, ...]:
        """The networks that there are rows of after `open`: `task`, then each untrained network."""
        return targets(self.experiment)

    @property
    def widths(self) -> Sequence[int]:
        """The number of features of each site."""
        return [width_of(one, self.rows.config) for one in self.rows.selections]

    def identity(self) -> Any:
        """Return the identity of the cache of the probed model, as JSON.

        Networks with random weights follow from it and from the settings, so they are not built.
        """
        rows, dtype = self.rows, self.experiment.capture.dtype
        model, tokenizer = self.models(TASK), rows.tokenizer.digest
        return identity_of(
            model, tokenizer, rows.ids, rows.plan, dtype, origin=rows.origin
        ).to_json()

    def open(self, capture: Capture) -> ModelSource:
        """Return the source with the activations of all targets, captured where missing."""
        return replace(self, captured=capture(self))

    def block(self, site: Probed, position: int = 0, network: str = TASK) -> LazyRows:
        """Return the rows of a site, shape (n_rows, n_features), in the view of the experiment."""
        assert not isinstance(site, GivenSite), "captures have no given sites"
        store = self.captured[network].store
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
        store = self.captured[network].store
        values = store.read(site, numbers)
        if self.experiment.capture.view == "normalized":
            config = config_of(store.identity.config)
            values = normalized(values, config.norm_epsilon, is_centred=config.norm_is_centred)
        return values

    def probe_facts(self, position: int) -> dict[str, Any]:
        """Return the fields of `ProbeFacts` that describe the rows of a position."""
        experiment, identity = self.experiment, self.captured[TASK].store.identity
        config = config_of(identity.config)
        of_position = experiment.tokens.positions[position]
        of_reply: dict[str, float | str] = {}
        if of_position.share is not None:
            of_reply["share"] = of_position.share[0]
        if of_position.between is not None:
            of_reply |= {"after": of_position.between[0], "before": of_position.between[1]}
        return {
            "position": of_position.model_dump(exclude={"share", "between"}) | of_reply,
            "bos": experiment.tokens.bos,
            "chat": experiment.tokens.chat,
            "special_tokens": experiment.data.special_tokens,
            "model": experiment.model.name,
            "tokenizer_source": experiment.model.source if experiment.model.memory else None,
            "compute": experiment.model.dtype,
            "dtype": experiment.capture.dtype,
            "view": experiment.capture.view,
            "weights": identity.weights,
            "n_heads": config.n_heads,
            "layer_norm_epsilon": config.norm_epsilon,
            "tokenizer": identity.tokenizer,
            "cache": identity.key,
        }

    def norms(self) -> list[Norms]:
        """Return the norms at the probed sites along d_model; see `residual_norms`."""
        return residual_norms(self.models(TASK), self.rows)

    def attention_prompts(self) -> list[AttentionPrompt]:
        """Return the attention patterns of the texts in the section `attention`."""
        from probekit.pipeline.look.attention import attention_prompt  # imports plotly

        settings, texts = self.experiment.tokens, self.experiment.attention.texts
        model, tokenizer = self.models(TASK), self.rows.tokenizer
        how: dict[str, Any] = {"bos": settings.bos, "chat": settings.chat}
        how["special_tokens"] = self.experiment.data.special_tokens
        return [attention_prompt(model, tokenizer, text, **how) for text in texts]

    def readings(
        self, probe: SavedProbe, site: Probed, texts: Sequence[str]
    ) -> Sequence[TextReading | None]:
        """Return the predictions of a probe at each token of texts, up to the context."""
        from probekit.pipeline.look.apply import ProbedModel, predict_texts  # imports pandas

        assert not isinstance(site, GivenSite), "captures have no given sites"
        if self.rows.replies is not None and self.experiment.tokens.chat:
            return [None] * len(texts)  # a reply is not the user's turn
        network = ProbedModel(self.models(TASK), self.rows.tokenizer, site.parts)
        return predict_texts(probe, network, texts, too_long="truncate")


def model_source(
    experiment: Experiment,
    device: str,
    *,
    to_compute: bool = True,
    cache_root: Location | None = None,
    watcher: Watcher = SILENT,
) -> ModelSource:
    """Return the source of an experiment on texts, checked before the model runs.

    Replies are the exception: the model generates them after the prompts are checked. Networks with
    random weights are built on first use.

    Args:
        experiment: the settings.
        device: compute device, or several, such as `cuda:0,cuda:1`, without interventions.
        to_compute: False if the networks are only digested; see `target_network`.
        cache_root: folder or URL of the caches, for replies; None for the user's default.
        watcher: receives the progress of replies, and their numbers by label.

    Raises:
        ProbekitError: one of its subclasses; the message names the key, file or row at fault.
    """
    experiment = experiment.on_device(device)
    networks = Networks(experiment, device, to_compute=to_compute)

    def generated(
        tokenizer: Tokenizer, prompts: Sequence[IntArray], sites: Sequence[str]
    ) -> Replies:
        check_device(device, several=True)
        model = networks(TASK)
        return experiment_replies(
            experiment, model, tokenizer, prompts, sites, cache_root=cache_root, watcher=watcher
        )

    rows = prepare(experiment, generated)
    for finding in rows.findings:
        if finding.code == "replies":
            watcher.tell(finding.message)
    check_device(device, several=not experiment.interventions)
    networks(TASK)  # a missing model is reported now
    experiment = experiment.with_bos(rows.tokenizer.has_bos)  # recorded with the results
    return ModelSource(experiment=experiment, rows=rows, models=networks)


@torch.inference_mode()
def residual_norms(model: Network, rows: TextRows) -> list[Norms]:
    """Return median norms and massive activations at each site along d_model; see `Norms`.

    They are those of at most `SAMPLE` distinct sequences of at least two tokens, evenly spaced over
    the data. Without such sites or sequences the list is empty.

    Source: Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks"; Sun et al.
    2024, "Massive Activations in Large Language Models".
    """
    sites = [site for site in rows.sites if describe(site).axes == ("batch", "pos", "d_model")]
    distinct = list({ids.tobytes(): ids for ids in rows.ids if len(ids) > 1}.values())
    if not sites or not distinct:
        return []
    chosen = np.linspace(0, len(distinct) - 1, min(SAMPLE, len(distinct))).astype(int)
    sequences = sorted((distinct[index] for index in chosen), key=len)
    norms: dict[str, list[Tensor]] = {site: [] for site in sites}

    def measure(site: str, value: Tensor) -> Tensor:
        """Keep the norms of sequences of one length at a site, as a tap that changes nothing."""
        norms[site].append(value.float().norm(dim=-1).flatten().cpu())  # [batch pos]
        return value

    passes: list[tuple[Tensor, None, Tap, None]] = []
    for length, of_length in groupby(sequences, key=len):
        tokens = torch.from_numpy(np.stack(list(of_length))).to(model.device)
        batches = torch.split(tokens, max(1, NORM_TOKENS // length))
        passes += [(batch, None, measure, None) for batch in batches]
    for _ in model.run_together(passes, sites):
        pass
    lengths, plan = np.array([len(ids) for ids in sequences]), rows.plan
    starts = np.cumsum(lengths) - lengths
    start_of = dict(zip((ids.tobytes() for ids in sequences), starts.tolist(), strict=True))
    # The sampled token of each position that rows read; -1 if their text is not sampled.
    start = np.array([start_of.get(ids.tobytes(), -1) for ids in rows.ids])
    start = np.repeat(start[plan.example], np.diff(plan.offsets))
    read = np.where(start < 0, -1, start + plan.positions)
    text, position = np.repeat(np.arange(len(lengths)), lengths), ranges(0 * starts, lengths)
    token = np.where(position > 0, np.concatenate(sequences), -1)
    tokens_of = rows.tokenizer.strings

    def of_site(site: str, norms: FloatArray) -> Norms:
        """Return the facts of a site from the norms (n_tokens,) of the sampled tokens."""
        first, other = (float(np.median(norms[(position == 0) == it])) for it in (True, False))
        is_massive, found = norms > MASSIVE * other, []
        for one in np.unique(token[is_massive]).tolist():
            at, name = is_massive & (token == one), "" if one < 0 else tokens_of([one])[0]
            ends = int(position[at].min()), int(position[at].max())
            found.append((name, len(set(text[at])), *ends))
        # Whether each row reads such a token; NaN if its text is not sampled.
        reads = np.logical_or.reduceat(np.append(is_massive, False)[read], plan.offsets[:-1])
        reads = np.where(read[plan.offsets[:-1]] < 0, np.nan, reads)
        parts = {one.text: reads[k :: len(rows.positions)] for k, one in enumerate(rows.positions)}
        shares = {name: float(np.nanmean(part)) for name, part in parts.items()}
        return Norms(
            site=site, layer=layer_of(site), first_position_norm=first, other_norm=other,
            n_texts=len(lengths), massive=sorted(found, key=lambda one: -one[1])[:MOST_TOKENS],
            read={} if plan.skip_massive else shares,
        )  # fmt: skip

    return [of_site(site, torch.cat(norms[site]).numpy()) for site in sites]
