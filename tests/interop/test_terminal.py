"""Messages cannot control the terminal of whoever watches them; files and pipes get them as they are."""

import os
import pty
import select
import subprocess
import time
import unittest

from broker import PATIENCE_S, Broker, binary

# Clears the screen and sets the title, by C0 and C1; erases backwards; writes from right to left.
TOPIC = "t/a\u009b2Jb\u202ec"
PAYLOAD = b"21.5 \x1b[2J\x1b]0;owned\x07\x7f\r\xc2\x9b31m\xe2\x80\xae\xff\n\xc3\xa4 END"
ESCAPED = "21.5 \\u001b[2J\\u001b]0;owned\\u0007\\u007f\\r\\u009b31m\\u202e\\xff\nä END"


class Terminal(unittest.TestCase):
    def setUp(self):
        self.broker = Broker()
        self.addCleanup(self.broker.close)
        self.url = f"mqtt://127.0.0.1:{self.broker.ports['mqtt']}"
        command = [binary(), "pub", self.url, "-q", "1", "-r", "-t", TOPIC, "-s"]
        subprocess.run(command, input=PAYLOAD, check=True, timeout=PATIENCE_S)

    def sub(self, *options):
        return [binary(), "sub", self.url, "-t", "t/#", "-C", "1", *options]

    def on_terminal(self, command) -> str:
        terminal, end = pty.openpty()
        self.addCleanup(os.close, terminal)
        process = subprocess.Popen(command, stdout=end, stderr=end)
        os.close(end)
        shown, end_at = b"", time.monotonic() + PATIENCE_S
        while time.monotonic() < end_at:
            if select.select([terminal], [], [], 1)[0]:
                try:
                    more = os.read(terminal, 4096)
                except OSError:
                    break
                shown += more
        self.assertEqual(process.wait(PATIENCE_S), 0)
        # The terminal itself adds the carriage returns.
        return shown.decode().replace("\r\n", "\n")

    def assert_harmless(self, shown):
        controls = [c for c in shown if c not in "\n\t" and (ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 or c == "\u202e")]
        self.assertEqual(controls, [], shown)

    def test_a_message_is_escaped_on_a_terminal(self):
        shown = self.on_terminal(self.sub("-v"))
        self.assertEqual(shown, f"t/a\\u009b2Jb\\u202ec {ESCAPED}\n")
        for options in (["-F", "%t %p"], ["--json"], ["-F", "%j"]):
            self.assert_harmless(self.on_terminal(self.sub(*options)))

    def test_a_pipe_gets_every_byte(self):
        for options, expected in ((["-v"], TOPIC.encode() + b" " + PAYLOAD), (["-F", "%p"], PAYLOAD)):
            done = subprocess.run(self.sub(*options), stdout=subprocess.PIPE, check=True, timeout=PATIENCE_S)
            self.assertEqual(done.stdout, expected + b"\n")

    def test_lists_of_the_administration_are_harmless(self):
        for words in (["retained", "list"], ["retained", "list", "--json"]):
            shown = self.on_terminal([binary(), "ctl", *words, "--data", str(self.broker.data)])
            self.assertIn("t/a", shown)
            self.assert_harmless(shown)


if __name__ == "__main__":
    unittest.main()
