"""What strangers may ask of the HTTP endpoint and the operator's port, by sockets: logins that are given up, half
requests, and devices' messages in other people's names."""

import json
import pathlib
import socket
import time

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import test_platform
from api import ROLES
from broker import eventually

LOGIN = json.dumps({"user": "nobody", "password": "battery staple"}).encode()


class Strangers(test_platform.Platform):
    # Only the helpers are wanted.
    test_a_van_publishes_frames_and_only_its_twin_hears_of_them = None
    test_who_may_less_than_before_hears_no_more = None
    test_commands_and_the_names_of_devices_are_their_owners = None
    test_a_reader_does_not_become_the_receiver_of_another_user = None

    def dial(self, kind):
        sock = socket.create_connection(("127.0.0.1", self.broker.ports[kind]), 10)
        self.addCleanup(sock.close)
        return self.tls.wrap_socket(sock, server_hostname="localhost") if kind == "https" else sock

    def threads(self):
        return len(list(pathlib.Path(f"/proc/{self.broker.process.pid}/task").iterdir()))

    def test_logins_that_are_given_up_stop_hashing(self):
        self.log_in("north-office")
        head = b"POST /api/v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        waiting = [self.dial("https") for _ in range(150)]
        before, most = self.threads(), 0
        # Of users that exist: other names cost no hash.
        names = [f"{twin}-{role}".encode() for twin in ("north", "south") for role in ROLES]
        for number, sock in enumerate(waiting):
            login = LOGIN.replace(b"nobody", names[number % len(names)])
            sock.sendall(head + b"Content-Length: %d\r\n\r\n" % len(login) + login)
        # In the order in which they have their turn, each when it may have begun.
        for sock in waiting:
            sock.shutdown(socket.SHUT_RDWR)
            time.sleep(0.01)
            most = max(most, self.threads())
        # Two that hash and a few others. The runtime itself would start 16.
        self.assertLess(most, before + 8, "threads at a time")
        self.log_in("north-office")

    def test_half_requests_leave_room_for_health(self):
        for half in (b"", b"GET /health/live HTTP/1.1\r\n", b"POST /publish/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nx"):
            waiting = [self.dial("http") for _ in range(300)]
            for sock in waiting:
                try:
                    sock.sendall(half)
                except OSError:
                    pass  # It has made room already.
            sock = self.dial("http")
            sock.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            sock.settimeout(30)
            self.assertIn(b"200 OK", sock.recv(1000), half)
            for sock in waiting:
                sock.close()

    def test_frames_are_their_publishers(self):
        admin, device, office = [self.log_in(f"north-{role}") for role in ("admin", "device", "office")]
        self.call("POST", "/api/v1/north/meter", {"id": "m9", "address": "SEN-33225549-68-07"}, admin)
        self.call("PUT", "/api/v1/north/instance/van-9", {"kind": "van"}, device)
        frame = {"hex": test_platform.FRAME.replace("44552233", "49552233"), "at": "2026-11-21T10:00:00Z", "mode": "T1"}
        forged = Properties(PacketTypes.PUBLISH)
        forged.UserProperty = ("fulmar-publisher", "north-device:00")
        client = self.client("north-office", office)
        client.publish("fulmar/north/receiver/van-9/frame", json.dumps(frame), qos=1, properties=forged)
        path = "/api/v1/north/reading?meter=m9"
        eventually("the reading", lambda: self.call("GET", path, token=admin)["items"])
        (stored,) = self.call("GET", path, token=admin)["items"]
        self.assertEqual((stored["reader"], stored["device"]), ("north-office", "van-9"))
