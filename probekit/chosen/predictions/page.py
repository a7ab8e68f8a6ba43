"""The final probe on the page of a run: the commands that give it to other tools."""

from collections.abc import Iterator

from probekit.chosen.page import Shown
from probekit.probes.exports.table import export_commands
from probekit.probes.saved_probe import SavedProbe
from probekit.report.elements.page import Fold, Paragraph
from probekit.results.record import FINAL


def details(run: Shown) -> Iterator[Fold]:
    """Yield the commands that apply and export the final probe, if the run has one.

    Raises:
        DataError: a file of the probe cannot be read, or was changed after the run.
    """
    if (run.folder / f"{FINAL}.json").exists():
        lines = export_commands(SavedProbe.load(run.folder / FINAL), f"RUN/{FINAL}")
        apply = f"probekit apply RUN/{FINAL} --text TEXT  # RUN is the folder of this page"
        text = "\n".join([apply, *lines])
        yield Fold("Use the final probe elsewhere", [Paragraph(text, kind="source")])
