"""Work beside the computation: in order, bounded, and no failure is lost."""

import threading

import pytest

from probekit.activations.background import AHEAD, beside


def test_the_work_runs_in_another_thread_and_in_order():
    done = []
    with beside() as do:
        for number in range(50):
            do(lambda n: done.append((n, threading.get_ident())), number)
    assert [n for n, _ in done] == list(range(50))
    assert {thread for _, thread in done}.isdisjoint({threading.get_ident()})
    assert len({thread for _, thread in done}) == 1


def test_no_more_than_a_few_pieces_wait():
    gate, given = threading.Event(), []

    def give():
        with beside() as do:
            for number in range(10):
                do(gate.wait, 30)
                given.append(number)

    giver = threading.Thread(target=give)
    giver.start()
    giver.join(0.3)
    waiting = len(given)
    gate.set()
    giver.join(30)
    assert waiting == AHEAD
    assert len(given) == 10


def test_a_failure_is_raised_and_nothing_is_done_after_it():
    gate, done = threading.Event(), []

    def fail():
        gate.wait(30)
        raise ZeroDivisionError

    def work():
        with beside() as do:
            do(done.append, "before")
            do(fail)
            do(done.append, "behind")  # waits already when the other fails
            gate.set()

    with pytest.raises(ZeroDivisionError):
        work()
    assert done == ["before"]


def test_a_failure_of_the_last_piece_is_raised_too():
    with pytest.raises(ZeroDivisionError), beside() as do:
        do(lambda: 1 / 0)


def test_when_the_block_fails_what_waits_is_dropped():
    gate, done = threading.Event(), []

    def first():
        gate.wait(30)
        done.append("first")

    def fail():
        with beside() as do:
            do(first)
            do(done.append, "second")
            threading.Timer(0.1, gate.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert done == ["first"]
