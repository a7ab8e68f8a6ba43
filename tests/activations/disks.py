"""Disks that kill, fail, write too little, or forget what was not synced."""

import errno
import itertools
import os
import signal
import sys
from pathlib import Path

from probekit.files import Disk

OPERATIONS = tuple(name for name, value in vars(Disk).items() if callable(value))


class WatchedDisk(Disk):
    """A disk whose every call goes through `around(number, name, call, arguments)`."""

    def __init__(self, around=None):
        self.calls = []
        if around is not None:
            self.around = around

    def around(self, number, name, call, arguments):
        return call(*arguments)


def _watched(name):
    original = getattr(Disk, name)

    def method(self, *arguments, **options):
        self.calls.append(name)

        def call(*given):
            return original(self, *given, **options)

        return self.around(len(self.calls) - 1, name, call, arguments)

    return method


for _name in OPERATIONS:
    setattr(WatchedDisk, _name, _watched(_name))


def killing(at):
    """A disk that kills the process before a call."""

    def around(number, name, call, arguments):
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)

    return WatchedDisk(around)


def failing(at, code, *, for_good=False):
    """A disk on which one call fails, or that call and all later ones."""

    def around(number, name, call, arguments):
        if number == at or (for_good and number > at):
            if name == "close":
                call(*arguments)  # closes the file even if it reports an error
            raise OSError(code, os.strerror(code))
        return call(*arguments)

    return WatchedDisk(around)


def writing_short(at):
    """A disk that, from one call on, writes half of the data and then nothing."""

    def around(number, name, call, arguments):
        if name == "write" and number == at:
            descriptor, data = arguments
            return call(descriptor, data[: max(1, len(data) // 2)])
        return call(*arguments)

    return WatchedDisk(around)


def sync_caller():
    """Return file and line of the current call of `sync` or `sync_folder`."""
    frame = sys._getframe(1)
    while Path(frame.f_code.co_filename).name not in ("files.py", "local.py"):
        frame = frame.f_back
    return Path(frame.f_code.co_filename).name, frame.f_lineno


class ForgetfulDisk(WatchedDisk):
    """A real disk, and a model of the states that a power loss may leave on it.

    Args:
        base: the folder that is modelled; it lasts.
        forget: file and line of one call of a sync that does nothing.
    """

    def __init__(self, base, forget=None):
        super().__init__()
        self.base = base
        self.forget = forget
        self.data = {}  # of each file: all bytes, and how many of them are synced
        self.names = {}  # which file has a path now
        self.lasting = {base: {}}  # of each folder: what has a name for sure
        self.pending = {base: []}  # and the changes of names that may be lost
        self.descriptors = {}
        self.syncs = set()
        self.is_dead = False
        self.on_call = lambda: None

    def around(self, number, name, call, arguments):
        self.on_call()
        if self.is_dead:
            # The system closes the files of a dead process, which releases its locks.
            if name == "close":
                return call(*arguments)
            raise OSError(errno.EIO, "dead")
        result = call(*arguments)
        getattr(self, f"after_{name}", lambda *_: None)(result, *arguments)
        return result

    def _change(self, path, change):
        self.pending[path.parent].append((*change, path.name))

    def after_make_folder(self, _, path):
        self.lasting[path], self.pending[path] = {}, []
        self._change(path, ("add", path))

    def after_create(self, descriptor, path):
        number = len(self.data)
        self.data[number] = [bytearray(), 0]
        self.names[path] = self.descriptors[descriptor] = number
        self._change(path, ("add", number))

    def after_open_lock(self, descriptor, _):
        self.descriptors.pop(descriptor, None)  # of a closed file; signatures of locks may be lost

    def after_write(self, size, descriptor, data):
        if descriptor in self.descriptors:
            self.data[self.descriptors[descriptor]][0] += data[:size]

    def after_sync(self, _, descriptor):
        self.syncs.add(sync_caller())
        if sync_caller() != self.forget:
            content = self.data[self.descriptors[descriptor]]
            content[1] = len(content[0])

    def after_sync_folder(self, _, path):
        self.syncs.add(sync_caller())
        if sync_caller() != self.forget and path in self.pending:
            _apply(self.lasting[path], self.pending[path])
            self.pending[path] = []

    def after_rename(self, _, old, new):
        self.names[new] = self.names.pop(old)
        self.pending[new.parent].append(("move", self.names[new], new.name, old.name))

    def after_link(self, _, old, new):
        self.names[new] = self.names[old]
        self._change(new, ("add", self.names[old]))

    def after_remove(self, _, path):
        self.names.pop(path)
        self._change(path, ("remove", None))

    def states(self, most=64):
        """Return all possible states after a power loss: folders as dictionaries, files as bytes.

        Any of a folder's last changes of names may be lost and the later ones kept, and what was
        not synced may be there, be gone, be cut or be zeros.
        """
        for folder in self.pending:
            others = [other for other in self.pending if other != folder]
            for keeps_others in (True, False):
                for kept in itertools.islice(_subsets(self.pending[folder]), most):
                    changes = {folder: kept}
                    changes |= {o: self.pending[o] if keeps_others else [] for o in others}
                    for content in (_whole, _dropped, _torn, _zeroed):
                        yield self._image(self.base, changes, content)

    def worst_state(self):
        """Return the state in which everything is lost that may be."""
        return self._image(self.base, {folder: [] for folder in self.pending}, _dropped)

    def _image(self, folder, changes, content):
        names = dict(self.lasting[folder])
        _apply(names, changes[folder])
        return {
            name: self._image(what, changes, content)
            if isinstance(what, Path)
            else content(*self.data[what])
            for name, what in names.items()
        }


def _apply(names, changes):
    for kind, what, name, *old in changes:
        if kind == "remove":
            names.pop(name, None)
        else:
            names[name] = what
        for gone in old:
            names.pop(gone, None)


def _subsets(changes):
    """Yield all ways to lose changes, with the largest and smallest losses first."""
    yield changes
    for n in range(len(changes)):
        yield from map(list, itertools.combinations(changes, n))


def _whole(data, synced):
    return bytes(data)


def _dropped(data, synced):
    return bytes(data[:synced])


def _torn(data, synced):
    return bytes(data[: (synced + len(data)) // 2])


def _zeroed(data, synced):
    return bytes(data[:synced]) + bytes(len(data) - synced)


def lay_out(image, folder):
    """Write an image into a new folder."""
    folder.mkdir()
    for name, content in image.items():
        if isinstance(content, dict):
            lay_out(content, folder / name)
        else:
            (folder / name).write_bytes(content)
