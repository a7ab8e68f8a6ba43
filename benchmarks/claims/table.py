"""The page of the simulated claims: a short table of the worst designs, and where each may fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

ALLOWED_SIZE = 0.06


def write_claims(path: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write a Markdown page with a section for each part.

    An existing page keeps its sections of parts that are not in `tables`.
    """
    _, *old = path.read_text().split("\n\n## ") if path.exists() else [""]
    sections = dict(section.rstrip("\n").split("\n", 1) for section in old)
    for part, table in tables.items():
        title, text = SECTIONS[part]
        sections[title] = text(table)
    parts = [
        f"## {title}\n{sections[title]}" for title, _ in SECTIONS.values() if title in sections
    ]
    others = ["## Other simulations", "| command | simulated | figures |\n|---|---|---|"]
    for command, (simulated, page) in OTHERS.items():
        others[-1] += f"\n| `python -m benchmarks.{command}` | {simulated} | [page]({page}.md) |"
    path.write_text("\n\n".join([INTRODUCTION, *parts, *others]) + "\n")


INTRODUCTION = """# Simulated claims

The tests and intervals of the pages, simulated on data without a signal (size, coverage) and with a
planted one (power). The tables are written by

    python -m benchmarks.claims --page docs/claims.md

*Size* is the share of draws in which a test at 5 % rejects a true null hypothesis; *no verdict* is
the share in which there were too few groups for a test. *Coverage* is the share of 95 % intervals
that contain the true value. Sizes of groups are equal (12 rows) or from 2 to 40 rows ("1:20").
"worst" is the largest size, or the smallest coverage, over all designs of a row; Monte Carlo
standard errors are in brackets. Designs whose size may exceed 5.5 % are simulated with five times
as many draws.

From 12 groups on, every balanced design has a verdict. With 5 % positives there is none in draws in
which too few groups contain a positive row: 12 groups of one label each contain 0.6 groups of
positives on average."""

# What further commands simulate, and the page of the documentation with their figures.
OTHERS = {
    "claims.over_folds": ("intervals and differences over folds", "explanation/numbers"),
    "claims.sources": ("intervals over sources that are left out whole", "howto/leave_out"),
    "claims.studies": ("comparisons over data sets, counts of cells", "howto/studies"),
    "claims.left": ("columns that should not be confounds", "howto/confounds"),
    "claims.aggregation": ("rules from token scores to text scores", "howto/probes_and_controls"),
    "claims.stacks": ("stacks, cascades, certainty of directions", "howto/probes_and_controls"),
    "claims.whole": ("sizes through `probekit.probe`", "claims"),
    "monitor_elsewhere": ("a monitor on texts of another generator", "howto/probes_and_controls"),
}


def _sizes(table: pd.DataFrame, by: list[str]) -> str:
    lines = ["", f"| {' | '.join(by)} | worst size | median size | no verdict | power |"]
    lines.append("|---" * (len(by) + 4) + "|")
    for names, rows in table.groupby(by, sort=False):
        worst = rows.loc[rows["rate"].idxmax()]
        values = names if isinstance(names, tuple) else (names,)
        lines.append(
            f"| {' | '.join(map(str, values))} | {worst['rate']:.3f} ({worst['error']:.3f}) | "
            f"{rows['rate'].median():.3f} | {rows['no_verdict'].mean():.2f} | "
            f"{rows['power'].mean():.2f} |"
        )
    n_over = int((table["rate"] - 2 * table["error"] > ALLOWED_SIZE).sum())
    lines += [
        "",
        f"{n_over} of {len(table)} designs reject more than 6 % beyond two standard errors, in "
        f"{table['draws'].min():,} draws or more.",
    ]
    return "\n".join(lines)


def _association(table: pd.DataFrame) -> str:
    return _sizes(table, ["metric", "groups", "labels"])


def _differences(table: pd.DataFrame) -> str:
    return _sizes(table, ["pairing", "groups", "sizes"])


def _folds(table: pd.DataFrame) -> str:
    labels = table["design"].astype(str).str.extract(r"'labels': '(\w+)'")
    table = table.assign(labels=labels)
    return _sizes(table, ["metric", "folds", "C", "labels"])


def _intervals(table: pd.DataFrame) -> str:
    lines = [
        "",
        "| metric | groups | worst, correlation to 0.1 | worst, correlation 0.3 | median width "
        "| draws |",
        "|---|---|---|---|---|---|",
    ]
    for (metric, groups), rows in table.groupby(["metric", "groups"], sort=False):
        low, high = (rows[rows["correlation"] <= 0.1], rows[rows["correlation"] > 0.1])
        lines.append(
            f"| {metric} | {groups} | {low['rate'].min():.3f} | {high['rate'].min():.3f} | "
            f"{rows['width'].median():.2g} | {rows['draws'].min():,} |"
        )
    lines += ["", f"{len(table)} designs."]
    return "\n".join(lines)


def _unlike(table: pd.DataFrame) -> str:
    lines = [
        "",
        "Groups whose number or size depends on the label, a few positive rows in each of 20 "
        "groups, or one outlier row in each group. *Family* is the share of draws in which any of "
        "7 adjusted p-values of equal probes is at most 5 %; *agrees* is the share of differences "
        "whose intervals exclude 0 exactly if their p-values are below 5 %.",
        "",
        "| claim | metric | worst | median | draws | family | agrees | power, least and most |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (claim, metric), rows in table.groupby(["claim", "metric"], sort=False):
        worst = rows.loc[rows["rate"].idxmin() if claim == "coverage" else rows["rate"].idxmax()]
        several = [f"{rows['family'].max():.3f}", f"{rows['agrees'].mean():.3f}"]
        power = f"{rows['power'].min():.2f} to {rows['power'].max():.2f}"
        lines.append(
            f"| {claim} | {metric} | {worst['rate']:.3f} ({worst['error']:.3f}) | "
            f"{rows['rate'].median():.3f} | {rows['draws'].min():,} | "
            f"{' | '.join(several) if claim == 'differences' else ' | '} | "
            f"{'' if claim == 'coverage' else power} |"
        )
    return "\n".join([*lines, "", f"{len(table)} designs."])


def _edges(table: pd.DataFrame) -> str:
    lines = [
        "",
        "*giant label*: 8 of 48 groups have the label, one of them most of its rows, so that their "
        "effective number is 1.2 to 6. *agree*: a cluster of each group has the rare label, or 8 "
        "groups of 2 rows have another label than 60 groups of 30, and most guesses are equal. "
        "*few*: 8 of 24 or 60 groups have the positive label. *bursts*: half of the rows of a "
        "tenth of the groups are positive, and 2 % of the others. *skew*: rivals fail in a tenth "
        "of the groups and are better in the others; *where it is* counts rivals whose failures "
        "are in the data. *giant*: a group has three quarters of the rows. *perfect*: scores "
        "of 0.9 to 0.99 with this correlation of the rows of a group (1: all right or all wrong), "
        "and their differences from a guess that is always wrong, or that ranks nothing. "
        "*absent*: the probe fails in a tenth of the groups; for AUROC, all other rows are right. "
        "With a gain, the rate of a test is its power.",
        "",
        "Limits: a sort of group may be absent (1 - 0.05^(1/N) in N groups: 22 % of 12, 14 % of "
        "20, 7 % of 40, 3 % of 100), so that intervals of 12 groups cover in 90 % if a tenth of "
        "the groups fails, those of AUROC in 20 groups in 85 % if all else is right, and a rival "
        "of seven that fails in such groups is called worse in 28 % of draws (*any of 7*). Rows "
        "that are all right or all wrong together have a coverage of 0.83 near a score of 1. With "
        "most rows of a label in one group (effective number 1.2), any of 7 adjusted p-values is "
        "below 5 % in 7 to 11 % of draws. The association of an AUROC is significant in 14 % of "
        "draws if scores have two values and all groups agree. AUPRCs of different shares of "
        "positives are not comparable.",
        "",
        "| claim | design | metric | gain | folds | rate, least and most | any of 7 | where it is "
        "| width | draws |",
        "|" + "---|" * 10,
    ]
    name = table["design"].where(
        table["design"] != "perfect", "perfect, " + table["correlation"].astype(str)
    )
    is_power = (table["claim"] == "association") & ~table["design"].isin(["agree"])
    gain = table["gain"].where(~is_power, table["level"])
    by = ["claim", "design", "metric", "gain", "folds"]
    for names, rows in table.assign(design=name, gain=gain).groupby(by, sort=False):
        several = [
            f"{rows[column].max():.3f}" if rows[column].notna().any() else ""
            for column in ("family", "there")
        ]
        width = f"{rows['width'].median():.2g}" if rows["width"].notna().any() else ""
        rates = f"{rows['rate'].min():.3f} to {rows['rate'].max():.3f}"
        cells = [*map(str, names), rates, *several, width, f"{rows['draws'].min():,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{len(table)} designs."])


def _false_alarms(table: pd.DataFrame) -> str:
    lines = [
        "",
        "New negatives with an alarm, on average over training sets of 1,200 negatives with 400 or "
        "768 features. *left-out* is the method of the package; *folds* takes thresholds from "
        "cross-validation.",
        "",
        "| kind | features | stated | left-out, least and most | folds, least and most | draws |",
        "|---|---|---|---|---|---|",
    ]
    for (kind, features, stated), rows in table.groupby(["kind", "features", "stated"], sort=False):
        by_method = {name: own["rate"] for name, own in rows.groupby("method")}
        ranges = [
            f"{by_method[name].min():.4f} to {by_method[name].max():.4f}"
            for name in ("left_out", "folds")
        ]
        lines.append(
            f"| {kind} | {features} | {stated} | {' | '.join(ranges)} | {rows['draws'].min()} |"
        )
    error = table.loc[table["stated"] == 0.01, "error"].median()
    return "\n".join([*lines, "", f"Standard errors at 1 % are about {error:.4f}."])


def _monitors(table: pd.DataFrame) -> str:
    lines = [
        "",
        "Share of draws of negatives in which the false positive rate on new groups exceeds the "
        "bound of the threshold; it should be at most 0.05. *groups* is the method of the package; "
        "*rows* treats rows of a group as independent. Scores of a group share half of their "
        "variance (correlated), or a rare kind of group has high scores in all rows (bursts; "
        "large: in four times as many rows). There are as many groups as the rate needs, or three "
        "times as many. *achieved* is the mean rate as a share of the requested one.",
        "",
        "| dependence in groups | requested | groups, least and most | rows, least and most | "
        "achieved, groups | designs | draws |",
        "|---|---|---|---|---|---|---|",
    ]
    for (dependence, fpr), found in table.groupby(["dependence", "fpr"], sort=False):
        rates = [found.loc[found["method"] == name, "rate"] for name in ("groups", "rows")]
        ranges = " | ".join(f"{rate.min():.3f} to {rate.max():.3f}" for rate in rates)
        achieved = found.loc[found["method"] == "groups", "achieved"] / fpr
        lines.append(
            f"| {dependence} | {fpr} | {ranges} | {achieved.min():.2f} to {achieved.max():.2f} | "
            f"{len(achieved)} | {found['draws'].min():,} |"
        )
    return "\n".join(lines)


def _estimates(table: pd.DataFrame) -> str:
    lines = [
        "",
        "*p without cues*: texts of 100, 30 or 12 groups with cues in 3 to 100 % of them; the rate "
        "is the size of p. *Over folds*: ridge probes in 5 or 30 folds of 300 rows, 10 or 20 % of "
        "them positive; *probekit.probe* are whole runs on noise. *Calibration*: logits that are "
        "calibrated or up to twice as large, 50 or 5 % positives, 12 to 100 groups. *Rare class*: "
        "a third class in 1 to 8 of 20 groups. *Heavy tails*: normal labels (kurtosis 3), Laplace "
        "(6), exponential (9) and lognormal ones (114): R² has an interval only where the kurtosis "
        "of the labels is at most 4.5. Samples of heavy tails that keep one lack the rare labels, "
        "and no statistic of them shows it. Rates of all but the first are coverage.",
        "",
        "| claim | design | least and most rate | mean error, least and most | without interval | "
        "median width | power | draws |",
        "|---|---|---|---|---|---|---|---|",
    ]
    designs = {"over folds": "folds", "over folds, probekit.probe": "folds", "rare class": "share"}
    for (claim, metric), found in table.groupby(["claim", "metric"], sort=False):
        by = designs.get(claim, "share" if "cues" in claim else "level")
        for value, rows in found.groupby(by):
            ends = [f"{rows['rate'].min():.3f} to {rows['rate'].max():.3f}", ""]
            if rows["rate"].isna().all():
                ends[0] = ""
            if rows["bias"].notna().any():
                ends[1] = f"{rows['bias'].min():+.3f} to {rows['bias'].max():+.3f}"
            width = f"{rows['width'].median():.2g}" if rows["width"].notna().any() else ""
            power = f"{rows['power'].min():.2f}" if rows["power"].notna().any() else ""
            lines.append(
                f"| {claim}, {metric} | {by} {value:g} | {ends[0]} | {ends[1]} | "
                f"{rows['no_verdict'].mean():.2f} | {width} | {power} | {rows['draws'].min():,} |"
            )
    return "\n".join(lines)


def _left(table: pd.DataFrame) -> str:
    lines = [
        "",
        "`confounds`: p of what the probe adds to columns of the data, and its gain in bits. The "
        "label depends on z as a line, a parabola, a product of two columns or a category; "
        "activations contain z, and with *extra* a direction of this strength relative to z. "
        "Groups of 6 rows have one label each (constant) or several. *left*: share of draws with "
        "p < 0.05; *gain > 0*: whose interval of the bits is above 0; *coverage*: whose interval "
        "contains the gain on new rows.",
        "",
        "| groups | labels | z | extra | data | left | gain > 0 | mean gain | true gain "
        "| coverage |",
        "|---" * 10 + "|",
    ]
    for _, row in table.iterrows():
        kind = {0: "numbers", 2: ""}.get(row["classes"], f"{row['classes']} classes")
        others = [
            kind,
            "" if row["sizes"] == "equal" else f"sizes {row['sizes']}",
            "" if row["positives"] == 0.5 else f"{row['positives']:.0%} positive",
            "" if row["features"] == 64 else f"{row['features']} features",
            "" if row["is_nested"] else "one test set",
        ]
        of_bits = ["–"] * 4
        if row["classes"]:
            of_bits = [f"{row['bits_rate']:.2f}", f"{row['gain']:.3f}", f"{row['true']:.3f}"]
            of_bits.append(f"{row['coverage']:.2f}")
        cells = [row["groups"], row["labels"], row["shape"], row["extra"]]
        cells += [", ".join(filter(None, others)), f"{row['rate']:.2f} ({row['error']:.2f})"]
        lines.append(f"| {' | '.join(map(str, [*cells, *of_bits]))} |")
    nothing = table[table["extra"] == 0]
    lines += [
        "",
        f"With nothing left, the test rejects in {nothing['rate'].mean():.3f} of all draws, in at "
        f"most {nothing['rate'].max():.2f} of a row; {table['draws'].min()} draws a row.",
    ]
    return "\n".join(lines)


def _strata(table: pd.DataFrame) -> str:
    lines = [
        "",
        "`left.csv`: p of the selected probe within each value of a category, which the label "
        "depends on. Groups have several labels and values, several labels and one value, one "
        "label and several values, or one of both. With *effect* 1 the activations have a "
        "direction of the label. *t*: share of draws with p < 0.05 by t over groups; *exchange*: "
        "by exchanged labels in each group and value (not used: it rejects too often where groups "
        "of one label have several values).",
        "",
        "| groups | rows of a group | metric | effect | data | t | exchange |",
        "|---" * 7 + "|",
    ]
    names = {"several": "several labels and values", "labels": "several labels, one value"}
    names |= {"strata": "one label, several values", "one": "one label, one value"}
    for _, row in table.iterrows():
        data = ["" if row["sizes"] == "equal" else f"sizes {row['sizes']}"]
        data += ["five folds"] * bool(row["is_nested"])
        cells = [row["groups"], names[row["design"]], row["metric"], f"{row['effect']:g}"]
        cells += [", ".join(filter(None, data)), f"{row['rate']:.3f} ({row['error']:.3f})"]
        lines.append(f"| {' | '.join(map(str, cells))} | {row['exchange']:.3f} |")
    nothing = table[table["effect"] == 0]
    lines += [
        "",
        f"Without an effect t rejects in {nothing['rate'].mean():.3f} of all draws, in at most "
        f"{nothing['rate'].max():.3f} of a row; {table['draws'].min()} draws a row.",
    ]
    return "\n".join(lines)


def _unasked(table: pd.DataFrame) -> str:
    lines = [
        "",
        "Columns that an experiment does not use: normal and lognormal numbers, counts, categories "
        "of rows and of groups. A warning needs p < 0.05, adjusted by Holm, and an AUROC of 0.60 "
        "of the column alone. Without a relation any warning is false; otherwise the label depends "
        "on the first column in a line, a parabola or by category. *warning*: share of draws with "
        "one; *p < 0.05*: without the condition on AUROC.",
        "",
        "| groups | labels of a group | relation | columns | data | warning | p < 0.05 |",
        "|---" * 7 + "|",
    ]
    for _, row in table.iterrows():
        data = [{0: "numbers", 2: ""}.get(row["classes"], f"{row['classes']} classes")]
        data += ["" if row["sizes"] == "equal" else f"sizes {row['sizes']}"]
        data += ["" if row["positives"] == 0.5 else f"{row['positives']:.0%} positive"]
        labels = "several" if row["labels"] == "mixed" else "one"
        cells = [row["groups"], labels, row["relation"], row["columns"]]
        cells += [", ".join(filter(None, data)), f"{row['rate']:.3f} ({row['error']:.3f})"]
        lines.append(f"| {' | '.join(map(str, cells))} | {row['tested']:.3f} |")
    false = table[table["relation"] == "none"]
    lines += [
        "",
        f"False warnings in {false['rate'].mean():.3f} of all draws, in at most "
        f"{false['rate'].max():.3f} of a row; {table['draws'].min()} draws a row.",
    ]
    return "\n".join(lines)


def _outputs(table: pd.DataFrame) -> str:
    lines = [
        "",
        "Runs of `probekit.probe` whose confounds are the numbers of the output. The label depends "
        "on the entropy as a line or a parabola in its log odds, or is whether the entropy exceeds "
        "its median (without noise). Activations contain the entropy as a square, a sine, a step "
        "and a hinge, and with *extra* a direction that is independent of it, of this strength "
        "relative to it. *left* and *gain > 0* as above; *coverage*: draws whose interval contains "
        "the mean gain of all draws, which is not that of the fitted probe, as above: where the "
        "penalty switches the probe off, its gain is 0. *better*: draws in which the run states "
        "that the probe is better than the baseline `output`.",
        "",
        "| groups | labels | entropy | extra | left | gain > 0 | mean gain | coverage | better |",
        "|---" * 9 + "|",
    ]
    for _, row in table.iterrows():
        cells = [row["groups"], row["labels"], row["shape"], row["extra"]]
        cells += [f"{row['rate']:.3f} ({row['error']:.3f})", f"{row['bits_rate']:.2f}"]
        cells += [f"{row['gain']:.3f}", f"{row['coverage']:.2f}", f"{row['better']:.2f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    nothing = table[table["extra"] == 0]
    lines += [
        "",
        f"With nothing left, the test rejects in {nothing['rate'].mean():.3f} of all draws, in at "
        f"most {nothing['rate'].max():.3f} of a row; {table['draws'].min()} draws a row.",
    ]
    return "\n".join(lines)


SECTIONS = {
    "association": ("p-values of association, one test set", _association),
    "differences": ("p-values of differences", _differences),
    "intervals": ("Coverage of 95 % intervals", _intervals),
    "unlike": ("Groups that are few, unlike or skewed", _unlike),
    "edges": ("Few unlike groups, agreement, skew, perfect scores", _edges),
    "folds": (
        "p-values of association, probes fitted in each draw (folds = 1: a single split)",
        _folds,
    ),
    "false_alarms": ("False positive rates of thresholds", _false_alarms),
    "monitors": ("Thresholds of monitors", _monitors),
    "left": ("What a probe adds to confounds", _left),
    "strata": ("A probe within the values of a category", _strata),
    "unasked": ("Columns that an experiment does not use", _unasked),
    "outputs": ("What a probe adds to the network's own confidence", _outputs),
    "estimates": ("Cues, folds, calibration, rare classes and heavy tails", _estimates),
}
