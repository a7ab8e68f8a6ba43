"""A store on systems where open files are pinned, locked ones unreadable, links followed."""

import errno
import fcntl
import os

import pytest

from probekit import files as disk_module
from probekit.activations import upkeep
from probekit.activations.local import LocalFiles
from probekit.errors import DamagedError
from probekit.files import Disk, is_on_network, write_atomic
from tests.activations.disks import WatchedDisk
from tests.activations.small_store import CONTENT, check_the_first_committer_wins


class WindowsDisk(WatchedDisk):
    """A disk that refuses the operations that Windows refuses on open files."""

    pins_open_files = True

    def __init__(self):
        super().__init__()
        self.files = {}  # of each open descriptor
        self.locked = set()  # descriptors that hold a lock
        self.refused = []

    def around(self, number, name, call, arguments):
        getattr(self, f"before_{name}", lambda *_: None)(*arguments)
        result = call(*arguments)
        if name in ("create", "open", "open_lock"):
            self.files[result] = identity(os.fstat(result))
        elif name == "lock" and result:
            self.locked.add(arguments[0])
        elif name == "close":
            self.files.pop(arguments[0])
            self.locked.discard(arguments[0])
        return result

    def before_rename(self, *paths):
        for path in paths:
            if path.exists() and identity(path.stat()) in self.files.values():
                self.refuse(f"{path} is open")

    before_remove = before_rename

    def before_read(self, descriptor, size):
        holders = {self.files[each] for each in self.locked - {descriptor}}
        if self.files[descriptor] in holders and os.fstat(descriptor).st_size:
            self.refuse("it is locked")

    def before_link(self, old, new):
        holders = {self.files[each] for each in self.locked}
        if identity(old.stat()) in holders and old.stat().st_size:
            self.refuse("others could not read it")

    def refuse(self, why):
        self.refused.append(why)
        raise PermissionError(errno.EACCES, why)


def identity(found):
    return found.st_dev, found.st_ino


def windows_files(folder):
    return LocalFiles(folder, disk=WindowsDisk())


def test_a_store_is_written_with_the_same_bytes(tmp_path):
    expected = CONTENT.expected(tmp_path / "posix")
    files = windows_files(tmp_path / "windows")
    CONTENT.write(files)
    CONTENT.check(tmp_path / "windows", set(), expected)
    assert files.disk.refused == []
    assert files.disk.files == {}


def test_a_second_writer_drops_its_rows(tmp_path):
    files = windows_files(tmp_path / "both")
    check_the_first_committer_wins(files)
    assert files.disk.refused == []


def test_shard_locks_are_held_and_released(tmp_path):
    files, others = windows_files(tmp_path), LocalFiles(tmp_path)
    with files.try_lock("00000.claim") as is_first_locked:
        assert is_first_locked
        assert not others.remove_abandoned("00000.claim")
        with others.try_lock("00000.claim") as is_second_locked:
            assert not is_second_locked
    assert list(tmp_path.iterdir()) == []
    assert files.disk.refused == []


def test_what_killed_writers_left_is_removed(tmp_path):
    files = windows_files(tmp_path / "store")
    CONTENT.write(files)
    (tmp_path / "store" / "00001.claim").touch()
    (tmp_path / "store" / CONTENT.sites[0] / ".00000.json.0123").touch()
    upkeep.remove_dead_locks(files)
    assert upkeep.shard_locks(files) == []
    assert files.sweep() == {f"{CONTENT.sites[0]}/.00000.json.0123": 0}
    assert files.disk.refused == []


def test_a_file_that_was_opened_meanwhile_is_left(tmp_path):
    files = windows_files(tmp_path)
    (tmp_path / "00001.claim").touch()
    opened = files.disk.open(tmp_path / "00001.claim")
    assert not files.remove_abandoned("00001.claim")
    assert (tmp_path / "00001.claim").exists()
    files.disk.close(opened)
    assert files.remove_abandoned("00001.claim")


def test_caches_are_removed_and_collected(tmp_path, monkeypatch):
    disk = WindowsDisk()
    monkeypatch.setattr("probekit.activations.local.Disk", lambda: disk)
    CONTENT.write(LocalFiles(tmp_path / "store"))
    assert upkeep.collect_garbage(tmp_path / "store") == {}
    assert upkeep.remove_cache(tmp_path / "store") == []
    assert not (tmp_path / "store").exists()
    assert disk.refused == []


def test_a_replacement_waits_for_readers_that_leave(tmp_path, monkeypatch):
    """Virus scanners open every new file for a moment."""
    write_atomic(tmp_path / "a", "old")
    monkeypatch.setattr(Disk, "pins_open_files", True)
    replaced, replace = [], type(tmp_path).replace

    def busy(self, target):
        replaced.append(target)
        if len(replaced) < 3:
            raise PermissionError(errno.EACCES, "it is open")
        return replace(self, target)

    monkeypatch.setattr(type(tmp_path), "replace", busy)
    monkeypatch.setattr(disk_module, "_PAUSES", (0, 0, 0))
    write_atomic(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"


def test_links_folders_and_pipes_are_refused_without_flags(tmp_path, monkeypatch):
    """A system's `open` may neither refuse links, nor skip waiting, nor open folders."""
    for flag, value in {"_NO_FOLLOW": 0, "_NO_BLOCK": 0, "_FOLDER": None}.items():
        monkeypatch.setattr(disk_module, flag, value)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(DamagedError, match="a link or not a regular file"):
            LocalFiles(tmp_path).read(name)
        with pytest.raises(OSError, match="not a regular file"):
            Disk().open_lock(tmp_path / name)
    assert LocalFiles(tmp_path).read("file") == b"x"
    Disk().sync_folder(tmp_path / "no folder is opened")


class NFS(Disk):
    """A disk whose exclusive locks need a descriptor for writing, as those of NFS do."""

    def lock(self, descriptor):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        return super().lock(descriptor)


def test_abandoned_files_are_removed_on_nfs(tmp_path):
    (tmp_path / "00001.claim").touch()
    assert LocalFiles(tmp_path, disk=NFS()).remove_abandoned("00001.claim")


def test_a_file_system_without_locks_is_known_by_its_error(tmp_path, monkeypatch):
    disk = Disk()
    descriptor = disk.open_lock(tmp_path / "lock")

    def fails(error):
        def lock(_, **how):
            raise error

        monkeypatch.setattr(disk_module, "lock_descriptor", lock)

    for code in (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP):
        fails(OSError(code, "no locks"))
        assert disk.lock(descriptor) is None
    network_drive = OSError(errno.EINVAL, "Incorrect function")
    network_drive.winerror = 1
    fails(network_drive)
    assert disk.lock(descriptor) is None
    fails(OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        disk.lock(descriptor)
    disk.close(descriptor)


def test_a_windows_share_is_a_network(tmp_path, monkeypatch):
    assert not is_on_network(tmp_path)
    monkeypatch.setattr(type(tmp_path), "drive", r"\\server\share")
    assert is_on_network(tmp_path)
