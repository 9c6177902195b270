"""MQTT.js (node/mqttjs.test.mjs) against a broker of ours."""

import json
import os
import pathlib
import subprocess
import unittest

from broker import PATIENCE_S, Broker

NODE = pathlib.Path(__file__).parent / "node"


class MqttJs(unittest.TestCase):
    def test_every_transport_and_version(self):
        broker = Broker()
        self.addCleanup(broker.close)
        urls = {kind: f"{kind}://localhost:{broker.ports[kind]}" for kind in ("mqtt", "mqtts", "ws", "wss")}
        # The other tests have WebSocket with TLS on a listener of its own.
        urls["wss"] = f"wss://localhost:{broker.ports['https']}"
        for kind in ("ws", "wss"):
            urls[kind] += "/mqtt"
        env = {**os.environ, "FULMAR_URLS": json.dumps(urls), "FULMAR_CA": broker.ca}
        command = ["node", "--test", "--test-reporter=spec", "mqttjs.test.mjs"]
        done = subprocess.run(command, cwd=NODE, env=env, capture_output=True, text=True, timeout=4 * PATIENCE_S)
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
