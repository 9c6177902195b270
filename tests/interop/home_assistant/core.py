"""Home Assistant's core with its MQTT integration and nothing else, as added in its pages: broker, port, user, password,
and the CA's certificate. Prints each state of an entity that changes as a line of JSON; `null` is one that was removed.

Run by the interpreter of its own environment: core.py FOLDER PORT CAFILE USER PASSWORD"""

import asyncio
import json
import pathlib
import sys

from homeassistant import bootstrap, loader
from homeassistant.config_entries import ConfigEntries, ConfigEntry
from homeassistant.const import EVENT_STATE_CHANGED
from homeassistant.core import HomeAssistant, callback
from homeassistant.setup import async_setup_component


@callback
def print_state(event):
    state = event.data["new_state"]
    known = state and {"state": state.state, **state.attributes}
    print(json.dumps([event.data["entity_id"], known], default=str), flush=True)


async def main(folder, port, cafile, user, password):
    pathlib.Path(folder, "configuration.yaml").touch()
    hass = HomeAssistant(folder)
    hass.config.skip_pip = True
    loader.async_setup(hass)
    hass.config_entries = ConfigEntries(hass, {})
    await bootstrap.async_load_base_functionality(hass)
    # What the integration depends on only for uploads in its pages.
    hass.config.components.update({"http", "file_upload"})
    await async_setup_component(hass, "homeassistant", {})
    hass.bus.async_listen(EVENT_STATE_CHANGED, print_state)
    data = {"broker": "localhost", "port": int(port), "username": user, "password": password, "discovery": True,
            "certificate": pathlib.Path(cafile).read_text(encoding="utf-8")}
    await hass.config_entries.async_add(
        ConfigEntry(version=1, minor_version=1, domain="mqtt", title="Fulmar", source="user", data=data))
    await hass.async_start()
    # Until it is killed.
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
