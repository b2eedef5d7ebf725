"""Makes the cluster of deploy/redis-cluster by its own script, of redis-servers on this machine.

    redis_cluster.py
"""

import pathlib
import subprocess
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRIAL = ROOT / "deploy" / "redis-cluster"
sys.path.insert(0, str(ROOT / "demo"))
import stores  # noqa: E402


def main():
    documents = list(yaml.safe_load_all((TRIAL / "redis.yaml").read_text()))
    container = next(item for item in documents if item["kind"] == "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    # As the pods start it, but for where the files are.
    options = [word for word in container["args"] if word not in ("--dir", "/data")]
    nodes = []
    try:
        for _ in range(6):
            nodes.append(stores.Node("--cluster-port", str(stores.free_port()), *options))
        addresses = [f"localhost:{node.port}" for node in nodes]
        create = ["sh", TRIAL / "create.sh", *addresses]
        made = subprocess.run(create, capture_output=True, text=True, timeout=100)
        assert made.returncode == 0, made.stdout + made.stderr
        for node in nodes:
            stores.wait_until("the cluster is whole", lambda: "cluster_state:ok" in node.ask("cluster", "info")
                              and "cluster_known_nodes:6" in node.ask("cluster", "info"))
        roles = sorted(node.ask("role").splitlines()[0] for node in nodes)
        assert roles == ["master"] * 3 + ["slave"] * 3, roles
        again = subprocess.run(create, capture_output=True, text=True, timeout=100)
        assert again.returncode == 0 and "the cluster is there" in again.stdout, again.stdout + again.stderr
        print("three primaries, three replicas")
    finally:
        for node in nodes:
            node.stop()


if __name__ == "__main__":
    main()
