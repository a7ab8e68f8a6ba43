"""Tables of interventions made by formula, in the format of a run's folder."""

import math
from pathlib import Path

import pandas as pd

from probekit.files import csv_text
from probekit.results.causes import DOSES, DOWNSTREAM, EFFECTS, VERDICTS, CausesRecord, LeftOut

TOKENS = ("The", " old", " doctors", " near", " the", " small", " bus")
SAME = (True, True, False, True, True, True, False)
GROUPS = {"n": 432, "groups": 30}
BANDS = {"null_low": -0.06, "null_high": 0.05, "matched_low": -0.12, "matched_high": 0.11}


def residual(layer: int) -> dict:
    return {"site": f"blocks.{layer}.hook_resid_post", "layer": layer, "head": None}


def attention(layer: int) -> dict:
    return {"site": f"blocks.{layer}.hook_attn_out", "layer": layer, "head": None}


def one_head(layer: int, head: int) -> dict:
    return {"site": f"blocks.{layer}.attn.hook_z[head={head}]", "layer": layer, "head": head}


def effect_row(place: dict, share: float, **others) -> dict:
    """A patch that moves this share of the difference of 4 logits."""
    row = {
        "do": "patch", "replacement": "counterfactual", **place, "at": "probed", "position": None,
        "measure": "logit_difference", "unit": "logits", "base": 2.0, "source": -2.0,
        "edited": 2 - 4 * share, "effect": -4 * share, "effect_low": -4 * share - 0.2,
        "effect_high": -4 * share + 0.2, "recovery": share, "recovery_low": share - 0.05,
        "recovery_high": share + 0.05, "interchange": min(max(share, 0), 1),
        "p": 0.001 if abs(share) > 0.05 else 0.4, "p_best": 0.002 if abs(share) > 0.05 else 1.0,
        **GROUPS, "folds": 5,
    }  # fmt: skip
    return row | others


def make_effects(layers=6, heads=4, tokens=TOKENS, measures=("logit_difference",)) -> pd.DataFrame:
    """Patches of residual stream, attention and heads, at the probed token and at each token."""
    rows = []
    for layer in range(layers):
        grown = (layer + 1) / layers
        rows += [effect_row(residual(layer), grown**2), effect_row(attention(layer), 0.3 * grown)]
        rows += [effect_row(residual(layer), 1.0, at="all")]
        rows += [
            effect_row(one_head(layer, head), 0.4 * math.sin(3 * layer + head))
            for head in range(heads)
        ]
        for position in range(len(tokens)):
            last = position == len(tokens) - 1
            share = grown**2 if last else (1 - grown**2) * (position == 2)
            rows.append(effect_row(residual(layer), share, at="each", position=position))
        ablated = {"do": "ablate", "replacement": "mean", "source": None, "interchange": None}
        undefined = dict.fromkeys(("recovery", "recovery_low", "recovery_high"))
        rows.append(effect_row(attention(layer), -0.1 * grown, **ablated, **undefined))
    table = pd.DataFrame(rows, columns=[column.name for column in EFFECTS])
    units = {"logit_difference": "logits", "accuracy": "share", "kl": "nats", "loss": "nats"}
    return pd.concat([table.assign(measure=name, unit=units[name]) for name in measures])


def verdict_rows(place: dict, answers="yes no no", along="probe", at="probed", **others) -> list:
    """The verdicts of one direction on `detects`, `steers` and `silences`, and its swap."""
    effects = {"detects": ("AUROC - 0.5", 0.42), "steers": ("logits per standard deviation", 0.84),
               "silences": ("share", 0.62), "swap": ("recovery", 0.55)}  # fmt: skip
    rows = []
    for (question, (unit, size)), answer in zip(
        effects.items(), [*answers.split(), ""], strict=True
    ):
        is_yes = answer == "yes" or (not answer and "yes yes" in answers)
        effect = size if is_yes else 0.01 if answer == "no" else 0.1
        width = 0.02 if answer in ("yes", "no") else 0.2
        p = 0.001 if is_yes else 0.6
        rows.append(
            {
                **place, "at": at, "along": along, "question": question, "answer": answer,
                "effect": effect, "low": effect - width, "high": effect + width, "unit": unit,
                "p": p, "p_holm": min(1, 3 * p), "p_best": min(1, 8 * p), "whole": 2 * size,
                "exceeds_whole": False, **BANDS, "wrong_way": 0.25, "kernel_share": None,
                "reason": "", "summary": f"Sentence on {place['site']}. Verdicts: {answers}.",
                **GROUPS, "folds": 5, "draws": 999,
            }
            | others
        )  # fmt: skip
    return rows


def make_verdicts(layers=6, used=()) -> pd.DataFrame:
    """Verdicts on the residual stream; the directions in the layers `used` are used."""
    answers = ("yes yes yes" if layer in used else "yes no no" for layer in range(layers))
    rows = [row for n, one in enumerate(answers) for row in verdict_rows(residual(n), one)]
    return pd.DataFrame(rows, columns=[column.name for column in VERDICTS])


def make_doses(layers=6, used=(), along=("probe",)) -> pd.DataFrame:
    """Dose-response curves, with a slope in the layers in `used`."""
    rows = [
        {
            **residual(layer), "at": "probed", "along": method, "by": by,
            "effect": (effect := 0.8 * by * (layer in used) + 0.02 * by),
            "low": effect - 0.1, "high": effect + 0.1,
            **{name: value * abs(by) for name, value in BANDS.items()},
            "other_loss": 0.05 if abs(by) == 4 else None,
            "other_low": 0.03 if abs(by) == 4 else None,
            "other_high": 0.07 if abs(by) == 4 else None, "unit": "logits",
        }
        for method in along for layer in range(layers) for by in (-4.0, -2.0, 2.0, 4.0)
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=[column.name for column in DOSES])


def make_downstream(layers=6, erased=(2,)) -> pd.DataFrame:
    """Probes fitted again after erasure: the information returns layer by layer."""
    rows = []
    for source in erased:
        for layer in range(source, layers):
            before, after = 0.9, 0.5 + 0.08 * (layer - source)
            rows.append(
                {
                    "erased": residual(source)["site"], "along": "leace", "at": "probed",
                    "site": residual(layer)["site"], "layer": layer, "before": before,
                    "before_low": before - 0.03, "before_high": before + 0.03, "after": after,
                    "after_low": after - 0.04, "after_high": after + 0.04, "chance": 0.5, **GROUPS,
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=[column.name for column in DOWNSTREAM])


def make_facts(**others) -> CausesRecord:
    facts = {
        "name": "causes", "question": "Does the network use the number of the subject?",
        "model": "mini", "dataset": "subject_number", "classes": ("singular", "plural"),
        "position": "last", "measures": ("logit_difference",),
        "answers": {"answer": "column verb", "wrong": "column other_verb"}, "tokens": TOKENS,
        "same_tokens": SAME, **GROUPS, "folds": 5, "draws": 999, "seed": 0,
        "left_out": (LeftOut(n=3, reason="Text and counterfactual differ in length: row 4, 9."),),
        "sites": tuple(residual(layer)["site"] for layer in range(6)),
    }  # fmt: skip
    return CausesRecord.model_validate(facts | others)


def write_causes(run_dir: Path, facts: CausesRecord | None = None, **tables) -> Path:
    """Write causes.json and the given tables into the folder of a run, and return the folder."""
    folder = run_dir / "causes"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "causes.json").write_text((facts or make_facts()).model_dump_json(), "utf-8")
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(csv_text(table), "utf-8")
    return run_dir


def every_table(**others) -> dict[str, pd.DataFrame]:
    """All four tables."""
    whole = {"doses": make_doses(), "downstream": make_downstream()}
    return {"effects": make_effects(), "verdicts": make_verdicts()} | whole | others
