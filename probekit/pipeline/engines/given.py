"""Given activations as the source of a run: their rows, and findings about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from probekit.activations.given.formats import ROWS, row_ids
from probekit.activations.given.given import GivenActivations, open_activations
from probekit.activations.store import ActivationStore
from probekit.amounts import counted
from probekit.analysis.identify import identify, integers
from probekit.data.examples import Dataset, Finding, StringArray
from probekit.data.positions import IntArray
from probekit.data.readers import read_dataset
from probekit.data.table import Columns
from probekit.errors import ConfigError, DataError, MissingError, UnknownNameError, nearest
from probekit.experiment.activations import GIVEN_POSITION, ActivationExperiment
from probekit.lazy_rows import Floats, LazyRows
from probekit.model.families.table import load_model
from probekit.model.sites.catalogue import DIFFERS, UNVERIFIED
from probekit.model.sites.sites import SiteConcatenation
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.hub import find_model
from probekit.model.weights.state_dict import digest_weights
from probekit.pipeline.engines.engine import TASK, Activations, Engine
from probekit.pipeline.engines.table import How
from probekit.pipeline.setup.design import ExperimentDesign, PositionRows, Probed
from probekit.pipeline.setup.output import output_of_file
from probekit.pipeline.setup.texts import check_examples, check_sparse
from probekit.provenance import digest_json
from probekit.results.record import ModelFacts, TensorIdentity
from probekit.section import KeyLocation

_LEFT_OUT = "The activations were given, so networks with random weights"
_LACKS_TEXTS = " and baselines that read the texts are left out, which need `texts`"
_LACKS_TOKENS = ", and so are the control task and the word-identity baseline, which need `tokens`"
_LACKS_OUTPUTS = ", and so is the network's own confidence, which needs `outputs`"
_MOST_SITES = 3  # listed in a message
_COMPARED = 32  # rows that are computed again


class ReadTokens(NamedTuple):
    """What the model read for each row that is computed again.

    Attributes:
        rows: number of each row, shape (n_compared,).
        ids: token ids of each.
        at: index of the token of each; -1 is the last.
    """

    rows: IntArray
    ids: Sequence[Sequence[int]]
    at: Sequence[int]

    @classmethod
    def drawn(
        cls,
        model: str,
        bos: bool | None,
        texts: Sequence[str] | None,
        ids: Sequence[Any],
        at: Sequence[Any],
    ) -> ReadTokens:
        """Return the tokens of up to 32 rows.

        Args:
            model: name or folder of the model.
            bos: whether the model read a beginning-of-text token before each text.
            texts: text of each row; None if there are ids.
            ids: token ids of each row, as numbers or as text.
            at: index of the token of each row; empty means the last.

        Raises:
            ConfigError: the vocabulary has no beginning-of-text token.
            MissingError: there is no such model, or it has no vocabulary.
            DataError: ids or an index are not integers; the message names the row.
        """
        find_model(model, "config")  # a missing model is reported before any row is probed
        n = len(ids if texts is None else texts)
        rows = np.sort(np.random.default_rng(0).permutation(n)[:_COMPARED])
        if texts is not None:
            tokenizer = Tokenizer.from_pretrained(model)
            chosen = []
            for row in rows:
                with KeyLocation().at(f"texts[{row}]"):
                    chosen.append(tokenizer.encode(texts[row], bos=bool(bos)).ids.tolist())
        else:
            chosen = [integers(ids[row], f"row {row}") for row in rows]
        places = [integers(at[row], f"row {row}", 1)[0] if len(at) else -1 for row in rows]
        return cls(rows, chosen, places)


@dataclass(frozen=True, eq=False)
class GivenRows(Activations):
    """Arrays of activations.

    Attributes:
        given: the arrays.
        source: name of the model that computed them.
        given_outputs: numbers of its output by name, each (n_rows,); None without them.
    """

    given: GivenActivations
    source: str
    stores: Mapping[str, ActivationStore] = field(default_factory=dict)
    given_outputs: Mapping[str, Floats] | None = None

    def block(self, site: Probed, _position: int = 0, _network: str = TASK) -> LazyRows:
        """Return the rows of a site, shape (n_rows, n_features)."""
        assert not isinstance(site, SiteConcatenation), "given sites are single"
        return self.given.read(site.site)

    def outputs(self, _position: int) -> Mapping[str, Floats] | None:
        """Return the given numbers of the output; None without them."""
        return self.given_outputs

    def probe_facts(self, _position: int) -> dict[str, Any]:
        """Return the fields of `ProbeFacts`.

        Of the model only the name is known: it has no digests, and precision and view are those of
        the rows as they are read.
        """
        facts = {"position": {"at": GIVEN_POSITION}, "bos": False, "model": self.source}
        facts |= {"compute": "float32", "dtype": "float32", "view": "raw"}
        return facts | {"weights": "", "tokenizer": "", "cache": self.given.digest}


@dataclass(frozen=True, eq=False, kw_only=True)
class GivenEngine(Engine):
    """The given activations of an experiment, which need no capture.

    Attributes:
        tokens: word or token of each row; None if they are unknown.
        read: tokens of the rows that are computed again; None if no model is named.
        identities: what the activations of each site are; `unverified` before `open`.
    """

    constants_are_odd = True

    experiment: ActivationExperiment
    activations: GivenRows
    tokens: StringArray | None
    read: ReadTokens | None = None
    identities: Mapping[str, TensorIdentity] = field(default_factory=dict)

    @classmethod
    def prepare(cls, experiment: ActivationExperiment, _how: How) -> GivenEngine:
        """Return the activations and rows in the files of an experiment.

        Raises:
            MissingError: a file or folder does not exist.
            ConfigError: a site, a column or a required key does not exist.
            DataError: the activations or rows cannot be used or split.
        """
        data, columns, settings = experiment.data, experiment.data.columns, experiment.activations
        if data.file is None or data.format is None:
            with experiment.at("data"):
                raise ConfigError(
                    "the key 'data.file' is missing. Give the table with one line for each row of "
                    "the activations, such as {format: csv, file: rows.csv}."
                )
        # A token is the text of a row that has no other.
        token = None if columns.text is None else columns.token
        kept = (experiment.split.leave_out, token, columns.ids, columns.position)
        further = (*kept, *(experiment.confounds or ()))
        values = tuple(dict.fromkeys(name for name in further if name is not None))
        shared = columns.model_dump(include={"label", "group", "id", "split"})
        try:
            path = Path(data.root) / data.file
            # The reader requires a text, which activations need not have.
            text = columns.text or columns.token or columns.label
            named = Columns(text=text, **shared)
            dataset = read_dataset(
                path, format=data.format, columns=named, name=data.name, values=values
            )
            known = dict(dataset.examples[0].values)
            if unknown := [name for name in kept[1:] if name is not None and name not in known]:
                raise UnknownNameError(f"No column {unknown[0]!r}. {nearest(unknown[0], known)}")
        except (ConfigError, MissingError) as error:  # a DataError names the line already
            key = "columns" if isinstance(error, ConfigError) else "file"
            with experiment.at("data", key):
                raise
        with experiment.at("activations", "outputs"):
            outputs = output_of_file(path, data.format, settings.outputs)
        cells = [dict(example.values) for example in dataset.examples]
        words, ids, at = ([row[name] for row in cells] if name else () for name in kept[1:])
        read, texts = None, None if columns.text is None else dataset.column("text").tolist()
        if settings.verify is not None:
            with experiment.at("activations", "verify"):
                own = None if ids else texts
                read = ReadTokens.drawn(settings.verify, settings.bos, own, ids, at)
        tokens = None if columns.token is None else dataset.column("text")
        if token is not None:
            tokens = np.array(words, dtype=object)
        elif tokens is None and texts is None:  # the label was read as text: the id names the row
            examples = tuple(replace(one, text=one.id) for one in dataset.examples)
            dataset = replace(dataset, examples=examples)
        if settings.folder is None:
            with experiment.at("activations"):
                raise ConfigError("the key 'activations.folder' is missing. Give the folder.")
        with experiment.at("activations", "folder"):
            given = open_activations(
                settings.folder, sites=settings.sites, position=settings.position
            )
        how: dict[str, Any] = {"outputs": outputs, "has_texts": texts is not None}
        return given_engine(experiment, dataset, tokens, given, read, **how)

    @property
    def given(self) -> GivenActivations:
        """The arrays."""
        return self.activations.given

    @property
    def n_bytes(self) -> int:
        """Size of the arrays."""
        return self.given.n_bytes

    @property
    def shared_digests(self) -> dict[str, str]:
        """The digest of the activations."""
        return {"activations": self.given.digest}

    def described(self) -> dict[str, Any]:
        """Return the name of the model, as given, and digest and folder of the activations."""
        folder = self.experiment.activations.folder
        return {
            "model": ModelFacts(source=self.experiment.activations.source),
            "digests": {"activations": self.given.digest},
            "seeds": {},
            "caches": {} if folder is None else {TASK: folder},
            "identities": self.identities,
        }

    def identity(self) -> Any:
        """Return the digests of activations, tokens, and the network that they are compared with.

        Raises:
            CheckpointError: a file of the network is damaged.
        """
        tokens = None if self.tokens is None else self.tokens.tolist()
        identity = {"activations": self.given.digest, "tokens": digest_json(tokens)}
        if (outputs := self.activations.given_outputs) is not None:
            identity["outputs"] = digest_json({name: outputs[name].tolist() for name in outputs})
        if self.read is not None:
            with self.experiment.at("activations", "verify"):
                network = load_model(self.experiment.activations.verify or "", in_memory=False)
            identity["read"] = digest_json([self.read.ids, self.read.at])
            identity["verify"] = digest_json([digest_weights(network), network.config.to_json()])
        return identity

    def open(self, _capture: Any) -> Self:
        """Return the source with the identity of each site, and a warning if it has another name.

        Without a model to compare with, all identities are `unverified`.

        Raises:
            ConfigError: the name of the model is not valid.
            MissingError: there is no such model.
            DataError: no tensor of the model has the width of a site, or a token does not exist.
        """
        sites, model = [site.text for site in self.given.sites], self.experiment.activations.verify
        read = self.read
        if read is None or model is None:
            unverified = TensorIdentity(label=UNVERIFIED)
            return replace(self, identities=dict.fromkeys(sites, unverified))
        arrays = {site: self.given.read(site)[read.rows] for site in sites}
        with self.experiment.at("activations", "verify"):
            found = identify(arrays, read.ids, model, positions=read.at, numbers=read.rows.tolist())
        identities = {
            site: TensorIdentity(label=one.label, sentence=one.sentence)
            for site, one in found.items()
        }
        wrong = [f"{site}: {one.sentence}" for site, one in found.items() if one.label == DIFFERS]
        if not wrong:
            return replace(self, identities=identities)
        about_bos = " `bos` states whether texts were read with BOS; token ids contain it."
        bos = about_bos if any("BOS" in one for one in wrong) else ""
        n_more = len(wrong) - _MOST_SITES
        more = f" So are {counted(n_more, 'more site')}." if n_more > 0 else ""
        message = (
            f"The activations are not the tensors of their names, compared with {model}: "
            f"{'. '.join(wrong[:_MOST_SITES])}.{more} Save them again, or name them after the "
            f"tensors that they are.{bos}"
        )
        findings = (Finding("warning", "other-tensor", message), *self.design.findings)
        return replace(self, identities=identities, design=replace(self.design, findings=findings))


def given_engine(
    experiment: ActivationExperiment,
    dataset: Dataset,
    tokens: StringArray | None,
    given: GivenActivations,
    read: ReadTokens | None = None,
    *,
    outputs: Mapping[str, Floats] | None = None,
    has_texts: bool = False,
) -> GivenEngine:
    """Return the engine of activations with their rows.

    Args:
        experiment: the settings.
        dataset: one example for each row, whose text is the one that the network read if it is
            known, else its token, or else the name of the row.
        tokens: word or token of each row; None if they are unknown.
        given: the activations.
        read: tokens of the rows that are computed again; None for none.
        outputs: numbers of the output of the model by name, each (n_rows,); None for none.
        has_texts: whether the texts that the network read are known.

    Raises:
        ConfigError: a site has fewer features than a probe selects, or the words are unknown that
            the split needs.
        DataError: the activations or rows cannot be used or split.
    """
    n_rows = given.n_rows
    if len(dataset) != n_rows:
        raise DataError(
            f"{experiment.data.file or 'labels'} has {counted(len(dataset), 'row')}, but the "
            f"activations have {n_rows:,}. Give one label for each row of the activations, in the "
            "same order."
        )
    folder = experiment.activations.folder
    has_ids = experiment.data.columns.id is not None
    exported = row_ids(Path(folder)) if folder is not None and has_ids else None
    if exported is not None and exported != (ids := dataset.column("id").tolist()):
        # The first row whose ids differ, or which only one of the two has.
        pairs = enumerate(zip_longest(map(repr, ids), map(repr, exported), fillvalue="nothing"))
        row, (own_id, exported_id) = next((row, pair) for row, pair in pairs if len({*pair}) > 1)
        raise DataError(
            f"{dataset.examples[min(row, len(ids) - 1)].where}: the id of row {row} is {own_id}, "
            f"but {exported_id} in {ROWS} of the activations. Bring the rows into the same order."
        )
    check_examples(experiment, dataset)
    widths = given.widths
    check_sparse(experiment, widths)
    if experiment.split.word_disjoint and tokens is None:
        with experiment.at("split", "word_disjoint"):
            raise ConfigError("`word_disjoint` needs the word of each row: give tokens.")
    types = np.zeros(n_rows, np.str_) if tokens is None else tokens.astype(np.str_)
    has_types = tokens is not None
    # Labels of tokens are about these, not about all words of their texts.
    positions = (PositionRows(GIVEN_POSITION, 0, types, types if has_types else None),)
    design = ExperimentDesign.of(
        experiment, dataset, np.arange(n_rows), positions, n_read=n_rows, has_types=has_types,
        has_texts=has_texts, texts_are_rows=has_texts and not has_types,
    )  # fmt: skip
    found = [*_warnings(given, design, experiment.probe.reads == "classes")]
    lacks = " are left out" if has_texts else _LACKS_TEXTS
    lacks += "" if has_types else _LACKS_TOKENS
    lacks += _LACKS_OUTPUTS if outputs is None and "output" in experiment.probe.baselines else ""
    found.append(("left-out", f"{_LEFT_OUT}{lacks}."))
    warnings = (Finding("warning", code, message) for code, message in found)
    design = replace(design, findings=(*design.findings, *warnings))
    return GivenEngine(
        experiment=experiment,
        design=design,
        activations=GivenRows(given, experiment.activations.source, given_outputs=outputs),
        selections=given.sites,
        widths=[widths[site.text] for site in given.sites],
        axis_sizes=given.axis_sizes,
        is_shared=experiment.data.file is not None,
        tokens=tokens,
        read=read,
    )


def _warnings(
    given: GivenActivations, design: ExperimentDesign, has_classes: bool
) -> Iterator[tuple[str, str]]:
    """Yield code and message of warnings about rows.

    The warnings are about rows whose activations are those of another row at all sites, and about
    equal rows with different labels.
    """
    dataset, splits = design.dataset, design.splits
    keys = given.row_keys  # equal rows have equal keys
    same = "have the same activations at all sites as"
    n_across = sum(int(np.isin(keys[split.test], keys[split.train]).sum()) for split in splits)
    if n_across:
        yield (
            "duplicates-across",
            f"{n_across:,} of {sum(len(one.test) for one in splits):,} test rows {same} a training "
            "row, so that memorised rows raise the score. Remove repeated rows, or put them in one "
            "group.",
        )
    sides = {"test": [split.test for split in splits]}
    if len(splits) == 1:  # otherwise each training row is a test row of another fold
        sides = {"train": [splits[0].train], **sides}
    of_fold = " of the same fold" if len(splits) > 1 else ""
    for side, parts in sides.items():
        n_rows = sum(map(len, parts))
        n_repeated = n_rows - sum(len(np.unique(keys[rows])) for rows in parts)
        if n_repeated:
            text = f"rows in {side} {same} an earlier one{of_fold}."
            yield f"duplicates-in-{side}", f"{n_repeated:,} of {n_rows:,} {text}"
    by_key = pd.Series(pd.factorize(dataset.labels)[0]).groupby(keys)
    differ = np.flatnonzero(by_key.transform("nunique") > 1)
    if has_classes and len(differ):
        repeats = dataset.select(differ[keys[differ] == keys[differ[0]]]).examples
        first = repeats[0]
        other = next(example for example in repeats if example.label != first.label)
        yield (
            "contradictions",
            f"{counted(len(np.unique(keys[differ])), 'set')} of rows with the same activations at "
            f"all sites and different labels, such as {first.where} ({first.label}) and "
            f"{other.where} ({other.label}).",
        )
