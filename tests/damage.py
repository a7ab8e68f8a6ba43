"""Damage to the bytes of a file: flipped bits and cuts, at many places."""

import random


def flipped(content, count, seed=0):
    """Yield copies of the content with one bit changed, spread over its whole length."""
    draw = random.Random(seed)
    for number in range(count):
        start, end = (len(content) * n // count for n in (number, number + 1))
        copy = bytearray(content)
        copy[draw.randrange(start, max(end, start + 1))] ^= 1 << draw.randrange(8)
        yield bytes(copy)


def cut(content, count):
    """Yield the content cut at several places; nothing, all but a byte, and between."""
    yield from (content[: (len(content) - 1) * n // (count - 1)] for n in range(count))
