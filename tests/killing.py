"""Commands that are killed at random moments.

Each runs in a fork of one process that has done the imports, which take longer than most commands.
"""

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Commands:
    """Runs commands in a folder, in forks of one process."""

    def __init__(self, folder):
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.killing", folder],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self):
        self._server.communicate("")
        assert self._server.returncode == 0

    def finish(self, arguments):
        """Run a command to its end."""
        assert self._run(arguments, None) == 0

    def kill_at_random(self, arguments, seconds, times, *, check):
        """Kill a command so many times within its first seconds, and call `check` after each.

        Returns how many kills met the command at work.
        """
        moments, n_kills = random.Random(1), 0
        for _ in range(times):
            code = self._run(arguments, moments.uniform(0, seconds))
            assert code in (0, -signal.SIGKILL)
            n_kills += code != 0
            check()
        return n_kills

    def _run(self, arguments, seconds):
        """Return the exit code of a command, which is killed after so many seconds."""
        self._server.stdin.write(json.dumps([*map(str, arguments)]) + "\n")
        self._server.stdin.flush()
        process = int(self._server.stdout.readline())
        if seconds is not None and not select.select([self._server.stdout], [], [], seconds)[0]:
            os.kill(process, signal.SIGKILL)  # a child that has ended is not waited for before this
        return int(self._server.stdout.readline())


def serve(folder):
    """Fork for each line of the standard input; print the process, then its exit code."""
    import probekit.cli.main
    import probekit.pipeline.compare.compare
    import probekit.pipeline.compare.transfer
    import probekit.pipeline.look.apply
    import probekit.pipeline.look.exports

    assert probekit.pipeline
    os.chdir(folder)
    for line in sys.stdin:
        process = os.fork()
        if not process:
            with contextlib.ExitStack() as at_end:
                at_end.callback(os._exit, 1)  # never returns to the loop
                os._exit(call(json.loads(line)))
        answer(process)
        answer(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))


def answer(number):
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def call(arguments):
    """Return the exit code of a command; helpers are started however little there is to do."""
    from probekit import workers
    from probekit.cli.main import main

    workers.START_UP = 0.0
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(nowhere, stream)
    sys.argv = ["probekit", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0


if __name__ == "__main__":
    serve(sys.argv[1])
