#!/bin/sh
# Records the stacks of stacks.py, of each CPython in the arguments: `record.sh /path/to/python_stack debian-3.11
# /path/to/python3.11 ...`. What the program says of its stacks is kept beside. With ROOT, they run in that root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
example=$1 root=${ROOT:-}
shift
mkdir -p "$root/tmp/stacks" && cp "$here/stacks.py" "$root/tmp/stacks/"
while [ $# -gt 1 ]; do
  name=$1 python=$2
  shift 2
  rm -f "$root/tmp/stacks/said"
  ${root:+chroot "$root"} "$python" /tmp/stacks/stacks.py /tmp/stacks/said &
  pid=$!
  sleep 2
  "$example" $pid --record "$here/$name.mem"
  kill $pid
  wait $pid 2>/dev/null || true
  cp "$root/tmp/stacks/said" "$here/$name.said"
  ls -l "$here/$name.mem"
done
