#!/bin/sh
# Makes docker/secrets/ (or the folder given), once: what is there is never changed, for the data belongs to it.
set -eu
folder=${1:-$(dirname "$0")/secrets}
umask 077
mkdir -p "$folder"
random() { head -c 36 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n='; }
keep() {
    [ -s "$folder/$1" ] && return
    printf '%s' "$2" > "$folder/$1"
    # Containers read it under accounts of their own; on this host the folder keeps others out.
    chmod 444 "$folder/$1"
}
keep secret_key "$(random)$(random)"
keep postgres_password "$(random)"
keep valkey_password "$(random)"
keep database_url "postgresql://meridian:$(cat "$folder/postgres_password")@postgres:5432/meridian"
keep valkey_url "redis://default:$(cat "$folder/valkey_password")@valkey:6379/0"
