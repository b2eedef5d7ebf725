#!/usr/bin/env python3
"""From a tenth of what the service can answer to more than it can: how late, how many refused, how much memory.

The load does not wait for answers, as Envoy does not. Capacity is what a closed loop found just before; on a
shared machine it moves, and with it what 100 % is.
"""

import pathlib
import subprocess
import sys
import tempfile
import time

import run
from servers import CALLS, cota, request

SHARES = (10, 25, 50, 75, 90, 100, 110, 120)
SECONDS = 2
# Envoy gives an answer up after this, unless told otherwise.
DEADLINE = 20_000


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        policy = scratch / "policy.yaml"
        policy.write_text(run.policy(10))
        body = scratch / "body"
        body.write_bytes(request("bench", run.FOUR))
        server = cota(policy, *sys.argv[1:])
        try:
            server.load(body)
            began = time.monotonic()
            server.load(body)
            capacity = CALLS / (time.monotonic() - began)
            print(f"memory store, one core for the service, capacity {capacity:,.0f} calls/s")
            print("  load   calls/s   p50 ms   p99 ms  p99.9 ms   max ms   past 20 ms   refused   MiB")
            for share in SHARES:
                rate, errors = capacity * share / 100, server.unanswered()
                began = time.monotonic()
                times = sorted(took for _, took in server.pace(body, rate, SECONDS, scratch / "log"))
                done = len(times) / (time.monotonic() - began)
                at = [times[min(int(len(times) * q), len(times) - 1)] / 1000 for q in (0.5, 0.99, 0.999, 1)]
                late = sum(took > DEADLINE for took in times) / len(times)
                refused = (server.unanswered() - errors) / len(times)
                print(f"  {share:3d} %  {done:8,.0f} {at[0]:8.2f} {at[1]:8.2f} {at[2]:9.2f} {at[3]:8.2f}"
                      f" {late:11.2%} {refused:9.2%} {server.resident():6.1f}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
