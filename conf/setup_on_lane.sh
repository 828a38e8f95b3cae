#!/usr/bin/env bash
# Sets up .venv-NAME: a lane's packages, which must be there, and those of a file before them on the
# search path. Where that is done already it costs some hundredths of a second.
# usage: setup_on_lane.sh NAME .venv|.venv-modern FILE
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
name=$1 lane=$PWD/$2 packages=$3
venv=$PWD/.venv-$name
stamp=$venv/set-up-done

inputs() { cat "$packages" conf/setup_on_lane.sh "$lane/set-up-done" | sha256sum; }
if [ "$(cat "$stamp" 2>/dev/null)" = "$(inputs)" ]; then exit; fi

echo "$name: installing packages, half a minute the first time" >&2
rm -rf "$venv"
"$lane/bin/python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "import site; site.addsitedir('${site/$venv/$lane}')" >"$site/lane.pth"
mkdir "$venv/tmp"
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# On the environment's own disk; see setup_lane.sh. What has to be built finds the lane's torch.
TMPDIR=${TMPDIR:-$venv/tmp} conf/pip_install.sh "$venv/pip.log" "$venv/bin/python" --no-deps \
    --no-build-isolation --requirement "$packages"
rm -rf "$venv/tmp"
ln -s "$lane/java-home" "$venv/java-home"
inputs >"$stamp"
