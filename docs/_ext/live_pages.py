"""Live pages of the documentation, written by the commands of the package on its bundled model.

The first build writes them into the folder of static files; they are written again if the code
that draws them changes. All of them load one copy of plotly.js. The
directive `live-pages` lists them.
"""

import os
import re
import shlex
import shutil
from contextlib import chdir, redirect_stdout
from html import escape
from io import StringIO
from pathlib import Path

from docutils import nodes
from markupsafe import Markup
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import probekit
from probekit import open_run
from probekit.cli.main import cli
from probekit.provenance import digest, digest_sources
from probekit.report.elements import page

TEXT = "The keys to the old cabinet near the windows were on the table, and the keys"
SMALL = '--set "split={test: 0.3}" --set "probe={permutations: 0, description: false}"'
EDITS = (
    "{do: patch, from: counterfactual, sites: blocks.*.hook_resid_post}, "
    "{do: steer, along: probe, by: [-2, 2], sites: blocks.3.hook_resid_post, draws: 99}"
)
PAIR = '--clean "The old house there" --corrupt "The old houses there"'
# Name in a command -> the file that it stands for; a record stands for its run.
PLACES = {
    "{run}": "runs/quickstart/*/run.json",
    "{other}": "runs/mean/*/run.json",
    "{probe}": "runs/quickstart/*/probes/blocks.5.hook_resid_post/logistic.safetensors",
}
# Page -> what it shows, the command that writes it, and the file if the command has no --out.
# Words in braces are the page, or one of `PLACES`.
PAGES = {
    "report": (
        "A run: answer, layer curve, comparisons, errors, attention, method",
        "run experiments/quickstart.yaml",
        "runs/quickstart/*/report.html",
    ),
    "mean": (
        "A run of a smaller experiment, without p-values",
        f"run experiments/quickstart.yaml --set name=mean --set tokens.position.at=mean {SMALL}",
        "runs/mean/*/report.html",
    ),
    "causes": (
        "Interventions: is a direction used, and which layers carry the answer",
        f'intervene experiments/causes.yaml --set "interventions=[{EDITS}]"',
        "runs/causes/*/causes.html",
    ),
    "compare": ("Two runs: what differs, and by how much", "compare {run} {other} --out {out}", ""),
    "runs": ("Several runs in one figure", "report {run} {other} --out {out}", ""),
    "transfer": (
        "Probes of one experiment on the rows of another",
        "transfer experiments/quickstart.yaml experiments/causes.yaml --out runs/transfer "
        f"--site blocks.5.hook_resid_post --null-draws 0 {SMALL}",
        "runs/transfer/transfer.html",
    ),
    "texts": (
        "A saved probe on new texts, token by token",
        f'apply {{probe}} --text "{TEXT}" --per token --out {{out}}',
        "",
    ),
    "networks": (
        "A fixed probe on several networks: drift of its scores and rates",
        "apply {probe} --over mini mini --on data/noun_pairs.csv --out {out}",
        "",
    ),
    "doses": (
        "How much steering a network can take",
        'generate --model mini --prompt "The old man" --max-new-tokens 5 --steer {probe} '
        "--calibrate 1.1 --on data/noun_pairs.md --doses {out}",
        "",
    ),
    "attention": (
        "Attention patterns of every head",
        f'attention --model mini --text "{TEXT}" --out {{out}}',
        "",
    ),
    "heads": (
        "Scores of every head",
        "attention --scores --model mini --random-repeats 10 --out {out}",
        "",
    ),
    "lens": ("Predictions of every layer", f'lens --model mini --text "{TEXT}" --out {{out}}', ""),
    "attribution": (
        "Contributions of heads and MLPs to a logit difference",
        'attribution --model mini --text "The keys to the" --token " old" --minus " new" '
        "--out {out}",
        "",
    ),
    "patch": (
        "Patches between two texts",
        f'patch --model mini {PAIR} --answer " was" --wrong " were" --heads --out {{out}}',
        "",
    ),
    "weights": ("Tensors of a model", "weights --model mini --out {out}", ""),
    "weight": ("One tensor", "weights --model mini --tensor wpe.weight --out {out}", ""),
}


def write_pages(work: Path, folder: Path) -> None:
    """Write all pages, and the curve of the front page, unless the same code has written them.

    Args:
        work: folder with `data` and `experiments`, in which the commands run.
        folder: folder of the pages.
    """
    assets = sorted((Path(probekit.__file__).parent / "report" / "assets").rglob("*.*"))
    files = [Path(__file__), *assets]
    sources = digest([digest_sources().encode(), *(path.read_bytes() for path in files)])
    stamp = folder / "sources.txt"
    if stamp.exists() and stamp.read_text() == sources:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # Pages in this folder load the script next to it, which the policy of a page forbids.
    shared = page.compressed("") + Markup('<script src="../plotly.min.js"></script>')
    page._ENVIRONMENT.globals["plotly_js"] = lambda: shared
    with chdir(work):
        shutil.rmtree("runs", ignore_errors=True)
        for name, (_, command, pattern) in PAGES.items():
            out = folder / f"{name}.html"
            places = {"{out}": str(out)}
            places |= {
                place: str(_only(files)) for place, files in PLACES.items() if place in command
            }
            words = [places.get(word, word) for word in shlex.split(command)]
            with redirect_stdout(StringIO()):
                cli.main(words, "probekit", standalone_mode=False)
            text = (_only(pattern) if pattern else out).read_text("utf-8")
            policy = re.search(r'<meta http-equiv="Content-Security-Policy".*\n', text)
            out.write_text(text.replace(policy[0], ""), "utf-8")
        figure = open_run(_only(PLACES["{run}"])).figure()
        figure.update_layout(width=None, height=None, autosize=True)
        figure.write_html(
            folder / "curve.html",
            include_plotlyjs="../plotly.min.js",
            config={"responsive": True, "displayModeBar": False},
            default_height="calc(100vh - 20px)",  # without the margins of the page
        )
    stamp.write_text(sources)


def _only(pattern: str) -> Path:
    """Return the only file that matches, or its folder if it is the record of a run."""
    (path,) = Path().glob(pattern)
    return path.parent if path.name == "run.json" else path


class LivePages(SphinxDirective):
    """A list of the pages with their commands."""

    def run(self) -> list[nodes.Node]:
        """Return the list."""
        rows = "".join(
            f'<li><a href="_static/pages/{name}.html">{escape(text)}</a> '
            f"<code>probekit {command.split()[0]}</code></li>"
            for name, (text, command, _) in PAGES.items()
        )
        return [nodes.raw("", f"<ul>{rows}</ul>", format="html")]


def _write(_app: Sphinx) -> None:
    work = Path(os.environ["PROBEKIT_DOCS_WORK"])
    write_pages(work, work.parent / "static" / "pages")


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive, and write the pages before the sources are read."""
    app.connect("builder-inited", _write)
    app.add_directive("live-pages", LivePages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
