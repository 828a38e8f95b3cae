#!/usr/bin/env bash
# Builds Horovod for the torch that is installed, keeps the wheel, and installs it.
#
# Horovod's last release asks CMake for C++14, which today's torch rejects. Its code is fine with
# newer standards, so this puts a small wrapper in the compiler's place that replaces the standard
# by the one that this torch asks for.
#
# Works as it is as a Databricks cluster init script. Those take no arguments: there, set
# HOROVOD_GPU_OPERATIONS=NCCL in the cluster's environment instead of --gpu.
#
# Clusters run this as root, so it installs nothing that others could have changed: all that it
# downloads is pinned by hash, and a wheel is taken only from where nobody else may write.
set -euo pipefail

HOROVOD_VERSION=0.28.1

usage() {
    cat <<'END'
usage: build.sh [--gpu] [--python PATH] [--wheelhouse DIR] [--sha256 HASH | --trust-wheelhouse]
                [--wheel-only | --check]

Builds Horovod for the torch installed in a Python, once, and installs it there.

  --gpu              collective operations on GPUs by NCCL (also: HOROVOD_GPU_OPERATIONS=NCCL)
  --python PATH      the Python to build for (default: $PYTHON, else Databricks' own, else python3)
  --wheelhouse DIR   where wheels are kept (default: $SPARKDL_RUNNER_WHEELHOUSE,
                     else sparkdl-runner/wheelhouse in the user's cache folder)
  --sha256 HASH      take the wheel with this SHA-256, whoever may write to the wheelhouse, and
                     build none (also: $SPARKDL_RUNNER_WHEEL_SHA256)
  --trust-wheelhouse take wheels from a wheelhouse that others may write to, and build there: they
                     can then run code as this user (also: SPARKDL_RUNNER_TRUST_WHEELHOUSE=1)
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
sha256=${SPARKDL_RUNNER_WHEEL_SHA256:-}
trusted=${SPARKDL_RUNNER_TRUST_WHEELHOUSE:-}
mode=install
while [ $# -gt 0 ]; do
    case $1 in
        --gpu) gpu=gpu ;;
        --python | --wheelhouse | --sha256)
            [ $# -gt 1 ] || fail "$1 needs a value after it."
            case $1 in
                --python) python=$2 ;;
                --wheelhouse) wheelhouse=$2 ;;
                --sha256) sha256=$2 ;;
            esac
            shift
            ;;
        --trust-wheelhouse) trusted=1 ;;
        --wheel-only) mode=wheel ;;
        --check) mode=check ;;
        --help | -h) usage && exit ;;
        *) fail "unknown argument $1; --help lists those there are." ;;
    esac
    shift
done

[[ $sha256 =~ ^([0-9a-f]{64})?$ ]] || fail "found '$sha256' as the wheel's SHA-256 (--sha256 or" \
    "SPARKDL_RUNNER_WHEEL_SHA256), and expected 64 digits of 0-9 and a-f, as sha256sum prints them."
case $trusted in '' | 0 | 1) ;; *) fail "found SPARKDL_RUNNER_TRUST_WHEELHOUSE=$trusted, and expected" \
    "1 to trust all who may write to the wheelhouse, or 0." ;; esac

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
revision=6
wheels=$wheelhouse/${key:-none}-$gpu-r$revision
find_wheel() {
    [ ! -d "$wheels" ] ||
        find "$wheels" -maxdepth 1 -name "horovod-$HOROVOD_VERSION-*.whl" -print -quit
}

# ---- what may be installed ---------------------------------------------------------------------

# All that this downloads: Horovod's source, what builds it and what it needs to run. The hashes are
# of the registry's own files for Linux on x86_64 and aarch64, and Python 3.10 to 3.14.
pins() {
    cat <<'END'
cffi==2.0.0 \
    --hash=sha256:3e837e369566884707ddaf85fc1744b47575005c0a229de3327f8f9a20f4efeb \
    --hash=sha256:fc7de24befaeae77ba923797c7c87834c73648a05a4bde34b3b7e5588973a453 \
    --hash=sha256:730cacb21e1bdff3ce90babf007d0a0917cc3e6492f336c2f0134101e0944f93 \
    --hash=sha256:8941aaadaf67246224cee8c3803777eed332a19d909b47e29c9842ef1e79ac26 \
    --hash=sha256:b21e08af67b8a103c71a250401c78d5e0893beff75e28c53c98f4de42f774062 \
    --hash=sha256:3e17ed538242334bf70832644a32a7aae3d83b57567f9fd60a26257e992b79ba \
    --hash=sha256:d48a880098c96020b02d5a1f7d9251308510ce8858940e6fa99ece33f610838b \
    --hash=sha256:c8d3b5532fc71b7a77c09192b4a5a200ea992702734a2e9279a37f2478236f26 \
    --hash=sha256:24b6f81f1983e6df8db3adc38562c83f7d4a0c36162885ec7f7b77c7dcbec97b \
    --hash=sha256:afb8db5439b81cf9c9d0c80404b60c3cc9c3add93e114dcae767f1477cb53775
cloudpickle==3.1.2 \
    --hash=sha256:9acb47f6afd73f60dc1df93bb801b472f05ff42fa6c84167d25cb206be1fbf4a
cmake==3.31.10 \
    --hash=sha256:3c17bb24dba15f8ecc3fd706afe04264410ef88796f4115c119327c961d5dc57 \
    --hash=sha256:a4a5615f31f692c9b9aa8b365704e4b76172348af6fa40e16fea3f118bb01194 \
    --hash=sha256:2f766bb46367e5e0559fa33184653754bce044583a06014dcaebf8e6dff8a1f1
horovod==0.28.1 \
    --hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
packaging==25.0 \
    --hash=sha256:29572ef2b1f17581046b3a2227d5c611fb25ec70ca1ba8554b24b0e69331a484
psutil==7.2.2 \
    --hash=sha256:076a2d2f923fd4821644f5ba89f059523da90dc9014e85f8e45a5774ca5bc6f9 \
    --hash=sha256:b0726cecd84f9474419d67252add4ac0cd9811b04d61123054b9fb6f57df6e9e
pycparser==2.23 \
    --hash=sha256:e5c6e8d3fbad53479cab09ac03729e0a9faf2bee3db8208a550daf5af81a5934
pyyaml==6.0.3 \
    --hash=sha256:b30236e45cf30d2b8e7b3e85881719e98507abed1011bf463a8fa23e9c3e98a8 \
    --hash=sha256:9c7708761fccb9397fe64bbc0395abcae8c4bf7b0eac081e12b809bf47700d0b \
    --hash=sha256:10892704fc220243f5305762e276552a0395f7beb4dbf9b14ec8fd43b57f126c \
    --hash=sha256:b8bb0864c5a28024fac8a632c443c87c5aa6f215c0b126c449ae1a150412f31d \
    --hash=sha256:9149cad251584d5fb4981be1ecde53a1ca46c891a79788c0df828d2f166bda28 \
    --hash=sha256:ba1cc08a7ccde2d2ec775841541641e4548226580ab850948cbfda66a1befcdc \
    --hash=sha256:ee2922902c45ae8ccada2c5b501ab86c36525b883eff4255313a253a3160861c \
    --hash=sha256:0f29edc409a6392443abf94b9cf89ce99889a1dd5376d94316ae5145dfedd5d6 \
    --hash=sha256:501a031947e3a9025ed4405a168e6ef5ae3126c59f90ce0cd6f2bfc477be31b7 \
    --hash=sha256:c458b6d084f9b935061bc36216e8a69a7e293a2f1e68bf956dcd9e6cbcd143f5
setuptools==80.9.0 \
    --hash=sha256:062d34222ad13e0cc312a4c02d73f059e86a4acbfbdea8f8f76b28c99f306922
wheel==0.46.3 \
    --hash=sha256:4b399d56c9d9338230118d705d9737a2a468ccca63d5e813e2a4fc7815d8bc4d
END
}

# Prints the pins of the packages that are named.
pins_of() {
    pins | awk -v names=" $* " \
        '/^[a-z]/ {split($1, pin, "=="); named = index(names, " " pin[1] " ")} named'
}

# Prints what lets others than root and this user change what is at a path; nothing if they cannot.
# Looks at all folders above it too, as ssh does for its keys, but up to the root.
fault_of_path() {
    local path=$1 uid user group mode others
    while [ ! -e "$path" ] && [ ! -L "$path" ]; do path=$(dirname "$path"); done
    while :; do
        read -r uid user group mode < <(stat -c '%u %U %G %a' "$path")
        others=022
        # A group that is named for the owner and has no other members is the owner's own.
        [ "$user" != "$group" ] || [ "$user" = UNKNOWN ] ||
            [ -n "$(getent group "$group" 2>/dev/null | cut -d : -f 4)" ] || others=002
        if [ -L "$path" ]; then
            echo "$path, which is a link"
        elif [ "$uid" != 0 ] && [ "$uid" != $EUID ]; then
            echo "$path, which belongs to $user (uid $uid)"
        # In a sticky folder others cannot rename or remove what is not theirs.
        elif ((8#$mode & 8#$others)) && ! { [ -d "$path" ] && ((8#$mode & 8#1000)); }; then
            echo "$path, which others may write to (mode $mode)"
        else
            [ "$path" != / ] || return 0
            path=$(dirname "$path")
            continue
        fi
        return
    done
}

check_path() {
    local fault mine=root
    [ -z "$sha256" ] && [ "${trusted:-0}" = 0 ] || return 0
    fault=$(fault_of_path "$1")
    [ $EUID = 0 ] || mine="yours or root"
    [ -z "$fault" ] || fail "found $fault, and the wheel in $wheelhouse is installed: expected all" \
        "on the way to it to be $mine's, and writable by nobody else. Remove the wheels there and" \
        "correct that (chown, chmod go-w), or name another folder with --wheelhouse; or give the" \
        "wheel's --sha256; or, where modes say nothing, as in a Databricks volume, and you trust all" \
        "who may write there, --trust-wheelhouse."
}

# Refuses a wheel that is not the one that was built, or that was asked for.
check_wheel() {
    local wheel=$1 expected=$sha256 says="--sha256 says" found
    check_path "$wheel"
    if [ -z "$expected" ]; then
        says="$wheel.sha256 says, which the build wrote"
        expected=$(cut -d ' ' -f 1 "$wheel.sha256" 2>/dev/null) || true
        [ -n "$expected" ] ||
            fail "found no SHA-256 in $wheel.sha256, where the build writes that of the wheel;" \
                "remove the wheel to build it anew, or give its --sha256."
    fi
    found=$(sha256sum "$wheel" | cut -d ' ' -f 1)
    [ "$found" = "$expected" ] || fail "found the SHA-256 $found of $wheel, and expected $expected," \
        "as $says: it is another wheel, or was changed. Remove it to build it anew, or correct the hash."
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
    nccl=$(pip_folders nccl) # No pipe to head: it may end before Python has written all.
    nccl=${nccl%%$'\n'*}
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

# The build imports torch, which does without NumPy, and fails at one that pip is just installing.
without_numpy() { echo 'raise ModuleNotFoundError("no NumPy here")' >"$work/tools/numpy.py"; }

# Unpacks Horovod's source and mends what is wrong in it.
unpack_source() {
    local source=$work/horovod-$HOROVOD_VERSION gloo loop
    gloo=$source/horovod/common/gloo/gloo_context.cc
    loop=$source/third_party/gloo/gloo/transport/tcp/loop.cc
    PYTHONPATH=$work/tools "$python" -m pip download --no-cache-dir --no-build-isolation --no-deps \
        --no-binary horovod --dest "$work" --require-hashes --requirement <(pins_of horovod) &&
        tar -xzf "$work/horovod-$HOROVOD_VERSION.tar.gz" -C "$work" || return
    # 0.28.1 forgets the interface that it was told in every process set, of which the global one is
    # one, and takes the address that the host's name leads to: on many hosts that is the loopback.
    sed -i '/::InitializeForProcessSet(/,$ s/\.iface = gloo_iface_;/.iface = global_context.gloo_iface_;/' \
        "$gloo" && grep -q 'iface = global_context.gloo_iface_;' "$gloo" || return
    # Who closes a connection waits until gloo's thread has looked once more, and that looked only
    # every 10 ms where nothing came in: hvd.init() and hvd.shutdown() close several, one by one.
    sed -i -e 's/^    cv_\.wait(lock);/    defer([this] { std::lock_guard<std::mutex> guard(m_); });\n&/' \
        -e 's/^    done_ = true;/&\n    defer([] {});/' "$loop" &&
        [ "$(grep -c '^    defer(\[' "$loop")" = 2 ] || return
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
    if grep -q 'DO NOT MATCH THE HASHES' "$1"; then
        fail "pip's index gave another file than was published for" \
            "$(sed -n 's/^ *\([^ ]*==[^ ]*\) from .*/\1/p' "$1" | head -n 1) (SHA-256" \
            "$(sed -n 's/^ *Got *//p' "$1" | head -n 1)). It was not used; see to pip's index" \
            "(PIP_INDEX_URL, pip config list). pip's own words are in $1."
    elif grep -qE 'No matching distribution|Could not fetch URL|HTTP error|Connection(Reset)?Error' "$1"; then
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
    # MAKEFLAGS replaces what a make around this script may have set. The user's constraints are for
    # the user's packages. The build itself downloads nothing: no index, and no configuration of one.
    if ! {
        PIP_CONSTRAINT=/dev/null "$python" -m pip install --quiet --target "$work/tools" --no-deps \
            --only-binary :all: --require-hashes --requirement <(pins_of setuptools wheel packaging \
                cmake cffi pycparser cloudpickle psutil pyyaml) &&
            without_numpy &&
            PIP_CONSTRAINT=/dev/null unpack_source &&
            env PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS='' PIP_CONSTRAINT='' \
                TMPDIR="$work" PYTHONPATH="$work/tools" CXX="$work/cxx" \
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
    # A rename is all or nothing: what bears the name of a wheel is whole, and its hash is there.
    (cd "$incoming" && for wheel in *.whl; do sha256sum "$wheel" >"$wheel.sha256"; done)
    say "the wheel's SHA-256 is $(cut -d ' ' -f 1 "$incoming"/*.sha256)"
    mv "$incoming"/horovod-*.whl.sha256 "$wheels/"
    mv "$incoming"/horovod-*.whl "$wheels/"
    rm -rf "$work" "$incoming"
}

wheel=$(find_wheel)
if [ -n "$wheel" ]; then
    check_wheel "$wheel"
else
    [ -z "$sha256" ] || [ -z "${key:-}" ] || fail "found no wheel of Horovod in $wheels, and" \
        "--sha256 names one; put it there, or leave out --sha256 to build one."
    check_path "$wheels"
fi

if [ $mode = check ]; then
    [ -z "$wheel" ] || exit 0
    check_tools
    [ $gpu = gpu ] && [ -n "${key:-}" ] || exit 0
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    write_compiler_wrapper
    find_cuda
    exit
fi

if [ -z "$wheel" ]; then
    check_tools
    # What is made in the wheelhouse, nobody else may write to; what is installed is as ever.
    usual=$(umask)
    umask g-w,o-w
    { mkdir -p "$wheels" && : >>"$wheels/.lock"; } 2>/dev/null || fail "cannot write to $wheelhouse; name another folder with" \
        "--wheelhouse or SPARKDL_RUNNER_WHEELHOUSE."
    if command -v flock >/dev/null; then
        exec 8<"$wheels/.lock"
        # Some network folders know no locks; the rename at the end is what keeps wheels whole.
        flock -n 8 || { say "waiting for another build of the same wheel" && flock 8; } || true
    fi
    [ -n "$(find_wheel)" ] || build
    umask "$usual"
    wheel=$(find_wheel)
    check_wheel "$wheel"
fi

if [ $mode = wheel ]; then
    echo "$wheel"
    exit
fi

# ---- installing --------------------------------------------------------------------------------

# Whether it is this very wheel that is installed, as pip records it, and loads.
is_installed() {
    "$python" - "$(sha256sum "$wheel" | cut -d ' ' -f 1)" <<'END' 2>/dev/null
import json, sys
from importlib.metadata import distribution

origin = json.loads(distribution("horovod").read_text("direct_url.json") or "{}")
if origin["archive_info"]["hashes"]["sha256"] != sys.argv[1]:
    sys.exit(1)
import horovod.torch
END
}

# Prints which of the packages that Horovod imports are not there, whatever their version.
missing_packages() {
    "$python" - cloudpickle psutil pyyaml packaging cffi pycparser <<'END'
import sys
from importlib.metadata import PackageNotFoundError, version

for name in sys.argv[1:]:
    try:
        version(name)
    except PackageNotFoundError:
        print(name)
END
}

if [ -n "$sha256" ]; then
    # Whoever may write to the wheelhouse must not change the wheel between its hash and pip.
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/${wheels##*/}"
    cp "$wheel" "$work/${wheels##*/}/"
    wheel=$work/${wheels##*/}/${wheel##*/}
    check_wheel "$wheel"
fi
if ! is_installed; then
    missing=$(missing_packages)
    # shellcheck disable=SC2086 # names, one a word
    [ -z "$missing" ] || "$python" -m pip install --quiet --no-deps --only-binary :all: \
        --require-hashes --requirement <(pins_of $missing) >&2
    # Forced: a Horovod of the same version, built for another torch, may be there.
    "$python" -m pip install --quiet --no-deps --force-reinstall "$wheel" >&2
    "$python" -c 'import horovod.torch' >&2 ||
        fail "the wheel $wheel was installed but does not load (see above); remove it to build it anew."
fi
say "Horovod $HOROVOD_VERSION ($gpu) is installed in $("$python" -c 'import sys; print(sys.prefix)')"
