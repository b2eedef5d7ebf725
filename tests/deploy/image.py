"""Builds the image by hand: the commands of the Dockerfile in clean directories, since no container engine is needed for that.

    image.py WORK [--profile release]     compiles, too: `make image-check`
    image.py WORK --binary FILE           takes that binary for what the compiler would have made; all else is done

`COPY` takes what .dockerignore lets through and `RUN` runs in a shell; paths of the image become paths below WORK. The final
stage is made on top of an empty directory with the C library's files in it, as the base image has them, and is run there: by an
unprivileged user, on a read-only file system, with an empty environment and without a shell.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time
import tomllib
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOBODY = 65534
# What gcr.io/distroless/cc brings: a binary that asks for more does not start there.
LIBRARIES = re.compile(r"(ld-linux-\S+|libc|libm|libdl|libpthread|librt|libgcc_s)\.so\.\d+")
POLICY = """
domain: image
descriptors:
  - key: tenant
    rate_limit: {name: tenant, unit: year, requests_per_unit: 1}
"""


def instructions(text):
    """(word, rest) of each instruction, comments left out and lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())]


def context():
    """The files that .dockerignore lets through."""
    allowed = set()
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        assert line == "*" or line.startswith("!"), f".dockerignore: only `*` and `!` are understood here, not {line}"
        if line.startswith("!"):
            allowed.add(line[1:])
    tracked = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                             capture_output=True, text=True).stdout.splitlines()
    return [name for name in tracked
            if any(name == rule or name.startswith(rule + "/") or fnmatch.fnmatch(name, rule) for rule in allowed)]


class Stage:
    """One stage: where its files are, and what its instructions said."""

    def __init__(self, base, folder):
        self.base, self.folder = base, folder
        self.workdir, self.arguments, self.said = "/", {}, {}
        folder.mkdir(parents=True)

    def inside(self, path):
        """A path of the image as one of this machine."""
        return self.folder / (pathlib.PurePosixPath(self.workdir) / path).relative_to("/")

    def copy(self, rest, stages, files):
        words = rest.split()
        source = None
        if words[0].startswith("--from="):
            source = stages[words.pop(0).removeprefix("--from=")]
        *names, target = words
        to = self.inside(target)
        for name in names:
            if source:
                origin = source.inside(name)
                if origin.is_dir():
                    shutil.copytree(origin, to, symlinks=True, dirs_exist_ok=True)
                else:
                    to.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(origin, to)
                continue
            found = [file for file in files if file == name or file.startswith(name + "/")]
            assert found, f"COPY {name}: .dockerignore lets nothing of it through"
            for file in found:
                place = to / file if target.endswith("/") else to / pathlib.PurePosixPath(file).relative_to(name)
                place.parent.mkdir(parents=True, exist_ok=True)
                # The times stay, so that a second build has nothing to do.
                shutil.copy2(ROOT / file, place)

    def run(self, command, environment, binary):
        command = command.replace("/image/", f"{self.inside('/image')}/")
        if binary and command.startswith("cargo build "):
            # What cargo finds without compiling: a target without its file, a lock file that is behind. For this machine
            # alone: crates of other platforms were never fetched.
            subprocess.run(["cargo", "fetch", "--locked", "--offline", "--target", "host-tuple"], cwd=self.inside("."),
                           env=environment, check=True)
            place = self.inside("target/given/cota")
            place.parent.mkdir(parents=True)
            shutil.copy(binary, place)
            return
        subprocess.run(["sh", "-euc", command], cwd=self.inside("."), env=environment | self.arguments, check=True)


def build(work, profile, binary):
    """Follows the Dockerfile; the final stage and what it said."""
    files = context()
    stages, stage = {}, None
    environment = dict(os.environ)
    # Set by the cargo that runs the tests; here cargo is to look for itself.
    for name in [name for name in environment if name.startswith(("CARGO", "COTA_", "RUST"))]:
        if name not in ("CARGO_HOME", "RUSTUP_HOME"):
            del environment[name]
    environment["RUSTUP_TOOLCHAIN"] = tomllib.loads((ROOT / "rust-toolchain.toml").read_text())["toolchain"]["channel"]
    for word, rest in instructions((ROOT / "Dockerfile").read_text()):
        if word == "FROM":
            base, *name = rest.split()
            stage = stages[name[1] if name else "final"] = Stage(base, work / f"stage{len(stages)}")
        elif word == "WORKDIR":
            stage.workdir = rest
            stage.inside(".").mkdir(parents=True, exist_ok=True)
        elif word == "ARG":
            name, _, value = rest.partition("=")
            stage.arguments[name] = profile if name == "PROFILE" else value
        elif word == "COPY":
            stage.copy(rest, stages, files)
        elif word == "RUN":
            stage.run(rest, environment, binary)
        elif word in ("USER", "EXPOSE", "ENTRYPOINT", "CMD"):
            stage.said[word] = rest
        else:
            raise AssertionError(f"this script does not know {word}")
    toolchain = environment["RUSTUP_TOOLCHAIN"]
    assert f"rust:{toolchain}-" in stages["build"].base, f"{stages['build'].base} is not rust-toolchain.toml's {toolchain}"
    return stages["final"]


def add_libraries(root, binary):
    """Copies what the base image has and the binary asks for."""
    listed = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    for line in listed.splitlines():
        if "linux-vdso" in line:
            continue
        name = line.split()[0]
        path = pathlib.Path(name if name.startswith("/") else line.split("=> ")[1].split()[0])
        assert LIBRARIES.fullmatch(path.name), f"the base image does not have {path.name}"
        place = root / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)


def inside(root, *command):
    """The command as one that sees only this directory, read-only, and is nobody."""
    enter = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec chroot {} "$0" "$@"'
    if os.geteuid() == 0:
        return ["unshare", "--mount", "sh", "-c", enter.format(f"--userspec={NOBODY}:{NOBODY}"), str(root), *command]
    # Who is not root cannot become somebody else, and need not.
    return ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c", enter.format(""), str(root), *command]


def post(url, body):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def serve(root, entrypoint, log):
    """Starts it as a container would, asks it, stops it; how long the start took."""
    command = inside(root, *entrypoint, "serve", "--config", "/etc/cota", "--drain", "0s",
                     "--grpc-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    began = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        while True:
            text = log.read_text()
            assert process.poll() is None, f"it ended at the start:\n{text}"
            assert time.monotonic() < began + 30, f"it does not listen:\n{text}"
            found = re.search(r"listening grpc=\S+ http=(\S+)", text)
            if found:
                break
            time.sleep(0.002)
        url = f"http://{found[1]}"
        while True:
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=10).close()
                break
            except urllib.error.HTTPError:
                assert time.monotonic() < began + 30, log.read_text()
                time.sleep(0.002)
        took = time.monotonic() - began
        if os.geteuid() == 0:
            uids = re.search(r"Uid:\s+(.*)", pathlib.Path(f"/proc/{process.pid}/status").read_text())[1].split()
            assert set(uids) == {str(NOBODY)}, uids
            assert pathlib.Path(f"/proc/{process.pid}/root/etc/cota/policy.yaml").exists()
        question = {"domain": "image", "descriptors": [{"entries": [{"key": "tenant", "value": "acme"}]}]}
        answers = [post(f"{url}/json", question) for _ in range(2)]
        assert answers == [200, 429], f"{answers}\n{log.read_text()}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return took


def contents(root):
    return sorted((str(path.relative_to(root)), path.lstat().st_size, path.lstat().st_mtime_ns) for path in root.rglob("*"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=pathlib.Path)
    parser.add_argument("--profile", default="release")
    parser.add_argument("--binary", type=pathlib.Path)
    options = parser.parse_args()
    work = options.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    everything = set(context())
    for folder in ("src", "proto"):
        tracked = {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert tracked <= everything, f".dockerignore keeps out {sorted(tracked - everything)}"

    final = build(work, options.profile, options.binary)
    root, said = final.folder, final.said
    binary, link = root / "usr/local/bin/cota", root / "bin/ratelimit"
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_symlink() or not path.is_dir()}
    assert files == {"usr/local/bin/cota", "bin/ratelimit"}, files
    assert os.readlink(link) == "/usr/local/bin/cota"
    assert binary.stat().st_mode & 0o777 == 0o555
    assert said["USER"] == f"{NOBODY}:{NOBODY}"
    entrypoint = json.loads(said["ENTRYPOINT"])
    assert json.loads(said["CMD"]) == ["serve"]

    add_libraries(root, binary)
    (root / "etc/cota").mkdir(parents=True)
    (root / "etc/cota/policy.yaml").write_text(POLICY)
    before = contents(root)
    versions = [subprocess.run(inside(root, name, "--version"), env={"PATH": os.environ["PATH"]}, check=True,
                               capture_output=True, text=True).stdout for name in (entrypoint[0], "/bin/ratelimit")]
    assert versions[0] == versions[1] and versions[0].startswith("cota "), versions
    starts = sorted(serve(root, entrypoint, work / "log") for _ in range(5))
    assert contents(root) == before, "it wrote into its file system"
    print(f"{versions[0].strip()}, {options.profile if not options.binary else 'given'}: {binary.stat().st_size / 1e6:.1f} MB; "
          f"from exec to ready {starts[2] * 1000:.0f} ms (median of {len(starts)})")


if __name__ == "__main__":
    main()
