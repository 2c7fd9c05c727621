"""Random chains of calls, and what they are: each leaf burns 50 ms of time, and says in a log from when to when, and in which chain.

    python3.13 chains.py LOG [SECONDS]

A line of the log is `START END CHAIN`: times of CLOCK_MONOTONIC in ns, and the qualified names of the chain's functions, from the
innermost, as sys._getframe has them, with tabs between them. A chain goes through these ways in any order, any of them several times.
"""

import os
import random
import sys
import time

LEAF_NS = 50_000_000


def leaf(_):
    names = []
    frame = sys._getframe()
    while frame is not None:
        names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    del frame
    start = now = time.monotonic_ns()
    x = 88172645
    while now < start + LEAF_NS:
        for i in range(2000):
            x ^= (x << 13) & 0xFFFFFFFF
            x ^= x >> 17
        now = time.monotonic_ns()
    print(start, now, "\t".join(names), file=LOG, flush=True)


def plain(rest):
    rest[0](rest[1:])


def through_lambda(rest):
    (lambda way: way(rest[1:]))(rest[0])


def through_c(rest):
    sorted([0], key=lambda _: rest[0](rest[1:]) or 0)


def through_comprehension(rest):
    return [way(rest[1:]) for way in rest[:1]]


def generator(rest):
    yield rest[0](rest[1:])


def delegate(rest):
    yield from generator(rest)


def through_generators(rest):
    list(delegate(rest))


async def coroutine(rest):
    rest[0](rest[1:])


async def awaits(rest):
    await coroutine(rest)


def through_coroutines(rest):
    try:
        awaits(rest).send(None)
    except StopIteration:
        pass


class Made:
    def __init__(self, rest):
        rest[0](rest[1:])


def through_class(rest):
    Made(rest)


class Slots:
    def __getitem__(self, rest):
        rest[0](rest[1:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.rest[0](self.rest[1:])

    @property
    def value(self):
        return self.rest[0](self.rest[1:])


def through_item(rest):
    Slots()[rest]


def through_property(rest):
    slots = Slots()
    slots.rest = rest
    return slots.value


def through_context(rest):
    with Slots() as slots:
        slots.rest = rest


def through_exception(rest):
    try:
        raise ValueError
    except ValueError:
        rest[0](rest[1:])


def through_exec(rest):
    exec("rest[0](rest[1:])", {"rest": rest})


WAYS = [
    plain,
    through_lambda,
    through_c,
    through_comprehension,
    through_generators,
    through_coroutines,
    through_class,
    through_item,
    through_property,
    through_context,
    through_exception,
    through_exec,
]


def main(seconds):
    choice = random.Random(1)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        chain = choice.choices(WAYS, k=choice.randrange(1, 20))
        chain[0]([*chain[1:], leaf])


def warm():
    """Each way many times: what is called often is specialised, and makes frames otherwise."""
    for _ in range(1000):
        for way in WAYS:
            way([lambda _: None])


LOG = open(sys.argv[1], "w", encoding="utf-8")
warm()
print(f"ready pid={os.getpid()}", flush=True)
main(float(sys.argv[2]) if sys.argv[2:] else 4)
