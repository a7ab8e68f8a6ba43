"""Run by the kernel of each notebook before its first cell.

Figures load the copy of plotly.js in the folder of static files, so that pages need no network.
"""

import os

from IPython import get_ipython
from IPython.display import HTML, display
from plotly.graph_objects import Figure

_SCRIPT = '<script src="../_static/plotly.min.js"></script>'


def _show(figure: Figure) -> None:
    html = (
        Figure(figure)
        .update_layout(width=None, autosize=True)
        .to_html(
            include_plotlyjs=False,
            full_html=False,
            config={"responsive": True, "displayModeBar": False},
        )
    )
    display(HTML(_SCRIPT + html))


os.chdir(os.environ["PROBEKIT_DOCS_WORK"])
get_ipython().display_formatter.ipython_display_formatter.for_type(Figure, _show)
