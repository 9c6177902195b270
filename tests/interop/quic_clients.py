"""Connects COUNT clients over QUIC, says `ready`, and stays as they are, without a word: aioquic sends nothing
to keep connections alive.

    quic_clients.py HOST PORT CA-FILE COUNT
"""

import asyncio
import contextlib
import sys

from aioquic.asyncio import connect
from aioquic.quic.configuration import QuicConfiguration

from test_clients import Stream, text


async def main(host, port, ca, count):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["mqtt"], idle_timeout=600)
    configuration.load_verify_locations(ca)
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number in range(count):
            dial = connect(host, port, configuration=configuration, create_protocol=Stream)
            client = await stack.enter_async_context(dial)
            body = text(b"MQTT") + bytes([4, 2, 0, 0]) + text(b"silent%d" % number)
            client.send(0, bytes([0x10, len(body)]) + body)
            await client.wait_for(0, bytes([0x20, 2, 0, 0]))
            clients.append(client)
        # Those that came first have been silent longest.
        for client in clients:
            await client.ping()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
