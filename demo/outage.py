"""What customers see when one primary of the cluster is killed: steady traffic of several tenants around it."""

import http.client
import json
import threading
import time

PER_PRIMARY = 3
EVERY = 0.1
BEFORE, AFTER = 2, 10
BACK_WITHIN = 8
# On a busy machine a live server, too, is late now and then.
STRAY = 0.05


class Tenant:
    """A customer, at an address whose own budget is on the same primary as the customer's."""

    def __init__(self, name, address, primary, tokens):
        self.name = name
        self.address = address
        self.primary = primary
        self.tokens = tokens
        self.answers = []

    def send(self, port, until):
        """A request every 100 ms: (when, status, seconds)."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        due = time.monotonic()
        while due < until:
            time.sleep(max(0, due - time.monotonic()))
            bearer = self.tokens[len(self.answers) % len(self.tokens)]
            start = time.monotonic()
            connection.request("GET", "/v1/read",
                               headers={"X-Forwarded-For": self.address, "Authorization": f"Bearer {bearer}"})
            response = connection.getresponse()
            response.read()
            self.answers.append((response.status, time.monotonic() - start))
            due += EVERY
        connection.close()


def show(stack, token):
    """Kills a primary, prints what each tenant got, and returns (what should hold, whether it does)."""
    tenants = settle(stack, token)
    victim = tenants[0].primary
    end = time.monotonic() + BEFORE + AFTER
    threads = [threading.Thread(target=tenant.send, args=(stack.envoy_port, end)) for tenant in tenants]
    for thread in threads:
        thread.start()
    time.sleep(BEFORE)
    killed = time.time()
    next(node for node in stack.store.nodes if node.port == victim).kill()
    for thread in threads:
        thread.join()
    time.sleep(0.5)  # for Envoy to have written its log
    spans = degraded(stack.logs / "access.log", {tenant.name for tenant in tenants})

    print(f"  The primary on port {victim} was killed with kill -9; each tenant went on, {1 / EVERY:.0f} requests a second.\n")
    rows = [("tenant", "primary", "sent", "200", "by failure mode", "from", "to", "longest answer")]
    for tenant in tenants:
        times = spans.get(tenant.name, [])
        rows.append((
            tenant.name, str(tenant.primary) + (", killed" if tenant.primary == victim else ""),
            str(len(tenant.answers)), str(sum(status == 200 for status, _ in tenant.answers)), str(len(times) or "-"),
            f"{min(times) - killed:+.1f} s" if times else "", f"{max(times) - killed:+.1f} s" if times else "",
            f"{max(seconds for _, seconds in tenant.answers) * 1000:.0f} ms"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows.insert(1, tuple("-" * width for width in widths))
    for row in rows:
        cells = [cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        print("  " + "  ".join(cells).rstrip())
    print()

    theirs = [tenant for tenant in tenants if tenant.primary == victim]
    others = [tenant for tenant in tenants if tenant.primary != victim]
    strays = sum(len(spans.get(tenant.name, [])) for tenant in others)
    late = [moment - killed for tenant in theirs for moment in spans.get(tenant.name, [])]
    # The last moment of the outage, without what was late long after it.
    late = sorted(late)[: max(1, int(len(late) * (1 - STRAY)))]
    return [
        ("every request of every tenant was answered, and let through",
         all(status == 200 for tenant in tenants for status, _ in tenant.answers)),
        ("tenants of the killed primary were decided by failure mode for a while",
         all(spans.get(tenant.name) for tenant in theirs)),
        (f"no tenant of another primary was (answers that this machine was too busy to give in time: {strays})",
         all(len(spans.get(tenant.name, [])) <= STRAY * len(tenant.answers) for tenant in others)),
        (f"normal service was back within {BACK_WITHIN} s, most of which the cluster's failover took",
         bool(late) and max(late) < BACK_WITHIN),
    ]


def settle(stack, token):
    """Three tenants for each primary, by the keys under which cota keeps their budgets."""
    cluster, asked = stack.store, stack.store.nodes[0]
    free = {}
    for n in range(1, 60):
        address = f"198.51.100.{n + 100}"
        free.setdefault(cluster.primary_of(f"c:{{door|remote_address={address}}}", asked), []).append(address)
    placed = {}
    for n in range(1, 60):
        name = f"customer-{n}"
        primary = cluster.primary_of(f"c:{{demo|tenant={name}}}", asked)
        there = placed.setdefault(primary, [])
        if len(there) < PER_PRIMARY:
            tokens = [token(stack.key, tenant=name, plan="enterprise", credential=f"key-{i}") for i in range(5)]
            there.append(Tenant(name, free[primary].pop(), primary, tokens))
        if len(placed) == 3 and all(len(there) == PER_PRIMARY for there in placed.values()):
            break
    return [tenant for there in placed.values() for tenant in there]


def degraded(log, names):
    """By tenant: when requests began that were decided by failure mode, as Envoy's access log says."""
    spans = {}
    for line in log.read_text().splitlines():
        entry = json.loads(line)
        if entry.get("tenant") in names and '"degraded":true' in json.dumps(entry["limit"], separators=(",", ":")):
            spans.setdefault(entry["tenant"], []).append(float(entry["start"]))
    return spans
