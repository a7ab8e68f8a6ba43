"""Page of a model's weights: a table of all tensors, or figures of one tensor."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, product
from typing import Any

import numpy as np
import pandas as pd
import plotly.colors
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from probekit.amounts import counted, percent
from probekit.report.elements import page, style
from probekit.report.elements.table import ResultTable
from probekit.report.elements.texts import model_title
from probekit.report.figures.line_labels import name_traces
from probekit.report.figures.maps import Colours, text_map
from probekit.results.network import HeadWeights, WeightTensor

METHOD = (
    "Weights as stored in the file: linear layers have one row per input and one column per "
    "output. Layer norm gains are not folded in.",
    "The page shows values, not what the model uses them for.",
)
MOST_CELLS = 4_000_000  # of position embeddings that are drawn in full
# Quantile of the absolute weights at which colours end; an outlier would wash out all others.
QUANTILE = 0.995
# Block and kind of a tensor, as in h.3.mlp.c_fc.weight and model.layers.3.mlp.up_proj.weight.
_OF_BLOCK = r"(?:^|\.)(?:h|layers)\.(?P<block>[0-9]{1,6})\.(?P<kind>.*)$"
_COLOURBAR = {"thickness": 12, "outlinewidth": 0, "nticks": 6, "title": {"text": "weight"}}
CURVES = style.SERIES_COLOURS[1:]  # the first colour is that of the task
Floats = NDArray[np.float32]


def overview_page(rows: pd.DataFrame, model: str) -> page.Page:
    """Return a page with a table of all tensors and the RMS of their weights by block."""
    figures = []
    drawn = _of_blocks(rows)
    if drawn["block"].max() > 0:  # one line per kind of matrix
        words = "; ".join(drawn["name"] + " " + drawn["rms"].map(format_weight))
        figure = go.Figure(layout={"template": style.TEMPLATE})
        for number, (kind, points) in enumerate(drawn.groupby("kind", sort=False), start=1):
            name, marker = style.plotly_text(kind), style.series_marker(number, 8)
            look: dict[str, Any] = {"line": {"color": marker["color"]}, "marker": marker}
            look |= {"hovertemplate": f"{name} of block %{{x}}: %{{y:.4g}}<extra></extra>"}
            x, y = (points[column].tolist() for column in ("block", "rms"))
            figure.add_scatter(x=x, y=y, mode="lines+markers", name=name, **look)
        last, highest = drawn["block"].max(), style.finite_ends(drawn["rms"])[1]
        # The step between ticks is such that there are at most 16.
        figure.update_xaxes(title_text="block", dtick=1 + last // 16, range=[-0.3, last + 0.3])
        figure.update_yaxes(title_text="RMS of weights", range=[0, 1.04 * highest])
        name_traces(figure)
        words, shown = f"RMS of the matrices by block. {words}", page.figure_json(figure)
        caption = "RMS: root mean square of the weights of a matrix, independent of its size."
        figures.append(page.FigurePart("RMS of the weights by block", shown, caption, words))
    return _render(model, f"How large are the weights of {model_title(model)}?", rows, figures, [])


def _of_blocks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of matrices of blocks, with `block`, `kind` and `rms`, by block."""
    named = rows["name"].str.extract(_OF_BLOCK)
    is_shown = named["kind"].notna() & (rows["shape"].map(len) == 2)
    rms = rows["norm"] / rows["shape"].map(math.prod) ** 0.5
    drawn = rows.assign(**named, rms=rms)[is_shown].astype({"block": int})
    return drawn.sort_values("block", kind="stable")


def weight_page(weight: WeightTensor, model: str) -> page.Page:
    """Return a page with figures of one tensor."""
    figures, folded, heads = list(_weight_parts(weight)), [], weight.heads
    if heads:
        figures += _attention_parts(heads)
        folded = list(_head_parts(weight, heads))
    title = f"Which values does {weight.row['name'].iloc[0]} have?"
    return _render(model, title, weight.row, figures, folded, heads)


def _render(
    model: str,
    title: str,
    rows: pd.DataFrame,
    figures: list[page.FigurePart],
    folded: list[page.FigurePart],
    heads: HeadWeights | None = None,
) -> page.Page:
    """Return a page: the first figure next to a summary, other figures, and tables.

    Args:
        model: Name or path of the model.
        title: Question that the page answers.
        rows: One row for each tensor; of several, the page has a table.
        figures: Figures that are shown.
        folded: Figures of single heads.
        heads: Weights by head, if the tensor has heads.
    """
    caption = "All tensors" if len(rows) > 1 else "The tensor"
    summary = ResultTable(caption, (), list(_summary(rows).items()), css="summary")
    sections = [page.PageSection("", [page.Group("split", [*figures[:1], summary])], "first")]
    sections += [page.PageSection("", [part]) for part in figures[1:]]
    folds = [page.Fold(part.title, [part]) for part in folded]
    sections += [page.PageSection("Single heads", folds)] if folds else []
    if len(rows) > 1:
        names = {"mean": "mean", "std": "std", "norm": "norm", "min": "least", "max": "most"}
        columns = {
            "tensor": rows["name"],
            "shape": [" × ".join(map(str, shape)) for shape in rows["shape"]],
            "dtype": rows["dtype"],
            **{name: rows[column].map(format_weight) for name, column in names.items()},
        }
        table = ResultTable.of("Table of tensors", columns, is_sortable=True)
        sections.append(page.PageSection(f"All {len(rows):,} tensors", [table]))
    return page.Page(
        eyebrow=["probekit", "weights", model_title(model)],
        title=title,
        answer=weights_answer(rows, heads),
        sections=sections,
        method=METHOD,
    )


def weights_answer(rows: pd.DataFrame, heads: HeadWeights | None = None) -> str:
    """Return number and range of the weights, as a sentence.

    It names the tensor with the largest absolute weight. Of a single tensor it gives the standard
    deviation and, for each attention circuit in `heads`, the head with the largest singular value.

    >>> row = {"name": "wpe.weight", "shape": (2, 3), "least": -1.5, "most": 0.5, "std": 0.5}
    >>> weights_answer(pd.DataFrame([row]))
    '6 weights between −1.5 and 0.5, with a standard deviation of 0.5.'
    """
    n = sum(map(math.prod, rows["shape"]))
    least, most = format_weight(rows["least"].min()), format_weight(rows["most"].max())
    if len(rows) > 1:
        ends = rows.set_index("name")[["least", "most"]]
        largest = ends.abs().max(axis=1).idxmax()
        text = f"{n:,} weights in {len(rows):,} tensors, between {least} and {most} (largest "
        text += f"absolute value in {largest})."
        for _, row in _of_blocks(rows).nlargest(1, "rms").iterrows():
            text += f" Of the matrices of blocks, {row['name']} has the largest root mean square"
            text += f" (RMS), {format_weight(row['rms'])}."
        return text
    spread = format_weight(rows["std"].iloc[0])
    clauses = [
        f"{counted(n, 'weight')} between {least} and {most}, with a standard deviation of {spread}"
    ]
    for name, spectra in heads.spectra.items() if heads else ():
        # The singular values of each head, largest first, shape (n_heads, d_head).
        order = np.argsort(-spectra[:, 0], kind="stable")
        values = [format_weight(spectra[head, 0]) for head in order[:2]]
        clauses.append(
            f"head {order[0]} has the largest singular value of W_{name} ({', next '.join(values)})"
        )
    return f"{'; '.join(clauses)}."


def _summary(rows: pd.DataFrame) -> dict[str, str]:
    """Return the main numbers of one tensor, or of all tensors together, by name."""
    n, dtypes = sum(map(math.prod, rows["shape"])), ", ".join(dict.fromkeys(rows["dtype"]))
    ends = {"min": format_weight(rows["least"].min()), "max": format_weight(rows["most"].max())}
    if len(rows) > 1:
        n_matrices = int((rows["shape"].map(len) == 2).sum())
        counts = {"weights": n, "tensors": len(rows), "matrices": n_matrices}
        return {name: f"{count:,}" for name, count in counts.items()} | {"dtype": dtypes} | ends
    row = rows.iloc[0]
    shape = " × ".join(f"{size:,}" for size in row["shape"])
    norms = {name: format_weight(row[name]) for name in ("mean", "std", "norm")}
    return {"shape": shape, "weights": f"{n:,}", "dtype": dtypes, **norms, **ends}


def format_weight(value: float) -> str:
    """Return a number with four significant digits.

    >>> format_weight(0.0012345), format_weight(-140.26), format_weight(0.0)
    ('0.001234', '−140.3', '0')
    """
    # Adding 0 removes the sign of -0.
    return f"{value + 0.0:.4g}".replace("-", "−")


def _weight_parts(weight: WeightTensor) -> Iterator[page.FigurePart]:
    """Yield the scatter plot of a vector, or the heat map of a matrix and curves of its columns.

    The heat map has the first `corner` rows and columns. The curves are left out for most matrices,
    which have no `columns`.
    """
    values, name = weight.numbers, weight.row["name"].iloc[0]
    if values.ndim == 1:
        # The scatter plot of a vector by index.
        figure = value_curves({"value": np.ascontiguousarray(values)}, "index", CURVES)
        look = {"mode": "markers", "marker": {"size": 4, "color": CURVES[0]}}
        figure.update_traces(look, hovertemplate="%{x}: %{y:.4f}<extra></extra>")
        figure.update_layout(showlegend=False).update_yaxes(title_text="weight")
        yield page.FigurePart("All values", page.figure_json(figure), "Values by index.", name)
        return
    # The names of the row and column axes of a matrix.
    embeddings = {"wpe.weight": "position", "wte.weight": "token", "lm_head.weight": "token"}
    down, across = (embeddings[name], "dimension") if name in embeddings else ("input", "output")
    shown = values[: weight.corner, : weight.corner]  # all values if `corner` is None
    size, is_whole = _size(shown), shown.shape == values.shape
    # The heat map of a matrix, rows down, with diverging colours centred on 0.
    figure = go.Figure(layout={"template": style.TEMPLATE})
    figure.add_trace(_heatmap(shown, colour_end(shown), down, across))
    figure.update_xaxes(title_text=across, showgrid=False)
    figure.update_yaxes(title_text=down, showgrid=False, autorange="reversed")
    yield page.FigurePart(
        "Heat map of the matrix" if is_whole else f"Heat map of the first {size} weights",
        page.figure_json(figure),
        f"Rows: {down}. Columns: {across}. The colour scale ends at "
        f"±{format_weight(colour_end(shown))}, the {percent(QUANTILE, 1)} quantile of the absolute "
        "weights; larger ones are clipped.",
        f"Heat map of {size} weights of {name}.",
        height=36,
    )
    if weight.columns:
        columns = {f"column {n}": np.ascontiguousarray(values[:, n]) for n in weight.columns}
        curves = value_curves(columns, down, CURVES)
        yield page.FigurePart(
            f"Columns {', '.join(map(str, weight.columns))}",
            page.figure_json(curves.update_yaxes(title_text="weight")),
            f"Values of each column by {down}.",
            f"Columns of {name} as curves by {down}.",
        )


def _size(values: Floats) -> str:
    return " × ".join(f"{size:,}" for size in values.shape)


def _attention_parts(heads: HeadWeights) -> Iterator[page.FigurePart]:
    """Yield the map of weight norms by head, then the singular values of each circuit."""
    names = [f"W_{part[0].upper()}" for part in heads.parts]
    # The map of weight norms, matrices down and heads across, with numbers unless there are many.
    numbers = [str(head) for head in range(heads.norms.shape[1])]
    cells = zip(product(names, numbers), heads.norms.ravel(), strict=True)
    hover = [f"{name} of head {head}: {norm:.3f}" for (name, head), norm in cells]
    colours = Colours(0.0, float(heads.norms.max()), style.MAGNITUDES, is_diverging=False)
    shown = [f"{norm:.1f}" for norm in heads.norms.ravel()]
    figure = text_map(
        heads.norms, hover, colours, texts=shown, across=numbers, down=names, title="head"
    )
    yield page.FigurePart(
        "Norm by head",
        page.figure_json(figure.update_yaxes(title_text=None)),
        "Frobenius norm of each head's matrices.",
        "; ".join(
            f"{name}: {', '.join(map(format_weight, norms))}"
            for name, norms in zip(names, heads.norms, strict=True)
        ),
        height=9 + 2.5 * len(names),
    )
    meanings = {
        "QK": "W_QK = W_Q W_Kᵀ: bilinear form of the attention scores of a head, before division "
        "by the square root of d_head.",
        "OV": "W_OV = W_V W_O: linear map from the attended residual stream to the head's output.",
    }
    for name, spectra in heads.spectra.items():
        # One curve per head. The first shades of the scale are too light for lines.
        shades = np.linspace(0.25, 1, len(spectra)).tolist()
        colours = plotly.colors.sample_colorscale(style.MAGNITUDES, shades)
        curves = {f"head {head}": values for head, values in enumerate(spectra.tolist())}
        figure = value_curves(curves, "rank", colours, first=1)
        yield page.FigurePart(
            f"Singular values of W_{name}",
            page.figure_json(figure.update_yaxes(title_text="singular value", rangemode="tozero")),
            f"{meanings[name]} Raw weights: layer norm gains are not folded in and biases are "
            "omitted.",
            "Largest singular value of each head: " + ", ".join(map(format_weight, spectra[:, 0])),
        )


def _head_parts(weight: WeightTensor, heads: HeadWeights) -> Iterator[page.FigurePart]:
    """Yield for each head a figure of its matrices in the tensor, as heat maps next to each other.

    The first `corner` rows and columns of a matrix are shown, or all.
    """
    end, corner = colour_end(weight.numbers), weight.corner
    for head in range(heads.norms.shape[1]):
        parts = {part: heads.parts[part][head, :corner, :corner] for part in heads.drawn}
        shapes = ", ".join(
            f"W_{part[0].upper()} ({_size(shown)} of {_size(heads.parts[part][head])})"
            for part, shown in parts.items()
        )
        # Heat maps of the matrices of one head side by side, on one colour scale.
        titles = [f"W_{part[0].upper()}" for part in parts]
        figure = make_subplots(1, len(parts), subplot_titles=titles, horizontal_spacing=0.06)
        figure.update_layout(template=style.TEMPLATE)
        for number, values in enumerate(parts.values(), start=1):
            trace = _heatmap(values, end, "row", "column")
            figure.add_trace(trace.update(showscale=number == len(parts)), row=1, col=number)
        figure.update_xaxes(showgrid=False)
        figure.update_yaxes(showgrid=False, autorange="reversed")
        yield page.FigurePart(
            f"Head {head}",
            page.figure_json(figure),
            f"{shapes}. All heads share the colour scale of the whole tensor.",
            f"Heat maps of the weights of head {head}.",
            height=32,
        )


def colour_end(values: Floats) -> float:
    """Return the absolute weight at which the colours of a heat map end.

    It is the `QUANTILE` of the absolute weights; if that is 0, the largest; if that is 0 too, 1.

    >>> colour_end(np.array([[0.0, 0.0, -2.0]], np.float32)) > 1.9
    True
    """
    return float(np.quantile(np.abs(values), QUANTILE)) or float(np.abs(values).max()) or 1.0


def _heatmap(values: Floats, end: float, down: str, across: str) -> go.Heatmap:
    """Return the heat map of a matrix with colours from -end to end.

    `down` and `across` name the indices of its rows and columns in the hover text.
    """
    z = np.ascontiguousarray(values, np.float32)  # plotly stores arrays as bytes, not digits
    colours = {"zmin": -end, "zmax": end, "colorscale": style.SIGNED, "colorbar": _COLOURBAR}
    hover = f"{down} %{{y}}, {across} %{{x}}: %{{z:.4f}}<extra></extra>"
    return go.Heatmap(z=z, **colours, hovertemplate=hover)


def value_curves(
    curves: Mapping[str, Sequence[float] | Floats],
    across: str,
    colours: Sequence[str],
    first: int = 0,
) -> go.Figure:
    """Return the figure of series of values by index, one curve each.

    Args:
        curves: values by the name of their curve.
        across: name of the index.
        colours: colours of the curves, which are repeated.
        first: index of the first value.
    """
    figure = go.Figure(layout={"template": style.TEMPLATE})
    for (name, values), colour in zip(curves.items(), cycle(colours), strict=False):
        look = {"mode": "lines", "line": {"color": colour, "width": 1.5}}
        hover = f"{name}, {across} %{{x}}: %{{y:.4f}}<extra></extra>"
        figure.add_scatter(x0=first, y=values, name=name, hovertemplate=hover, **look)
    figure.update_layout(showlegend=True)
    return figure.update_xaxes(title_text=across)
