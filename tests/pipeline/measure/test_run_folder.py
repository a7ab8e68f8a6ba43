"""Run folders: missing files are detected, temporary files of dead writers are removed."""

import shutil
from pathlib import Path

import pytest

from probekit.errors import StoreError
from probekit.files import Disk, Draft
from probekit.pipeline.measure.run_folder import RunFolder
from probekit.probes.score.scored import SiteResult
from probekit.provenance import digest
from probekit.results.site_results import SavedSiteResults


@pytest.fixture
def folder(tmp_path):
    """A run folder with three files."""
    folder = RunFolder(tmp_path / "name" / "key", "now")
    for name in ("sites/baselines.json", "results.csv", "config.yaml"):
        folder.write(name, name)
    return folder


def test_every_file_has_a_digest(folder):
    found = folder.digests()
    assert list(found) == ["config.yaml", "results.csv", "sites/baselines.json"]
    assert found["results.csv"] == digest([b"results.csv"])
    assert (folder.path / ".started").read_text() == "now"
    folder.finish()
    assert not (folder.path / ".started").exists()


@pytest.mark.parametrize("name", ["sites/baselines.json", "results.csv", "config.yaml"])
def test_missing_file_is_named_at_the_end(folder, name, refused):
    (folder.path / name).write_text("other")
    refused(folder.digests)
    (folder.path / name).unlink()
    refused(folder.digests)


def test_deleted_folder_raises_at_the_next_write(folder, refused):
    shutil.rmtree(folder.path.parent)
    refused(folder.write, "differences.csv", "")


def test_a_probe_that_is_gone_when_its_site_is_kept_is_an_error(tmp_path):
    site = SiteResult(probes={"probes/blocks.0.x/logistic.safetensors": "0" * 64})
    saved = SavedSiteResults(tmp_path, truth_of=None, n_classes=2)
    with pytest.raises(StoreError, match=r"logistic\.json: No such file"):
        saved.write(Path("sites/blocks.0.x"), {}, site)


def test_drafts_of_dead_writers_are_removed_and_no_other_files(folder):
    sites = folder.path / "sites"
    stay = [sites / ".x.json", sites / f".x.{'a' * 15}", sites / f"x.{'a' * 16}"]
    dead = [sites / f".x.json.{'a' * 16}", folder.path / f".run.json.{'0' * 16}"]
    for path in (*stay, *dead):
        path.touch()
    (sites / f".link.{'b' * 16}").symlink_to(stay[0])
    with Draft(Disk(), sites / "y.json") as living:
        RunFolder(folder.path, "later")
        assert living.temporary.exists()
    assert all(path.exists() for path in stay)
    assert not any(path.exists() for path in dead)
