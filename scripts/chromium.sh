#!/usr/bin/env bash
# The browser tests need a Chromium. Installs Debian's where apt and root allow; says loudly where not.
set -uo pipefail
for name in ${CHROMIUM:-} chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
[ -x "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Chromium for the browser tests."
    if apt-get update -qq >/dev/null 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null 2>&1; then
        exit 0
    fi
fi
echo "!! No Chromium here and none could be installed: THE BROWSER TESTS WILL BE SKIPPED." >&2
echo "!! Install one (Debian: apt install chromium) or set CHROMIUM=/path/to/it, then run again." >&2
exit 0
