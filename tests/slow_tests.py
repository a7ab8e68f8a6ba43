"""The list of slow tests: `make check` leaves them out, and `make slow` rewrites slow.txt.

Tests that start with a line of nightly.txt, and those marked `nightly`, run at night only. All
parameters of a test with stored texts run at the same time, because others would count as unused.

A test is slow if all of its parameters, fixtures and child processes together take more than LIMIT
seconds of processor time, which hardly depends on what else the machine does. Tests of real data
and those in a browser are slow, too. A fixture that several tests share counts for the first of
them, so `make slow` takes no test off the list: remove a line by hand, or empty the file before.

The same run stores the seconds of each file in durations.txt. Several processes start with the
longest files, so that none of them is left with one when the others have ended.

The first test of a kind also pays for imports. In the quick loop, a test that takes far longer than
LIMIT is therefore run once more after all others, and the second time counts.
"""

import gc
import os
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

LIST = Path(__file__).with_name("slow.txt")
AT_NIGHT = tuple(filter(None, Path(__file__).with_name("nightly.txt").read_text().split("\n")))
DURATIONS = Path(__file__).with_name("durations.txt")
OPTIONS = {
    "--fast": "leave out the tests that tests/slow.txt lists",
    "--nightly": "run the tests marked `nightly`, and no others",
    "--write-slow": "rewrite tests/slow.txt; needs one process",
}
LIMIT = 0.05
# What these need is slow: real data, and a browser.
FIXTURES = {"shared", "browser"}
# Processor time differs between machines: the quick loop refuses only what takes far longer.
REFUSED = 3.0


def listed():
    """The names of slow tests, file and function without parameters, or files of slow tests."""
    return set(LIST.read_text().split())


def durations():
    """Seconds of processor time of each file of tests that takes at least one, by its path."""
    lines = (line.split(" ") for line in DURATIONS.read_text().splitlines())
    return {path: float(seconds) for seconds, path in lines}


def name(item):
    """File and function of a test; a test class has a part of its own."""
    return item.nodeid.partition("[")[0]


def processor_time():
    return sum(os.times()[:4])  # user and system, of this process and of its children


class Stopwatch:
    """Notes the processor time of each test, setup and teardown included."""

    def __init__(self, config):
        self.is_fast = config.getoption("fast")
        self.writes = config.getoption("write_slow")
        self.seconds = Counter()
        self.slow = listed()

    def pytest_ignore_collect(self, collection_path, config):
        """Skip a listed file: not even its imports are run."""
        if self.is_fast and collection_path.is_relative_to(config.rootpath):
            return collection_path.relative_to(config.rootpath).as_posix() in self.slow or None
        return None

    def pytest_pycollect_makeitem(self, collector, name):
        """Skip a listed test before its parameters are expanded."""
        return [] if self.is_fast and f"{collector.nodeid}::{name}" in self.slow else None

    def pytest_collection_modifyitems(self, config, items):
        if self.is_fast:
            config.hook.pytest_deselected(items=[item for item in items if self.is_slow(item)])
            items[:] = [item for item in items if not self.is_slow(item)]

    def is_slow(self, item):
        return name(item) in self.slow or bool(FIXTURES & set(getattr(item, "fixturenames", ())))

    def pytest_collection_finish(self):
        gc.freeze()  # else some test pays two seconds for a walk over all that was imported

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        before = processor_time()
        try:
            return (yield)
        finally:
            self.seconds[name(item)] += processor_time() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session):
        result = yield
        self.measure_again([item for item in session.items if name(item) in self.refused()])
        return result

    def measure_again(self, items):
        """Run tests once more, without reports, and keep the time of this run only."""
        for item in items:
            self.seconds[name(item)] = 0.0
        for item, following in pairwise([*items, None]):
            before = processor_time()
            item._initrequest()  # else fixtures of the first run are used
            runtestprotocol(item, log=False, nextitem=following)
            self.seconds[name(item)] += processor_time() - before

    def pytest_sessionfinish(self, session):
        if self.writes:
            slow = listed() | {test for test, seconds in self.seconds.items() if seconds > LIMIT}
            LIST.write_text("".join(f"{test}\n" for test in sorted(slow)))
            files = Counter()
            for test, seconds in self.seconds.items():
                files[test.partition("::")[0]] += seconds
            long = [(file, seconds) for file, seconds in files.most_common() if seconds >= 1]
            DURATIONS.write_text("".join(f"{seconds:.0f} {file}\n" for file, seconds in long))
        elif self.refused() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def refused(self):
        if not self.is_fast:
            return {}
        return {test: seconds for test, seconds in self.seconds.items() if seconds > REFUSED}

    def pytest_terminal_summary(self, terminalreporter):
        for test, seconds in self.refused().items():
            terminalreporter.write_line(
                f"{test} took {seconds:.1f} s of processor time; at most {LIMIT} s are for the "
                "quick loop. Make it faster, or add it to tests/slow.txt.",
                red=True,
            )


def pytest_addoption(parser):
    for name, what in OPTIONS.items():
        parser.addoption(name, action="store_true", help=what)


@pytest.hookimpl(trylast=True)  # the plugin of stored texts must see those that are left out
def pytest_collection_modifyitems(config, items):
    """Keep the tests of the night, or all others."""
    wanted = config.getoption("nightly")
    groups = {True: [], False: []}
    for item in items:
        is_marked = item.get_closest_marker("nightly") is not None
        groups[is_marked or item.nodeid.startswith(AT_NIGHT)].append(item)
    config.hook.pytest_deselected(items=groups[not wanted])
    items[:] = groups[wanted]
    if hasattr(config, "workerinput"):  # one of several processes
        seconds = durations()
        items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))


def pytest_configure(config):
    if config.getoption("fast"):  # stored texts of tests that are left out are no mistake
        config.option.warn_unused_snapshots = True
    config.option.loadscopereorder = False  # processes take files in the order of the tests
    if config.getoption("fast") or config.getoption("write_slow"):
        config.pluginmanager.register(Stopwatch(config), "stopwatch")
