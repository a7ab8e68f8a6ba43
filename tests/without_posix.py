"""Run as a script: a probe and an experiment on a system without POSIX's own calls.

The libraries need them on Linux and are imported first; fcntl is missing from the start.
"""

import os
import signal
import sys
import warnings
from pathlib import Path

MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
NAMES = {
    os: (
        "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK WNOHANG chown fchmod fork forkpty "
        "fstatvfs geteuid getgid getpgid getuid killpg mkfifo nice posix_fadvise pread "
        "pwrite register_at_fork setsid statvfs sysconf uname wait"
    ),
    signal: (
        "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGUSR1 SIG_BLOCK SIG_SETMASK alarm "
        "pthread_kill pthread_sigmask setitimer sigwait"
    ),
}
LIBRARIES = (
    "fsspec.implementations.local",
    "joblib.externals.loky.process_executor",
    "pandas",
    "platformdirs",
    "plotly.graph_objects",
    "sklearn.neural_network",
    "subprocess",
    "tempfile",
    "tiktoken",
    "torch.multiprocessing",
)


def take_away():
    """Leave what Windows has, as far as the libraries of another system can do with it."""
    sys.modules |= dict.fromkeys(MODULES)
    for library in LIBRARIES:
        __import__(library)
    for module, names in NAMES.items():
        for name in names.split():
            delattr(module, name)
    os.supports_follow_symlinks.discard(os.link)


def probe_arrays():
    """Fit a probe on rows whose first feature is the label."""
    import numpy as np

    from probekit import LinearProbe

    X = np.random.default_rng(0).normal(size=(40, 5))
    return LinearProbe(C=1.0).fit(X, X[:, 0] > 0).score(X, X[:, 0] > 0)


def main(folder):
    """Write the results of a probe, an experiment and a shard lock."""
    # Windows decodes text that names no encoding by its own code page.
    warnings.filterwarnings("error", category=EncodingWarning, module="probekit")
    import probekit
    from probekit.activations.local import LocalFiles
    from probekit.workers import parallel_map

    assert list(parallel_map(abs, [-1, 2])) == [1, 2]
    where = {"out": folder / "runs", "cache_root": folder / "cache"}
    result = probekit.run(folder / "experiment.yaml", **where, page=False)
    for cache in (folder / "cache").iterdir():
        probekit.ActivationStore.open(cache).verify()
    with LocalFiles(cache).try_lock("x.claim") as is_ours:
        sys.stdout.write(f"{probe_arrays()} {len(result.table)} {is_ours}")


if __name__ == "__main__":
    take_away()
    main(Path(sys.argv[1]))
