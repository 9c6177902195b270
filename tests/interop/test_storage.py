"""Storage that fails: a disk that is full (a small file system of its own), syncs that fail, and syncs that do not
return (storage/faults.c). What clients of every protocol see meanwhile, that the broker says why, that it goes on
without a restart, and that what was acknowledged survives kill -9 while what was refused on arrival never arrives."""

import errno
import http.client
import itertools
import pathlib
import socket
import struct
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from broker import PATIENCE_S, Broker, eventually

SETTINGS = "[storage]\nstall_timeout_s = 3\n[sys]\ninterval_s = 1\n"
# More than a log that was copied back has room for.
LARGE = b"x" * 100_000
LARGEST = 50
REFUSED, UNAVAILABLE = 0x83, 0x88
CONNACK, PUBLISH, PUBACK, PUBREC, SUBACK, PINGREQ = 0x20, 0x30, 0x40, 0x50, 0x90, 0xC0


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def packet(first: int, body: bytes) -> bytes:
    length, rest = bytearray(), len(body)
    while True:
        rest, digit = rest >> 7, rest & 0x7F
        length.append(digit | (0x80 if rest else 0))
        if not rest:
            return bytes([first]) + bytes(length) + body


class Client:
    """MQTT by hand: which packet comes when is what is tested."""

    def __init__(self, test, port, name, version=5, expiry_s=0):
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        test.addCleanup(self.socket.close)
        self.input = self.socket.makefile("rb")
        test.addCleanup(self.input.close)
        properties = b"\x05\x11" + struct.pack(">I", expiry_s) if version == 5 else b""
        flags = 0 if expiry_s else 2
        self.send(0x10, text("MQTT") + bytes([version, flags, 0, 0]) + properties + text(name))
        self.code = self.expect(CONNACK)[1]
        self.ids = itertools.count(1)

    def send(self, first, body):
        self.socket.sendall(packet(first, body))

    def read(self):
        """The next packet's first byte and body; None at the end of the connection."""
        try:
            first = self.input.read(1)
            if not first:
                return None
            length = shift = 0
            while True:
                digit = self.input.read(1)[0]
                length |= (digit & 0x7F) << shift
                shift += 7
                if not digit & 0x80:
                    return first[0], self.input.read(length)
        except ConnectionResetError:
            return None

    def expect(self, kind):
        found = self.read()
        assert found and found[0] & 0xF0 == kind, f"{kind:#x} expected, not {found}"
        return found[1]

    def publish(self, topic, payload, qos, retain=False):
        number = next(self.ids)
        identifier = struct.pack(">H", number) if qos else b""
        properties = b"\0" if self.version == 5 else b""
        self.send(PUBLISH | qos << 1 | retain, text(topic) + identifier + properties + payload)

    def answer(self, topic, payload, qos=1, retain=False):
        """The reason code of the answer to a publication."""
        self.publish(topic, payload, qos, retain)
        body = self.expect(PUBACK if qos == 1 else PUBREC)
        return body[2] if len(body) > 2 else 0

    def subscribe(self, topic, qos):
        properties = b"\0" if self.version == 5 else b""
        self.send(0x82, struct.pack(">H", next(self.ids)) + properties + text(topic) + bytes([qos]))
        return self.expect(SUBACK)[-1]

    def message(self):
        """Topic and payload of the next message, which is acknowledged."""
        first, body = self.read()
        assert first & 0xF0 == PUBLISH, hex(first)
        length = struct.unpack(">H", body[:2])[0]
        topic, rest = body[2:2 + length].decode(), body[2 + length:]
        if first & 0x06:
            self.send(PUBACK, rest[:2])
            rest = rest[2:]
        # Properties of these messages are short.
        return topic, rest[1 + rest[0]:] if self.version == 5 else rest


class FullDisk(Broker):
    """A broker whose data is on a file system of 16 MB, in a mount namespace that lives as long as this object."""

    def __init__(self, settings):
        outside = tempfile.TemporaryDirectory()
        self.outside = outside
        script = 'mount -t tmpfs -o size=16m tmpfs "$0" && echo mounted && exec cat'
        command = ["unshare", "--mount", "sh", "-c", script, outside.name]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "mounted\n":
            self.release()
            raise unittest.SkipTest("no mount namespaces here, which need root")
        super().__init__(settings, prefix=("nsenter", "--mount", "--target", str(self.holder.pid)))

    def start(self):
        self.store = pathlib.Path(self.outside.name)
        self.ballast = pathlib.Path(f"/proc/{self.holder.pid}/root{self.store}/ballast")
        super().start()

    def fail(self):
        with self.ballast.open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError as error:
                assert error.errno == errno.ENOSPC, error

    def repair(self):
        self.ballast.unlink()

    def release(self):
        self.holder.stdin.close()
        self.holder.wait(PATIENCE_S)
        self.holder.stdout.close()
        self.outside.cleanup()

    def close(self):
        super().close()
        self.release()


class FaultyDisk(Broker):
    """A broker whose syncs do what `fault` says once the disk fails."""

    def __init__(self, settings, fault):
        self.fault = fault
        self.work = tempfile.TemporaryDirectory()
        shim, self.faults = (pathlib.Path(self.work.name) / name for name in ("faults.so", "faults"))
        source = pathlib.Path(__file__).parent / "storage" / "faults.c"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(shim), str(source), "-ldl"], check=True)
        self.repair()
        super().__init__(settings, prefix=("env", f"LD_PRELOAD={shim}", f"FAULTS={self.faults}"))

    def fail(self):
        self.faults.write_text(self.fault)

    def repair(self):
        self.faults.write_text("none")

    def close(self):
        self.repair()
        super().close()
        self.work.cleanup()


class Storage(unittest.TestCase):
    def test_a_full_disk(self):
        self.play(FullDisk(SETTINGS))

    def test_syncs_that_fail(self):
        self.play(FaultyDisk(SETTINGS, "error"))

    def test_syncs_that_do_not_return(self):
        self.play(FaultyDisk(SETTINGS, "wait"))

    def play(self, broker):
        self.addCleanup(broker.close)
        self.broker = broker
        keeper = self.client("keeper", expiry_s=3600)
        self.assertEqual(keeper.subscribe("#", 1), 1)
        keeper.socket.shutdown(socket.SHUT_RDWR)
        watcher = self.client("watcher")
        watcher.subscribe("live", 0)
        publisher = self.client("publisher")
        old = self.client("old", version=4)
        device = self.datagrams("mqtt_sn")
        self.assertEqual(self.mqtt_sn_connect(device, b"sn"), 0)
        self.assertEqual(publisher.answer("kept", b"before"), 0)
        broker.fail()
        self.until_it_stalls(publisher)
        self.what_clients_see(publisher, old, watcher)
        self.assertEqual(self.mqtt_sn_publish(device, b"refused, MQTT-SN"), 1, "congestion")
        self.assertEqual(self.mqtt_sn_connect(self.datagrams("mqtt_sn"), b"new"), 1, "its session would be stored")
        self.what_the_broker_says()
        broker.repair()
        eventually("recovery", lambda: self.ready()[0] == 200)
        self.assertEqual(publisher.answer("kept", b"after"), 0)
        self.assertEqual(self.client("old", version=4).answer("kept", b"after, 3.1.1"), 0)
        eventually("no failure in $SYS", lambda: self.sys_failure() is None)
        broker.kill()
        broker.start()
        self.what_arrives(self.client("keeper", expiry_s=3600))

    def client(self, *name, **more) -> Client:
        return Client(self, self.broker.ports["mqtt"], *name, **more)

    def until_it_stalls(self, publisher):
        """Publishes until the disk has no room; what is acknowledged until then has to be there."""
        self.acknowledged = {b"before", b"after", b"after, 3.1.1"}
        for number in range(LARGEST):
            payload = LARGE + str(number).encode()
            code = publisher.answer("kept", payload)
            if code:
                self.assertEqual(code, REFUSED)
                return
            self.acknowledged.add(payload)
        self.fail("the disk does not fail")

    def what_clients_see(self, publisher, old, watcher):
        self.assertEqual(publisher.answer("kept", b"refused, QoS 1"), REFUSED)
        self.assertEqual(publisher.answer("kept", b"refused, QoS 2", qos=2), REFUSED)
        self.assertEqual(publisher.answer("retained", b"refused, retained", retain=True), REFUSED)
        publisher.publish("live", b"QoS 0", 0)
        self.assertEqual(watcher.message(), ("live", b"QoS 0"))
        old.publish("kept", b"refused, 3.1.1", 1)
        self.assertIsNone(old.read(), "a client of 3.1.1 is disconnected")
        self.assertEqual(self.client("durable", expiry_s=60).code, UNAVAILABLE)
        self.assertEqual(self.client("brief").code, 0)
        status, headers = self.http_publish(b"refused, HTTP")
        self.assertEqual(status, 503)
        self.assertGreater(int(headers["retry-after"]), 0)
        code, max_age = self.coap_put(b"refused, CoAP")
        self.assertEqual((code >> 5, code & 0x1F), (5, 3))
        self.assertGreater(max_age, 0)

    def what_the_broker_says(self):
        status, reason = self.ready()
        self.assertEqual(status, 503, reason)
        self.assertTrue(reason.startswith("storage: "), reason)
        eventually("a failure in $SYS", lambda: self.sys_failure() is not None)
        self.assertIn(b"storage is stalled", (self.broker.data / "log").read_bytes())
        with self.get("/metrics") as answer:
            self.assertIn(b"\nfulmar_storage_failing 1\n", answer.read())

    def what_arrives(self, keeper):
        keeper.publish("kept", b"last", 1)
        got = set()
        while b"last" not in got:
            found = keeper.read()
            self.assertIsNotNone(found, "the connection ends")
            if found[0] & 0xF0 == PUBLISH:
                length = struct.unpack(">H", found[1][:2])[0]
                rest = found[1][2 + length:]
                keeper.send(PUBACK, rest[:2])
                got.add(rest[3 + rest[2]:])
        missing = self.acknowledged - got
        self.assertFalse(missing, {payload[-20:] for payload in missing})
        self.assertEqual([payload for payload in got if payload.startswith(b"refused")], [])

    def get(self, path):
        return urllib.request.urlopen(f"http://127.0.0.1:{self.broker.ports['http']}{path}", timeout=PATIENCE_S)

    def ready(self):
        try:
            with self.get("/health/ready") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def sys_failure(self):
        client = self.client("sys")
        client.subscribe("$SYS/broker/storage/failure", 0)
        # What is retained comes before the answer to what is sent next.
        client.send(PINGREQ, b"")
        first, body = client.read()
        return body if first & 0xF0 == PUBLISH else None

    def http_publish(self, payload):
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.ports["http"], timeout=PATIENCE_S)
        self.addCleanup(connection.close)
        connection.request("POST", "/publish/kept", payload)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.headers

    def datagrams(self, kind):
        peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(peer.close)
        peer.settimeout(PATIENCE_S)
        peer.connect(("127.0.0.1", self.broker.ports[kind]))
        return peer

    def mqtt_sn_connect(self, peer, name):
        """The return code."""
        peer.send(bytes([6 + len(name), 0x04, 4, 1, 0, 60]) + name)
        answer = peer.recv(100)
        self.assertEqual(answer[:2], bytes([3, 0x05]), "CONNACK")
        return answer[2]

    def mqtt_sn_publish(self, peer, payload):
        """The return code."""
        # A short topic name, at QoS 1.
        peer.send(bytes([7 + len(payload), 0x0C, 0x22]) + b"sn" + bytes([0, 1]) + payload)
        answer = peer.recv(100)
        self.assertEqual(answer[1], 0x0D, "PUBACK")
        return answer[-1]

    def coap_put(self, payload):
        """Code and Max-Age of the answer."""
        peer = self.datagrams("coap")
        peer.send(b"\x40\x03\x12\x34" + b"\xb2ps" + b"\x04kept" + b"\xff" + payload)
        answer = peer.recv(1500)
        if answer[1] == 0:
            # A separate response follows.
            answer = peer.recv(1500)
        option, at, max_age = 0, 4 + (answer[0] & 0x0F), None
        while at < len(answer) and answer[at] != 0xFF:
            delta, length = answer[at] >> 4, answer[at] & 0x0F
            self.assertLess(max(delta - 1, length), 13, "options here are short")
            if delta == 13:
                at += 1
                delta += answer[at]
            option, at = option + delta, at + 1 + length
            if option == 14:
                max_age = int.from_bytes(answer[at - length:at], "big")
        return answer[1], max_age


if __name__ == "__main__":
    unittest.main()
