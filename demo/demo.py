#!/usr/bin/env python3
"""Shows cota behind a real Envoy: starts both and an upstream, sends traffic, prints what each caller got.

Everything is on 127.0.0.1. With --once it ends after the traffic, and its exit code says whether every caller
got what config/quickstart.yaml promises; without, it stays up for your own requests until Ctrl-C. Budgets are in
memory; with --store redis in a redis-server, with --store cluster in a cluster of six that two cotas share, of
which one primary is then killed.
"""

import argparse
import base64
import contextlib
import hashlib
import hmac
import http.client
import http.server
import json
import os
import pathlib
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

import outage
import stores

HERE = pathlib.Path(__file__).resolve().parent
POLICY = HERE.parent / "config" / "quickstart.yaml"
START_SECONDS = 30


# ---- the processes ----


class Stack:
    """Envoy, cota, its store and the upstream, with their ports; stopped when the `with` ends, however it ends."""

    def __init__(self, cota, envoy, store, once):
        self.cota = cota
        self.envoy = envoy
        self.store = {"memory": None, "redis": stores.Single, "cluster": stores.Cluster}[store]
        self.replicas = 2 if store == "cluster" else 1
        self.logs = pathlib.Path(tempfile.mkdtemp(prefix="cota-demo-"))
        self.key = os.urandom(32)
        self.processes = {}
        # The ports that the texts name, or any free one where they are taken or nobody is invited.
        envoy_port, admin_port, grpc_port, http_port = (None,) * 4 if once else (10000, 9901, 8081, 8080)
        self.envoy_port = stores.free_port(envoy_port)
        self.admin_port = stores.free_port(admin_port)
        self.grpc_ports = [stores.free_port(grpc_port), *(stores.free_port() for _ in range(1, self.replicas))]
        self.http_ports = [stores.free_port(http_port), *(stores.free_port() for _ in range(1, self.replicas))]

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        self.upstream = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        threading.Thread(target=self.upstream.serve_forever, daemon=True).start()

        store = ["--store", "memory"]
        if self.store:
            self.store = self.store()
            self.store.start()
            # Envoy waits 0.3 s here; the default is for its 20 ms, too short for a debug build on a busy laptop.
            store = ["--store", self.store.url, "--store-timeout", "200ms"]
        names = ["cota", "cota-2"][:self.replicas]
        for name, grpc, port in zip(names, self.grpc_ports, self.http_ports):
            self.launch(name, self.cota, "serve", "--config", POLICY, *store,
                        "--grpc-listen", f"127.0.0.1:{grpc}", "--http-listen", f"127.0.0.1:{port}")
        for name, port in zip(names, self.http_ports):
            self.await_ready(name, port, "/readyz")

        keys = {"keys": [{"kty": "oct", "alg": "HS256", "k": base64url(self.key)}]}
        endpoints = [{"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
                     for port in self.grpc_ports]
        config = self.logs / "envoy.yaml"
        config.write_text(string.Template((HERE / "envoy.yaml").read_text()).substitute(
            envoy_port=self.envoy_port, admin_port=self.admin_port, cota_endpoints=json.dumps(endpoints),
            upstream_port=self.upstream.server_port, access_log=self.logs / "access.log", jwks=json.dumps(keys)))
        self.launch("envoy", self.envoy, "--config-path", config, "--use-dynamic-base-id", "--concurrency", "1",
                    "--log-level", "warning", "--file-flush-interval-msec", "100")
        self.await_ready("envoy", self.admin_port, "/ready")

    def launch(self, name, binary, *args):
        log = open(self.logs / f"{name}.log", "wb")
        # A session of its own, so that Ctrl-C reaches only this script, which then stops them in order.
        self.processes[name] = subprocess.Popen(
            [binary, *map(str, args)], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True)

    def await_ready(self, name, port, path):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check_alive()
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.05)
        raise Failure(f"{name} was not ready within {START_SECONDS} s", self.logs / f"{name}.log")

    def check_alive(self):
        for name, process in self.processes.items():
            if process.poll() is not None:
                raise Failure(f"{name} ended with code {process.returncode}", self.logs / f"{name}.log")

    def stop(self):
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=8)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if isinstance(self.store, (stores.Single, stores.Cluster)):
            self.store.stop()


class Upstream(http.server.BaseHTTPRequestHandler):
    """The API that is protected: says hello to whatever Envoy lets through."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        body = b'{"hello":"from the upstream"}\n'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Failure(Exception):
    """The demo cannot go on; `log` is the file that tells why, if there is one."""

    def __init__(self, message, log=None):
        super().__init__(message)
        self.log = log


# ---- callers ----


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(key, **claims):
    claims = {"iss": "demo", "exp": int(time.time()) + 86400, **claims}
    text = ".".join(base64url(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
    return f"{text}.{base64url(hmac.digest(key, text.encode(), hashlib.sha256))}"


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.reason = response.reason
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read().decode()

    @property
    def scope(self):
        """Which limit refused, as the body says it."""
        try:
            return json.loads(self.body)["scope"]
        except (ValueError, KeyError, TypeError):
            return None

    def print(self):
        print(f"    HTTP/1.1 {self.status} {self.reason}")
        for name in ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "ratelimit-policy", "retry-after",
                     "content-type"):
            if name in self.headers and (name != "content-type" or self.status == 429):
                print(f"    {name}: {self.headers[name]}")
        if self.status == 429:
            print(f"    {self.body.strip()}")
        print()


class Group:
    """Some requests of one caller, and what came back: one line of the table."""

    def __init__(self, who, what, answers, seconds):
        self.who = who
        self.what = what
        self.answers = answers
        self.seconds = seconds
        self.counts = Counter(answer.status for answer in answers)

    def ok(self):
        return self.counts[200]

    def refused(self):
        return [answer for answer in self.answers if answer.status == 429]

    def scopes(self):
        return {answer.scope for answer in self.refused()}

    def held_to(self, burst, per_minute, status=200):
        """No more than the bucket holds and earns meanwhile, and no less than it holds."""
        most = burst + per_minute / 60 * self.seconds + 1
        return min(burst, len(self.answers)) <= self.counts[status] <= most


def send(stack, who, what, requests):
    """`requests` are (path, bearer or None, forwarded for); the demo plays the load balancer before Envoy, so it
    writes the last address of X-Forwarded-For."""
    connection = http.client.HTTPConnection("127.0.0.1", stack.envoy_port, timeout=10)
    answers = []
    start = time.monotonic()
    for path, bearer, address in requests:
        headers = {"X-Forwarded-For": address}
        if bearer:
            headers["Authorization"] = f"Bearer {bearer}"
        connection.request("GET", path, headers=headers)
        answers.append(Answer(connection.getresponse()))
    connection.close()
    return Group(who, what, answers, time.monotonic() - start)


def traffic(stack):
    """Every caller has an address of its own, from the ranges kept for documentation."""
    groups = {}

    def reads(tenant, plan, count, credentials, address):
        tokens = [token(stack.key, tenant=tenant, plan=plan, credential=name) for name in credentials]
        return [("/v1/read", tokens[i % len(tokens)], address) for i in range(count)]

    # By so many credentials that no single one of them meets its own limit first.
    credentials = [f"key-{i}" for i in range(1, 6)]
    for tenant, plan, address in (("acme", "free", "192.0.2.1"), ("globex", "pro", "192.0.2.2"),
                                  ("initech", "enterprise", "192.0.2.3")):
        groups[plan] = send(stack, f"{tenant}, plan {plan}", "read, by 5 credentials in turn",
                            reads(tenant, plan, 200, credentials, address))

    groups["loop"] = send(stack, "umbrella, credential batch", "read, in a loop",
                          reads("umbrella", "enterprise", 120, ["batch"], "192.0.2.4"))
    groups["sibling"] = send(stack, "umbrella, credential web", "read, meanwhile",
                             reads("umbrella", "enterprise", 20, ["web"], "192.0.2.4"))

    hooli = token(stack.key, tenant="hooli", plan="pro", credential="key-1")
    paths = ["/v1/read", "/v1/search"] + ["/v1/export"] * 6 + ["/v1/read"]
    groups["costs"] = send(stack, "hooli, plan pro", "read 1, search 5, export 10 units",
                           [(path, hooli, "192.0.2.5") for path in paths])

    groups["no token"] = send(stack, "no token", "read", [("/v1/read", None, "198.51.100.1")] * 3)
    groups["login"] = send(stack, "no token, a new X-Forwarded-For each", "login",
                           [("/login", None, f"10.9.8.{i}, 198.51.100.2") for i in range(20)])
    groups["login v6"] = send(stack, "no token, a new IPv6 address each", "login",
                              [("/login", None, f"2001:db8:1:2::{i:x}") for i in range(1, 21)])

    forged = token(os.urandom(32), tenant="initech", plan="enterprise", credential="key-1")
    groups["flood"] = send(stack, "forged tokens, one address", "read, in a flood",
                           [("/v1/read", forged, "203.0.113.66")] * 600)
    groups["neighbour"] = send(stack, "initech, plan enterprise", "read, after the flood",
                               reads("initech", "enterprise", 20, credentials, "192.0.2.3"))
    return groups


# ---- what is shown ----


def print_table(groups):
    statuses = sorted({status for group in groups.values() for status in group.counts})
    rows = [["caller", "requests", "sent", *map(str, statuses), "refused by"]]
    for group in groups.values():
        counts = [str(group.counts[status] or "-") for status in statuses]
        scopes = ", ".join(sorted(map(str, group.scopes())))
        rows.append([group.who, group.what, str(len(group.answers)), *counts, scopes])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [cell.rjust(width) if 2 <= i < len(row) - 1 else cell.ljust(width)
                 for i, (cell, width) in enumerate(zip(row, widths))]
        print("  " + "  ".join(cells).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    print()


def print_answers(groups):
    def show(title, answer):
        if answer:
            print(f"  {title}")
            answer.print()

    def first_refused(name):
        return next(iter(groups[name].refused()), None)

    costs = groups["costs"].answers
    show("globex, first read", groups["pro"].answers[0])
    show("globex, first refusal", first_refused("pro"))
    show("umbrella's batch, first refusal", first_refused("loop"))
    show("hooli, a read of 1 unit", costs[0])
    show("hooli, a search of 5 units", costs[1])
    show("hooli, an export of 10 units", costs[2])
    show("hooli, the first refused export", first_refused("costs"))
    show("login, first refusal", first_refused("login"))
    show("a forged token, while the door lets it be looked at", groups["flood"].answers[0])
    show("a forged token, once its address has sent too many", first_refused("flood"))


def expectations(groups):
    """(what should hold, whether it does); the numbers are those of config/quickstart.yaml."""
    every = [answer for group in groups.values() for answer in group.answers]
    refused = [answer for answer in every if answer.status == 429]
    limited = [answer for answer in every if answer.status == 200 or answer.status == 429 and answer.scope != "address"]
    names = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "ratelimit-policy")
    left = [int(answer.headers.get("ratelimit-remaining", -1)) for answer in groups["costs"].answers[:3]]
    costs = [answer.status for answer in groups["costs"].answers]
    return [
        ("plan free: a burst of 10, 60 a minute", groups["free"].held_to(10, 60)),
        ("plan pro: a burst of 90, 600 a minute, whatever the credential", groups["pro"].held_to(90, 600)),
        ("plan enterprise: all of it", groups["enterprise"].ok() == 200),
        ("plans are refused by the tenant's limit",
         groups["free"].scopes() == groups["pro"].scopes() == {"tenant"}),
        ("a credential in a loop: a burst of 45, 300 a minute", groups["loop"].held_to(45, 300)),
        ("it is refused by the credential's limit", groups["loop"].scopes() == {"credential"}),
        ("its sibling is not refused", groups["sibling"].ok() == 20),
        ("read, search and export take 1, 5 and 10 units",
         left[0] == 44 and left[0] - left[1] in (4, 5) and left[1] - left[2] in range(5, 11)),
        ("three exports a minute, and a read after them", costs == [200] * 5 + [429] * 3 + [200]),
        ("exports are refused by their own limit", groups["costs"].scopes() == {"export"}),
        ("no token, no read", groups["no token"].counts == {401: 3}),
        ("a forged X-Forwarded-For brings no new budget", groups["login"].held_to(5, 30)),
        ("a whole IPv6 /64 has one budget", groups["login v6"].held_to(5, 30)),
        ("a flood of forged tokens: 240 at once, 2400 a minute", groups["flood"].held_to(240, 2400, status=401)),
        ("the rest of it is refused before the token is looked at", groups["flood"].scopes() == {"address"}),
        ("a tenant at another address does not notice", groups["neighbour"].ok() == 20),
        ("each refusal has a Retry-After of at least 1", all(int(a.headers.get("retry-after", 0)) >= 1 for a in refused)),
        ("each refusal has a JSON body", all(
            a.headers.get("content-type") == "application/json" and a.scope for a in refused)),
        ("each answer of a limit has all four RateLimit headers", all(n in a.headers for a in limited for n in names)),
    ]


def print_invitation(stack):
    yours = token(stack.key, tenant="you", plan="free", credential="laptop")
    edge = f"http://127.0.0.1:{stack.envoy_port}"
    print(f"""Your turn. A token of the tenant `you`, on the plan free, valid for a day:

  TOKEN={yours}
  curl -i -H "Authorization: Bearer $TOKEN" {edge}/v1/read

  for i in $(seq 15); do curl -s -o /dev/null -w '%{{http_code}} ' -H "Authorization: Bearer $TOKEN" {edge}/v1/read; done

Other paths: /v1/search (5 units), /v1/export (10 units), /login (no token).
What cota enforces: http://127.0.0.1:{stack.http_ports[0]}/limits   what it counts: http://127.0.0.1:{stack.http_ports[0]}/metrics
What Envoy logged: {stack.logs / "access.log"}

Ctrl-C ends it.""", flush=True)


def print_checks(checked):
    for text, holds in checked:
        print(f"  {'ok    ' if holds else 'FAILED'}  {text}")
    print()
    return all(holds for _, holds in checked)


def run(stack, once):
    cota = " and ".join(f"127.0.0.1:{port}" for port in stack.grpc_ports)
    print(f"Envoy on 127.0.0.1:{stack.envoy_port} asks cota on {cota}; the policy is config/{POLICY.name}.")
    if stack.store:
        print(f"Budgets are in {stack.store.url}")
    print()
    groups = traffic(stack)
    stack.check_alive()
    print_table(groups)
    print_answers(groups)
    good = print_checks(expectations(groups))
    if isinstance(stack.store, stores.Cluster):
        good &= print_checks(outage.show(stack, token))
    if not once:
        print_invitation(stack)
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(1)
                stack.check_alive()
        print()
    if not good:
        raise Failure("not every caller got what it should")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cota", required=True, help="the cota binary")
    parser.add_argument("--envoy", required=True, help="the Envoy binary")
    parser.add_argument("--store", choices=("memory", "redis", "cluster"), default="memory",
                        help="where budgets are kept")
    parser.add_argument("--once", action="store_true", help="end after the traffic")
    args = parser.parse_args()
    for name in ("cota", "envoy"):
        if not shutil.which(getattr(args, name)):
            sys.exit(f"no {name} at {getattr(args, name)}: run `make demo`")

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if args.store != "memory" and not shutil.which("redis-server"):
        sys.exit("no redis-server: run `make setup`")
    stack = Stack(args.cota, args.envoy, args.store, args.once)
    try:
        with stack:
            run(stack, args.once)
    except (Failure, stores.StoreFailure, OSError, http.client.HTTPException) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        if log := getattr(failure, "log", None):
            print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-15:]), file=sys.stderr)
        print(f"The logs are in {stack.logs}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    shutil.rmtree(stack.logs, ignore_errors=True)


if __name__ == "__main__":
    main()
