"""A service as they are written with asyncio, that asks itself: no socket is in it.

    python3.13 service.py [SECONDS]

    main -> asyncio.run -> (tasks that are gathered) -> the decorator's `timed` -> handle
        handle -> (sum, in C) -> rows, a generator -> leaf_hot (75 %)
        handle -> Session.__exit__ -> flush -> leaf_cold (half of 25 %)
    a thread of an executor's, for which handle waits -> render -> leaf_cold (the other half)

SECONDS are of CPU time, 4 if they are not given.
"""

import asyncio
import concurrent.futures
import functools
import os
import random
import sys
import time


def leaf_hot(n):
    x = 88172645
    for i in range(n):
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
    return x


def leaf_cold(n):
    x = 12345678
    for i in range(n):
        x ^= (x << 13) & 0xFFFFFFFF
        x ^= x >> 17
    return x


def rows(n):
    for _ in range(3):
        r = leaf_hot(n)
        yield r & 1


def flush(n):
    r = leaf_cold(n)
    return r + 1


def render(n):
    r = leaf_cold(n)
    return r + 1


class Session:
    def __init__(self, n):
        self.n = n

    def __enter__(self):
        return self

    def __exit__(self, *_):
        flush(self.n)


def timed(handler):
    @functools.wraps(handler)
    async def within(*arguments):
        start = time.monotonic()
        answer = await handler(*arguments)
        TIMES.append(time.monotonic() - start)
        return answer

    return within


@timed
async def handle(n):
    with Session(n // 2):
        ones = sum(rows(n))
    await asyncio.sleep(0)
    page = await asyncio.get_running_loop().run_in_executor(EXECUTOR, render, n - n // 2)
    return ones + page


async def serve(seconds):
    noise = random.Random(1)
    end = time.process_time() + seconds
    while time.process_time() < end:
        # A tenth to nineteen tenths of 8000: calls of similar length fall into step with a profiler's clock.
        lengths = [noise.randrange(800, 15201) for _ in range(4)]
        await asyncio.gather(*(asyncio.create_task(handle(n)) for n in lengths))
        TIMES.clear()


def main(seconds):
    asyncio.run(serve(seconds))


TIMES = []
EXECUTOR = concurrent.futures.ThreadPoolExecutor(max_workers=1)
print(f"ready pid={os.getpid()}", flush=True)
main(float(sys.argv[1]) if sys.argv[1:] else 4)
