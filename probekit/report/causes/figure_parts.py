"""All figures of a run's interventions, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from probekit.report.causes.captions import (
    curve_caption,
    curve_description,
    dose_caption,
    dose_description,
    edit_description,
    head_caption,
    refit_caption,
    refit_description,
    token_caption,
)
from probekit.report.causes.cause_maps import head_map_of, token_maps
from probekit.report.causes.curves import cause_curve, curve_lines_of
from probekit.report.causes.directions import dose_panels, refit_panels, where
from probekit.report.causes.edits import METHODS, RECOVERY, EditSet, edit_sets, measure_title
from probekit.report.causes.panels import dose_figure, panels_height, refit_figure, steepest
from probekit.report.figures.facets import MOST_PANELS
from probekit.report.maps.text_map import MOST_TEXTS
from probekit.report.pages.page import FigurePart, figure_json
from probekit.report.pages.parts import map_part
from probekit.report.texts.headings import capitalised
from probekit.results.causes import CauseTables

NOUNS = {
    ("patch", "counterfactual"): "patches",
    ("ablate", "mean"): "mean ablation",
    ("ablate", "zero"): "zero ablation",
    ("ablate", "resample"): "resampling ablation",
}
_ORDER = ("curve", "tokens", "heads")
SMALL_ROW = 0.9  # rem, of maps without numbers in their cells


def cause_parts(tables: CauseTables, layers: dict[int, str] | None = None) -> list[FigurePart]:
    """Return the figures of a run's interventions; other measures, tokens and methods are folded.

    Args:
        tables: interventions of the run.
        layers: labels of the layer axis of the run's layer curve, by depth.
    """
    edits = sorted(_edit_parts(tables, layers), key=lambda one: _ORDER.index(one[0].split()[0]))
    parts = [part for _, part in edits]
    return [*parts, *_dose_parts(tables), *_refit_parts(tables, layers)]


def _edit_parts(
    tables: CauseTables, layers: dict[int, str] | None
) -> Iterator[tuple[str, FigurePart]]:
    """Yield kind and figure of patches and ablations; the first figure of each kind is open."""
    main = first_measure(tables)
    seen: set[str] = set()
    for one in edit_sets(tables.effects):
        for kind, part in _parts_of(one, tables, layers):
            is_first = kind not in seen and one.measure == main
            seen |= {kind} if one.measure == main else set()
            yield kind, replace(part, is_open=is_first)


def first_measure(tables: CauseTables) -> str:
    """Return the measure of the open figures: the first one that has rows; "" without rows."""
    measured = tables.effects["measure"].unique().tolist()
    return next((name for name in (*tables.record.measures, *measured) if name in measured), "")


def _parts_of(
    one: EditSet, tables: CauseTables, layers: dict[int, str] | None
) -> Iterator[tuple[str, FigurePart]]:
    edits = NOUNS.get((one.do, one.replacement), one.do)
    of_measure = measure_title(one.measure) if one.measure != first_measure(tables) else ""
    title = capitalised(one.title)
    if one.shown == RECOVERY and of_measure:
        title = f"Recovery of {of_measure}"
    if one.at == "each":
        for part, figure in token_maps(one, tables.record):
            n_heads = one.of_heads["line"].nunique() if part.endswith(" heads") else 0
            rows = one.of_heads if n_heads else one.rows[one.rows["line"] == part]
            caption = token_caption(one, tables, n_heads)
            words = edit_description(one, rows, f" by layer and token, {part}")
            heading = f"{title} by layer and token · {part}, {edits}"
            yield f"tokens {part}", _resized(map_part(heading, figure, caption, words))
        return
    place = f"{edits} {where(tables, one.at)}"
    if not curve_lines_of(one).empty:
        yield (
            "curve",
            FigurePart(
                f"{title} by layer · {place}",
                figure_json(cause_curve(one, layers)),
                curve_caption(one, tables),
                curve_description(one),
            ),
        )
    for name, rows in one.of_heads.groupby("part", sort=False):
        figure = head_map_of(one, str(name))
        words = edit_description(one, rows, f" by layer and head, {name}")
        heading = f"{title} by layer and head · {name}, {place}"
        caption = head_caption(one, tables)
        yield f"heads {name}", _resized(map_part(heading, figure, caption, words))


def _resized(part: FigurePart) -> FigurePart:
    """Return a map with lower rows if its cells have no numbers."""
    cells = part.figure["data"][0]["z"]
    if len(cells) * len(cells[0]) <= MOST_TEXTS:
        return part
    return replace(part, height=10 + SMALL_ROW * max(len(cells), 16))


def _dose_parts(tables: CauseTables) -> Iterator[FigurePart]:
    for number, ((along, at), panels) in enumerate(dose_panels(tables)):
        shown = steepest(panels)
        yield FigurePart(
            f"Dose-response · {METHODS[along]}, {where(tables, at)}",
            figure_json(dose_figure(shown)),
            dose_caption(along, at, shown, len(panels), tables),
            dose_description(shown),
            is_open=number == 0,
            height=panels_height(len(shown)),
        )


def _refit_parts(tables: CauseTables, layers: dict[int, str] | None) -> Iterator[FigurePart]:
    for number, ((along, at), panels) in enumerate(refit_panels(tables)):
        shown = panels[:MOST_PANELS]
        yield FigurePart(
            f"Accuracy after erasure · {METHODS[along]}, {where(tables, at)}",
            figure_json(refit_figure(shown, layers)),
            refit_caption(along, at, shown, tables),
            refit_description(shown),
            is_open=number == 0,
            height=panels_height(len(shown)),
        )
