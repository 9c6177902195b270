"""Eclipse Paho's client for tests in which the broker goes away."""

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


class Client(paho.Client):
    """Paho 2.2 notes before each attempt to reconnect what is to be sent again, and of a message that has had PUBREC
    only once that it is PUBREL: if that attempt is refused, the next one publishes the message again (test_paho.py).
    On a slow machine the broker does not listen yet when the first attempt comes."""

    def _messages_reconnect_reset_out(self):
        waiting = paho.mqtt_ms_wait_for_pubcomp, paho.mqtt_ms_resend_pubrel
        with self._out_message_mutex:
            released = [message for message in self._out_messages.values() if message.state in waiting]
            super()._messages_reconnect_reset_out()
            for message in released:
                message.state = paho.mqtt_ms_resend_pubrel


def lasting_client(name, port, client=Client):
    """A client whose session outlives its connections."""
    client = client(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
    client.reconnect_delay_set(1, 1)
    client.max_queued_messages_set(0)
    client.max_inflight_messages_set(100)
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", port, clean_start=False, properties=properties)
    return client
