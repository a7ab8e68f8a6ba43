"""Page of the patches of one pair of texts: maps by token and head, and the strongest patches."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from probekit.amounts import fixed, format_number, joined_names, signed
from probekit.model.sites.catalogue import describe, layer_of
from probekit.report.elements import page, style, texts
from probekit.report.elements.table import ResultTable
from probekit.report.elements.tokens import HIGH, short_heading
from probekit.report.figures import maps
from probekit.results.network import PatchedPair

CAVEAT = (
    "One pair of texts has no confidence intervals and no p-values: these numbers describe this "
    "pair. `probekit intervene` measures the effects over many pairs, with intervals and controls."
)
METHOD = (
    "Each patch replaces an activation of the clean text by that of the corrupt text, at one "
    "position or, for heads, at all positions, and runs the rest of the network.",
    "Effect: logit difference with the patch minus logit difference of the clean text. Recovery: "
    "effect divided by the logit difference of the corrupt text minus that of the clean text. 0 is "
    "no effect; 1 is the whole difference; a negative value moves away from the corrupt text.",
    "Effects of several patches do not add up, because a patch also acts through later components.",
)
ESTIMATED = (
    "Attribution patching estimates each effect by the gradient of the logit difference times the "
    "change of the activation. Patches with the largest estimates are verified by patching. The "
    "estimate is poor where the network is far from linear, so a patch with a small estimate may "
    "have a large effect."
)
MOST_ROWS = 8  # patches in a table of the strongest
MOST_HEADS = 3  # heads in the answer
MOST_CHARACTERS = 64  # of labels below a map next to a table
MOST_RUNS = 3  # positions in the answer
RESIDUAL, HEADS = "residual stream", "heads"
# Columns that a map of patches can show -> title of its colour bar.
SHOWN = {"recovery": "recovery", "effect": "effect, logits", "estimate": "estimated effect, logits"}
LEAST_REACH = 0.05  # smallest end of a colour scale, so that rounding errors look like 0


def pair_answer(pair: PatchedPair) -> str:
    """Return where patches have the strongest effects, as a sentence.

    Positions are those of one family of sites: of the residual stream, or of the first family if no
    patch of the stream was measured. If heads were patched, the strongest is named, and the
    next ones with at least half of its recovery. If the logit difference is the same after both
    texts, the sentence states only that.
    """
    if not pair.difference:
        return "The logit difference is the same after both texts, so there is nothing to recover."
    rows = pair.of_positions.dropna(subset="recovery")
    families = list(dict.fromkeys(site_family(site) for site in rows["site"]))
    family = RESIDUAL if RESIDUAL in families else families[0]
    of_family = rows[[site_family(site) == family for site in rows["site"]]]
    clauses = [_strongest_positions(pair, of_family, family)]
    heads = pair.strongest(pair.of_heads, MOST_HEADS).to_dict("records")
    if heads:
        heads = [row for row in heads if abs(2 * row["recovery"]) >= abs(heads[0]["recovery"])]
        names = [f"{_name(pair, row)} ({fixed(row['recovery'], 2)})" for row in heads]
        verb = "head is" if len(names) == 1 else "heads are"
        clauses.append(f"the strongest {verb} {joined_names(names)}")
    return f"{'; '.join(clauses)}."


def _strongest_positions(pair: PatchedPair, rows: pd.DataFrame, family: str) -> str:
    """Return the position with the largest absolute recovery at each site, as a clause.

    Consecutive sites with the same position are one run; runs after the first `MOST_RUNS` are only
    counted. Sites without a row do not end a run.

    Args:
        pair: the pair.
        rows: rows of `PatchedPair.of_positions` with a recovery, at least one.
        family: their `site_family`.
    """
    labels = pair_labels(pair.clean, pair.corrupt)
    strongest = [
        max(of_site.to_dict("records"), key=lambda row: abs(row["recovery"]))
        for _, of_site in rows.groupby("site", sort=False)
    ]
    runs = [list(run) for _, run in groupby(strongest, key=lambda row: row["position"])]
    clauses: list[str] = []
    for run in runs[:MOST_RUNS]:
        position, sites = run[0]["position"], [patch_label(row["site"]) for row in run]
        named = [f"layer {site}" if site.isdigit() else site for site in (sites[0], sites[-1])]
        where = f"from {named[0]} to {named[1]}" if len(sites) > 1 else f"at {named[0]}"
        # The lowest and highest recovery of these layers, once if both are written alike.
        values = [row["recovery"] for row in run]
        ends = dict.fromkeys(fixed(one, 2) for one in (min(values), max(values)))
        recovery = ("" if clauses else "recovery ") + " to ".join(ends)
        clauses.append(f"at “{labels[position]}” [{position}] {where} ({recovery})")
    more = f", and {len(runs) - MOST_RUNS} more" if len(runs) > MOST_RUNS else ""
    verified = "verified " * pair.is_estimated
    patches = "patch" if len(strongest) == 1 else "patches"
    verb = "is" if len(strongest) == 1 else "are"
    of = f"{verified}{patches} of {_the(family)} {verb}"
    return f"The strongest {of} {', then '.join(clauses)}{more}"


def _the(family: str) -> str:
    return f"the {family}" if family in (RESIDUAL, HEADS) else family


def pair_detail(pair: PatchedPair) -> str:
    """Return the logit differences after both texts, and `pair_notes`, as sentences."""
    both = [texts.line_label("".join(tokens)) for tokens in (pair.clean, pair.corrupt)]
    clean, corrupt = (short_heading(text, keeps_end=True) for text in both)
    detail = (
        f"Logit of {texts.quote(pair.answer)} minus logit of {texts.quote(pair.wrong)}: "
        f"{signed(pair.base)} after “{clean}” (clean), {signed(pair.source)} after "
        f"“{corrupt}” (corrupt)."
    )
    scale = "Recovery is the share of the way from the first number to the second."
    return " ".join([detail, *([scale] if pair.difference else []), *pair_notes(pair)])


def pair_notes(pair: PatchedPair) -> list[str]:
    """Return sentences about answers that the network does not give, or that lack a space."""
    notes = [
        f"{texts.quote(answer)} has no leading space; {texts.quote(f' {answer}')} is a single "
        "token, too, and begins a new word."
        for answer in pair.unspaced
    ]
    if pair.base <= 0:
        notes.append(
            f"The network does not prefer {texts.quote(pair.answer)} after the clean text."
        )
    if pair.source >= 0:
        notes.append(
            f"The network does not prefer {texts.quote(pair.wrong)} after the corrupt text."
        )
    return notes


def strongest_patches(pair: PatchedPair, rows: pd.DataFrame, n: int = MOST_ROWS) -> ResultTable:
    """Return the table of the n strongest patches among these rows, strongest first.

    Patches that are only estimated are left out.
    """
    return replace(_table(pair, pair.strongest(rows, n), "Strongest patches"), has_title=True)


def _table(pair: PatchedPair, rows: pd.DataFrame, title: str) -> ResultTable:
    """Return a table of patches; with estimates, their column follows the name."""
    estimate = ("estimated effect",) if pair.is_estimated else ()
    columns = ("patch", *estimate, "logit difference", "effect", "recovery")
    cells = []
    for row in rows.to_dict("records"):
        numbers = [signed(row[name]) for name in ("estimate", "edited", "effect")]
        recovery = "–" if pd.isna(row["recovery"]) else fixed(row["recovery"], 2)
        cells.append((_name(pair, row), *numbers[not pair.is_estimated :], recovery))
    return ResultTable(title, columns, cells, is_sortable=True)


def pair_page(pair: PatchedPair, *, model: str, facts: Mapping[str, str]) -> page.Page:
    """Return a page with the maps and tables of the patches of a pair."""
    families = pair.of_positions["site"].map(site_family)
    groups = [*pair.of_positions.groupby(families, sort=False), (HEADS, pair.of_heads)]
    # The entries of the menu of colours, each with its column; the first is open.
    menu = {"recovery": "recovery"} if pair.difference else {}
    menu["effect"] = "effect"
    if pair.is_estimated:
        menu = {"estimated effect": "estimate", "verified effect": "effect"}
    answer, wrong = texts.quote(pair.answer), texts.quote(pair.wrong)
    framed = " Framed: verified by patching." if pair.is_estimated else ""
    parts: dict[str, page.Group] = {}
    for family, rows in groups if len(pair.of_heads) else groups[:-1]:
        heading, named = texts.capitalised(family), _the(family)
        labels: list[str] = []
        if family == HEADS:
            cell = "the output of one head (hook_z) at all tokens."
            height = 8 + 1.9 * rows["layer"].nunique()
            width = 9 + 2.9 * (int(rows["head"].max()) + 1)
        else:
            labels = pair_labels(pair.clean, pair.corrupt)
            cell = (
                f"the {family} at one token, replaced by that of the corrupt text. Arrows: tokens "
                "that differ, clean → corrupt."
            )
            cell_width = max(map(len, labels)) / 2 if _is_narrow(labels) else 2.1
            height, width = 11 + 1.7 * rows["site"].nunique(), 8 + cell_width * len(labels)
        views = {name: patch_map(rows, column, labels) for name, column in menu.items()}
        picture = page.FigurePart(
            f"Effect of patching {named} at {'one token' if labels else 'all tokens'}",
            page.figure_json(next(iter(views.values()))),
            f"Each cell: {cell} Measure: logit of {answer} minus logit of {wrong} after the last "
            f"token; n = 1 pair, no interval.{framed}",
            f"Patches of {named}. Strongest: {_in_words(pair, rows)}",
            height=height,
            width=width,
            views=maps.changes_of(views),
        )
        layout = "split" if family == HEADS or _is_narrow(labels) else "rows"
        parts[heading] = page.Group(layout, [picture, strongest_patches(pair, rows)])
    # The first family is below the answer, without a heading.
    first = parts.pop(next(iter(parts)))
    sections = [page.PageSection("", [first, page.Paragraph(CAVEAT, "note")], "first")]
    sections += [page.PageSection(heading, [group]) for heading, group in parts.items()]
    if pair.is_estimated:
        points = page.FigurePart(
            "Estimated and verified effects",
            page.figure_json(estimate_scatter(pair.rows)),
            "Each point: a verified patch. On the dashed line, estimate and effect are equal.",
            f"Estimated and verified effects. Strongest: {_in_words(pair, pair.rows)}",
            height=24,
            width=20,
        )
        sections.append(page.PageSection(points.title, [points]))
    # Patches that are only estimated have no effect, so that all are ordered by their estimate.
    key = "estimate" if pair.is_estimated else "effect"
    ordered = pair.rows.sort_values(key, key=abs, ascending=False, kind="stable")
    every = _table(pair, ordered, f"{len(ordered):,} patches, largest first")
    sections.append(page.PageSection("All patches", [page.Fold(every.title, [every])]))
    return page.Page(
        eyebrow=["probekit", "activation patching", texts.model_title(model)],
        title=f"Which activations decide between {answer} and {wrong}?",
        answer=pair_answer(pair),
        details=[page.Paragraph(pair_detail(pair))],
        sections=sections,
        method=(*METHOD, *([ESTIMATED] if pair.is_estimated else [])),
        facts={"": facts},
        styles=page.WITH_MAPS,
    )


def _in_words(pair: PatchedPair, rows: pd.DataFrame) -> str:
    """Return the strongest patches among these rows with their effects, as the end of a text."""
    # The effect is the last column but one, with and without estimates.
    named = [f"{name} {effect}" for name, *_, effect, _ in strongest_patches(pair, rows).rows]
    return f"effects {'; '.join(named)}." if named else "none is measured."


def _name(pair: PatchedPair, row: Mapping[Any, Any]) -> str:
    """Return the name of a patch: its site and, unless the position is missing, the token there."""
    family, label, position = site_family(row["site"]), patch_label(row["site"]), row["position"]
    if family == RESIDUAL:
        named = label if label == "embed" else f"layer {label}"
    else:
        # The label of a head, of a neuron or of a site without a layer is a name already.
        named = label if family == label or "[" in row["site"] else f"{family} {label}"
    if pd.isna(position):
        return named
    return f"{named} at {pair_labels(pair.clean, pair.corrupt)[position]} [{position}]"


def site_family(site: str) -> str:
    """Return the name of the sites that share a map with a site.

    >>> site_family("blocks.2.hook_resid_post"), site_family("blocks.2.attn.hook_z[head=1]")
    ('residual stream', 'attn.z')
    """
    # The catalogue has sites without the choice of a head or neuron, such as [head=1].
    component = describe(site.partition("[")[0]).component
    return RESIDUAL if component.startswith("resid_") else component


def patch_label(site: str) -> str:
    """Return the label of a site, head or neuron in a map of its family.

    >>> [patch_label(f"blocks.0.{name}") for name in ("hook_resid_pre", "hook_resid_post")]
    ['embed', '0']
    >>> patch_label("blocks.3.attn.hook_z[head=2]"), patch_label("blocks.3.mlp.hook_post[neuron=7]")
    ('L3H2', 'L3N7')
    """
    name, _, part = site.partition("[")
    layer, component = layer_of(name), describe(name).component
    if part:
        axis, _, index = part.removesuffix("]").partition("=")
        return f"L{layer}{axis[0].upper()}{index}"
    if component in ("resid_pre", "resid_mid"):
        return "embed" if (layer, component) == (0, "resid_pre") else f"{layer} {component}"
    return component if layer is None else str(layer)


def pair_labels(clean: Sequence[str], corrupt: Sequence[str]) -> list[str]:
    """Return the label of each position: its token, or both tokens where the texts differ.

    >>> pair_labels(["The", " key"], ["The", " keys"])
    ['The', '␣key → ␣keys']
    """
    return [
        texts.token_label(a) if a == b else f"{texts.token_label(a)} → {texts.token_label(b)}"
        for a, b in zip(clean, corrupt, strict=True)
    ]


def patch_map(rows: pd.DataFrame, shown: str = "recovery", labels: Sequence[str] = ()) -> go.Figure:
    """Return the map of patches of a family of sites by token, or of heads by layer.

    If patches are estimated, those that are verified are framed.

    Args:
        rows: rows of `PatchedPair.of_positions`, all those of a family; or of
            `PatchedPair.of_heads`, those of all heads of each patched layer.
        shown: column that colours show; a key of `SHOWN`.
        labels: label of each position, from `pair_labels`; none for heads.
    """
    if labels:
        down = [patch_label(site) for site in rows["site"].unique()]
        across = [style.plotly_text(label) for label in labels]
    else:
        down = [str(layer) for layer in rows["layer"].unique()]
        across = [str(head) for head in range(int(rows["head"].max()) + 1)]
    # Rows are ordered: all cells of the first row of the map from left to right, then the next.
    values = rows[shown].to_numpy(dtype=float, na_value=np.nan).reshape(len(down), len(across))
    hover = [_patch_hover(row) for row in rows.to_dict("records")]
    colours, title = maps.diverging(values, LEAST_REACH), "token" if labels else "head"
    # The page scrolls a wide map, so that numbers are readable in more cells than usual. With too
    # many, a browser would draw them slowly.
    most = maps.MOST_TEXTS * 5
    figure = maps.text_map(
        values, hover, colours, across=across, down=down, title=title, most_texts=most
    )
    if rows["estimate"].notna().any():
        is_verified = rows["effect"].notna().to_numpy().reshape(len(down), len(across))
        for row, column in np.argwhere(is_verified).tolist():
            maps.frame_cell(figure, column, row)
    if labels:
        maps.thin_ticks(figure).update_xaxes(tickangle=0 if _is_narrow(labels) else -45)
    return maps.name_colours(figure, SHOWN[shown])


def _is_narrow(labels: Sequence[str]) -> bool:
    """Return whether the labels of positions fit below a map that is next to a table."""
    return max(map(len, labels), default=0) * len(labels) <= MOST_CHARACTERS


def estimate_scatter(rows: pd.DataFrame) -> go.Figure:
    """Return estimated against verified effects, with the diagonal of equality.

    Args:
        rows: rows of `PatchedPair.rows` with estimates; those without an effect are left out.
    """
    known = rows.dropna(subset="effect")
    both = known[["estimate", "effect"]].to_numpy()
    low, high = float(both.min(initial=0.0)), float(both.max(initial=0.0))
    # If all values are 0, the axes still have a length.
    margin = 0.05 * max(high - low, LEAST_REACH)
    ends = [low - margin, high + margin]
    figure = go.Figure(layout={"template": style.TEMPLATE, "showlegend": False})
    figure.add_scatter(
        x=ends, y=ends, mode="lines", hoverinfo="skip", line={"color": style.GREY, "dash": "dash"}
    )
    figure.add_scatter(
        x=known["estimate"].tolist(),
        y=known["effect"].tolist(),
        mode="markers",
        marker={"size": 9, "color": HIGH},
        hovertext=[_patch_hover(row) for row in known.to_dict("records")],
        hoverinfo="text",
    )
    figure.update_xaxes(title_text=SHOWN["estimate"], range=ends)
    figure.update_yaxes(title_text="effect by patching, logits", range=ends)
    return figure


def _patch_hover(row: dict[Any, Any]) -> str:
    """Return the hover text of a patch: its place, and those numbers of `SHOWN` that it has."""
    place = "all positions" if pd.isna(row["position"]) else f"position {row['position']}"
    lines = [f"<b>{style.plotly_text(row['site'])}</b> at {place}"]
    # Titles are written without the unit after the comma.
    lines += [
        f"{title.partition(',')[0]}: {format_number(row[name])}"
        for name, title in SHOWN.items()
        if not pd.isna(row[name])
    ]
    return "<br>".join(lines)
