"""MQTT over QUIC, TLS, TCP and WebSocket for asyncio.

    async with fulmar_client.Client("quic://localhost") as client:
        await client.subscribe("plant/#", qos=1)
        await client.publish("plant/temperature", "21.5", qos=1)
        async for message in client.messages():
            print(message.topic, message.payload)

A client reconnects by itself, keeps what is queued meanwhile, and subscribes again if the server has lost the session.
"""

from ._client import Client, Disconnected, Message, Path, Refused
from ._library import Error

__all__ = ["Client", "Disconnected", "Error", "Message", "Path", "Refused"]
