"""Announces the sensors of Fulmar's platform to Home Assistant by MQTT discovery, and withdraws those that were removed.

Home Assistant then has an entity for each quantity, with unit and device class, which is unavailable while the newest
measurement is too old. docs/recipes.md has the set-up. Requires paho-mqtt 2."""

import argparse
import json
import pathlib
import re
import sys

import paho.mqtt.client as mqtt
from paho.mqtt.subscribeoptions import SubscribeOptions

# Home Assistant's names; a quantity that is not here has only the unit of its measurements.
DEVICE_CLASSES = {
    "battery": "battery", "co": "carbon_monoxide", "co2": "carbon_dioxide", "humidity": "humidity",
    "illuminance": "illuminance", "pressure": "pressure", "temperature": "temperature",
    "voc": "volatile_organic_compounds_parts",
}


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("twin", help="the platform's twin, such as rural")
    parser.add_argument("--host", default="localhost")
    parser.add_argument("--port", type=int, default=8883)
    parser.add_argument("--cafile", help="PEM file of trusted CAs (default: the system's)")
    parser.add_argument("--user", required=True)
    parser.add_argument("--password-file", required=True, type=pathlib.Path, help="its first line is the password")
    parser.add_argument("--prefix", default="homeassistant", help="Home Assistant's discovery prefix")
    parser.add_argument("--unavailable-after", type=int, default=3600, metavar="SECONDS",
                        help="age of the newest measurement at which an entity is unavailable")
    return parser.parse_args()


def escaped(name):
    """A name as a level of a discovery topic, where Home Assistant accepts only letters, digits, _ and -."""
    return re.sub(r"[^A-Za-z0-9-]", lambda found: f"_{ord(found[0]):02x}", name)


def discovery(topic, message, unavailable_after):
    """The payload that announces a sensor's quantity."""
    _, twin, _, device, quantity = topic.split("/")
    fresh = f"(now() - as_datetime(value_json.at)).total_seconds() < {unavailable_after}"
    payload = {
        "name": quantity.replace("_", " ").capitalize(),
        "unique_id": topic,
        "object_id": f"{device}_{quantity}",
        "state_topic": topic,
        # Empty messages, of sensors that are removed, are no JSON.
        "value_template": "{{ value_json.value if value_json is defined else none }}",
        "state_class": "measurement",
        # The retained measurement may be old when Home Assistant starts; later ones expire while it runs.
        "availability_topic": topic,
        "availability_template": "{{ 'online' if value_json is defined and " + fresh + " else 'offline' }}",
        "expire_after": unavailable_after,
        "device": {"identifiers": [f"fulmar/{twin}/{device}"], "name": device, "manufacturer": "Fulmar"},
    }
    if message["unit"]:
        payload["unit_of_measurement"] = message["unit"]
    if quantity in DEVICE_CLASSES:
        payload["device_class"] = DEVICE_CLASSES[quantity]
    if message.get("home"):
        payload["device"]["suggested_area"] = message["home"]
    return payload


class Announcer:
    """Announces what has a retained measurement; the broker's retained announcements are its memory."""

    def __init__(self, chosen):
        self.chosen = chosen
        # State topic: payload.
        self.announced = {}
        self.own = f"{chosen.prefix}/sensor/fulmar_{escaped(chosen.twin)}_"

    def config_topic(self, topic):
        _, _, _, device, quantity = topic.split("/")
        return f"{self.own}{escaped(device)}/{escaped(quantity)}/config"

    def on_connect(self, client, _data, _flags, code, _properties):
        if code.is_failure:
            sys.exit(f"The broker refused {self.chosen.user}: {code}")
        client.subscribe(f"fulmar/{self.chosen.twin}/value/+/+", qos=1)

    def on_subscribe(self, client, _data, mid, codes, _properties):
        if codes[0].is_failure:
            sys.exit(f"The broker refused a subscription ({codes[0]}): {self.chosen.user} needs an access rule for it")
        # Asked for second, so that measurements come first: an announcement without one is of a sensor that was removed.
        if mid != self.second:
            _, self.second = client.subscribe(f"{self.chosen.prefix}/sensor/+/+/config",
                                              options=SubscribeOptions(qos=1, noLocal=True))

    second = None

    def on_message(self, client, _data, message):
        topic = message.topic
        if topic.startswith("fulmar/"):
            payload = b""
            if message.payload:
                payload = json.dumps(discovery(topic, json.loads(message.payload), self.chosen.unavailable_after))
            self.announce(client, topic, payload)
        elif topic.startswith(self.own) and message.payload:
            state_topic = json.loads(message.payload)["state_topic"]
            if state_topic not in self.announced:
                self.announce(client, state_topic, b"")

    def announce(self, client, topic, payload):
        if self.announced.get(topic) == payload:
            return
        self.announced[topic] = payload
        client.publish(self.config_topic(topic), payload, qos=1, retain=True)
        print("announced" if payload else "withdrawn", topic, flush=True)


def main():
    chosen = options()
    announcer = Announcer(chosen)
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.username_pw_set(chosen.user, chosen.password_file.read_text(encoding="utf-8").split("\n", maxsplit=1)[0])
    client.tls_set(chosen.cafile)
    client.on_connect, client.on_subscribe, client.on_message = (
        announcer.on_connect, announcer.on_subscribe, announcer.on_message)
    client.connect(chosen.host, chosen.port)
    client.loop_forever()


if __name__ == "__main__":
    main()
