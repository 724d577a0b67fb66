#!/bin/sh
# Fetches the libraries of the page at `/` from the npm registry into crates/server/src/page/vendor, exact versions held
# to their SHA-512, and writes their licences beside them. The files are in the repository, so building needs none of
# this: run it to take another version, with the version and the hash changed below, and commit what it writes.
#
# usage: tools/serving/vendor_page.sh          (needs npm, openssl, tar)
set -eu
cd "$(dirname "$0")/../.."
folder=crates/server/src/page/vendor
work=$(mktemp -d) || exit
trap 'rm -rf "$work"' EXIT

# take PACKAGE VERSION LICENCE SHA512 FILE NAME [LAST LINE]: FILE of the package becomes NAME, with LAST LINE behind it.
# The first line of each licence is read by `cargo xtask sbom`.
take() {
    archive=$work/$(cd "$work" && npm pack --silent "$1@$2")
    found=$(openssl dgst -sha512 -binary "$archive" | openssl base64 -A)
    [ "$found" = "$4" ] || { echo "$1@$2 has the SHA-512 $found, not $4" >&2; exit 1; }
    mkdir -p "$work/$6" && tar -xzf "$archive" -C "$work/$6" --strip-components 1
    grep -v '^//# sourceMappingURL' "$work/$6/$5" >"$folder/$6"
    if [ $# -gt 6 ]; then printf '\n%s\n' "$7" >>"$folder/$6"; fi
    { echo "$6: $1 $2 ($3)"; echo; cat "$work/$6/LICENSE"; echo; echo; } >>"$folder/LICENSES.txt"
}

mkdir -p "$folder"
rm -f "$folder"/*
take marked 18.2.1 MIT ii4bxCTCqqwpT86XZWgJNs+ZnAIZksmLGYMViWA7PDIXYIeNo1x6cDdX3JOip9NM/cI6p8z57FxliACboTruMA== \
    lib/marked.esm.js marked.js
take @highlightjs/cdn-assets 11.12.0 BSD-3-Clause \
    KvOKXODaiFmId9xaq3xc5xCL66wVLUuOngDbO9B/kewbFTqdGbn2nJxNhN3H5R1cgDTVj6R8vH0zgiNDEGjpDw== \
    es/highlight.min.js highlight.js
# A script and no module: the last line makes it one.
take temml 0.13.5 MIT aPkDDgunanpLNL0ql32HbolqLep+w8DRcVXRql7rWrMt/PhczdLgL4UBYYVU3BYjCNjkGq4EqwIicu/zWr1iOg== \
    dist/temml.min.js temml.js 'export default temml;'
ls -l "$folder"
