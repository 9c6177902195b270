"""The dashboard and the alert rules of packaging/ with Debian's Prometheus: each expression returns data of a broker
and a gateway in use, and each alert fires on the series that it is for and not on others."""

import json
import math
import pathlib
import re
import subprocess
import tempfile
import threading
import unittest
import urllib.error
import urllib.parse
import urllib.request

import paho.mqtt.client as paho

import ports
from broker import PATIENCE_S, Broker, binary, eventually
from test_gateway import settings

PACKAGING = pathlib.Path(__file__).resolve().parents[2] / "packaging"
DASHBOARD = PACKAGING / "grafana" / "fulmar.json"
RULES = PACKAGING / "prometheus" / "fulmar.rules.yml"
# At the end of an alert's expression.
THRESHOLD = re.compile(r" (?:>|<|==) [\d.e+]+$")
BROKER, STEADY = '{instance="a",job="fulmar"}', "5+0x600"
GATEWAY = '{instance="a",job="fulmar",upstream=""}'

# What fires each alert, and what does not: series as promtool writes them, a value per minute from the start.
FIRES = {
    "FulmarDown": ({f"up{BROKER}": "0x600"}, {f"up{BROKER}": "1x600"}),
    "FulmarRestarts": (
        {f"process_start_time_seconds{BROKER}": "0+300x600"},
        {f"process_start_time_seconds{BROKER}": "1x600"},
    ),
    "FulmarStorageFailing": ({f"fulmar_storage_failing{BROKER}": "1x600"}, {f"fulmar_storage_failing{BROKER}": "0x600"}),
    "FulmarStorageRefuses": (
        {f"fulmar_storage_refused_total{BROKER}": "0+1x600"},
        {f"fulmar_storage_refused_total{BROKER}": STEADY},
    ),
    "FulmarStorageSlow": (
        {
            'fulmar_storage_commit_seconds_bucket{instance="a",le="0.25"}': "0x600",
            'fulmar_storage_commit_seconds_bucket{instance="a",le="1"}': "0+60x600",
            'fulmar_storage_commit_seconds_bucket{instance="a",le="+Inf"}': "0+60x600",
        },
        {
            'fulmar_storage_commit_seconds_bucket{instance="a",le="0.25"}': "0+60x600",
            'fulmar_storage_commit_seconds_bucket{instance="a",le="1"}': "0+60x600",
            'fulmar_storage_commit_seconds_bucket{instance="a",le="+Inf"}': "0+60x600",
        },
    ),
    "FulmarDiskNearlyFull": (
        {f"fulmar_data_free_bytes{BROKER}": "9x600", f"fulmar_data_size_bytes{BROKER}": "100x600"},
        {f"fulmar_data_free_bytes{BROKER}": "11x600", f"fulmar_data_size_bytes{BROKER}": "100x600"},
    ),
    "FulmarDiskFullTomorrow": (
        {f"fulmar_data_free_bytes{BROKER}": "1900-1x600"},
        {f"fulmar_data_free_bytes{BROKER}": "9000-1x600"},
    ),
    "FulmarMemoryBudget": (
        {'fulmar_memory_used_bytes{account="input"}': "81x600", 'fulmar_memory_limit_bytes{account="input"}': "100x600"},
        {'fulmar_memory_used_bytes{account="input"}': "79x600", 'fulmar_memory_limit_bytes{account="input"}': "100x600"},
    ),
    "FulmarMemoryRefuses": (
        {f"fulmar_memory_refused_total{BROKER}": "0+1x600"},
        {f"fulmar_memory_refused_total{BROKER}": STEADY},
    ),
    "FulmarMessagesDropped": (
        {f"fulmar_messages_dropped_queue_total{BROKER}": "0+1x600", f"fulmar_messages_dropped_size_total{BROKER}": "0x600"},
        {f"fulmar_messages_dropped_queue_total{BROKER}": STEADY, f"fulmar_messages_dropped_size_total{BROKER}": "0x600"},
    ),
    "FulmarConnectionsRefused": (
        {f"fulmar_connections_refused_total{BROKER}": STEADY, f"fulmar_accept_failed_total{BROKER}": "0+1x600"},
        {f"fulmar_connections_refused_total{BROKER}": STEADY, f"fulmar_accept_failed_total{BROKER}": STEADY},
    ),
    "FulmarLoginsFail": (
        {f"fulmar_authentication_failed_total{BROKER}": "0+90x600"},
        {f"fulmar_authentication_failed_total{BROKER}": "0+30x600"},
    ),
    "FulmarAccessDenied": (
        {f"fulmar_access_denied_total{BROKER}": "0+90x600"},
        {f"fulmar_access_denied_total{BROKER}": "0+30x600"},
    ),
    "FulmarQuicLoss": (
        {f"fulmar_quic_lost_packets_total{BROKER}": "0+30x600", f"fulmar_quic_sent_packets_total{BROKER}": "0+100x600"},
        {f"fulmar_quic_lost_packets_total{BROKER}": "0+10x600", f"fulmar_quic_sent_packets_total{BROKER}": "0+100x600"},
    ),
    # promtool's time begins with 1970, and the alerts are evaluated ten hours later.
    "FulmarCertificateExpires": (
        {f"fulmar_certificate_expires_seconds{BROKER}": "1200000x600"},
        {f"fulmar_certificate_expires_seconds{BROKER}": "1300000x600"},
    ),
    "FulmarGatewayDisconnected": (
        {f'fulmar_gateway_connected{{instance="a",transport="{kind}"}}': "0x600" for kind in ("quic", "mqtts")},
        {f'fulmar_gateway_connected{{instance="a",transport="{kind}"}}': f"{int(kind == 'quic')}x600"
         for kind in ("quic", "mqtts")},
    ),
    "FulmarGatewayBacklog": ({f"fulmar_gateway_oldest_seconds{GATEWAY}": "901x600"},
                             {f"fulmar_gateway_oldest_seconds{GATEWAY}": "60x600"}),
    "FulmarGatewayOutboxFailing": ({f"fulmar_gateway_outbox_failing{GATEWAY}": "1x600"},
                                   {f"fulmar_gateway_outbox_failing{GATEWAY}": "0x600"}),
    "FulmarGatewayDrops": ({'fulmar_gateway_dropped_total{reason="full"}': "0+1x600"},
                           {'fulmar_gateway_dropped_total{reason="circle"}': "0+1x600"}),
    "FulmarGatewayRefused": ({f"fulmar_gateway_refused_since_seconds{GATEWAY}": "100x600"},
                             {f"fulmar_gateway_refused_since_seconds{GATEWAY}": "0x600"}),
    "FulmarMeasurementsRejected": (
        {'fulmar_measurements_total{outcome="rejected"}': "0+1x600", "fulmar_sensor_messages_malformed_total": "0x600"},
        {'fulmar_measurements_total{outcome="stored"}': "0+1x600", "fulmar_sensor_messages_malformed_total": "0x600"},
    ),
    "FulmarMqttSnDrops": (
        {f"fulmar_mqtt_sn_dropped_total{BROKER}": "0+1x600", f"fulmar_mqtt_sn_overrun_total{BROKER}": "0x600"},
        {f"fulmar_mqtt_sn_dropped_total{BROKER}": "0x600", f"fulmar_mqtt_sn_overrun_total{BROKER}": "0x600"},
    ),
    "FulmarClusterNobodyServes": ({f"fulmar_cluster_serves{BROKER}": "0x600"}, {f"fulmar_cluster_serves{BROKER}": "1x600"}),
    "FulmarClusterNoStandby": (
        {f"fulmar_cluster_standby_nodes{BROKER}": "0x600"},
        {f"fulmar_cluster_standby_nodes{BROKER}": "2x600"},
    ),
    "FulmarClusterBehind": (
        {f"fulmar_cluster_behind_records{BROKER}": "20000x600"},
        {f"fulmar_cluster_behind_records{BROKER}": "20x600"},
    ),
    "FulmarClusterLogLong": (
        {f"fulmar_cluster_log_bytes{BROKER}": "2000000000x600"},
        {f"fulmar_cluster_log_bytes{BROKER}": "500000000x600"},
    ),
    "FulmarClusterLogReplicas": (
        {f"fulmar_cluster_log_replicas{BROKER}": "2x600"},
        {f"fulmar_cluster_log_replicas{BROKER}": "3x600"},
    ),
    "FulmarClusterNats": (
        {f"fulmar_cluster_nats_connected{BROKER}": "0x600"},
        {f"fulmar_cluster_nats_connected{BROKER}": "1x600"},
    ),
}


class Prometheus:
    """Debian's, on a port of its own; scrapes `targets` every second."""

    def __init__(self, targets):
        self.folder = tempfile.TemporaryDirectory()
        path = pathlib.Path(self.folder.name)
        scrape = {"job_name": "fulmar", "static_configs": [{"targets": targets}]}
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": [scrape],
        }
        # JSON is YAML.
        (path / "prometheus.yml").write_text(json.dumps(config))
        (self.port,) = ports.take(1)
        command = ["prometheus", f"--config.file={path}/prometheus.yml", f"--storage.tsdb.path={path}/data",
                   f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]
        self.process = subprocess.Popen(command)

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.folder.cleanup()

    def get(self, path, **query):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {error.read().decode()}") from error

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=PATIENCE_S):
                return True
        except urllib.error.URLError:
            return False

    def has_data(self, expression):
        """Whether there is a number; 0 by 0 is none."""
        return any(not math.isnan(float(series["value"][1])) for series in self.get("query", query=expression)["result"])

    def rules(self):
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]


def dashboard():
    """The expressions of the dashboard's panels, with Grafana's variables replaced."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    for panel in panels:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")


class Installation:
    """A broker and a gateway, with a client that publishes over QUIC, a device at the gateway, and a sensor."""

    def __init__(self, case):
        self.case = case
        self.upstream = Broker()
        case.addCleanup(self.upstream.close)
        self.gateway = Broker(settings(self.upstream))
        case.addCleanup(self.gateway.close)
        over_quic = [binary(), "pub", f"quic://localhost:{self.upstream.ports['quic']}", "--cafile", self.upstream.ca,
                     "-t", "load", "-l", "-q", "1"]
        self.over_quic = subprocess.Popen(over_quic, stdin=subprocess.PIPE, text=True)
        self.device = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self.device.connect("127.0.0.1", self.gateway.ports["mqtt"])
        self.device.loop_start()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work)
        self.thread.start()
        case.addCleanup(self.end)

    def work(self):
        while not self.ended.wait(0.1):
            self.over_quic.stdin.write("21.5\n")
            self.over_quic.stdin.flush()
            self.device.publish("sensor/cellar/temperature", "12", 1)
            path = f"https://localhost:{self.upstream.ports['https']}/status"
            subprocess.run(["curl", "-s", "-o", "/dev/null", "--cacert", self.upstream.ca, path], check=False)

    def end(self):
        self.ended.set()
        self.thread.join(PATIENCE_S)
        # It would wait for the broker, which has ended.
        self.over_quic.kill()
        self.over_quic.communicate()
        self.device.loop_stop()


class Monitored(unittest.TestCase):
    def test_each_expression_returns_data_and_alerts_report_what_is_wrong(self):
        installation = Installation(self)
        (nobody,) = ports.take(1)
        brokers = [f"127.0.0.1:{broker.ports['http']}" for broker in (installation.upstream, installation.gateway)]
        prometheus = Prometheus([*brokers, f"127.0.0.1:{nobody}"])
        self.addCleanup(prometheus.close)
        eventually("Prometheus", prometheus.is_ready)
        rules = prometheus.rules()
        self.assertEqual({rule["name"] for rule in rules}, FIRES.keys())
        for rule in rules:
            self.assertRegex(rule["query"], THRESHOLD, rule["name"])
        # Prometheus evaluates rules itself; without its threshold, one shows what it would compare.
        # A cluster's have data in test_cluster_metrics.py.
        here = [rule for rule in rules if not rule["name"].startswith("FulmarCluster")]
        missing = {*dashboard(), *(THRESHOLD.sub("", rule["query"]) for rule in here)}
        self.assertGreater(len(missing), 90)
        print(f"{len(missing)} expressions", flush=True)

        def all_there():
            missing.difference_update([expression for expression in missing if prometheus.has_data(expression)])
            return not missing

        try:
            eventually("data", all_there)
        except AssertionError as error:
            raise AssertionError("no data:\n" + "\n".join(sorted(missing))) from error
        active = lambda: {rule["name"] for rule in prometheus.rules() if rule["state"] != "inactive"}
        # Others may be active as well: the disk is this machine's.
        eventually("the alert of the missing target", lambda: "FulmarDown" in active())
        installation.upstream.kill()
        eventually("the gateway's alert", lambda: "FulmarGatewayDisconnected" in active())


class Rules(unittest.TestCase):
    def test_each_alert_fires_for_its_series_and_no_other(self):
        def test(which, fires):
            """One for all alerts, whose series have instances of their own."""
            series = [(key.replace('instance="a"', f'instance="{name}"'), values)
                      for name, both in FIRES.items() for key, values in both[which].items()]
            expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
            samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in fires]
            return {
                "interval": "1m",
                "input_series": [{"series": key, "values": values} for key, values in series],
                "promql_expr_test": [{"expr": expression, "eval_time": "10h", "exp_samples": samples}],
            }

        tests = [test(0, FIRES), test(1, [])]
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "tests.yml")
            path.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
            for command in (["check", "rules", str(RULES)], ["test", "rules", str(path)]):
                done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=PATIENCE_S)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
