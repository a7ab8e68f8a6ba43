"""Object stores: the same rows, the same bytes, the same first committer."""

import re

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from probekit.activations import upkeep
from probekit.activations.local import LocalFiles
from probekit.activations.object_store import ObjectFiles
from probekit.activations.store import ActivationStore
from probekit.errors import DamagedError, StoreError
from tests.activations.captures import SITES as MODEL_SITES
from tests.activations.captures import files as bytes_of
from tests.activations.captures import run
from tests.activations.small_store import CONTENT, IDENTITY, SITES, check_the_first_committer_wins
from tests.stored import each_row

KEY = IDENTITY.key


@pytest.fixture
def root():
    """Return an empty folder in the in-memory object store of this process."""
    MemoryFileSystem.store.clear()
    return "memory://caches"


def objects(url):
    files = ObjectFiles(url)
    return {name: files.read(name) for one in ("", *files.folders()) for name in files.sizes(one)}


def test_a_capture_is_written_to_and_read_from_an_object_store(tmp_path, root, model):
    there, here = run(root, model), run(tmp_path, model)
    assert there.root == here.root
    assert there.computed == here.computed
    for site in MODEL_SITES:
        assert np.array_equal(there.store.read(site), here.store.read(site))
    assert objects(there.store.folder) == bytes_of(here.store.folder)
    assert run(root, model).computed == 0
    more = run(root, model, sites=(*MODEL_SITES, "blocks.1.hook_mlp_out"))
    assert more.computed == len(here.store.shards)


def test_the_first_committer_wins_in_an_object_store(root):
    check_the_first_committer_wins(ObjectFiles(f"{root}/{KEY}"))


def test_a_cache_is_pushed_pulled_and_pinned(tmp_path, root, refused):
    store = CONTENT.write(LocalFiles(tmp_path / "a" / KEY))
    pin = store.manifest().root
    pushed, copied = upkeep.copy_cache(tmp_path / "a" / KEY, root)
    assert copied == 4
    assert pushed.manifest().root == pin
    assert upkeep.copy_cache(tmp_path / "a" / KEY, root)[1] == 0
    pulled, copied = upkeep.copy_cache(f"{root}/{KEY}", tmp_path / "b", pin=pin)
    assert copied == 4
    assert bytes_of(pulled.folder) == bytes_of(store.folder)
    refused(upkeep.copy_cache, f"{root}/{KEY}", tmp_path / "c", pin="0" * 64)
    assert not (tmp_path / "c").exists()


def test_a_pin_covers_the_sealed_sites_only(tmp_path):
    store = CONTENT.write(LocalFiles(tmp_path / "a" / KEY))
    pin = store.manifest().root
    store.commit("blocks.0.hook_mlp_out", 0, CONTENT.values[SITES[0]][store.shards[0]])
    pulled, copied = upkeep.copy_cache(tmp_path / "a" / KEY, tmp_path / "b", pin=pin)
    assert copied == 4
    assert pulled.manifest().root == pin
    assert pulled.sites == SITES


def test_damage_on_the_way_is_never_copied(tmp_path, root, refused):
    CONTENT.write(ObjectFiles(f"{root}/{KEY}"))
    files = ObjectFiles(f"{root}/{KEY}")
    name = next(name for name in files.sizes(SITES[1]) if name.endswith("safetensors"))
    content = bytearray(files.read(name))
    content[-1] ^= 4
    fsspec.filesystem("memory").pipe_file(f"{root.removeprefix('memory:/')}/{KEY}/{name}", content)
    refused(upkeep.copy_cache, f"{root}/{KEY}", tmp_path)
    store = ActivationStore.open(f"{root}/{KEY}")
    assert [damage.file for damage in upkeep.find_damage(store)] == [name]
    assert len(upkeep.repair_cache(store)) == 1
    CONTENT.write(files)
    assert upkeep.find_damage(store) == []
    assert len(upkeep.copy_cache(f"{root}/{KEY}", tmp_path)[0].sites) == 2


LINK, LOST = "a link to the file", "no file"
RECORD = f"{SITES[1]}/00001.json"


@each_row("place, content, why")
def test_a_source_that_cannot_be_copied_in_full_is_refused(tmp_path, place, content, why):
    CONTENT.write(LocalFiles(tmp_path / "a" / KEY))
    [path] = (tmp_path / "a" / KEY).glob(place)
    path.rename(tmp_path / "aside")
    if content == LINK:
        path.symlink_to(tmp_path / "aside")
    elif content != LOST:
        path.write_text(content)
    name = path.relative_to(tmp_path / "a" / KEY).as_posix()
    with pytest.raises(DamagedError, match=f"was not copied.*{re.escape(name)}.*{why}"):
        upkeep.copy_cache(tmp_path / "a" / KEY, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_cache_that_is_begun_is_copied_as_far_as_it_is(tmp_path):
    store = CONTENT.create(LocalFiles(tmp_path / "a" / KEY))
    store.commit(SITES[0], 0, CONTENT.values[SITES[0]][store.shards[0]])
    assert upkeep.copy_cache(tmp_path / "a" / KEY, tmp_path / "b")[1] == 1


def test_an_interrupted_copy_is_resumed(tmp_path, root, monkeypatch):
    CONTENT.write(LocalFiles(tmp_path / KEY))
    send = MemoryFileSystem.put_file
    sent = []

    def fail(self, *arguments, **options):
        sent.append(arguments)
        if len(sent) > 3:
            raise OSError(5, "connection lost")
        return send(self, *arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", fail)
    with pytest.raises(StoreError, match="connection lost"):
        upkeep.copy_cache(tmp_path / KEY, root)
    monkeypatch.undo()
    assert 0 < upkeep.copy_cache(tmp_path / KEY, root)[1] < 4
    assert objects(f"{root}/{KEY}") == bytes_of(tmp_path / KEY)


def test_caches_in_an_object_store_are_looked_after(root, refused):
    CONTENT.write(ObjectFiles(f"{root}/{KEY}"))
    assert upkeep.caches_in(root) == [f"{root}/{KEY}"] == [upkeep.find_cache(KEY[:5], root)]
    summary = upkeep.summarize(f"{root}/{KEY}")
    assert summary.sites == dict.fromkeys(SITES, 6)
    assert summary.age is not None
    # Live and dead writers cannot be distinguished: recent objects are kept.
    ObjectFiles(f"{root}/{KEY}").create(f"{SITES[0]}/00000.{'ab' * 8}.safetensors", b"x")
    assert upkeep.collect_garbage(f"{root}/{KEY}") == {}
    fsspec.filesystem("memory").pipe_file(f"{root.removeprefix('memory:/')}/{KEY}/mine.txt", b"x")
    assert upkeep.remove_cache(f"{root}/{KEY}") == ["mine.txt"]
    refused(upkeep.remove_cache, f"{root}/{KEY}")


class PlainFiles(ObjectFiles):
    """An object store without exclusive creation."""

    @property
    def is_exclusive(self):
        return False


def test_a_store_without_conditional_create_refuses_a_second_writer(root, refused):
    first, second = (PlainFiles(f"{root}/{KEY}") for _ in range(2))
    store = CONTENT.create(first)
    with store.files.lock(print):
        store.commit(SITES[0], 0, CONTENT.values[SITES[0]][store.shards[0]])
        with pytest.raises(StoreError, match="Another writer has locked"), second.lock(print):
            pass
        refused(CONTENT.create(second).commit, SITES[1], 0, CONTENT.values[SITES[1]][:3])
    refused(store.commit, SITES[0], 1, CONTENT.values[SITES[0]][store.shards[1]])
    CONTENT.write(second)
    second.create(".lock", b"a dead writer's")
    refused(CONTENT.write, PlainFiles(f"{root}/{KEY}"))
    second.break_lock()
    CONTENT.write(first)


def test_a_server_that_accepts_a_second_create_is_detected(root, monkeypatch):
    assert ObjectFiles(f"{root}/{KEY}").is_exclusive

    def careless(self, path, value, mode="overwrite", **options):
        with self.open(path, "wb") as file:
            file.write(value)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", careless)
    assert not ObjectFiles(f"{root}/{KEY}").is_exclusive
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", AbstractFileSystem.pipe_file)
    assert not ObjectFiles(f"{root}/{KEY}").is_exclusive


def test_an_unknown_scheme_says_what_to_install(refused):
    with pytest.raises(StoreError, match="Cannot reach nothing://x"):
        ActivationStore.open("nothing://x/y")
    refused(ActivationStore.open, "memory://nowhere/at-all")
