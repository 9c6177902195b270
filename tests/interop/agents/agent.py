"""The agent of Python for client_scenarios.py, which describes what it reads and answers."""

import asyncio
import base64
import json
import sys
import threading

import fulmar_client

INVALID, CLOSED = -1, -3
PROPERTIES = ("content_type", "response_topic", "correlation_data", "expiry_s", "user_properties")


def shown(message):
    """A received message as JSON has it, without the properties it does not have."""
    found = {name: getattr(message, name) for name in ("topic", "qos", "retain", "dup")}
    found["payload"] = base64.b64encode(message.payload).decode()
    properties = {name: getattr(message, name) for name in PROPERTIES if getattr(message, name) not in (None, ())}
    if "correlation_data" in properties:
        properties["correlation_data"] = base64.b64encode(message.correlation_data).decode()
    return found | properties


def failure(error):
    kind, reason = "other", getattr(error, "reason", -1)
    if isinstance(error, fulmar_client.Refused):
        kind = "refused"
    elif isinstance(error, fulmar_client.Disconnected):
        kind = "closed" if reason is None else "disconnected"
    elif isinstance(error, fulmar_client.Error):
        kind = {INVALID: "invalid", CLOSED: "closed"}.get(error.code, kind)
    return {"kind": kind, "reason": -1 if reason is None else reason, "text": str(error)}


class Agent:
    def __init__(self):
        self.clients, self.last = {}, {}

    async def connect(self, client, url, options):
        options |= options.pop("more", {})
        if will := options.pop("will", None):
            options |= {f"will_{name}": value for name, value in will.items()} | {"will_payload": base64.b64decode(will["payload"])}
        if options.pop("resume", False):
            options["clean_start"] = False
        made = fulmar_client.Client(url, **options)
        await made.__aenter__()
        self.clients[client] = made

    async def publish(self, client, topic, payload, qos=0, retain=False, **properties):
        if "correlation_data" in properties:
            properties["correlation_data"] = base64.b64decode(properties["correlation_data"])
        await self.clients[client].publish(topic, base64.b64decode(payload), qos, retain, **properties)

    async def publish_numbers(self, client, topic, qos, first, count):
        # Tasks begin in this order.
        await asyncio.gather(*(self.clients[client].publish(topic, str(n), qos) for n in range(first, first + count)))

    async def subscribe(self, client, filter, qos):
        return await self.clients[client].subscribe(filter, qos)

    async def unsubscribe(self, client, filter):
        await self.clients[client].unsubscribe(filter)

    async def receive(self, client, count):
        self.last[client] = messages = []
        async for message in self.clients[client].messages():
            messages.append(message)
            if len(messages) == count:
                return [shown(message) for message in messages]
        raise fulmar_client.Disconnected("the client is closed")

    async def acknowledge(self, client, message):
        self.clients[client].acknowledge(self.last[client][message])

    async def network_changed(self, client):
        self.clients[client].network_changed()

    async def statistics(self, client):
        path = await self.clients[client].path()
        return {"transport": path.transport, "migrations": path.migrations, "rtt_us": path.rtt_ms * 1000}

    async def close(self, client):
        if client in self.clients:
            await self.clients[client].__aexit__()

    async def answer(self, id, do, **arguments):
        try:
            answer = {"result": await getattr(self, do)(**arguments)}
        except Exception as error:
            answer = {"error": failure(error)}
        print(json.dumps({"id": id, **answer}), flush=True)


async def main():
    agent, loop, lines = Agent(), asyncio.get_running_loop(), asyncio.Queue()

    def read():
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    tasks = []
    while (line := await lines.get()) is not None:
        tasks.append(asyncio.ensure_future(agent.answer(**json.loads(line))))
    await asyncio.gather(*tasks)


asyncio.run(main())
