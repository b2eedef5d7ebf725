# Makes a cluster of the servers named HOST:PORT, half of them primaries, unless they are one already.
set -eu

addresses=
for server in "$@"; do
    host=${server%:*} port=${server##*:}
    until [ "$(redis-cli -h "$host" -p "$port" ping)" = PONG ]; do
        echo "waiting for $server"
        sleep 1
    done
    # A node is named by address; redis-cli takes no host names there.
    address=$(getent hosts "$host" | { read -r address _ && echo "$address"; })
    addresses="$addresses $address:$port"
done

if redis-cli -h "${1%:*}" -p "${1##*:}" cluster info | grep -q '^cluster_state:ok'; then
    echo "the cluster is there"
    exit 0
fi
# shellcheck disable=SC2086  # one word an address
exec redis-cli --cluster create $addresses --cluster-replicas 1 --cluster-yes
