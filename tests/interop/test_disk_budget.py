"""A reader who uploads photos as fast as the server accepts them fills a share of the disk budget, and nothing else."""

import threading
import urllib.error
import urllib.request
import uuid

import paho.mqtt.client as mqtt

from api import Api

BUDGET = 64_000_000
PHOTO = b"\xff\xd8\xff" + bytes(500_000)
# Far above what fits, so that the test ends if nothing is refused.
MOST = 400


class DiskBudget(Api):
    SETTINGS = '[limits]\ndisk = "64MB"\n'

    def upload(self, twin, token, photo=PHOTO):
        """The status of the answer."""
        try:
            self.call("PUT", f"/api/v1/{twin}/photo/{uuid.uuid4()}", photo, token, "image/jpeg")
            return 201
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def flood(self, twin, token):
        """Four uploads at once until one is refused; how many were stored, and the statuses of the others."""
        statuses, sizes, threads = [], [], []

        def one():
            while len(statuses) < MOST and (not statuses or statuses[-1] == 201):
                statuses.append(self.upload(twin, token))
                sizes.append(self.folder_bytes())

        for _ in range(4):
            threads.append(threading.Thread(target=one))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self.assertLess(max(sizes), BUDGET)
        return statuses.count(201), {status for status in statuses if status != 201}

    def folder_bytes(self):
        total = 0
        for path in self.broker.data.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except OSError:
                pass
        return total

    def metric(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.broker.ports['http']}/metrics") as page:
            lines = page.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))

    def test_photos_are_refused_and_everything_else_goes_on(self):
        reader, office, south = map(self.log_in, ("north-reader", "north-office", "south-reader"))
        stored, refused = self.flood("north", reader)
        self.assertEqual(refused, {507})
        limit = self.metric('fulmar_disk_limit_bytes{account="photos"}')
        self.assertGreater(stored * len(PHOTO), limit / 3, "half of the part, or nearly")
        self.assertLess(stored * len(PHOTO), 0.7 * limit)
        self.assertEqual(self.upload("north", office, PHOTO[:50_000]), 201, "another account of the twin")
        self.assertEqual(self.upload("south", south), 201, "another twin")
        self.call("POST", "/api/v1/north/meter", {"id": "m1", "address": "SEN-33225544-68-07"}, self.log_in("north-admin"))
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        client.connect("127.0.0.1", self.broker.ports["mqtt"])
        client.loop_start()
        self.addCleanup(client.loop_stop)
        published = client.publish("kept", b"x" * 100_000, qos=1, retain=True)
        published.wait_for_publish(30)
        self.assertTrue(published.is_published())
        self.assertGreater(self.metric('fulmar_disk_refused_total{account="photos"}'), 0)
        self.assertGreater(self.metric('fulmar_disk_used_bytes{account="platform"}'), stored * len(PHOTO))
        lines = [line for line in (self.broker.data / "log").read_text().splitlines() if "photo refused" in line]
        self.assertEqual(len(lines), 1, lines)
        self.assertIn("[limits] disk", lines[0])
        self.assertLess(self.folder_bytes(), BUDGET)
