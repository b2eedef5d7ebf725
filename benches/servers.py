"""What the end-to-end benchmarks share: requests as bytes, and servers under load."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

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


def cpu(process: int) -> float:
    """Seconds of CPU that a process has used so far."""
    fields = pathlib.Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A server process, pinned to one CPU unless told otherwise."""

    def __init__(self, command: list[str], pin: tuple[str, ...] = ("taskset", "-c", "0")):
        self.http = None
        log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([*pin, *command], stderr=log, env=os.environ | {"RUST_LOG": "info"})
        self.port = None
        while self.port is None:
            if self.process.poll() is not None:
                log.seek(0)
                sys.exit(f"{command[0]} ended:\n{log.read()}")
            with open(log.name, encoding="utf-8") as lines:
                text = re.sub(r"\x1b\[[0-9;]*m", "", lines.read())
            found = re.search(r"listening grpc=\S*?:(\d+)(?: http=\S*?:(\d+))?", text)
            self.port = found and int(found.group(1))
            self.http = found and found.group(2) and int(found.group(2))

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        return cpu(self.process.pid)

    def load(self, body: pathlib.Path, pin: tuple[str, ...] = ("taskset", "-c", "1")) -> float:
        """Microseconds of CPU per call under load, from the other CPU unless told otherwise."""
        decided, before = self.decided(), self.cpu()
        out = subprocess.run(
            [*pin, "h2load", "-n", str(CALLS), "-c", "8", "-m", "32", "-d", str(body)]
            + ["-H", "content-type: application/grpc", "-H", "te: trailers", f"http://127.0.0.1:{self.port}{METHOD}"],
            capture_output=True, text=True, check=True,
        ).stdout
        done = re.search(r"(\d+) succeeded", out)
        if not done or int(done.group(1)) != CALLS:
            sys.exit(f"not every call succeeded:\n{out}")
        used = self.cpu() - before
        # To h2load an error of gRPC is a success, too.
        if self.http and self.decided() != decided + CALLS:
            sys.exit(f"only {self.decided() - decided} of {CALLS} calls were decided by the store")
        return used * 1e6 / CALLS

    def pace(self, body: pathlib.Path, rate: float, seconds: float, log: pathlib.Path) -> list[tuple[float, int]]:
        """Calls at that rate from the other CPU, however late the answers: when each was sent, in seconds
        since the epoch, and the microseconds until its answer."""
        clients = 8
        subprocess.run(
            ["taskset", "-c", "1", "h2load", f"--rps={max(rate / clients, 1):.1f}", "-n", str(int(rate * seconds))]
            + ["-c", str(clients), "-m", "1000", "-d", str(body), f"--log-file={log}"]
            + ["-H", "content-type: application/grpc", "-H", "te: trailers", "-H", "grpc-timeout: 20m", f"http://127.0.0.1:{self.port}{METHOD}"],
            capture_output=True, text=True, check=True,
        )
        lines = (line.split("\t") for line in log.read_text().splitlines())
        log.unlink()
        found = [(int(sent) / 1e6, int(took)) for sent, status, took in lines if status == "200"]
        if len(found) < int(rate * seconds) * 0.99:
            sys.exit(f"only {len(found)} of {int(rate * seconds)} calls were answered")
        return found

    def reloads(self) -> str:
        """What became of changes of its policy so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics") as page:
            return "".join(re.findall(r"^cota_config_reloads_total.*", page.read().decode(), re.M))

    def decided(self) -> int:
        """How many calls the policy decided so far, without those that a failure mode decided; 0 for the floor."""
        if not self.http:
            return 0
        return self.counted(r'cota_requests_total\{domain="bench",code="(?:ok|over_limit)"') - self.counted("cota_degraded_decisions_total")

    def unanswered(self) -> int:
        """How many calls got an error for an answer so far."""
        return self.counted(r'cota_requests_total\{[^}]*code="error"')

    def counted(self, series: str) -> int:
        """The sum of all series that begin so."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics") as page:
            return sum(int(n) for n in re.findall(rf"^{series}.* (\d+)$", page.read().decode(), re.M))

    def resident(self) -> float:
        """MiB of memory now."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def cota(policy: pathlib.Path, *options: str, **pin: tuple[str, ...]) -> Server:
    """A cota with that policy."""
    listen = ["--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
    return Server([str(TARGET / "cota"), "serve", "--config", str(policy), *listen, *options], **pin)
