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


def swapped(content, count, seed=0):
    """Yield copies of the content with two stretches of it exchanged, of other bytes each."""
    draw = random.Random(seed)
    while count and len(set(content)) > 1:
        start, end, other, last = sorted(draw.randrange(len(content) + 1) for _ in range(4))
        first, second = content[start:end], content[other:last]
        copy = content[:start] + second + content[end:other] + first + content[last:]
        if copy != content:
            count -= 1
            yield copy
