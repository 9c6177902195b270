"""Commands of the pages with our program alone, typed as they stand there: groups, streams, roll-outs, DTLS,
demonstrations, experiments; and no page has a line that is neither typed by a test nor listed with the reason."""

import concurrent.futures
import itertools
import pathlib
import re
import signal
import subprocess
import sys
import unittest

import pages
import ports
from broker import PATIENCE_S, Broker, binary, eventually
from pages import ROOT, Typist, lines

sys.path.insert(0, str(ROOT / "firmware/tools"))
import device  # noqa: E402

# Experiments take longer than anything else here.
LAB_S = 240


def line(name, begins):
    """The only command of a page that begins like this."""
    [found] = lines(name, begins)
    return found


def unaccounted(name):
    """Lines of a page that no test types and no reason excuses, and the entries that were of use."""
    wrong, used = [], set()
    for headings, command in pages.commands(name):
        typed = {(test, name, begins) for test, of, all_begins in pages.TYPED if of == name for begins in all_begins
                 if pages.begins_with(command, begins) or begins in headings}
        excused = {entry for entry in pages.NOT_TYPED if entry[0] == name and pages.begins_with(command, entry[1])}
        used |= typed | excused
        if not typed and not excused or typed and excused:
            wrong.append(f"{name}: {command}")
    return wrong, used


class Everything(unittest.TestCase):
    def test_every_line_is_typed_by_a_test_or_has_a_reason(self):
        wrong, used = [], set()
        for path in pages.PAGES:
            of_page = unaccounted(str(path.relative_to(ROOT)))
            wrong += of_page[0]
            used |= of_page[1]
        self.assertEqual(wrong, [], "type them in a test, or list them in pages.py with the reason")
        entries = {(test, name, begins) for test, name, all_begins in pages.TYPED for begins in all_begins}
        self.assertEqual((entries | set(pages.NOT_TYPED)) - used, set(), "no page has these lines any more")

    def test_the_tests_have_the_words_by_which_they_find_lines(self):
        for test, name, all_begins in pages.TYPED:
            source = (ROOT / test).read_text(encoding="utf-8")
            for words in (pathlib.Path(name).name, *(f'"{begins}' for begins in all_begins)):
                self.assertTrue(words in source, f"{test} does not have {words}")

    def test_a_new_line_is_found(self):
        shown = pages.page("docs/coap.md")
        self.addCleanup(setattr, pages, "page", pages.page)
        for block in ("\n\n    fulmar sub coap://broker -t new\n", "\n```sh\nfulmar sub coap://broker -t new\n```\n"):
            pages.page = lambda _, text=shown + block: text
            self.assertEqual(unaccounted("docs/coap.md")[0], ["docs/coap.md: fulmar sub coap://broker -t new"])


class Guide(Typist):
    def settings(self):
        passwords = self.folder / "passwords"
        for name in ("ann", "probe"):
            command = [binary(), "passwd", name, "--file", passwords]
            subprocess.run(command, input=b"secret\n", check=True, timeout=PATIENCE_S)
        return f'[auth]\npassword_file = "{passwords}"\nallow_anonymous = "loopback"\n'

    def test_serve_prints_the_listeners_of_the_page(self):
        shown = line("docs/guide.md", "ready mqtt=")
        names = re.findall(r" (\w+)=", shown)
        self.env |= {f"FULMAR_LISTENERS__{name.upper()}": '["127.0.0.1:0"]' for name in names}
        plain = [typed for typed in lines("docs/guide.md", "fulmar serve ") if "--config" not in typed]
        for typed in plain:
            out = self.leave(typed.removesuffix(" &"), signal.SIGTERM)
            eventually("the ready line", lambda out=out: "ready " in out.text())
            ready = next(line for line in out.text().splitlines() if line.startswith("ready "))
            self.assertEqual(re.findall(r" (\w+)=", ready), names)
            # The next has the same data folder.
            out.stop()

    def test_statistics_and_a_password(self):
        subscriber = self.leave(line("docs/guide.md", "fulmar sub quic://localhost -t '#' --json"))
        self.words["mqtts://broker"] = f"mqtts://localhost:{self.ports['mqtts']} --cafile {self.broker.ca}"

        def arrived():
            self.type(line("docs/guide.md", "fulmar pub mqtts://broker"), "secret\n")
            return '"payload":"x"' in subscriber.text()

        eventually("the message", arrived)
        eventually("statistics", lambda: '"rtt' in subscriber.text())

    def test_a_new_password_is_accepted_after_a_reload(self):
        self.words |= {"/etc/fulmar": self.folder,
                       "mqtts://broker": f"mqtts://localhost:{self.ports['mqtts']} --cafile {self.broker.ca}"}
        for typed in lines("docs/guide.md", "fulmar passwd ann --file /etc/fulmar/passwords"):
            self.type(typed.split(" <")[0], "another\n")
        self.broker.process.send_signal(signal.SIGHUP)
        publish = line("docs/guide.md", "fulmar pub mqtts://broker")
        eventually("the new password", lambda: self.run_to_end(publish, "another\n").returncode == 0)

    def test_fallback(self):
        self.words["quic://broker.example.org --fallback"] = (
            f"quic://localhost:{self.ports['quic']} --cafile {self.broker.ca} --fallback={self.ports['mqtts']}")
        subscriber = self.leave(line("docs/guide.md", "fulmar sub quic://broker.example.org --fallback"))

        def arrived():
            self.type("fulmar pub mqtt://localhost -t plant/temperature -m 21.5")
            return "21.5" in subscriber.text()

        eventually("the message", arrived)

    def test_another_machine(self):
        self.words |= {"scp root@broker.example.org:/var/lib/fulmar/ca/ca.pem": f"cp {self.broker.ca}",
                       "quic://broker.example.org": f"quic://localhost:{self.ports['quic']}"}
        self.type(line("docs/guide.md", "scp root@broker.example.org"))
        self.type(line("docs/guide.md", "fulmar pub quic://broker.example.org"), "secret\n")

    def test_a_bad_link(self):
        self.needs_namespaces()
        self.type("fulmar pub mqtt://localhost -t plant/temperature -m 21.5 -r -q 1")
        self.words |= {"198.18.1.2": f"198.18.1.2:{self.ports['quic']}", "'#'": "'#' -C 1"}
        behind = line("docs/guide.md", "fulmar lab link --profile")
        # Over this link, a client gives up a connection now and then, and again with the same port and seed.
        seeds = (behind.replace(" --profile", f" --seed {seed} --profile") for seed in itertools.count(1))

        def arrived():
            try:
                return self.run_to_end(next(seeds), patience_s=20).stdout == "21.5\n"
            except subprocess.TimeoutExpired:
                return False

        eventually("the value", arrived, 2 * PATIENCE_S)

    def test_a_device_that_speaks_http(self):
        self.type("fulmar sub mqtt://localhost -t 'sensor/#' -q 1 -E -c -i gateway")
        self.words["gateway.lan:14568"] = f"127.0.0.1:{self.ports['http']}"
        publish = line("docs/gateway.md", "curl --data")
        self.assertEqual(self.type(publish.replace("curl", "curl -sS -w '%{http_code}'")), "204")


class Dtls(Typist):
    def settings(self):
        keys = self.folder / "keys"
        keys.write_text("meter-7:0123456789abcdef\n")
        keys.chmod(0o600)
        return f'[coap]\npsk_file = "{keys}"\n'

    def test_keys_and_certificates(self):
        at = f"coaps://localhost:{self.ports['coaps']}"
        self.words |= {"coaps://localhost": f"{at} --cafile {self.broker.ca}", "coaps://broker": at,
                       "KEY": "0123456789abcdef"}
        subscriber = self.leave(line("docs/coap.md", "fulmar sub coaps://"))
        publish = line("docs/coap.md", "fulmar pub coaps://")

        def arrived():
            self.type(publish)
            return "21.5" in subscriber.text()

        eventually("the value", arrived)
        self.type(f"{publish} -r")
        self.assertIn("21.5", self.type(line("docs/coap.md", "coap-client-openssl ")))


class Bulk(Typist):
    def setUp(self):
        super().setUp()
        self.group = f"239.1.2.3:{ports.take(1)[0]} --interface 127.0.0.1"

    def arrived(self, out, folders, name):
        """Waits for a file in each folder."""
        for folder in folders:
            path = self.folder / folder / name
            eventually(f"{path}\n{out.text()}", path.exists)
            self.assertEqual(path.read_bytes(), (self.folder / name).read_bytes())

    def test_a_group(self):
        (self.folder / "map.zip").write_bytes(bytes(range(256)) * 200)
        self.words["239.1.2.3:6003"] = self.group
        receive = line("docs/bulk.md", "fulmar receive --from 239.1.2.3:6003")
        outs = [self.leave(receive, words={"--dir maps": f"--dir maps{number}"}) for number in range(10)]
        self.type(line("docs/bulk.md", "fulmar send map.zip --to 239.1.2.3:6003"))
        self.arrived(outs[0], [f"maps{number}" for number in range(10)], "map.zip")

    def test_a_stream(self):
        at = f"127.0.0.1:{ports.take(1)[0]}"
        # A reader of the receiver's output, and an end of what does not end by itself.
        self.words |= {"0.0.0.0:6003": at, " | ...": "", "--to 192.0.2.7": f"--to {at}", "tail -f": "timeout 2 tail -f"}
        out = self.leave(line("docs/bulk.md", "fulmar receive --from 0.0.0.0:6003 --stdout"))
        (self.folder / "readings").write_text("21.5\n22\n")
        self.type(line("docs/bulk.md", "tail -f readings"))
        eventually("the lines", lambda: "21.5\n22\n" in out.text())

    def test_a_roll_out(self):
        (self.folder / "fw.bin").write_bytes(bytes(range(256)) * 200)
        install = self.folder / "install.sh"
        install.write_text("#!/bin/sh\ntest -s \"$1\"\n")
        install.chmod(0o755)
        # Three devices of the thirty.
        self.words |= {"mqtts://broker": f"mqtts://localhost:{self.ports['mqtts']} --cafile {self.broker.ca}",
                       "239.1.2.3": self.group, "--expect 30": "--expect 3"}
        receive = line("docs/bulk.md", "fulmar receive --announced").split("#")[0]
        devices = ["pump7", "pump8", "pump9"]
        outs = [self.leave(receive, words={"pump7": name, "--dir fw": f"--dir {name} --interface 127.0.0.1"})
                for name in devices]
        self.type(line("docs/bulk.md", "fulmar rollout"), patience_s=2 * PATIENCE_S)
        self.arrived(outs[0], devices, "fw.bin")


class Sensors(Typist):
    def program(self, name, text):
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)

    def heard(self, topic):
        """Subscribes, and waits until it has; what arrives is in the file returned."""
        out = self.leave(f"fulmar sub mqtt://localhost -t '{topic}' -t probe -v")

        def subscribed():
            self.type("fulmar pub mqtt://localhost -t probe -m x")
            return "probe x" in out.text()

        eventually("the subscription", subscribed)
        return out

    def test_lines_of_a_program(self):
        out = self.heard("sensor/#")
        self.program("my-probe", "#!/bin/sh\necho attic radon 85\n")
        self.type(line("docs/homes.md", "my-probe"))
        eventually("the reading", lambda: "sensor/attic/radon {" in out.text())

    def test_sensors_of_the_kernel(self):
        out = self.heard("sensor/#")
        dht11 = self.folder / "devices" / "iio:device0"
        dht11.mkdir(parents=True)
        for file, text in [("name", "dht11@0"), ("in_temp_input", "21000"), ("in_humidityrelative_input", "45000")]:
            (dht11 / file).write_text(f"{text}\n")
        self.words |= {"--iio": f"--iio={dht11.parent}", "--every 60": "--every 60 --count 1"}
        self.type(line("docs/homes.md", "fulmar sensor read mqtt://localhost --iio"))
        for quantity in ("temperature", "humidity"):
            eventually(quantity, lambda quantity=quantity: f"sensor/attic-dht11-0/{quantity} {{" in out.text())

    def test_simulated_homes(self):
        out = self.heard("sensor/#")
        for typed in lines("docs/homes.md", "fulmar sensor simulate"):
            if ">" in typed:
                self.type(typed)
                self.assertIn('"quantity"', (self.folder / "week.jsonl").read_text())
                continue
            printed = self.leave(typed)
            where = out if "mqtt://" in typed else printed
            eventually(typed, lambda where=where: "radon" in where.text())


class Receiver(Typist):
    def settings(self):
        return "[platform]\nenabled = true\n"

    def test_frames_come_through_a_gateway(self):
        at = f"--data {self.broker.data}"
        self.type(f"fulmar twin add town --name Town {at}")
        self.type(f"fulmar user token gw-1 --twin town --role device --file gw-1.token {at}")
        self.type(f"fulmar user add ann --twin town --role admin {at}", "correct horse")
        api, login = line("docs/platform.md", "api()"), line("docs/platform.md", "TOKEN=")
        # The server knows new users half a second later, the gateway's too.
        eventually("the user", lambda: len(self.type(f"{api}\n{login}\necho $TOKEN").strip()) > 20)
        begin = f"{api}\n{login}\n"
        self.type(begin + """api /town/meter -d '{"address":"SEN-33225544","medium":"water"}'""")
        rule = re.search(r"(?s)## Through a gateway.*?```toml\n(.*?)```", pages.page("docs/meters.md"))[1]
        gateway = Broker(f"""
[upstream]
url = "quic://localhost:{self.ports["quic"]}"
fallback_port = {self.ports["mqtts"]}
ca_file = "{self.broker.ca}"
name = "gw-1"
user = "gw-1"
token_file = "{self.folder}/gw-1.token"
{rule}""")
        self.addCleanup(gateway.close)
        self.words["mqtt://localhost"] = f"mqtt://localhost:{gateway.ports['mqtt']}"
        self.type(line("docs/meters.md", "fulmar pub mqtt://localhost -t receiver"))
        eventually("the reading", lambda: '"value":123.529' in self.type(f"{begin} api /town/reading"))


class Demonstrations(Typist):
    def start(self, typed, more):
        """Starts one, smaller; asks the address that it prints."""
        out = self.leave(f"{typed} --port 0 {more}", signal.SIGINT)

        def ready():
            self.assertIsNone(out.program.poll(), out.text())
            return "\nready " in out.text()

        eventually(typed, ready)
        address = re.search(r"https://localhost:\d+/", out.text())[0]
        self.assertIn('"demo"', self.type(f"curl -sS -k {address}api/v1/config"))

    def test_meters(self):
        self.start(line("docs/meters.md", "fulmar demo meters"), "--meters 20 --link none")

    def test_homes(self):
        self.start(line("docs/homes.md", "fulmar demo homes"), "--homes 4 --history 1")

    def test_the_readmes(self):
        self.env |= {f"FULMAR_LISTENERS__{kind.upper()}": '["127.0.0.1:0"]' for kind in self.broker.KINDS}
        out = self.leave(f"{ROOT}/scripts/run target/quick/fulmar", signal.SIGTERM)
        eventually("the demonstration", lambda: "Stop with Ctrl-C" in out.text())
        self.words["quic://localhost"] = re.search(r"sub (quic://localhost:\d+)", out.text())[1]
        watch = line("README.md", "target/quick/fulmar sub")
        self.assertRegex(self.type(f"{watch} -C 1"), r"^demo/meter/flow \d+\.\d\n$")
        administrator = line("README.md", "target/quick/fulmar ctl users add")
        self.assertIn("added", self.type(f"echo correct-horse-9 | {administrator}"))


class Firmware(Typist):
    def test_a_page_of_settings(self):
        self.type("fulmar cert issue broker.lan --ed25519")
        key = re.search(r"public key: +(\w+)", self.type("fulmar cert show broker.lan.pem"))[1]
        self.words |= {"python3 firmware": f"{sys.executable} {ROOT}/firmware", "KEY": key}
        write = line("docs/firmware.md", "python3 firmware/tools/device.py")
        same = {"server_name": "broker.lan", "host": "192.0.2.7", "client_id": "sensor-17", "mac": "02:00:00:00:00:11"}
        for more, settings in [
            ("", {"network": ("192.0.2.11", 24, "192.0.2.1"), "interval_s": 60}),
            ("--address 192.0.2.17/24 --gateway 192.0.2.1 --user pump --password-file secret --every 5 --no-resume",
             {"network": ("192.0.2.17", 24, "192.0.2.1"), "user": "pump", "password": b"pw", "interval_s": 5,
              "resume": False}),
        ]:
            (self.folder / "secret").write_text("pw\n")
            self.type(f"{write} {more}")
            made = device.Settings(14567, bytes.fromhex(key), **same, **settings)
            self.assertEqual((self.folder / "settings.bin").read_bytes(), made.page())

    def test_its_readings_are_shown(self):
        subscriber = self.leave(line("docs/firmware.md", "fulmar sub mqtt://localhost -t 'sensors"))

        def arrived():
            self.type("fulmar pub mqtt://localhost -t sensors/sensor-17/reading -m 21.5")
            return "sensors/sensor-17/reading 21.5" in subscriber.text()

        eventually("the reading", arrived)


class Lab(Typist):
    # One sample of each experiment, the cheapest; the conditions of a suite choose its parts.
    SAMPLES = {
        "mqtt-quic": ["testbed=wired", "transport=quic", "loss=0%"],
        "mine.toml": ["way=quic", "loss=0%"],
        "meter-reading": ["network=posts", "size=1kB", "transport=h3"],
        "bulk": ["impairment=delay_ms", "value=0", "transport=norm"],
        "bulk-full": ["impairment=delay_ms", "value=0", "transport=norm"],
        "bulk-goals": ["loss=0", "transport=norm"],
        "bulk-wrong": ["transport=tcp"],
        "bulk-stream": ["loss=0", "transport=norm"],
        "monitoring": ["transport=quic", "loss=0", "way=up"],
        "constrained": ["transport=udp", "size=1kB", "direction=receives", "device=unconstrained", "loss=0%"],
        "link-accuracy": ["pps=100"],
    }

    def settings(self):
        return "[lab]\nobjects = true\n"

    def test_transfers_and_messages(self):
        self.words |= {"HOST:8443": f"localhost:{self.ports['https']}",
                       "quic://HOST": f"quic://localhost:{self.ports['quic']}"}
        for begins, count in [("fulmar lab transfer", 1), ("fulmar lab message", 50)]:
            printed = self.type(line("docs/lab.md", begins), patience_s=2 * PATIENCE_S)
            self.assertGreaterEqual(len(printed.splitlines()), count, printed)

    def test_experiments(self):
        self.needs_namespaces()
        self.type("fulmar lab new mine.toml")
        typed = {command.split(" ")[3]: command.split(" #")[0] for command in lines("docs/lab.md", "fulmar lab run")}
        self.assertEqual(typed.keys(), self.SAMPLES.keys())

        def run(name):
            only = " ".join(f"--only {condition}" for condition in self.SAMPLES[name])
            return self.type(f"{typed[name]} --repetitions 1 {only}", patience_s=LAB_S)

        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            reports = list(pool.map(run, typed))
        for report in reports:
            self.assertIn("<svg", (self.folder / report.strip()).read_text(encoding="utf-8"), report)
        self.type(line("docs/lab.md", "fulmar lab report"))


if __name__ == "__main__":
    unittest.main()
