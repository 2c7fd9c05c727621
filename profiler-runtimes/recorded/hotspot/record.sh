#!/bin/sh
# record.sh OUT JDK [OPTION...]: runs Wait.java, in which every thread waits, and leaves in OUT what the readers took of
# its memory (memory), and what the JVM itself says: names (map), lines (lines), stacks (threads). ROOT: of a chroot.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1 jdk=$2
shift 2
root=${ROOT:-}
into=${root:+chroot $root}
mkdir -p "$out"
work=$(mktemp -d "$root/tmp/record.XXXXXX")
inside=${work#"$root"}
javac --release 17 -g -d "$work" "$here/Wait.java"
include=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")/include
cc -shared -fPIC -O1 -I"$include" -I"$include/linux" "$here/lines.c" -o "$work/lines.so"
$into "$jdk/bin/java" "$@" -cp "$inside" Wait > "$work/said" &
pid=$!
trap 'kill -9 $pid; rm -r "$work"' EXIT
for _ in $(seq 600); do grep -q ready "$work/said" && break; sleep 0.2; done
$into "$jdk/bin/jcmd" $pid JVMTI.agent_load "$inside/lines.so" "$inside/lines" > "$work/said"
$into "$jdk/bin/jcmd" $pid Compiler.perfmap > "$work/said"
$into "$jdk/bin/jcmd" $pid Thread.print > "$work/threads"
mv "$root/tmp/perf-$pid.map" "$work/map"
"${READ_RUNTIME:-read-runtime}" $pid --compare "$work/map" --lines "$work/lines" --stacks --record "$out/memory" |
    grep -v "^	at"
for file in map lines threads; do zstd -q -f -19 "$work/$file" -o "$out/$file"; done
ls -l "$out"
