# shellcheck shell=bash
# Read by other scripts: whether others than root and this user can change what is at a path.

# Prints what lets them; nothing if nothing does. Looks at all folders above the path too, as ssh does
# for its keys, but up to the root. The path has no links: give what realpath -m prints.
fault_of_path() {
    local path=$1 uid user group mode others
    while [ ! -e "$path" ]; do path=$(dirname "$path"); done
    while :; do
        read -r uid user group mode < <(stat -c '%u %U %G %a' "$path")
        others=022
        # A group that is named for the owner and has no other members is the owner's own.
        [ "$user" != "$group" ] || [ "$user" = UNKNOWN ] ||
            [ -n "$(getent group "$group" 2>/dev/null | cut -d : -f 4)" ] || others=002
        if [ "$uid" != 0 ] && [ "$uid" != $EUID ]; then
            echo "$path, which belongs to $user (uid $uid)"
            return
        # In a sticky folder others cannot rename or remove what is not theirs.
        elif ((8#$mode & 8#$others)) && ! { [ -d "$path" ] && ((8#$mode & 8#1000)); }; then
            echo "$path, which others may write to (mode $mode)"
            return
        fi
        [ "$path" != / ] || return 0
        path=$(dirname "$path")
    done
}
