# Functions for other scripts: messages, and root rights without a password.

say() { printf 'draftd: %s\n' "$*" >&2; }

# Runs a command as root where that needs no password; fails otherwise.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}
