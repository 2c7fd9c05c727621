"""Each of Python's ways to call: through C, generators, coroutines, methods, deep recursion, threads. Its leaves take turns.

    python3.13 shapes.py [SECONDS]

    main -> through_c -> (sorted, in C) -> by_c -> leaf_c
    main -> (asyncio) -> coroutine -> awaited -> leaf_coroutine
    main -> drive -> generator -> leaf_generator
    main -> method_of -> Widget.method -> (a lambda) -> leaf_method
    main -> down -> ... -> down, 900 of them, -> leaf_deep
    Thread.run -> worker -> leaf_thread
"""

import asyncio
import os
import random
import sys
import threading
import time


def burn(n):
    """Called by each leaf in a loop of C's: the leaf has a frame of its own, and this one is innermost."""
    x = 88172645
    for i in range(n):
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
    return x


def leaf_c(x):
    return burn(300) ^ x


def leaf_coroutine(n):
    return burn(n)


def leaf_generator(n):
    return burn(n)


def leaf_method(n):
    return burn(n)


def leaf_deep(n):
    return burn(n)


def leaf_thread(n):
    return burn(n)


def by_c(x):
    return leaf_c(x)


def through_c():
    return sorted(range(33), key=by_c)


async def awaited(n):
    await asyncio.sleep(0)
    return leaf_coroutine(n)


async def coroutine(n):
    return await awaited(n)


def generator(n):
    yield leaf_generator(n)


def delegate(n):
    yield from generator(n)


def drive(n):
    return list(delegate(n))


class Widget:
    def method(self, n):
        return (lambda m: leaf_method(m))(n)


def method_of(n):
    return Widget().method(n)


def down(depth, n):
    return leaf_deep(n) if depth == 1 else down(depth - 1, n)


def worker():
    # Most of the time is the main thread's.
    while not ENDED.wait(0.004):
        leaf_thread(4000)


def main(seconds):
    # Each round in another order: to sample a deep stack takes so long that the next sample comes too early for what follows it.
    order = random.Random(1)
    ways = [
        through_c,
        lambda: drive(4000),
        lambda: asyncio.run(coroutine(12000)),
        lambda: method_of(4000),
        lambda: down(900, 4000),
    ]
    end = time.process_time() + seconds
    while time.process_time() < end:
        order.shuffle(ways)
        for way in ways:
            way()


ENDED = threading.Event()
sys.setrecursionlimit(5000)
threading.Thread(target=worker, name="worker").start()
print(f"ready pid={os.getpid()}", flush=True)
try:
    main(float(sys.argv[1]) if sys.argv[1:] else 4)
finally:
    ENDED.set()
