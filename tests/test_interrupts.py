"""Interrupts that other code swallows are raised again."""

import contextlib
import ctypes
import signal
import threading

import pytest

from probekit.terminal import SIGNALS, Interruptible


class Terminated(KeyboardInterrupt):
    """Handle SIGTERM like the command line."""


@pytest.fixture(autouse=True)
def handlers():
    """Install raising handlers as the command line does, and restore them afterwards."""

    def terminate(number, frame):
        raise Terminated

    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminate)
    yield {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)


def swallow_in_except(number):
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


def swallow_in_destructor(number):
    class Careless:
        def __del__(self):
            signal.raise_signal(number)

    Careless()


def swallow_in_ctypes(number):
    def callback():
        signal.raise_signal(number)
        return 0

    ctypes.CFUNCTYPE(ctypes.c_int)(callback)()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("swallow", [swallow_in_except, swallow_in_destructor, swallow_in_ctypes])
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_an_interrupt_that_is_caught_ends_the_block(handlers, number, error, swallow):
    with pytest.raises(error) as caught, Interruptible(), Interruptible():
        swallow(number)
    assert type(caught.value) is error
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_an_error_that_replaces_an_interrupt_is_its_cause():
    def replace():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise RuntimeError("the library failed") from None

    with pytest.raises(Terminated) as caught, Interruptible():
        replace()
    assert str(caught.value.__cause__) == "the library failed"


def test_a_block_without_interrupts_changes_nothing(handlers):
    with Interruptible():
        pass
    with pytest.raises(ValueError, match="other"), Interruptible():
        raise ValueError("other")
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_system_exit_answers_an_interrupt():
    def serve():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemExit(0) from None

    with pytest.raises(SystemExit), Interruptible():
        serve()


def test_ignored_signals_stay_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interruptible():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_are_left_alone(handlers):
    inside = []

    def work():
        with Interruptible():
            inside.append({number: signal.getsignal(number) for number in SIGNALS})

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [handlers]
