#!/bin/sh
# Prepares this machine to build ggml for Vulkan and to run it, with Mesa's driver that needs no GPU.
#     sh tools/vulkan.sh FOLDER
# prints the option that `ggmodel ggml build --vulkan` needs beside, if any. On Debian and Ubuntu root gets
# the packages that are missing; others are told their names. Where the system's headers of Vulkan
# are too old for ggml, as Debian 12's are, those in FOLDER/usr/include are taken; Debian 13's are
# downloaded there once.
set -eu
. "$(dirname "$0")/debian.sh"

folder=${1:?name a folder for headers of Vulkan}

# Has this folder of headers the type that sdk/ggmodel/builds/requirements.py looks for?
recent() {
    grep -qs LayerSettingTypeEXT "$1"/vulkan/vulkan*.hpp
}

lacking() {
    command -v glslc >/dev/null || echo glslc
    [ -e /usr/include/vulkan/vulkan.h ] || echo libvulkan-dev
    [ -e /usr/share/cmake/SPIRV-Headers ] || echo spirv-headers
    [ -n "$(find /usr/share/vulkan/icd.d -name 'lvp_icd*' 2>/dev/null)" ] || echo mesa-vulkan-drivers
}

need lacking
recent /usr/include && exit
if ! recent "$folder/usr/include"; then
    grep -qsx VERSION_CODENAME=bookworm /etc/os-release ||
        fail "The headers of Vulkan in /usr/include are older than ggml needs: $folder/usr/include is
the place for newer ones, such as those of Debian 13's libvulkan-dev or of LunarG's SDK."
    unpack "$folder" trixie "$(dpkg --print-architecture)" libvulkan-dev
fi
echo "-DVulkan_INCLUDE_DIR=$(cd "$folder" && pwd)/usr/include"
