"""The page of a model's weights: all tensors in a table, or one of them drawn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from probekit.report.figures.style import without_negative_zero
from probekit.report.figures.weight_figures import (
    QUANTILE,
    colour_end,
    column_curves,
    matrix_map,
    norm_map,
    norms_by_block,
    spectrum_curves,
    vector_curve,
    weight_head_map,
)
from probekit.report.pages.parts import FigurePart, figure_json
from probekit.report.pages.template import render
from probekit.results.network import HeadWeights, WeightTensor

MOST_CELLS = 4_000_000  # of a matrix that is drawn in full

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]


def overview_page(rows: pd.DataFrame, model: str) -> str:
    """Return a page with a row for each tensor and their norms by block; it asks no network."""
    figures = []
    if rows["name"].str.fullmatch(r"h\.[1-9]\d*\..*").any():
        figures.append(
            FigurePart(
                "Norm by block",
                figure_json(norms_by_block(rows)),
                "Root of the sum of squares of each matrix.",
                _norm_words(rows),
            )
        )
    return _render(model, "Weights", rows, figures, [])


def _norm_words(rows: pd.DataFrame) -> str:
    """Return the figure of norms in words."""
    matrices = rows[rows["name"].str.match(r"h\.") & (rows["shape"].map(len) == 2)]
    return "Norms of the matrices by block. " + "; ".join(
        f"{name} {norm:.1f}" for name, norm in zip(matrices["name"], matrices["norm"], strict=True)
    )


def weight_page(weight: WeightTensor, model: str) -> str:
    """Return a page that draws one tensor; it asks no network."""
    heads = weight.heads
    figures = list(_weight_parts(weight))
    folded = list(_head_parts(weight)) if heads else []
    if heads:
        figures += list(_attention_parts(heads))
    return _render(model, weight.row["name"].iloc[0], weight.row, figures, folded)


def _render(
    model: str,
    title: str,
    rows: pd.DataFrame,
    figures: list[FigurePart],
    folded: list[FigurePart],
) -> str:
    return render(
        "weights.html",
        model=model,
        title=title,
        rows=[row for _, row in rows.iterrows()],
        number=format_weight,
        figures=figures,
        folded=folded,
    )


def format_weight(value: float) -> str:
    """Return a number with four significant places.

    >>> format_weight(0.0012345), format_weight(-140.26), format_weight(0.0)
    ('0.001234', '−140.3', '0')
    """
    return without_negative_zero(f"{value:.4g}").replace("-", "−")


def _weight_parts(weight: WeightTensor) -> Iterator[FigurePart]:
    values, name = weight.numbers, weight.row["name"].iloc[0]
    if values.ndim == 1:
        yield FigurePart(
            "All values", figure_json(vector_curve(values)), "Each value over its index.", name
        )
        return
    down, across = _axes(name)
    shown = values[: weight.corner, : weight.corner]
    size = _size(shown)
    is_whole = shown.shape == values.shape
    yield FigurePart(
        "The matrix" if is_whole else f"The first {size} weights",
        figure_json(matrix_map(shown, down, across)),
        f"Row: {down}. Column: {across}. {_colours(shown)}",
        f"{size} weights of {name} as a map.",
        height=44,
    )
    if weight.columns:
        yield FigurePart(
            f"Columns {', '.join(map(str, weight.columns))}",
            figure_json(column_curves(values, weight.columns, down)),
            f"Each column over {down}.",
            f"Columns of {name} as curves over {down}.",
        )


def _size(values: Floats) -> str:
    return " x ".join(f"{size:,}" for size in values.shape)


def _axes(name: str) -> tuple[str, str]:
    """Return what the rows and the columns of a matrix stand for.

    >>> _axes("wpe.weight"), _axes("h.3.mlp.c_fc.weight")
    (('position', 'dimension'), ('input', 'output'))
    """
    embeddings = {"wpe.weight": "position", "wte.weight": "token", "lm_head.weight": "token"}
    return (embeddings[name], "dimension") if name in embeddings else ("input", "output")


def _colours(values: Floats) -> str:
    return (
        f"Colours end at ±{format_weight(colour_end(values))}, which {QUANTILE:.1%} of these "
        "weights do not exceed; those beyond have the last colour."
    )


def _attention_parts(heads: HeadWeights) -> Iterator[FigurePart]:
    names = [f"W_{part[0].upper()}" for part in heads.parts]
    yield FigurePart(
        "Norm by head",
        figure_json(norm_map(heads.norms, list(heads.parts))),
        "Frobenius norm of the matrices of each head.",
        "; ".join(
            f"{name}: {', '.join(map(format_weight, norms))}"
            for name, norms in zip(names, heads.norms, strict=True)
        ),
        height=9 + 2.5 * len(names),
    )
    told = {
        "QK": "W_QK = W_Q W_Kᵀ: which pairs of residual streams attend to each other, before the "
        "division by the root of d_head.",
        "OV": "W_OV = W_V W_O: what is moved where a head attends.",
    }
    for name, spectra in heads.spectra.items():
        yield FigurePart(
            f"Singular values of W_{name}",
            figure_json(spectrum_curves(spectra)),
            f"{told[name]} The weights as they are: no gain of a layer norm is folded in, biases "
            "are left out.",
            "Largest of each head: " + ", ".join(map(format_weight, spectra[:, 0])),
        )


def _head_parts(weight: WeightTensor) -> Iterator[FigurePart]:
    """Yield the matrices of each head that lie in the tensor, their first rows and columns."""
    heads = weight.heads
    assert heads is not None
    end, corner = colour_end(weight.numbers), weight.corner
    for head in range(heads.norms.shape[1]):
        parts = {part: heads.parts[part][head, :corner, :corner] for part in heads.drawn}
        shapes = ", ".join(
            f"W_{part[0].upper()} ({_size(shown)} of {_size(heads.parts[part][head])})"
            for part, shown in parts.items()
        )
        yield FigurePart(
            f"Head {head}",
            figure_json(weight_head_map(parts, end)),
            f"{shapes}. Colours are those of the whole tensor, alike for all heads.",
            f"Weights of head {head} as maps.",
            height=32,
        )
