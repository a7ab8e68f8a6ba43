"""Captures of an experiment in this process: the memory of their networks."""

import weakref

import pytest

from probekit import memory
from probekit.activations import capture as capturing
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.engines import network
from probekit.pipeline.experiment.validate import validate
from tests.activations.captures import files
from tests.pipeline.planted import QUICK
from tests.pipeline.scale import Heard

SETTINGS = (*QUICK, "model.random_weights=2")


@pytest.fixture
def made(monkeypatch):
    """The networks that are made, as weak references; all earlier ones are gone by then."""

    def target_network(*arguments, **options):
        assert all(network() is None for network in made)
        network = build(*arguments, **options)
        made.append(weakref.ref(network))
        sizes.append(network.is_in_memory)
        return network

    made, sizes, build = [], [], network.target_network
    monkeypatch.setattr(network, "target_network", target_network)
    return sizes


@pytest.fixture
def little_memory(monkeypatch):
    """A machine with less memory than the weights of `mini` need."""
    for module in (memory, capturing):
        monkeypatch.setattr(module, "available_memory", lambda _device="cpu": 20_000_000)


def test_one_network_at_a_time_is_in_memory(own, tmp_path, made):
    capture_only(own.load(*SETTINGS), cache_root=tmp_path / "cache")
    assert made == [True, True, True]


def test_networks_larger_than_memory_are_captured_with_the_same_bytes(
    own, tmp_path, made, request, snapshot
):
    whole = capture_only(own.load(*SETTINGS), cache_root=tmp_path / "whole")
    request.getfixturevalue("little_memory")
    heard = Heard()
    read = capture_only(own.load(*SETTINGS), cache_root=tmp_path / "read", watcher=heard)
    assert made == [True, True, True, False, False, False]
    for target, captured in whole.items():
        assert files(read[target].store.folder) == files(captured.store.folder), target
    assert heard.messages == snapshot


@pytest.mark.usefixtures("little_memory")
def test_validate_says_that_weights_are_read_in_blocks_and_what_that_costs(own, snapshot):
    report = validate(own.load(*SETTINGS))
    assert [one.message for one in report.findings if "memory" in one.code] == snapshot
    assert report.ok
    assert report.seconds["capture"] > 0


def test_the_parent_of_workers_holds_no_weights(own, tmp_path, made):
    def crew(_job, work, missing, on_rows):
        assert not work.model.is_in_memory
        work.compute(missing, on_rows)

    whole = capture_only(own.load(*SETTINGS), cache_root=tmp_path / "whole")
    heard = Heard()
    shared = capture_only(
        own.load(*SETTINGS), cache_root=tmp_path / "shared", watcher=heard, crew=crew
    )
    assert made == [True, True, True, False, False, False]
    for target, captured in whole.items():
        assert files(shared[target].store.folder) == files(captured.store.folder), target
    assert heard.messages == []  # workers read blocks only if their own memory is too small
