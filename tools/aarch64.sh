#!/bin/sh
# Prepares this Debian 12 to run ggmodel as on an aarch64 processor, which qemu emulates.
#     sh tools/aarch64.sh FOLDER PYTHON
# FOLDER/root has Debian's Python for it, started by FOLDER/root/usr/bin/python, and FOLDER/site the
# wheels that the ggmodel needs which is installed for PYTHON, and pytest. Parts that are there stay,
# but wheels that others are needed for.
set -eu
. "$(dirname "$0")/debian.sh"

folder=${1:?name a folder} python=${2:?name a Python that has ggmodel}

lacking() {
    command -v aarch64-linux-gnu-gcc >/dev/null || echo gcc-aarch64-linux-gnu
    command -v aarch64-linux-gnu-g++ >/dev/null || echo g++-aarch64-linux-gnu
    command -v qemu-aarch64-static >/dev/null || echo qemu-user-static
}

grep -qsx VERSION_CODENAME=bookworm /etc/os-release || fail "This is for Debian 12."
need lacking
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

if [ ! -d "$folder/root" ]; then
    unpack "$folder/root" bookworm arm64 python3.11-minimal libpython3.11-minimal \
        libpython3.11-stdlib libpython3.11-dev libc6 libgcc-s1 libstdc++6 libbz2-1.0 libcrypt1 \
        libexpat1 libffi8 liblzma5 libsqlite3-0 libssl3 libuuid1 zlib1g
fi
# Processes that Python starts run by it, too.
cat >"$folder/root/usr/bin/python" <<END
#!/bin/sh
exec qemu-aarch64-static -L "$folder/root" -0 "\$0" "$folder/root/usr/bin/python3.11" "\$@"
END
chmod +x "$folder/root/usr/bin/python"

"$python" -c '
from importlib.metadata import requires
print(*(r for r in requires("ggmodel") if ";" not in r and "libggml" not in r), sep="\n")
print("pytest", "pytest-timeout", "hypothesis", sep="\n")
' >"$folder/requirements.new"
if [ ! -d "$folder/site" ] || ! cmp -s "$folder/requirements.new" "$folder/requirements.txt"; then
    rm -rf "$folder/site.part"
    "$python" -m pip --quiet install --target "$folder/site.part" --only-binary=:all: \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform any \
        --python-version 3.11 -r "$folder/requirements.new"
    rm -rf "$folder/site"
    mv -T "$folder/site.part" "$folder/site"
fi
mv "$folder/requirements.new" "$folder/requirements.txt"
