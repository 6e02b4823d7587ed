# For other scripts: how they speak, and root where that needs no password.

say() { printf 'draftd: %s\n' "$*" >&2; }

# Runs a command as root where that needs no password; fails otherwise.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}
