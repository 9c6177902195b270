"""Writes the data folders that `test_old_data.py` opens, with the program of another day:

    FULMAR_BIN=OLD_PROGRAM METERS=10000 ../../target/interop-venv/bin/python old_data.py ARCHIVE.tar.xz

A server with meters, users of all kinds and sessions whose messages wait, and a gateway whose server was away. The passwords
and tokens in it are made for this, and are told in `told.json` beside the folders.
"""

import json
import os
import pathlib
import ssl
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import Broker, binary, eventually

PASSWORD = "correct horse"
STORED_PASSWORD = "battery staple"
FOR_EVER = 0xFFFFFFFF
SETTINGS = f"[limits]\nmax_session_expiry_s = {FOR_EVER}\n"
#: Nothing listens there: what the gateway has stays in its outbox.
AWAY = """
[upstream]
url = "mqtt://127.0.0.1:9"
name = "gw"
[[upstream.up]]
filter = "sensor/#"
"""
#: What no server needs to go on: certificates it makes anew, sockets, and files of one run.
LEFT_OUT = ("ca", "webtransport", "admin.sock", "quic.key", "log", "fulmar.toml")
WAITING = 5
QUEUED = 50


def run(broker: Broker, *words, said=PASSWORD) -> str:
    config = [] if words[0] == "ctl" else ["--config", str(broker.data / "fulmar.toml")]
    line = [binary(), *words, "--data", str(broker.data), *config]
    return subprocess.run(line, input=said + "\n", text=True, check=True, stdout=subprocess.PIPE).stdout


def connect(port: int, name: str, user=None, password=None) -> paho.Client:
    """A client whose session stays."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
    client.username_pw_set(user, password)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = FOR_EVER
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    client.loop_start()
    eventually(f"{name} to be connected", client.is_connected)
    return client


def sleep(port: int, name: str, topic: str, user=None, password=None):
    """Leaves a session with a subscription."""
    client, subscribed = connect(port, name, user, password), []
    client.on_subscribe = lambda *rest: subscribed.append(rest[3])
    client.subscribe(topic, 2)
    eventually("the subscription", lambda: subscribed)
    assert not subscribed[0][0].is_failure, subscribed
    client.disconnect()
    client.loop_stop()


def publish(client: paho.Client, topic: str, payloads, qos=1, retain=False):
    for payload in payloads:
        client.publish(topic, str(payload), qos, retain).wait_for_publish(60)


def post(broker: Broker, path: str, body, token: str):
    tls = ssl.create_default_context(cafile=broker.ca)
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    address = f"https://localhost:{broker.ports['https']}/api/v1{path}"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, context=tls) as answer:
        return json.loads(answer.read())


def add_users(broker: Broker) -> dict:
    run(broker, "twin", "add", "north")
    run(broker, "user", "add", "ann", "--admin")
    for role in ("admin", "reader"):
        run(broker, "user", "add", f"north-{role}", "--twin", "north", "--role", role)
    # The same name twice, with a password each: in the broker's store and on the platform.
    run(broker, "user", "add", "carl", "--twin", "north", "--role", "viewer")
    told = {"device": run(broker, "user", "token", "gw-1", "--twin", "north", "--role", "device").strip()}
    told["admin"] = run(broker, "user", "token", "north-admin").strip()
    run(broker, "ctl", "roles", "add", "sensors")
    for may in ("publish", "subscribe"):
        run(broker, "ctl", "roles", "allow", "sensors", may, "sensors/#")
    for name in ("bob", "carl", "banned"):
        run(broker, "ctl", "users", "add", name, said=STORED_PASSWORD)
        run(broker, "ctl", "users", "change", name, "--topic-roles", "sensors")
    run(broker, "ctl", "users", "add", "root", "--role", "administrator", said=STORED_PASSWORD)
    run(broker, "ctl", "users", "add", "gone", said=STORED_PASSWORD)
    run(broker, "ctl", "users", "remove", "gone")
    run(broker, "ctl", "clients", "ban", "--user", "banned", "--for", "3660d")
    file = broker.data / "api-token"
    run(broker, "ctl", "tokens", "add", "monitor", "--role", "viewer", "--file", str(file))
    told["monitor"] = file.read_text().strip()
    file.unlink()
    return told


def fill_server(broker: Broker, meters: int) -> dict:
    told = add_users(broker)

    def may_ask() -> bool:
        try:
            return bool(post(broker, "/north/meter", meter(0), told["admin"]))
        except urllib.error.HTTPError as error:
            assert error.code in (401, 429), error.read()
            return False

    def meter(number: int) -> dict:
        return {"id": f"m{number}", "address": f"KAM-{number:08}-16-1b", "medium": "water"}

    eventually("the token's account", may_ask, every_s=0.2)
    for first in range(1, meters, 500):
        block = [meter(number) for number in range(first, min(first + 500, meters))]
        post(broker, "/north/meter", {"items": block}, told["admin"])
    port = broker.ports["mqtt"]
    sleep(port, "gw-1", "fulmar/north/command/gw-1/#", "gw-1", told["device"])
    sleep(port, "bob", "sensors/#", "bob", STORED_PASSWORD)
    bob = connect(port, "bobs-sensor", "bob", STORED_PASSWORD)
    publish(bob, "sensors/a", range(WAITING), 1)
    publish(bob, "sensors/b", range(WAITING), 2)
    publish(bob, "sensors/kept", ["kept"], 1, retain=True)
    office = connect(port, "office", "north-admin", told["admin"])
    publish(office, "fulmar/north/command/gw-1/valve/open", range(WAITING))
    for client in (bob, office):
        client.disconnect()
        client.loop_stop()
    return told


def archive(target: pathlib.Path, folders: dict, told: dict):
    with tarfile.open(target, "w:xz") as tar, tempfile.TemporaryDirectory() as scratch:
        for name, folder in folders.items():
            for file in sorted(folder.iterdir()):
                if file.name not in LEFT_OUT:
                    tar.add(file, f"{name}/{file.name}")
        notes = pathlib.Path(scratch) / "told.json"
        notes.write_text(json.dumps(told, indent=2))
        tar.add(notes, "told.json")


def main(target: str):
    meters = int(os.environ.get("METERS", "300"))
    server, gateway = Broker(SETTINGS), Broker(SETTINGS + AWAY)
    try:
        told = fill_server(server, meters) | {"meters": meters}
        device = connect(gateway.ports["mqtt"], "device")
        publish(device, "sensor/a", range(QUEUED))
        device.disconnect()
        device.loop_stop()
        # The server is not asked to stop: what it has not put in order is part of what a newer one finds.
        server.kill()
        gateway.kill()
        archive(pathlib.Path(target), {"server": server.data, "gateway": gateway.data}, told)
    finally:
        server.close()
        gateway.close()


if __name__ == "__main__":
    main(sys.argv[1])
