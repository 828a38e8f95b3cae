#!/usr/bin/env bash
# Writes a new secret for a standalone cluster, in a file that only its owner can read, in the form
# that Spark reads. Copy it to every host of the cluster, and to those who may submit to it: whoever
# has it may run code on all hosts.
set -euo pipefail

usage="usage: new_secret.sh FILE"
case $#-${1:-} in
    1--h | 1---help) echo "$usage" && exit ;;
    1-?*) ;;
    *) echo "$usage" >&2 && exit 2 ;;
esac
if [ -e "$1" ]; then
    echo "new_secret.sh: $1 is there already, and a cluster may be using it; name another file, or" \
        "remove this one first." >&2
    exit 1
fi
umask 077
# Spark's own files have the secret in this form, so no command line ever holds it.
{
    echo "# Readable by its owner alone: whoever has it may run code on the cluster."
    echo "spark.authenticate true"
    echo "spark.authenticate.secret $(od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n')"
} >"$1"
echo "$1"
