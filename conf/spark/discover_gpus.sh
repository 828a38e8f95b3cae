#!/usr/bin/env bash
# Spark's GPU discovery script: prints the GPUs that a process started here would see, in the form
# that Spark reads, {"name": "gpu", "addresses": ["0", "1"]}. Takes no arguments: Spark gives none.
#
# Addresses are what CUDA_VISIBLE_DEVICES would name them by: a number for a whole GPU, and the UUID
# of each MIG instance for a GPU that is cut into them. Where CUDA_VISIBLE_DEVICES is already set,
# they are places in it, counted from 0, as CUDA itself would count.
set -euo pipefail

fail() {
    printf 'discover_gpus.sh: %s\n' "$*" >&2
    exit 1
}

command -v nvidia-smi >/dev/null || fail "found no nvidia-smi on the PATH, which comes with" \
    "NVIDIA's driver; install the driver, or ask for no GPUs on this host" \
    "(spark.worker.resource.gpu.amount, spark.executor.resource.gpu.amount)."
listing=$(nvidia-smi -L 2>&1) || fail "nvidia-smi failed, and said: ${listing//$'\n'/ }"

# Lines of nvidia-smi -L are "GPU 0: NAME (UUID: GPU-...)", each followed by the GPU's MIG instances,
# "  MIG 3g.20gb Device 0: (UUID: MIG-...)".
numbers=() uuids=() instances=() addresses=()
gpu='^GPU ([0-9]+): .*\(UUID: (GPU-[0-9A-Za-z-]+)\)'
instance='^ +MIG .*\(UUID: (MIG-[0-9A-Za-z/-]+)\)'
while IFS= read -r line; do
    if [[ $line =~ $gpu ]]; then
        numbers+=("${BASH_REMATCH[1]}")
        uuids+=("${BASH_REMATCH[2]}")
        addresses+=("${BASH_REMATCH[1]}")
    elif [[ $line =~ $instance && ${#numbers[@]} -gt 0 ]]; then
        # In place of the GPU itself, which no process can have while it is cut.
        [ "${addresses[-1]}" != "${numbers[-1]}" ] || unset 'addresses[-1]'
        addresses+=("${BASH_REMATCH[1]}")
        instances+=("${BASH_REMATCH[1]}")
    fi
done <<<"$listing"

# Whether an entry of CUDA_VISIBLE_DEVICES names a device of this host; UUIDs may be cut short.
is_here() {
    local known
    for known in "${numbers[@]}"; do
        [ "$1" != "$known" ] || return 0
    done
    case $1 in GPU-?* | MIG-?*) ;; *) return 1 ;; esac
    for known in "${uuids[@]}" "${instances[@]}"; do
        case $known in "$1"*) return 0 ;; esac
    done
    return 1
}

if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    addresses=()
    IFS=, read -r -a entries <<<"$CUDA_VISIBLE_DEVICES"
    for entry in "${entries[@]}"; do
        # CUDA too ignores what follows the first entry that it does not know.
        is_here "${entry//[[:space:]]/}" || break
        addresses+=("${#addresses[@]}")
    done
fi

if [ ${#addresses[@]} -eq 0 ]; then
    confined=
    [ -z "${CUDA_VISIBLE_DEVICES+set}" ] || confined=" and CUDA_VISIBLE_DEVICES is" \
        confined+=" '$CUDA_VISIBLE_DEVICES'"
    fail "found no GPU that a process here could use: nvidia-smi -L lists ${#numbers[@]}$confined;" \
        "give this host a GPU, or ask for none on it (spark.worker.resource.gpu.amount," \
        "spark.executor.resource.gpu.amount)."
fi
printf -v joined '"%s", ' "${addresses[@]}"
printf '{"name": "gpu", "addresses": [%s]}\n' "${joined%, }"
