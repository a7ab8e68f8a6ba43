"""The steps of a run start no more processes than memory allows."""

import pytest

from probekit.pipeline.experiment import steps


class StoppedError(Exception):
    """Ends a run where its number of processes is known."""


@pytest.mark.parametrize(("available", "expected"), [(0.5, 1), (2.5, 2), (100, 4)])
def test_as_many_sites_are_probed_at_once_as_memory_allows(own, monkeypatch, available, expected):
    def stopped(source, position, prober, folder, watcher, workers, *_):
        raise StoppedError(workers)

    monkeypatch.setattr(steps, "probing_bytes", lambda probers, widths: 10**9)
    monkeypatch.setattr(steps, "available_memory", lambda: available * 1e9)
    monkeypatch.setattr(steps, "cpu_count", lambda: 4)
    monkeypatch.setattr(steps, "probe_sites", stopped)
    with pytest.raises(StoppedError) as raised:
        own.run()
    assert raised.value.args == (expected,)
