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

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
CALLS = int(os.environ.get("CALLS", "200000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited protobuf field; every length here is below 128 or two varint bytes."""
    length = len(payload)
    varint = bytes([length]) if length < 128 else bytes([length % 128 | 128, length // 128])
    return bytes([number << 3 | 2]) + varint + payload


def request(domain: str, descriptors: list[dict[str, str]]) -> bytes:
    """A gRPC-framed RateLimitRequest."""
    message = field(1, domain.encode())
    for entries in descriptors:
        body = b"".join(
            field(1, field(1, key.encode()) + field(2, value.encode())) for key, value in entries.items()
        )
        message += field(2, body)
    return b"\0" + len(message).to_bytes(4, "big") + message


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


class Server:
    """A server process pinned to one CPU."""

    def __init__(self, command: list[str]):
        log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        pin = ["taskset", "-c", "0"]
        self.process = subprocess.Popen(pin + command, stderr=log, env=os.environ | {"RUST_LOG": "info"})
        self.port = None
        while self.port is None:
            if self.process.poll() is not None:
                log.seek(0)
                sys.exit(f"{command[0]} ended:\n{log.read()}")
            with open(log.name, encoding="utf-8") as lines:
                found = re.search(r"listening grpc=\S*?:(\d+)", re.sub(r"\x1b\[[0-9;]*m", "", lines.read()))
            self.port = found and int(found.group(1))

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, body: pathlib.Path) -> float:
        """Microseconds of CPU per call under load from the other CPU."""
        before = self.cpu()
        out = subprocess.run(
            ["taskset", "-c", "1", "h2load", "-n", str(CALLS), "-c", "8", "-m", "32", "-d", str(body)]
            + ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://127.0.0.1:{self.port}{METHOD}"],
            capture_output=True, text=True, check=True,
        ).stdout
        done = re.search(r"(\d+) succeeded", out)
        if not done or int(done.group(1)) != CALLS:
            sys.exit(f"not every call succeeded:\n{out}")
        return (self.cpu() - before) * 1e6 / CALLS

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> None:
    for tool in ("h2load", "taskset"):
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
            listen = ["--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
            servers[str(rules)] = Server([str(TARGET / "cota"), "serve", "--config", str(path), *listen])
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
    us = {name: statistics.median(values) for name, values in figures.items()}
    memory = subprocess.run([str(TARGET / "examples/million")], capture_output=True, text=True, check=True).stdout
    per_caller = float(re.search(r"([\d.]+) bytes a caller", memory).group(1))
    rows = [
        ("T1 CPU per decision, 4 limits, full reply / constant OK", us["10"] / us["floor"], 1.25, "x"),
        ("T3 CPU per decision, 10,000 limits / 10 limits", us["10000"] / us["10"], 1.1, "x"),
        ("T9 memory store, a million callers", per_caller, 100, " B a caller"),
    ]
    rustc = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, rustc {rustc}, {CALLS} calls a round, medians of {ROUNDS}")
    for name, label in (("floor", "constant OK"), ("10", "10 limits"), ("10000", "10,000 limits")):
        spread = ", ".join(f"{value:.2f}" for value in figures[name])
        print(f"  {label:<14} {us[name]:6.2f} us a call   ({spread})")
    for label, value, target, unit in rows:
        verdict = "met" if value <= target else "NOT met"
        print(f"  {label:<58} {value:7.2f}{unit}  target {target}{unit}: {verdict}")


if __name__ == "__main__":
    main()
