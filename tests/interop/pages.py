"""Commands of the pages: what a reader copies from a block, typed by the tests. TYPED says which test types which
lines, NOT_TYPED which lines are only read, and why; test_page_commands.py finds lines that are in neither."""

import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import unittest

from broker import PATIENCE_S, Broker, binary

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "TESTING.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "docs/studies").glob("*.md")),
         *sorted((ROOT / "crates").glob("*/README.md")), ROOT / "firmware/core/README.md"]

# Test, page, and how the test finds the lines: by their beginning, or by the heading of the section, all of whose lines
# it types. The same words are in the test.
TYPED = [
    ("tests/tests/operator.rs", "docs/guide.md",
     ["### Set it up", "### Check that it works", "### Check what it refuses"]),
    ("tests/tests/gateway_setup.rs", "docs/gateway.md",
     ["### On the server", "### On the gateway", "### Readings and commands", "### New credentials"]),
    ("tests/tests/administration.rs", "docs/administration.md",
     ["fulmar ctl status", "fulmar ctl clients list", "fulmar ctl backup", "fulmar ctl restore", "fulmar audit"]),
    ("tests/tests/pages.rs", "docs/meters.md", ["echo ", "chmod ", "fulmar meter"]),
    ("tests/tests/pages.rs", "docs/homes.md", ["fulmar sensor simulate --pace 0"]),
    ("tests/tests/pages.rs", "docs/guide.md",
     ["fulmar cert", "fulmar sub quic://localhost -t 'plant", "fulmar pub mqtt://localhost -t plant",
      "fulmar sub mqtt://localhost -t 'a/#' -E", "fulmar sub mqtt://localhost -t '$SYS"]),
    ("tests/tests/pages.rs", "docs/firmware.md", ["fulmar cert"]),
    ("tests/tests/pages.rs", "docs/platform.md", ["fulmar twin", "fulmar user"]),
    ("tests/interop/test_sinks.py", "docs/sinks.md", ["fulmar sink "]),
    ("tests/interop/test_recipes.py", "docs/recipes.md",
     ["fulmar passwd ann", "fulmar passwd home-assistant", "fulmar serve", "export ", "mosquitto_pub ", "mosquitto_sub ",
      "venv/bin/python readings.py", "venv/bin/python means.py", "node_modules/.bin/node-red ", "fulmar sub", "fulmar pub",
      "fulmar twin add rural", "fulmar user token gw-1", "fulmar sink try zigbee2mqtt", "(umask", "venv/bin/python home",
      "victoria-metrics",
      "curl -sS http://127.0.0.1:8428", "curl -sS http://127.0.0.1:8086", "curl -sS -G ", "fulmar cert issue",
      "FULMAR_TOKEN=", "promtool check config", "prometheus --config.file", "MQTT_PASSWORD="]),
    ("tests/tests/pages.rs", "docs/lab.md", ["fulmar lab list", "fulmar lab show", "fulmar lab new"]),
    ("tests/tests/pages.rs", "docs/bulk.md",
     ["openssl", "fulmar receive --from 0.0.0.0:6003 --dir", "fulmar send map.zip --to 192.0.2.7"]),
    ("tests/tests/pages.rs", "docs/coap.md", ["fulmar sub coap://localhost", "fulmar pub coap://localhost"]),
    ("tests/interop/test_pages.py", "README.md",
     ["venv/bin/python ", "mosquitto_sub -p 8883", "target/quick/fulmar pub"]),
    ("tests/interop/test_pages.py", "docs/http.md", ["curl "]),
    ("tests/interop/test_pages.py", "docs/certificates.md", ["curl ", "mkdir ", "certutil "]),
    ("tests/interop/test_pages.py", "docs/coap.md", ["coap-client -"]),
    ("tests/interop/test_pages.py", "docs/platform.md", ["api", "TOKEN=", "LIST="]),
    ("tests/interop/test_pages.py", "docs/meters-app.md", ["fulmar ", "tail ", "api "]),
    ("tests/interop/test_page_commands.py", "README.md", ["target/quick/fulmar sub", "target/quick/fulmar ctl"]),
    ("tests/dist/test_packages.py", "README.md",
     ["sudo apt install", "fulmar sub mqtt://localhost -t 'plant", "fulmar pub mqtt://localhost -t plant"]),
    ("tests/interop/test_page_commands.py", "docs/guide.md",
     ["fulmar serve", "fulmar sub quic://localhost -t '#' --json", "fulmar pub mqtts://broker",
      "fulmar passwd ann --file /etc/fulmar/passwords", "fulmar sub quic://broker.example.org --fallback",
      "scp root@broker.example.org", "fulmar pub quic://broker.example.org",
      "fulmar lab link --profile"]),
    ("tests/interop/test_page_commands.py", "docs/coap.md",
     ["fulmar sub coaps://", "fulmar pub coaps://", "coap-client-openssl "]),
    ("tests/interop/test_page_commands.py", "docs/bulk.md",
     ["fulmar receive --from 239.1.2.3:6003", "fulmar send map.zip --to 239.1.2.3:6003",
      "fulmar receive --from 0.0.0.0:6003 --stdout", "tail -f readings", "fulmar receive --announced",
      "fulmar rollout"]),
    ("tests/interop/test_page_commands.py", "docs/homes.md",
     ["my-probe", "fulmar sensor read mqtt://localhost --iio", "fulmar sensor simulate", "fulmar demo homes"]),
    ("tests/interop/test_page_commands.py", "docs/meters.md",
     ["fulmar demo meters", "fulmar pub mqtt://localhost -t receiver"]),
    ("tests/interop/test_libfulmar.py", "docs/clients.md", ["## C", "## Python"]),
    ("tests/interop/test_clients_go.py", "docs/clients.md", ["## Go"]),
    ("tests/interop/test_clients_web.py", "docs/clients.md", ["## Browsers"]),
    ("tests/interop/test_clients_java.py", "docs/clients.md", ["## Java and Kotlin"]),
    ("tests/interop/test_mqttsn.py", "docs/mqtt-sn.md", ["mqtt_sn_pub "]),
    ("tests/interop/test_dynsec.py", "docs/access.md", ["mosquitto_ctrl "]),
    ("tests/interop/test_dynsec.py", "docs/mosquitto.md", ["fulmar import dynamic-security "]),
    ("tests/interop/test_page_commands.py", "docs/gateway.md", ["curl --data"]),
    ("tests/interop/test_cluster.py", "docs/cluster.md", ["fulmar cluster init", "fulmar cluster status",
                                                          "fulmar cluster drain", "fulmar cluster snapshot", "fulmar serve",
                                                          "fulmar sub mqtt://"]),
    ("tests/interop/test_demo_cluster.py", "docs/cluster.md", ["fulmar demo cluster"]),
    ("tests/interop/test_helm.py", "docs/kubernetes.md",
     ["fulmar passwd", "fulmar cert", "kubectl create secret", "helm install"]),
    ("tests/interop/test_outbox.py", "docs/outbox.md", ["## See that it works"]),
    ("tests/interop/test_page_commands.py", "docs/firmware.md",
     ["python3 firmware/tools/device.py", "fulmar sub mqtt://localhost -t 'sensors"]),
    ("tests/interop/test_page_commands.py", "docs/lab.md",
     ["fulmar lab run", "fulmar lab report", "fulmar lab transfer", "fulmar lab message"]),
]

RUN = "builds for minutes: test_page_commands.py runs what it starts, scripts/run"
CI = "builds for minutes: CI runs it"
SHORT = "works for ten minutes or more: CI runs its short form"
HAND = "works for minutes to hours, or replaces files: run by hand"
MACHINE = "changes the machine: tests/tests/service.rs starts what the unit starts"
OUTPUT = "no command: shows what one prints"
# Page, beginning, reason.
NOT_TYPED = [
    ("README.md", "make run", RUN),
    ("README.md", "make test", "runs the tests"),
    ("README.md", "python3 -m venv", "downloads a package, which `make test-interop` has in an environment of its own"),
    *[("CONTRIBUTING.md", f"make {target} ", why) for target, why in [
        ("run", RUN), ("test", "runs the tests"), ("lint", CI), ("fuzz", SHORT), ("simulate", SHORT), ("reference", HAND),
        ("studies", HAND), ("bench-parts", HAND)]],
    *[("TESTING.md", f"make {target} ", why) for target, why in [
        ("run", RUN), ("test", "runs the tests"), ("reference", HAND), ("site", HAND), ("screenshots", HAND),
        ("lint", CI), ("bench", HAND), ("studies", HAND), ("bench-parts", HAND), ("bench-packaged", HAND), ("bench-cluster", HAND), ("bench-page", HAND), ("attack", HAND), ("soak", SHORT), ("package", CI), ("dist", HAND), ("dist-test", SHORT), ("dist-twice", HAND), ("kill-test", SHORT), ("bridge-kill-test", SHORT), ("ledger-kill-test", SHORT), ("cluster-kill-test", SHORT), ("test-nats", "runs tests"), ("identity-test", SHORT),
        ("fuzz", SHORT)]],
    *[("docs/install.md", begins, "installs on bare systems: tests/dist types the same with paths and versions of its own")
      for begins in ["sudo apt ", "sudo dnf ", "sudo systemctl ", "tar ", "fulmar-0.1.0-x86_64/fulmar ", "pip ",
                     "sha256sum "]],
    *[("docs/recipes.md", begins, "downloads what `make test-interop` has in places of its own")
      for begins in ["python3 -m venv", "npm install", "venv/bin/pip "]],
    ("docs/install.md", "podman ", "needs a container engine: tests/dist/test_image.py runs the image without one"),
    ("docs/install.md", "make dist ", "builds for minutes"),
    *[("docs/cluster.md", begins, "no command: NATS' configuration, which test_cluster.py uses with ports of its own")
      for begins in ["listen: ", "http: ", "jetstream "]],
    ("docs/kubernetes.md", "podman ", "needs a container engine and a registry"),
    *[("docs/kubernetes.md", f"kubectl {begins}", "needs a Kubernetes: test_helm.py starts the Pods as processes")
      for begins in ["rollout ", "logs ", "exec "]],
    ("docs/outbox.md", "sudo ", "installs a package: test_outbox.py starts what the unit starts, with the same file"),
    ("docs/outbox.md", "podman ", "needs a container engine: tests/dist/test_image.py runs an image without one"),
    ("docs/outbox.md", "make bridge-kill-test", SHORT),
    ("docs/mosquitto.md", "fulmar import mosquitto ", "reads /etc/mosquitto: test_import.py imports configurations of its own"),
    ("docs/mosquitto.md", "/etc/mosquitto/mosquitto.conf:14:", OUTPUT),
    ("docs/mosquitto.md", "systemctl stop mosquitto", MACHINE),
    ("docs/mosquitto.md", "fulmar serve --config from-mosquitto/", "opens mosquitto's ports: test_import.py serves with ports of its own"),
    ("docs/build.md", "make gateway", "builds for minutes: scripts/features, which CI runs, checks these features"),
    ("docs/build.md", "cargo build --release --no-default-features", "builds for minutes, as `make gateway`"),
    ("docs/firmware.md", "make firmware ", CI),
    ("docs/firmware.md", "make firmware-run", "installs QEMU: test_firmware.py boots the same image"),
    ("docs/firmware.md", "make firmware-test", SHORT),
    ("docs/telemetry.md", "fulmar pub mqtt://localhost", "needs a collector: test_traces.py publishes the same with one"),
    ("docs/administration.md", "fulmar ctl --url", "needs a name: tests/tests/administration.rs has the broker's own"),
    ("docs/administration.md", "curl ", "the same request as the line above it"),
    ("docs/guide.md", "ready mqtt=", OUTPUT),
    ("docs/guide.md", "rule_files:", "no command: Prometheus' configuration, as test_prometheus.py writes its own"),
    ("docs/guide.md", "scrape_configs:", "no command: as before"),
    ("docs/guide.md", "useradd ", MACHINE),
    ("docs/guide.md", "cargo build --release", "builds for minutes"),
    ("docs/guide.md", "install ", MACHINE),
    ("docs/guide.md", "systemctl ", "needs systemd as the machine's first process"),
    ("docs/certificates.md", '{"demo":', OUTPUT),
    ("docs/certificates.md", "chromium ", "opens a window: certificates.test.mjs starts Chromium with this option"),
    ("docs/homes.md", "topic ", "no command: shows a message"),
    ("docs/homes.md", "payload ", "no command: shows a message"),
    ("docs/meters.md", "SEN 33225544", OUTPUT),
    ("docs/studies/README.md", "make studies", HAND),
    ("docs/lab.md", "xdg-open ", "opens the reader's browser"),
    ("docs/lab.md", "scripts/paper ", "needs results of a long experiment: test_studies.py writes a paper from a report of its own"),
    ("docs/platform.md", "CREATE ", "SQL for an administrator: tests/interop/postgres.py makes role and database"),
]


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def whole(text):
    """A command with the lines in which its quotes go on."""
    for end in range(1, 5):
        command = "\n".join(text[:end]).removeprefix("$ ")
        try:
            shlex.split(command, comments=True)
            return command
        except ValueError:
            pass
    raise AssertionError(f"a quote has no end: {text[0]}")


def commands(name):
    """Lines of blocks that a reader may copy, with the headings above them. Settings, which begin with a section,
    are the business of tests/tests/pages.rs."""
    headings, block, fence, settings = [], [], None, False
    found = []
    text = re.sub(r"\\\n *", "", page(name)).split("\n")
    for line in [*text, ""]:
        opened = fence is None and line.startswith("```")
        if opened or line.startswith("```"):
            fence = line.removeprefix("```") if opened else None
            continue
        indented = re.match(r" {4,}\S", line) and fence is None
        if fence == "sh" or indented and (block or blank):
            if not block:
                settings = line.lstrip().startswith("[")
                margin = len(line) - len(line.lstrip())
            # What a command does stands beside it, in a column of its own.
            block.append(re.sub(r"(?<=\S) {4,}\S.*", "", line[margin:]))
            blank = False
            continue
        if block and not settings:
            # A line further in goes on with the one before.
            starts = [at for at, typed in enumerate(block) if typed.strip() and not typed.startswith((" ", "#"))]
            found += [(list(headings), whole(block[at:])) for at in starts]
        block, blank = [], not line.strip()
        if fence is None and (heading := re.match(r"(#+) ", line)):
            headings = [above for above in headings if len(above.split(" ")[0]) < len(heading[1])] + [line]
    return found


def begins_with(command, words):
    return f"{command} ".startswith(words)


def lines(name, begins):
    """The commands of a page that begin like this."""
    found = [command for _, command in commands(name) if begins_with(command, begins)]
    assert found, f"{name} has no line that begins with {begins!r}"
    return found


class Left:
    """A program that stays."""

    def __init__(self, line, folder, env, end):
        self.out, self.end = folder / f"out-{os.urandom(4).hex()}", end
        with open(self.out, "wb") as file:
            self.program = subprocess.Popen(["bash", "-c", f"exec stdbuf -oL {line}"], stdin=subprocess.DEVNULL,
                                            stdout=file, stderr=subprocess.STDOUT, cwd=folder, env=env)

    def text(self):
        """What it has printed."""
        return self.out.read_text(encoding="utf-8", errors="replace")

    def stop(self):
        if self.program.poll() is None:
            self.program.send_signal(self.end)
            self.program.wait(PATIENCE_S)


class Typist(unittest.TestCase):
    """Types lines at a broker of its own; ports and folders in them become the test's."""

    def settings(self):
        """The broker's, beside its listeners."""
        return ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.broker = Broker(self.settings())
        self.addCleanup(self.broker.close)
        self.ports, ca = self.broker.ports, self.broker.ca
        # A machine without the caller's settings and data; its own programs are in its folder.
        own = {key: value for key, value in os.environ.items() if not key.startswith("FULMAR_")}
        self.env = {**own, "XDG_DATA_HOME": folder.name, "HOME": folder.name, "PATH": f"{folder.name}:{own['PATH']}"}
        self.words = {
            "~/.local/share/fulmar/ca/ca.pem": ca,
            "localhost:8443": f"localhost:{self.ports['https']}",
            "-p 8883": f"-p {self.ports['mqtts']}",
            "mqtt://localhost": f"mqtt://localhost:{self.ports['mqtt']}",
            "quic://localhost": f"quic://localhost:{self.ports['quic']} --cafile {ca}",
            "coap://localhost": f"coap://localhost:{self.ports['coap']}",
            "target/quick/fulmar": binary(),
        }

    def here(self, line):
        """What a line says on this machine."""
        for word, meaning in self.words.items():
            line = line.replace(word, str(meaning))
        # Where a command begins, and not in names of files and topics.
        return re.sub(r"(^|[|&] |-- )fulmar ", rf"\1{binary()} ", line)

    def run_to_end(self, line, text="", patience_s=PATIENCE_S):
        """Types a line, and waits for its end."""
        return subprocess.run(["bash", "-c", self.here(line)], input=text, capture_output=True, text=True,
                              timeout=patience_s, cwd=self.folder, env=self.env)

    def type(self, line, text="", patience_s=PATIENCE_S):
        """The same for a line that ends well; what it printed."""
        ran = self.run_to_end(line, text, patience_s)
        self.assertEqual(ran.returncode, 0, f"{line}\n{ran.stdout}\n{ran.stderr}")
        return ran.stdout

    def leave(self, line, end=signal.SIGKILL, words=()):
        """Types a line of a program that stays until it gets the signal. `words` are this line's own."""
        line = self.here(line)
        for word, meaning in dict(words).items():
            line = line.replace(word, str(meaning))
        program = Left(line, self.folder, self.env, end)
        self.addCleanup(program.stop)
        return program

    def needs_namespaces(self):
        """Skips the test where `fulmar lab` cannot make its network."""
        tried = subprocess.run([binary(), "lab", "link", "--", "true"], capture_output=True, text=True,
                               timeout=PATIENCE_S, env=self.env)
        if tried.returncode:
            self.skipTest(tried.stderr)
