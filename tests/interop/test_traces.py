"""Traces and metrics in the OpenTelemetry Collector's own OTLP receiver (collector/): a publication through gateway and
broker is one trace, and the collector may come late."""

import collections
import json
import os
import pathlib
import secrets
import subprocess
import threading
import unittest

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import ports
from broker import PATIENCE_S, Broker, eventually
from test_gateway import Publisher, Subscriber, settings

Span = collections.namedtuple("Span", "service name span_id parent_id attributes seconds")


def program() -> str:
    """The compiled receiver; `make test-interop` builds it and says where it is."""
    path = os.environ.get("FULMAR_COLLECTOR")
    if not path or not pathlib.Path(path).is_file():
        raise unittest.TestCase.failureException("set FULMAR_COLLECTOR to the compiled receiver (make test-interop does)")
    return path


def plain(attributes) -> dict:
    """Attributes by name; the Collector writes numbers as text."""
    return {one["key"]: next(iter(one["value"].values())) for one in attributes}


class Collector:
    """Keeps the spans it gets by trace, and the last value of each metric by service."""

    def __init__(self, port):
        self.traces = collections.defaultdict(list)
        self.metrics = {}
        self.process = subprocess.Popen([program(), f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise AssertionError(f"no ready line: {line!r}")
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            data = json.loads(line)
            for resource in data.get("resourceSpans", []):
                service = plain(resource["resource"]["attributes"])["service.name"]
                for span in resource["scopeSpans"][0]["spans"]:
                    seconds = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e9
                    self.traces[span["traceId"]].append(Span(
                        service, span["name"], span["spanId"], span["parentSpanId"], plain(span["attributes"]), seconds))
            for resource in data.get("resourceMetrics", []):
                service = plain(resource["resource"]["attributes"])["service.name"]
                for metric in resource["scopeMetrics"][0]["metrics"]:
                    self.metrics[service, metric["name"]] = metric

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self.thread.join(PATIENCE_S)
        self.process.stdout.close()


def otlp(port, service) -> str:
    return f'\n[otlp]\nendpoint = "http://127.0.0.1:{port}"\nservice_name = "{service}"\nmetrics_interval_s = 1\n'


class Traces(unittest.TestCase):
    def setUp(self):
        (self.port,) = ports.take(1)
        self.central = Broker(otlp(self.port, "central"))
        self.addCleanup(self.central.close)

    def collector(self):
        collector = Collector(self.port)
        self.addCleanup(collector.close)
        return collector

    def publish(self, device, topic, flags="01"):
        """Publishes at QoS 1, and returns the trace's and the publisher's span's identifiers."""
        trace, span = secrets.token_hex(16), secrets.token_hex(8)
        properties = Properties(PacketTypes.PUBLISH)
        properties.UserProperty = [("traceparent", f"00-{trace}-{span}-{flags}")]
        device.client.publish(topic, "640", 1, properties=properties).wait_for_publish(PATIENCE_S)
        return trace, span

    def test_a_publication_through_gateway_and_broker_is_one_trace(self):
        collector = self.collector()
        gateway = Broker(settings(self.central) + otlp(self.port, "gateway"))
        self.addCleanup(gateway.close)
        office = Subscriber(self, self.central.ports["mqtt"], "site/sensor/#")
        device = Publisher(self, gateway.ports["mqtt"])
        self.publish(device, "sensor/probe/co2", flags="00")
        device.client.publish("sensor/probe/co2", "641", 1).wait_for_publish(PATIENCE_S)
        trace, publisher = self.publish(device, "sensor/probe/co2")
        eventually("the readings", lambda: office.count == 3)
        self.assertEqual(office.got["site/sensor/probe/co2"][2][1]["traceparent"], f"00-{trace}-{publisher}-01")
        spans = lambda: {(span.service, span.name): span for span in collector.traces[trace]}
        wanted = {("gateway", "receive"), ("gateway", "deliver"), ("gateway", "forward"),
                  ("central", "receive"), ("central", "deliver")}
        eventually("all spans", lambda: spans().keys() >= wanted)
        found = spans()
        self.assertEqual((found.keys(), len(collector.traces[trace])), (wanted, len(wanted)))
        self.assertEqual(list(collector.traces), [trace], "only recorded traces are reported")
        for place in ("gateway", "central"):
            self.assertEqual(found[place, "receive"].parent_id, publisher)
            self.assertEqual(found[place, "deliver"].parent_id, found[place, "receive"].span_id)
        self.assertEqual(found["gateway", "forward"].parent_id, publisher)
        self.assertEqual(len({span.span_id for span in found.values()}), len(wanted))
        self.assertTrue(all(0 <= span.seconds < PATIENCE_S for span in found.values()), found)
        at_gateway, at_central = found["gateway", "receive"].attributes, found["central", "deliver"].attributes
        self.assertEqual(at_gateway["messaging.destination.name"], "sensor/probe/co2")
        self.assertEqual((at_gateway["messaging.client.id"], at_gateway["fulmar.receivers"]), ("device", "1"))
        self.assertEqual(at_central["messaging.destination.name"], "site/sensor/probe/co2")
        self.assertEqual((at_central["messaging.client.id"], at_central["fulmar.qos"]), ("subscriber", "1"))
        self.assertEqual(found["gateway", "forward"].attributes["server.address"], "localhost")

        def value(service, name):
            metric = collector.metrics.get((service, name))
            return metric and metric["sum"]["dataPoints"][0]["asDouble"]

        eventually("metrics", lambda: value("gateway", "fulmar_gateway_sent_total") == 3)
        eventually("the broker's", lambda: value("central", "fulmar_messages_received_total") == 3)
        commits = collector.metrics["gateway", "fulmar_storage_commit_seconds"]["histogram"]["dataPoints"][0]
        self.assertEqual(sum(map(int, commits["bucketCounts"])), int(commits["count"]))
        self.assertEqual(len(commits["bucketCounts"]), len(commits["explicitBounds"]) + 1)

    def test_spans_wait_for_a_collector_that_comes_later_and_clients_do_not(self):
        device = Publisher(self, self.central.ports["mqtt"])
        log = self.central.data / "log"
        traces = [self.publish(device, "sensor/probe/co2")[0] for _ in range(3)]
        eventually("a line in the log", lambda: "OTLP: spans wait" in log.read_text())
        collector = self.collector()
        eventually("the spans", lambda: set(traces) == set(collector.traces))
        self.assertEqual([len(spans) for spans in collector.traces.values()], [1, 1, 1])
        # What is left is sent when the broker ends.
        last, _ = self.publish(device, "sensor/probe/co2")
        device.client.disconnect()
        self.assertEqual(self.central.stop(), 0)
        eventually("the last span", lambda: last in collector.traces)


if __name__ == "__main__":
    unittest.main()
