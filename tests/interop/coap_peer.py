"""aiocoap at the other end: `put URL FILE`, `get URL FILE`, `observe URL`, `serve PORT`; with FULMAR_COAP_KEY over DTLS,
with that key, which is meter-8's."""

import asyncio
import os
import pathlib
import sys

import aiocoap
from aiocoap import resource

KEY = os.environ.get("FULMAR_COAP_KEY")
SECRET = {"dtls": {"psk": {"ascii": KEY}, "client-identity": {"ascii": "meter-8"}}}


async def client_for(url):
    client = await aiocoap.Context.create_client_context()
    if KEY:
        client.client_credentials.load_from_dict({url: SECRET})
    return client


async def put(url, file):
    client = await client_for(url)
    message = aiocoap.Message(code=aiocoap.PUT, uri=url, payload=pathlib.Path(file).read_bytes())
    response = await client.request(message).response
    await client.shutdown()
    return 0 if response.code == aiocoap.CHANGED else 1


async def get(url, file):
    client = await client_for(url)
    response = await client.request(aiocoap.Message(code=aiocoap.GET, uri=url)).response
    pathlib.Path(file).write_bytes(response.payload)
    await client.shutdown()
    return 0 if response.code == aiocoap.CONTENT else 1


async def observe(url):
    client = await client_for(url)
    request = client.request(aiocoap.Message(code=aiocoap.GET, uri=url, observe=0))
    print((await request.response).payload.decode(), flush=True)
    async for notification in request.observation:
        print(notification.payload.decode(), flush=True)
    return 1


class Value(resource.ObservableResource):
    """A value that can be put and watched."""

    def __init__(self):
        super().__init__()
        self.value = b""

    async def render_get(self, request):
        return aiocoap.Message(payload=self.value)

    async def render_put(self, request):
        self.value = request.payload
        self.updated_state()
        return aiocoap.Message(code=aiocoap.CHANGED)


async def serve(port):
    site = resource.Site()
    site.add_resource(["ps", "a", "b"], Value())
    transports = ["tinydtls_server"] if KEY else None
    context = await aiocoap.Context.create_server_context(site, bind=("127.0.0.1", int(port)), transports=transports)
    if KEY:
        context.server_credentials.load_from_dict({":meter-8": SECRET})
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()


WORK = {"put": put, "get": get, "observe": observe, "serve": serve}
sys.exit(asyncio.run(WORK[sys.argv[1]](*sys.argv[2:])))
