#!/bin/sh
# Starts Valkey as the site wants it: append-only, every answered command on disk, users in a file of its own.
set -eu
data=${VALKEY_DATA:-/data}
digest=$(sha256sum < "${VALKEY_PASSWORD_FILE:-/run/secrets/valkey_password}" | cut -d ' ' -f 1)
# The site's own user is renewed; those of the nodes, which the site adds and saves there, stay.
touch "$data/users.acl"
{
    echo "user default on sanitize-payload #$digest ~* &* +@all"
    grep -v '^user default ' "$data/users.acl" || true
} > "$data/users.acl.new"
mv "$data/users.acl.new" "$data/users.acl"
# The image's own entry gives the folder to its account and becomes that.
exec docker-entrypoint.sh valkey-server \
    --dir "$data" --port "${VALKEY_PORT:-6379}" --aclfile "$data/users.acl" \
    --appendonly yes --appendfsync always --save "" --maxmemory "${VALKEY_MAXMEMORY:-1024mb}" --maxmemory-policy noeviction \
    --maxmemory-clients 25% --client-output-buffer-limit normal 128mb 0 0 --client-query-buffer-limit 64mb \
    --proto-max-bulk-len 32mb --min-string-size-avoid-copy-reply 2147483647 \
    --min-string-size-avoid-copy-reply-threaded 2147483647
