"""Synthetic tables for pages, in the format of analysis and pipeline."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd

from probekit.results.comparison import COLUMNS, COSINES, SCORES, RunComparison, Transfer
from probekit.results.network import HEAD_TEXTS, PatchedPair
from tests.report.conftest import HOSTILE, row

AUDIT = Path(__file__).with_name("audit.js").read_text("utf-8")
TOKENS = ("The", " keys", "<0xE2>", " שלום", HOSTILE)
SITES = ("blocks.0.hook_resid_pre", *(f"blocks.{layer}.hook_resid_post" for layer in range(3)))
TRAINED_SITES = (
    "blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "blocks.1.hook_resid_pre",
    "blocks.1.hook_resid_post", "blocks.0.hook_mlp_out",
)  # fmt: skip

PLACES = ("blocks.0.hook_resid_pre", "blocks.0.hook_resid_post", "ln_final.hook_normalized")


def lens_rows(tokens=TOKENS, sites=SITES, prompt=1):
    """A lens whose confidence grows by layer; its last site is correct at every second token."""
    rows = []
    n = len(tokens)
    for depth, site in enumerate(sites):
        for position, token in enumerate(tokens):
            following = tokens[position + 1] if position + 1 < n else None
            is_right = depth == len(sites) - 1 and position % 2 == 0 and following is not None
            first = (0.1 + 0.2 * depth, following if is_right else token)
            rows.append(
                {
                    "prompt": prompt, "site": site, "layer": max(depth - 1, 0),
                    "position": position, "token": token, "next_token": following,
                    "next_rank": 1 if is_right else 10 ** min(len(sites) - depth, 9),
                    "next_probability": first[0] if is_right else 0.001,
                    "entropy": 5.0 - depth, "kl": float(len(sites) - 1 - depth),
                    "token_1": first[1], "probability_1": first[0],
                    "token_2": " 👩‍👩‍👧", "probability_2": 0.05,
                }
            )  # fmt: skip
    table = pd.DataFrame(rows)
    last = table["position"] == n - 1
    table["next_rank"] = table["next_rank"].astype("Int64").mask(last)
    table["next_probability"] = table["next_probability"].mask(last)
    return table


def attribution_rows(n_layers=3, n_heads=2):
    """Components with contributions 1, -2, 3, -4, ... in the order of the forward pass."""
    parts = [("embed", None, None), ("pos_embed", None, None)]
    for layer in range(n_layers):
        parts += [("head", layer, head) for head in range(n_heads)]
        parts += [("attn_bias", layer, None), ("mlp", layer, None)]
    parts.append(("final_bias", None, None))
    rows = pd.DataFrame(parts, columns=["part", "layer", "head"])
    values = [(-1.0) ** number * (number + 1) for number in range(len(rows))]
    return rows.astype({"layer": "Int64", "head": "Int64"}).assign(value=values)


def head_rows(n_layers=3, n_heads=4):
    """Scores that differ between all layers and heads; the duplicate-token score is undefined."""
    rows = [
        (score, layer, head, (layer * n_heads + head) / 20 + number / 100)
        for number, score in enumerate(HEAD_TEXTS)
        for layer, head in itertools.product(range(n_layers), range(n_heads))
    ]
    table = pd.DataFrame(rows, columns=["score", "layer", "head", "value"])
    has = table["score"] != "duplicate_token"
    return table.assign(value=table["value"].where(has), sd=np.where(has, 0.01, np.nan), n=10 * has)


def training_rows():
    """Rows of three checkpoints whose scores increase with step and depth."""
    rows = [
        row(site, "task", 0.5 + depth / 20 + step / 1000, split=split)
        | {"run": f"step-{step}", "step": step}
        for step in (100, 0, 10)
        for depth, site in zip((0, 1, 1, 2, 1), TRAINED_SITES, strict=True)
        for split in ("test", "validation")
    ]
    return pd.DataFrame(rows)


def make_comparison(hostile):
    """A comparison of two runs over three sites."""
    rows = [
        {"what": "site", "target": "task", "site_a": site, "site_b": site, "position_a": "last",
         "position_b": "last", "view_a": "raw", "view_b": "raw", "probe_a": probe,
         "probe_b": probe, "metric": "accuracy", "value_a": 0.8, "value_b": 0.6,
         "difference": 0.1 * n, "ci_low": 0.1 * n - 0.15, "ci_high": 0.1 * n + 0.15, "p": 0.01,
         "p_adjusted": 0.04 + n / 50, "holds": n == 0, "n_a": 100, "n_b": 90}
        for n, site in enumerate(PLACES) for probe in ("logistic", "mass_mean")
    ]  # fmt: skip
    absent = {"site_a": None, "site_b": None}
    rows.append(rows[0] | absent | {"what": "baseline", "target": "majority"})
    chosen = {"what": "chosen", "site_b": PLACES[1], "difference": 0.2, "ci_low": 0.05,
              "ci_high": 0.35, "adjusted_low": -0.1, "adjusted_high": 0.5, "p_adjusted": 0.2,
              "holds": False, "n_groups_a": 10, "n_groups_b": 9}  # fmt: skip
    rows.append(rows[0] | chosen)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    settings = {"data.name": (hostile, "b")}
    return RunComparison(hostile, "b", "accuracy", "paired", table, settings, (hostile,))


def make_transfer(hostile):
    """A transfer between three data sets."""
    names = ("short", "a_much_longer_name-of.a.data-set", "third")
    keys = [
        {"model": "mini", "site": site, "position": "last", "view": "raw", "probe": "logistic",
         "train": train, "test": test}
        for site in PLACES for train, test in itertools.product(names, names)
    ]  # fmt: skip
    drawn = np.random.default_rng(0).uniform(0.3, 1, len(keys))
    scores = [
        key | {"metric": "accuracy", "value": value, "ci_low": value - 0.1, "ci_high": value + 0.1,
               "chance": 0.5, "lead_low": value - 0.7, "lead_high": value - 0.3,
               "difference": -0.1, "difference_low": -0.2, "difference_high": 0.0,
               "n_test": 80, "n_groups": 20}
        for key, value in zip(keys, drawn, strict=True)
    ]  # fmt: skip
    cosines = [
        key | {"space": space, "cosine": 0.4, "null_low": -0.1, "null_high": 0.1, "n_null": 10}
        | ({} if key["train"] == key["test"] else {"p": 0.0496, "n_null": 20})
        for space in ("raw", "standardised") for key in keys
    ]  # fmt: skip
    return Transfer(
        names, "mini", pd.DataFrame(scores, columns=list(SCORES)),
        pd.DataFrame(cosines, columns=list(COSINES)), "accuracy",
        (PLACES[1], "logistic"), (hostile,),
    )  # fmt: skip


def patched_pair(estimated=False, n_tokens=4):
    """Patches of two layers of the stream, its attention output and 3 heads; base 2, source 0."""
    clean = ("The", " key", " is", " here", *[" so"] * (n_tokens - 4))
    recoveries = {
        "blocks.0.hook_resid_pre": {1: 1.0},
        "blocks.0.hook_resid_post": {1: 0.75, 2: -0.5},
        "blocks.1.hook_resid_post": {3: 1.0},
        "blocks.0.hook_attn_out": {2: 0.25},
        "blocks.1.hook_attn_out": {},
    }
    rows = [
        patch_row(site, position, own.get(position, 0.0))
        for site, own in recoveries.items()
        for position in range(n_tokens)
    ]
    for number, recovery in enumerate([0.0, 0.125, 0.0, 0.0, -0.25, 0.5]):
        layer, head = divmod(number, 3)
        site = f"blocks.{layer}.attn.hook_z[head={head}]"
        rows.append(patch_row(site, None, recovery, head))
    table = pd.DataFrame(rows).astype({"layer": "Int64", "head": "Int64", "position": "Int64"})
    if estimated:
        table["estimate"] = 0.8 * table["effect"]
        table.loc[table["effect"] == 0, ["edited", "effect", "recovery"]] = np.nan
    return PatchedPair(clean, (clean[0], " keys", *clean[2:]), " is", " are", 2.0, 0.0, table)


def patch_row(site, position, recovery, head=None):
    """A row of `PatchedPair.rows` of a pair with base 2 and source 0."""
    effect = -2.0 * recovery
    return {
        "site": site, "layer": int(site.split(".")[1]), "head": head, "position": position,
        "edited": 2.0 + effect, "effect": effect, "recovery": recovery, "estimate": np.nan,
    }  # fmt: skip
