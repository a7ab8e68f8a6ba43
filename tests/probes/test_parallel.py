import threading
import time

import pytest
from threadpoolctl import threadpool_info

from probekit.probes.parallel import Progress, run_all


def test_results_come_in_the_order_of_the_jobs():
    jobs = [lambda i=i: (time.sleep(0.01 * (4 - i)), i)[1] for i in range(4)]
    assert run_all(jobs, Progress(0)) == [0, 1, 2, 3]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("failure", [KeyboardInterrupt, ZeroDivisionError])
def test_a_failure_stops_the_other_workers_at_their_next_step(failure, place):
    progress = Progress(10**6)
    begun = threading.Event()

    def long() -> None:
        for _ in range(10**4):
            begun.set()
            time.sleep(0.005)
            progress.step()

    def fail() -> None:
        begun.wait()
        raise failure

    begin = time.monotonic()
    with pytest.raises(failure):
        run_all([*[long] * place, fail, *[long] * (3 - place)], progress)
    assert time.monotonic() - begin < 5


def test_progress_reports_each_step():
    seen = []
    progress = Progress(3, lambda done, total: seen.append((done, total)))
    run_all([progress.step] * 3, progress)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_an_error_of_on_fit_is_raised():
    def broken(done: int, total: int) -> None:
        raise KeyboardInterrupt

    progress = Progress(3, broken)
    with pytest.raises(KeyboardInterrupt):
        run_all([progress.step] * 3, progress)


def test_blas_threads_are_limited_inside_and_as_before_outside():
    def limits() -> list[int]:
        return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]

    before = limits()
    (inside,) = run_all([limits], Progress(0))
    assert set(inside) == {1}
    assert limits() == before
