"""The thresholds of a monitor: the chosen probe on negatives that are not among the data.

monitor.csv      a row per false positive rate: threshold, bound, and rates on the test rows
probes/monitor   the chosen probe with its thresholds
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from probekit.activations.records import Location
from probekit.files import as_store_error, csv_text
from probekit.pipeline.capture.captures import capture_negatives
from probekit.pipeline.experiment.source import ModelSource, Source
from probekit.pipeline.measure.run_folder import RunFolder, probe_path
from probekit.pipeline.measure.selected_probe import find_site
from probekit.probes.prober import Prober
from probekit.probes.saved_probe import AlarmThreshold, SavedProbe, probe_files
from probekit.probes.score.monitor import monitor_rows
from probekit.provenance import digest
from probekit.results.record import MONITOR
from probekit.results.selection import chosen_row
from probekit.terminal import Watcher


def write_monitor(
    folder: RunFolder,
    source: Source,
    probers: Sequence[Prober],
    table: pd.DataFrame,
    cache_root: Location | None,
    watcher: Watcher,
) -> None:
    """Write the thresholds of the chosen probe, if the experiment has a monitor.

    The negatives are captured at the chosen site only.

    Raises:
        StoreError: a file cannot be written.
    """
    row = chosen_row(table)
    if row is None or not isinstance(source, ModelSource) or source.experiment.monitor is None:
        return
    position, site = find_site(source.rows, row)
    prober, offset = probers[position], source.rows.positions[position].offset
    probe = SavedProbe.load(probe_path(folder.path, offset, site.text, str(row["probe"])))
    negatives = capture_negatives(source, (site,), cache_root=cache_root, watcher=watcher)
    positive, tested = prober.positive, prober.test_rows
    assert positive is not None  # of two labels it is the rarer one
    scores = [probe.scores(X) for _, X in negatives.block(site, position).blocks()]
    rows = list(
        monitor_rows(
            source.experiment.monitor.fpr,
            probe.for_class(positive, np.concatenate(scores)),
            negatives.rows.groups,
            probe.for_class(positive, probe.scores(source.block(site, position)[tested])),
            prober.data.y[tested] == positive,
            prober.resamples_of(probe.facts.kind),
        )
    )
    folder.write("monitor.csv", csv_text(pd.DataFrame(rows)))
    thresholds = tuple(
        AlarmThreshold(**{name: row[name] for name in AlarmThreshold.model_fields}) for row in rows
    )
    facts = probe.facts.model_copy(update={"positive": positive, "thresholds": thresholds})
    replace(probe, facts=facts).save(folder.path / MONITOR)
    for file in probe_files(Path(MONITOR)):
        with as_store_error("read", folder.path / file):
            folder.note({file.as_posix(): digest([(folder.path / file).read_bytes()])})
