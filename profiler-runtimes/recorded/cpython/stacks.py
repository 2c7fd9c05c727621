"""Two threads that sleep deep in a stack, and what they say of it: `stacks.py FILE`.

FILE gets, for each thread, a line `thread TID`, and then its frames, innermost first: name, file and line, with tabs.
"""

import functools
import sys
import threading
import time

said = []


def say():
    frame, lines = sys._getframe(1), [f"thread {threading.get_native_id()}"]
    while frame:
        code = frame.f_code
        lines.append(f"{getattr(code, 'co_qualname', code.co_name)}\t{code.co_filename}\t{frame.f_lineno}")
        frame = frame.f_back
    said.append("\n".join(lines))


def pause():
    say(); time.sleep(100000)


def généré(depth):
    # A name with characters of one byte that are not ASCII.
    yield depth
    yield from 生成(depth)


def 生成(depth):
    for value in range(depth):
        yield value
    𠀀(depth)
    yield 0


def 𠀀(depth):
    # A name with characters of four bytes, and a call on many lines.
    return sorted(
        [3, 1, 2],
        key=lambda value: (
            value,
            far["far"](
                depth,
                value,
            ),
        ),
    )


class Outer:
    def __init__(self, depth):
        self.depth = depth
        self.method()

    def method(self):
        class Inner:
            @classmethod
            def made(cls, depth):
                try:
                    raise ValueError
                except ValueError:
                    return max(généré(depth))

        return Inner.made(self.depth)

    @property
    def value(self):
        return [recurse(depth, self) for depth in [6]]


def recurse(depth, of):
    if depth == 0:
        with threading.Lock():
            return Outer(3)
    if depth % 2:
        return recurse(
            depth - 1,
            of,
        )
    return functools.reduce(lambda one, other: recurse(depth - 1, other), [0, of])


# Lines that are far apart, and a file with a name in characters of two bytes.
far = {"pause": pause}
text = "\n" * 5000 + "def far(depth, value):\n" + "    depth = (1,\n" + "\n" * 900 + "  value)\n" + "    pause()\n"
exec(compile(text, "/tmp/Ω/遠い.py", "exec"), far)


def main():
    thread = threading.Thread(target=lambda: Outer(2), daemon=True)
    thread.start()
    while not said:
        time.sleep(0.01)
    threading.Thread(target=write, daemon=True).start()
    Outer.value.fget(Outer.__new__(Outer))


def write():
    while len(said) < 2:
        time.sleep(0.01)
    with open(sys.argv[1], "w") as file:
        file.write("\n".join(said) + "\n")


main()
