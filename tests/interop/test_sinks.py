"""Sinks into a real PostgreSQL server: what a client saw acknowledged is there once, in the order of its topic, whatever is
killed meanwhile, also behind a gateway and a link that loses datagrams; and the commands of docs/sinks.md, typed as they
stand there.

FULMAR_LEDGER_READINGS and FULMAR_LEDGER_FAULTS make the test with a gateway long (`make ledger-kill-test`)."""

import collections
import os
import random
import re
import shlex
import signal
import subprocess
import threading
import time
import unittest

import postgres
from broker import PATIENCE_S, Broker, binary, eventually
from pages import ROOT, lines
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho_client import lasting_client
from relay import Relay

PUBLISHERS = 4
# Of each publisher; fewer than there are packet identifiers, by which they are counted.
MESSAGES = 1500
KILLS = int(os.environ.get("FULMAR_SINK_KILLS", "4"))
CRASHES = 2
# Behind a gateway: readings of all devices, and faults, each of which hits one of the places in turn.
LEDGER_READINGS = int(os.environ.get("FULMAR_LEDGER_READINGS", "1200"))
LEDGER_FAULTS = int(os.environ.get("FULMAR_LEDGER_FAULTS", "6"))
LEDGER_LOSS = 0.05
# What `speed` measures.
SPEED_MESSAGES = int(os.environ.get("FULMAR_SINK_SPEED", "0"))


def page_settings():
    """The first settings of the page."""
    page = (ROOT / "docs/sinks.md").read_text(encoding="utf-8")
    return re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1]


class Device:
    """Publishes numbered readings at QoS 1, one after the other, with identifiers of its own."""

    def __init__(self, case, gateway, number, readings):
        self.number, self.readings, self.acknowledged = number, readings, 0
        self.answered = threading.Semaphore(0)
        self.client = case.publisher(gateway, f"device-{number}")
        self.client.on_publish = lambda client, data, mid, code, properties: self.answered.release()
        threading.Thread(target=self.publish, daemon=True).start()

    def publish(self):
        for n in range(self.readings):
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = [("id", f"g{self.number}-{n}")]
            self.client.publish(f"plant/{self.number}", f'{{"n": {n}}}', 1, properties=properties)
            if not self.answered.acquire(timeout=2 * PATIENCE_S):
                return
            self.acknowledged += 1


class Sinks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = postgres.Server()
        cls.addClassCleanup(cls.server.close)

    def database(self, name):
        self.server.sql(f"CREATE DATABASE {name}")
        return f"postgres://{postgres.USER}@127.0.0.1:{self.server.port}/{name}"

    def settings(self, name, more):
        password = self.server.path / "password"
        return f'[sinks.history]\nkind = "postgres"\nurl = "{self.database(name)}"\npassword_file = "{password}"\n{more}'

    def broker(self, settings):
        broker = Broker(settings)
        self.addCleanup(broker.close)
        return broker

    def publisher(self, broker, name):
        client = lasting_client(name, broker.ports["mqtt"])
        client.loop_start()
        self.addCleanup(client.loop_stop)
        self.addCleanup(client.disconnect)
        return client

    def metric(self, broker, name):
        page = subprocess.run(["curl", "-sS", f"http://127.0.0.1:{broker.ports['http']}/metrics"], check=True,
                              capture_output=True, text=True).stdout
        found = re.search(rf'^fulmar_{name}{{sink="history"}} (\S+)$', page, re.MULTILINE)
        return float(found[1])

    def ledger(self, name):
        """A broker whose sink writes numbered readings into a table that numbers its rows, in their order."""
        broker = self.broker(self.settings(name, 'filters = ["plant/#"]\ntable = "reading"\n'
                                           '[sinks.history.columns]\nn = { from = "/n", type = "integer" }\n'))
        self.server.sql("CREATE TABLE reading (seq bigserial, id text PRIMARY KEY, at timestamptz NOT NULL,"
                        " topic text NOT NULL, n bigint)", name)
        return broker

    def check_ledger(self, broker, name, total):
        """Each reading is there once, in the order of its topic, and none is a dead letter."""
        eventually("all rows", lambda: int(self.server.sql("SELECT count(*) FROM reading", name)) >= total, every_s=0.2)
        self.assertEqual(self.server.sql("SELECT count(*), count(DISTINCT id), count(DISTINCT (topic, n)) FROM reading",
                                         name), f"{total}|{total}|{total}")
        wrong = "SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY topic ORDER BY seq) AS before FROM reading) AS r"
        self.assertEqual(self.server.sql(f"{wrong} WHERE before >= n", name), "0", "in the order of each topic")
        self.assertEqual(self.metric(broker, "sink_dead_total"), 0)

    def test_what_is_acknowledged_is_there_once_and_in_order(self):
        broker = self.ledger("ledger")
        acknowledged = [set() for _ in range(PUBLISHERS)]

        def publish(number):
            client = self.publisher(broker, f"device-{number}")

            def on_publish(client, data, mid, code, properties):
                if not code.is_failure:
                    acknowledged[number].add(mid)

            client.on_publish = on_publish
            for n in range(MESSAGES):
                properties = Properties(PacketTypes.PUBLISH)
                properties.UserProperty = [("id", f"d{number}-{n}")]
                while n - len(acknowledged[number]) > 200:
                    time.sleep(0.005)
                client.publish(f"plant/{number}", f'{{"n": {n}}}', 1, properties=properties)

        publishers = [threading.Thread(target=publish, args=[number], daemon=True) for number in range(PUBLISHERS)]
        for publisher in publishers:
            publisher.start()
        total = PUBLISHERS * MESSAGES

        def count():
            return sum(map(len, acknowledged))

        faults = ["fulmar"] * KILLS + ["crash"] * CRASHES
        for part, how in enumerate(faults, start=1):
            eventually("a part", lambda: count() >= part * total // (len(faults) + 2))
            if how == "fulmar":
                broker.kill()
                broker.start()
            else:
                self.server.stop(signal.SIGQUIT)
                before = count()
                eventually("messages while the database is away", lambda: count() > before + 50 or count() == total)
                self.server.start()
        eventually("all acknowledgements", lambda: count() == total)
        self.check_ledger(broker, "ledger", total)

    def test_rows_that_do_not_fit_the_table_and_a_table_that_is_wrong(self):
        broker = self.broker(self.settings("shop", 'filters = ["a/#"]\ntable = "own"\nbatch_interval_ms = 20\n'
                                           '[sinks.history.columns]\nn = { from = "/n", type = "integer" }\n'
                                           't = { from = "/t", type = "text" }\n'))
        client = self.publisher(broker, "shop")

        def publish(*payloads):
            for payload in payloads:
                client.publish("a/b", payload, 1).wait_for_publish(60)

        def rows():
            return self.server.sql("SELECT coalesce(string_agg(n::text, ',' ORDER BY n), '') FROM own", "shop")

        publish('{"n": 1}')
        eventually("the table and its first row", lambda: self.metric(broker, "sink_written_total") == 1)
        self.server.sql("ALTER TABLE own ADD CHECK (n <> 3)", "shop")
        publish('{"n": 2}', '{"n": 3}', '{"n": "four"}', '{"n": 5, "t": "\\u0000"}', '{"n": 6}')
        eventually("the good ones", lambda: rows() == "1,2,6")
        eventually("the bad ones", lambda: self.metric(broker, "sink_dead_total") == 3)
        # Somebody breaks the table: everything waits, and goes on as soon as it is whole.
        self.server.sql("ALTER TABLE own DROP CONSTRAINT own_pkey", "shop")
        self.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop'", "postgres")
        publish('{"n": 7}')
        eventually("the state", lambda: self.metric(broker, "sink_state") == 2)
        self.assertIn("CREATE UNIQUE INDEX", (broker.data / "log").read_text())
        self.server.sql("CREATE UNIQUE INDEX ON own (at, id)", "shop")
        eventually("the rest", lambda: rows() == "1,2,6,7")
        self.server.sql("ALTER TABLE own DROP CONSTRAINT own_n_check", "shop")
        done = subprocess.run([binary(), "sink", "retry", "history", "--config", broker.data / "fulmar.toml", "--data",
                               broker.data], check=False, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, "1 written, 2 still do not fit\n")
        self.assertEqual(rows(), "1,2,3,6,7")

    def test_a_value_that_does_not_fit_the_tables_own_type_is_not_rounded(self):
        broker = self.broker(self.settings("types", 'filters = ["a/#"]\ntable = "own"\nbatch_interval_ms = 20\n'
                                           '[sinks.history.columns]\nm = { from = "/m", type = "number" }\n'
                                           't = { from = "/t", type = "text" }\n'))
        self.server.sql("CREATE TABLE own (id text PRIMARY KEY, at timestamptz, topic text, m integer, t varchar(3))", "types")
        client = self.publisher(broker, "types")
        for payload in ('{"m": 21.5}', '{"m": 21}', '{"t": "abcd"}', '{"t": "abc"}'):
            client.publish("a/b", payload, 1).wait_for_publish(60)
        eventually("all", lambda: self.metric(broker, "sink_dead_total") + self.metric(broker, "sink_written_total") == 4)
        self.assertEqual(self.server.sql("SELECT coalesce(m::text, t) FROM own ORDER BY 1", "types"), "21\nabc")

    def test_the_commands_of_the_page(self):
        password = self.server.path / "password"
        settings = page_settings().replace("/etc/fulmar/history-password", str(password))
        url = self.database("history")
        settings = re.sub(r"postgres://[^\"]*", url, settings)
        broker = self.broker(settings)
        environment = {**os.environ, "FULMAR_DATA": str(broker.data)}

        def type_line(begins, code=0):
            [command] = [line for line in lines("docs/sinks.md", "fulmar sink ") if line.startswith(begins)]
            words = [binary() if word == "fulmar" else word for word in shlex.split(command)]
            done = subprocess.run(words, cwd=broker.data, env=environment, check=False, capture_output=True, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
            return done.stdout

        self.assertIn('"site":"mill","temperature":21.5', type_line("fulmar sink try"))
        client = self.publisher(broker, "page")
        client.publish("plant/mill/climate", '{"temperature": 21.5, "humidity": 48}', 1).wait_for_publish(60)
        client.publish("plant/mill/climate", '{"humidity": 48}', 1).wait_for_publish(60)
        eventually("a row", lambda: self.metric(broker, "sink_written_total") == 1)
        self.assertEqual(self.server.sql("SELECT topic, site, temperature, humidity FROM climate", "history"),
                         "plant/mill/climate|mill|21.5|48")
        eventually("a dead letter", lambda: self.metric(broker, "sink_dead_total") == 1)
        self.assertIn("temperature is required", type_line("fulmar sink dead"))
        self.assertEqual(type_line("fulmar sink retry", 1), "0 written, 1 still do not fit\n")
        self.assertNotIn(postgres.PASSWORD, (broker.data / "log").read_text())

    def test_readings_of_a_gateway_are_there_once_and_in_order(self):
        """Devices, a gateway with its outbox, a link that loses datagrams, a broker, and the database."""
        seed = int(os.environ.get("FULMAR_LEDGER_SEED") or random.randrange(1 << 32))
        print(f"seed {seed}", flush=True)
        chance = random.Random(seed)
        broker = self.ledger("outbox")
        link = Relay(broker.ports["quic"], LEDGER_LOSS, seed)
        self.addCleanup(link.close)
        gateway = self.broker(f'[upstream]\nurl = "quic://localhost:{link.port}"\nfallback_port = 0\nca_file = "{broker.ca}"\n'
                              'name = "site"\n[[upstream.up]]\nfilter = "plant/#"\n')
        devices = [Device(self, gateway, number, LEDGER_READINGS // PUBLISHERS) for number in range(PUBLISHERS)]
        total = LEDGER_READINGS // PUBLISHERS * PUBLISHERS

        def count():
            return sum(device.acknowledged for device in devices)

        def go_on():
            """Devices and what waits for the fault's end."""
            wanted = count() + chance.randrange(20, 60)
            eventually("readings meanwhile", lambda: count() >= min(wanted, total))

        def cut_the_link():
            link.loss = 1
            go_on()
            link.loss = LEDGER_LOSS

        def restart(program):
            program.kill()
            program.start()

        def crash_the_database():
            self.server.stop(signal.SIGQUIT)
            go_on()
            self.server.start()

        # The gateway without the link, and the broker while the database is away, too.
        def restart_within(fault, program):
            def both():
                timer = threading.Timer(chance.uniform(0, 0.3), restart, [program])
                timer.start()
                fault()
                timer.join()

            return both

        faults = {
            "gateway": lambda: restart(gateway), "broker": lambda: restart(broker), "link": cut_the_link,
            "database": crash_the_database, "link, gateway": restart_within(cut_the_link, gateway),
            "database, broker": restart_within(crash_the_database, broker),
        }
        done = collections.Counter()
        for part in range(LEDGER_FAULTS):
            eventually("a part", lambda part=part: count() >= (part + chance.random()) * total / (LEDGER_FAULTS + 1))
            # Each once before any comes again.
            name = chance.choice([name for name in faults if done[name] == min(done[name] for name in faults)])
            done[name] += 1
            faults[name]()
        eventually("all acknowledgements", lambda: count() == total)
        self.check_ledger(broker, "outbox", total)
        print(f"{total} readings, {dict(done)}, {link.lost} datagrams lost", flush=True)

    @unittest.skipUnless(SPEED_MESSAGES, "FULMAR_SINK_SPEED says how many messages are measured")
    def test_speed(self):
        broker = self.broker(self.settings("speed", 'filters = ["plant/#"]\ntable = "climate"\n[sinks.history.columns]\n'
                                           'site = { from = "{2}", type = "text" }\n'
                                           'temperature = { from = "/temperature", type = "number" }\n'
                                           'humidity = { from = "/humidity", type = "number" }\n'
                                           "[limits]\nmax_queued_messages = 1000000\nmax_queued_bytes = 1000000000\n"))

        def cpu_s():
            fields = open(f"/proc/{broker.process.pid}/stat", encoding="utf-8").read().rsplit(") ", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        publishers = [self.publisher(broker, f"fast-{number}") for number in range(4)]
        # Queued while the database is away: writing alone is measured.
        self.server.stop(signal.SIGQUIT)
        for n in range(SPEED_MESSAGES):
            publishers[n % 4].publish(f"plant/s{n % 50}/climate", f'{{"temperature": {n / 7:.3f}, "humidity": {n % 100}}}', 1)
        eventually("the queue", lambda: self.metric(broker, "sink_queued_messages") >= SPEED_MESSAGES, 300, 0.2)
        cpu = cpu_s()
        self.server.start()
        eventually("a first row", lambda: self.metric(broker, "sink_written_total") > 0, 60, 0.02)
        begun = time.monotonic()
        first = self.metric(broker, "sink_written_total")
        eventually("all rows", lambda: self.metric(broker, "sink_written_total") >= SPEED_MESSAGES, 300, 0.05)
        took = time.monotonic() - begun
        print(f"\n{(SPEED_MESSAGES - first) / took:.0f} messages/s; {(cpu_s() - cpu) / SPEED_MESSAGES * 1e6:.1f} µs of CPU each")
        self.assertEqual(self.server.sql("SELECT count(*) FROM climate", "speed"), str(SPEED_MESSAGES))


if __name__ == "__main__":
    unittest.main()
