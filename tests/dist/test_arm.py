"""Programs for ARM: publish and subscribe over QUIC, broker and clients under qemu-user."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import roots
from test_packages import HERE, PROGRAMS

sys.path.insert(0, str(HERE / "scripts/dist"))
from contents import LISTENERS, runner  # noqa: E402  (scripts/dist is not a package)

USED = ("mqtt", "quic")


@contextlib.contextmanager
def broker(command, data):
    env = dict(os.environ)
    for name in LISTENERS:
        env[f"FULMAR_LISTENERS__{name.upper()}"] = '["127.0.0.1:0"]' if name in USED else "[]"
    process = subprocess.Popen([*command, "serve", "--data", data], env=env, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("ready"), f"{command} does not start"
        yield dict(re.findall(r"(\w+)=(\S+)", line))
        process.send_signal(signal.SIGTERM)
        assert process.wait(roots.PATIENCE_S) == 0, process.returncode
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Arm(unittest.TestCase):
    def test_messages_over_quic(self):
        programs = [path for arch in ("aarch64", "armv7") for path in sorted(PROGRAMS.glob(f"{arch}/*/fulmar"))]
        if not programs:
            self.skipTest(f"no programs for ARM in {PROGRAMS}")
        for program in programs:
            with self.subTest(program=str(program.relative_to(PROGRAMS))), tempfile.TemporaryDirectory() as data:
                self.check([*runner(program.parts[-3]), str(program)], data)

    def check(self, command, data):
        with broker(command, data) as bound:
            url = [f"quic://{bound['quic']}", "--cafile", str(pathlib.Path(data, "ca/ca.pem"))]
            roots.run(*command, "pub", *url, "-t", "plant/a", "-m", "retained", "-q", "1", "-r")
            subscriber = subprocess.Popen([*command, "sub", *url, "-t", "plant/#", "-C", "2", "-W", "60"],
                                          stdout=subprocess.PIPE, text=True)
            # It has subscribed when it has the first message.
            self.assertEqual(subscriber.stdout.readline(), "retained\n")
            roots.run(*command, "pub", *url, "-t", "plant/a", "-m", "live", "-q", "1")
            rest, _ = subscriber.communicate(timeout=roots.PATIENCE_S)
            self.assertEqual((rest, subscriber.returncode), ("live\n", 0))


if __name__ == "__main__":
    unittest.main()
