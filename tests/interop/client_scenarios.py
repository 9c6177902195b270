"""The scenarios that the client of every language plays against the broker: what docs/clients.md promises for all of them.

A language has a program, its agent, which reads one request per line of JSON from its input and answers each on its output
when it is done, in any order: {"id": 1, "do": "publish", …} with {"id": 1, "result": …} or {"id": 1, "error": {"kind": …,
"reason": …, "text": …}}. Kinds are "refused" (by the server, with its reason code), "invalid" (an argument), "closed",
"disconnected" (it gave up) and "other". Requests begin in the order of their lines. At the end of its input, the agent ends
with 0, unless it finds that it has leaked something.
"""

import base64
import concurrent.futures
import json
import re
import socket
import subprocess
import tempfile
import threading
import urllib.request

from broker import PATIENCE_S, Broker, binary, eventually

PASSWORD = "correct horse"
SETTINGS = """[auth]
allow_anonymous = "always"
scram = true
scram_iterations = 4096
password_file = "{folder}/passwords"
[http]
allowed_origins = ["*"]
[[acl.rules]]
allow = false
action = "publish"
topic = "forbidden/#"
"""
WILL = {"payload": base64.b64encode(b"lost").decode(), "qos": 1, "retain": True}
PROPERTIES = {"content_type": "x/y", "response_topic": "answers", "correlation_data": base64.b64encode(b"\0\1").decode(),
              "user_properties": [["unit", "°C"], ["unit", "K"]]}


class Failure(Exception):
    """An error that the language's client has reported."""

    def __init__(self, kind, reason=-1, text=""):
        super().__init__(f"{kind} {reason}: {text}")
        self.kind, self.reason, self.text = kind, reason, text


class Agent:
    """A running agent; each request gives a future."""

    def __init__(self, command, env):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.waiting, self.last = {}, 0
        self.lock = threading.Lock()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            future = self.waiting.pop(answer["id"])
            if error := answer.get("error"):
                future.set_exception(Failure(**error))
            else:
                future.set_result(answer.get("result"))
        for future in self.waiting.values():
            future.set_exception(Failure("other", text="the agent has ended"))

    def begin(self, do, **arguments):
        future = concurrent.futures.Future()
        with self.lock:
            self.last += 1
            self.waiting[self.last] = future
            self.process.stdin.write(json.dumps({"id": self.last, "do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        return future

    def kill(self):
        """As a power cut would, and frees what belongs to it here."""
        self.process.kill()
        self.end()

    def end(self) -> int:
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.reader.join(PATIENCE_S)
            self.process.stdout.close()


class Client:
    """A client in an agent."""

    def __init__(self, agent, name):
        self.agent, self.name = agent, name

    def begin(self, do, **arguments):
        return self.agent.begin(do, client=self.name, **arguments)

    def do(self, do, **arguments):
        return self.begin(do, **arguments).result(PATIENCE_S)

    def publish(self, topic, payload=b"", qos=0, retain=False, **properties):
        return self.do("publish", topic=topic, payload=base64.b64encode(payload).decode(), qos=qos, retain=retain, **properties)

    def receive(self, count):
        messages = self.do("receive", count=count)
        return [{**message, "payload": base64.b64decode(message["payload"])} for message in messages]

    def payloads(self, count):
        return [message["payload"] for message in self.receive(count)]


class Basics:
    """To be inherited with unittest.TestCase. Subclasses say how the agent is started; a test of what a language's client lacks
    is None there."""

    # Those of URLs.
    schemes = ("quic", "mqtts", "mqtt", "ws")
    # Of these, one with and one without QUIC for what is tested in two.
    main = ("quic", "mqtts")
    # Options of a client that the broker misses soon, and of one that notices soon that the broker is away.
    short_lived = {"keep_alive_s": 1}
    attentive = {"reconnect_longest_ms": 500}

    # More requests that a closed client fails.
    others = ({"do": "network_changed"}, {"do": "statistics"})

    agent: Agent | None = None

    @classmethod
    def agent_command(cls) -> list[str]:
        raise NotImplementedError

    @classmethod
    def agent_environment(cls) -> dict[str, str] | None:
        return None

    @classmethod
    def start_agent(cls):
        return Agent(cls.agent_command(), cls.agent_environment())

    @classmethod
    def tearDownClass(cls):
        if cls.agent and (code := cls.agent.end()) != 0:
            raise AssertionError(f"the agent has leaked something, or failed: exit code {code}")

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        command = [binary(), "passwd", "ann", "--file", f"{self.folder.name}/passwords"]
        subprocess.run(command, input=PASSWORD, text=True, check=True, timeout=PATIENCE_S)
        self.broker = Broker(SETTINGS.format(folder=self.folder.name))
        self.addCleanup(self.broker.close)
        self.names = 0
        if not self.agent or self.agent.process.poll() is not None:
            type(self).agent = self.start_agent()

    def url(self, scheme):
        """The URL of a scheme, which a language may have beside those of the broker's listeners."""
        return f"{scheme}://127.0.0.1:{self.broker.ports[scheme]}"

    def client(self, scheme, agent=None, closes=True, **options):
        self.names += 1
        client = Client(agent or self.agent, f"c{self.names}")
        client.do("connect", url=self.url(scheme), options={"ca_file": self.broker.ca, **options})
        if closes:
            self.addCleanup(client.do, "close")
        return client

    def assert_fails(self, kind, client, do, reason=None, **arguments):
        with self.assertRaises(Failure) as failed:
            client.do(do, **arguments)
        self.assertEqual(failed.exception.kind, kind, failed.exception)
        self.assertTrue(failed.exception.text)
        if reason is not None:
            self.assertEqual(failed.exception.reason, reason, failed.exception)

    def test_messages_of_each_quality_with_their_properties(self):
        for scheme in self.schemes:
            with self.subTest(scheme):
                client = self.client(scheme)
                self.assertEqual(client.do("subscribe", filter="a/+", qos=2), 2)
                for qos in range(3):
                    client.publish("a/b", bytes([qos, 0, 255]), qos, expiry_s=60, **PROPERTIES)
                for qos, message in enumerate(client.receive(3)):
                    self.assertIn(message.pop("expiry_s"), range(1, 61))
                    expected = {"topic": "a/b", "payload": bytes([qos, 0, 255]), "qos": qos, "retain": False, "dup": False}
                    self.assertEqual(message, {**expected, **PROPERTIES})
                client.do("unsubscribe", filter="a/+")
                client.do("close")

    def test_an_empty_payload_and_a_large_one(self):
        client = self.client(self.main[0])
        client.do("subscribe", filter="t", qos=1)
        large = bytes(range(256)) * 2000
        client.publish("t", b"", 1)
        client.publish("t", large, 1)
        self.assertEqual(client.payloads(2), [b"", large])

    def test_retained_messages(self):
        for scheme in self.main:
            client = self.client(scheme)
            client.publish(f"r/{scheme}", b"kept", 1, retain=True)
            client.do("subscribe", filter=f"r/{scheme}", qos=1)
            [message] = client.receive(1)
            self.assertEqual((message["payload"], message["retain"]), (b"kept", True))

    def test_a_closed_client_says_so(self):
        client = self.client(self.main[0])
        receiving = client.begin("receive", count=1)
        client.do("close")
        with self.assertRaises(Failure) as failed:
            receiving.result(PATIENCE_S)
        self.assertEqual(failed.exception.kind, "closed", failed.exception)
        for do in ({"do": "publish", "topic": "t", "payload": "", "qos": 0}, {"do": "subscribe", "filter": "t", "qos": 0},
                   *self.others):
            self.assert_fails("closed", client, **do)

    def test_a_client_that_is_closed_while_it_publishes(self):
        for scheme in self.main:
            client = self.client(scheme)
            publishing = [client.begin("publish", topic="t", payload="", qos=n % 3) for n in range(200)]
            client.do("close")
            for future in publishing:
                error = future.exception(PATIENCE_S)
                self.assertIn(error and error.kind, (None, "closed"), error)

    def test_a_will_is_not_published_when_the_client_is_closed(self):
        for scheme in self.main:
            watcher, client = self.client(scheme), self.client(scheme, will={**WILL, "topic": f"will/{scheme}"})
            watcher.do("subscribe", filter=f"will/{scheme}", qos=1)
            client.do("close")
            # The broker has read the end before: it has read what came afterwards.
            self.client(scheme).publish(f"will/{scheme}", b"no will", 1)
            self.assertEqual(watcher.payloads(1), [b"no will"])


class Scenarios(Basics):
    """All of them."""

    def test_a_will_is_published_when_the_program_is_killed(self):
        for scheme in self.main:
            watcher = self.client(scheme)
            watcher.do("subscribe", filter=f"will/{scheme}", qos=1)
            lost = self.start_agent()
            self.addCleanup(lost.kill)
            will = {**WILL, "topic": f"will/{scheme}"}
            # A broker notices that QUIC's other end is gone when nothing comes from it.
            self.client(scheme, lost, closes=False, will=will, **self.short_lived)
            lost.kill()
            [message] = watcher.receive(1)
            self.assertEqual((message["payload"], message["qos"]), (b"lost", 1))

    def test_a_broker_that_is_killed_and_starts_again(self):
        for scheme in self.main:
            for qos in (1, 2):
                with self.subTest(scheme, qos=qos):
                    self.killed_while_it_publishes(scheme, qos)

    def killed_while_it_publishes(self, scheme, qos):
        listener, sender = [
            self.client(scheme, client_id=f"{name}-{scheme}-{qos}", session_expiry_s=600, **self.attentive)
            for name in ("listener", "sender")
        ]
        topic = f"n/{scheme}/{qos}"
        listener.do("subscribe", filter=topic, qos=2)
        sender.do("publish_numbers", topic=topic, qos=qos, first=0, count=20)
        acknowledged = sender.begin("publish_numbers", topic=topic, qos=qos, first=20, count=180)
        self.broker.kill()
        more = sender.begin("publish_numbers", topic=topic, qos=qos, first=200, count=100)
        self.broker.start()
        for future in (acknowledged, more):
            future.result(PATIENCE_S)
        last = sender.begin("publish_numbers", topic=topic, qos=qos, first=300, count=1)
        received = []
        while not received or received[-1] != 300:
            received += [int(payload) for payload in listener.payloads(1)]
        last.result(PATIENCE_S)
        if qos == 2:
            self.assertEqual(received, list(range(301)))
        else:
            self.assertEqual(sorted(set(received)), list(range(301)))

    def test_quic_goes_on_from_another_address(self):
        client = self.client("quic")
        client.do("subscribe", filter="t", qos=1)
        before = client.do("statistics")
        sent = client.begin("publish_numbers", topic="t", qos=1, first=0, count=100)
        client.do("network_changed")
        sent.result(PATIENCE_S)
        client.do("publish_numbers", topic="t", qos=1, first=100, count=100)
        self.assertEqual([int(payload) for payload in client.payloads(200)], list(range(200)))
        after = client.do("statistics")
        self.assertEqual((before["transport"], after["transport"], after["migrations"]), ("quic", "quic", 1))
        self.assertGreater(after["rtt_us"], 0)

    def test_errors_of_the_server_have_its_reason_code(self):
        for scheme in self.main:
            with self.assertRaises(Failure) as failed:
                self.client(scheme, username="ann", password="wrong")
            self.assertEqual((failed.exception.kind, failed.exception.reason), ("refused", 0x86), failed.exception)
            client = self.client(scheme, username="ann", password=PASSWORD)
            self.assert_fails("refused", client, "publish", 0x87, topic="forbidden/t", payload="", qos=1)
            # It has done no harm.
            client.publish("t", b"m", 1)

    def test_a_password_that_is_not_sent(self):
        command = [binary(), "ctl", "--data", self.broker.data, "users", "add", "sam", "--role", "viewer"]
        subprocess.run(command, input=PASSWORD, text=True, check=True, capture_output=True, timeout=PATIENCE_S)
        scram = {"username": "sam", "more": {"scram": "1"}}
        for scheme in self.main:
            with self.assertRaises(Failure) as failed:
                self.client(scheme, password="wrong", **scram)
            self.assertEqual((failed.exception.kind, failed.exception.reason), ("refused", 0x86), failed.exception)
            self.client(scheme, password=PASSWORD, **scram)

    def test_a_network_that_blocks_udp(self):
        tls = self.broker.ports["mqtts"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(("127.0.0.1", 0))
            self.broker.ports["quic"], used = silent.getsockname()[1], self.broker.ports["quic"]
            try:
                client = self.client("quic", more={"fallback_port": str(tls)})
            finally:
                self.broker.ports["quic"] = used
            self.assertEqual(client.do("statistics")["transport"], "mqtts")
            client.publish("t", b"m", 1)

    def test_a_stream_of_quic_for_each_topic(self):
        def opened():
            with urllib.request.urlopen(f"http://127.0.0.1:{self.broker.ports['http']}/metrics") as answer:
                return int(re.search(r"^fulmar_quic_streams_opened_total (\d+)", answer.read().decode(), re.MULTILINE)[1])

        before = opened()
        client = self.client("quic", more={"streams": "topic"})
        for topic in "abc":
            client.publish(topic, b"m", 1)
        client.do("close")
        # The control stream besides.
        eventually("streams", lambda: opened() >= before + 4)

    def test_wrong_arguments_are_errors_of_the_call(self):
        for scheme in self.main:
            client = self.client(scheme)
            for wrong in ({"topic": "a/#"}, {"topic": "t\0u"}, {"topic": ""}, {"qos": 3}, {"response_topic": "a/#"},
                          {"content_type": "x" * 70_000}, {"topic": "t" * 70_000}):
                with self.subTest(scheme, wrong=str(wrong)[:40]):
                    self.assert_fails("invalid", client, "publish", **{"topic": "t", "payload": "", "qos": 1, **wrong})
            for wrong in ({"filter": "a#"}, {"qos": 3}, {"filter": "t\0u"}, {"filter": ""}):
                with self.subTest(scheme, wrong=wrong):
                    self.assert_fails("invalid", client, "subscribe", **{"filter": "t", "qos": 1, **wrong})
            client.publish("t", b"m", 1)

    def test_a_message_that_the_server_would_not_accept_is_an_error(self):
        client = self.client(self.main[0])
        # The server's Maximum Packet Size, of CONNACK.
        for count in (1, 2):
            self.assert_fails("refused", client, "publish", topic="t", qos=1,
                              payload=base64.b64encode(bytes(2 << 20)).decode())
            client.publish("t", b"m", 1)

    def test_options_that_there_are_not(self):
        for options in ({"more": {"no_such": "1"}}, {"more": {"keep_alive_s": "x"}}, {"client_id": "a\0b"}):
            with self.subTest(options), self.assertRaises(Failure) as failed:
                self.client(self.main[0], closes=False, **options)
            self.assertEqual(failed.exception.kind, "invalid", failed.exception)

    def test_no_connection_is_an_error_unless_offline(self):
        self.broker.kill()
        with self.assertRaises(Failure) as failed:
            self.client(self.main[1])
        self.assertEqual(failed.exception.kind, "refused", failed.exception)
        client = self.client(self.main[0], offline=True)
        sent = client.begin("publish_numbers", topic="t", qos=1, first=0, count=1)
        self.broker.start()
        sent.result(PATIENCE_S)

    def test_a_client_that_gives_up_says_so(self):
        first = self.client(self.main[0], client_id="same")
        receiving = first.begin("receive", count=1)
        self.client(self.main[1], client_id="same")
        with self.assertRaises(Failure) as failed:
            receiving.result(PATIENCE_S)
        self.assertEqual((failed.exception.kind, failed.exception.reason), ("disconnected", 0x8E), failed.exception)

    def test_messages_that_nobody_takes_wait_and_are_not_lost(self):
        slow = self.client(self.main[1], client_id="slow", session_expiry_s=600)
        fast = self.client(self.main[0])
        slow.do("subscribe", filter="t", qos=1)
        fast.do("publish_numbers", topic="t", qos=1, first=0, count=3000)
        # An answer stands behind them.
        slow.do("subscribe", filter="answers", qos=1)
        self.assertEqual([int(payload) for payload in slow.payloads(3000)], list(range(3000)))

    def test_requests_behind_more_messages_than_may_wait_fail(self):
        slow = self.client(self.main[1], client_id="slow", session_expiry_s=600)
        fast = self.client(self.main[0])
        slow.do("subscribe", filter="t", qos=1)
        # The client reads while it waits for an answer, and the broker keeps what it does not read.
        sent, failed = 0, None
        for _ in range(1000):
            if sent < 15_000:
                fast.do("publish_numbers", topic="t", qos=1, first=sent, count=500)
                sent += 500
            if failed := slow.begin("publish_numbers", topic="answers", qos=1, first=0, count=100).exception(PATIENCE_S):
                break
        self.assertIsInstance(failed, Failure, f"{sent} messages wait")
        self.assertEqual(failed.kind, "other", failed)
        self.assertIn("receive messages first", failed.text)
        self.assertEqual([int(payload) for payload in slow.payloads(sent)], list(range(sent)))
        slow.publish("answers", b"", 1)

    def test_what_a_close_overtakes_ends_as_closed(self):
        self.broker.kill()
        for scheme in self.main:
            # Most of them have no place in the queue yet.
            client = self.client(scheme, offline=True, more={"drain_timeout_ms": "100", "max_queued_messages": "50"})
            publishing = [client.begin("publish", topic="t", payload="", qos=n % 3) for n in range(200)]
            client.do("close")
            for future in publishing:
                error = future.exception(PATIENCE_S)
                self.assertEqual(error and error.kind, "closed", error)

    def test_a_client_that_is_closed_while_messages_arrive(self):
        # Which take a while to copy out of the library's memory.
        pairs = [["name", str(n)] for n in range(200)]
        for scheme in self.main:
            sender = self.client(scheme)
            for _ in range(5):
                clients = [self.client(scheme) for _ in range(5)]
                for client in clients:
                    client.do("subscribe", filter="t", qos=0)
                sending = [sender.begin("publish", topic="t", payload="", qos=0, user_properties=pairs) for _ in range(100)]
                for client in clients:
                    client.receive(1)
                closing = [client.begin("close") for client in clients]
                for future in (*closing, *sending):
                    future.result(PATIENCE_S)

    def test_a_message_is_acknowledged_by_hand(self):
        options = {"client_id": "c", "session_expiry_s": 600}
        client = self.client(self.main[0], acknowledge_by_hand=True, **options)
        client.do("subscribe", filter="t", qos=1)
        client.do("publish_numbers", topic="t", qos=1, first=1, count=2)
        client.receive(2)
        client.do("acknowledge", message=0)
        client.do("close")
        [again] = self.client(self.main[0], resume=True, **options).receive(1)
        self.assertEqual((again["payload"], again["dup"]), (b"2", True))
