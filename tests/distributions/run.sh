#!/bin/sh
# The static program on other distributions' userlands: an empty root, one that has nothing but musl, as Alpine has, and
# Debian 11 and 13. In each it says its version, loads its BPF programs, and profiles a program of that root by its pid.
# The kernel is this machine's; others are tried by `cargo xtask test --kernel all`. Not part of CI, as it downloads.
#
#   tests/distributions/run.sh target/x86_64-unknown-linux-musl/shipped/jitprof [FOLDER]    # as root
#
# FOLDER keeps the roots, /tmp/jitprof-distributions; needs mmdebstrap, gcc and apt.
set -eu
jitprof=$(realpath "${1:?which jitprof}")
folder=${2:-/tmp/jitprof-distributions}
mkdir -p "$folder"
folder=$(realpath "$folder")
failed=0

# Runs a command with a folder as its root, in a mount namespace that goes with it. A program of its own, so that what it
# starts has its pid.
cat >"$folder/in-root" <<'R'
#!/bin/sh
exec unshare --mount --propagation private sh -c '
    root=$1; shift
    mount --rbind /proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" &&
        exec chroot "$root" "$@"' sh "$@"
R
chmod +x "$folder/in-root"
in_root() { "$folder/in-root" "$@"; }

prepare() { # folder
    mkdir -p "$1/proc" "$1/sys" "$1/dev" "$1/tmp"
    cp "$jitprof" "$1/jitprof"
}

check() { # what, a command that must succeed
    what=$1
    shift
    if "$@" >"$folder/out" 2>&1; then echo "ok    $what"; else
        failed=$((failed + 1)); echo "FAIL  $what"; sed 's/^/    | /' "$folder/out"; fi
}

# Profiles a command of a root from inside of it; nearly all stacks must have a name of its program.
profile() { # what, folder, name, command
    what=$1 at=$2 name=$3
    shift 3
    "$folder/in-root" "$at" "$@" &
    child=$!
    sleep 1
    # A loaded machine leaves a busy process a small part of a CPU.
    total=0
    for seconds in 5 15 45; do
        [ "$total" -lt 20 ] || break
        in_root "$at" /jitprof --pid "$child" -d "${seconds}s" -o - --format folded >"$at/tmp/folded" || :
        total=$(awk '{ n += $NF } END { print n + 0 }' "$at/tmp/folded")
    done
    kill "$child" || :
    wait "$child" 2>/dev/null || :
    named=$(grep -- "$name" "$at/tmp/folded" | awk '{ n += $NF } END { print n + 0 }')
    check "$what: $named of $total samples have $name" test "$total" -ge 20 -a $((named * 100)) -ge $((total * 95))
}

# No file but the program.
rm -rf "$folder/empty"
prepare "$folder/empty"
check "empty: $(in_root "$folder/empty" /jitprof --version)" in_root "$folder/empty" /jitprof --version
check 'empty: --check' in_root "$folder/empty" /jitprof --check

# musl's loader and a program for it.
rm -rf "$folder/musl" "$folder/musl-packages"
prepare "$folder/musl"
mkdir -p "$folder/musl-packages" "$folder/musl/lib"
(cd "$folder/musl-packages" && apt-get download -qq -o APT::Sandbox::User=root musl musl-dev && for deb in *.deb; do dpkg-deb -x "$deb" .; done)
triple=$(uname -m)-linux-musl
cp "$folder/musl-packages/usr/lib/$triple/libc.so" "$folder/musl/lib/ld-musl-$(uname -m).so.1" 2>/dev/null ||
    cp "$folder/musl-packages/lib/ld-musl-$(uname -m).so.1" "$folder/musl/lib/"
# The loop's own name is looked for: musl is built without unwind tables and frame pointers, so callers behind its functions
# are cut.
printf '%s\n' 'volatile unsigned long n;' \
    '__attribute__((noinline)) void spin_beside_musl(void) { for (;;) n++; }' \
    'int main(void) { spin_beside_musl(); }' >"$folder/burn.c"
lib=$folder/musl-packages/usr/lib/$triple
gcc -O1 -g -nostdlib -o "$folder/musl/burn" "$lib/crt1.o" "$lib/crti.o" "$folder/burn.c" \
    -L "$folder/musl/lib" -l":ld-musl-$(uname -m).so.1" "$lib/crtn.o" -Wl,-dynamic-linker,"/lib/ld-musl-$(uname -m).so.1"
check "musl: $(in_root "$folder/musl" /jitprof --version)" in_root "$folder/musl" /jitprof --version
profile musl "$folder/musl" spin_beside_musl /burn

for suite in bullseye trixie; do
    at=$folder/$suite
    [ -d "$at" ] || mmdebstrap --quiet --variant=essential "$suite" "$at"
    prepare "$at"
    libc=$(in_root "$at" /bin/sh -c 'ldd --version | head -1')
    check "$suite ($libc): $(in_root "$at" /jitprof --version)" in_root "$at" /jitprof --version
    check "$suite: --check" in_root "$at" /jitprof --check
    profile "$suite" "$at" Perl_runops_standard /usr/bin/perl -e 'for (;;) { $x = ($x * 7 + 1) % 1000003 }'
done
[ "$failed" = 0 ] && echo 'all passed' || { echo "$failed failed"; exit 1; }
