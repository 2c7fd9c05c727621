#!/bin/sh
# Installs the jitprof of this archive, says each step, and undoes it: ./install.sh --help
set -eu

usage() {
    cat <<'U'
Usage: ./install.sh [--prefix DIR] [--service] [--dry-run]
       ./install.sh --uninstall [--prefix DIR] [--dry-run]

Copies the program, the agent, manual pages and completions of this archive to a prefix, and says each step.

  --prefix DIR  where to [default: /usr/local]
  --service     also the systemd unit, its user and /etc/jitprof/jitprof.toml; nothing is started
  --uninstall   removes what an earlier run has installed into this prefix, and nothing else
  --dry-run     only says what would be done
  --help        this text

DESTDIR is put before all paths, as packagers do; no user is made and systemd is not told then.
U
}

say() { printf '%s\n' "$*"; }
fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

prefix=/usr/local service= uninstall= dry=
while [ $# -gt 0 ]; do
    case $1 in
    --prefix) [ $# -gt 1 ] || fail "--prefix wants a directory"; prefix=$2; shift ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    --service) service=yes ;;
    --uninstall) uninstall=yes ;;
    --dry-run) dry=yes ;;
    --help | -h) usage; exit 0 ;;
    *) usage >&2; fail "unknown option $1" ;;
    esac
    shift
done
case $prefix in
/*) prefix=${prefix%/} ;;
*) fail "the prefix $prefix is no absolute path" ;;
esac
case $prefix in
*[!A-Za-z0-9._/+-]*) fail "the prefix $prefix has characters that a unit file would have to quote" ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}
# What was installed, one path a line, without DESTDIR.
list=$prefix/share/jitprof/installed
configuration=/etc/jitprof/jitprof.toml

# Runs a command, unless it is only to be said.
run() { [ -n "$dry" ] || "$@"; }
# Whether the systemd that runs here is the one that is installed for.
systemd() { [ -z "$root" ] && [ -d /run/systemd/system ]; }
tell() { say "run     $*"; run "$@"; }

note() { printf '%s\n' "$1" >>"$notes"; }

folder() { # path; each directory that is made is noted, with a slash behind its name
    [ ! -d "$root$1" ] || return 0
    folder "$(dirname "$1")" || return
    mkdir "$root$1" || return
    note "$1/"
}

put() { # mode, source, path
    say "install $root$3"
    [ -z "$dry" ] || return 0
    folder "$(dirname "$3")"
    # By another name first: a program that runs is not written to.
    cp "$2" "$root$3.new"
    chmod "$1" "$root$3.new"
    mv -f "$root$3.new" "$root$3"
    note "$3"
}

remove() { # path
    [ -e "$root$1" ] || return 0
    say "remove  $root$1"
    run rm -f "$root$1"
}

if [ -n "$uninstall" ]; then
    [ -f "$root$list" ] || fail "$root$list is not there: nothing was installed into $prefix by this script"
    if grep -q '/jitprof\.service$' "$root$list" && systemd; then
        tell systemctl --no-reload disable --now jitprof.service
    fi
    # Before its pattern is removed.
    changed=
    cmp -s "$root$configuration" "$root$prefix/share/jitprof/jitprof.toml" || changed=yes
    entries=$(LC_ALL=C sort -r "$root$list")
    remove "$list"
    while IFS= read -r path; do
        case $path in
        "$configuration")
            if [ -n "$changed" ]; then say "keep    $root$path: it was changed"; else remove "$path"; fi
            ;;
        # Directories that an installation made, if nothing of others is in them.
        */) [ -n "$dry" ] || rmdir "$root$path" 2>/dev/null || : ;;
        *) remove "$path" ;;
        esac
    done <<L
$entries
L
    if systemd; then tell systemctl daemon-reload; fi
    if [ -d "$root/var/lib/jitprof" ]; then
        say "keep    $root/var/lib/jitprof: what the service has recorded"
    fi
    exit 0
fi

for part in jitprof libjitprof_agent.so man completions contrib; do
    [ -e "$here/$part" ] || fail "$here/$part is missing: run this in the unpacked archive"
done
"$here/jitprof" --version >/dev/null || fail "$here/jitprof does not run here: is this the archive for $(uname -m)?"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
notes=$scratch/notes
if [ -z "$dry" ]; then
    folder "$prefix" 2>/dev/null && [ -w "$root$prefix" ] ||
        fail "cannot write to $root$prefix: run this with sudo, or choose a --prefix of your own"
    folder "$(dirname "$list")"
fi

put 755 "$here/jitprof" "$prefix/bin/jitprof"
put 644 "$here/libjitprof_agent.so" "$prefix/lib/jitprof/libjitprof_agent.so"
for page in "$here"/man/*; do
    put 644 "$page" "$prefix/share/man/man1/$(basename "$page")"
done
put 644 "$here/completions/jitprof" "$prefix/share/bash-completion/completions/jitprof"
put 644 "$here/completions/_jitprof" "$prefix/share/zsh/site-functions/_jitprof"
put 644 "$here/completions/jitprof.fish" "$prefix/share/fish/vendor_completions.d/jitprof.fish"
for text in "$here"/LICENSE-* "$here/THIRD-PARTY.md"; do
    put 644 "$text" "$prefix/share/doc/jitprof/$(basename "$text")"
done

if [ -n "$service" ]; then
    put 644 "$here/contrib/jitprof.toml" "$prefix/share/jitprof/jitprof.toml"
    put 644 "$here/contrib/systemd/sysusers.conf" "$prefix/share/jitprof/sysusers.conf"
    if [ -e "$root$configuration" ]; then
        say "keep    $root$configuration: it is there"
    else
        put 644 "$here/contrib/jitprof.toml" "$configuration"
    fi
    unit=$scratch/jitprof.service
    sed "s,/usr/bin/jitprof ,$prefix/bin/jitprof ," "$here/contrib/systemd/jitprof.service" >"$unit"
    put 644 "$unit" /etc/systemd/system/jitprof.service
    if [ -z "$root" ] && command -v systemd-sysusers >/dev/null; then
        tell systemd-sysusers "$prefix/share/jitprof/sysusers.conf"
    fi
    if systemd; then tell systemctl daemon-reload; fi
fi

if [ -z "$dry" ]; then
    # What an earlier run has installed stays listed, such as a service that this one was not asked for.
    [ ! -f "$root$list" ] || cat "$root$list" >>"$notes"
    LC_ALL=C sort -u "$notes" >"$scratch/list"
    cp "$scratch/list" "$root$list"
fi
say "done: $prefix/bin/jitprof; to undo: ./install.sh --uninstall --prefix $prefix"
if [ -n "$service" ]; then
    say "start the service with: systemctl enable --now jitprof"
fi
