"""Nothing but calls: the most that a flag can cost which changes how functions are entered."""

import sys


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


print(sum(fib(25 + i % 2) for i in range(int(sys.argv[1]))))
