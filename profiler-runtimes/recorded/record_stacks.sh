#!/bin/sh
# Records the stacks of the program of a folder, of each CPython, PHP or Ruby in the arguments: `record_stacks.sh php
# /path/to/vm_stack debian-8.2 /usr/bin/php8.2 ...`; CPython's by `python_stack`. Options may stand behind the runtime, as one
# argument with it. What the program says of its stacks is kept beside. With ROOT, they run in that root.
set -eu
folder=$(cd "$(dirname "$0")/$1" && pwd)
example=$2 root=${ROOT:-}
shift 2
program=$(basename "$folder"/stacks.*)
mkdir -p "$root/tmp/stacks" && cp "$folder/$program" "$root/tmp/stacks/"
said=$root/tmp/stacks/said
while [ $# -gt 1 ]; do
  name=$1 runtime=$2
  shift 2
  rm -f "$said"
  ${root:+chroot "$root"} $runtime "/tmp/stacks/$program" /tmp/stacks/said &
  pid=$!
  for _ in $(seq 100); do [ -s "$said" ] && break; sleep 0.1; done
  # Between what it says and that it sleeps.
  sleep 1
  "$example" $pid --record "$folder/$name.mem"
  kill $pid
  wait $pid 2>/dev/null || true
  cp "$said" "$folder/$name.said"
  ls -l "$folder/$name.mem"
done
