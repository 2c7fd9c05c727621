#!/bin/sh
# Records the stacks of stacks.rb, of each Ruby in the arguments: `record.sh /path/to/vm_stack debian-3.1 /usr/bin/ruby3.1 ...`.
# Options may stand behind the program, as one argument with it. What the program says of its stacks is kept beside. With ROOT,
# they run in that root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
example=$1 root=${ROOT:-}
shift
mkdir -p "$root/tmp/stacks" && cp "$here/stacks.rb" "$root/tmp/stacks/"
said=$root/tmp/stacks/said
while [ $# -gt 1 ]; do
  name=$1 ruby=$2
  shift 2
  rm -f "$said"
  ${root:+chroot "$root"} $ruby /tmp/stacks/stacks.rb /tmp/stacks/said &
  pid=$!
  for _ in $(seq 100); do [ -s "$said" ] && break; sleep 0.1; done
  # Between what it says and that it sleeps.
  sleep 1
  "$example" $pid --record "$here/$name.mem"
  kill $pid
  wait $pid 2>/dev/null || true
  cp "$said" "$here/$name.said"
  ls -l "$here/$name.mem"
done
