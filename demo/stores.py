"""Redis servers on free ports of 127.0.0.1, for the demo and the benchmark; gone when they are stopped."""

import contextlib
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

PATIENCE = 30
GIVEN = set()


class StoreFailure(Exception):
    """A server, or the cluster, did not come up."""


class Node:
    """One redis-server, without persistence."""

    def __init__(self, *options, pin=()):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cota-redis-"))
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with open(self.folder / "log", "wb") as log:
            # A session of its own: Ctrl-C is for whoever stops it.
            self.process = subprocess.Popen([*pin, *command, *options], cwd=self.folder, stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log, start_new_session=True)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def ask(self, *words):
        """The answer of redis-cli; empty when there is none."""
        command = ["redis-cli", "-p", str(self.port), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE).stdout

    def info(self, section):
        lines = (line.split(":", 1) for line in self.ask("info", section).splitlines() if ":" in line)
        return dict(lines)

    def kill(self):
        """As a machine dies: at once and without a word."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Single:
    """One server."""

    def __init__(self, pin=()):
        self.nodes = [Node(pin=pin)]
        self.url = f"redis://{self.nodes[0].address}"

    def start(self):
        wait_until("redis-server answers", lambda: self.nodes[0].ask("ping").strip() == "PONG")

    def stop(self):
        for node in self.nodes:
            node.stop()


class Cluster:
    """Three primaries, each with so many replicas."""

    def __init__(self, replicas=1):
        self.replicas = replicas
        self.nodes = []

    def start(self):
        for _ in range(3 * (1 + self.replicas)):
            self.nodes.append(Node("--cluster-enabled", "yes", "--cluster-port", str(free_port()),
                                   "--cluster-node-timeout", "2000", "--cluster-require-full-coverage", "no",
                                   "--repl-diskless-sync-delay", "0"))
        for node in self.nodes:
            wait_until("redis-server answers", lambda: node.ask("ping").strip() == "PONG")
        addresses = [node.address for node in self.nodes]
        made = subprocess.run(["redis-cli", "--cluster", "create", *addresses, "--cluster-replicas", str(self.replicas),
                               "--cluster-yes"], capture_output=True, text=True)
        if made.returncode != 0:
            raise StoreFailure(f"no cluster came about:\n{made.stdout}{made.stderr}")
        wait_until("the cluster is whole", lambda: all(map(self.whole, self.nodes)))
        self.url = "redis-cluster://" + ",".join(addresses)

    def whole(self, node):
        """Whether this node knows of all slots, and has a replica or is one in step."""
        cluster, replication = node.info("cluster"), node.ask("info", "replication")
        state = node.ask("cluster", "info")
        return (cluster.get("cluster_enabled") == "1" and "cluster_state:ok" in state and "cluster_size:3" in state
                and "cluster_slots_ok:16384" in state
                and (not self.replicas or "master_link_status:up" in replication or "state=online" in replication))

    def primary_of(self, key, asked):
        """The port that serves a key in the eyes of a node, and the slots it serves."""
        slot = int(asked.ask("cluster", "keyslot", key))
        for line in asked.ask("cluster", "nodes").splitlines():
            parts = line.split()
            if "master" in parts[2] and "fail" not in parts[2].split(","):
                for span in parts[8:]:
                    first, _, last = span.partition("-")
                    if first.isdigit() and int(first) <= slot <= int(last or first):
                        return int(parts[1].split("@")[0].rsplit(":", 1)[1])
        return None

    def stop(self):
        for node in self.nodes:
            node.stop()


def free_port(preferred=None):
    """That port if nobody has it, or any; never twice, and below those that the system gives to whoever connects
    somewhere: one of those may be somebody's by the time that it is bound."""
    for port in (preferred, *random.sample(range(10_000, 32_000), 1_000)):
        if port and port not in GIVEN:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                GIVEN.add(port)
                return port
    raise StoreFailure("no free port on 127.0.0.1")


def wait_until(what, holds):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise StoreFailure(f"not within {PATIENCE} s: {what}")
        time.sleep(0.05)
