"""The rows of `make bench` for a primary that is lost under load, with the settings as they come."""

import signal
import subprocess
import sys
import time

import stores
from servers import TARGET, cota

CALLERS, RATE, SECONDS = 60, 1_000, 12
# When the primary goes, in seconds, and how often it is looked at who took over.
GOES, LOOK = 3, 0.02
EVENTS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}


def lost_primary(policy, event):
    """T10."""
    cluster = stores.Cluster()
    try:
        cluster.start()
        server = cota(policy, "--store", cluster.url, pin=())
        try:
            return measure(cluster, server, event)
        finally:
            server.stop()
    finally:
        cluster.stop()


def measure(cluster, server, event):
    victim, survivor = cluster.nodes[0], cluster.nodes[1]
    keys = {n: f"c:{{bench|tenant=tenant-{n}}}" for n in range(CALLERS)}
    concerned = {n for n, key in keys.items() if cluster.primary_of(key, survivor) == victim.port}
    one = keys[min(concerned)]
    command = [str(TARGET / "examples/client"), "watch", f"127.0.0.1:{server.port}", *map(str, (CALLERS, RATE, SECONDS))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        time.sleep(GOES)
        went = time.time()
        victim.process.send_signal(EVENTS[event])
        while cluster.primary_of(one, survivor) in (victim.port, None):
            if time.time() > went + SECONDS:
                sys.exit(f"nobody took over from a primary that was {event}")
            time.sleep(LOOK)
        taken_over = time.time()
        lines = [tuple(map(int, line.split())) for line in client.stdout]
    if client.returncode != 0 or len(lines) != RATE * SECONDS:
        sys.exit(f"only {len(lines)} of {RATE * SECONDS} calls were answered while a primary was {event}")
    # The first calls of all find no connection yet.
    after = [line for line in lines if line[0] > (went - 1) * 1e6]
    theirs = [degraded for _, _, degraded, caller in after if caller not in concerned]
    gone = [began + took for began, took, degraded, caller in after if degraded and caller in concerned]
    if not gone:
        sys.exit(f"no answer was degraded while a primary was {event}: it was not asked")
    took = sorted(took for _, took, _, _ in after)
    label = f"T10 cluster, a primary {event}, {RATE:,}/s"
    return [
        (f"{label}: p99.9 of all answers", took[len(took) * 999 // 1000] / 1000, 20, " ms"),
        (f"{label}: longest answer", took[-1] / 1000, 20, " ms"),
        (f"{label}: degraded of other shards' {len(theirs):,}", sum(theirs), 0, ""),
        (f"{label}: in use after the failover of {taken_over - went:.1f} s", max(gone) / 1e6 - taken_over, 1, " s"),
    ]
