#!/bin/sh
# Packages and unit under a systemd that runs: boots Debian 12 in a virtual machine and runs guest.sh in it, which installs
# the Debian package, looks at the service, removes the package, and does the same in short with the RPM and the archive's
# install.sh. Not part of CI, as it downloads a Debian (150 MB).
#
#   cargo xtask dist && tests/systemd/run.sh target/dist [FOLDER]    # as root; FOLDER keeps the image, /tmp/jitprof-systemd
#
# Needs mmdebstrap, qemu-system-x86, e2fsprogs and gcc.
# QEMU_ACCEL=kvm is faster where it works, within another virtual machine with QEMU_CPU=host,-arch-capabilities or the like. PARTS="rpm archive" leaves the Debian package out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
dist=${1:?which folder of packages}
folder=${2:-/tmp/jitprof-systemd}
mkdir -p "$folder"

# Another list of packages, another image.
base=$folder/base-2.ext4
if [ ! -f "$base" ]; then
    packages=systemd,systemd-sysv,dbus,curl,procps,nodejs,linux-image-cloud-amd64,initramfs-tools,zstd,xz-utils,rpm
    rm -rf "$folder/base"
    mmdebstrap --quiet --variant=minbase --include="$packages" bookworm "$folder/base"
    cp "$here/guest.service" "$folder/base/etc/systemd/system/"
    ln -s ../guest.service "$folder/base/etc/systemd/system/multi-user.target.wants/"
    mkdir "$folder/base/payload"
    cp "$folder"/base/boot/vmlinuz-* "$folder/vmlinuz"
    cp "$folder"/base/boot/initrd.img-* "$folder/initrd"
    mke2fs -q -t ext4 -d "$folder/base" "$folder/new.ext4" 1500M
    mv "$folder/new.ext4" "$base"
    rm -r "$folder/base"
fi

payload=$folder/payload
rm -rf "$payload" && mkdir "$payload"
cp "$dist"/jitprof_*_amd64.deb "$payload/jitprof.deb"
cp "$dist"/jitprof-*-x86_64-linux.tar.xz "$payload/jitprof.tar.xz"
cp "$dist"/jitprof-*-1.x86_64.rpm "$payload/jitprof.rpm"
cp "$here"/guest*.sh "$payload/"
echo "${PARTS:-deb rpm archive}" >"$payload/parts"
printf '%s\n' 'volatile long n;' \
    '__attribute__((noinline)) void burn_in_a_private_file(void) { for (;;) n++; }' \
    'int main(void) { burn_in_a_private_file(); }' | gcc -O1 -x c -o "$payload/burn" -
rm -f "$folder/payload.ext4"
mke2fs -q -t ext4 -d "$payload" "$folder/payload.ext4" 300M

# The base image stays as it is.
timeout "${LIMIT:-1200}" qemu-system-x86_64 -accel "${QEMU_ACCEL:-tcg,thread=multi}" -cpu "${QEMU_CPU:-max}" -machine q35,usb=off \
    -smp 2 -m 1536 -nodefaults -no-user-config -display none -serial "file:$folder/console.log" -serial stdio -monitor none -no-reboot -nic none \
    -drive "file=$base,if=virtio,format=raw,snapshot=on" \
    -drive "file=$folder/payload.ext4,if=virtio,format=raw,readonly=on" \
    -kernel "$folder/vmlinuz" -initrd "$folder/initrd" -append "root=/dev/vda rw console=ttyS0 quiet panic=-1" \
    </dev/null | tee "$folder/report.log" | sed -un 's/^GUEST //p'
grep -q '^GUEST all passed' "$folder/report.log" || { echo "failed; see $folder/report.log and console.log" >&2; exit 1; }
