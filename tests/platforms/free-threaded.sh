#!/usr/bin/env bash
# CPython without its global lock (3.14t), in the Debian folder with the compilers: no suite has a package
# of it, so it is built from the source of Debian's python3.14, without its optimisations.
source "$(dirname "$0")/common.sh"

debian "$TOOLS_SUITE" $BUILD_PACKAGES xz-utils zlib1g-dev libssl-dev libffi-dev -- bash -ec '
    prefix=$1
    test ! -x "$prefix/bin/python3" || exit 0
    sed "s/^deb /deb-src /" /etc/apt/sources.list >/etc/apt/sources.list.d/source.list
    apt-get update --quiet
    folder=$(mktemp -d --tmpdir=/var/tmp)
    cd "$folder"
    apt-get source --quiet --download-only python3.14
    tar --extract --xz --strip-components=1 --file python3.14_*.orig.tar.xz
    ./configure --quiet --prefix="$prefix" --disable-gil --disable-test-modules
    make --quiet --jobs="$(nproc)"
    make --quiet install
    rm -rf "$folder"' build "$FREE_THREADED"
