#!/usr/bin/env bash
# Sets up .venv-tensorflow: the classic lane's packages, which must be there, and TensorFlow before
# them on the search path. Where that is done already it costs some hundredths of a second.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
lane=$PWD/.venv venv=$PWD/.venv-tensorflow
packages=conf/constraints-tensorflow.txt
stamp=$venv/set-up-done

inputs() { cat "$packages" conf/setup_tensorflow.sh "$lane/set-up-done" | sha256sum; }
if [ "$(cat "$stamp" 2>/dev/null)" = "$(inputs)" ]; then exit; fi

echo "tensorflow: installing packages, half a minute the first time" >&2
rm -rf "$venv"
"$lane/bin/python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('${site/$venv/$lane}')" >"$site/classic.pth"
mkdir "$venv/tmp"
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# On the environment's own disk; see setup_lane.sh.
TMPDIR=${TMPDIR:-$venv/tmp} conf/pip_install.sh "$venv/pip.log" "$venv/bin/python" --no-deps \
    --requirement "$packages"
rm -rf "$venv/tmp"
ln -s "$lane/java-home" "$venv/java-home"
inputs >"$stamp"
