"""Files of the chosen sites: their predictions, and the probe fitted on all rows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from probekit.files import as_store_error
from probekit.pipeline.experiment.prepared import PreparedRows
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.pipeline.measure.saving import probe_path
from probekit.pipeline.measure.selected_probe import find_site
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import SavedProbe, probe_files
from probekit.probes.score.scored import SiteResult
from probekit.provenance import digest
from probekit.results.finished_run import FINAL
from probekit.results.selection import chosen_row, is_nested
from probekit.results.site_results import NESTED_SITE, SavedSiteResults, site_stem


def save_chosen_sites(chosen: SiteResult, folder: RunFolder, prober: Prober) -> SiteResult:
    """Write the results at chosen sites to the folder of a run.

    Returns:
        The results with the digests of their files.

    Raises:
        StoreError: A file cannot be written.
    """
    origin = {
        "run": folder.path.name,
        "position": chosen.place["position"],
        "site": NESTED_SITE,
    }
    saved = SavedSiteResults(folder.path, prober.truth_of, len(prober.data.classes))
    written = saved.write(site_stem(NESTED_SITE), origin, chosen)
    folder.note(written.files)
    return written


def save_final(folder: RunFolder, table: pd.DataFrame, prepared: PreparedRows) -> None:
    """Copy the final probe of a nested cross-validation to `probes/final`.

    Its site, kind and position have the best validation score over all folds. It is fitted on all
    rows, so no row is left to test it. Nothing is written for a single split, or for a kind of
    probe that is not saved.

    Raises:
        DataError: A file of the probe is damaged.
        StoreError: A file cannot be written.
    """
    row = chosen_row(table) if is_nested(table) else None
    if row is None:
        return
    number, site = find_site(prepared, row)
    position = prepared.positions[number].position
    path = probe_path(folder.path, position.offset, site.text, str(row["probe"]))
    if not probe_files(path)[0].exists():
        return
    SavedProbe.load(path).save(folder.path / FINAL)
    for file in probe_files(Path(FINAL)):
        with as_store_error("read", folder.path / file):
            folder.note({file.as_posix(): digest([(folder.path / file).read_bytes()])})
