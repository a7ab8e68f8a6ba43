"""Known circuits of GPT-2 small: values of the literature, measured with probekit.

    python -m benchmarks.known_circuits                # the network of the hub
    python -m benchmarks.known_circuits --model FOLDER

Prints each value with the published one and whether it is within the tolerance; exits with 1 if one
is not. Without the weights it checks nothing, reports this, and exits with 3. The values are those
in the comments of experiments/ioi.yaml and experiments/greater_than.yaml, with their sources.
Heads are layer.head.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from probekit.analysis.logits import logit_attribution
from probekit.errors import MissingError
from probekit.interventions.measures import AnswerMeasure, single_tokens
from probekit.interventions.patching import patch
from probekit.pipeline.look.lenses import HEADS, ModelAndTokenizer
from scripts.prompts import CENTURIES, greater_than

# The prompts of TransformerLens's Exploratory Analysis Demo; {} is the repeated name.
DEMO = (
    ("When John and Mary went to the shops, {} gave the bag to", (" Mary", " John")),
    ("When Tom and James went to the park, {} gave the ball to", (" Tom", " James")),
    ("When Dan and Sid went to the shops, {} gave an apple to", (" Dan", " Sid")),
    ("After Martin and Amy went to the park, {} gave a drink to", (" Martin", " Amy")),
)
NAME_MOVERS, NEGATIVE = {"9.9", "9.6"}, {"10.7", "11.10"}
S_INHIBITION = {"7.3", "7.9", "8.6", "8.10"}
OF_GREATER_THAN = {"5.5", "6.1", "6.9", "7.10", "8.11", "9.1"}
AMONG = 12  # of 144 heads
N_SENTENCES = 32


@dataclass(frozen=True)
class Check:
    """A value of the literature and the measured one."""

    name: str
    published: str
    measured: str
    ok: bool


def checks(network: ModelAndTokenizer) -> Iterator[Check]:
    """Yield all checks, those of the indirect object first."""
    yield from _indirect_object(network)
    yield from _greater_than(network)


def _demo() -> tuple[list[str], list[str], list[str], list[str]]:
    """Return texts, counterfactuals, answers and wrong answers of the 8 prompts."""
    rows = [
        (frame.format(wrong.strip()), frame.format(answer.strip()), answer, wrong)
        for frame, names in DEMO
        for answer, wrong in (names, names[::-1])
    ]
    texts, counterfactuals, answers, wrongs = (list(column) for column in zip(*rows, strict=True))
    return texts, counterfactuals, answers, wrongs


def _indirect_object(network: ModelAndTokenizer) -> Iterator[Check]:
    model, tokenizer = network.model, network.tokenizer
    texts, others, answers, wrongs = _demo()
    clean, corrupt = (tokenizer.batch(some, bos=True, side="left") for some in (texts, others))
    answer, wrong = single_tokens(tokenizer, answers), single_tokens(tokenizer, wrongs)
    measure = AnswerMeasure(answer, wrong)
    heads = patch(model, clean, corrupt, measure, HEADS)
    base = heads[0].base
    yield Check("mean logit difference", "3.55", f"{base:.2f}", abs(base - 3.55) < 0.02)

    totals: dict[str, float] = {}
    for row in range(len(texts)):
        found = logit_attribution(
            model, clean.ids[row][clean.mask[row]], int(answer[row]), minus=int(wrong[row])
        )
        own = found.rows[found.rows["part"] == "head"]
        for layer, head, value in zip(own["layer"], own["head"], own["value"], strict=True):
            totals[f"{layer}.{head}"] = totals.get(f"{layer}.{head}", 0.0) + value / len(texts)
    ranked = sorted(totals, key=lambda name: -totals[name])
    yield _among("name movers, largest direct effects", NAME_MOVERS, ranked[:3])
    yield _among("negative name movers, lowest direct effects", NEGATIVE, ranked[-3:])

    largest = sorted(heads, key=lambda row: -row.recovery)[:AMONG]
    found_heads = [f"{row.layer}.{row.head}" for row in largest]
    yield _among("S-inhibition heads, largest recovery", S_INHIBITION, found_heads)

    last = clean.mask.shape[1] - 1
    repeated = clean.ids != corrupt.ids
    for name, at, layer in (
        ("repeated name after block 2", repeated.int().argmax(1), 2),
        ("last token after block 10", torch.full((len(texts),), last), 10),
    ):
        site = f"blocks.{layer}.hook_resid_post"
        if layer >= model.axis_sizes["n_layers"]:
            yield Check(f"recovery at the {name}", "about 1", "no such block", False)
            continue
        (row,) = patch(model, clean, corrupt, measure, site, at=at)
        recovery = f"{row.recovery:.2f}"
        yield Check(f"recovery at the {name}", "about 1", recovery, row.recovery > 0.8)


def _greater_than(network: ModelAndTokenizer) -> Iterator[Check]:
    model, tokenizer = network.model, network.tokenizer
    rows = greater_than()
    rows = rows[:: max(1, len(rows) // N_SENTENCES)][:N_SENTENCES]
    clean, corrupt = (
        tokenizer.batch([row[name] for row in rows], bos=False, side="left")
        for name in ("text", "counterfactual")
    )
    years = single_tokens(tokenizer, [f"{year:02d}" for year in range(100)])
    with torch.no_grad():
        logits = model(clean.to(model.device))[:, -1].double().cpu()
    probabilities = logits.softmax(-1)[:, years].numpy()
    given = np.array([int(_year(row["text"])) for row in rows])
    later = np.arange(100) > given[:, None]
    difference = float((probabilities * np.where(later, 1, -1)).sum(1).mean())
    yield Check(
        "probability of later years minus that of others",
        "0.817 (not compared with the text of the paper)",
        f"{difference:.3f}",
        abs(difference - 0.817) < 0.08,  # other sentences than in the paper
    )
    answer, wrong = (
        single_tokens(tokenizer, [row[name] for row in rows]) for name in ("answer", "wrong")
    )
    heads = patch(model, clean, corrupt, AnswerMeasure(answer, wrong), HEADS)
    largest = sorted(heads, key=lambda row: -abs(row.effect))[:AMONG]
    named = [f"{row.layer}.{row.head}" for row in largest]
    yield _among("heads of greater-than, largest effects", OF_GREATER_THAN, named)


def _year(text: str) -> str:
    """Return the two digits of the given year.

    >>> _year("The war lasted from the year 1732 to the year 17")
    '32'
    """
    start = text.partition(" to the year ")[0]
    assert any(start[:-2].endswith(str(century)) for century in CENTURIES)
    return start[-2:]


def _among(name: str, expected: set[str], found: Sequence[str]) -> Check:
    listed = ", ".join(sorted(expected, key=lambda head: tuple(map(int, head.split(".")))))
    return Check(name, listed, ", ".join(found), expected <= set(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print all checks and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.known_circuits")
    parser.add_argument("--model", default="gpt2", help="GPT-2 small: a hub name or a folder")
    given = parser.parse_args(arguments)
    try:
        network = ModelAndTokenizer.load(given.model)
    except MissingError as error:
        print(f"NOTHING IS CHECKED: the weights of {given.model} are not there.\n{error}")
        return 3
    wrong = 0
    for check in checks(network):
        wrong += not check.ok
        verdict = "ok" if check.ok else "DIFFERS"
        print(f"{verdict:8}{check.name}: published {check.published}; measured {check.measured}")
    print(f"{wrong} values differ." if wrong else "All values agree.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
