"""Probes, controls and verdicts on networks whose every variable is known: compiled programs.

    python -m benchmarks.compiled                              # prints the tables
    python -m benchmarks.compiled --page docs/compiled.md      # also writes the page

Three programs of tracr (`reverse`, `sort`, `frac_prevs`) are compiled to the weights of a
transformer: `python benchmarks/compiled_weights.py benchmarks/compiled.npz`, in an environment of
its own (tracr-pypi 1.0.0, jax 0.10.2, dm-haiku 0.0.17), writes the committed file. The network here
is the package's OPT without norms; it gives the residual streams of tracr. Each dimension of the
stream has a name, so that two facts are known before any probe, for each label at each site:

    present    the stream at the position determines the label, or is independent of it
    used       the output changes if the dimensions of the variable, at this position, are exchanged
               for those of a text with the other label

A line of the table compares these facts with what the package states: accuracy, p, the control
task, and the verdicts on the direction of a probe. Exits with 1 if one of them contradicts a fact.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

import probekit
from probekit.amounts import LEVEL
from probekit.data.splits import Split
from probekit.interventions import edits
from probekit.interventions.causes import CauseData, CauseSettings, causal_test
from probekit.interventions.directions import Responder, directions_of
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.names import Along
from probekit.interventions.verdicts import CauseResult, why_undecided
from probekit.model.families.opt import OPT, OPTConfig
from probekit.model.layers.modules import LayerNorm
from probekit.model.passes.context import Context
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import Taps
from probekit.model.sites.sites import SiteSelection
from probekit.probes.data import group_folds

WEIGHTS = Path(__file__).with_name("compiled.npz")
WIDTH, VARIANTS, NOISE = 80, 200, 0.1  # of the stream; of a token; of what nothing reads
ROWS, FOLDS, DRAWS, C = 200, 5, 99, 100.0
AGREEMENT = 0.8  # of a label with the output that does not depend on it
CHANGED = 1e-3  # of the output; rounding of tracr's float32 weights is below 1e-5
BOS = "BOS"
METHODS: tuple[Along, ...] = ("probe", "mean_difference")
MAPS = {
    "attn/query": "self_attn.q_proj",
    "attn/key": "self_attn.k_proj",
    "attn/value": "self_attn.v_proj",
    "attn/linear": "self_attn.out_proj",
    "mlp/linear_1": "fc1",
    "mlp/linear_2": "fc2",
}


class NoNorm(LayerNorm):
    """The identity in place of a norm."""

    def forward(self, x: Tensor, tap: Taps) -> Tensor:  # noqa: ARG002
        """Return x, shape [... d_model]."""
        return x


class Compiled(OPT):
    """A compiled transformer: OPT without norms, in a random basis of a wider stream.

    The stream of tracr, one dimension for each value of a variable, is rotated into `WIDTH`
    dimensions; the others have random numbers of each token, which nothing reads. Ids are triples
    of token, position and variant, which differ in these numbers, so that the positions of a text
    may be in any order: the one that is read is the last.

    Attributes:
        tokens: the tokens, in the order of their numbers.
        labels: names of the dimensions of tracr's stream.
        basis: directions of these dimensions, shape [d_model n_dims].
        is_causal: whether no token attends to a later one; otherwise each attends to all.
    """

    tokens: list[str]
    labels: list[str]
    is_causal: bool

    @classmethod
    def of(cls, name: str, path: Path = WEIGHTS) -> Compiled:
        """Return the network of a program; its parameters are frozen."""
        known, rng = arrays_of(name, path), np.random.default_rng(0)
        tokens, places = known["token_embed"], known["pos_embed"]
        (n_layers, n_dims, d_mlp), size = known["mlp/linear_1"].shape, known["attn/query"].shape[2]
        config = OPTConfig(
            vocab_size=len(tokens) * len(places) * VARIANTS, hidden_size=WIDTH, ffn_dim=d_mlp,
            num_hidden_layers=n_layers, num_attention_heads=1,
            max_position_embeddings=len(places), tie_word_embeddings=False,
        )  # fmt: skip
        model = cls(config, seed=None)
        model.tokens, model.labels = known["tokens"].tolist(), known["labels"].tolist()
        model.is_causal = bool(known["is_causal"])
        whole = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
        basis = whole[:, :n_dims]
        model.register_buffer("basis", torch.from_numpy(basis), persistent=False)
        empty = model.state_dict().items()
        state = {key: torch.zeros(one.shape, dtype=torch.float64) for key, one in empty}
        embedded = (tokens[:, None] + places[None]).reshape(-1, 1, n_dims) @ basis.T
        noise = rng.normal(0, NOISE, (len(embedded), VARIANTS, WIDTH - n_dims))
        embedded = embedded + noise @ whole[:, n_dims:].T
        state["decoder.embed_tokens.weight"] += torch.from_numpy(embedded.reshape(-1, WIDTH))
        for theirs, ours in MAPS.items():
            for layer, weight in enumerate(known[theirs].astype(np.float64)):
                # The head is as wide as the stream; scores are divided by the root of its width.
                by = np.sqrt(WIDTH / size) if theirs == "attn/query" else 1.0
                is_output = theirs in ("attn/linear", "mlp/linear_2")
                mapped = basis @ weight.T if is_output else by * weight.T @ basis.T
                place = state[f"decoder.layers.{layer}.{ours}.weight"]
                place[: len(mapped), : mapped.shape[1]] = torch.from_numpy(mapped)
        for number, dim in enumerate(model.dims(name)):  # a logit for each output
            state["lm_head.weight"][number] = model.basis[:, dim]
        model.load_state_dict(state, assign=True)
        for block in model.blocks:
            block.self_attn_layer_norm = block.final_layer_norm = NoNorm(WIDTH, 1.0).double()
        model.decoder["final_layer_norm"] = NoNorm(WIDTH, 1.0).double()
        return model.requires_grad_(False)

    def block_inputs(self, context: Context) -> Sequence[tuple[Tensor | None, tuple[Tensor, ...]]]:
        """Return the visible tokens of each block: all but padding, unless it is causal."""
        if self.is_causal:
            return super().block_inputs(context)
        n_rows, n_new = context.positions.shape
        shape = n_rows, 1, n_new, context.n_before + n_new
        mask = torch.ones(n_rows, shape[-1]) if context.mask is None else context.mask
        return [(mask.bool()[:, None, None].expand(shape), ())] * len(self.blocks)

    def dims(self, *variables: str) -> list[int]:
        """Return the dimensions of variables; `tokens` has one for each token."""
        names = [label.partition(":")[0] for label in self.labels]
        return [dim for dim, name in enumerate(names) if name in variables]

    def batch(self, texts: Sequence[Sequence[str]], read: int | None = None) -> TokenBatch:
        """Return texts with the beginning-of-text token and position `read` at the end.

        Each token has a random variant. Shorter texts are padded on the right.
        """
        n_places, rng = self.config.max_position_embeddings, np.random.default_rng(2)
        ids = torch.zeros(len(texts), 1 + max(map(len, texts)), dtype=torch.int64)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for row, text in enumerate(texts):
            pairs = [
                self.tokens.index(token) * n_places + place
                for place, token in enumerate([BOS, *text])
            ]
            if read is not None:
                pairs.append(pairs.pop(1 + read))
            variants = torch.from_numpy(rng.integers(VARIANTS, size=len(pairs)))
            ids[row, : len(pairs)] = torch.tensor(pairs) * VARIANTS + variants
            mask[row, : len(pairs)] = True
        return TokenBatch(ids, mask, torch.zeros(*ids.shape, 2))


@cache
def arrays_of(name: str, path: Path = WEIGHTS) -> dict[str, NDArray[Any]]:
    """Return the arrays of one program in a file of weights."""
    with np.load(path) as file:
        own = [key for key in file if key.startswith(f"{name}:")]
        return {key.removeprefix(f"{name}:"): file[key] for key in own}


def difference_to_tracr(name: str, path: Path = WEIGHTS) -> float:
    """Return the largest difference of a residual stream from that of tracr, over its inputs."""
    model, known = Compiled.of(name, path), arrays_of(name, path)
    sites = [
        f"blocks.{layer}.hook_resid_{part}"
        for layer in range(model.config.n_layers)
        for part in ("mid", "post")
    ]
    _, found = model.run_with_cache(model.batch(known["inputs"].tolist()), sites)
    streams = torch.stack([found[site] for site in sites], dim=1) @ model.basis
    return float(np.abs(streams.numpy() - known["streams"]).max())


Text = tuple[str, ...]
Drawn = tuple[Text, int]  # a text and its label


class Variable(NamedTuple):
    """A label of texts at one position of a compiled network, and its truth.

    Attributes:
        program: the program.
        name: the variable in words.
        dims: the variables of the stream that are functions of it, in these texts.
        drawn: returns a random text and its label.
        answers: numbers of the two outputs that are compared; the second is that of label 1.
        present: the first site at which it can be decoded; empty if it is at none.
        used: the first and the last site at which the output depends on it; empty if at none.
        read: the position, counted from 0; None for the last one.
    """

    program: str
    name: str
    dims: tuple[str, ...]
    drawn: Callable[[np.random.Generator], Drawn]
    answers: tuple[int, int]
    present: str = ""
    used: tuple[str, ...] = ()
    read: int | None = None

    @property
    def sites(self) -> list[str]:
        """The sites at which the program writes, in the order of the pass."""
        of_program = {
            "reverse": ["0.mid", "0.post", "2.post", "3.mid"],
            "sort": ["0.mid", "0.post", "1.mid"],
            "frac_prevs": ["0.post", "1.mid"],
        }
        return ["0.pre", *of_program[self.program]]


def full(site: str) -> str:
    """Return the name of a site.

    >>> full("0.mid")
    'blocks.0.hook_resid_mid'
    """
    layer, _, part = site.partition(".")
    return f"blocks.{layer}.hook_resid_{part}"


def letters(rng: np.random.Generator, n: int) -> list[str]:
    """Return random tokens of `reverse`."""
    return rng.choice(list("abcdef"), n).tolist()


def agrees(rng: np.random.Generator, label: int) -> int:
    """Return a label that is mostly another one."""
    return label if rng.random() < AGREEMENT else 1 - label


def last_token(rng: np.random.Generator) -> Drawn:
    """Return a text of five letters; the label is its last one, which is the first in reverse."""
    label = int(rng.integers(2))
    return (*letters(rng, 4), "ab"[label]), label


def length(rng: np.random.Generator) -> Drawn:
    """Return a text of four letters that ends with b, or of five (label 1) that ends with a."""
    label = int(rng.integers(2))
    return (*letters(rng, 3 + label), "ba"[label]), label


def first_token(rng: np.random.Generator) -> Drawn:
    """Return a text of five letters; the label is the first, which mostly is the last, too."""
    label = int(rng.integers(2))
    return ("ab"[label], *letters(rng, 3), "ab"[agrees(rng, label)]), label


def middle_token(rng: np.random.Generator) -> Drawn:
    """Return a text of five letters that ends with a or b; the label is the third."""
    label, last = rng.integers(2, size=2).tolist()
    return (*letters(rng, 2), "ab"[label], *letters(rng, 1), "ab"[last]), label


def shuffled(rng: np.random.Generator, numbers: Sequence[int]) -> list[str]:
    """Return numbers as texts, in random order."""
    return [str(one) for one in rng.permutation(numbers)]


def smallest(rng: np.random.Generator) -> Drawn:
    """Return six numbers that begin with 7 or 8; the label is whether the smallest is 1 or 2."""
    label = int(rng.integers(2))
    return (str(rng.integers(7, 9)), *shuffled(rng, [2 - label, 3, 4, 5, 6])), label


def rank(rng: np.random.Generator) -> Drawn:
    """Return numbers that begin with 3; the label is whether one of the others is smaller."""
    label = int(rng.integers(2))
    others = rng.permutation([4, 5, 6, 7, 8])[: 5 - label].tolist()
    return ("3", *shuffled(rng, [*others, *[1] * label])), label


def own_number(rng: np.random.Generator) -> Drawn:
    """Return numbers that begin with 7, or 8 (label 1), for which the smallest mostly is 1."""
    label = int(rng.integers(2))
    return (str(7 + label), *shuffled(rng, [2 - agrees(rng, label), 3, 4, 5, 6])), label


def frequent(rng: np.random.Generator) -> Drawn:
    """Return six letters; x is among the first five at most once, or three times or more."""
    label = int(rng.integers(2))
    count = int(rng.integers(3, 6) if label else rng.integers(2))
    text = ["x"] * count + rng.choice(["y", "z"], 5 - count).tolist()
    return (*rng.permutation(text).tolist(), str(rng.choice(list("xyz")))), label


def own_x(rng: np.random.Generator) -> Drawn:
    """Return six letters; the label is whether the last one is x or y."""
    label = int(rng.integers(2))
    return (*rng.choice(list("xyz"), 5).tolist(), "yx"[label]), label


def own_y(rng: np.random.Generator) -> Drawn:
    """Return six letters; the label is whether the last is y or z, and x mostly frequent with y."""
    label = int(rng.integers(2))
    while True:
        text, is_frequent = frequent(rng)
        if is_frequent == label or rng.random() > AGREEMENT:
            return (*text[:5], "zy"[label]), label


def other_y(rng: np.random.Generator) -> Drawn:
    """Return six letters; the label is whether the first is y or z."""
    label = int(rng.integers(2))
    return ("zy"[label], *rng.choice(list("xyz"), 5).tolist()), label


VARIABLES = (
    Variable(
        "reverse", "output: the last token", ("reverse",), last_token, (0, 1),
        "3.mid", ("3.mid", "3.mid"), read=0,
    ),
    Variable(
        "reverse", "length",
        ("length", "length_selector_width_attn_output", "opp_idx", "opp_idx-1", "reverse"),
        length, (1, 0), "0.mid", ("0.mid", "3.mid"), read=0,
    ),
    Variable("reverse", "own token", ("tokens",), first_token, (0, 1), "0.pre", read=0),
    Variable("reverse", "third token", (), middle_token, (0, 1), read=0),
    Variable(
        "sort", "output: the smallest", ("sort",), smallest, (1, 0),
        "1.mid", ("1.mid", "1.mid"), read=0,
    ),
    Variable(
        "sort", "own rank", ("target_pos", "target_pos_selector_width_attn_output", "sort"),
        rank, (2, 0), "0.mid", ("0.mid", "1.mid"), read=0,
    ),
    Variable("sort", "own token", ("tokens",), own_number, (1, 0), "0.pre", read=0),
    Variable(
        "frac_prevs", "x among earlier tokens", ("frac_prevs",), frequent, (1, 0),
        "1.mid", ("1.mid", "1.mid"),
    ),
    Variable(
        "frac_prevs", "own token x or y", ("tokens", "is_x"), own_x, (1, 0),
        "0.pre", ("0.pre", "0.post"),
    ),
    Variable("frac_prevs", "own token y or z", ("tokens",), own_y, (1, 0), "0.pre"),
    Variable("frac_prevs", "first token y or z", (), other_y, (1, 0)),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """The texts of a variable, and the network."""

    variable: Variable
    model: Compiled
    texts: list[Text]
    codes: NDArray[np.int64]

    @classmethod
    def of(cls, variable: Variable, seed: int = 0) -> Case:
        """Return distinct random texts, equally many of both labels."""
        rng, texts = np.random.default_rng(seed), dict[Text, int]()
        while len(texts) < ROWS:
            text, label = variable.drawn(rng)
            if list(texts.values()).count(label) < ROWS // 2:
                texts.setdefault(text, label)
        return cls(variable, Compiled.of(variable.program), [*texts], np.array([*texts.values()]))

    @cached_property
    def batch(self) -> TokenBatch:
        """The texts as tokens; the position that is read is the last."""
        return self.model.batch(self.texts, self.variable.read)

    @cached_property
    def last(self) -> Tensor:
        """The position of each text that is read."""
        return self.batch.mask.sum(1) - 1

    def towards(self, logits: Tensor) -> NDArray[np.float64]:
        """Return the logit of the answer of label 1 minus that of label 0, (n_rows,)."""
        at = logits[torch.arange(len(logits)), self.last]
        other, one = self.variable.answers
        found: NDArray[np.float64] = (at[:, one] - at[:, other]).numpy()
        return found


def change_of_variable(case: Case, site: str) -> float:
    """Return the largest change of the output if a variable is exchanged for that of other texts.

    Each text gets the dimensions of a random text with the other label, at the position read.
    """
    model, dims = case.model, case.model.dims(*case.variable.dims)
    batch, rows = case.batch, torch.arange(len(case.codes))
    logits, cache = model.run_with_cache(batch, [full(site)])
    stream, rng = cache[full(site)].clone(), np.random.default_rng(1)
    donor = np.array([rng.choice(np.flatnonzero(case.codes != code)) for code in case.codes])
    own = stream[rows, case.last]
    change = (own[torch.from_numpy(donor)] - own) @ model.basis[:, dims]
    stream[rows, case.last] += change @ model.basis[:, dims].T
    edit = edits.replace(stream, at=case.last)
    edited = edits.run_edited(model, batch, [(SiteSelection(full(site)), edit)])
    return float(np.abs(case.towards(edited) - case.towards(logits)).max())


@dataclass(frozen=True, eq=False)
class Line:
    """The truth of a variable at a site, and what the package states.

    Attributes:
        changed: see `change_of_variable`.
        accuracy: accuracy over folds with its interval, and the adjusted p.
        causes: the verdicts on directions, by method.
        shortcut: largest difference of the output after an erasure from that of a whole pass.
    """

    variable: Variable
    site: str
    changed: float
    accuracy: tuple[float, float, float, float]
    causes: dict[Along, CauseResult]
    shortcut: float

    @property
    def is_present(self) -> bool:
        """Whether the stream determines the label."""
        first, sites = self.variable.present, self.variable.sites
        return bool(first) and sites.index(self.site) >= sites.index(first)

    @property
    def is_used(self) -> bool | None:
        """Whether the output depends on the variable at this site.

        None if the output is there, and agrees with the label without being a function of it: a
        direction that separates the labels has a part of the output.
        """
        sites, at = self.variable.sites, self.variable.sites.index(self.site)
        ends = [sites.index(one) for one in self.variable.used]
        if ends and ends[0] <= at <= ends[1]:
            return True
        is_written = at == len(sites) - 1
        return None if is_written and self.variable.present and ends[1:] != [at] else False

    def answers(self, along: Along) -> list[str]:
        """Return the answers to "steers" and "silences"; an artefact is marked."""
        found = [self.causes[along].verdict(question) for question in ("steers", "silences")]
        marks = [" (artefact)" if "artefact" in why_undecided(one) else "" for one in found]
        return [f"{one.answer}{mark}" for one, mark in zip(found, marks, strict=True)]

    @property
    def contradictions(self) -> list[str]:
        """What the package states against the truth."""
        value, low, high, p = self.accuracy
        found, where = list[str](), f"{self.variable.program}, {self.variable.name}, {self.site}"
        if self.is_present and (value < 1 or p >= LEVEL):
            found.append(f"{where}: accuracy {value:.3f}, p {p:.2g}, but it can be decoded")
        if not self.is_present and not low <= 0.5 <= high:
            found.append(f"{where}: accuracy {value:.3f}, but it cannot be decoded")
        if (self.changed > CHANGED) != bool(self.is_used):
            found.append(f"{where}: exchange changes the output by {self.changed:.2g}")
        for along in self.causes if self.is_used is not None else ():
            wrong = "no" if self.is_used else "yes"
            answers = self.answers(along)
            if answers == ["no", "no"] if self.is_used else wrong in answers:
                found.append(f"{where}: {along}: {' and '.join(answers)}")
        if self.shortcut > CHANGED:
            found.append(f"{where}: passes from the edited site differ by {self.shortcut:.2g}")
        return found

    @property
    def cells(self) -> list[str]:
        """The cells of its row."""
        value, low, high, p = self.accuracy
        used = {True: "yes", False: "no", None: "–"}[self.is_used]
        cells = [self.variable.program, self.variable.name, full(self.site)]
        cells += ["yes" if self.is_present else "no", f"{value:.3f} [{low:.2f}, {high:.2f}]"]
        cells += [f"{p:.3f}", used, f"{self.changed:.3f}"]
        return cells + [", ".join(self.answers(along)) for along in self.causes]


def lines_of(case: Case) -> Iterator[Line]:
    """Yield a line for each site."""
    variable, model, batch = case.variable, case.model, case.batch
    sites, last, n = variable.sites, case.last, len(case.codes)
    _, cache = model.run_with_cache(batch, [full(site) for site in sites])
    layers = {full(site): cache[full(site)][torch.arange(n), last].numpy() for site in sites}
    own = [text[-1 if variable.read is None else variable.read] for text in case.texts]
    with tempfile.TemporaryDirectory() as folder:
        result = probekit.probe(
            layers, case.codes, tokens=own, split={"folds": FOLDS}, probe={"C": [C]},
            out=folder, page=False, progress=False,
        )  # fmt: skip
        table = pd.read_csv(Path(result.folder) / "results.csv")
    table = table[(table["target"] == "task") & (table["split"] == "test")].set_index("site")
    answers = np.array(variable.answers)
    ids = [torch.from_numpy(answers[one]) for one in (case.codes, 1 - case.codes)]
    folds = group_folds(case.codes, np.arange(n), FOLDS, 0)
    splits = [Split(*map(np.flatnonzero, (folds != k, folds == k))) for k in range(FOLDS)]
    measure = AnswerMeasure(*ids)
    data = CauseData(batch, case.codes, np.arange(n), splits, measure, at=last, measured=last)
    for site in sites:
        selection, of_site = SiteSelection(full(site)), table.loc[full(site)]
        value = of_site[of_site["metric"] == "accuracy"].iloc[0]
        p = of_site[of_site["metric"] == "p_holm"]["value"].iloc[0]
        direction = directions_of("probe", layers[full(site)], case.codes[None])
        responder = Responder(model, batch, selection, last, measure, last)
        short = responder.erased(direction)[:, 0] * np.where(case.codes == 1, 1, -1)
        unit, mean = torch.from_numpy(direction.unit[0]), torch.from_numpy(direction.mean)
        erase = edits.Edit(lambda x, _, u=unit, m=mean: x - ((x - m) @ u)[..., None] * u, at=last)
        whole = case.towards(edits.run_edited(model, batch, [(selection, erase)]))
        yield Line(
            variable, site, change_of_variable(case, site),
            (value["value"], value["ci_low"], value["ci_high"], p),
            {
                along: causal_test(
                    model, data, selection,
                    CauseSettings(along=along, draws=DRAWS, matched=9, by=(-2.0, 2.0), C=C),
                )
                for along in METHODS
            },
            float(np.abs(short - whole).max()),
        )  # fmt: skip


HEADER = (
    "program", "label", "site", "decodable", "accuracy [95 %]", "p", "used", "exchange",
    "probe: steers, silences", "mean difference: steers, silences",
)  # fmt: skip
TEXT = """# Networks whose variables are known

Programs that are compiled to the weights of a transformer
([tracr](https://github.com/google-deepmind/tracr), Lindner et al. 2023) have a known name for each
dimension of the residual stream. `python -m benchmarks.compiled --page docs/compiled.md` runs
probes, controls and causal tests of this package on three of them, compares the results with the
programs, and writes this page. The streams equal those of tracr within {difference:.0e}. Each label
has {rows} texts, both values equally often; it is read at one position, over {folds} folds. The
stream is in a random basis of {width} dimensions; those that nothing reads have random numbers of
each token.

- **decodable**: whether the stream at the position determines the label. Accuracy is that of a
  logistic probe (C = {C:g}), p that of permuted labels, adjusted for the sites.
- **used**: whether the output depends on the variable at this site. *Exchange* is the largest
  change of the output when a text gets the dimensions of the variable from a text with the other
  label. "–": the output is at this site, and agrees with the label in most texts without being a
  function of it, so that a direction of the label has a part of the output.
- **steers, silences**: the verdicts on a direction, which is that of a probe or the difference of
  the class means ({draws} permutations). *Artefact*: the direction moves the answers, but the whole
  vector carries nothing to them.

{table}

{summary}

A [verdict](explanation/causes.md) is about a direction, not about a variable. A probe balances
features of unlike size and correlated features, so its direction has parts that do not depend on
the label but that the network reads; along such a part the edit leaves the data. Where the variable
is not used, these are the artefacts. The difference of the class means has no such part. Erasure of
one direction silences a variable only in part if the network has it in several dimensions.
"""


def page_of(lines: Sequence[Line], difference: float) -> str:
    """Return the Markdown page of all lines."""
    table = ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
    table += [f"| {' | '.join(line.cells)} |" for line in lines]
    wrong = [text for line in lines for text in line.contradictions]
    summary = f"{len(wrong)} of {len(lines)} lines contradict the program."
    summary += "".join(f"\n- {text}" for text in wrong)
    settings = {"rows": ROWS, "folds": FOLDS, "width": WIDTH, "C": C, "draws": DRAWS}
    return TEXT.format(table="\n".join(table), summary=summary, difference=difference, **settings)


def main() -> None:
    """Print the table and the contradictions; exit with 1 if there are any."""
    parser = argparse.ArgumentParser(description="Probes of compiled programs.")
    parser.add_argument("--page", type=Path, help="Markdown page to write")
    chosen = parser.parse_args()
    difference = max(difference_to_tracr(one.program) for one in VARIABLES)
    lines = list[Line]()
    for variable in VARIABLES:
        for line in lines_of(Case.of(variable)):
            lines.append(line)
            print(" | ".join(line.cells), *line.contradictions, sep="\n  ", flush=True)
    wrong = [text for line in lines for text in line.contradictions]
    print(f"{len(wrong)} contradictions; difference to tracr {difference:.1e}")
    if chosen.page:
        chosen.page.write_text(page_of(lines, difference), "utf-8")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
