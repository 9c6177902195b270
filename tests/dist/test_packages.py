"""Packages on bare root file systems: install, first message, upgrade with data, downgrade, refusal, removal, purge.

The version before is the same program in a package with a lower version. Nothing here runs systemd: the service's
command is typed, as its user."""

import os
import pathlib
import subprocess
import tempfile
import threading
import time
import unittest

import roots

HERE = pathlib.Path(__file__).resolve().parents[2]
DIST = pathlib.Path(os.environ.get("FULMAR_DIST", HERE / "target/dist"))
PROGRAMS = pathlib.Path(os.environ.get("FULMAR_PROGRAMS", HERE / "target/dist-programs"))
# Where Debian's root is made once; empty: a view of this machine's instead, which is not bare.
CACHE = os.environ.get("FULMAR_ROOTS", "")
BEFORE = "0.0.9"
CONFIG, DATA = "/etc/fulmar/fulmar.toml", "/var/lib/fulmar"


def packed_before(folder, form):
    """A package of the version before."""
    roots.run("python3", HERE / "scripts/dist/pack.py", PROGRAMS, folder, "x86_64", "--version", BEFORE, "--formats", form)
    return next(pathlib.Path(folder).glob(f"fulmar[-_]{BEFORE}*"))


def current(pattern):
    found = sorted(DIST.glob(pattern))
    assert len(found) == 1, f"{pattern} in {DIST}: {found}"
    return found[0]


@unittest.skipUnless(os.geteuid() == 0, "root file systems and accounts are made by root")
class Packages(unittest.TestCase):
    def enter(self, base):
        self.root = self.enterContext(roots.Root(base))
        self.folder = self.root.path("/root")

    def copy(self, package):
        """Into the root; returns its path there."""
        (self.folder / package.name).write_bytes(package.read_bytes())
        return f"/root/{package.name}"

    def state(self, path):
        return self.root.run("stat", "-c", "%a %U:%G", path).stdout.strip()

    def serve(self):
        """The service's command as its user; systemd would do the same."""
        unit = self.root.path("/usr/lib/systemd/system/fulmar.service").read_text().splitlines()
        command = next(line for line in unit if line.startswith("ExecStart=")).removeprefix("ExecStart=")
        return self.root.broker(*self.as_fulmar(*command.split()))

    def check_message(self, text):
        """What is stored arrives: a retained message."""
        found = self.root.run("fulmar", "sub", "mqtt://localhost", "-t", "plant/#", "-C", "1", "-W", "60").stdout
        self.assertIn(text, found)

    def publish(self, text):
        self.root.run("fulmar", "pub", "mqtt://localhost", "-t", "plant/temperature", "-m", text, "-q", "1", "-r")

    def check_installed(self):
        self.assertEqual(self.state(CONFIG), "640 root:fulmar")
        self.assertEqual(self.state(DATA), "700 fulmar:fulmar")
        for path in ["/usr/share/man/man1/fulmar-serve.1.gz", "/usr/share/bash-completion/completions/fulmar",
                     "/usr/share/fulmar/grafana/fulmar.json", "/usr/share/fulmar/prometheus/fulmar.rules.yml",
                     "/usr/share/fulmar/recipes/node-red-flow.json"]:
            self.assertTrue(self.root.path(path).exists(), path)

    def life(self, first, upgrade, downgrade, before, now):
        """From the first installation to a refused downgrade."""
        self.root.run(*first, before)
        self.check_installed()
        with self.serve():
            self.publish("21.5")
            self.check_message("21.5")
        with self.root.path(CONFIG).open("a") as file:
            file.write("# the administrator's\n")
        for command, package, version in [(upgrade, now, None), (downgrade, before, BEFORE)]:
            self.root.run(*command, package)
            self.check_installed()
            self.assertIn("# the administrator's", self.root.path(CONFIG).read_text())
            with self.serve():
                self.check_message("21.5")
        self.root.run(*upgrade, now)
        # As a later version would leave it: the number of the tables is at byte 60.
        database = self.root.path(f"{DATA}/broker.db")
        with database.open("r+b") as file:
            file.seek(60)
            known = file.read(4)
            file.seek(60)
            file.write(b"\0\0\0\x63")
        refused = self.root.run(*downgrade, before, check=False)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn(f"fulmar {BEFORE} cannot read {DATA}/broker.db", refused.stdout)
        with database.open("r+b") as file:
            file.seek(60)
            file.write(known)
        # The newer version is still there, and works.
        with self.serve():
            self.check_message("21.5")


class Deb(Packages):
    def as_fulmar(self, *command):
        return ("setpriv", "--reuid", "fulmar", "--regid", "fulmar", "--clear-groups", *command)

    def test_its_life(self):
        self.enter(roots.debian(CACHE) if CACHE else "/")
        before = packed_before(self.enterContext(tempfile.TemporaryDirectory()), "deb")
        before, now = self.copy(before), self.copy(current("fulmar_*_amd64.deb"))
        install = ("dpkg", "--force-confold", "-i")
        self.life(install, install, install, before, now)
        self.root.run("dpkg", "-r", "fulmar")
        self.assertFalse(self.root.path("/usr/bin/fulmar").exists())
        self.assertTrue(self.root.path(f"{DATA}/broker.db").exists())
        self.assertTrue(self.root.path(CONFIG).exists())
        self.root.run(*install, now)
        with self.serve():
            self.check_message("21.5")
        self.root.run("dpkg", "-P", "fulmar")
        self.assertFalse(self.root.path(DATA).exists())
        self.assertFalse(self.root.path("/etc/fulmar").exists())
        self.assertEqual(self.root.run("dpkg", "-l", "fulmar", check=False).returncode, 1)


    def test_the_first_message_in_the_three_commands_of_the_readme(self):
        """Within a minute. Where systemd does not run, the service's command is typed after the first of them."""
        page = (HERE / "README.md").read_text(encoding="utf-8").splitlines()

        def line(begins):
            return next(line.strip() for line in page if line.startswith(f"    {begins}"))

        install = line("sudo apt install").removeprefix("sudo ").split()
        subscribe, publish = line("fulmar sub mqtt://localhost -t 'plant"), line("fulmar pub mqtt://localhost -t plant")
        self.enter(roots.debian(CACHE) if CACHE else "/")
        package = self.copy(current("fulmar_*_amd64.deb"))
        began = time.monotonic()
        # The file has another name for each version; CA certificates would come from the network, which is not there.
        self.root.run(*install[:-1], "--yes", "--no-install-recommends", package)
        with self.serve():
            subscriber = self.root.start("sh", "-c", f"exec {subscribe}")
            found = threading.Event()

            def read():
                if subscriber.stdout.readline() == "plant/temperature 21.5\n":
                    found.set()
                # Its end.
                subscriber.stdout.read()

            reader = threading.Thread(target=read)
            reader.start()
            # Nothing is retained: it may be published before the subscriber is there.
            while not found.wait(0.5) and time.monotonic() - began < 60:
                self.root.run("sh", "-c", publish)
            self.root.end(subscriber)
            reader.join()
            subscriber.stdout.close()
        self.assertTrue(found.is_set(), "no message within a minute")


class Bare(Packages):
    """Where there is no C library."""
    def as_fulmar(self, program, *arguments):
        return ("start-stop-daemon", "-S", "-c", "fulmar:fulmar", "-x", program, "--", *arguments)

    def setUp(self):
        self.base = self.enterContext(tempfile.TemporaryDirectory())
        self.enter(roots.without_libc(self.base))

    def test_an_rpm_installed_from_outside(self):
        before = packed_before(self.enterContext(tempfile.TemporaryDirectory()), "rpm")
        inside = str(self.root.folder / "root")
        before, now = (f"{inside}{self.copy(package)}" for package in (before, current("fulmar-[0-9]*.x86_64.rpm")))

        def rpm(*options):
            return ("rpm", "--root", inside, "--dbpath", "/var/lib/rpm", "--nodeps", "--nosignature", *options)

        outer, self.root.run = self.root.run, self.both(inside)
        self.addCleanup(setattr, self.root, "run", outer)
        self.life(rpm("-i"), rpm("-U"), rpm("-U", "--oldpackage"), before, now)
        self.root.run(*rpm("-e", "fulmar"))
        self.assertFalse(self.root.path("/usr/bin/fulmar").exists())
        self.assertTrue(self.root.path(f"{DATA}/broker.db").exists())
        # Changed by the administrator: rpm keeps it under another name.
        self.assertIn("# the administrator's", self.root.path(f"{CONFIG}.rpmsave").read_text())

    def both(self, _):
        """rpm runs outside, everything else inside."""
        inner = self.root.run
        return lambda *command, **options: inner(*command, chroot=command[0] != "rpm", **options)

    def test_the_archive(self):
        archive = current("fulmar-[0-9]*-x86_64.tar.gz")
        self.root.run("tar", "xzf", self.copy(archive), "-C", "/root")
        folder = f"/root/{archive.name.removesuffix('.tar.gz')}"
        self.root.run("ln", "-s", f"{folder}/fulmar", "/usr/bin/fulmar")
        with self.root.broker("fulmar", "serve"):
            self.publish("21.5")
            self.check_message("21.5")


class Wheel(unittest.TestCase):
    def test_pip_installs_the_program(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        roots.run("python3", "-m", "venv", folder)
        wheel = current("fulmar_mqtt-*x86_64.whl")
        roots.run(f"{folder}/bin/pip", "install", "--no-index", "--disable-pip-version-check", wheel)
        version = roots.run(f"{folder}/bin/fulmar", "--version").stdout
        self.assertIn(wheel.name.split("-")[1], version)
        roots.run(f"{folder}/bin/pip", "uninstall", "--yes", "fulmar-mqtt")
        self.assertFalse(pathlib.Path(folder, "bin/fulmar").exists())


class Sums(unittest.TestCase):
    def test_they_are_of_all_files(self):
        lines = (DIST / "SHA256SUMS").read_text().splitlines()
        names = {line.split("  ")[1] for line in lines}
        there = {path.name for path in DIST.iterdir() if not path.name.startswith("SHA256SUMS")}
        self.assertEqual(names, there)
        subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=DIST, check=True)


if __name__ == "__main__":
    unittest.main()
