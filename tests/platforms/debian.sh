#!/usr/bin/env bash
# A Debian of a newer suite in a folder: compilers and standard libraries for other targets, emulators
# and newer interpreters, without touching the machine's own. Runs a command in it, with the sources at
# their own path.
#
#   debian.sh SUITE PACKAGE... -- COMMAND...
#
# Needs root (chroot, mount) and debootstrap; the first run downloads about 1 GB. The folders are in
# PLATFORMS (target/platforms), CARGO_HOME and the build folder included; mounts end with the command.
# With EMULATE=aarch64, programs of that architecture run, under qemu-user (the package must be among
# those named), and so do the programs that they start. That takes binfmt_misc of a user namespace: Linux 6.7.
set -euo pipefail

source=$(cd "$(dirname "$0")/../.." && pwd)
platforms=${PLATFORMS:-$source/target/platforms}
suite=$1
shift
packages=()
while [ "$1" != -- ]; do
    packages+=("$1")
    shift
done
shift
root=$platforms/$suite

if [ "$(id -u)" != 0 ]; then
    echo "debian.sh needs root, for chroot and mount: run it in a container or with sudo" >&2
    exit 2
fi
if ! command -v debootstrap >/dev/null; then
    echo "debian.sh needs debootstrap: apt-get install debootstrap" >&2
    exit 2
fi

mkdir -p "$platforms"
# One set-up at a time; commands then run side by side.
exec 8>"$platforms/$suite.lock"
flock 8

if [ ! -e "$root/.complete" ]; then
    rm -rf "$root"
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} \
        >"$platforms/$suite.log" 2>&1 || { tail -5 "$platforms/$suite.log" >&2; exit 1; }
    # The certificates and names of this machine, which may be behind a proxy.
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    # A mirror may be a snapshot whose Release file has expired; its signature is checked all the same.
    echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/90platforms"
    echo 'APT::Install-Recommends "false";' >>"$root/etc/apt/apt.conf.d/90platforms"
    touch "$root/.complete"
fi
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"

enter='
    root=$1 source=$2
    shift 2
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mkdir -p "$root$source" "$root/cargo"
    mount --bind "$source" "$root$source"
    exec chroot "$root" "$@"'

# A mount namespace of its own: what is mounted here ends with the command.
inside() {
    unshare --mount --fork --propagation private bash -ec "$enter" inside "$root" "$source" "$@"
}

# A user namespace, too, with the same users: it has formats of programs of its own. The process waits
# for its users, and is root there from the next program on.
emulated() {
    local child status=0
    unshare --user --mount --pid --fork --kill-child --propagation private bash -c '
        until read -r _ </proc/self/uid_map; do sleep 0.05; done
        exec bash -ec "$@"' wait "$enter" inside "$root" "$source" bash -ec '
        formats=/proc/sys/fs/binfmt_misc
        mount -t binfmt_misc binfmt_misc $formats
        # Class, byte order and machine of the ELF header; F: the emulator is opened now.
        echo ":aarch64:M:0:\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64:F" >$formats/register
        exec "$@"' emulate "$@" <&0 &
    child=$!
    until [ "$(readlink /proc/$child/ns/user)" != "$(readlink /proc/self/ns/user)" ]; do
        kill -0 $child
        sleep 0.05
    done
    echo "0 0 65536" >/proc/$child/uid_map
    echo "0 0 65536" >/proc/$child/gid_map
    wait $child || status=$?
    return $status
}

# Only what is missing: compilers are not upgraded while another command uses them.
missing=$(comm -23 <(printf '%s\n' "${packages[@]}" | sort -u) <(sort -u "$root/.packages" 2>/dev/null))
if [ -n "$missing" ]; then
    case "$missing" in *:arm64*) inside dpkg --add-architecture arm64 ;; esac
    {
        inside apt-get update --quiet
        inside env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-upgrade $missing
    } >>"$platforms/$suite.log" 2>&1 || { tail -15 "$platforms/$suite.log" >&2; exit 1; }
    echo "$missing" >>"$root/.packages"
fi
flock --unlock 8

[ $# -gt 0 ] || exit 0
keep=()
for name in ${PLATFORMS_KEEP:-}; do
    keep+=("$name=${!name:-}")
done
run=inside
case ${EMULATE:-} in
"") ;;
aarch64) run=emulated ;;
*) echo "EMULATE: $EMULATE is not known" >&2; exit 2 ;;
esac
$run env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    CARGO_HOME=/cargo SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt \
    "${keep[@]}" bash -ec 'cd "$1"; shift; exec "$@"' run "$source" "$@"
