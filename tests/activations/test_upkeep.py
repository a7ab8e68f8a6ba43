"""Cache maintenance: summaries, repair and removal, without touching anything else."""

import os
import time

import pytest

from probekit.activations import upkeep
from probekit.activations.local import LocalFiles
from probekit.activations.store import ActivationStore
from probekit.files import Disk, is_on_network
from tests.activations.captures import files as bytes_of
from tests.activations.captures import record_file, shard_file
from tests.activations.small_store import CONTENT, SITES


@pytest.fixture
def folder(tmp_path):
    CONTENT.write(LocalFiles(tmp_path / "caches" / "abc1"))
    return tmp_path / "caches" / "abc1"


def test_a_summary_describes_the_content(folder):
    store = ActivationStore.open(folder)
    summary = upkeep.summarize(folder)
    assert summary.key == "abc1"
    assert summary.sites == dict.fromkeys(SITES, 6)
    assert summary.root == store.manifest().root
    assert summary.bytes == sum(map(len, bytes_of(folder).values()))
    assert 0 <= summary.age < 1000
    assert summary.what.startswith("6 rows of 6 examples, one token each, at 2 sites; 1 layers")
    record_file(folder, SITES[0], 1).unlink()
    assert upkeep.summarize(folder).sites == {SITES[0]: 3, SITES[1]: 6}
    assert "at 1 sites, 1 more in part" in upkeep.summarize(folder).what
    (folder / "spec.json").write_text("{}")
    assert "spec.json is damaged" in upkeep.summarize(folder).problem


def test_a_cache_is_found_by_folder_and_by_the_beginning_of_its_key(folder, refused):
    root = folder.parent
    CONTENT.write(LocalFiles(root / "abd2"))
    (root / "abx").mkdir()  # no cache
    assert [place.name for place in upkeep.caches_in(root)] == ["abc1", "abd2"]
    assert upkeep.find_cache("abc", root) == upkeep.find_cache("abc1", root) == folder
    assert upkeep.find_cache(str(folder), root / "elsewhere") == folder
    refused(upkeep.find_cache, "ab", root)
    refused(upkeep.find_cache, "abc7", root)
    refused(upkeep.find_cache, "abc", root / "elsewhere")
    refused(upkeep.find_cache, "~nobody-has-this-name/x", root)
    assert upkeep.caches_in(root / "elsewhere") == []


def test_garbage_is_what_no_record_names_and_no_living_writer_holds(folder):
    store = ActivationStore.open(folder)
    expected = bytes_of(folder)
    lost = folder / SITES[0] / f"00001.{'ab' * 8}.safetensors"
    lost.write_bytes(b"of a lost race")
    (folder / SITES[1] / ".00000.safetensors.77").write_bytes(b"of a killed writer")
    (folder / "notes.txt").write_text("mine")
    with store.files.draft(f"{SITES[0]}/x") as alive:
        alive.write(b"living")
        name = f"{SITES[0]}/00001.{'cd' * 8}.safetensors"
        store.files.publish(alive, name)  # and about to link its record
        gone = upkeep.collect_garbage(folder)
        assert gone == {f"{SITES[0]}/{lost.name}": 14, f"{SITES[1]}/.00000.safetensors.77": 18}
        assert (folder / name).exists()
    assert set(upkeep.collect_garbage(folder)) == {name}
    assert bytes_of(folder) == expected | {"notes.txt": b"mine"}


class SlowDisk(Disk):
    """A disk on which something happens just before a lock is taken."""

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile

    def lock(self, descriptor):
        self.meanwhile()
        return super().lock(descriptor)


def test_rows_that_are_written_again_just_now_are_no_garbage(folder):
    [path] = (folder / SITES[0]).glob("00001.*.safetensors")
    record_file(folder, SITES[0], 1).unlink()  # its writer was killed before
    store = ActivationStore.open(folder)
    with store.files.draft(f"{SITES[0]}/x") as alive:
        alive.write(path.read_bytes())
        name = f"{SITES[0]}/{path.name}"
        disk = SlowDisk(lambda: alive.rename(path) if alive.temporary.exists() else None)
        assert not LocalFiles(folder, disk=disk).remove_abandoned(name)
        assert path.exists()
    assert LocalFiles(folder).remove_abandoned(name)


def test_without_file_locks_no_other_run_is_reported(folder, monkeypatch):
    monkeypatch.setattr(Disk, "lock", lambda *_: None)  # such as on Lustre mounted without them
    files = LocalFiles(folder)
    expected, messages = bytes_of(folder), []
    with files.lock(messages.append), files.lock(None):
        CONTENT.write(files)
    assert messages == []
    record_file(folder, SITES[0], 1).write_text("{")
    assert len(upkeep.repair_cache(ActivationStore.open(files))) == 1
    CONTENT.write(files)
    assert bytes_of(folder) == expected
    (folder / SITES[0] / ".draft").write_text("of a live or dead writer")
    assert files.sweep() == {}


def test_what_is_repaired_is_only_what_was_damaged(folder):
    expected = bytes_of(folder)
    path = shard_file(folder, SITES[1], 0)
    path.write_bytes(b"x" * path.stat().st_size)
    record_file(folder, SITES[0], 1).write_text("{")
    store = ActivationStore.open(folder)
    assert {damage.file for damage in upkeep.repair_cache(store)} == {
        f"{SITES[0]}/00001.json",
        f"{SITES[1]}/{path.name}",
    }
    assert (store.missing(SITES[0]), store.missing(SITES[1])) == ((1,), (0,))
    assert upkeep.find_damage(store) == []
    CONTENT.write(LocalFiles(folder))
    assert bytes_of(folder) == expected
    assert upkeep.repair_cache(ActivationStore.open(folder)) == []


def test_a_cache_that_is_written_is_not_repaired_or_removed(folder, refused):
    store = ActivationStore.open(folder)
    with store.files.lock(print):
        refused(upkeep.repair_cache, ActivationStore.open(folder))
        refused(upkeep.remove_cache, folder)
    assert upkeep.find_damage(store) == []


def test_only_caches_are_removed_and_only_what_is_theirs(folder, tmp_path, refused):
    mine = tmp_path / "mine"
    (mine / "deep").mkdir(parents=True)
    (mine / "deep" / "00000.json").write_text("{}")
    refused(upkeep.remove_cache, mine)
    (folder / SITES[0] / "thesis.txt").write_text("mine")
    (folder / "link").symlink_to(mine)
    (folder / "hook_pos_embed").symlink_to(mine / "deep")
    assert upkeep.remove_cache(folder) == [SITES[0]]
    assert (folder / SITES[0] / "thesis.txt").read_text() == "mine"
    assert (mine / "deep" / "00000.json").exists()
    CONTENT.write(LocalFiles(tmp_path / "other"))
    (tmp_path / "other" / "spec.json").write_text("damaged, but there")
    assert upkeep.remove_cache(tmp_path / "other") == []
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("spec", ['{"openapi": "3"}', '{"format": 9}', "not JSON"])
def test_what_others_call_spec_is_no_cache(tmp_path, spec, refused):
    theirs = tmp_path / "projects" / "theirs"
    (theirs / "data").mkdir(parents=True)
    for name, content in (("spec.json", spec), ("manifest.json", "{}"), ("data/00001.json", "{}")):
        (theirs / name).write_text(content)
    expected = bytes_of(theirs)
    assert upkeep.caches_in(tmp_path / "projects") == []  # so `gc --older-than` passes it by
    refused(upkeep.remove_cache, theirs)
    refused(upkeep.find_cache, str(theirs), tmp_path)
    assert bytes_of(theirs) == expected


def test_an_interrupted_removal_is_resumed(folder):
    (folder / "rows.safetensors").unlink()  # the last but one to go
    assert upkeep.find_cache("abc1", folder.parent) == folder
    assert upkeep.remove_cache(folder) == []
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["nfs4", "ext4", "fuse.sshfs"])
def test_a_network_file_system_is_distinguished_from_a_disk(tmp_path, monkeypatch, kind):
    mounts = f"/dev/x / ext4 rw 0 0\nserver:/x {tmp_path.resolve()} {kind} rw 0 0\n"
    monkeypatch.setattr("pathlib.Path.read_text", lambda self, **options: mounts)
    assert is_on_network(tmp_path / "caches" / "key") is (kind != "ext4")
    assert not is_on_network(tmp_path.parent)


def test_age_is_counted_in_days(folder):
    then = time.time() - 2 * 86_400
    for name in ("spec.json", "manifest.json"):
        os.utime(folder / name, (then, then))
    assert [upkeep.is_older(upkeep.summarize(folder), days) for days in (1, 3)] == [True, False]
