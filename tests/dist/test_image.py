"""The container image, unpacked and run as its configuration says, by a user namespace instead of a container engine:
not root, nothing of this machine's file system, health by its own command, draining on SIGTERM."""

import contextlib
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import subprocess
import tarfile
import tempfile
import time
import unittest

import roots
from test_packages import current

# Other users than this machine's may run it; sources are in the layers only.
SHELLS = ("bin/sh", "bin/bash", "usr/bin/sh", "bin/busybox", "usr/bin/busybox")


class Layout:
    """An OCI image layout in a .tar; every blob is checked."""

    def __init__(self, path):
        with tarfile.open(path) as tar:
            self.files = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}

    def blob(self, descriptor):
        data = self.files["blobs/" + descriptor["digest"].replace(":", "/")]
        assert hashlib.sha256(data).hexdigest() == descriptor["digest"].removeprefix("sha256:")
        assert len(data) == descriptor["size"]
        return data

    def manifests(self):
        """By architecture."""
        [top] = json.loads(self.files["index.json"])["manifests"]
        return {each["platform"]["architecture"]: json.loads(self.blob(each))
                for each in json.loads(self.blob(top))["manifests"]}


class Unpacked(unittest.TestCase):
    PATTERN = "fulmar-[0-9]*-image.tar"

    def setUp(self):
        self.layout = Layout(current(self.PATTERN))
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        manifest = self.layout.manifests()["amd64"]
        document = json.loads(self.layout.blob(manifest["config"]))
        self.config = document["config"]
        for descriptor, digest in zip(manifest["layers"], document["rootfs"]["diff_ids"], strict=True):
            data = gzip.decompress(self.layout.blob(descriptor))
            self.assertEqual("sha256:" + hashlib.sha256(data).hexdigest(), digest)
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                for member in tar.getmembers():
                    # Whose it is within the namespace: the one account that it has.
                    member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
                    tar.extract(member, self.folder, filter="tar")

    @contextlib.contextmanager
    def container(self, *settings, command=None):
        """The image's command, or this one, as its user, in a network of its own."""
        user, group = self.config["User"].split(":")
        environment = [*self.config["Env"], *settings]
        ending = command or self.config["Cmd"]
        command = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec",
                   'ip link set lo up; exec "$@"', "sh", "unshare", "--user", f"--map-user={user}", f"--map-group={group}",
                   f"--root={self.folder}", f"--wd={self.config['WorkingDir']}", *self.config["Entrypoint"],
                   *ending]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=dict(word.split("=", 1) for word in [*environment, f"PATH={os.environ['PATH']}"]))
        try:
            line = process.stdout.readline()
            assert line.startswith("ready"), process.stderr.read()
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()

    def enter(self, process):
        """The broker's process, and how to run a program beside it."""
        child = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0]
        return child, ["nsenter", "--target", child, "--user", "--net", "--preserve-credentials", f"--root={self.folder}", "--"]


class Image(Unpacked):
    def test_it_runs_healthy_and_drains(self):
        for shell in SHELLS:
            self.assertFalse((self.folder / shell).exists(), shell)
        roots.run(self.folder / "usr/bin/fulmar", "passwd", "ann", "--file", self.folder / "var/lib/fulmar/passwords",
                  input="a password of ann\n")
        with self.container("FULMAR_AUTH__PASSWORD_FILE=/var/lib/fulmar/passwords") as process:
            child, inside = self.enter(process)
            status = pathlib.Path(f"/proc/{child}/status").read_text()
            self.assertIn("CapEff:\t0000000000000000", status)
            health = self.config["Healthcheck"]["Test"]
            self.assertEqual(health[0], "CMD")
            self.assertEqual(roots.run(*inside, *health[1:]).stdout, "ok\n")
            url = ["quic://127.0.0.1:14567", "--cafile", "/var/lib/fulmar/ca/ca.pem", "-u", "ann", "-P", "-"]
            roots.run(*inside, "/usr/bin/fulmar", "pub", *url, "-t", "plant/a", "-m", "21.5", "-q", "1", "-r",
                      input="a password of ann\n")
            refused = roots.run(*inside, "/usr/bin/fulmar", "pub", "mqtts://127.0.0.1:8883", "--cafile",
                                "/var/lib/fulmar/ca/ca.pem", "-t", "plant/a", "-m", "0", check=False)
            self.assertNotEqual(refused.returncode, 0, "nobody logged in, and the message was accepted")
            # 15 is what the configuration says, StopSignal.
            self.assertEqual(self.config["StopSignal"], "SIGTERM")
            os.kill(int(child), 15)
            _, log = process.communicate(timeout=roots.PATIENCE_S)
            self.assertEqual(process.returncode, 0, log)
            self.assertIn("draining", log)
        # The volume has what was acknowledged.
        self.assertTrue((self.folder / "var/lib/fulmar/broker.db").exists())

    def test_without_users_the_first_start_creates_one(self):
        data = self.folder / "var/lib/fulmar"
        with self.container() as process:
            child, inside = self.enter(process)
            # What `podman cp` copies, as docs/install.md says.
            shown = (data / "first-administrator").read_text()
            password = re.search("^password: (.+)$", shown, re.MULTILINE)[1]

            def log_in(password):
                return roots.run(*inside, "/usr/bin/fulmar", "pub", "quic://127.0.0.1:14567", "--cafile",
                                 "/var/lib/fulmar/ca/ca.pem", "-u", "admin", "-P", "-", "-t", "t", "-m", "1", "-q", "1",
                                 input=password + "\n", check=False).stdout

            # A user of the platform may log in, and not publish this.
            self.assertIn("refused the publication", log_in(password))
            self.assertIn("refused the connection", log_in("another"))
            os.kill(int(child), 15)
            _, log = process.communicate(timeout=roots.PATIENCE_S)
            self.assertEqual(process.returncode, 0, log)
        self.assertIn("/var/lib/fulmar/first-administrator", log)
        self.assertNotIn(password, log)

    def test_each_architecture_has_its_program(self):
        machines = {"amd64": 62, "arm64": 183, "arm": 40}
        for name, manifest in self.layout.manifests().items():
            with tarfile.open(fileobj=io.BytesIO(self.layout.blob(manifest["layers"][-1])), mode="r:gz") as tar:
                header = tar.extractfile("usr/bin/fulmar").read(20)
            self.assertEqual(header[:4], b"\x7fELF")
            # ELF's e_machine.
            self.assertEqual(int.from_bytes(header[18:20], "little"), machines[name], name)


class Outbox(Unpacked):
    """docs/outbox.md, as a container: the gateway's image with the file that it has for that."""

    PATTERN = "fulmar-gateway-*-image.tar"

    def test_it_keeps_what_devices_publish(self):
        upstream = ["FULMAR_UPSTREAM__URL=mqtts://127.0.0.1:9", "FULMAR_UPSTREAM__USER=site-1",
                    "FULMAR_UPSTREAM__PASSWORD=secret"]
        outbox = ["serve", "--config", "/etc/fulmar/outbox.toml"]
        for expected in [1, 2]:
            with self.container(*upstream, command=outbox) as process:
                _, inside = self.enter(process)
                fulmar = [*inside, "/usr/bin/fulmar"]
                roots.run(*fulmar, "pub", "mqtt://127.0.0.1", "-t", "sensor/a", "-m", expected, "-q", "1")
                said = roots.run(*fulmar, "health", "http://127.0.0.1:14568/health/upstream").stdout
                self.assertTrue(said.startswith("not connected"), said)
                self.assertEqual(self.queued(inside, expected), expected)
            # Killed; the volume has it.

    def queued(self, inside, expected):
        """How many messages the outbox has, once it is this number."""
        end = time.monotonic() + roots.PATIENCE_S
        while time.monotonic() < end:
            # The image has no curl; all but its root directory is the container's.
            metrics = roots.run(*inside[:-2], "--", "curl", "-sS", "http://127.0.0.1:14568/metrics")
            [found] = re.findall(r"(?m)^fulmar_gateway_queued (\d+)$", metrics.stdout)
            if int(found) == expected:
                break
            time.sleep(0.05)
        return int(found)


if __name__ == "__main__":
    unittest.main()
