#!/usr/bin/env python3
"""End-to-end figures of `make bench`, as ratios within one run.

CPU per decision is the server process's user and system time divided by the calls it answered. It
moves far less than requests per second on a shared machine; what counts is the ratio to the floor,
a server that answers OK without looking, measured in turns with it.
"""

import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

import redis_rows
from servers import CALLS, ROUNDS, TARGET, Server, cota, request

FOUR = [
    {"tenant": "acme"},
    {"tenant": "acme", "credential": "key-1"},
    {"tenant": "acme", "route": "GET /v1/search"},
    {"remote_address": "198.51.100.7"},
]


def policy(rules: int) -> str:
    """Four limits that the request meets, and others that it does not, `rules` in all."""
    bucket = "{unit: second, requests_per_unit: 1000000000, algorithm: token_bucket}"
    lines = [
        "domain: bench",
        "descriptors:",
        "  - key: tenant",
        f"    rate_limits: [{{name: tenant, {bucket[1:]}]",
        "    descriptors:",
        "      - key: credential",
        f"        rate_limit: {{name: credential, {bucket[1:]}",
        "      - key: route",
        '        value: "GET /v1/search"',
        f"        rate_limit: {{name: search, {bucket[1:]}",
        "  - key: remote_address",
        "    address: {}",
        f"    rate_limit: {{name: address, {bucket[1:]}",
    ]
    for n in range(rules - 4):
        lines += ["  - key: tenant", f"    value: other-{n}", f"    rate_limit: {bucket}"]
    return "\n".join(lines) + "\n"


def reload(scratch: pathlib.Path, body: pathlib.Path) -> tuple[float, float]:
    """T11: the slowest answer, in milliseconds, of seconds without a reload and of seconds with one of 10,000
    limits; medians, in turns. On all CPUs, as it runs: compiling has a thread of its own."""
    path = scratch / "reloaded.yaml"
    path.write_text(policy(10_000))
    server = cota(path, pin=())
    slowest: dict[bool, list[float]] = {False: [], True: []}
    try:
        server.load(body)
        for n in range(2 * max(ROUNDS, 5)):
            change, before = n % 2 == 1, server.reloads()
            if change:
                path.write_text(policy(10_000).replace("other-1\n", f"changed-{n}\n"))
            # The files are read twice, 200 ms apart, and then compiled: all within this.
            times = server.pace(body, 5_000, 2, scratch / "log")
            if change != (server.reloads() != before):
                sys.exit(f"a policy should {'' if change else 'not '}have come into force under load")
            slowest[change].append(max(took for _, took in times) / 1000)
    finally:
        server.stop()
    return statistics.median(slowest[False]), statistics.median(slowest[True])


def two_cores(scratch: pathlib.Path, body: pathlib.Path) -> float:
    """CPU per decision of a service on two CPUs, which it shares with the load, over that of one on a CPU of its
    own: what the cores cost each other."""
    path = scratch / "both.yaml"
    path.write_text(policy(10))
    alone, both = cota(path), cota(path, pin=())
    figures: dict[bool, list[float]] = {False: [], True: []}
    try:
        alone.load(body)
        both.load(body, pin=())
        for _ in range(max(ROUNDS, 5)):
            figures[False].append(alone.load(body))
            figures[True].append(both.load(body, pin=()))
    finally:
        alone.stop()
        both.stop()
    return statistics.median(figures[True]) / statistics.median(figures[False])


def main() -> None:
    for tool in ("h2load", "taskset", "redis-server", "redis-benchmark"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is missing: run `make setup`")
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        body = scratch / "body"
        body.write_bytes(request("bench", FOUR))
        servers = {"floor": Server([str(TARGET / "examples/constant_ok")])}
        for rules in (10, 10_000):
            path = scratch / f"{rules}.yaml"
            path.write_text(policy(rules))
            servers[str(rules)] = cota(path)
        figures: dict[str, list[float]] = {name: [] for name in servers}
        try:
            for server in servers.values():
                server.load(body)
            for _ in range(ROUNDS):
                for name, server in servers.items():
                    figures[name].append(server.load(body))
        finally:
            for server in servers.values():
                server.stop()
        quiet, reloading = reload(scratch, body)
        both = two_cores(scratch, body)
    us = {name: statistics.median(values) for name, values in figures.items()}
    memory = subprocess.run([str(TARGET / "examples/million")], capture_output=True, text=True, check=True).stdout
    per_caller = float(re.search(r"([\d.]+) bytes a caller", memory).group(1))
    rows = [
        ("T1 CPU per decision, 4 limits, full reply / constant OK", us["10"] / us["floor"], 1.25, "x"),
        ("T2 CPU per decision, on two cores / on one", both, 1.1, "x"),
        ("T3 CPU per decision, 10,000 limits / 10 limits", us["10000"] / us["10"], 1.1, "x"),
        ("T9 memory store, a million callers", per_caller, 100, " B a caller"),
        (f"T11 reload of 10,000 limits: slowest answer {reloading:.1f} ms / {quiet:.1f} ms", reloading - quiet, 5, " ms"),
    ]
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    floors, shared = redis_rows.measure()
    rows += shared
    redis = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    redis = re.search(r"v=(\S+)", redis).group(1)
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, rustc {rustc}, Redis {redis}, {CALLS} calls a round, medians of {ROUNDS}")
    for name, label in (("floor", "constant OK"), ("10", "10 limits"), ("10000", "10,000 limits")):
        spread = ", ".join(f"{value:.2f}" for value in figures[name])
        print(f"  {label:<14} {us[name]:6.2f} us a call   ({spread})")
    print("  Redis by itself (redis-benchmark -P 16 -c 50): " + ", ".join(f"{k} {v:.2f} us" for k, v in floors.items()))
    for label, value, target, unit in rows:
        verdict = "met" if abs(value) <= target or (unit in (" ms", " s") and value < 0) else "NOT met"
        shown = f"{value:7.2f}" if value == 0 or abs(value) >= 0.1 else f"{value:7.4f}"
        print(f"  {label:<68} {shown}{unit}  target {target}{unit}: {verdict}")


if __name__ == "__main__":
    main()
