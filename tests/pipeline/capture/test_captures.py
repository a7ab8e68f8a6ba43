"""Captures of an experiment in this process: the memory of their networks."""

import weakref

from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.experiment import source
from tests.pipeline.planted import QUICK


def test_one_network_at_a_time_is_in_memory(own, tmp_path, monkeypatch):
    made = []

    def target_network(*arguments):
        assert all(network() is None for network in made)
        network = build(*arguments)
        made.append(weakref.ref(network))
        return network

    build = source.target_network
    monkeypatch.setattr(source, "target_network", target_network)
    experiment = own.load(*QUICK, "model.random_weights=3")
    captured = capture_only(experiment, cache_root=tmp_path / "cache")
    assert len(made) == len(captured) == 4
