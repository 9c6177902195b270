"""On a terminal, the first start shows the first administrator's password once, and leaves it nowhere. A password that is
asked for on a terminal is not shown."""

import os
import pty
import select
import subprocess
import tempfile
import time
import unittest

import ports
from broker import PATIENCE_S, binary


class FirstLogin(unittest.TestCase):
    def start(self, data: str, is_first: bool = True) -> tuple[subprocess.Popen, str]:
        """A broker on a terminal, and what it printed until it was ready."""
        terminal, end = pty.openpty()
        self.addCleanup(os.close, terminal)
        kinds = ("mqtts", "ws", "quic", "https", "webtransport", "http", "coap", "coaps")
        settings = {f"FULMAR_LISTENERS__{kind.upper()}": "[]" for kind in kinds}
        settings["FULMAR_LISTENERS__MQTT"] = f'["0.0.0.0:{self.port}"]'
        log = open(os.path.join(data, "log"), "ab")
        process = subprocess.Popen([binary(), "serve", "--data", data], stdout=end, stderr=log, env=os.environ | settings)
        log.close()
        os.close(end)

        def stop():
            if process.poll() is None:
                process.terminate()
                process.wait(PATIENCE_S)

        self.addCleanup(stop)
        shown = b""
        end_at = time.monotonic() + PATIENCE_S
        # What it shows comes at once after the ready line: the first time, a password.
        whole = lambda: b"ready " in shown and (not is_first or shown.partition(b"password: ")[2].endswith(b"\n"))
        while (quiet := select.select([terminal], [], [], 1)[0] == []) is False or not whole():
            self.assertLess(time.monotonic(), end_at, shown)
            if not quiet:
                shown += os.read(terminal, 4096)
        return process, shown.decode().replace("\r\n", "\n")

    def publish(self, password: str) -> int:
        command = [binary(), "pub", f"mqtt://127.0.0.1:{self.port}", "-u", "admin", "-t", "t", "-m", "m", "-q", "1"]
        return subprocess.run(command, env=os.environ | {"FULMAR_PASSWORD": password}, timeout=PATIENCE_S).returncode

    def test_the_password_is_shown_once(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        [self.port] = ports.take(1)
        process, shown = self.start(folder.name)
        [password] = [line.removeprefix("password: ") for line in shown.splitlines() if line.startswith("password: ")]
        self.assertEqual(self.publish(password), 0)
        self.assertNotIn("first-administrator", os.listdir(folder.name))
        with open(os.path.join(folder.name, "log")) as log:
            self.assertNotIn(password, log.read())
        process.terminate()
        self.assertEqual(process.wait(PATIENCE_S), 0)
        _, shown = self.start(folder.name, is_first=False)
        self.assertEqual(len(shown.splitlines()), 1, shown)
        self.assertEqual(self.publish(password), 0)

    def test_a_password_that_is_typed_is_not_shown(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        [self.port] = ports.take(1)
        self.start(folder.name)
        terminal, end = pty.openpty()
        self.addCleanup(os.close, terminal)
        command = [binary(), "ctl", "--data", folder.name, "users", "add", "ann", "--role", "viewer"]
        process = subprocess.Popen(command, stdin=end, stdout=end, stderr=end)
        os.close(end)
        shown = b""

        def until(prompt: bytes):
            nonlocal shown
            end_at = time.monotonic() + PATIENCE_S
            while prompt not in shown:
                self.assertLess(time.monotonic(), end_at, shown)
                if select.select([terminal], [], [], 1)[0]:
                    shown += os.read(terminal, 4096)

        for prompt in (b"Password: ", b"Again: "):
            until(prompt)
            os.write(terminal, b"correct horse\n")
        until(b"added")
        self.assertEqual(process.wait(PATIENCE_S), 0, shown)
        self.assertNotIn(b"correct horse", shown)


if __name__ == "__main__":
    unittest.main()
