"""The recipes of docs/recipes.md with the programs they are for: the page's lines and settings, and the files of
packaging/recipes, with ports and folders of the test."""

import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import pages
import ports
import postgres
from broker import PATIENCE_S, eventually
from pages import ROOT, Typist

PAGE = "docs/recipes.md"
FILES = ROOT / "packaging/recipes"
RULES = ROOT / "packaging/prometheus/fulmar.rules.yml"
PASSWORD = "correct horse"
# The interpreter of an environment with Home Assistant, if this machine can have that.
HOME_ASSISTANT = os.environ.get("FULMAR_HOME_ASSISTANT", "")


def block(language, heading):
    """The only block of this language in a section of the page."""
    section = pages.page(PAGE).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return found


def replaced(text, changes):
    for old, new in changes.items():
        assert old in text, f"{old} is not in:\n{text}"
        text = text.replace(old, str(new))
    return text


def line(begins, heading=""):
    """The only command that begins like this, of the page or of a section."""
    [found] = [command for headings, command in pages.commands(PAGE)
               if (not heading or f"## {heading}" in headings) and pages.begins_with(command, begins)]
    return found


def ask(url, data=None, **headers):
    """The answer of a program on this machine; None while there is none."""
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{url}: {error.read().decode()}") from error
    except OSError:
        return None


def is_up(program, words):
    """Whether a program has printed the words; fails when it has ended."""
    if program.program.poll() is not None:
        raise AssertionError(program.text())
    return words in program.text()


class Recipe(Typist):
    """Types lines of the page, with the page's broker and user."""

    def settings(self):
        # The page's line, before there is a broker.
        self.words = {}
        self.env = {**os.environ, "PATH": os.environ["PATH"]}
        self.type(line("fulmar passwd ann"), f"{PASSWORD}\n")
        return replaced(block("toml", "Before you begin"), {'"passwords"': f'"{self.folder}/passwords"'}) + self.more()

    def more(self):
        """What the recipe adds to the settings."""
        return ""

    def setUp(self):
        super().setUp()
        (self.folder / "data").symlink_to(self.broker.data)
        at = self.ports["mqtts"]
        self.words |= {"mqtts://localhost": f"mqtts://localhost:{at}", "venv/bin/python": sys.executable}
        self.env["FULMAR_PASSWORD"] = self.type(line("export ") + "; echo $FULMAR_PASSWORD").strip()
        self.assertEqual(self.env["FULMAR_PASSWORD"], PASSWORD)

    def copy(self, name, changes=None):
        """Copies a file of the recipes; ports and folders in it become the test's."""
        text = replaced((FILES / name).read_text(encoding="utf-8"), changes or {})
        (self.folder / name).write_text(text, encoding="utf-8")


class Clients(Recipe):
    def test_the_page_s_settings_start_a_broker(self):
        self.env |= {f"FULMAR_LISTENERS__{kind.upper()}": '["127.0.0.1:0"]' for kind in self.broker.KINDS}
        found = re.findall(r"```toml\n(.*?)```", pages.page(PAGE), re.DOTALL)
        (self.folder / "fulmar.toml").write_text("\n".join(found))
        out = self.leave(line("fulmar serve"), words={"--data data": "--data own"})
        eventually("the broker", lambda: is_up(out, "ready "))

    def arrives_at(self, subscriber):
        def arrived():
            self.type(line("mosquitto_pub "))
            return 'plant/mill/climate {"temperature": 21.5, "humidity": 48}' in subscriber.text()

        eventually("the reading", arrived, every_s=0.1)

    def test_mosquitto(self):
        self.arrives_at(self.leave(line("mosquitto_sub ")))

    def test_python(self):
        program = replaced(block("python", "Python"), {"8883": self.ports["mqtts"]})
        (self.folder / "readings.py").write_text(program)
        self.arrives_at(self.leave(line("venv/bin/python readings.py")))

    def test_duckdb(self):
        write, read = self.folder / "readings.jsonl", line("venv/bin/python means.py")
        self.leave(line("fulmar sub", "DuckDB"))
        (self.folder / "means.py").write_text(block("python", "DuckDB"))

        def arrived():
            self.type(line("mosquitto_pub "))
            return write.exists() and write.read_text().count("\n") > 1

        eventually("two readings", arrived, every_s=0.1)
        self.assertRegex(self.type(read), r"plant/mill/climate .* 21\.5 ")
        self.assertEqual((self.folder / "readings.parquet").read_bytes()[:4], b"PAR1")

    @unittest.skipUnless(shutil.which("telegraf"), "telegraf is not in the path")
    def test_telegraf(self):
        self.copy("telegraf.conf", {"8883": self.ports["mqtts"]})
        start = "env " + line("MQTT_PASSWORD=", "Telegraf")
        telegraf = self.leave(start)
        written = self.folder / "climate.txt"
        begun = time.time()

        def arrived():
            self.assertIsNone(telegraf.program.poll(), telegraf.text())
            self.type(line("fulmar pub", "Telegraf"))
            return written.exists() and written.read_text()

        eventually("the reading", arrived, every_s=0.2)
        self.assertRegex(written.read_text(), r"(?m)^climate,site=mill\S* temperature=4\.5 \d{19}$")
        self.assertAlmostEqual(int(written.read_text().split()[-1]) / 1e9, begun - 6 * 3600, delta=PATIENCE_S)
        # What is published while Telegraf is stopped waits.
        telegraf.stop()
        self.type(line("fulmar pub", "Telegraf").replace("4.5}", "5.5}"))
        self.leave(start)
        eventually("the later reading", lambda: "temperature=5.5" in written.read_text(), every_s=0.2)


class NodeRed(Recipe):
    def test_a_flow_that_commands(self):
        [self.port] = ports.take(1)
        self.words |= {"node_modules/": f"{ROOT}/tests/interop/node/node_modules/",
                       "--userDir": f"--port {self.port} --userDir"}
        node_red = self.leave(line("node_modules/.bin/node-red "))
        at = f"http://127.0.0.1:{self.port}/flows"

        eventually("Node-RED", lambda: is_up(node_red, "Started flows"), every_s=0.1)
        # As the editor does: it sends the imported flow with the password that was entered.
        flow = json.loads((FILES / "node-red-flow.json").read_text(encoding="utf-8"))
        [broker] = [node for node in flow if node["type"] == "mqtt-broker"]
        self.assertEqual(broker["port"], "8883")
        broker |= {"port": str(self.ports["mqtts"]), "credentials": {"user": "ann", "password": PASSWORD}}
        ask(at, json.dumps(flow).encode(), **{"Content-Type": "application/json"})
        fan = self.leave(line("fulmar sub", "Node-RED"))
        hot = line("fulmar pub", "Node-RED")

        def commanded():
            self.type(hot)
            return fan.text().endswith("plant/mill/fan on\n")

        # More than once, because Node-RED subscribes when it likes.
        try:
            eventually("the command", commanded, every_s=0.1)
        except AssertionError as error:
            raise AssertionError(node_red.text() + (self.broker.data / "log").read_text()) from error
        # Once: one that is on its way when Node-RED is stopped would come again.
        self.type(hot.replace("30.5", "20.5"))
        commands = "plant/mill/fan on\nplant/mill/fan off\n"
        eventually("the other, and only changes", lambda: fan.text() == commands, every_s=0.1)
        # What is published while Node-RED is stopped waits.
        node_red.stop()
        self.type(hot)
        self.leave(line("node_modules/.bin/node-red "))
        eventually("the command", lambda: fan.text() == f"{commands}plant/mill/fan on\n", every_s=0.1)


@unittest.skipUnless(os.path.exists(HOME_ASSISTANT), "Home Assistant is not there (make test-interop), or this is not Python 3.11")
class HomeAssistant(Recipe):
    def more(self):
        return block("toml", "Home Assistant")

    def publish(self, device, quantity, **measurement):
        topic = f"fulmar/rural/sensor/{device}/{quantity}"
        publish = line("fulmar pub", "Home Assistant")
        self.type(replaced(publish, {"fulmar/rural/sensor/attic/temperature": topic,
                                     "-m 21.5": f"-m '{json.dumps(measurement)}'"}))

    def entities(self):
        """The newest state of each entity; None of one that was removed."""
        return dict(json.loads(text) for text in self.core.text().splitlines() if text.startswith("["))

    def become(self, entity, **wanted):
        def shown():
            self.assertIsNone(self.core.program.poll(), self.core.text())
            now = self.entities().get(entity)
            return now and wanted.items() <= now.items()

        try:
            eventually(entity, shown, every_s=0.1)
        except AssertionError as error:
            raise AssertionError(f"{wanted}\n{self.core.text()}") from error

    def set_up(self):
        for begins in ("fulmar twin add rural", "fulmar user token gw-1", "(umask", "fulmar passwd home-assistant"):
            self.type(line(begins, "Home Assistant"))
        self.broker.stop()
        self.broker.start()
        self.copy("home-assistant-discovery.py")
        return replaced(line("venv/bin/python home"), {" rural": f" rural --port {self.ports['mqtts']}"})

    def start_home_assistant(self):
        secret = (self.folder / "home-assistant.password").read_text().strip()
        core = ROOT / "tests/interop/home_assistant/core.py"
        (self.folder / "config").mkdir()
        # It keeps the CA's certificate there.
        self.env["TMPDIR"] = str(self.folder / "config")
        words = [HOME_ASSISTANT, core, "config", self.ports["mqtts"], self.broker.ca, "home-assistant", f"'{secret}'"]
        self.core = self.leave(" ".join(map(str, words)))

    def test_sensors_appear_go_stale_and_are_forgotten(self):
        typed = self.set_up()
        script = self.leave(typed)
        eventually("the twin", lambda: self.run_to_end(line("fulmar pub", "Home Assistant")).returncode == 0, every_s=0.2)
        eventually("the announcement",
                   lambda: "announced fulmar/rural/value/attic/temperature" in script.text(), every_s=0.1)
        old = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=2)
        self.publish("cellar.1", "co2", value=640, at=old.isoformat())
        self.start_home_assistant()
        self.become("sensor.attic_temperature", state="21.5", unit_of_measurement="°C", device_class="temperature",
                    state_class="measurement")
        co2 = {"unit_of_measurement": "ppm", "device_class": "carbon_dioxide"}
        self.become("sensor.cellar_1_co2", state="unavailable", **co2)
        self.publish("cellar.1", "co2", value=700)
        self.become("sensor.cellar_1_co2", state="700.0", **co2)
        self.publish("attic", "radon", value=85)
        self.become("sensor.attic_radon", state="85.0", unit_of_measurement="Bq/m³")
        self.type("fulmar user token office --twin rural --role office --file office.token --data data")
        remove = (f'curl -sS -X DELETE --cacert {self.broker.ca} -H "authorization: Bearer $(cat office.token)" '
                  f"-w '%{{http_code}}' https://localhost:8443/api/v1/rural/sensor/cellar.1")
        eventually("the removal", lambda: self.type(remove).endswith("204"), every_s=0.2)
        eventually("the entity's end", lambda: self.entities()["sensor.cellar_1_co2"] is None, every_s=0.1)
        self.assertIn("withdrawn fulmar/rural/value/cellar.1/co2", script.text())
        self.assertNotIn("rror", self.core.text().split("sensor.cellar_1_co2")[-1], "no template fails")
        # What it had announced of a sensor that was removed while it was stopped.
        script.stop()
        as_ann = f"mqtts://localhost --cafile {self.broker.ca} -u ann -t homeassistant/sensor/fulmar_rural_%s/radon/config"
        self.type(f"fulmar sub {as_ann % 'attic'} -C 1 | sed s/attic/ghost/g > ghost.json")
        self.type(f"fulmar pub {as_ann % 'ghost'} -r -q 1 -f ghost.json")
        eventually("the ghost", lambda: "sensor.ghost_radon" in self.entities(), every_s=0.1)
        again = self.leave(typed)
        eventually("its end", lambda: self.entities()["sensor.ghost_radon"] is None, every_s=0.1)
        self.assertIn("withdrawn fulmar/rural/value/ghost/radon", again.text())
        self.become("sensor.attic_radon", state="85.0")

    def test_a_user_without_the_rule_is_refused_with_a_reason(self):
        typed = replaced(self.set_up(), {" rural": " town"})
        refused = self.run_to_end(typed)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("home-assistant needs an access rule", refused.stderr)


class Database(Recipe):
    """With a PostgreSQL server for the recipe's sinks."""

    def into_the_database(self, sinks):
        self.server = postgres.Server()
        self.addCleanup(self.server.close)
        self.server.sql("CREATE DATABASE history")
        return replaced(sinks, {"postgres://fulmar@db.example.org/history":
                                f"postgres://{postgres.USER}@127.0.0.1:{self.server.port}/history",
                                "/etc/fulmar/history-password": self.server.path / "password"})


class Grafana(Database):
    """The dashboard's queries, as Grafana sends them."""

    RANGE = datetime.timedelta(hours=24)

    def more(self):
        return self.into_the_database(re.search(r"```toml\n(.*?)```", pages.page("docs/sinks.md"), re.DOTALL)[1])

    def rows(self, query):
        """A query's rows for Grafana's user, with macros and variables replaced as Grafana does."""
        now = datetime.datetime.now(datetime.timezone.utc)
        query = re.sub(r"\$__timeGroupAlias\((\w+), *([^)]*)\)",
                       lambda found: self.group(found[1], found[2].replace("$__interval", "1m").strip("'")), query)
        query = re.sub(r"\$__timeFilter\((\w+)\)", rf"\1 BETWEEN '{now - self.RANGE}' AND '{now}'", query)
        query = query.replace("$site", "'mill','tower'")
        self.assertNotIn("$", query)
        return [row.split("|") for row in self.server.sql(f"SET ROLE grafana; {query}", "history").splitlines()]

    def group(self, column, interval):
        seconds = {"m": 60, "h": 3600}[interval[-1]] * int(interval[:-1])
        return f'floor(extract(epoch from {column})/{seconds})*{seconds} AS "time"'

    def publish(self, site, temperature, hours_ago):
        at = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=hours_ago)
        self.type(replaced(line("mosquitto_pub "), {"mill": site, "21.5": temperature}) +
                  f" -D PUBLISH user-property at {at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}")

    def test_each_query_of_the_dashboard_has_the_readings(self):
        readings = [("mill", 21.5, 5), ("mill", 22.5, 1), ("tower", 4.5, 3), ("mill", 23.5, 30)]
        for reading in readings:
            self.publish(*reading)
        count = "SELECT count(*) FROM pg_class WHERE relname = 'climate'"
        eventually("the table", lambda: self.server.sql(count, "history") == "1", every_s=0.1)
        eventually("the rows", lambda: self.server.sql("SELECT count(*) FROM climate", "history") == "4", every_s=0.1)
        self.server.sql(block("sql", "PostgreSQL and Grafana"), "history")
        dashboard = json.loads((FILES / "grafana-climate.json").read_text(encoding="utf-8"))
        [sites] = [variable["query"] for variable in dashboard["templating"]["list"] if variable["name"] == "site"]
        self.assertEqual(self.rows(sites), [["mill"], ["tower"]])
        rows = {panel["title"]: self.rows(target["rawSql"]) for panel in dashboard["panels"] for target in panel["targets"]}
        self.assertEqual(sorted(row[1:] for row in rows.pop("Temperature")),
                         [["mill", "21.5"], ["mill", "22.5"], ["tower", "4.5"]])
        self.assertEqual(sorted(row[1:] for row in rows.pop("Humidity")), [["mill", "48"], ["mill", "48"], ["tower", "48"]])
        self.assertEqual(sorted(row[1:] for row in rows.pop("Readings per hour")),
                         [["mill", "1"], ["mill", "1"], ["tower", "1"]])
        newest = rows.pop("Newest readings")
        self.assertEqual([[row[0], row[2]] for row in newest], [["mill", "22.5"], ["tower", "4.5"]])
        self.assertAlmostEqual(float(newest[0][4]), 3600, delta=PATIENCE_S)
        [[site, _, gap]] = rows.pop("Longest gaps")
        self.assertEqual(site, "mill")
        self.assertAlmostEqual(float(gap), 4 * 3600, delta=PATIENCE_S)
        self.assertEqual(rows, {}, "a panel without expectations")


class Ecosystems(Database):
    # Table, topic, payload (as the projects' documentation and users' reports have them, shortened), columns of the row.
    MESSAGES = [
        ("zigbee", "zigbee2mqtt/attic", '{"battery": 86, "humidity": 55.43, "last_seen": "2023-03-17T12:13:04+01:00",'
         ' "linkquality": 97, "pressure": 1000.6, "temperature": 22.75, "voltage": 2955}',
         {"device": "attic", "temperature": 22.75, "humidity": 55.43, "battery": 86, "linkquality": 97,
          "at": "2023-03-17T11:13:04+00:00"}),
        ("zigbee", "zigbee2mqtt/switch", '{"action": "single"}', {"device": "switch", "temperature": None}),
        ("zigbee", "zigbee2mqtt/leak", '{"battery": "100.00", "voltage": 3045, "linkquality": 99, "water_leak": false}',
         {"device": "leak", "battery": 100}),
        ("tasmota", "tele/pow/SENSOR", '{"Time": "2018-01-17T18:59:50", "ENERGY": {"Total": 1.956, "Yesterday": 0.054,'
         ' "Today": 0.049, "Period": 0, "Power": 9, "Factor": 0.43, "Voltage": 231, "Current": 0.089}}',
         {"device": "pow", "power_w": 9, "energy_kwh": 1.956, "voltage_v": 231, "temperature": None}),
        ("tasmota", "tele/hall/SENSOR", '{"Time": "2026-01-17T18:59:50", "AM2301": {"Temperature": 21.5, "Humidity": 48.1,'
         ' "DewPoint": 10.1}, "TempUnit": "C"}', {"device": "hall", "temperature": 21.5, "humidity": 48.1}),
        ("shelly", "shellyplusht-b8d61a8b17cc/events/rpc", '{"src": "shellyplusht-b8d61a8b17cc", "method": "NotifyFullStatus",'
         ' "params": {"ts": 1680962879.62, "devicepower:0": {"id": 0, "battery": {"V": 0.43, "percent": 0}}, "humidity:0":'
         ' {"id": 0, "rh": 42.2}, "temperature:0": {"id": 0, "tC": 19.8, "tF": 67.6}}}',
         {"device": "shellyplusht-b8d61a8b17cc", "temperature": 19.8, "humidity": 42.2, "battery": 0,
          "at": "2023-04-08T14:07:59.62+00:00"}),
        ("shelly", "shellyplus1pm-a8032abe54dc/events/rpc", '{"src": "shellyplus1pm-a8032abe54dc", "method": "NotifyStatus",'
         ' "params": {"ts": 1680962880, "switch:0": {"id": 0, "apower": 8.9, "aenergy": {"total": 6.532}}}}',
         {"power_w": 8.9, "energy_wh": 6.532, "temperature": None}),
        ("esphome", "attic/sensor/room_temperature/state", "21.5", {"node": "attic", "sensor": "room_temperature", "value": 21.5}),
        ("lorawan", "application/17c82e96/device/0101010101010101/event/up", '{"time": "2022-07-18T09:34:15.775023242+00:00",'
         ' "deviceInfo": {"deviceName": "Cellar", "devEui": "0101010101010101"}, "fCnt": 10, "fPort": 1, "data": "qg==",'
         ' "object": {"temperature": 12.5}}',
         {"dev_eui": "0101010101010101", "device": "Cellar", "counter": 10, "temperature": 12.5, "object": {"temperature": 12.5},
          "at": "2022-07-18T09:34:15.775023+00:00"}),
        ("things_stack", "v3/app1@ttn/devices/dev1/up", '{"end_device_ids": {"device_id": "dev1", "dev_eui":'
         ' "0004A30B001C0530"}, "received_at": "2020-02-12T15:15:46Z", "uplink_message": {"f_port": 1, "received_at":'
         ' "2020-02-12T15:15:45.123456789Z", "decoded_payload": {"temperature": 1.0, "luminosity": 0.64}}}',
         {"device": "dev1", "dev_eui": "0004A30B001C0530", "counter": None, "temperature": 1,
          "decoded": {"temperature": 1, "luminosity": 0.64}, "at": "2020-02-12T15:15:45.123457+00:00"}),
        ("statestream", "statestream/light/kitchen/state", "on", {"domain": "light", "entity": "kitchen", "state": "on"}),
    ]

    def more(self):
        return self.into_the_database((FILES / "ecosystems.toml").read_text(encoding="utf-8"))

    def test_each_format_gives_its_row(self):
        self.copy("ecosystems.toml", {"/etc/fulmar/history-password": self.server.path / "password"})
        tried = json.loads(self.type(line("fulmar sink try zigbee2mqtt")))
        self.assertEqual((tried["device"], tried["temperature"], tried["at"]), ("attic", 22.75, "2026-11-30T12:13:04+01:00"))
        for _, topic, payload, _ in self.MESSAGES:
            self.type(f"fulmar pub mqtts://localhost --cafile data/ca/ca.pem -u ann -t {topic} -q 1 -m '{payload}'")
        for table, topic, _, columns in self.MESSAGES:
            row = self.row(table, topic)
            self.assertEqual({name: row[name] for name in columns}, columns, topic)
        self.type("fulmar pub mqtts://localhost --cafile data/ca/ca.pem -u ann -t attic/sensor/lux/state -q 1 -m nan")
        dead = "fulmar sink dead esphome --config data/fulmar.toml --data data"
        eventually("the dead letter", lambda: "attic/sensor/lux/state" in self.type(dead), every_s=0.1)

    def row(self, table, topic):
        """The only row of a topic."""
        found = []

        def stored():
            made = self.server.sql(f"SELECT to_regclass('{table}')", "history")
            query = f"SET timezone = 'UTC'; SELECT row_to_json(r) FROM {table} AS r WHERE topic = '{topic}'"
            found[:] = map(json.loads, self.server.sql(query, "history").splitlines()) if made else []
            return found

        eventually(topic, stored, every_s=0.1)
        [row] = found
        return row


class LateReadings(Recipe):
    """Line protocol: what was measured six hours ago is stored there."""

    HEADING = "VictoriaMetrics and InfluxDB"

    def more(self):
        [self.victoria, self.influx, self.backup] = ports.take(3)
        settings = replaced(block("toml", self.HEADING), {"127.0.0.1:8428": f"127.0.0.1:{self.victoria}"})
        [address] = re.findall(r"`url = (\"http://127.0.0.1:8086/\S+\")`", pages.page(PAGE))
        # Both at once: the same records for the other address.
        other = replaced(settings, {"sinks.climate": "sinks.influx"})
        return settings + re.sub(r"(?m)^url = .*", f"url = {address.replace('8086', str(self.influx))}", other)

    def setUp(self):
        super().setUp()
        self.words |= {"127.0.0.1:8428": f"127.0.0.1:{self.victoria}", "127.0.0.1:8086": f"127.0.0.1:{self.influx}"}

    def is_six_hours_ago(self, seconds):
        self.assertAlmostEqual(seconds, time.time() - 6 * 3600, delta=2 * PATIENCE_S)

    def test_late_readings_have_their_own_time(self):
        victoria = self.leave(line("victoria-metrics", self.HEADING))
        create, query = line("curl -sS http://127.0.0.1:8086", self.HEADING), line("curl -sS -G ", self.HEADING)
        self.env |= {f"INFLUXDB_{name}": str(self.folder / name) for name in ("DATA_DIR", "META_DIR", "DATA_WAL_DIR")}
        self.env |= {"INFLUXDB_HTTP_BIND_ADDRESS": f"127.0.0.1:{self.influx}", "INFLUXDB_BIND_ADDRESS": f"127.0.0.1:{self.backup}",
                     "INFLUXDB_REPORTING_DISABLED": "true"}
        influx = self.leave("influxd")

        def both():
            for program in (victoria, influx):
                self.assertIsNone(program.program.poll(), program.text())
            return self.run_to_end(create).returncode == 0 and ask(f"http://127.0.0.1:{self.victoria}/health")

        eventually("both databases", both, every_s=0.1)
        self.type(line("fulmar pub", self.HEADING))
        export = line("curl -sS http://127.0.0.1:8428", self.HEADING)
        eventually("the reading", lambda: self.type(export), every_s=0.2)
        [reading] = map(json.loads, self.type(export).splitlines())
        self.assertEqual((reading["metric"]["site"], reading["values"]), ("mill", [4.5]))
        self.is_six_hours_ago(reading["timestamps"][0] / 1000)

        def stored():
            [result] = json.loads(self.type(query))["results"]
            return result.get("series")

        eventually("the reading in InfluxDB", stored, every_s=0.2)
        [series] = stored()
        [row] = [dict(zip(series["columns"], values)) for values in series["values"]]
        self.assertEqual((series["name"], row["site"], row["temperature"]), ("climate", "mill", 4.5))
        self.is_six_hours_ago(datetime.datetime.fromisoformat(row["time"]).timestamp())


class Prometheus(Recipe):
    def test_a_target_behind_caddy_is_up(self):
        proxy, own = ports.take(2)
        self.words |= {"metrics.example.org": "localhost", "prometheus --config.file":
                       f"prometheus --web.listen-address=127.0.0.1:{own} --storage.tsdb.path=tsdb --config.file",
                       "FULMAR_TOKEN=": f"env XDG_CONFIG_HOME={self.folder} FULMAR_TOKEN="}
        self.type(line("fulmar cert issue"))
        address = {"metrics.example.org:9443": f"localhost:{proxy}"}
        self.copy("Caddyfile", {**address, "\ttls": "\tbind 127.0.0.1\n\ttls", "metrics.example.org": "localhost",
                                "127.0.0.1:14568": f"127.0.0.1:{self.ports['http']}"})
        self.type(line("(umask 077; openssl"))
        self.copy("prometheus.yml", {
            **address, "/usr/share/fulmar/prometheus/fulmar.rules.yml": RULES,
            "/etc/prometheus/fulmar-ca.pem": self.broker.ca, "/etc/prometheus/fulmar.token": self.folder / "fulmar.token",
            "scrape_configs:": "global: {scrape_interval: 1s}\nscrape_configs:"})
        caddy = self.leave(line("FULMAR_TOKEN="))
        self.type(line("promtool check config"))
        prometheus = self.leave(line("prometheus --config.file"))

        def query(expression):
            for program in (caddy, prometheus):
                self.assertIsNone(program.program.poll(), program.text())
            answer = ask(f"http://127.0.0.1:{own}/api/v1/query?query={expression}")
            return answer and {tuple(found["metric"].items()): found["value"][1]
                               for found in json.loads(answer)["data"]["result"]}

        try:
            eventually("the target", lambda: list((query("up") or {}).values()) == ["1"], every_s=0.2)
        except AssertionError as error:
            raise AssertionError(ask(f"http://127.0.0.1:{own}/api/v1/targets") + caddy.text()) from error
        eventually("a metric", lambda: query("fulmar_connections"), every_s=0.2)
        rules = json.loads(ask(f"http://127.0.0.1:{own}/api/v1/rules"))["data"]["groups"]
        self.assertGreater(len(rules), 0)
        # Nothing without the token, and nothing else of that port.
        status = f"curl -sS -o answer -w '%{{http_code}}' --cacert {self.broker.ca} https://localhost:{proxy}"
        token = '-H "Authorization: Bearer $(cat fulmar.token)"'
        codes = [self.type(f"{status}{rest}") for rest in (f"/metrics {token}", "/metrics", f"/connections {token}")]
        self.assertEqual(codes, ["200", "401", "401"])


if __name__ == "__main__":
    unittest.main()
