"""Runs on GPUs, which are simulated."""

import re

import pytest

from probekit.activations import forward
from probekit.amounts import percent
from probekit.errors import ConfigError
from probekit.experiment.model import dtype_on
from probekit.pipeline.capture.captures import capture_only
from probekit.pipeline.intervene.run import intervene
from probekit.pipeline.look.lenses import ModelAndTokenizer
from tests.activations.captures import files
from tests.fake_gpus import fake_gpus
from tests.pipeline.planted import QUICK, QUICK_SITES

DEVICES = ["cuda:0", "cuda:1"]


@pytest.fixture
def gpus():
    forward._copies_from.cache_clear()
    with fake_gpus():
        yield
    forward._copies_from.cache_clear()


def test_a_run_on_two_gpus_computes_in_bfloat16_and_records_the_error(own, gpus):
    more = own.load(*QUICK, "capture.sites=['*.hook_resid_*']")
    capture_only(more, cache_root=own.cache, device=DEVICES)
    result = own.run(*QUICK, device=DEVICES)  # its record has no other sites of the cache
    errors = result.record["model"]["relative_errors"]
    assert set(errors) == set(QUICK_SITES)
    assert all(1e-4 < error < 0.02 for error in errors.values())
    assert "dtype: bfloat16" in (result.folder / "config.yaml").read_text()
    page = result.report.read_text()
    for site, error in errors.items():
        assert re.search(rf"{site}.{{1,40}}{percent(error, 2)}", page, re.DOTALL), site
    # Float32 is computed on request, and by default on a CPU; its cache is another one.
    on_request = own.load(*QUICK, "model.dtype=float32")
    exact = capture_only(on_request, cache_root=own.cache, device="cuda:1")["task"].store
    assert (exact.identity.compute, exact.errors()) == ("float32", {})
    on_cpu = capture_only(own.load(*QUICK), cache_root=own.cache)["task"].store
    assert (on_cpu.identity.compute, on_cpu.errors()) == ("float32", {})
    assert len({str(exact.folder), str(on_cpu.folder), *result.record["caches"].values()}) == 3


def test_untrained_networks_and_weights_larger_than_the_gpus_are_captured(own, gpus):
    experiment, caches = own.load(*QUICK, "model.random_weights=1"), own.folder
    whole = capture_only(experiment, cache_root=caches / "whole", device="cuda:0,cuda:1")
    with fake_gpus(memory=9 << 20):
        read = capture_only(experiment, cache_root=caches / "read", device="cuda:0,cuda:1")
    for target, captured in whole.items():
        assert files(read[target].store.folder) == files(captured.store.folder), target
        assert set(captured.store.errors()) == set(QUICK_SITES)


def test_missing_devices_are_refused_with_those_that_there_are(own, gpus):
    known = r"Available devices: cpu, cuda:0, cuda:1\.$"
    with pytest.raises(ConfigError, match=rf"--device cuda:3: CUDA error: invalid.*{known}"):
        own.run(*QUICK, device="cuda:3")
    with pytest.raises(ConfigError, match=rf"--device cuda:3: .*{known}"):
        own.run(*QUICK, device=["cuda:0", "cuda:3"])
    for devices in ("cuda:0,cpu", "cuda:0,cuda:0"):
        with pytest.raises(ConfigError, match="several devices must be different, of one type"):
            own.run(*QUICK, device=devices)
    with pytest.raises(ConfigError, match="--device cuda:0,: a name is empty"):
        own.run(*QUICK, device="cuda:0,")


def test_auto_is_float32_on_one_and_on_several_processors():
    dtypes = {device: dtype_on(device) for device in ("cpu", "cpu,cpu", "cpu:0,cpu:1")}
    assert set(dtypes.values()) == {"float32"}
    assert {dtype_on("cuda"), dtype_on("cuda:0,cuda:1"), dtype_on("mps")} == {"bfloat16"}


def test_what_needs_a_single_device_refuses_several(own, gpus):
    edits = (
        "interventions=[{do: ablate, with: zero, sites: [blocks.0.hook_resid_pre]}]",
        "measure=[{logit_difference: {answer: label, wrong: group}}]",
    )
    advice = "--device cuda:0,cuda:1: this needs a single device.*`probekit run` without interv"
    for refused in (
        lambda: own.run(*QUICK, *edits, device=DEVICES),
        lambda: intervene(own.load(*QUICK, *edits), device="cuda:0,cuda:1"),
        lambda: ModelAndTokenizer.load("mini", device="cuda:0,cuda:1"),
    ):
        with pytest.raises(ConfigError, match=advice):
            refused()
