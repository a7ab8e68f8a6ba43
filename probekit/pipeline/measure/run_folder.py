"""The folder of a run; the digest of each file is recorded on writing and verified at the end.

.started    marks a run in progress
job.json    what `probekit worker` needs to do its tasks
claims/     locks of the tasks that processes do, and of workers; errors of workers

A task is a site or an edit. Any process with access to the folder can do it: it locks a file in
`claims`, computes the results and saves them. The operating system releases the lock of a process
that ends. Without locks in the file system, two processes may do a task, and save the same results.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from probekit.errors import StoreError
from probekit.files import Waiting, holder_of, is_held, sweep_drafts, try_lock, write_atomic
from probekit.provenance import digest, digest_json
from probekit.results.record import STARTED, changed_files

JOB, CLAIMS = "job.json", "claims"
PAUSE = 0.5  # seconds until the results of other processes are read again

Item = TypeVar("Item")
Result = TypeVar("Result")


def do_task(
    run_dir: Path, file: Path, read: Callable[[], Result | None], compute: Callable[[], Result]
) -> Result | None:
    """Return the new results of a task; None if another process computes or has computed them.

    Args:
        run_dir: folder of the run.
        file: name of the file of the results in this folder.
        read: returns the saved results, None without them.
        compute: computes and saves the results.

    Raises:
        StoreError: a file cannot be locked.
    """
    name = f"{digest_json(file.as_posix())[:24]}.lock"
    with try_lock(run_dir / CLAIMS / name) as is_locked:
        return None if is_locked is False or read() is not None else compute()


def ended_workers(run_dir: Path) -> tuple[dict[str, str], bool]:
    """Return the errors of failed workers of a run, and whether a worker is left.

    The error of a worker that was stopped or killed is "".
    """
    errors, is_left = dict[str, str](), False
    for lock in sorted((run_dir / CLAIMS).glob("*.worker")):
        error = lock.with_suffix(".error")
        if error.exists():
            errors[lock.stem] = error.read_text("utf-8", "replace")
        elif is_held(lock.parent, lock.name):
            is_left = True
        elif lock.exists():  # else it has ended by itself now
            errors[lock.stem] = ""
    return errors, is_left


def until_done(
    tasks: Sequence[Item],
    attempt: Callable[[Sequence[Item]], Iterable[Result | None]],
    wait: Callable[[], None],
) -> Iterator[tuple[Item, Result]]:
    """Yield each task with its result, as soon as it is done.

    Args:
        tasks: the tasks.
        attempt: does those of the given tasks that no other process does; returns their results,
            None for the others, which are attempted again.
        wait: called when other processes do all tasks that are left.
    """
    while tasks:
        left = []
        for task, result in zip(tasks, attempt(tasks), strict=True):
            if result is None:
                left.append(task)
            else:
                yield task, result
        if len(left) == len(tasks):
            wait()
        tasks = left


def pause(waiting: Waiting, *run_dirs: Path) -> None:
    """Wait before results of other processes are read again; report those that do runs or tasks."""
    time.sleep(PAUSE)
    locks = (lock for one in run_dirs for lock in (one / ".lock", *one.glob(f"{CLAIMS}/*.lock")))
    waiting.look(holder_of(lock.parent, lock.name) for lock in locks)


class RunFolder:
    """The folder of a run in progress.

    Args:
        path: `<out>/<name>/<key>`; created if it does not exist.
        created: start time of the run.

    Raises:
        StoreError: The folder cannot be written.
    """

    def __init__(self, path: Path, created: str) -> None:
        write_atomic(path / STARTED, created)
        (path / JOB).unlink(missing_ok=True)  # of a killed run: its cache may be gone
        for name in ended_workers(path)[0]:  # of that run; this one reports only its own
            for suffix in (".worker", ".error"):
                (path / CLAIMS / f"{name}{suffix}").unlink(missing_ok=True)
        sweep_drafts(path.rglob(".*"))
        self.path, self.created = path, created
        self._digests: dict[str, str] = {}

    def write(self, name: str, content: bytes | str) -> None:
        """Write a file of the run.

        Raises:
            StoreError: The file cannot be written, or the folder was deleted during the run.
        """
        data = content.encode() if isinstance(content, str) else content
        write_atomic(self.path / name, data)
        self.note({name: digest([data])})

    def note(self, digests: Mapping[str, str]) -> None:
        """Record the digests of files written by other code, by file name within the folder.

        Raises:
            StoreError: The folder was deleted during the run.
        """
        self._digests |= digests
        # If the folder was deleted, so was any file: check one. All are verified at the end.
        if not (self.path / STARTED).exists():
            raise self._lost([STARTED])

    def digests(self) -> dict[str, str]:
        """Verify all files of the run and return their digests by name within the folder.

        Raises:
            StoreError: A file was deleted or changed since it was written.
        """
        lost = [name for name, _ in changed_files(self.path, self._digests)]
        if lost:
            raise self._lost(lost)
        return dict(sorted(self._digests.items()))

    def finish(self) -> None:
        """Remove the marks of a run in progress, and what its workers need."""
        shutil.rmtree(self.path / CLAIMS, ignore_errors=True)
        for name in (JOB, STARTED):
            (self.path / name).unlink(missing_ok=True)

    def _lost(self, names: list[str]) -> StoreError:
        """Return the error for files that were deleted or changed."""
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return StoreError(
            f"{self.path}: {names[0]}{more} was deleted or changed during the run, by hand or by "
            "another run of the same experiment. The run was stopped. Run the same command again; "
            "captured activations are reused."
        )
