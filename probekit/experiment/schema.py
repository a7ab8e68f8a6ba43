"""Data model of the experiment file: type, default and description of every key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from probekit.chosen.leakage.section import LeakageSection
from probekit.chosen.left.section import Confounds
from probekit.chosen.monitor.section import MonitorSection
from probekit.chosen.registry import asked
from probekit.errors import ConfigError, UnknownNameError
from probekit.experiment.data import DataSection, read_tables
from probekit.experiment.document import Document, read_document, validated
from probekit.experiment.interventions import Interventions, Measures, check_interventions
from probekit.experiment.locations import find_file, resolve_experiment
from probekit.experiment.model import ModelSection, TokensSection, dtype_on
from probekit.experiment.replies import GenerateSection, OptionalRequests, check_replies
from probekit.model.config import Bos
from probekit.probes.settings import ProbeSettings
from probekit.section import Distinct, FolderName, Items, Section, Seed, SettingsFile, rule_error

if TYPE_CHECKING:
    from probekit.experiment.activations import AnyExperiment
    from probekit.model.network import Network

# Default sites.
RESIDUAL_STREAM = (
    "blocks.0.hook_resid_pre",
    "blocks.*.hook_resid_post",
    "ln_final.hook_normalized",
)


FOLDS = 5  # outer folds inside the sources of `split.leave_out`


class SplitSection(Section):
    """Split into train and test; `test` and `seed` are used if the data do not give a split.

    Attributes:
        test: fraction of rows in the test set
        folds: instead of one test set: number of outer folds of a nested cross-validation, in which
            each fold is tested once, at the site that is chosen on the other folds, and all folds
            are scored together; with `leave_out` (default 5), those of the score inside the sources
        leave_out: instead of one test set: column of the data, such as data set, template, author
            or language, whose values (the sources) are each the test set once; site, penalty and
            threshold are chosen on the other sources, and the scores are compared with those of a
            nested cross-validation inside the sources
        seed: random seed for the selection of test groups
        drop_repeated: whether to remove test rows whose text and span are also in train; with
            `folds`, rows whose text and span are in an earlier group; `all` also removes repeated
            rows of one group or side
        word_disjoint: whether to remove rows so that no probed word is in both train and test
    """

    test: float = Field(0.25, gt=0, lt=1)
    folds: int | None = Field(None, ge=2, le=100)
    leave_out: str | None = Field(None, min_length=1, examples=["source"])
    seed: Seed = 0
    drop_repeated: Literal[False, True, "all"] = False
    word_disjoint: bool = False

    @model_validator(mode="before")
    @classmethod
    def _folds_inside_the_sources(cls, given: Any) -> Any:
        """Fill in the number of folds that sources are compared with."""
        if not isinstance(given, Mapping) or given.get("leave_out") is None:
            return given
        return {**given, "folds": FOLDS if given.get("folds") is None else given["folds"]}

    @model_validator(mode="after")
    def _nested_folds_stand_alone(self) -> SplitSection:
        key = "folds" if self.leave_out is None else "leave_out"
        if self.folds is not None and self.word_disjoint:
            raise rule_error(f"`{key}` cannot be combined with `word_disjoint`", key)
        # The default is allowed: a file written by probekit has every key.
        if self.folds is not None and self.test != type(self).model_fields["test"].default:
            raise rule_error(f"`test` is for one test set: remove it, or `{key}`", "test")
        return self


class CaptureSection(Section):
    """Activations to capture.

    Attributes:
        sites: names or globs of sites, optionally followed by [head=3], [head=0,3], [head=*] or the
            same with neuron, such as [neuron=17]; each head or neuron is probed separately
        concatenate: lists of sites whose features are concatenated, in addition to `sites`
        view: raw activations, or each row centred and divided by sqrt(var + eps) over d_model, as
            in the next layer norm without its affine part (means over tokens are normalised after
            averaging); both views use the same cache
        dtype: data type on disk: float16 holds numbers up to 65,504 with 3 to 4 digits, bfloat16
            those of float32 with 2 to 3 digits; both take half the space of float32
        generate: the network replies to each text, and its activations are captured while it does;
            null for the texts as they are
        requests: files of a serving engine (its folder, or this section), from which the
            activations of the probed network are read; untrained networks are captured as always
    """

    sites: Distinct[str] = RESIDUAL_STREAM
    concatenate: Items[Annotated[tuple[str, ...], Field(strict=False, min_length=1)]] = Field(
        (), examples=["[blocks.*.hook_resid_post]"]
    )
    view: Literal["raw", "normalized"] = "raw"
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    generate: GenerateSection | None = None
    requests: OptionalRequests = Field(None, examples=["hidden_states"])


class AttentionSection(Section):
    """Texts whose attention patterns the report shows.

    Attributes:
        texts: texts, each shown as a grid of layers and heads
    """

    texts: Items[str] = Field((), examples=["The keys to the cabinet"])


class Experiment(SettingsFile):
    """One experiment: a question, a model, labelled data, and the settings of the probes.

    Attributes:
        name: name of the experiment and of the folder of its runs
        question: research question, shown in the report

    >>> Experiment.from_file("quickstart").model.source
    'mini'
    """

    name: FolderName
    question: str | None = None
    model: ModelSection
    data: DataSection
    tokens: TokensSection
    split: SplitSection = SplitSection()
    capture: CaptureSection = CaptureSection()
    probe: ProbeSettings = ProbeSettings()
    monitor: MonitorSection | None = None
    leakage: LeakageSection | None = None
    confounds: Confounds = None
    attention: AttentionSection = AttentionSection()
    interventions: Interventions = ()
    measure: Measures = ()

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
        """Return the experiment described by a YAML file, with defaults filled in.

        Args:
            path: the YAML file (YAML 1.2: `no` and `4:8` stay strings), or the name of a bundled
                one.
            overrides: `section.key=value`; each replaces a value of the file.

        Raises:
            MissingError: the file, or a checkpoint that it names, does not exist.
            ConfigError: the file is invalid; the message lists every error with its line.
        """
        return read_document(find_file(path), overrides).settings(cls, resolve_experiment)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """Return the experiment described by nested dicts with the keys of a YAML file.

        Relative paths start from the current directory.

        Raises:
            ConfigError: a value is invalid; the message lists every error with its key.
            MissingError: a checkpoint of the model does not exist.

        >>> Experiment.from_dict({
        ...     "name": "tense",
        ...     "model": {"source": "mini"},
        ...     "data": {"name": "verbs", "columns": {"text": "sentence"}},
        ...     "tokens": {"bos": True, "position": {"at": "lats"}},
        ... })
        Traceback (most recent call last):
        probekit.errors.ConfigError: tokens.position.at is 'lats'. Nearest: last. Allowed: ...
        """
        if not isinstance(values, Mapping):
            raise ConfigError(f"The settings are of type {type(values).__name__}. Pass a dict.")
        return Document(values).settings(cls, resolve_experiment)

    def with_data(self, data: Any) -> Experiment:
        """Return a copy of the experiment on rows in memory.

        The section `data` of the copy describes the rows: type, number and digest. Results depend
        on their content and order alone.

        Args:
            data: a data frame of pandas, polars or another library that narwhals reads; a list of
                dicts; a `datasets.Dataset`; or a dict of two of these, "train" and "test".

        Raises:
            ConfigError: the type of `data` is not supported, a column is missing, the experiment
                names a file or a data set of the hub, or it is that of a run on other rows.
            DataError: the rows are invalid; the message names the index of the row.

        >>> experiment = Experiment.from_dict({
        ...     "name": "tense",
        ...     "model": {"source": "mini"},
        ...     "data": {"name": "verbs"},
        ...     "tokens": {"bos": True, "position": {"at": "last"}},
        ... })
        >>> rows = [{"text": "I went", "label": "past"}, {"text": "I go", "label": "present"}]
        >>> experiment.with_data(rows).data.memory.kind
        'list of dicts'
        """
        if self.data.format != "memory":
            hub_name = None if self.data.hub is None else self.data.hub.name
            named = self.data.file or self.data.train or hub_name
            with self.at("data"):
                raise ConfigError(
                    f"the experiment has data of its own, {named}: remove them, or pass no `data`."
                )
        try:
            examples, facts = read_tables(self.data, data, self.value_columns)
        except UnknownNameError:
            with self.at("data", "columns"):  # puts the location before the message
                raise
        return self._holding("data", "rows", examples, facts)

    def with_model(self, network: Network) -> Experiment:
        """Return a copy of the experiment on a network in memory, in place of that of its file.

        `model.source` then names only the tokenizer. The network is used on its own device and in
        its own dtype, and is not copied: do not change it before the run has ended. The section
        `model` of the copy has the digest of its weights.

        Args:
            network: a network of `load_model` or `from_transformers`, or one built by its class.

        Raises:
            ConfigError: this is no network of probekit, or not that of the earlier run; or the
                experiment probes checkpoints.

        >>> from probekit import load_model
        >>> Experiment.from_file("quickstart").with_model(load_model("mini")).model.name
        'GPT2 in memory b321a366'
        """
        from probekit.model.network import Network  # imports torch
        from probekit.model.weights.state_dict import digest_weights

        if not isinstance(network, Network):
            raise ConfigError(
                f"model is of type {type(network).__name__}. Pass a network of probekit.load_model "
                "or probekit.from_transformers; for a name or folder, set `model.source`."
            )
        kind = getattr(network.config, "title", type(network).__name__)
        facts = {"kind": kind, "digest": digest_weights(network)}
        dtype = str(network.dtype).removeprefix("torch.")
        return self._holding("model", "weights", network, facts, dtype=dtype)

    def on_device(self, device: str) -> Experiment:
        """Return a copy with the dtype that `model.dtype: auto` means on a device."""
        if self.model.dtype != "auto":
            return self
        model = self.model.model_copy(update={"dtype": dtype_on(device)})
        return self.model_copy(update={"model": model})

    def with_bos(self, has_bos: Callable[[Bos], bool]) -> Experiment:
        """Return a copy with what `tokens.bos: auto` means for a tokenizer, by its `has_bos`."""
        with self.at("tokens", "bos"):
            bos = not self.tokens.chat and has_bos(self.tokens.bos)
        return self.model_copy(update={"tokens": self.tokens.model_copy(update={"bos": bos})})

    def _holding(
        self, section: str, what: str, held: Any, facts: Mapping[str, Any], **values: str
    ) -> Experiment:
        """Return a copy with an object in memory.

        Args:
            section: section that describes the object.
            what: the object in words.
            held: the object.
            facts: contents of the section `memory` in this section.
            values: other values of the section.

        Raises:
            ConfigError: the experiment is that of a run on an object with another digest.
        """
        known = getattr(self, section).memory
        if known is not None and known.digest != facts["digest"]:
            with self.at(section, "memory", "digest"):
                raise ConfigError(
                    f"these are not the {what} of the earlier run, whose digest is "
                    f"{known.digest[:12]}. To run on other {what}, remove `{section}.memory`."
                )
        settings = self.model_dump()
        settings[section] |= {"memory": facts, **values}
        changed = validated(type(self), settings, self.location)
        changed.data.hold(self.data.in_memory)
        changed.model.hold(self.model.in_memory)
        getattr(changed, section).hold(held)
        return changed

    @property
    def answer_columns(self) -> tuple[str, ...]:
        """Names in `measure` that are columns of the data, or literal tokens."""
        named = (name for one in self.measure for name in (one.answer, one.wrong))
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def value_columns(self) -> tuple[str, ...]:
        """Columns whose cells the examples keep, of answers, `split.leave_out` and `confounds`."""
        rule, further = self.data.label_of_reply, (self.split.leave_out, *(self.confounds or ()))
        named = (*self.answer_columns, *further, rule.equals if rule else None)
        named += self.data.columns.answers or ()
        return tuple(dict.fromkeys(filter(None, named)))

    @property
    def reads_numbers(self) -> bool:
        """Whether the labels are numbers."""
        return self.probe.reads_numbers

    @property
    def offsets(self) -> dict[str, int]:
        """The offset of each probed position, or its share in percent, by its name in results."""
        return {position.text: position.number for position in self.tokens.positions}

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Experiment:
        data, tokens, position = self.data, self.tokens, self.tokens.position
        check_interventions(self.interventions, self.measure, data.pairs, len(tokens.positions))
        has_reply, has_messages = data.columns.reply is not None, data.columns.messages is not None
        pools = [kind for kind in self.probe.kinds if kind.traits.scores_texts]
        check_probe(self, is_split=data.is_split)
        if self.capture.requests is not None and self.model.checkpoints is not None:
            raise rule_error(
                "`capture.requests` has hidden states of one network, without `model.checkpoints`",
                "capture.requests",
            )
        if self.split.word_disjoint and len(tokens.positions) > 1:
            raise rule_error(
                "`word_disjoint` requires a single position: the words of a sweep differ by offset",
                "split.word_disjoint",
            )
        is_aggregated = any(kind.traits.scores_tokens for kind in pools)
        if is_aggregated and (position.at != "all" or len(self.probe.kinds) > 1):
            raise rule_error(
                "`aggregate` requires `tokens.position: {at: all}`, and no other kind of probe",
                "tokens.position.at" if position.at != "all" else "probe.kinds",
            )
        if pools and "all" not in (position.at, position.pieces):
            raise rule_error(
                f"{pools[0].kind} requires `tokens.position: {{at: all}}`", "probe.kinds"
            )
        check_replies(self)
        columns = {"data.columns.reply": has_reply, "data.columns.messages": has_messages}
        for key, is_given in columns.items():
            if is_given and not tokens.chat:
                raise rule_error(f"{key} requires `tokens.chat: true`", key)
        if position.at == "assistant_last" and not (has_reply or has_messages):
            raise rule_error(
                "`at: assistant_last` requires `data.columns.reply` or `messages`; without it, use "
                "`at: last`",
                "tokens.position.at",
            )
        if position.at == "user_last" and has_reply:
            raise rule_error(
                "`at: user_last` is before the reply, which baselines would read. Remove "
                "`data.columns.reply`, or use `at: assistant_last`",
                "tokens.position.at",
            )
        if position.at in ("span", "word") and not (
            data.has_words or data.columns.start is not None
        ):
            raise rule_error(
                f"tokens.position.at is {position.at!r}, but data.columns has no `start` and `end`",
                "tokens.position.at",
            )
        return self


def check_probe(experiment: AnyExperiment, *, is_split: bool) -> None:
    """Check the rules that the probes, their analyses and the data of any experiment follow."""
    probe, split = experiment.probe, experiment.split
    if experiment.data.positive is not None and probe.reads != "classes":
        raise rule_error(
            f"`positive` is a class, but the kinds of probe read labels as {probe.reads}",
            "data.positive",
        )
    if split.folds is not None and is_split:
        key = "split.folds" if split.leave_out is None else "split.leave_out"
        raise rule_error(f"`{key}` requires data without a given split", key)
    for one, settings in asked(experiment):
        name = one.key if one.key == one.name else f"{one.key.rpartition('.')[2]}: {settings}"
        if one.key and not one.over_folds and split.folds is not None:
            raise rule_error(
                f"`{name}` needs a single test set, without `split.folds` and `split.leave_out`",
                one.key,
            )
        if one.key and not all(
            {spec.task, spec.kind} & {*one.tasks.split()} for spec in probe.specs
        ):
            raise rule_error(f"`{name}` needs kinds of probe that {one.needs}", one.key)
        check = one.door("section", "check")
        if check is not None:
            check(settings, experiment)
