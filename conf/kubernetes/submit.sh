#!/usr/bin/env bash
# Submits a job to Kubernetes, in cluster mode: the driver is a pod, too.
# usage: submit.sh [SPARK-SUBMIT OPTIONS] SCRIPT [ARGUMENTS]
#
#   kubectl apply --namespace training -f conf/kubernetes/rbac.yaml \
#       -f conf/kubernetes/network-policy.yaml
#   MASTER_URL=k8s://https://HOST:6443 NAMESPACE=training IMAGE=REGISTRY/sparkdl-runner:0.2.0 \
#       conf/kubernetes/submit.sh local:///opt/sparkdl-runner/jobs/train.py --example digits \
#       --num-proc 2 --cache-url s3a://BUCKET/cache
#
# Environment variables:
#   MASTER_URL        k8s:// and the URL of the API server, as kubectl cluster-info shows it
#   NAMESPACE         where the pods run; rbac.yaml and network-policy.yaml are applied there
#   IMAGE             built from conf/kubernetes/Dockerfile, with a tag of its own
#   SPARK_DEFAULTS    settings; default conf/spark/spark-defaults.conf, for GPUs one of the others
#
# A script of yours, and the modules that it imports, are in an image of yours (FROM this one), or
# are uploaded with spark.kubernetes.file.upload.path. Secrets (MLflow's token, say) are mounted or
# put into the environment from a Kubernetes secret, never given as arguments:
# --conf spark.kubernetes.driver.secretKeyRef.MLFLOW_TRACKING_TOKEN=NAME:KEY
set -euo pipefail

fail() {
    printf 'submit.sh: %s\n' "$*" >&2
    exit 2
}

conf=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
defaults=${SPARK_DEFAULTS:-$conf/spark/spark-defaults.conf}

[ $# -gt 0 ] || fail "name the script to run, as in: submit.sh" \
    "local:///opt/sparkdl-runner/jobs/train.py --example digits --num-proc 2" \
    "--cache-url s3a://BUCKET/cache"
case ${MASTER_URL:-} in
    k8s://https://?*) ;;
    *) fail "set MASTER_URL to k8s:// and the URL of the API server, k8s://https://HOST:6443;" \
        "kubectl cluster-info shows it (it is '${MASTER_URL:-}')." ;;
esac
[ -n "${NAMESPACE:-}" ] || fail "set NAMESPACE to the namespace in which the pods are to run."
image=${IMAGE:-}
case ${image##*/} in
    '' | *:latest) fail "set IMAGE to the image built from conf/kubernetes/Dockerfile, with a tag of" \
        "its own: all pods of an application must run the same one (it is '$image')." ;;
    *:*) ;;
    *) fail "IMAGE is $image, without a tag; name one, as in $image:0.2.0: all pods of an" \
        "application must run the same one." ;;
esac
[ -r "$defaults" ] || fail "cannot read SPARK_DEFAULTS, $defaults."
spark_submit=${SPARK_HOME:+$SPARK_HOME/bin/}spark-submit
command -v "$spark_submit" >/dev/null || fail "found no $spark_submit: set SPARK_HOME to Spark's" \
    "own folder, or put its bin on the PATH."

executor=$conf/kubernetes/executor-pod.yaml
gpus=()
if grep -q '^spark\.executor\.resource\.gpu\.amount ' "$defaults"; then
    executor=$conf/kubernetes/executor-pod-gpu.yaml
    gpus=(
        # What NVIDIA's device plugin calls them: nvidia.com/gpu.
        --conf spark.executor.resource.gpu.vendor=nvidia.com
        --conf spark.executor.resource.gpu.discoveryScript=/opt/sparkdl-runner/conf/spark/discover_gpus.sh
    )
fi

# Spark gives pods the Python that this shell's variables name: let it be the image's.
unset PYSPARK_DRIVER_PYTHON
export PYSPARK_PYTHON=/opt/environment/bin/python
# Where the logging comes from; Spark takes it along to the pods.
export SPARK_CONF_DIR=${SPARK_CONF_DIR:-$conf/spark}
# Spark learns of the end of a pod that was deleted by force only when it asks for all pods: not
# every 30 seconds, as it does by default, so that a dead node is replaced sooner.
exec "$spark_submit" --master "$MASTER_URL" --deploy-mode cluster --properties-file "$defaults" \
    --conf "spark.kubernetes.namespace=$NAMESPACE" \
    --conf "spark.kubernetes.container.image=$image" \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=sparkdl-runner \
    --conf "spark.kubernetes.driver.podTemplateFile=$conf/kubernetes/driver-pod.yaml" \
    --conf spark.kubernetes.driver.podTemplateContainerName=spark-kubernetes-driver \
    --conf "spark.kubernetes.executor.podTemplateFile=$executor" \
    --conf spark.kubernetes.executor.podTemplateContainerName=spark-kubernetes-executor \
    --conf spark.kubernetes.executor.terminationGracePeriodSeconds=120s \
    --conf spark.kubernetes.executor.apiPollingInterval=5s \
    "${gpus[@]}" "$@"
