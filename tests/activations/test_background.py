"""The background thread keeps the order, bounds its queue and loses no exception."""

import threading

import pytest

from probekit.activations.background import MAX_WAITING, background_thread


def test_calls_run_in_another_thread_in_order():
    done = []
    with background_thread() as submit:
        for number in range(50):
            submit(lambda n: done.append((n, threading.get_ident())), number)
    assert [n for n, _ in done] == list(range(50))
    assert {thread for _, thread in done}.isdisjoint({threading.get_ident()})
    assert len({thread for _, thread in done}) == 1


def test_no_more_than_a_few_pieces_wait():
    gate, given = threading.Event(), []

    def give():
        with background_thread() as submit:
            for number in range(10):
                submit(gate.wait, 30)
                given.append(number)

    giver = threading.Thread(target=give)
    giver.start()
    giver.join(0.3)
    waiting = len(given)
    gate.set()
    giver.join(30)
    assert waiting == MAX_WAITING
    assert len(given) == 10


def test_a_failure_is_raised_and_nothing_is_done_after_it():
    gate, done = threading.Event(), []

    def fail():
        gate.wait(30)
        raise ZeroDivisionError

    def work():
        with background_thread() as submit:
            submit(done.append, "before")
            submit(fail)
            submit(done.append, "behind")  # waits already when the other fails
            gate.set()

    with pytest.raises(ZeroDivisionError):
        work()
    assert done == ["before"]


def test_a_failure_of_the_last_piece_is_raised_too():
    with pytest.raises(ZeroDivisionError), background_thread() as submit:
        submit(lambda: 1 / 0)


def test_when_the_block_fails_what_waits_is_dropped():
    gate, done = threading.Event(), []

    def first():
        gate.wait(30)
        done.append("first")

    def fail():
        with background_thread() as submit:
            submit(first)
            submit(done.append, "second")
            threading.Timer(0.1, gate.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert done == ["first"]
