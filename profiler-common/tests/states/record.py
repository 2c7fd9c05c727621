"""Writes down the state of a running process, for record_state:

    [AT=LOCATION] [STEPS=N] gdb -batch -p PID -x record.py > RAW

The process is stopped where it is, or when it comes to LOCATION (what gdb's `break` takes), STEPS instructions further.
The frames that gdb's own unwinder finds are written beside, as what is to be found; gdb knows nothing of generated code.
"""

import os
import gdb

gdb.execute("set pagination off", to_string=True)
gdb.execute("set print frame-arguments none", to_string=True)
gdb.execute("handle all nostop noprint pass", to_string=True)


def register(name):
    return int(gdb.parse_and_eval("(unsigned long)$" + name))


if "AT" in os.environ:
    gdb.execute("tbreak " + os.environ["AT"], to_string=True)
    gdb.execute("continue", to_string=True)
for step in range(int(os.environ.get("STEPS", "0"))):
    gdb.execute("stepi", to_string=True)

gdb.execute("set backtrace past-main on", to_string=True)
gdb.execute("set backtrace past-entry on", to_string=True)
frames = []
frame = gdb.newest_frame()
while frame is not None and frame.is_valid():
    # A function that was inlined has no frame of its own.
    if frame.type() != gdb.INLINE_FRAME:
        frames.append((frame.pc(), frame.name(), int(frame.read_register("rsp"))))
    try:
        frame = frame.older()
    except gdb.error:
        break

process = gdb.selected_inferior()
print(f"state {register('pc'):x} {register('sp'):x} {register('rbp'):x}")
for pc, name, sp in frames:
    print(f"gdb {pc:x} {name}")
stacks = [register("sp")] + [sp for pc, name, sp in frames]
for line in open(f"/proc/{process.pid}/maps"):
    words = line.split()
    start, end = (int(word, 16) for word in words[0].split("-"))
    if "x" in words[1]:
        print(f"map {start:x} {end:x} {int(words[2], 16):x} {words[5] if len(words) > 5 else ''}")
    # A signal handler may have a stack of its own: all that lies above the lowest frame in each.
    inside = [sp & ~7 for sp in stacks if start <= sp < end]
    if inside:
        first = min(inside)
        stack = process.read_memory(first, min(end - first, int(os.environ.get("STACK", "16384"))) & ~7).tobytes()
        for at in range(0, len(stack), 8):
            print(f"word {first + at:x} {int.from_bytes(stack[at : at + 8], 'little'):x}")
