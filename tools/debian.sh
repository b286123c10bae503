# shellcheck shell=sh
# Packages of Debian, for scripts: this is read by them, not run.
set -eu

fail() {
    echo "$1" >&2
    exit 1
}

# need COMMAND: as root, installs the packages that this function names, one a line, as long as they
# are missing; else they are an error.
need() {
    missing=$("$1")
    if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq >&2
        # shellcheck disable=SC2086
        apt-get install -y -qq --no-install-recommends $missing </dev/null >&2
        missing=$("$1")
    fi
    [ -z "$missing" ] || fail "Missing, by the names of Debian's packages:
$missing"
}

# unpack FOLDER SUITE ARCHITECTURE PACKAGE...: unpacks packages of any Debian into a new or empty
# folder, which is filled when they are whole. They come from the mirror that this Debian 12 uses; apt's own files stay
# as they are.
unpack() (
    mkdir -p "$(dirname "$1")"
    folder=$(cd "$(dirname "$1")" && pwd)/$(basename "$1") suite=$2 architecture=$3
    shift 3
    [ -z "$(ls -A "$folder" 2>/dev/null)" ] ||
        fail "$folder has other files; name another folder, or empty it"
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Origin: Debian" \
        "Label: Debian" "Codename: bookworm" "Component: main" | head -n 1)
    [ -n "$mirror" ] || fail "apt has no list of Debian 12's packages; run apt-get update"
    work=$(mktemp -d "$folder.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    cd "$work"
    mkdir -p none lists/partial archives/partial unpacked
    echo "deb [arch=$architecture] $mirror $suite main" >sources.list
    # The user that root's apt downloads as could not write here.
    own() {
        apt-get -qq -o APT::Sandbox::User=root -o APT::Architecture="$architecture" \
            -o APT::Architectures="$architecture" -o Dir::Etc::sourcelist="$PWD/sources.list" \
            -o Dir::Etc::sourceparts="$PWD/none" -o Dir::Etc::preferencesparts="$PWD/none" \
            -o Dir::State::lists="$PWD/lists" -o Dir::State::status=/dev/null -o Dir::Cache="$PWD" "$@" >&2
    }
    own update
    own download "$@"
    for package in *.deb; do
        dpkg-deb -x "$package" unpacked
    done
    mv -T unpacked "$folder"
)
