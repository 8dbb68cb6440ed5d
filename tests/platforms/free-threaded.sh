#!/usr/bin/env bash
# CPython without its global lock (3.14t), in the Debian folder with the compilers: no suite has a package
# of it, so it is built from Debian's source of python3.14, without its optimisations. The source comes from
# the mirror's pool, by the version that is installed or, if the mirror lacks that, the one named here:
# its .dsc is checked against Debian's keys, the archive against the .dsc.
source "$(dirname "$0")/common.sh"

debian "$TOOLS_SUITE" $BUILD_PACKAGES xz-utils zlib1g-dev libssl-dev libffi-dev debian-keyring gpgv -- bash -ec '
    prefix=$1
    test ! -x "$prefix/bin/python3" || exit 0
    pool=$(awk "/^deb /{ print \$2; exit }" /etc/apt/sources.list)/pool/main/p/python3.14
    folder=$(mktemp -d --tmpdir=/var/tmp)
    trap "rm -rf \"$folder\"" EXIT
    cd "$folder"
    chmod a+rwx .
    fetch() { /usr/lib/apt/apt-helper download-file "$pool/$1" "$1"; }
    for version in "$(dpkg-query --show --showformat "\${source:Version}" python3.14)" 3.14.7-1; do
        description=python3.14_$version.dsc
        archive=python3.14_${version%-*}.orig.tar.xz
        ! { fetch "$description" && fetch "$archive"; } || break
    done
    gpgv --quiet --keyring /usr/share/keyrings/debian-keyring.gpg --output signed "$description"
    sed -n "/^Checksums-Sha256:/,/^[^ ]*:\$/s/^ \([0-9a-f]*\) [0-9]* \(.*\)/\1  \2/p" signed |
        grep "  $archive\$" | sha256sum --check --strict
    tar --extract --xz --strip-components=1 --file "$archive"
    ./configure --quiet --prefix="$prefix" --disable-gil --disable-test-modules
    make --quiet --jobs="$(nproc)"
    make --quiet install' build "$FREE_THREADED"
