# One PostgreSQL session that evaluates two expressions that its JIT has compiled: 75 % of the rows in the first, 25 % in
# the second, in turns of some thousand rows.
#
# burn.py FOLDER BIN [SETTING...]: makes a cluster in FOLDER with the programs of BIN, prints the session's `ready pid=N`

import os
import subprocess
import sys

folder, programs, settings = os.path.join(sys.argv[1], "cluster"), sys.argv[2], sys.argv[3:]
# PostgreSQL refuses to run as root. A root without /etc/passwd has no user but that one.
USER = 999
if os.geteuid() == 0:
    entry = f"postgres:x:{USER}:{USER}::{folder}:/bin/sh\n"
    known = open("/etc/passwd").read() if os.path.exists("/etc/passwd") else ""
    if f":x:{USER}:" not in known:
        with open("/etc/passwd", "a") as file:
            file.write(entry)
    # What an earlier run has left; python3-minimal has no shutil.
    for place, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(os.path.join(place, name))
        for name in folders:
            os.rmdir(os.path.join(place, name))
    os.makedirs(folder, exist_ok=True)
    os.chown(folder, USER, USER)
    os.setgid(USER)
    os.setuid(USER)
os.environ.update(HOME=folder, LC_ALL="C")
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
data = f"{folder}/data"
subprocess.run([f"{programs}/initdb", "-A", "trust", "-N", "-D", data], check=True, **quiet)
options = [word for setting in settings for word in ("-c", setting)]
server = subprocess.Popen(
    [f"{programs}/postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", *options],
    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(f"{folder}/log", "w"),
)
client = [f"{programs}/psql", "-h", folder, "-d", "postgres", "-XqAt"]
while subprocess.run([*client, "-c", "select 1"], **quiet).returncode != 0:
    if server.poll() is not None:
        sys.exit(f"postgres has ended: see {folder}/log")


def rounds(x):
    for _ in range(24):
        x = f"(({x} # 88172645) * 5 % 65536 + 1)"
    return x


# Each level of the query has expressions of its own, with names of their own; the arithmetic takes nearly all the time.
def burn(rows):
    return f"lateral (select sum({rounds('(n + i % 7)')}) s from generate_series(1, {rows} + 0 * (i % 2)::int) n offset 0)"


query = f"select sum(hot.s # cold.s) from generate_series(1, 1000000) i, {burn(3000)} hot, {burn(1000)} cold"
session = subprocess.Popen(
    client, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, stderr=open(f"{folder}/errors", "w")
)
session.stdin.write(
    "set max_parallel_workers_per_gather = 0; set jit_above_cost = 0; set jit_optimize_above_cost = 0;\n"
    f"select pg_backend_pid();\n{query};\n"
)
session.stdin.flush()
print(f"ready pid={session.stdout.readline().strip()}", flush=True)
session.wait()
