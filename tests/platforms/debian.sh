#!/usr/bin/env bash
# A Debian of a newer suite in a folder: compilers and standard libraries for other targets, emulators
# and newer interpreters, without touching the machine's own. Runs a command in it, with the sources at
# their own path.
#
#   debian.sh SUITE PACKAGE... -- COMMAND...
#
# Needs root (chroot, mount) and debootstrap; the first run downloads about 1 GB. The folders are in
# PLATFORMS (target/platforms), CARGO_HOME and the build folder included; mounts end with the command.
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

# A mount namespace of its own: what is mounted here ends with the command.
inside() {
    unshare --mount --fork --propagation private bash -ec '
        root=$1 source=$2
        shift 2
        mount -t proc proc "$root/proc"
        mount --rbind /dev "$root/dev"
        mkdir -p "$root$source" "$root/cargo"
        mount --bind "$source" "$root$source"
        exec chroot "$root" "$@"' inside "$root" "$source" "$@"
}

wanted=$(printf '%s\n' "${packages[@]}" | sort -u)
if [ -n "$wanted" ] && ! comm -23 <(echo "$wanted") <(sort -u "$root/.packages" 2>/dev/null) | cmp -s - /dev/null; then
    case "$wanted" in *:arm64*) inside dpkg --add-architecture arm64 ;; esac
    {
        inside apt-get update --quiet
        inside env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet $wanted
    } >>"$platforms/$suite.log" 2>&1 || { tail -15 "$platforms/$suite.log" >&2; exit 1; }
    printf '%s\n' "${packages[@]}" >>"$root/.packages"
fi
flock --unlock 8

[ $# -gt 0 ] || exit 0
keep=()
for name in ${PLATFORMS_KEEP:-}; do
    keep+=("$name=${!name:-}")
done
inside env -i HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    CARGO_HOME=/cargo SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt \
    "${keep[@]}" bash -ec 'cd "$1"; shift; exec "$@"' run "$source" "$@"
