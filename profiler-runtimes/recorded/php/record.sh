#!/bin/sh
# Records the stack of stacks.php, of each PHP in the arguments: `record.sh /path/to/vm_stack debian-8.2 /usr/bin/php8.2 ...`.
# Options may stand behind the program, as one argument with it. What the program says of its stack is kept beside. With ROOT,
# they run in that root.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
example=$1 root=${ROOT:-}
shift
mkdir -p "$root/tmp/stacks" && cp "$here/stacks.php" "$root/tmp/stacks/"
said=$root/tmp/stacks/said
while [ $# -gt 1 ]; do
  name=$1 php=$2
  shift 2
  rm -f "$said"
  ${root:+chroot "$root"} $php /tmp/stacks/stacks.php /tmp/stacks/said &
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
