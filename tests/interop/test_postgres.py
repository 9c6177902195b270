"""The platform in a real PostgreSQL server: what is asked is answered as from SQLite, and what was acknowledged is
there once, whatever is killed or started again meanwhile."""

import datetime
import http.client
import json
import signal
import subprocess
import threading
import unittest
import urllib.error
import urllib.request

import postgres
from api import Api
from broker import Broker, binary, eventually

BATCH = 50
BATCHES = 60


def moment(n):
    at = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0) - datetime.timedelta(hours=2)
    return (at + datetime.timedelta(seconds=n)).isoformat().replace("+00:00", "Z")


class Postgres(Api):
    @classmethod
    def setUpClass(cls):
        cls.server = postgres.Server()
        cls.addClassCleanup(cls.server.close)
        cls.server.sql("CREATE DATABASE platform")
        password = cls.server.path / "password"
        cls.SETTINGS = (
            f'[platform]\ndatabase = "postgres://{postgres.USER}@127.0.0.1:{cls.server.port}/platform"\n'
            f'database_password_file = "{password}"\n'
        )
        super().setUpClass()

    def count(self, table, where="true"):
        return int(self.server.sql(f"SELECT count(*) FROM fulmar.{table} WHERE {where}", "platform"))

    def test_everything_is_kept_there(self):
        self.assertFalse((self.broker.data / "platform.db").exists())
        admin, device = self.log_in("north-admin"), self.log_in("north-device")
        for meter in ("b", "B", "a", "_".join("cd"), "A1"):
            self.call("POST", "/api/v1/north/meter", {"id": meter, "street": "Ähre ÄH 100%"}, admin)
        listed = [item["id"] for item in self.call("GET", "/api/v1/north/meter", token=admin)["items"]]
        self.assertEqual(listed, sorted(listed), "in the order of bytes")
        found = self.call("GET", "/api/v1/north/meter?q=hre%20%C3%84h%20100%25", token=admin)["items"]
        self.assertEqual(len(found), len(listed), "ASCII in whatever letters")
        reading = {"id": "00000000-0000-4000-8000-000000000001", "meter": "a", "at": moment(0), "value": 7.5,
                   "method": "manual"}
        for _ in range(2):
            self.call("POST", "/api/v1/north/reading", {"items": [reading]}, admin)
        self.assertEqual(self.count("reading", "twin = 'north' AND meter = 'a'"), 1)
        self.assertEqual(self.call("GET", "/api/v1/north/meter/a", token=admin)["last"]["value"], 7.5)

        self.call("POST", "/api/v1/north/home", {"id": "mill", "name": "Mill"}, admin)
        self.call("PUT", "/api/v1/north/sensor/attic", {"home": "mill", "room": "Attic"}, admin)
        items = [{"device": "attic", "quantity": "radon", "at": moment(240 * n), "value": 900, "unit": "Bq/m³",
                  "id": f"r-{n}"} for n in range(20)]
        for _ in range(2):
            self.call("POST", "/api/v1/north/measurement", {"items": items}, device)
        points = self.call("GET", "/api/v1/north/series?device=attic&quantity=radon&step=raw", token=admin)["points"]
        self.assertEqual([point["at"] for point in points], [item["at"].replace("Z", ".000Z") for item in items])
        active = self.call("GET", "/api/v1/north/alert?state=active", token=admin)["items"]
        self.assertEqual([(alert["rule"], alert["device"]) for alert in active], [("radon", "attic")])
        self.assertEqual(self.call("GET", "/api/v1/north/home/mill", token=admin)["values"][0]["value"], 900)

    def test_a_second_server_is_refused(self):
        config = self.broker.data / "second.toml"
        listeners = [f'{kind} = ["127.0.0.1:0"]' for kind in Broker.KINDS]
        config.write_text("[listeners]\n" + "\n".join(listeners) + "\n" + self.SETTINGS)
        line = [binary(), "serve", "--config", str(config), "--data", str(self.broker.data / "second")]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("another Fulmar server uses this database", done.stderr)

    def test_what_is_acknowledged_is_there_once(self):
        device = self.log_in("south-device")
        acknowledged, over = [], threading.Event()

        def upload():
            for batch in range(BATCHES):
                numbers = range(batch * BATCH, (batch + 1) * BATCH)
                items = [{"device": "shed", "quantity": "co2", "at": moment(n), "value": 400 + n % 50, "unit": "ppm",
                          "id": f"s-{n}"} for n in numbers]
                while not over.is_set():
                    try:
                        self.call("POST", "/api/v1/south/measurement", {"items": items}, device)
                        acknowledged.append(batch)
                        break
                    except urllib.error.HTTPError as error:
                        problem = json.loads(error.read())
                        if error.code != 503 or error.headers["content-type"] != "application/problem+json":
                            raise AssertionError(problem) from error
                    except (urllib.error.URLError, ConnectionError, http.client.HTTPException, TimeoutError):
                        pass
                    # Who asks too often is told something else.
                    over.wait(0.05)

        uploader = threading.Thread(target=upload)
        uploader.start()
        self.addCleanup(uploader.join)
        self.addCleanup(over.set)
        for part, how in enumerate(["server", "fulmar", "connections", "crash"], start=1):
            eventually("a part", lambda: len(acknowledged) >= part * BATCHES // 6 or not uploader.is_alive())
            if how == "fulmar":
                self.broker.kill()
                self.broker.start()
            elif how == "connections":
                self.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'platform'")
            else:
                self.server.stop(signal.SIGQUIT if how == "crash" else signal.SIGINT)
                self.server.start()
            stored = self.count("measurement_id", "twin = 'south'")
            self.assertGreaterEqual(stored, BATCH * part * BATCHES // 6, "acknowledged means durable")
        eventually("everything", lambda: not uploader.is_alive())
        self.assertEqual(acknowledged, list(range(BATCHES)))
        total = BATCH * BATCHES
        self.assertEqual(self.count("measurement_id", "twin = 'south'"), total)
        of_it = "series = (SELECT seq FROM fulmar.series WHERE twin = 'south')"
        self.assertEqual(self.count("measurement", of_it), total)
        sums = self.server.sql(f"SELECT sum(count), sum(sum) FROM fulmar.series_day WHERE {of_it}", "platform")
        self.assertEqual(sums, f"{total}|{sum(400 + n % 50 for n in range(total))}")

    @classmethod
    def tearDownClass(cls):
        log = (cls.broker.data / "log").read_text()
        assert postgres.PASSWORD not in log and postgres.PASSWORD.replace(" ", "%20") not in log
        super().tearDownClass()


if __name__ == "__main__":
    unittest.main()
