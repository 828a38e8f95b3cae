#!/usr/bin/env bash
# Runs pip install, keeps what it prints in a file, and says in a sentence why it failed.
# usage: pip_install.sh LOG PYTHON ARGUMENT...
set -euo pipefail

log=$1 python=$2
shift 2
# pip cleans up after SIGINT and ends with 1; who interrupted it needs no reason.
interrupted=
trap 'interrupted=1' INT TERM

# Not compiled here: that takes longer than everything else, and most modules are never imported.
if "$python" -m pip install --no-compile --no-input --progress-bar off "$@" >"$log" 2>&1; then
    exit
else
    status=$?
fi
[ -z "$interrupted" ] || exit 130

# pip says that it got no answer for a package only if asked for every detail; and where another
# version than the pinned one is installed, it calls no answer a conflict.
lacking=$(grep -m 1 -oE '(No matching distribution found for|\(constraint\)) [^ ;]+' "$log") || true
lacking=${lacking##* }
if [ -n "$lacking" ]; then
    if asked=$("$python" -m pip install --no-input -vv --dry-run --no-deps \
        --ignore-installed --retries 0 "$lacking" 2>&1); then
        lacking=
    else
        grep 'Could not fetch URL' <<<"$asked" >>"$log" || true
    fi
fi

said() { grep -qE "$1" "$log"; }
first() { grep -m 1 -oE "$1" "$log"; }

# The first of the folders that pip writes to whose disk has less than 50 MB, and how much it has.
full_disk() {
    local folder free
    for folder in "$(dirname "$log")" "${TMPDIR:-/tmp}" \
        "${PIP_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/}/.cache}}"; do
        while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
        free=$(df -Pm "$folder" | awk 'NR == 2 {print $4}')
        [ "$free" -ge 50 ] || { echo "$free MB are free for $folder" && return; }
    done
}

why() {
    local full
    full=$(full_disk)
    if [ -n "$full" ] || said 'No space left on device|Disk quota exceeded'; then
        echo "the disk is full${full:+: $full}; make room (a lane takes 3 GB), or name roomier" \
            "folders with TMPDIR and PIP_CACHE_DIR"
    elif said 'Retrying \(|Could not fetch URL|not a trusted or secure host|HTTP error|Connection(Reset)?Error|timed out|SSLError'; then
        echo "the package registry cannot be reached or answers with errors" \
            "($(first 'HTTP error [0-9]+|[0-9]{3} (Client|Server) Error[^:]*|too many [0-9]{3} error|Name or service not known|Temporary failure in name resolution|Connection refused|CERTIFICATE_VERIFY_FAILED|timed out|not a trusted or secure host' ||
                echo 'no answer')); see to the network, a proxy (HTTPS_PROXY) or pip's index" \
            "(PIP_INDEX_URL)"
    elif said 'require a different python version|requires a different Python'; then
        echo "a pinned version is not for $("$python" -V)" \
            "($(first '[^ ]+ Requires-Python [^;]*' || first 'Package .* requires a different Python.*')):" \
            "name another Python 3.11 or 3.12 with PYTHON=, or correct the pin"
    elif [ -n "$lacking" ]; then
        echo "the package registry has no $lacking for $("$python" -V) on $(uname -sm); name another index" \
            "(PIP_INDEX_URL) or another Python with PYTHON="
    elif said 'ResolutionImpossible|conflicting dependencies'; then
        echo "the versions that are asked for exclude one another ($(first 'Cannot install .*' ||
            echo 'see the file')); correct conf/constraints-*.txt or setup.cfg, or a constraint of" \
            "pip's own configuration (pip config list)"
    elif said "command '[^']*(gcc|g\+\+|cc|clang)[^']*' failed|Python\.h: No such file|error: linker"; then
        echo "a package had to be compiled and the compiler or Python's headers are missing; install" \
            "them (Debian: apt-get install g++ python3-dev; RHEL: dnf install gcc-c++ python3-devel)"
    elif said 'DO NOT MATCH THE HASHES|Bad(Zip|GzipFile)|IncompleteRead|is not a zip file'; then
        echo "a download was damaged; run it again"
    elif said 'Permission denied'; then
        echo "it may not write ($(first "Permission denied: '[^']*'" || echo 'see the file')); make" \
            "that folder yours"
    elif [ $status -gt 128 ]; then
        echo "it was killed by signal $((status - 128)), by lack of memory perhaps; run it again"
    else
        grep -E '^ERROR: ' "$log" | tail -n 1 | cut -c 8- | grep . || echo "it ended with $status"
    fi
}

echo "pip could not install what was asked for: $(why). pip's output is in $log." >&2
exit 1
