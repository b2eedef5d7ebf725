#!/usr/bin/env python3
"""From a tenth of what the service can answer to half as much again: who gets an answer in time, how much memory.

The load is that of an Envoy: it does not wait for answers, and gives a call up, with a reset, after 20 ms. Each
request has many descriptors, so that the service is full before the load generator on the other core is. What is
given up was, for Envoy, an answer by its own failure mode. Capacity is what a closed loop found just before; on a
shared machine it moves, and with it what 100 % is.
"""

import pathlib
import sys
import tempfile
import time

import redis_rows
from servers import CALLS, cota, request

SHARES = (10, 25, 50, 75, 90, 100, 110, 120, 150)
SECONDS = 3
DESCRIPTORS = 40


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        policy = scratch / "policy.yaml"
        policy.write_text(redis_rows.POLICY)
        body = scratch / "body"
        body.write_bytes(request("bench", [{"tenant": "acme", "part": f"part-{n}"} for n in range(DESCRIPTORS)]))
        server = cota(policy, *sys.argv[1:])
        try:
            server.load(body)
            began = time.monotonic()
            server.load(body)
            capacity = CALLS / (time.monotonic() - began)
            print(f"memory store, {DESCRIPTORS} descriptors, one core for the service, capacity {capacity:,.0f} calls/s")
            print("                      answered in time                  DEADLINE_EXCEEDED     given up")
            print("  load   sent/s   share   p50 ms  p99 ms  p99.9 ms     share  p50 ms  p99 ms     share    CPU    MiB")
            for share in SHARES:
                before, began = server.cpu(), time.monotonic()
                told = redis_rows.client(
                    "insist", f"127.0.0.1:{server.port}", DESCRIPTORS, int(capacity * share / 100), SECONDS,
                    pin=("taskset", "-c", "1"),
                )
                busy = (server.cpu() - before) / (time.monotonic() - began)
                done, d50, d99, d999, late, l50, l99, _, given_up, sent = map(float, told.split())
                total = done + late + given_up
                print(f"  {share:3d} % {sent:8,.0f} {done / total:7.2%} {d50 / 1000:8.2f} {d99 / 1000:7.2f}"
                      f" {d999 / 1000:9.2f} {late / total:9.2%} {l50 / 1000:7.2f} {l99 / 1000:7.2f}"
                      f" {given_up / total:9.2%} {busy:6.0%} {server.resident():6.1f}")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
