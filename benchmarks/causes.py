"""Sizes and power of the verdicts on a direction, by simulation.

    python -m benchmarks.causes --quick
    python -m benchmarks.causes --folder claims --draws 1000

Networks are random. The direction is read and edited at position 2 of the embeddings, and the
answers are read at position 3. Cases:

    random     the features at position 2 do not depend on the label, but the answers do, through
               position 0: every "yes" is false
    unused     the label can be decoded at position 2, along an axis that no weight reads, and is
               used at position 0: "steers" and "silences" of "yes" are false
    planted    the label is read at position 2 only: "yes" is right

Each case is a row of causes.csv in the folder; cases that it already has are not simulated again.
A rate is the share of the draws with the verdict "yes" at 5 %, after Holm's adjustment; the rates
`p_...` are those of an unadjusted p-value of at most 0.05.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from benchmarks.claims.rates import simulate
from probekit.data.splits import Split
from probekit.interventions.causes import CauseData, CauseSettings, causal_test
from probekit.interventions.measures import AnswerMeasure
from probekit.interventions.names import Along
from probekit.interventions.verdicts import CauseResult
from probekit.model.families.gpt2 import GPT2, GPT2Config
from probekit.model.passes.inputs import TokenBatch
from probekit.model.sites.sites import SiteSelection

PERMUTATIONS = 99
PER_GROUP, MANY_GROUPS = 4, 400
WIDTH, N_POS, N_NOISE = 64, 4, 300
EDITED, USED = 2, 0  # positions
LABELS, NO = 2 * N_NOISE, 2 * N_NOISE + 2  # first ids of the label tokens and of the answers
SIZE = 1e-2  # of the residual stream; with the epsilon, layer norms are linear
SITE = SiteSelection("blocks.0.hook_resid_pre")


@dataclass(frozen=True)
class Case:
    """One simulated setting.

    Attributes:
        truth: random, unused or planted; see the module.
        along: method of the directions.
        groups: number of groups of texts.
        labels: whether each group has one label ("constant") or both ("mixed").
        folds: number of folds; 1 is a split into halves.
        strength: distance of the label from 0 along its axis, where features have a standard
            deviation of about 1.
    """

    truth: str
    along: Along
    groups: int
    labels: str
    folds: int
    strength: float = 0.0


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for along in get_args(Along):
        for groups, labels in ((40, "constant"), (40, "mixed"), (12, "constant")):
            yield Case("random", along, groups, labels, 1)
        yield Case("random", along, 40, "constant", 2)
        yield Case("unused", along, 40, "constant", 1, 1.0)
        for strength in (0.5, 1.0, 2.0):
            yield Case("planted", along, 40, "constant", 1, strength)


def rows(case: Case, draws: int) -> Iterator[dict[str, Any]]:
    """Yield one row with the rates of a case."""
    settings = CauseSettings(along=case.along, draws=PERMUTATIONS, matched=1)
    found = [causal_test(*drawn(case, seed), SITE, settings) for seed in range(draws)]
    row: dict[str, Any] = {"draws": draws}
    for question in ("detects", "steers", "silences"):
        row[question] = _rate(found, question, "yes")
        row[f"p_{question}"] = np.mean([one.verdict(question).p <= 0.05 for one in found])
        row[f"no_{question}"] = _rate(found, question, "no")
        row[f"untested_{question}"] = np.mean([np.isnan(one.verdict(question).p) for one in found])
    yield row


def _rate(found: list[CauseResult], question: str, answer: str) -> float:
    return float(np.mean([one.verdict(question).answer == answer for one in found]))


def drawn(case: Case, seed: int) -> tuple[GPT2, CauseData]:
    """Return a random network and texts with their labels."""
    generator = np.random.default_rng(seed)
    codes, groups, ids = texts(case, generator)
    with torch.no_grad():
        model = network(case, seed)
        # The answers are read along the effect of the label, as in a trained network.
        many = texts(replace(case, groups=MANY_GROUPS), generator)
        _, cache = model.run_with_cache(many[2], ["ln_final.hook_normalized"])
        final = cache["ln_final.hook_normalized"][:, -1]
        towards = final[many[0] == 1].mean(0) - final[many[0] == 0].mean(0)
        if case.truth == "unused":
            towards -= AXIS * (AXIS @ towards)
        towards = towards / towards.norm() / SIZE
        model.lm_head.weight[NO], model.lm_head.weight[NO + 1] = -towards, towards
    batch = TokenBatch(ids, torch.ones_like(ids, dtype=torch.bool), torch.zeros(*ids.shape, 2))
    answer, wrong = (torch.from_numpy(np.where(codes == code, NO + 1, NO)) for code in (1, 0))
    half = groups < case.groups // 2
    sides = [np.flatnonzero(half), np.flatnonzero(~half)]
    splits = [Split(*sides), Split(*sides[::-1])][: case.folds]
    at = torch.full((len(codes),), EDITED)
    return model, CauseData(batch, codes, groups, splits, AnswerMeasure(answer, wrong), at=at)


def texts(
    case: Case, generator: np.random.Generator
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], torch.Tensor]:
    """Return labels, groups and token ids; the texts of a group share most of their tokens."""
    n = case.groups * PER_GROUP
    groups = np.repeat(np.arange(case.groups), PER_GROUP)
    constant = generator.permutation(np.arange(case.groups) % 2)[groups]
    codes = constant if case.labels == "constant" else np.arange(n) % 2
    noise = generator.integers(N_NOISE, size=(n, N_POS))
    shared = generator.integers(N_NOISE, size=(case.groups, N_POS))[groups]
    noise = np.where(generator.random((n, N_POS)) < 0.6, shared, noise)
    # Token 2 j + y has the noise j and the label y.
    ids = 2 * noise + generator.integers(2, size=(n, N_POS))
    if case.truth != "random":
        ids[:, EDITED] = 2 * noise[:, EDITED] + codes
    if case.truth != "planted":
        ids[:, USED] = LABELS + codes
    return codes, groups, torch.from_numpy(ids)


AXIS = torch.zeros(WIDTH)
AXIS[0], AXIS[1] = 2**-0.5, -(2**-0.5)


def network(case: Case, seed: int) -> GPT2:
    """Return a random network whose tokens hold noise and, along an axis, a label."""
    config = GPT2Config(
        vocab_size=NO + 2, n_positions=N_POS, n_embd=WIDTH, n_layer=2, n_head=2, n_inner=64,
        tie_word_embeddings=False, layer_norm_epsilon=0.5,
    )  # fmt: skip
    model = GPT2(config).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and name != "wte.weight":
            parameter.copy_(normal(*parameter.shape) / parameter.shape[1] ** 0.5)
    for block in model.h:
        for norm in (block.ln_1, block.ln_2):
            norm.weight.fill_(config.layer_norm_epsilon**0.5 / SIZE)
        block.attn.c_proj.weight.mul_(SIZE)
        block.mlp.c_proj.weight.mul_(SIZE)
    model.ln_f.weight.fill_(config.layer_norm_epsilon**0.5)
    # Features differ in their spread, as activations do.
    spectrum = torch.logspace(0, -0.5, WIDTH)[torch.randperm(WIDTH, generator=generator)]
    noise = normal(N_NOISE, WIDTH) * spectrum
    noise += (normal(N_NOISE) - noise @ AXIS)[:, None] * AXIS
    model.wpe.weight.copy_(SIZE * normal(N_POS, WIDTH))
    for label in (0, 1):
        sign = 2 * label - 1
        model.wte.weight[label : 2 * N_NOISE : 2] = SIZE * (noise + sign * case.strength * AXIS)
        model.wte.weight[LABELS + label] = SIZE * sign * 6 * normal_of(seed)
    if case.truth == "unused":
        for block in model.h:
            for layer in (block.attn.c_attn, block.mlp.c_fc):
                layer.weight.sub_(torch.outer(layer.weight @ AXIS, AXIS))
    return model


def normal_of(seed: int) -> torch.Tensor:
    """Return the direction in which label tokens differ; it has nothing of the label axis."""
    vector = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed + 1_000_000))
    return vector - AXIS * (AXIS @ vector)


def main() -> None:
    """Simulate all cases."""
    parser = argparse.ArgumentParser(description="Simulate sizes and power of causal verdicts.")
    parser.add_argument("--quick", action="store_true", help="20 draws of each case")
    parser.add_argument("--draws", type=int, default=1000, help="number of draws of each case")
    parser.add_argument(
        "--folder", type=Path, default=Path("claims"), help="folder of the CSV file"
    )
    parser.add_argument("--only", help="text that the names of the simulated cases contain")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    own = [case for case in cases() if not chosen.only or chosen.only in str(case)]
    draws = 20 if chosen.quick else chosen.draws
    simulate(chosen.folder / "causes.csv", own, partial(rows, draws=draws))


if __name__ == "__main__":
    main()
