#!/usr/bin/env bash
# What only a CUDA GPU can show, in under ten minutes and without a network: the tests marked gpu, the latency curve of
# random weights in real shapes with both engines, and the benchmarks. Needs torch and transformers; pytest for the tests.
#
#     scripts/gpu_check.sh [folder for the JSON files]
#
# PYTHON names the interpreter (default python3). Without a GPU it says so and exits 0.
set -u
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
out=${1:-$(mktemp -d)}
mkdir -p "$out"
export PYTHONPATH="src:scripts${PYTHONPATH:+:$PYTHONPATH}" HF_HUB_OFFLINE=1 CUDA_DEVICE_ORDER=PCI_BUS_ID

if ! reason=$("$python" -c '
import importlib.util, sys
missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(print(f"{missing[0]} is not installed") or 1)
import torch
if not torch.cuda.is_available():
    sys.exit(print("torch sees no CUDA device") or 1)
' 2>&1); then
  echo "gpu_check: skipped: ${reason##*$'\n'}"
  exit 0
fi

failed=0

# step NAME SECONDS COMMAND...: runs it under a time limit, its output in NAME.log. Limits and kills of all steps leave
# half a minute of the ten for what runs outside of them.
step() {
  local name=$1 limit=$2 started=$SECONDS code
  shift 2
  echo "gpu_check: $name (at most ${limit}s)"
  timeout -k 5 "$limit" "$@" >"$out/$name.json" 2>"$out/$name.log"
  code=$?
  echo "$code $((SECONDS - started))" >"$out/$name.status"
  [ "$code" -eq 0 ] || { failed=1; tail -n 5 "$out/$name.log"; }
}

# The project's own pytest options name plug-ins that may be missing here.
pytest_alone=("$python" -m pytest -q -o addopts= --import-mode=importlib -p no:cacheprovider)

# runnable_tests: the files that hold gpu tests and can be imported here, with what is missing for the others on stderr
runnable_tests() {
  "$python" - <<'FILES'
import ast
import sys
from importlib.util import find_spec
from pathlib import Path


def imported(file):
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


everything = sorted(Path("tests").rglob("*.py"))
marked = [file for file in everything if "mark.gpu" in file.read_text()]
own = {file.stem for file in everything}  # pytest puts some folders of ours on its path
for file in everything:
    fixtures = [folder / "conftest.py" for folder in file.parents if (folder / "conftest.py").exists()]
    if file.name.startswith("test_") and (file in marked or file.parent / "conftest.py" in marked):
        names = {name for each in (file, *fixtures) for name in imported(each)} - own
        missing = [name for name in sorted(names) if find_spec(name) is None]
        if missing:
            print(f"gpu_check: {file} is left out: {missing[0]} is not installed", file=sys.stderr)
        else:
            print(file)
FILES
}

# step_tests: those marked gpu; the attention kernel's tests carry no mark, as they also run by Triton's interpreter
step_tests() {
  if ! "$python" -c 'import pytest' 2>/dev/null; then
    echo "gpu_check: tests skipped: pytest is not installed"
    return
  fi
  local files
  files=$(runnable_tests)
  # Told no files, pytest would collect every test, and fail at the packages that are missing here.
  if [[ -n $files ]]; then
    step tests 150 "${pytest_alone[@]}" -m gpu $files
  fi
  step kernel 50 "${pytest_alone[@]}" -rs tests/serving/test_tree_kernel.py
  for name in tests kernel; do
    [[ -e $out/$name.json ]] || continue
    cat "$out/$name.json" >>"$out/$name.log"
    tail -n 3 "$out/$name.json"
  done
}

step_tests
step probe_qwen3_4b 75 "$python" scripts/bench.py --device cuda --dtype bfloat16 --model qwen3_4b --only probe
step probe_qwen3_8b 95 "$python" scripts/bench.py --device cuda --dtype bfloat16 --model qwen3_8b --only probe
step bench 170 "$python" scripts/bench.py --device cuda --dtype bfloat16 \
  --only autoregressive,verification,explicit_mask,tree_building,loop_overhead

"$python" - "$out" <<'TABLE'
import json
import sys
from pathlib import Path

out = Path(sys.argv[1])
print(f"\n{'step':16} {'figure':58} {'median':>10} {'q25':>10} {'q75':>10}  goal")


def figures(value, path=""):
    if not isinstance(value, dict):
        return
    if "median" in value:
        yield path, value
    for name, part in value.items():
        yield from figures(part, f"{path} {name}".strip())


for status in sorted(out.glob("*.status")):
    code, seconds = status.read_text().split()
    state = {"0": "done", "124": "out of time", "137": "killed"}.get(code, f"failed with {code}")
    print(f"{status.stem:16} {state} in {seconds} s")
    try:
        record = json.loads(status.with_suffix(".json").read_text())
    except ValueError:
        continue
    print(f"{'':16} {record['model']} {record['dtype']} on {record['device']}, torch {record['torch']}")
    for name, value in figures(record):
        goal = f"{value['goal']:g} {'met' if value['met'] else 'NOT met'}" if "goal" in value else ""
        quartiles = [f"{value[key]:10.3f}" if key in value else " " * 10 for key in ("median", "q25", "q75")]
        print(f"{'':16} {name:58} {' '.join(quartiles)}  {goal}")
TABLE
echo "gpu_check: logs and JSON in $out"
exit $failed
