"""Simulations of every statistical claim: size and power of tests, coverage of intervals.

    python -m benchmarks.claims                  all parts; hours on two cores
    python -m benchmarks.claims --part intervals one of association, differences, ...
    python -m benchmarks.claims --quick          few draws, for a look

Each part writes its rows to a CSV file as soon as they are computed and skips rows that are already
there, so that an interrupted simulation continues. `docs/claims.md` is written from these files.
"""
