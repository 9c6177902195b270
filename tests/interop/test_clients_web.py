"""fulmar-web with MQTT.js in Chromium: the scenarios of all languages in a window, some of them in a worker and in a service
worker, and what docs/clients.md says."""

import subprocess
import unittest

import ports
from broker import PATIENCE_S
from client_scenarios import Basics, Client, Scenarios
from client_tutorial import ROOT, Tutorial, fence

AGENT = ROOT / "tests/interop/agents/web"


class Chromium(Basics):
    # WebTransport; a WebSocket because that fails, because it never gets anywhere, or because the browser has none.
    schemes = ("webtransport", "ws", "hanging", "missing")
    main = ("webtransport", "ws")
    attentive = {"keep_alive_s": 2}
    others = ()
    where = "window"

    @classmethod
    def agent_command(cls):
        return ["node", str(AGENT / "agent.mjs"), cls.where]

    def url(self, scheme):
        return f"{scheme}://broker"

    def client(self, *args, **options):
        at = self.broker.ports
        addresses = {"https": f"https://127.0.0.1:{at['https']}", "websocket": f"ws://127.0.0.1:{at['ws']}/mqtt"}
        return super().client(*args, **addresses, **options)

    def test_what_no_browser_opens_is_an_error_and_a_close(self):
        socket = Client(self.agent, "socket")
        self.assertEqual(socket.do("socket_events", url="ws://127.0.0.1/mqtt", protocols=["not a token"]), ["error", "close"])


class Window(Chromium, Scenarios, unittest.TestCase):
    # No browser has statistics of the path, or moves to another network when it is asked to.
    test_quic_goes_on_from_another_address = None
    # WebTransport is one stream here, and MQTT.js has no SCRAM. Another way around blocked UDP is in `schemes`.
    test_a_stream_of_quic_for_each_topic = test_a_password_that_is_not_sent = test_a_network_that_blocks_udp = None
    # These are MQTT.js' own: it acknowledges by itself, always connects again, and checks few arguments.
    test_a_message_is_acknowledged_by_hand = test_a_client_that_gives_up_says_so = None
    test_wrong_arguments_are_errors_of_the_call = test_options_that_there_are_not = None
    test_a_message_that_the_server_would_not_accept_is_an_error = None
    # Nothing of it is freed by hand.
    test_a_client_that_is_closed_while_messages_arrive = None
    # It keeps what is published without a bound, and waits for none of it when it is closed.
    test_requests_behind_more_messages_than_may_wait_fail = test_what_a_close_overtakes_ends_as_closed = None


class Worker(Chromium, unittest.TestCase):
    where = "worker"


class ServiceWorker(Chromium, unittest.TestCase):
    where = "serviceworker"


class Page(Tutorial):
    def test_the_page(self):
        make, install, config, serve = self.lines("## Browsers")
        [port] = ports.take(1)
        origin = f"http://localhost:{port}"
        at = self.broker.ports
        self.broker.stop()
        self.broker.settings += f'[http]\nallowed_origins = ["{origin}"]\n'
        self.broker.start()
        self.type(make, install, config.replace("https://localhost:8443", f"https://127.0.0.1:{at['https']}")
                  .replace("~/.local/share/fulmar/ca/ca.pem", self.broker.ca))
        self.save("page/index.html", fence("docs/clients.md", "html"), "ws://localhost:8083/mqtt", f"ws://127.0.0.1:{at['ws']}/mqtt")
        server = subprocess.Popen(serve.replace("8000", str(port)).split(), cwd=f"{self.folder}/page", stderr=subprocess.DEVNULL)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        shown = subprocess.run(["node", AGENT / "show.mjs", origin, "21.5"], capture_output=True, text=True, timeout=PATIENCE_S)
        self.assertEqual(shown.stdout, "plant/temperature 21.5 over webtransport\n", shown.stderr)


if __name__ == "__main__":
    unittest.main()
