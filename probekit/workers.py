"""Parallel map over worker processes that share the CPU cores.

Without an estimate of the time, the first job runs in this process and measures it. Worker
processes are started only if the jobs would take clearly longer than the start of a process. This
process computes jobs too. Every job uses the same number of threads in any process, because the
last bits of a result may depend on that number.
"""

import ctypes
import mmap
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from multiprocessing import resource_tracker
from pathlib import Path
from pickle import PickleBuffer
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import cloudpickle
from joblib import cpu_count

from probekit.errors import ConfigError, DataError
from probekit.files import as_store_error
from probekit.products import START_UP, threads
from probekit.terminal import Interruptible

try:
    from joblib.externals.loky import ProcessPoolExecutor
except ImportError:  # joblib without its bundled loky: all jobs run in this process
    ProcessPoolExecutor = None

Item = TypeVar("Item")
Result = TypeVar("Result")

_GUARD = "ends with the parent"  # name of a thread
IDLE = 10.0  # seconds without work after which a worker process exits
_SYNCHRONIZE, _INFINITE = 0x0010_0000, 0xFFFF_FFFF  # constants of the Windows API


def parallel_map(
    job: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int | None = None,
    n_threads: int | None = None,
    seconds: float | None = None,
) -> Iterator[Result]:
    """Yield the result of each job, in the order of the items.

    Args:
        job: function of one item. Function, items and results must be picklable.
        items: arguments of the jobs.
        workers: number of jobs that run at the same time; None for one per core.
        n_threads: threads per job; None for an equal share of the cores.
        seconds: estimated time of all jobs in one process; None to measure the first one.

    Raises:
        ConfigError: `workers` is less than 1.
        DataError: a worker process was killed, for example because memory ran out.
        StoreError: the temporary file of the job cannot be written.

    >>> list(parallel_map(abs, [-3, 1, -2]))
    [3, 1, 2]
    """
    cores = cpu_count()
    check_workers(workers)
    wanted = cores if workers is None else workers
    if not items:
        return
    n_parallel = min(wanted, len(items))
    if n_threads is None:
        n_threads = max(1, cores // n_parallel)
    run_job = partial(_threaded, job, n_threads)
    if seconds is None:
        start = time.perf_counter()
        first = run_job(items[0])
        items = items[1:]
        seconds = (time.perf_counter() - start) * len(items)
        yield first
    # Worker processes must save more time than their start takes. Two processes save half.
    if n_parallel == 1 or seconds < 2 * START_UP or ProcessPoolExecutor is None:
        yield from map(run_job, items)
    else:
        yield from _in_parallel(run_job, items, n_parallel - 1)  # and this process


def check_workers(workers: int | None, least: int = 1) -> None:
    """Check a number of workers; None means one per core.

    Raises:
        ConfigError: it is not an integer, or below the least allowed number.
    """
    if workers is not None and (not isinstance(workers, int) or workers < least):
        raise ConfigError(
            f"workers is {workers!r}; give {least} or more, or omit it for one per core."
        )


def _in_parallel(
    job: Callable[[Item], Result], items: Sequence[Item], helpers: int
) -> Iterator[Result]:
    """Yield results in order; workers and this process take the next item that nobody has begun."""
    executor = _processes(helpers)
    # Numbers of the items that nobody has begun, and the results that workers compute, by number.
    pending, futures = deque(range(len(items))), dict[int, Future[Result]]()
    lock = threading.Lock()  # done callbacks run in another thread
    here = Path.cwd()  # worker processes of an earlier call may have another working directory

    def submit_next(finished: Future[Result] | None = None) -> None:
        """Begin the next pending item, if any; called again when a worker has finished one."""
        if finished is not None and finished.exception() is not None:
            return
        with lock:
            if not pending:
                return
            number = pending.popleft()
            with _sigint_blocked_in_children():
                future = futures[number] = executor.submit(
                    _of_file, os.getpid(), here, written.name, items[number]
                )
        future.add_done_callback(submit_next)

    own: dict[int, Result] = {}  # results that this process computed, by number
    # The job can hold labels and groups of millions of rows: it is written once, and mapped.
    # Windows removes no file that a worker still maps.
    written = TemporaryDirectory(prefix="probekit-", ignore_cleanup_errors=True)
    try:
        with as_store_error("write", written.name):
            _write_job(job, Path(written.name))
        for _ in range(helpers):
            submit_next()
        for number in range(len(items)):
            # Until the next result is there, compute other items.
            while number not in own and not (number in futures and futures[number].done()):
                with lock:
                    own_number = pending.popleft() if pending else None
                if own_number is None:  # a worker has begun the next result, so wait for it
                    break
                own[own_number] = job(items[own_number])
            yield own.pop(number) if number in own else futures.pop(number).result()
    except BaseException as error:
        with lock:
            pending.clear()
        # loky's management thread fails if it is shut down before it has passed on a job.
        while not all(future.running() or future.done() for future in futures.values()):
            time.sleep(0.01)
        executor.shutdown(kill_workers=True)
        _processes.cache_clear()
        if isinstance(error, BrokenProcessPool):
            raise DataError(
                "A worker process was killed. If memory ran out, use fewer workers with --workers."
            ) from error
        raise
    finally:
        written.cleanup()


def _write_job(job: Callable[[Item], Result], folder: Path) -> None:
    """Write a job into a folder, its arrays into a file of their own."""
    buffers: list[PickleBuffer] = []
    # Pickled by value, so that functions defined in a script or notebook can be sent.
    content = cloudpickle.dumps(job, protocol=5, buffer_callback=buffers.append)
    with (folder / "arrays").open("wb") as file:
        places = []
        for buffer in buffers:
            file.seek(-file.tell() % 64, os.SEEK_CUR)  # aligned as NumPy aligns arrays
            places.append((file.tell(), buffer.raw().nbytes))
            file.write(buffer.raw())
        file.truncate(max(1, file.tell()))  # an empty file cannot be mapped
    (folder / "job").write_bytes(pickle.dumps((content, places)))


@lru_cache(maxsize=1)
def _read_job(folder: str) -> Callable[[Any], Any]:
    """Return the job in a folder; its arrays are those of the file, and cannot be changed."""
    content, places = pickle.loads(Path(folder, "job").read_bytes())  # noqa: S301  # written above
    with Path(folder, "arrays").open("rb") as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    buffers = [mapped[start : start + size] for start, size in places]
    job: Callable[[Any], Any] = pickle.loads(content, buffers=buffers)  # noqa: S301
    return job


@cache
def _processes(number: int) -> ProcessPoolExecutor:
    """Return a pool of worker processes that exit when idle.

    loky's reusable pool is shared with joblib, whose Parallel fails on workers of other callers.
    """
    # It warns when it replaces a process that was idle, or that used more and more memory.
    warnings.filterwarnings("ignore", "A worker stopped while some", module=r"joblib\..*loky")
    return ProcessPoolExecutor(number, timeout=IDLE, initializer=_ignore_ctrl_c)


@contextmanager
def _sigint_blocked_in_children() -> Iterator[None]:
    """Start child processes with SIGINT blocked; the parent handles it.

    Where signals cannot be blocked (Windows), a child ignores them as soon as it has started.
    """
    if sys.platform != "win32" and hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # starting it later would unblock SIGINT (Python 3.11)
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # blocks no signal, reads the mask
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    else:
        yield


def _ignore_ctrl_c() -> None:
    """Ignore SIGINT in a worker process where it cannot be started with SIGINT blocked."""
    if not hasattr(signal, "pthread_sigmask"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _threaded(job: Callable[[Item], Result], n_threads: int, item: Item) -> Result:
    """Run a job with a number of threads; an interrupt that it swallows is raised again."""
    with Interruptible(), threads(n_threads):
        return job(item)


def _of_file(parent: int, here: Path, folder: str, item: Item) -> Any:
    """Run the job in a folder in a worker process, which exits when its parent ends.

    Args:
        parent: process id of the parent.
        here: working directory of the parent, from which the job's relative paths start.
        folder: folder with the files of `_write_job`.
        item: argument of the job.
    """
    exit_with_parent(parent)
    os.chdir(here)
    return _read_job(folder)(item)


def exit_with_parent(parent: int) -> None:
    """Start a thread that exits this process when its parent ends, even if the parent is killed.

    Nothing is done if this process has such a thread already.
    """
    if not any(thread.name == _GUARD for thread in threading.enumerate()):
        threading.Thread(target=_exit_after, args=[parent], name=_GUARD, daemon=True).start()


def _exit_after(parent: int) -> None:
    """Wait until the parent process has ended, then exit this process at once."""
    if sys.platform == "win32":  # getppid still returns the id of a parent that has ended
        kernel = ctypes.WinDLL("kernel32")
        kernel.OpenProcess.restype = ctypes.c_void_p
        kernel.WaitForSingleObject.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
        process = kernel.OpenProcess(_SYNCHRONIZE, False, parent)
        if process:  # else the parent has ended already
            kernel.WaitForSingleObject(process, _INFINITE)
    else:
        while os.getppid() == parent:
            time.sleep(1)
    os._exit(1)
