#!/bin/sh
# A virtual environment for each peer, with the exact versions in the .txt files beside this one:
#   sh benchmarks/peers/setup.sh FOLDER [fluke pfl flower fedjax]
# torch==2.13.0 is the CPU build; a range would pull several gigabytes of CUDA.
set -e
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
shift
for peer in ${@:-fluke pfl flower fedjax}; do
    "${PYTHON:-python3.11}" -m venv "$folder/$peer"
    "$folder/$peer/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0
    "$folder/$peer/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/$peer.txt"
done
