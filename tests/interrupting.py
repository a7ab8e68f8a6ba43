"""Ctrl-C for a command under test, at a moment that the test chooses."""

import signal
import subprocess
import time


def interrupt(command, is_time, by=signal.SIGINT, **how):
    """The exit code and the errors of a command that got Ctrl-C as soon as `is_time()`.

    In a background job of a shell Ctrl-C is ignored, which a command inherits from the tests: it
    has its own meaning here while the command starts.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, **how)
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 300
    while not is_time() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(by)
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors
