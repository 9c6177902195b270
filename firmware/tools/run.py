"""make firmware-run: the sensor in QEMU, a Fulmar broker for it on this machine, and the output of both.

    run.py FULMAR IMAGE [FEATURES]

The broker gets a data folder, a port and a key of its own, which are removed at the end (Ctrl-C). When the
device has published once and sleeps, a command is sent, which it receives at its next wake-up. FEATURES are
the image's: which keys it trusts, and whether it uses DHCP."""

import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading

import device

CLIENT = "sensor-1"
INTERVAL_S = 5


def broker(fulmar: str, folder: pathlib.Path, features: list[str]):
    """A broker with a key the device can pin: the process, its ports, that key or its authority's."""
    kind = ["--ed25519"] if "ed25519" in features else []
    issue = ["issue", "localhost", *kind, "--out", str(folder), "--dir", str(folder / "ca")]
    subprocess.run([fulmar, "cert", *issue], check=True, stdout=subprocess.DEVNULL)
    pinned = "ca/ca.pem" if "x509" in features else "localhost.pem"
    about = subprocess.run([fulmar, "cert", "show", str(folder / pinned), "--json"], check=True,
                           stdout=subprocess.PIPE)
    key = bytes.fromhex(json.loads(about.stdout)["public_key"])
    config = folder / "fulmar.toml"
    config.write_text(f"""[listeners]
mqtt = ["127.0.0.1:0"]
mqtts = []
ws = []
https = []
http = []
coap = []
coaps = []
quic = ["127.0.0.1:0"]
[tls]
cert = "{folder}/localhost.pem"
key = "{folder}/localhost.key"
""")
    process = subprocess.Popen([fulmar, "serve", "--config", str(config), "--data", str(folder / "data")],
                               stdout=subprocess.PIPE, text=True)
    ready = process.stdout.readline()
    ports = {kind: int(address.rsplit(":", 1)[1])
             for kind, address in (word.split("=", 1) for word in ready.split()[1:])}
    if "quic" not in ports:
        sys.exit("the broker did not start")
    return process, ports, key


def shown(name: str, process, on_line=lambda line: None):
    """Prints a process's lines with its name, and passes each to `on_line`."""
    def lines():
        for line in process.stdout:
            print(f"{name:>7} | {line.rstrip()}", flush=True)
            on_line(line.rstrip())
    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    return thread


def main(fulmar: str, image: str, features="ed25519"):
    # make sends it to the whole group; the `finally` below ends the processes in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # A shell's background job would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes = []
    with tempfile.TemporaryDirectory(prefix="fulmar-firmware-") as name:
        folder = pathlib.Path(name)
        try:
            chosen = features.split(",")
            serve, ports, key = broker(fulmar, folder, chosen)
            processes.append(serve)
            url = f"mqtt://localhost:{ports['mqtt']}"
            piped = {"stdout": subprocess.PIPE, "text": True, "errors": "replace"}
            reader = subprocess.Popen([fulmar, "sub", url, "-t", "sensors/#", "-q", "1", "-v"], **piped)
            processes.append(reader)
            shown("broker", reader)
            settings = device.Settings(
                ports["quic"], key, client_id=CLIENT, interval_s=INTERVAL_S, authority="x509" in chosen,
                network=None if "dhcp" in chosen else device.FIXED_NETWORK)
            command = ["-q", "1", "-t", f"sensors/{CLIENT}/command", "-m"]
            print(f"The device boots, publishes over QUIC to the broker, port {ports['quic']}, and wakes every "
                  f"{INTERVAL_S} seconds.\nCtrl-C ends all. Send it a command:\n"
                  f"    {fulmar} pub {url} {' '.join(command)} 'led off'\n"
                  f"    {fulmar} pub {url} {' '.join(command)} 'every 10'", flush=True)
            asleep = threading.Event()

            def command_once(line: str):
                if line.startswith("stack peak") and not asleep.is_set():
                    asleep.set()
                    print(f"{'you':>7} | sent `led on`; delivered at the next wake-up", flush=True)
                    subprocess.run([fulmar, "pub", url, *command, "led on"], check=False)

            board = subprocess.Popen(device.command(pathlib.Path(image).resolve(), folder, settings),
                                     cwd=folder, stdin=subprocess.DEVNULL, **piped)
            processes.append(board)
            shown("device", board, command_once).join()
        except KeyboardInterrupt:
            pass
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(20)


if __name__ == "__main__":
    main(*sys.argv[1:])
