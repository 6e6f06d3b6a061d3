#!/usr/bin/env bash
# Kills a run of the default ladder again and again (SIGKILL), each time after a moment of
# its own, and goes on with --resume until it ends. After each kill the records on disk
# must be whole and no run that had ended may be missing; at the end they must equal those
# of a run that nobody disturbed. The rounds begin so short that planning is hit as well as
# steps and the writing of records.
#
#     scripts/kill-and-resume.sh [FOLDER]     # default: a temporary one; about ten minutes
#
# ABLATION: the program (default target/release/ablation). SEED: of the moments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program=${ABLATION:-target/release/ablation}
compare=${SAME_RECORDS:-$(dirname "$program")/examples/same_records}
[ -x "$program" ] && [ -x "$compare" ] || { echo "build first: cargo build --release --bins --examples" >&2; exit 2; }
out=${1:-$(mktemp -d)}
RANDOM=${SEED:-1}

runs_in() { "$program" report "$1" > /dev/null && "$compare" "$1" "$1" | tail -1 | cut -d' ' -f1; }

"$program" run small --out "$out/undisturbed" > /dev/null 2>&1
echo "undisturbed: $(runs_in "$out/undisturbed") runs"

killed=0 done=0
while true; do
  if [ -e "$out/killed/experiment.toml" ]; then go=(run --resume --out "$out/killed"); else go=(run small --out "$out/killed"); fi
  touch "$out/mark"
  "$program" "${go[@]}" > "$out/log" 2>&1 &
  pid=$!
  # Every fourth round waits until another run is on disk, so that the end comes nearer
  # however slow the machine is.
  if [ $((killed % 4)) = 3 ]; then
    while kill -0 "$pid" 2> /dev/null && ! [ "$out/killed/runs.parquet" -nt "$out/mark" ]; do sleep 0.05; done
  fi
  # Then a moment from 0.02 s to about 8 s, short ones more often.
  sleep "$(awk -v x=$((RANDOM % 1000)) 'BEGIN { printf "%.3f", 0.02 * exp(x / 1000 * 6) }')"
  kill -KILL "$pid" 2> /dev/null || true
  status=0
  wait "$pid" 2> /dev/null || status=$?
  if [ "$status" != 137 ]; then
    [ "$status" = 0 ] && break
    cat "$out/log" >&2
    echo "the run failed by itself" >&2
    exit 1
  fi
  killed=$((killed + 1))
  if [ -e "$out/killed/runs.parquet" ]; then
    now=$(runs_in "$out/killed") || { echo "after kill $killed the records can't be read" >&2; exit 1; }
    [ "$now" -ge "$done" ] || { echo "after kill $killed there are $now runs, where there were $done" >&2; exit 1; }
    done=$now
  fi
done
left=$(find "$out/killed" -name '*.partial' | wc -l)
echo "killed $killed times; $(runs_in "$out/killed") runs, $left partial files"
"$compare" "$out/undisturbed" "$out/killed"
[ "$left" = 0 ]
