#!/usr/bin/env bash
# Builds Horovod for the torch that is installed, keeps the wheel, and installs it.
#
# Horovod's last release asks CMake for C++14, which today's torch rejects. Its code is fine with
# newer standards, so this puts a small wrapper in the compiler's place that replaces the standard
# by the one that this torch asks for.
#
# Works as it is as a Databricks cluster init script. Those take no arguments: there, set
# HOROVOD_GPU_OPERATIONS=NCCL in the cluster's environment instead of --gpu.
set -euo pipefail

HOROVOD_VERSION=0.28.1

usage() {
    cat <<'END'
usage: build.sh [--gpu] [--python PATH] [--wheelhouse DIR] [--wheel-only | --check]

Builds Horovod for the torch installed in a Python, once, and installs it there.

  --gpu              collective operations on GPUs by NCCL (also: HOROVOD_GPU_OPERATIONS=NCCL)
  --python PATH      the Python to build for (default: $PYTHON, else Databricks' own, else python3)
  --wheelhouse DIR   where wheels are kept (default: $SPARKDL_RUNNER_WHEELHOUSE,
                     else sparkdl-runner/wheelhouse in the user's cache folder)
  --wheel-only       do not install; print the wheel's path
  --check            only say whether the wheel is there or could be built
END
}

say() { printf 'horovod: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

gpu=cpu
[ "${HOROVOD_GPU_OPERATIONS:-}" != NCCL ] || gpu=gpu
python=${PYTHON:-}
cache=${XDG_CACHE_HOME:-${HOME:-~}/.cache}
wheelhouse=${SPARKDL_RUNNER_WHEELHOUSE:-$cache/sparkdl-runner/wheelhouse}
mode=install
while [ $# -gt 0 ]; do
    case $1 in
        --gpu) gpu=gpu ;;
        --python | --wheelhouse)
            [ $# -gt 1 ] || fail "$1 needs a path after it."
            if [ "$1" = --python ]; then python=$2; else wheelhouse=$2; fi
            shift
            ;;
        --wheel-only) mode=wheel ;;
        --check) mode=check ;;
        --help | -h) usage && exit ;;
        *) fail "unknown argument $1; --help lists those there are." ;;
    esac
    shift
done

databricks=/databricks/python/bin/python
if [ -z "$python" ]; then
    python=python3
    [ ! -x $databricks ] || python=$databricks
fi
found=$(command -v "$python") || fail "there is no Python at '$python'; name one with --python."
# From here on in no particular folder: Python would import from the one that it is started in.
python=$(cd "$(dirname "$found")" && pwd)/${found##*/}
wheelhouse=$(realpath -m "$wheelhouse")
cd /
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# ---- what this torch is and asks for -----------------------------------------------------------

# Reads torch's files and does not import it: on a machine that only builds, a CUDA torch may not
# find its driver. Prints "wheel_key version cuda standard", or nothing if there is no torch.
describe_torch() {
    "$python" - <<'END'
import importlib.util, os, pathlib, re, runpy, sys, sysconfig

spec = importlib.util.find_spec("torch")
if spec is None or spec.origin is None:
    sys.exit()
torch = pathlib.Path(spec.origin).parent
facts = runpy.run_path(str(torch / "version.py"))
version, cuda = facts["__version__"], facts.get("cuda")

# The headers refuse what is too old for torch 2.1 and later; what they use without asking is in
# the standard that torch gives to CMake projects. 201703 is C++17, 202002 is C++20.
demanded = [17]
for header in ("ATen/ATen.h", "torch/csrc/api/include/torch/all.h"):
    path = torch / "include" / header
    text = path.read_text() if path.exists() else ""
    demanded += [int(y[2:4]) for y in re.findall(r"__cplusplus\s*<\s*(\d{6})L", text)]
config = torch / "share/cmake/Torch/TorchConfig.cmake"
text = config.read_text() if config.exists() else ""
demanded += [int(s) for s in re.findall(r"CXX_STANDARD\s+(\d+)", text)]

tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
libc = os.confstr("CS_GNU_LIBC_VERSION").replace(" ", "")
print(f"{tag}-torch{version}-{sysconfig.get_platform()}-{libc}", version, cuda, max(demanded))
END
}

description=$(describe_torch) || fail "could not read the torch of $python."
read -r key torch_version torch_cuda standard <<<"$description" || true
if [ -z "${key:-}" ] && [ $mode != check ]; then
    fail "$python has no torch to build for; install torch there first (pip install torch)."
fi
[ $gpu = cpu ] || [ "${torch_cuda:-}" != None ] ||
    fail "torch $torch_version in $python was built without CUDA, and --gpu needs it; install a" \
        "CUDA build of torch or leave out --gpu."
# Counts the changes of what this script makes of one version.
revision=4
wheels=$wheelhouse/${key:-none}-$gpu-r$revision
find_wheel() {
    find "$wheels" -maxdepth 1 -name "horovod-$HOROVOD_VERSION-*.whl" 2>/dev/null | head -n 1
}

# ---- what building needs -----------------------------------------------------------------------

check_tools() {
    local cxx=${CXX:-g++} name include
    # Unquoted where it is run: CXX may hold arguments, as in "ccache g++".
    name=${cxx%% *}
    command -v "$name" >/dev/null || fail "found no C++ compiler ('$name'), and building Horovod" \
        "needs one; install it (Debian: apt-get install g++ make; RHEL: dnf install gcc-c++ make)" \
        "or name yours with CXX."
    command -v make >/dev/null || fail "found no make, and building Horovod needs it; install it" \
        "(Debian: apt-get install make; RHEL: dnf install make)."
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    [ -e "$include/Python.h" ] || fail "found no $include/Python.h, and building Horovod needs" \
        "Python's headers; install them (Debian: apt-get install ${include##*/}-dev;" \
        "RHEL: dnf install ${include##*/}-devel)."
    # shellcheck disable=SC2086
    echo 'int main() {}' | $cxx -std=gnu++"${standard:-17}" -x c++ -fsyntax-only - 2>/dev/null ||
        fail "found $($cxx --version 2>/dev/null | head -n 1), which cannot compile" \
            "C++${standard:-17}, and torch${torch_version:+ $torch_version} needs that; install a newer" \
            "one, GCC 11 or later for C++20 (Debian: apt-get install g++; RHEL: dnf install" \
            "gcc-toolset-13-gcc-c++), and name it with CXX if it is not the default."
}

# Prints the folders that make up a package of pip's, each in a line; none if it is not there.
pip_folders() {
    "$python" -c 'import importlib.util as u, sys
s = u.find_spec("nvidia") and u.find_spec("nvidia." + sys.argv[1])
sys.stdout.writelines(f + "\n" for f in (s.submodule_search_locations if s else []))' "$1"
}

# Prints what keeps the toolkit in a folder from compiling for this torch; nothing if it can.
fault_of_cuda() {
    local version output
    version=$("$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.*, release \([0-9.]*\),.*/\1/p') || true
    if [ -z "$version" ]; then
        echo "no nvcc"
    elif [ "${version%%.*}" != "${torch_cuda%%.*}" ]; then
        echo "CUDA $version"
    # nvcc alone is not enough, and it refuses C++ compilers that are newer than itself.
    elif ! output=$("$1/bin/nvcc" -ccbin "$work/cxx" -x cu -c -o "$work/probe.o" - 2>&1 \
        <<<'#include <cuda_fp16.h>'); then
        echo "an nvcc that cannot compile" \
            "($(grep -m 1 -iE 'error|fatal|not found' <<<"$output" || tail -n 1 <<<"$output"))"
    fi
}

# Lays links to the files of pip's CUDA packages out as a toolkit in $1: the packages have neither a
# lib64, where nvcc looks, nor a libcudart.so without a number, for which CMake looks.
link_pip_cuda() {
    local major=${torch_cuda%%.*} folder
    mkdir -p "$1/lib"
    while read -r folder; do
        cp -rsf "$folder/." "$1/"
    done < <(pip_folders "cu$major")
    ln -s lib "$1/lib64"
    ln -sf "libcudart.so.$major" "$1/lib/libcudart.so"
}

# Sets cuda to the folder of a toolkit that can compile for this torch: the one that CUDA_HOME names,
# else the machine's, else pip's.
choose_cuda() {
    local needs install toolkit_fault pip_fault
    needs="--gpu needs a compiler of CUDA ${torch_cuda%%.*}, for which torch $torch_version was built"
    install="install the CUDA toolkit $torch_cuda and name its folder with CUDA_HOME"
    # The packages for CUDA 12 have no nvcc.
    [ "${torch_cuda%%.*}" -lt 13 ] ||
        install="run $python -m pip install 'cuda-toolkit[nvcc,cccl]==$torch_cuda.*', or $install"
    cuda=${CUDA_HOME:-/usr/local/cuda}
    toolkit_fault=$(fault_of_cuda "$cuda")
    [ -n "$toolkit_fault" ] || return 0
    [ -z "${CUDA_HOME:-}" ] ||
        fail "found $toolkit_fault in CUDA_HOME=$cuda, and $needs; correct CUDA_HOME, or unset it" \
            "and $install."
    link_pip_cuda "$work/cuda"
    pip_fault=$(fault_of_cuda "$work/cuda")
    [ -z "$pip_fault" ] ||
        fail "found $toolkit_fault in $cuda and $pip_fault among pip's packages, and $needs; $install."
    cuda=$work/cuda
}

# Sets the environment in which Horovod's CMake finds CUDA and NCCL.
find_cuda() {
    local cuda nccl
    choose_cuda
    export CUDA_HOME=$cuda HOROVOD_CUDA_HOME=$cuda HOROVOD_GPU_OPERATIONS=NCCL
    export HOROVOD_NCCL_LINK=SHARED PATH=$cuda/bin:$PATH

    # pip's NCCL is the one that torch itself loads; the machine's is the second choice.
    nccl=$(pip_folders nccl | head -n 1)
    if [ -e "$nccl/include/nccl.h" ]; then
        # It has libnccl.so.2 only; the linker looks for the name without a number.
        mkdir "$work/nccl"
        ln -s "$nccl/lib/libnccl.so.2" "$work/nccl/libnccl.so"
        export HOROVOD_NCCL_INCLUDE=$nccl/include HOROVOD_NCCL_LIB=$work/nccl
    elif [ -z "$(find /usr/include /usr/local/include "$cuda/include" -name nccl.h 2>/dev/null)" ]; then
        fail "found no nccl.h, neither in pip's nvidia-nccl package nor on the machine, and --gpu" \
            "needs NCCL; install it (Debian: apt-get install libnccl-dev; RHEL: dnf install" \
            "libnccl-devel)."
    fi
}

# ---- building ----------------------------------------------------------------------------------

write_compiler_wrapper() {
    # nvcc calls the compiler too, on code that it translated for the standard it was given:
    # those calls go through as they are.
    cat >"$work/cxx" <<END
#!/usr/bin/env bash
args=()
for arg in "\$@"; do
    case \$arg in
        -D__CUDACC__* | -D__NVCC__* | *.cudafe1.*) exec ${CXX:-g++} "\$@" ;;
        # Debug information is of no use to anyone here; without it the wheel is 1 MB, with it 19.
        -std=* | -g) ;;
        *) args+=("\$arg") ;;
    esac
done
exec ${CXX:-g++} "\${args[@]}" -std=gnu++$standard -I$("$python" -c \
        'import sysconfig; print(sysconfig.get_path("include"))')
END
    chmod +x "$work/cxx"
}

# Compiling torch's headers takes about 2 GB a process.
parallel_jobs() {
    local cpus memory_gb
    cpus=$(nproc)
    memory_gb=$(awk '/MemAvailable/ {print int($2 / 2097152)}' /proc/meminfo)
    [ "$cpus" -le "$memory_gb" ] || cpus=$memory_gb
    echo $((cpus > 1 ? cpus : 1))
}

# Unpacks Horovod's source and mends what is wrong in it.
unpack_source() {
    local source=$work/horovod-$HOROVOD_VERSION gloo
    gloo=$source/horovod/common/gloo/gloo_context.cc
    PYTHONPATH=$work/tools "$python" -m pip download --no-cache-dir --no-build-isolation --no-deps \
        --no-binary horovod --dest "$work" "horovod==$HOROVOD_VERSION" &&
        tar -xzf "$work/horovod-$HOROVOD_VERSION.tar.gz" -C "$work" || return
    # 0.28.1 forgets the interface that it was told in every process set, of which the global one is
    # one, and takes the address that the host's name leads to: on many hosts that is the loopback.
    sed -i '/::InitializeForProcessSet(/,$ s/\.iface = gloo_iface_;/.iface = global_context.gloo_iface_;/' \
        "$gloo" && grep -q 'iface = global_context.gloo_iface_;' "$gloo" || return
    # Whatever it links to, torch has loaded before it. A path to the folders of this build would be
    # of no use elsewhere, and where that is a temporary folder anybody might put a library there.
    sed -i 's/^project(horovod CXX)/&\nset(CMAKE_SKIP_BUILD_RPATH TRUE)/' "$source/CMakeLists.txt" &&
        grep -q CMAKE_SKIP_BUILD_RPATH "$source/CMakeLists.txt" || return
    [ $gpu = gpu ] || { leave_out_cuda "$source" && compile_in_large_units "$source"; }
}

# Most of the work is reading headers: eight files at a time read them once, in a third of the time.
compile_in_large_units() {
    sed -i 's/^project(horovod CXX)/&\nset(CMAKE_UNITY_BUILD TRUE)/' "$1/CMakeLists.txt" &&
        grep -q CMAKE_UNITY_BUILD "$1/CMakeLists.txt" || return
    # Means another ReductionFunction than the files beside it.
    sed -i '1i set_source_files_properties(allreduce_local.cc PROPERTIES \
SKIP_UNITY_BUILD_INCLUSION TRUE)' "$1/third_party/gloo/gloo/CMakeLists.txt"
}

# Its CMake wants CUDA wherever there is an nvcc, or torch is a CUDA build that finds one, and fails
# where the rest of the toolkit is missing: for a CPU build it looks for none.
leave_out_cuda() {
    sed -i '/^include(CheckLanguage)/,/^macro(ADD_CUDA)/ { /^macro/! d }' "$1/CMakeLists.txt" &&
        sed -i 's/^string(TOUPPER .* Pytorch_CUDA)/set(Pytorch_CUDA FALSE)/' \
            "$1/cmake/Modules/FindPytorch.cmake" &&
        ! grep -q 'enable_language(CUDA)' "$1/CMakeLists.txt" &&
        grep -q 'set(Pytorch_CUDA FALSE)' "$1/cmake/Modules/FindPytorch.cmake"
}

# The sentence for what is not the compiler's fault. A full disk may leave the log empty.
explain() {
    local folder free
    for folder in "$work" "$wheels"; do
        free=$(df -Pm "$folder" | awk 'NR == 2 {print $4}')
        [ "$free" -ge 20 ] || fail "the disk of $folder is full ($free MB are free), and building" \
            "Horovod takes 1 GB there; make room, or name another folder with TMPDIR or --wheelhouse."
    done
    if grep -qE 'No matching distribution|Could not fetch URL|HTTP error|Connection(Reset)?Error' "$1"; then
        fail "pip could not fetch Horovod's source and what building it takes; see to the network, a" \
            "proxy (HTTPS_PROXY) or pip's index (PIP_INDEX_URL). pip's own words are in $1."
    elif grep -qE 'Killed signal|: Killed$' "$1"; then
        fail "the compiler was killed, by lack of memory: it takes 2 GB. The log is $1."
    fi
}

build() {
    local log=$wheels/build.log
    work=$(mktemp -d) || fail "cannot write to ${TMPDIR:-/tmp}, where Horovod is built; make room" \
        "there (1 GB), or name another folder with TMPDIR."
    incoming=$wheels/.incoming
    trap 'trap "" INT TERM; rm -rf "$work" "$incoming"' EXIT
    trap 'exit 130' INT TERM
    rm -rf "$incoming"
    mkdir "$incoming"
    write_compiler_wrapper
    [ $gpu = cpu ] || find_cuda

    say "building Horovod $HOROVOD_VERSION for torch $torch_version ($gpu, C++$standard)," \
        "some minutes, once; log: $log"
    # The tools go to a folder of their own: the Python that is built for stays as it is.
    # No cache: pip would hand out a Horovod that it once built for another torch.
    # MAKEFLAGS replaces what a make around this script may have set.
    if ! {
        "$python" -m pip install --quiet --target "$work/tools" 'setuptools<81' wheel packaging \
            cffi cloudpickle psutil pyyaml 'cmake>=3.18,<4' &&
            unpack_source &&
            env TMPDIR="$work" PYTHONPATH="$work/tools" CXX="$work/cxx" \
                MAKEFLAGS="-j$(parallel_jobs)" HOROVOD_CMAKE="$work/tools/cmake/data/bin/cmake" \
                HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
                HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
                "$python" -m pip wheel --verbose --no-cache-dir --no-build-isolation --no-deps \
                --wheel-dir "$incoming" "$work/horovod-$HOROVOD_VERSION"
    } >"$log" 2>&1; then
        explain "$log"
        # The compiler's first complaints say more than the end, which is often pip's own.
        { grep -m 3 -E 'error: |Error: ' "$log" || true; tail -n 30 "$log"; } >&2
        fail "Horovod $HOROVOD_VERSION did not build for torch $torch_version; the lines above are" \
            "the log's end, all of it is in $log."
    fi
    # A rename is all or nothing: what bears the name of a wheel is whole.
    mv "$incoming"/horovod-*.whl "$wheels/"
    rm -rf "$work" "$incoming"
}

if [ $mode = check ]; then
    [ -z "$(find_wheel)" ] || exit 0
    check_tools
    [ $gpu = gpu ] && [ -n "${key:-}" ] || exit 0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    write_compiler_wrapper
    find_cuda
    exit
fi

if [ -z "$(find_wheel)" ]; then
    check_tools
    { mkdir -p "$wheels" && : >>"$wheels/.lock"; } 2>/dev/null || fail "cannot write to $wheelhouse; name another folder with" \
        "--wheelhouse or SPARKDL_RUNNER_WHEELHOUSE."
    if command -v flock >/dev/null; then
        exec 8<"$wheels/.lock"
        # Some network folders know no locks; the rename at the end is what keeps wheels whole.
        flock -n 8 || { say "waiting for another build of the same wheel" && flock 8; } || true
    fi
    [ -n "$(find_wheel)" ] || build
fi
wheel=$(find_wheel)

if [ $mode = wheel ]; then
    echo "$wheel"
    exit
fi

# ---- installing --------------------------------------------------------------------------------

# Whether it is this very wheel that is installed, as pip records it, and loads.
is_installed() {
    "$python" - "$wheel" <<'END' 2>/dev/null
import json, pathlib, sys
from importlib.metadata import distribution

origin = json.loads(distribution("horovod").read_text("direct_url.json") or "{}")
if origin.get("url") != pathlib.Path(sys.argv[1]).as_uri():
    sys.exit(1)
import horovod.torch
END
}

if ! is_installed; then
    "$python" -m pip install --quiet cloudpickle psutil pyyaml packaging 'cffi>=1.4' >&2
    # Forced: a Horovod of the same version, built for another torch, may be there.
    "$python" -m pip install --quiet --no-deps --force-reinstall "$wheel" >&2
    "$python" -c 'import horovod.torch' >&2 ||
        fail "the wheel $wheel was installed but does not load (see above); remove it to build it anew."
fi
say "Horovod $HOROVOD_VERSION ($gpu) is installed in $("$python" -c 'import sys; print(sys.prefix)')"
