"""The rows of `make bench` that need Redis, with what Redis takes by itself beside them."""

import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import servers
from servers import ROOT, ROUNDS, TARGET, cota, cpu, request

sys.path.append(str(ROOT / "demo"))
import outage_rows  # noqa: E402
import stores  # noqa: E402

# The callers whose memory is measured. As many for each bucket of Redis' table as a million would be.
CALLERS = 250_000
BURST, LIMIT = 2_000, 500

FOUR_OF_ONE = [
    {"tenant": "acme"},
    {"tenant": "acme", "credential": "key-1"},
    {"tenant": "acme", "route": "GET /v1/search"},
    {"tenant": "acme", "remote_address": "198.51.100.7"},
]
MUCH = "unit: second, requests_per_unit: 1000000000, algorithm: token_bucket"
POLICY = f"""
domain: bench
descriptors:
  - key: tenant
    rate_limit: {{name: tenant, {MUCH}}}
    descriptors:
      - key: credential
        rate_limit: {{name: credential, {MUCH}}}
      - key: route
        value: "GET /v1/search"
        rate_limit: {{name: search, {MUCH}}}
      - key: remote_address
        address: {{}}
        rate_limit: {{name: address, {MUCH}}}
      - key: part
        rate_limit: {{name: part, {MUCH}}}
  - key: fixed
    rate_limit: {{unit: day, requests_per_unit: {LIMIT}, algorithm: fixed_window}}
  - key: sliding
    rate_limit: {{unit: day, requests_per_unit: {LIMIT}, algorithm: sliding_window}}
  - key: bucket
    rate_limit: {{unit: day, requests_per_unit: {LIMIT}, algorithm: token_bucket}}
"""
LEASED = POLICY.replace(MUCH, f"{MUCH}, max_overshoot: 5%")
# Long-lived, so that none is forgotten before all are counted.
DAILY = """
domain: bench
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: day, requests_per_unit: 1000, algorithm: token_bucket}
"""
ANYWHERE = {"pin": ()}
# Where what is measured is not the time of an answer: on a busy machine some would come late and be
# decided without the store.
PATIENT = ("--store-timeout", "10s")


def client(*args, pin: tuple[str, ...] = ()) -> str:
    command = [*pin, str(TARGET / "examples/client"), *map(str, args)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {ran.stderr}")
    return ran.stdout


def measure():
    """Microseconds of Redis' CPU for the simplest commands, and rows of (label, value, target, unit)."""
    with tempfile.TemporaryDirectory() as name:
        policy = pathlib.Path(name) / "policy.yaml"
        policy.write_text(POLICY)
        daily = pathlib.Path(name) / "daily.yaml"
        daily.write_text(DAILY)
        body = pathlib.Path(name) / "body"
        body.write_bytes(request("bench", FOUR_OF_ONE))
        redis = stores.Single(pin=("taskset", "-c", "1"))
        try:
            redis.start()
            floors = simplest(redis.nodes[0])
            rows = one_call(redis, policy, body)
            leased = pathlib.Path(name) / "leased.yaml"
            leased.write_text(LEASED)
            rows += leases(redis, leased, body)
            refused = pathlib.Path(name) / "refused"
            refused.write_bytes(request("bench", [{"fixed": "loop"}]))
            rows += refusals(redis, policy, refused)
            rows += over_admission(redis, policy)
            rows += memory(redis, daily)
        finally:
            redis.stop()
        cluster = stores.Cluster(replicas=0)
        try:
            cluster.start()
            rows += many_descriptors(cluster, policy)
        finally:
            cluster.stop()
        for event in outage_rows.EVENTS:
            rows += outage_rows.lost_primary(daily, event)
    return floors, sorted(rows)


def simplest(redis):
    """CPU per call of commands that do next to nothing."""
    sha = redis.ask("script", "load", "return 1").strip()
    redis.ask("set", "floor", "x")
    commands = {"PING": ["ping"], "GET": ["get", "floor"], "EVALSHA return 1": ["evalsha", sha, "1", "floor"]}
    figures = {name: [] for name in commands}
    calls = 200_000
    for _ in range(ROUNDS):
        for name, words in commands.items():
            before = cpu(redis.process.pid)
            bench = ["taskset", "-c", "0", "redis-benchmark", "-p", str(redis.port), "-q", "-P", "16", "-c", "50"]
            subprocess.run([*bench, "-n", str(calls), *words], capture_output=True, check=True)
            figures[name].append((cpu(redis.process.pid) - before) * 1e6 / calls)
    return {name: statistics.median(values) for name, values in figures.items()}


def one_call(redis, policy, body):
    """T4."""
    node, ours, theirs = redis.nodes[0], [], []
    server = cota(policy, "--store", redis.url, *PATIENT)
    try:
        server.load(body)
        for _ in range(ROUNDS):
            node.ask("config", "resetstat")
            before = cpu(node.process.pid)
            ours.append(server.load(body))
            theirs.append((cpu(node.process.pid) - before) * 1e6 / servers.CALLS)
            calls = scripts(node)
            received = int(node.info("stats")["total_net_input_bytes"])
    finally:
        server.stop()
    return [
        ("T4 Redis, 4 limits of one caller: calls per decision", round(calls / servers.CALLS, 2), 1, ""),
        ("T4 Redis, 4 limits of one caller: Redis' CPU", statistics.median(theirs), 9, " us"),
        ("T4 Redis, 4 limits of one caller: bytes to Redis", received / servers.CALLS, 300, " B"),
        ("T4 Redis, 4 limits of one caller: our CPU", statistics.median(ours), 11, " us"),
    ]


def scripts(node) -> int:
    """Runs of scripts since the last reset: those of decisions and leases, and a few a second of our own."""
    return sum(map(int, re.findall(r"cmdstat_eval(?:sha)?:calls=(\d+)", node.ask("info", "commandstats"))))


def leases(redis, policy, body):
    """T6, of a caller that is there already: the first calls of one that was away go to the store, until there is
    a block for each limit, and none would be left between the turns."""
    node, ours, memory, calls = redis.nodes[0], [], [], 0
    pair = cota(policy, "--store", redis.url, *PATIENT), cota(policy)
    try:
        for server in pair:
            server.load(body)
        for _ in range(ROUNDS):
            pair[0].load(body)
            node.ask("config", "resetstat")
            ours.append(pair[0].load(body))
            calls += scripts(node) / (ROUNDS * servers.CALLS)
            memory.append(pair[1].load(body))
    finally:
        for server in pair:
            server.stop()
    return [
        ("T6 leased by 5 %, 4 limits of one caller: Redis calls per decision", calls, 0.02, ""),
        (
            "T6 leased by 5 %: CPU per decision / in memory",
            statistics.median(ours) / statistics.median(memory),
            1.1,
            "x",
        ),
    ]


def refusals(redis, policy, body):
    """T7. Some ask when a memory ends: all those in flight before the first is answered, once a second."""
    node = redis.nodes[0]
    server = cota(policy, "--store", redis.url, *PATIENT)
    try:
        server.load(body)
        node.ask("config", "resetstat")
        ours = server.load(body)
        calls = scripts(node) / servers.CALLS
    finally:
        server.stop()
    return [(f"T7 refused in a loop ({ours:.1f} us of our CPU): Redis calls per request", calls, 0.01, "")]


def over_admission(redis, policy):
    """T8."""
    pair = [cota(policy, "--store", redis.url, *PATIENT, **ANYWHERE) for _ in range(2)]
    try:
        addresses = ",".join(f"127.0.0.1:{server.port}" for server in pair)
        admitted = [int(client("burst", addresses, key, BURST).split()[0]) for key in ("fixed", "sliding", "bucket")]
    finally:
        for server in pair:
            server.stop()
    worst = max((count - LIMIT for count in admitted), key=abs)
    return [(f"T8 two replicas, {BURST:,} in flight, 3 algorithms: admitted - limit", worst, 0, "")]


def memory(redis, daily):
    """T9."""
    node = redis.nodes[0]

    def used():
        time.sleep(1)  # for Redis to have grown its tables
        return int(node.info("memory")["used_memory"])

    def bytes_a_key(fill):
        node.ask("flushall", "sync")
        before = used()
        fill()
        return (used() - before) / int(node.ask("dbsize")), int(node.ask("dbsize"))

    server = cota(daily, "--store", redis.url, *PATIENT, **ANYWHERE)
    try:
        per_caller, callers = bytes_a_key(lambda: client("fill", f"127.0.0.1:{server.port}", CALLERS))
    finally:
        server.stop()
    if callers < CALLERS * 0.99:
        sys.exit(f"only {callers} of {CALLERS} callers reached Redis")
    # As long as the keys above: the number has twelve digits.
    key = "c:{bench|tenant=t__rand_int__}"
    plain = ["redis-benchmark", "-p", str(node.port), "-q", "-P", "16", "-r", str(CALLERS), "-n", str(4 * CALLERS)]
    floor, _ = bytes_a_key(lambda: subprocess.run([*plain, "set", key, "x" * 25, "ex", "86400"], capture_output=True))
    label = f"T9 Redis, {CALLERS:,} callers (a plain SET of such a key: {floor:.0f} B)"
    return [(label, per_caller, 150, " B a caller")]


def many_descriptors(cluster, policy):
    """T5, in turns: the machine is as busy for the one as for the other."""
    server = cota(policy, "--store", cluster.url, **ANYWHERE)
    times = {1: [], 10: []}
    try:
        address = f"127.0.0.1:{server.port}"
        client("pace", address, 10, 500, 1)
        for _ in range(ROUNDS):
            for descriptors, found in times.items():
                found.append(int(re.search(r"p99 (\d+) us", client("pace", address, descriptors, 500, 4)).group(1)))
    finally:
        server.stop()
    one, ten = (statistics.median(found) for found in times.values())
    label = f"T5 cluster, 500/s: p99 of 10 descriptors {ten / 1000:.2f} ms / of one {one / 1000:.2f} ms"
    return [(label, ten / one, 2, "x")]
