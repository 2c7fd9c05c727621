"""outer -> middle -> leaf_hot (75 %), outer -> side_cold -> spin (25 %), in WebAssembly.

    pip install wasmtime
    python burn.py [jitdump|perfmap|vtune|none] [SECONDS]

jitdump writes ./jit-PID.dump, perfmap /tmp/perf-PID.map.
"""

import os
import sys
import time

import wasmtime

config = wasmtime.Config()
config.profiler = sys.argv[1] if len(sys.argv) > 1 else "jitdump"
engine = wasmtime.Engine(config)
text = os.path.join(os.path.dirname(os.path.abspath(__file__)), "burn.wat")
module = wasmtime.Module.from_file(engine, text)
store = wasmtime.Store(engine)
outer = wasmtime.Instance(store, module, []).exports(store)["outer"]

print(f"ready pid={os.getpid()}", flush=True)
end = time.monotonic() + (float(sys.argv[2]) if len(sys.argv) > 2 else 4)
calls = 0
noise = 1
while time.monotonic() < end:
    # A tenth to nineteen tenths of 200, at random: calls of similar length fall into step with a profiler's clock.
    noise = (noise * 1103515245 + 12345) & 0x7FFFFFFF
    outer(store, 20 + (noise >> 8) % 361)
    calls += 1
print("calls", calls)
