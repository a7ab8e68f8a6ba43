"""Errors planted in activations, and whether `identify` notices them.

    python -m benchmarks.identify [--all]

For a tiny network of every family, or of every configuration of the tests with `--all`, and for
`mini`, in float32, float16 and bfloat16, the table counts the right tensors that are verified and
the wrong ones that are refused. Right are all sites, rounded to the dtype and computed in it, and
the hidden states of transformers, computed in it; wrong are those of `planted`. `diagnosed` counts
the wrong ones whose sentence names the error. `error` is the largest error of a tensor computed in
the dtype, as a multiple of the expected one. The exceptions follow, one in a line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from probekit.analysis.identify import Identified, identify
from probekit.model.families.from_transformers import from_transformers
from probekit.model.families.table import in_dtype, load_model
from probekit.model.network import Network
from probekit.model.sites.catalogue import VERIFIED

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
N_ROWS, N_TOKENS = 32, 8
STEERED = 0.5  # what is added to steered features, in their standard deviations
RESID = "blocks.{}.hook_resid_post"


class Texts(NamedTuple):
    """Token ids with BOS, shape [n_rows n_tokens], and the position of each row.

    There are tokens before and after the position.
    """

    ids: Tensor
    at: Tensor

    @classmethod
    def drawn(cls, network: Network) -> Texts:
        """Return random texts."""
        generator = torch.Generator().manual_seed(0)
        bos, n_vocab = network.config.bos_token_id, network.config.d_vocab
        ids = torch.randint(2, n_vocab, (N_ROWS, N_TOKENS), generator=generator)
        ids[:, 0] = bos if isinstance(bos, int) else 1
        return cls(ids, torch.randint(3, N_TOKENS - 1, (N_ROWS,), generator=generator))

    @property
    def without_bos(self) -> Texts:
        """The texts without BOS."""
        return Texts(self.ids[:, 1:], self.at - 1)

    @property
    def with_bos(self) -> Texts:
        """The texts with one more BOS."""
        return Texts(torch.cat([self.ids[:, :1], self.ids], 1), self.at + 1)

    def moved(self, shift: int) -> Texts:
        """The texts with positions moved."""
        return Texts(self.ids, self.at + shift)

    @torch.inference_mode()
    def rows(self, network: Network) -> dict[str, Tensor]:
        """Return the rows of all sites with one row for each position, in float32."""
        sites = [site for site in network.sites if network.sites.describe(site).axes[1] == "pos"]
        _, cache = network.run_with_cache(self.ids, sites, logits=False)
        every = torch.arange(N_ROWS)
        return {site: cache[site][every, self.at].flatten(1).float() for site in sites}


class Wrong(NamedTuple):
    """Activations that are not those of their name.

    Attributes:
        error: what is wrong.
        name: the given name.
        rows: the activations, shape [n_rows n_features].
        words: what the sentence must contain.
    """

    error: str
    name: str
    rows: Tensor
    words: str


def planted(network: Network, texts: Texts) -> Iterator[Wrong]:
    """Yield activations of a network with a planted error; a name occurs at most twice."""
    values, last = texts.rows(network), RESID.format(network.config.n_layers - 1)
    missing, later, earlier = "one residual connection is missing", "later", "earlier"
    mid = "blocks.0.hook_resid_mid"
    for name, rows, words in (
        (RESID.format(1), "blocks.1.hook_mlp_out", missing),
        ("blocks.2.hook_resid_pre", "blocks.1.hook_attn_out", missing),
        (RESID.format(0), mid, "the output of the MLP is not added"),
    ):
        if rows in values:  # parallel blocks have no stream between attention and MLP
            yield Wrong("sublayer", name, values[rows], words)
    inner = "mlp.hook_post" if "blocks.0.mlp.hook_post" in values else "mlp.hook_router"
    for name, rows, words in (
        (RESID.format(1), RESID.format(2), later),
        (last, RESID.format(network.config.n_layers - 2), earlier),
        (f"blocks.1.{inner}", f"blocks.2.{inner}", later),
        (f"blocks.1.{inner}", f"blocks.0.{inner}", earlier),
    ):
        yield Wrong("layer", name, values[rows], f"one layer {words} than its name")
    for error, other, words in (
        ("BOS dropped", texts.without_bos, "BOS missing"),
        ("BOS added", texts.with_bos, "BOS added"),
        ("position", texts.moved(-1), "one position earlier"),
        ("position", texts.moved(1), "one position later"),
    ):
        name = {"BOS dropped": "attn_out", "BOS added": "mlp_out"}.get(error, "resid_pre")
        name = f"blocks.{2 if words.endswith('later') else 1}.hook_{name}"
        yield Wrong(error, name, other.rows(network)[name], words)
    normed = "ln_final.hook_normalized"
    with torch.inference_mode():
        after = network.final_norm(values[last]).float()
    yield Wrong("final norm", last, after, "after the final norm, not")
    yield Wrong("final norm", normed, values[last], f"{last}, not {normed}")
    name = "blocks.2.hook_attn_out"
    unit = STEERED * values[name].std(0)
    half_of_rows, half_of_features = values[RESID.format(0)].clone(), values[name].clone()
    half_of_rows[::2] += STEERED * half_of_rows.std(0)
    half_of_features[:, ::2] += unit[::2]
    yield Wrong("steered", RESID.format(0), half_of_rows, "only 16 of 32 rows are those of")
    yield Wrong("steered", name, half_of_features, "")
    name = "blocks.1.hook_attn_out"
    yield Wrong("other texts", name, values[name].roll(3, 0), "rows in another order")
    name = "blocks.2.hook_mlp_out"
    yield Wrong("scaled", name, 0.1 * values[name], "times 0.")
    name = "blocks.1.hook_mlp_out"
    yield Wrong("scaled", name, 0.94 * values[name], "times 0.9")
    vector = torch.randn(values[last].shape[1], generator=torch.Generator().manual_seed(0))
    vector *= (values[last] @ vector).std() / vector.square().sum()  # moves its projection by 1 SD
    yield Wrong("steered", last, values[last] + vector, "plus the same vector in every row")
    name = RESID.format(1)
    yield Wrong("mixed", name, 0.98 * values[name] + 0.02 * values[last], "")


def hidden_states(reference: Any, texts: Texts) -> dict[str, Tensor]:
    """Return the hidden states of a model of transformers but the last, which is after the norm."""
    with torch.inference_mode():
        states = reference(texts.ids, output_hidden_states=True).hidden_states[:-1]
    every = torch.arange(N_ROWS)
    return {f"blocks.{n}.hook_resid_pre": x[every, texts.at].float() for n, x in enumerate(states)}


def right(network: Network, texts: Texts, dtype: torch.dtype, reference: Any) -> Mapping[str, Any]:
    """Return rows of sites: rounded to a dtype, computed in it, and computed by transformers."""
    found = {"rounded": texts.rows(network), "computed": texts.rows(in_dtype(network, dtype))}
    if reference is not None:
        found["transformers"] = hidden_states(reference.to(dtype), texts)
    return found


class Outcome(NamedTuple):
    """What `identify` found for a network and a dtype.

    Attributes:
        right: for each right tensor how it was made, its site, its identity, and whether that is
            right.
        wrong: for each wrong tensor the error and the identity.
    """

    right: list[tuple[str, str, Identified, bool]]
    wrong: list[tuple[Wrong, Identified]]


def outcome(network: Network, dtype: torch.dtype, reference: Any = None) -> Outcome:
    """Identify right and wrong tensors, stored in a dtype."""
    texts = Texts.drawn(network)
    exact, made = texts.rows(network), right(network, texts, dtype, reference)
    varied = [site for site, rows in exact.items() if bool((rows != rows[0]).any())]
    rights = {
        f"{kind} {site}": rows[site]
        for kind, rows in made.items()
        for site in varied
        if site in rows
    }
    wrongs = list(planted(in_dtype(network, dtype), texts))
    # A name can be given once in each call.
    rounds: list[dict[str, Wrong]] = []
    for one in wrongs:
        free = next((given for given in rounds if one.name not in given), None)
        if free is None:
            rounds.append(free := {})
        free[one.name] = one
    found: list[tuple[Wrong, Identified]] = []
    verdicts: dict[str, Identified] = {}
    for number, given in enumerate(rounds):
        arrays = {name: one.rows for name, one in given.items()} | ({} if number else rights)
        stored = {name: rows.to(dtype) for name, rows in arrays.items()}
        verdicts = verdicts | (
            of_round := identify(stored, texts.ids.tolist(), network, positions=texts.at.tolist())
        )
        found += [(one, of_round[name]) for name, one in given.items()]
    fine = []
    for name in rights:
        (kind, site), verdict = name.split(" "), verdicts[name]
        is_right = verdict.label == f"{VERIFIED} {verdict.site}"
        is_right = is_right and torch.equal(exact[verdict.site], exact[site])
        fine.append((kind, site, verdict, is_right))
    return Outcome(fine, found)


def networks(*, every: bool) -> Iterator[tuple[str, Network, Any]]:
    """Yield a network of each family, or of every configuration, with transformers' model."""
    from tests.model.families.configurations import CONFIGURATIONS  # imports transformers

    seen: set[Any] = set()
    for row in CONFIGURATIONS:
        reference: Any = row.reference()  # type: ignore[no-untyped-call]
        network = from_transformers(reference)
        kind = type(network), network.config.site_rows
        if every or kind not in seen:
            seen.add(kind)
            yield row.name, network, reference


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Errors planted in activations.")
    parser.add_argument("--all", action="store_true", help="all configurations of the tests")
    every = parser.parse_args().all
    print(
        f"{'network':30} {'dtype':9} {'verified':>9} {'refused':>8} {'diagnosed':>9} {'error':>5}"
    )
    exceptions = []
    for name, network, reference in (*networks(every=every), ("mini", load_model("mini"), None)):
        for dtype_name, dtype in DTYPES.items():
            fine, wrong = outcome(network, dtype, reference)
            verified = sum(is_right for *_, is_right in fine)
            refused = sum(not one.label.startswith(VERIFIED) for _, one in wrong)
            diagnosed = sum(error.words in one.sentence for error, one in wrong)
            error = max(one.error / one.expected for kind, _, one, _ in fine if kind != "rounded")
            verified_of, refused_of = f"{verified}/{len(fine)}", f"{refused}/{len(wrong)}"
            row = f"{name:30} {dtype_name:9} {verified_of:>9} {refused_of:>8}"
            print(f"{row} {diagnosed:>9} {error:5.2f}", flush=True)
            where = f"{name}, {dtype_name}"
            exceptions += [
                f"{where}: {kind} {site}: {one.sentence}" for kind, site, one, ok in fine if not ok
            ]
            exceptions += [
                f"{where}: {error.error}, {error.name}: {one.sentence}"
                for error, one in wrong
                if one.label.startswith(VERIFIED) or error.words not in one.sentence
            ]
    print(*exceptions, sep="\n")


if __name__ == "__main__":
    main()
