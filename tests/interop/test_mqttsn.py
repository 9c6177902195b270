"""MQTT-SN 1.2 with two clients we did not write (mqtt-sn-12, and mqttsn, which comes from Eclipse's RSMB): they
register, publish, subscribe, sleep and leave wills, also over a link that loses a tenth of the datagrams each
way, and what they publish at a gateway arrives upstream. What neither can say is said by hand."""

import contextlib
import io
import logging
import os
import pathlib
import select
import socket
import struct
import sys
import time
import unittest
import urllib.request

import mqttsn.client as rsmb
import paho.mqtt.client as paho
from mqttsn12.MqttSnConstants import MqttSnConstants
from mqttsn12.client.MqttSnClient import MqttSnClient, MqttSnListener
from mqttsn12.client.MqttSnClientException import MqttSnClientException
from mqttsn12.packets import PingReqPacket, PublishPacket

from broker import Broker, eventually
from pages import Typist, lines
from relay import Relay

READINGS = int(os.environ.get("FULMAR_MQTTSN_READINGS", "40"))
PREDEFINED = '[[mqtt_sn.predefined]]\nid = 7\ntopic = "meters/7/temp"\n'
# Faster than a device would, so that a lost datagram costs the test a second.
QUICK = "[mqtt_sn]\nretry_s = 1\n"

logging.getLogger("mqttsn12").setLevel(logging.CRITICAL)


class Inbox(MqttSnListener):
    def __init__(self):
        self.messages = []

    def message_arrived(self, msg):
        self.messages.append((msg.get_topic_name() or msg.get_topic_id(), bytes(msg.get_payload())))


class Device(MqttSnClient):
    """mqtt-sn-12's client, which otherwise waits for ever for what is lost (it sets a time and takes it back), and
    acknowledges no message, as it compares the quality of service with a flag."""

    def receive_packet(self, blocking):
        if blocking and not select.select([self.datagram_socket], [], [], self.timeout)[0]:
            raise MqttSnClientException("nothing came in time")
        data = super().receive_packet(blocking)
        # Commands here are short.
        if data and data[1] == MqttSnConstants.TYPE_PUBLISH and data[2] & 0x60 == MqttSnConstants.FLAG_QOS_1:
            publish = PublishPacket()
            publish.decode(data)
            self.send_puback(publish, MqttSnConstants.ACCEPTED)
        return data


class Site(unittest.TestCase):
    def site(self, settings=QUICK + PREDEFINED, **named) -> Broker:
        broker = Broker(settings, **named)
        self.addCleanup(broker.close)
        return broker

    def setUp(self):
        self.broker = self.site()

    def mqtt(self, broker=None, topic="#"):
        """An MQTT client, and what it hears."""
        heard = []
        client = paho.Client(paho.CallbackAPIVersion.VERSION2)
        client.on_message = lambda _client, _data, message: heard.append((message.topic, message.payload))
        ready = []
        client.on_subscribe = lambda *_: ready.append(True)
        client.connect("127.0.0.1", (broker or self.broker).ports["mqtt"])
        client.subscribe(topic, qos=2)
        client.loop_start()
        self.addCleanup(client.loop_stop)
        self.addCleanup(client.disconnect)
        eventually("the subscription", lambda: ready)
        return client, heard

    def device(self, name: str, port=None, clean=True, keep_alive=60, timeout=10, will=None) -> Device:
        """mqtt-sn-12's client, connected."""
        client = Device()
        self.addCleanup(client.close)
        client.set_client_id(name)
        client.set_clean_session(clean)
        client.set_keep_alive(keep_alive)
        client.set_timeout(timeout)
        if will:
            client.set_will(*will)
        client.open("127.0.0.1", port or self.broker.ports["mqtt_sn"])
        client.send_connect()
        return client

    def raw(self) -> socket.socket:
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.addCleanup(one.close)
        one.connect(("127.0.0.1", self.broker.ports["mqtt_sn"]))
        one.settimeout(10)
        return one

    def polled(self, what: str, device: Device, done):
        def step():
            device.polling()
            return done()

        eventually(what, step)

    def metric(self, name: str) -> float:
        url = f"http://127.0.0.1:{self.broker.ports['http']}/metrics"
        with urllib.request.urlopen(url, timeout=10) as page:
            lines = page.read().decode().splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"fulmar_{name} "))


class MqttSn12(Site):
    def test_publishes_at_every_quality_of_service(self):
        _, heard = self.mqtt()
        device = self.device("meter-7")
        for qos in (0, 1, 2):
            device.send_publish(f"meters/7/qos{qos}", b"at %d" % qos, qos)
            device.send_publish("hi", b"short at %d" % qos, qos)
            device.send_publish_predefined(7, b"predefined at %d" % qos, qos)
        long = bytes(1000)
        device.send_publish("meters/7/long", long, 1)
        device.send_disconnect()
        stranger = Device()
        self.addCleanup(stranger.close)
        stranger.open("127.0.0.1", self.broker.ports["mqtt_sn"])
        stranger.send_publish_predefined(7, b"without a session", -1)
        wanted = {("meters/7/long", long), ("meters/7/temp", b"without a session")}
        for qos in (0, 1, 2):
            wanted |= {(f"meters/7/qos{qos}", b"at %d" % qos), ("hi", b"short at %d" % qos)}
            wanted.add(("meters/7/temp", b"predefined at %d" % qos))
        eventually("all messages", lambda: set(heard) >= wanted)
        self.assertEqual(len(heard), len(wanted), "none came twice")

    def test_hears_commands_on_topics_it_never_registered(self):
        mqtt, _ = self.mqtt()
        device, inbox = self.device("valve"), Inbox()
        device.send_subscribe("command/+/set", 1, inbox)
        for number in range(3):
            mqtt.publish(f"command/{number}/set", b"open", qos=1)
        wanted = {(f"command/{number}/set", b"open") for number in range(3)}
        self.polled("the commands", device, lambda: set(inbox.messages) >= wanted)
        exact = Inbox()
        device.send_subscribe("alarm", 0, exact)
        mqtt.publish("alarm", b"fire", qos=1)
        self.polled("the alarm", device, lambda: exact.messages == [("alarm", b"fire")])
        predefined = Inbox()
        device.send_subscribe_predefined(7, 1, predefined)
        mqtt.publish("meters/7/temp", b"20", qos=1)
        self.polled("the predefined topic", device, lambda: predefined.messages == [(7, b"20")])
        device.send_unsubscribe("alarm")

    def test_sleeps_and_wakes_up_for_what_came_meanwhile(self):
        mqtt, _ = self.mqtt()
        device, inbox = self.device("sleeper"), Inbox()
        device.send_subscribe("command/#", 1, inbox)
        device.send_disconnect(300)
        for number in range(30):
            mqtt.publish("command/sleeper", b"%d" % number, qos=1).wait_for_publish(10)
        time.sleep(0.2)
        device.polling()
        self.assertEqual(inbox.messages, [], "it sleeps")
        ping = PingReqPacket()
        ping.client_id = "sleeper"
        device.send_packet(ping.encode())
        self.polled("what waited", device, lambda: len(set(inbox.messages)) >= 30)
        # What is acknowledged late comes again.
        once = list(dict.fromkeys(inbox.messages))
        self.assertEqual(once, [("command/sleeper", b"%d" % number) for number in range(30)])

    def test_its_will_is_published_when_it_is_silent(self):
        _, heard = self.mqtt(topic="wills/#")
        left = self.device("leaver", keep_alive=4, will=("wills/leaver", "gone", 1, False))
        left.send_disconnect()
        changed = self.device("changer", keep_alive=6, will=("wills/changer", "old", 1, False))
        changed.send_will_topic_update("wills/new")
        changed.send_will_message_update("new")
        self.device("silent", keep_alive=1, will=("wills/silent", "gone", 1, False))
        eventually("both wills", lambda: len(heard) >= 2)
        self.assertEqual(set(heard), {("wills/silent", b"gone"), ("wills/new", b"new")})

    def test_nothing_acknowledged_is_lost_on_a_lossy_link(self):
        mqtt, heard = self.mqtt(topic="readings")
        relay = Relay(self.broker.ports["mqtt_sn"], loss=0.1, seed=7)
        self.addCleanup(relay.close)

        def patiently(act):
            """This client repeats nothing by itself."""
            while True:
                try:
                    return act()
                except MqttSnClientException:
                    continue

        device = Device()
        self.addCleanup(device.close)
        device.set_client_id("lossy")
        device.set_timeout(1)
        device.open("127.0.0.1", relay.port)
        patiently(device.send_connect)
        topic = patiently(lambda: device.send_register("readings"))
        inbox = Inbox()
        patiently(lambda: device.send_subscribe("command/+", 1, inbox))
        for number in range(READINGS):
            patiently(lambda: device.send_publish_with_id(topic, 0, b"%d" % number, 1))
        sent = [b"%d" % number for number in range(READINGS)]
        eventually("all readings", lambda: len({payload for _, payload in heard}) >= READINGS)
        self.assertEqual(sorted({payload for _, payload in heard}), sorted(sent))
        for number in range(10):
            mqtt.publish("command/lossy", b"%d" % number, qos=1)
        self.polled("the commands", device, lambda: len({what for _, what in inbox.messages}) >= 10)
        self.assertGreater(sum(relay.lost.values()), 0)

    def test_another_address_takes_the_session_over(self):
        _, heard = self.mqtt()
        first = self.device("one-of-them", clean=False)
        first.send_subscribe("command/one", 1, Inbox())
        second = self.device("one-of-them", clean=False)
        self.assertEqual(first.wait_for(True, 0x18), bytes([2, 0x18]), "the first is told")
        second.send_publish("here", b"second", 1)
        eventually("the second's message", lambda: ("here", b"second") in heard)
        self.assertEqual(self.metric("mqtt_sn_clients"), 1)


class Rsmb(Site):
    def test_registers_publishes_and_hears(self):
        mqtt, heard = self.mqtt(topic="rsmb/#")

        class Callback(rsmb.Callback):
            def __init__(self):
                super().__init__()
                self.payloads, self.done = [], set()

            def message_arrived(self, topic_name, payload, qos, retained, msgid):
                self.payloads.append((qos, payload))
                return True

            def published(self, msgid):
                self.done.add(msgid)

        device = rsmb.Client(b"rsmb-1", host="127.0.0.1", port=self.broker.ports["mqtt_sn"])
        callback = Callback()
        device.register_callback(callback)
        device.connect()
        topic = device.register(b"rsmb/up")
        with contextlib.redirect_stdout(io.StringIO()):
            sent = {device.publish(topic, f"at {qos}", qos=qos) for qos in (1, 2)}
        eventually("acknowledgements", lambda: callback.done == sent)
        eventually("the messages", lambda: sorted(heard) == [("rsmb/up", b"at 1"), ("rsmb/up", b"at 2")])
        self.assertEqual(device.subscribe("down", qos=2)[0], 0)
        for qos in (1, 2):
            mqtt.publish("down", b"at %d" % qos, qos=qos)
        eventually("commands", lambda: callback.payloads == [(1, b"at 1"), (2, b"at 2")])
        # Its DISCONNECT and PINGREQ cannot be written: they are too short for it.


class Page(Typist):
    def test_a_publication_as_the_page_types_it(self):
        self.words |= {"mqtt_sn_pub": pathlib.Path(sys.executable).with_name("mqtt_sn_pub"),
                       "-p 1884": f"-p {self.ports['mqtt_sn']}"}
        subscriber = self.leave("fulmar sub mqtt://localhost -t 'plant/#' -v")
        [publish] = lines("docs/mqtt-sn.md", "mqtt_sn_pub ")

        def arrived():
            self.type(publish)
            return "plant/temp 21.5" in subscriber.text()

        eventually("the message", arrived)


class ByHand(Site):
    """What those clients cannot say."""

    def test_a_gateway_is_found_also_behind_a_forwarder(self):
        one = self.raw()
        one.send(bytes([3, 0x01, 0]))
        self.assertEqual(one.recv(100), bytes([3, 0x02, 1]))
        wrapper = bytes([5, 0xFE, 0, 0xAA, 0xBB])
        for node in (b"\xaa\xbb", b"\xcc\xdd"):
            wrapper = bytes([5, 0xFE, 0]) + node
            one.send(wrapper + bytes([8, 0x04, 4, 1, 0, 60]) + node[:1].hex().encode())
            self.assertEqual(one.recv(100), wrapper + bytes([3, 0x05, 0]))
        eventually("both clients", lambda: self.metric("mqtt_sn_clients") == 2)

    def test_who_has_no_session_is_told(self):
        one = self.raw()
        for message in (bytes([2, 0x16]), bytes([4, 0x16, 0x61, 0x62]), bytes([6, 0x12, 0x20, 0, 1, 0x23])):
            one.send(message)
            self.assertEqual(one.recv(100), bytes([2, 0x18]))
        one.send(bytes([7, 0x04, 4, 1, 0, 60, 0x61]))
        self.assertEqual(one.recv(100), bytes([3, 0x05, 0]))
        one.send(bytes([8, 0x0C, 0x20, 0, 99, 0, 1, 0x31]))
        self.assertEqual(one.recv(100), struct.pack(">BBHHB", 7, 0x0D, 99, 1, 2), "an unknown topic identifier")
        one.send(b"no MQTT-SN at all")
        one.send(bytes([2, 0x16]))
        self.assertEqual(one.recv(100), bytes([2, 0x17]), "its session outlives rubbish")
        # It is counted after the answer.
        eventually("a malformed message", lambda: self.metric("mqtt_sn_malformed_total") == 1)


class Access(Site):
    def setUp(self):
        rules = '[[acl.rules]]\nallow = false\nuser = "meters"\naction = "publish"\ntopic = "command/#"\n'
        self.broker = self.site('[mqtt_sn]\nuser = "meters"\n' + rules)

    def test_its_clients_are_the_user_they_are_said_to_be(self):
        device = self.device("meter-7")
        device.send_publish("meters/7", b"1", 1)
        with self.assertRaisesRegex(MqttSnClientException, "not supported"):
            device.send_publish("command/7", b"1", 1)


class Gateway(Site):
    def setUp(self):
        self.upstream = self.site("")
        self.broker = self.site(f"""
{QUICK}
[upstream]
url = "quic://localhost:{self.upstream.ports["quic"]}"
fallback_port = {self.upstream.ports["mqtts"]}
ca_file = "{self.upstream.ca}"
name = "gw"
[[upstream.up]]
filter = "sensor/#"
to_prefix = "site/"
[[upstream.down]]
filter = "site/command/#"
from_prefix = "site/"
""")

    def test_readings_go_up_and_commands_come_down(self):
        mqtt, heard = self.mqtt(self.upstream, "site/sensor/#")
        device, inbox = self.device("radon-1"), Inbox()
        device.send_subscribe("command/+", 1, inbox)
        for number in range(20):
            device.send_publish("sensor/radon", b"%d" % number, 1 + number % 2)
        sent = [("site/sensor/radon", b"%d" % number) for number in range(20)]
        eventually("the readings upstream", lambda: len(heard) >= 20)
        self.assertEqual(heard, sent)

        def commanded():
            mqtt.publish("site/command/radon-1", b"measure", qos=1)
            device.polling()
            return ("command/radon-1", b"measure") in inbox.messages

        eventually("the command", commanded)


if __name__ == "__main__":
    unittest.main()
