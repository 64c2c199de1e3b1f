#!/usr/bin/env bash
# Runs an experiment on a TPU slice of Google Cloud, from nothing, over ssh.
#
#   NAME=mine ZONE=us-east5-a TYPE=v5p-8 VERSION=v2-alpha-tpuv5 STORE=gs://BUCKET/store \
#       examples/tpu_slice.sh experiments/dpo_arithmetic.py sft/backend=jax dpo/backend=jax \
#       launcher.steps.train_sft.tpu=v5p-8 launcher.steps.train_dpo.tpu=v5p-8
#
# It asks for the slice in the queue of the zone, waits for it, copies the last commit to every
# host, installs it, joins the hosts to a Ray cluster, and runs the experiment on the first of them.
# If the slice is taken away, it asks for another one: steps go on from what is in the store. At the
# end, also after an error or Ctrl-C, it gives the slice back.
#
# SPOT=1 asks for one that may be taken away. POLL is how many seconds pass between two questions.
set -euo pipefail
: "${NAME:?a name for the slice}" "${ZONE:?its zone}" "${TYPE:?such as v5p-8}"
: "${VERSION:?the runtime of its machines, such as v2-alpha-tpuv5}" "${STORE:?gs://BUCKET/PATH}"
[ $# -gt 0 ] || { echo "say which experiment, as in experiments/dpo_arithmetic.py" >&2; exit 2; }
POLL=${POLL:-20}
code=$(mktemp) token=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
trap 'rm -f "$code"; give_back || echo "look whether $NAME still costs money" >&2' EXIT

queue() { gcloud compute tpus queued-resources "$@" --zone "$ZONE"; }
state() { queue describe "$NAME" --format 'value(state.state)' || echo UNKNOWN; }
on() { gcloud compute tpus tpu-vm ssh "$NAME" --zone "$ZONE" --worker "$1" --command "$2"; }

give_back() { queue delete "$NAME" --force --quiet; }

wait_for_slice() {
    while now=$(state); [ "$now" != ACTIVE ]; do
        case $now in FAILED | SUSPENDED) return 1 ;; esac
        echo "$NAME is $now"
        sleep "$POLL"
    done
}

prepare() { # each line only if the one before went well: bash looks at no errors behind an `if`
    gcloud compute tpus tpu-vm scp "$code" "$NAME:temper.tgz" --zone "$ZONE" --worker all &&
    on all 'set -e; mkdir -p temper; tar xzf temper.tgz -C temper; cd temper
        command -v ~/.local/bin/uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
        ~/.local/bin/uv venv --clear --quiet --python 3.11 ~/venv
        VIRTUAL_ENV=~/venv ~/.local/bin/uv pip install --quiet ".[tpu,ray]"' &&
    head=$(on 0 "hostname -I") && head=${head%% *} &&
    ray="cd temper; export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$token; ~/venv/bin/ray" &&
    on all "if [ \$(hostname -I | cut -d' ' -f1) = $head ]
        then $ray start --head --port 6379; fi" &&
    on all "if [ \$(hostname -I | cut -d' ' -f1) != $head ]
        then $ray start --address $head:6379; fi"
}

run() {
    on 0 "cd temper; export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$token
        ~/venv/bin/python $(printf '%q ' "$@") launcher=ray store=$(printf '%q' "$STORE")"
}

git archive --format tar.gz --output "$code" HEAD
while true; do
    queue create "$NAME" --node-id "$NAME" --accelerator-type "$TYPE" \
        --runtime-version "$VERSION" ${SPOT:+--spot}
    status=1
    if wait_for_slice && prepare; then
        status=0
        run "$@" || status=$?
    fi
    case "$status $(state)" in
    "0 "*) exit 0 ;;
    *FAILED | *SUSPENDED) echo "the slice is gone; another one is asked for" ;;
    *) exit "$status" ;; # the slice is there: it is the experiment that has failed
    esac
    give_back
    sleep "$POLL"
done
