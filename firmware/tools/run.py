"""make firmware-run: the sensor in QEMU, a Fulmar broker for it on this machine, and what both say.

    run.py FULMAR IMAGE

The broker gets a data folder, a port and an Ed25519 key of its own, all of which go when this ends
(Ctrl-C). A command is sent to the device while it sleeps; it hears it when it wakes."""

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


def broker(fulmar: str, folder: pathlib.Path):
    """A broker with a key the device can pin: the process, its QUIC port, that key."""
    ca = ["--dir", str(folder / "ca")]
    issue = ["issue", "localhost", "--ed25519", "--out", str(folder), *ca]
    subprocess.run([fulmar, "cert", *issue], check=True, stdout=subprocess.DEVNULL)
    about = subprocess.run([fulmar, "cert", "show", str(folder / "localhost.pem"), "--json"], check=True,
                           stdout=subprocess.PIPE)
    key = bytes.fromhex(json.loads(about.stdout)["public_key"])
    config = folder / "fulmar.toml"
    config.write_text(f"""[listeners]
mqtt = ["127.0.0.1:0"]
mqtts = []
ws = []
https = []
http = []
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


def shown(name: str, process):
    """Prints a process's lines, with its name."""
    def lines():
        for line in process.stdout:
            print(f"{name:>7} | {line.rstrip()}", flush=True)
    thread = threading.Thread(target=lines, daemon=True)
    thread.start()
    return thread


def main(fulmar: str, image: str):
    # make sends it to the whole group; the `finally` below ends the processes in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    processes = []
    with tempfile.TemporaryDirectory(prefix="fulmar-firmware-") as name:
        folder = pathlib.Path(name)
        try:
            serve, ports, key = broker(fulmar, folder)
            processes.append(serve)
            url = f"mqtt://localhost:{ports['mqtt']}"
            piped = {"stdout": subprocess.PIPE, "text": True, "errors": "replace"}
            reader = subprocess.Popen([fulmar, "sub", url, "-t", "sensors/#", "-q", "1", "-v"], **piped)
            processes.append(reader)
            shown("broker", reader)
            settings = device.Settings(ports["quic"], key, client_id=CLIENT, interval_s=INTERVAL_S)
            board = subprocess.Popen(device.command(pathlib.Path(image).resolve(), folder, settings),
                                     cwd=folder, stdin=subprocess.DEVNULL, **piped)
            processes.append(board)
            log = shown("device", board)
            print("The device wakes every 5 seconds. Ctrl-C ends all. Tell it something:\n"
                  f"    {fulmar} pub {url} -q 1 -t sensors/{CLIENT}/command -m 'led on'\n"
                  f"    {fulmar} pub {url} -q 1 -t sensors/{CLIENT}/command -m 'every 10'", flush=True)
            log.join()
        except KeyboardInterrupt:
            pass
        finally:
            for process in reversed(processes):
                process.terminate()
                process.wait(20)


if __name__ == "__main__":
    main(*sys.argv[1:])
