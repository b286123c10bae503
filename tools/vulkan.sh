#!/bin/sh
# Prepares this machine to build ggml for Vulkan and to run it, with Mesa's driver that needs no GPU.
#     sh tools/vulkan.sh FOLDER
# prints the options that `ggmodel ggml build --vulkan` needs beside. On Debian and Ubuntu root gets
# the packages that are missing; others are told their names. Where the system's headers of Vulkan
# are too old for ggml, as Debian 12's are, those in FOLDER/usr/include are taken; Debian 13's are
# downloaded there once, from the mirror that the system uses.
set -eu

folder=${1:?name a folder for headers of Vulkan}

fail() {
    echo "$1" >&2
    exit 1
}

# Has this folder of headers the type that sdk/ggmodel/builds/kits.py looks for?
recent() {
    grep -qs LayerSettingTypeEXT "$1"/vulkan/vulkan*.hpp
}

# The Debian packages of what is missing.
lacking() {
    command -v glslc >/dev/null || echo glslc
    [ -e /usr/include/vulkan/vulkan.h ] || echo libvulkan-dev
    [ -e /usr/share/cmake/SPIRV-Headers ] || echo spirv-headers
    [ -n "$(find /usr/share/vulkan/icd.d -name 'lvp_icd*' 2>/dev/null)" ] || echo mesa-vulkan-drivers
}

# apt with sources, lists and packages of its own, in the folder $work. The user that root downloads
# as could not write there.
own_apt() {
    (cd "$work" && apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::sourcelist="$work/sources.list" \
        -o Dir::Etc::sourceparts="$work/none" -o Dir::Etc::preferencesparts="$work/none" \
        -o Dir::State::lists="$work/lists" -o Dir::State::status=/dev/null \
        -o Dir::Cache="$work" "$@") >&2
}

download() {
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Origin: Debian" \
        "Label: Debian" "Codename: bookworm" "Component: main" | head -n 1)
    [ -n "$mirror" ] || fail "apt has no list of Debian 12's packages; run apt-get update"
    mkdir -p "$(dirname "$folder")"
    work=$(mktemp -d "$folder.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    work=$(cd "$work" && pwd)
    mkdir -p "$work/none" "$work/lists/partial" "$work/archives/partial"
    echo "deb $mirror trixie main" >"$work/sources.list"
    own_apt update
    own_apt download libvulkan-dev
    dpkg-deb -x "$work"/libvulkan-dev_*.deb "$work/unpacked"
    # Renamed when whole.
    mv -T "$work/unpacked" "$folder"
}

missing=$(lacking)
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing </dev/null >&2
    missing=$(lacking)
fi
[ -z "$missing" ] || fail "Missing, by the names of Debian's packages:
$missing"

if ! recent /usr/include; then
    if ! recent "$folder/usr/include"; then
        grep -qsx VERSION_CODENAME=bookworm /etc/os-release ||
            fail "The headers of Vulkan in /usr/include are older than ggml needs: $folder/usr/include is
the place for newer ones, such as those of Debian 13's libvulkan-dev or of LunarG's SDK."
        download
    fi
    echo "-DVulkan_INCLUDE_DIR=$(cd "$folder" && pwd)/usr/include"
fi
