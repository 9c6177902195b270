"""quic-go and Eclipse Paho's Go clients (go/) against a broker of ours; SCRAM by xdg-go."""

import os
import pathlib
import subprocess
import unittest

from broker import PATIENCE_S, Broker, binary


def program() -> str:
    """The compiled tests; `make test-interop` builds them and says where they are."""
    path = os.environ.get("FULMAR_QUIC_GO")
    if not path or not pathlib.Path(path).is_file():
        raise unittest.TestCase.failureException("set FULMAR_QUIC_GO to the compiled tests (make test-interop does)")
    return path


class QuicGo(unittest.TestCase):
    def test_paho_streams_early_data_and_address_change(self):
        # More workers than one, or a packet from a new address could not come to the wrong one.
        broker = Broker("[server]\nworkers = 4\n")
        self.addCleanup(broker.close)
        env = {
            **os.environ,
            "FULMAR_CA": broker.ca,
            "FULMAR_HTTP": f"127.0.0.1:{broker.ports['http']}",
            "FULMAR_QUIC": f"127.0.0.1:{broker.ports['quic']}",
            "FULMAR_WS": f"ws://localhost:{broker.ports['ws']}/mqtt",
            "FULMAR_WSS": f"wss://localhost:{broker.ports['wss']}/mqtt",
        }
        self.run_go(env)

    def test_paho_signs_in_with_scram(self):
        broker = Broker("[auth]\nscram = true\nscram_iterations = 4096\n")
        self.addCleanup(broker.close)
        command = [binary(), "ctl", "--data", broker.data, "users", "add", "ann", "--role", "viewer"]
        password = "p\u00e4ssword \u2168"
        subprocess.run(command, input=password, text=True, check=True, timeout=PATIENCE_S)
        env = {
            **os.environ,
            "FULMAR_CA": broker.ca,
            "FULMAR_QUIC": f"127.0.0.1:{broker.ports['quic']}",
            "FULMAR_MQTT": f"127.0.0.1:{broker.ports['mqtt']}",
            "FULMAR_SCRAM_PASSWORD": password,
        }
        self.run_go(env, "-test.run=TestScram")

    def run_go(self, env, *args):
        command = [program(), "-test.v", *args]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=5 * PATIENCE_S)
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
