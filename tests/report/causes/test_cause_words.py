"""The answer of interventions in one sentence, and the table of verdicts."""

import math

import pandas as pd
import pytest

from probekit.report.causes import cause_words
from probekit.results.causes import CauseTables
from tests.results.causes.made_causes import (
    attention,
    every_table,
    make_effects,
    make_facts,
    make_verdicts,
    one_head,
    residual,
    verdict_rows,
    write_causes,
)

EFFECTS, USED = make_effects(), make_verdicts(used=(3,))
SMALL = USED["question"].isin(["steers", "silences", "swap"])
NUMBERS = ["effect", "low", "high"]


AGAINST = {"effect": -0.4, "low": -0.5, "high": -0.3}


def verdicts(*rows):
    return pd.DataFrame([one for group in rows for one in group])


def undecided(layer, reason):
    return verdict_rows(residual(layer), "yes undecided no", reason=reason)


ANSWERS = {
    "used, with its effects": every_table(verdicts=USED),
    "patches: the block of the transition, and the strongest other site": {"effects": EFFECTS},
    "patches of each token: the tokens by block": {"effects": EFFECTS[EFFECTS["at"] == "each"]},
    "ablations: the unit of the measure": {"effects": EFFECTS[EFFECTS["do"] == "ablate"]},
    "a significant but small use": {
        "verdicts": USED.assign(
            **{name: USED[name].mask(SMALL, USED[name] * 0.05) for name in NUMBERS}
        )
    },
    **{
        name: {"verdicts": verdicts(verdict_rows(residual(3), answers, **others)[:n])}
        for name, answers, n, others in (
            ("an effect above that of the whole vector", "yes yes yes", 4, {"exceeds_whole": True}),
            ("controls that move as much", "yes undecided undecided", 4, {"low": 0.05}),
            ("an effect against the label", "yes undecided no", 4, AGAINST),
            ("steering alone", "yes no no", 2, {}),
        )
    },
    "a use that the number of sites explains": {"verdicts": USED.assign(p_best=0.3)},
    "an undecided use with its reason": {"verdicts": verdicts(undecided(0, "few draws"))},
    "the most frequent reason": {
        "verdicts": verdicts(
            *(undecided(n, "few draws") for n in range(3)), undecided(3, "few groups")
        )
    },
    "the direction with both uses precedes the one with one": {
        "verdicts": verdicts(
            verdict_rows(residual(1), "yes yes undecided"),
            verdict_rows(one_head(2, 3), "yes yes yes"),
        )
    },
    **{
        f"one direction: {answers}": {"verdicts": verdicts(verdict_rows(residual(3), answers))}
        for answers in ("yes no no", "no no no", "yes undecided no", "undecided no no", "no yes no")
    },
    "no defined effect": {"effects": make_effects(2).assign(effect=math.nan)},
    "infinite effects": {"effects": make_effects(2).assign(effect=math.inf)},
    "an undefined effect of a direction": {
        "verdicts": verdicts(
            verdict_rows(residual(3), "undecided undecided undecided", effect=math.nan)
        )
    },
    "the strongest patch, without one at the site": {
        "verdicts": verdicts(verdict_rows(attention(0), along="leace", at="all")),
        "effects": EFFECTS,
    },
    "the probed position in words": {
        "facts": make_facts(position="word:last-1"),
        "verdicts": make_verdicts(),
    },
}
TABLES = {
    "answer, effect, interval and adjusted p": verdict_rows(residual(3), "yes undecided no"),
    "methods and tokens if they differ": [
        *verdict_rows(residual(3)),
        *verdict_rows(residual(3), along="leace", at="all"),
    ],
    "flags of a direction": [
        *verdict_rows(one_head(2, 1), "yes yes yes", exceeds_whole=True, kernel_share=0.8),
        *verdict_rows(residual(0), "yes yes no", effect=-0.4, low=-0.5, high=-0.3),
    ],
    "the reason of an undefined effect": verdict_rows(
        residual(0),
        "undecided undecided undecided",
        reason="too few groups",
        **dict.fromkeys((*NUMBERS, "p", "p_holm")),
    ),
    "the range of permuted labels of an undecided effect above 0": verdict_rows(
        residual(0),
        "yes undecided undecided",
        reason="p is above 0.05",
        **{"effect": 0.13, "low": 0.12, "high": 0.14, "null_low": -0.2, "null_high": 0.21},
    ),
    "an empty cell of a question without a row": [
        *verdict_rows(residual(0)),
        *verdict_rows(residual(1))[:3],
    ],
}


def table_of(folder, rows):
    tables = CauseTables.open(write_causes(folder, verdicts=pd.DataFrame(rows)))
    return cause_words.verdict_table(tables.verdict.directions)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_answer(name, tmp_path, snapshot):
    tables = CauseTables.open(write_causes(tmp_path, **ANSWERS[name]))
    assert f"{cause_words.cause_answer(tables)}\n{cause_words.cause_detail(tables)}" == snapshot


@pytest.mark.parametrize("name", TABLES)
def test_the_table_has(name, tmp_path, snapshot):
    table = table_of(tmp_path, TABLES[name])
    lines = [*table.columns, *(cell for row in table.rows for cell in row)]
    assert "\n".join(map(str, lines)) == snapshot


def test_of_many_directions_those_that_are_used_come_first(tmp_path):
    table = table_of(tmp_path, make_verdicts(48, used=(40, 41)).to_dict("records"))
    assert len(table.rows) == 48
    assert [row[0].text[-8:] for row in table.rows[:2]] == ["block 40", "block 41"]
