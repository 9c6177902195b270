"""The .deb on a Debian that systemd has booted: the package starts, restarts and stops the service by itself."""

import os
import pathlib
import subprocess
import tempfile
import time
import unittest

import roots
from test_packages import BEFORE, CACHE, DATA, current, packed_before


@unittest.skipUnless(CACHE and os.geteuid() == 0, "needs root, and FULMAR_ROOTS for Debian with systemd")
class Systemd(unittest.TestCase):
    def setUp(self):
        base = roots.debian(CACHE, "systemd-sysv")
        folder = self.enterContext(tempfile.TemporaryDirectory())
        boot = pathlib.Path(__file__).with_name("boot.sh")
        self.machine = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child", "sh", boot,
             base, folder], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.machine.wait)
        self.addCleanup(self.machine.kill)
        deadline = time.monotonic() + roots.PATIENCE_S
        while self.run_in("systemctl", "is-system-running", check=False).stdout.strip() not in ("running", "degraded"):
            if time.monotonic() > deadline or self.machine.poll() is not None:
                self.skipTest("systemd does not boot in namespaces of this machine")
            time.sleep(0.2)

    def run_in(self, *command, check=True):
        inside = ["nsenter", "--target", str(roots.child(self.machine)), "--mount", "--pid", "--net", "--uts", "--ipc",
                  "--cgroup", "--root", "--wd=/", "--"]
        return roots.run(*inside, *command, check=check, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"})

    def install(self, package):
        path = pathlib.Path(f"/proc/{roots.child(self.machine)}/root/root", package.name)
        path.write_bytes(package.read_bytes())
        self.run_in("dpkg", "-i", f"/root/{package.name}")

    def state(self, what):
        return self.run_in("systemctl", what, "fulmar", check=False).stdout.strip()

    def check_message(self):
        self.assertEqual(self.run_in("fulmar", "sub", "mqtt://localhost", "-t", "a", "-C", "1", "-W", "60").stdout, "kept\n")

    def test_the_service_follows_the_package(self):
        self.install(packed_before(self.enterContext(tempfile.TemporaryDirectory()), "deb"))
        self.assertEqual((self.state("is-active"), self.state("is-enabled")), ("active", "enabled"))
        self.assertEqual(self.run_in("fulmar", "health").stdout, "ok\n")
        self.run_in("fulmar", "pub", "mqtt://localhost", "-t", "a", "-m", "kept", "-q", "1", "-r")
        self.run_in("systemctl", "reload", "fulmar")
        before = self.run_in("systemctl", "show", "--property=MainPID", "fulmar").stdout
        self.install(current("fulmar_*_amd64.deb"))
        self.assertEqual(self.state("is-active"), "active")
        self.assertNotEqual(self.run_in("systemctl", "show", "--property=MainPID", "fulmar").stdout, before, BEFORE)
        self.check_message()
        self.run_in("dpkg", "-r", "fulmar")
        self.assertEqual(self.state("is-active"), "inactive")
        self.install(current("fulmar_*_amd64.deb"))
        self.check_message()
        # What an administrator has disabled stays so.
        self.run_in("systemctl", "disable", "fulmar")
        self.install(current("fulmar_*_amd64.deb"))
        self.assertEqual(self.state("is-enabled"), "disabled")
        self.run_in("dpkg", "-P", "fulmar")
        self.assertEqual(self.state("is-active"), "inactive")
        self.assertNotEqual(self.run_in("ls", DATA, check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()
