#!/bin/sh
# Checks for what cannot come from PyPI: Python with venv and headers, compilers, make.
# Prints everything that is missing, with the line that installs it, and exits with 1.
# With --debian only the names of the missing Debian packages are printed, for scripts.

python=${PYTHON:-python3}
missing=
debian=

lacks() {
    missing="$missing  $1
"
    case " $debian " in
    *" $2 "*) ;;
    *) debian="$debian${debian:+ }$2" ;;
    esac
}

runs() {
    "$python" -c "$1" >/dev/null 2>&1
}

if ! command -v "$python" >/dev/null 2>&1; then
    lacks "$python (Python 3.10 or newer)" python3
    lacks "Python's venv module" python3-venv
    lacks "Python's development headers (Python.h)" python3-dev
elif ! runs 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    lacks "Python 3.10 or newer ($python is older; choose one with PYTHON=...)" python3
else
    runs 'import venv, ensurepip' ||
        lacks "Python's venv module" python3-venv
    runs 'import os, sys, sysconfig
sys.exit(not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
        lacks "Python's development headers (Python.h)" python3-dev
fi
cc=${CC:-cc} cxx=${CXX:-c++}
command -v "${cc%% *}" >/dev/null 2>&1 || lacks "a C compiler ($cc)" gcc
command -v "${cxx%% *}" >/dev/null 2>&1 || lacks "a C++ compiler ($cxx)" g++
command -v make >/dev/null 2>&1 || lacks "make" make

if [ "${1-}" = --debian ]; then
    echo "$debian"
elif [ -n "$missing" ]; then
    cat >&2 <<END
Missing:
$missing
Install with
  Debian, Ubuntu:  apt-get install $debian
  Fedora:          dnf install python3-devel gcc gcc-c++ make
  macOS:           xcode-select --install && brew install python
END
fi
[ -z "$missing" ]
