"""`fulmar doctor` on a path whose router drops UDP, in namespaces of the test's own."""

import json
import subprocess
import unittest

from broker import Broker, binary
from namespaces import BROKER, Site, ip


class Doctor(unittest.TestCase):
    def test_blocked_udp_is_named_with_the_transport_that_works(self):
        site = Site()
        self.addCleanup(site.close)
        settings = f'[auth]\nallow_anonymous = "always"\n[tls]\nnames = ["{BROKER}"]\n'
        broker = Broker(settings, prefix=site.inside("broker"), addresses={"quic": BROKER, "mqtts": BROKER})
        self.addCleanup(broker.close)
        command = [binary(), "doctor", "--json", f"quic://{BROKER}:{broker.ports['quic']}"]
        command += ["--cafile", broker.ca, "--fallback-port", str(broker.ports["mqtts"])]

        def path() -> tuple[int, dict]:
            done = subprocess.run(site.inside("client", *command), capture_output=True, text=True, timeout=60)
            report = json.loads(done.stdout)
            self.assertEqual(len(report["findings"]), 1, report)
            return done.returncode, report["findings"][0]

        code, finding = path()
        self.assertEqual((code, finding["level"]), (0, "ok"), finding)
        ip("-n", site.names["router"], "rule", "add", "ipproto", "udp", "blackhole")
        code, finding = path()
        self.assertEqual((code, finding["level"]), (1, "problem"), finding)
        self.assertIn(f"UDP is blocked between here and {BROKER}", finding["text"])
        self.assertTrue(finding["next"].startswith(f"use mqtts://{BROKER}:{broker.ports['mqtts']}"), finding)
        ip("-n", site.names["router"], "rule", "add", "ipproto", "tcp", "blackhole")
        code, finding = path()
        self.assertEqual(code, 1, finding)
        self.assertIn("does not answer on UDP port", finding["text"])


if __name__ == "__main__":
    unittest.main()
