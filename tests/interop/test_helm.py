"""The Helm chart of packaging/helm/fulmar: rendered by helm, checked against Kubernetes' schemas, and its Pods started as
processes. No Kubernetes is there; docs/kubernetes.md says so."""

import base64
import json
import os
import pathlib
import re
import shlex
import socket
import ssl
import subprocess
import sys
import tempfile
import tomllib
import unittest

import pages
import paho.mqtt.client as paho
from broker import PATIENCE_S, binary, eventually
from kubernetes_api import Api
from nats_accounts import Accounts
from nats_servers import Servers
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pods import Kubelet

try:
    import kubernetes_validate
    import yaml
except ImportError:
    kubernetes_validate = None

CHART = pages.ROOT / "packaging/helm/fulmar"
# The page's commands, but for those that need a Kubernetes.
TYPED = ["fulmar passwd", "fulmar cert", "kubectl create secret", "helm install"]
# The oldest version of Kubernetes that the chart allows, and a current one.
VERSIONS = ["1.27", "1.37"]
CLUSTER = ["mode=cluster", "tls.secretName=fulmar-tls", "auth.passwordSecret.name=fulmar-users"]
EXISTING = [*CLUSTER, "nats.enabled=false", "nats.existing.servers={tls://nats-0.nats:4222,tls://nats-1.nats:4222}",
            "nats.existing.credentialsSecret.name=nats-user", "nats.existing.tlsSecret.name=nats-ca"]
EVERYTHING = [
    *CLUSTER, "image.pullSecrets={registry}", "image.tag=1.2.3", "service.type=LoadBalancer", "service.annotations.a=b",
    "service.externalTrafficPolicy=Local", "service.loadBalancerClass=c", "service.loadBalancerSourceRanges={192.0.2.0/24}",
    "listeners.wss=8084", "listeners.coaps=5684", "listeners.mqtt=1883", "listeners.ws=8083", "listeners.coap=5683",
    "listeners.mqtt_sn=1884", "tls.clientAuth=optional", "persistence.storageClass=fast", "podDisruptionBudget.fulmar=true",
    "metrics.enabled=true", "metrics.serviceMonitor.enabled=true", "metrics.serviceMonitor.labels.release=prometheus",
    "networkPolicy.enabled=true", "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.name=monitoring",
    "extraEnv[0].name=FULMAR_LOG__LEVEL", "extraEnv[0].value=debug", "extraVolumes[0].name=more",
    "extraVolumes[0].emptyDir.medium=Memory", "extraVolumeMounts[0].name=more", "extraVolumeMounts[0].mountPath=/more",
    "podLabels.team=a", "podAnnotations.note=b", "nodeSelector.disk=ssd", "tolerations[0].key=k",
    "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution=null", "priorityClassName=high",
    "config.server.drain_timeout_s=8", "config.limits.max_connections=20000", "config.acl.rules[0].topic=plant/#",
    "config.acl.rules[0].allow=true", "config.mqtt_sn.user=sn", "config.auth.allow_anonymous=always",
    "config.coap.psk_file=/more/keys", "persistence.size=2Gi",
]
USES = {
    "defaults": [],
    "own certificate": ["tls.secretName=fulmar-tls", "auth.passwordSecret.name=fulmar-users", "metrics.enabled=true"],
    "cluster": CLUSTER,
    "existing NATS": EXISTING,
    "everything": EVERYTHING,
}
# Values, and what the message says.
WRONG = [
    (["mode=clster"], "at '/mode': value must be one of 'single', 'cluster'"),
    (["tls.secretname=a"], "at '/tls': additional properties 'secretname' not allowed"),
    (["listeners.quic=70000"], "at '/listeners/quic'"),
    (["service.type=Public"], "at '/service/type': value must be one of"),
    (["persistence.size=much"], "at '/persistence/size'"),
    (["mode=cluster", "auth.passwordSecret.name=a"], "kubectl create secret tls NAME"),
    (["mode=cluster", "tls.secretName=a"], "mode cluster needs users: set auth.passwordSecret.name"),
    ([*CLUSTER, "nats.enabled=false"], "set nats.existing.servers"),
    ([*CLUSTER, "nats.enabled=false", "nats.existing.servers={tls://a:4222}"], "set credentialsSecret.name, or"),
    ([*CLUSTER, "nats.existing.servers={nats://user:word@a:4222}"], "at '/nats/existing/servers/0'"),
    (["tls.clientAuth=required"], "tls.clientAuth needs tls.secretName"),
    (["config.listeners.mqtt=1"], "config.listeners: the chart writes this section"),
    (["config.cluster.node=a"], "config.cluster: the chart writes this section"),
    (["config.server.data_dir=/data"], "config.server.data_dir: the data folder is the volume"),
    (["config.limits=4"], "at '/config/limits': got number, want object"),
    (["config.upstream.password=secret"], "name that in extraEnv"),
    (["config.upstreams.cloud.password=secret"], "a ConfigMap is no place for one"),
    (["config.platform.database=postgres://fulmar:secret@db/fulmar"], "a ConfigMap is no place for one"),
    (["config.sinks.a.url=http://user:secret@influx"], "a ConfigMap is no place for one"),
    (["config.upstream.password=12345"], "a ConfigMap is no place for one"),
    (["config.upstream.password=true"], "a ConfigMap is no place for one"),
    (["config.upstreams.cloud.password=-1"], "a ConfigMap is no place for one"),
    (["config.platform.database=postgres://fulmar@db/fulmar?password=secret"], "a ConfigMap is no place for one"),
    (["config.platform.database=postgres://fulmar@db/fulmar?sslmode=disable&password=secret"], "a ConfigMap is no place for one"),
    (["config.sinks.a.url=http://influx/write?db=a&u=b&p=secret"], "a ConfigMap is no place for one"),
    (["config.auth.http.url=https://users.example.org/mqtt?Token=secret"], "a ConfigMap is no place for one"),
    (["config.sinks.a.url=https://hooks.example.org/a?api_key=secret"], "a ConfigMap is no place for one"),
    ([*CLUSTER, "nats.persistence.size=10Gi", "nats.maxFileStore=18Gi"], "nats.maxFileStore is 18Gi, more than the volume has"),
    ([*CLUSTER, "nats.persistence.size=10G", "nats.maxFileStore=10GB"], "nats.maxFileStore is 10GB, more than the volume has"),
    (["networkPolicy.enabled=true", "metrics.enabled=true"], "networkPolicy.metricsFrom: say who may reach the port"),
    (["metrics.serviceMonitor.enabled=true"], "needs metrics.enabled=true"),
]


def tool(name):
    """helm or kubectl, from the folder that `make test-interop` names; else the reason why there is none."""
    path = pathlib.Path(os.environ.get("FULMAR_HELM", ""), name)
    if not os.access(path, os.X_OK) or path.is_dir():
        raise unittest.SkipTest(f"{name} is not there: `make test-interop` gets it from a package that has it for x86-64 only")
    return str(path)


def setUpModule():
    tool("helm")
    if kubernetes_validate is None:
        raise unittest.SkipTest("kubernetes-validate is missing: pip install -r tests/interop/requirements.txt")


def helm(*arguments):
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run([tool("helm"), *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                              env={"HOME": home, "PATH": os.environ["PATH"]}, cwd=pages.ROOT)


def rendered(values=(), more=()):
    done = helm("template", "fulmar", CHART, *[word for value in values for word in ("--set", value)], *more)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def notes(values):
    """What the chart says after `helm install`."""
    said = helm("install", "fulmar", CHART, "--dry-run=client", *[word for value in values for word in ("--set", value)])
    assert said.returncode == 0, said.stderr
    return said.stdout.split("NOTES:")[1]


def upgraded(values, there):
    """What an upgrade renders where Kubernetes has these objects."""
    api = Api(there)
    try:
        return rendered(values, ["--is-upgrade", "--dry-run=server", "--disable-openapi-validation",
                                 "--kube-apiserver", api.address])
    finally:
        api.close()


def of(objects, kind, name="fulmar"):
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def configuration(objects):
    return tomllib.loads(of(objects, "ConfigMap")["data"]["fulmar.toml"])


def pod_specs(objects):
    return [each["spec"]["template"] for each in objects if each["kind"] in ("StatefulSet", "Job")]


class Rendered(unittest.TestCase):
    def test_lint_has_nothing_to_say(self):
        for name, values in USES.items():
            with self.subTest(name):
                done = helm("lint", "--strict", CHART, *[word for value in values for word in ("--set", value)])
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_objects_are_as_kubernetes_wants_them(self):
        for name, values in USES.items():
            for found in rendered(values):
                with self.subTest(name, object=found["metadata"]["name"], kind=found["kind"]):
                    if found["apiVersion"].startswith("monitoring.coreos.com"):
                        self.assertEqual(found["spec"]["endpoints"][0]["port"], "metrics")
                        continue
                    for version in VERSIONS if name == "everything" else VERSIONS[-1:]:
                        kubernetes_validate.validate(found, version, strict=True)

    def test_the_schemas_find_a_wrong_object(self):
        found = of(rendered(), "StatefulSet")
        found["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(found, VERSIONS[-1], strict=True)

    def test_wrong_values_are_refused_with_what_to_do(self):
        for values, says in WRONG:
            with self.subTest(values):
                done = helm("template", "fulmar", CHART, *[word for value in values for word in ("--set", value)])
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(says, done.stderr)

    def test_the_program_accepts_each_configuration(self):
        for name, values in USES.items():
            with self.subTest(name):
                # Only the files are missing here.
                self.assertIn("ok       configuration: ", self.checked(values))

    def checked(self, values):
        """What the program's check prints."""
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder, "fulmar.toml")
            text = of(rendered(values), "ConfigMap")["data"]["fulmar.toml"]
            config.write_text(text.replace("/var/lib/fulmar", f"{folder}/data"))
            done = subprocess.run([binary(), "serve", "--check", "--config", config], capture_output=True, text=True,
                                  env={"FULMAR_CLUSTER__NODE": "fulmar-0", "FULMAR_CLUSTER__ADDRESS": "fulmar-0.a"},
                                  timeout=PATIENCE_S, check=False)
            return done.stdout + done.stderr

    def test_settings_arrive_with_their_types(self):
        values = ["config.limits.max_connections=20000", "config.acl.default_allow=false",
                  r'config.acl.rules[0].topic=a "b"\,\\c/#', "config.acl.rules[0].allow=true"]
        found = configuration(rendered(values))
        self.assertEqual(found["limits"], {"max_connections": 20000})
        self.assertEqual(found["acl"], {"default_allow": False, "rules": [{"topic": 'a "b",\\c/#', "allow": True}]})
        self.assertEqual(found["listeners"]["mqtt"], [])
        self.assertEqual(found["listeners"]["http"], ["127.0.0.1:14568"])

    def test_a_setting_without_a_secret_is_none(self):
        sink = {"url": "postgres://fulmar@db/fulmar?sslmode=disable", "password_file": "/more/a", "token_file": "/more/b",
                "columns": {"password": {"from": "=a:b@c", "type": "text"}}}
        config = {"upstream": {"url": "mqtts://b:8883", "user": "a", "password": ""}, "sinks": {"a": sink}}
        found = configuration(rendered(more=["--set-json", f"config={json.dumps(config)}"]))
        self.assertEqual({name: found[name] for name in config}, config)

    def test_the_own_certificate_has_the_names_of_the_services(self):
        names = lambda values: configuration(rendered(values, ["--namespace", "iot"])).get("tls", {}).get("names")
        both = ["fulmar.iot.svc", "fulmar-udp.iot.svc"]
        self.assertEqual(names([]), both)
        self.assertEqual(names(["config.tls.names={broker.lan}"]), [*both, "broker.lan"])
        for values in ["tls.secretName=a"], ["config.tls.cert=/more/a", "config.tls.key=/more/b"], CLUSTER:
            self.assertIsNone(names(values))

    def test_ports_services_and_labels_go_together(self):
        for name, values in USES.items():
            objects = rendered(values)
            listeners = configuration(objects)["listeners"]
            [broker] = [each["spec"]["template"] for each in objects
                        if each["kind"] == "StatefulSet" and each["metadata"]["name"] == "fulmar"]
            open_ports = {port["containerPort"] for port in broker["spec"]["containers"][0]["ports"]}
            listening = {int(address.rsplit(":", 1)[1]) for kind, all in listeners.items() for address in all
                         if kind != "http" or not address.startswith("127.")}
            self.assertEqual(open_ports, listening, name)
            for service in (each for each in objects if each["kind"] == "Service"):
                with self.subTest(name, service=service["metadata"]["name"]):
                    [pod] = [pod for pod in pod_specs(objects)
                             if service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()]
                    named = {(port["name"], port["protocol"]) for port in pod["spec"]["containers"][0]["ports"]}
                    self.assertLessEqual({(port["targetPort"], port["protocol"]) for port in service["spec"]["ports"]}, named)
            for owner in (each for each in objects if each["kind"] in ("StatefulSet", "PodDisruptionBudget")):
                selector = owner["spec"]["selector"]["matchLabels"].items()
                self.assertEqual(1, sum(selector <= pod["metadata"]["labels"].items() for pod in pod_specs(objects)))

    def test_a_policy_opens_only_what_it_names(self):
        policy = lambda values: of(rendered(["networkPolicy.enabled=true", *values]), "NetworkPolicy")["spec"]
        self.assertEqual(policy([])["ingress"], [{"ports": [
            {"port": 8443, "protocol": "TCP"}, {"port": 8883, "protocol": "TCP"},
            {"port": 8443, "protocol": "UDP"}, {"port": 14567, "protocol": "UDP"}]}])
        # A rule without ports would open all, and one without `from` to all.
        closed = [f"listeners.{name}=null" for name in ("mqtts", "quic", "https")]
        self.assertFalse(policy(closed)["ingress"])
        self.assertEqual(policy(closed)["policyTypes"], ["Ingress"])
        metrics = ["metrics.enabled=true", "networkPolicy.metricsFrom[0].namespaceSelector.matchLabels.a=b"]
        self.assertEqual(policy([*closed, *metrics])["ingress"], [
            {"ports": [{"port": 14568, "protocol": "TCP"}], "from": [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]}])

    def test_pods_may_do_little(self):
        for pod in pod_specs(rendered(EVERYTHING)):
            [container], spec = pod["spec"]["containers"], pod["spec"]
            self.assertFalse(spec["automountServiceAccountToken"])
            # Variables of Services would begin with FULMAR_, as settings do.
            self.assertFalse(spec["enableServiceLinks"])
            self.assertTrue(spec["securityContext"]["runAsNonRoot"])
            self.assertEqual(spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertEqual(container["securityContext"], {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}})
            self.assertIn("memory", container["resources"]["limits"])

    def test_secrets_are_no_settings(self):
        """Nothing of a Secret is in a ConfigMap, and their files have the mode that the program accepts."""
        objects = rendered(EVERYTHING)
        keys = of(objects, "Secret", "fulmar-nats")["data"]
        texts = "".join(str(each["data"]) for each in objects if each["kind"] == "ConfigMap")
        self.assertIn("PRIVATE KEY", base64.b64decode(keys["tls.key"]).decode())
        for value in keys.values():
            self.assertNotIn(base64.b64decode(value).decode().splitlines()[1], texts)
        self.assertNotIn("PRIVATE KEY", texts)
        for pod in pod_specs(objects):
            for volume in pod["spec"]["volumes"]:
                self.assertEqual(volume.get("secret", {}).get("defaultMode", 0o400), 0o400)

    def test_the_end_is_longer_than_the_drain(self):
        spec = of(rendered(["config.server.drain_timeout_s=40"]), "StatefulSet")["spec"]["template"]["spec"]
        self.assertEqual(spec["terminationGracePeriodSeconds"], 65)

    def test_a_job_that_is_replaced_ends_before_the_next_one_works(self):
        spec = of(rendered(CLUSTER), "Job", "fulmar-init")["spec"]["template"]["spec"]
        self.assertEqual(spec.get("terminationGracePeriodSeconds"), 1)

    def test_nats_fits_its_volume(self):
        for values, most in (([], 18 << 30), (["persistence.size=10Gi"], 9 << 30), (["persistence.size=1.5T"], 1_350_000_000_000),
                             (["maxFileStore=20GB"], 20 << 30), (["maxFileStore=500M"], 500_000_000)):
            with self.subTest(values):
                text = of(rendered([*CLUSTER, *(f"nats.{value}" for value in values)]), "ConfigMap", "fulmar-nats")
                self.assertIn(f"max_file_store: {most}\n", text["data"]["nats.conf"])

    def test_changed_settings_restart_pods(self):
        """They are files that a running Pod does not see; brokers of a cluster are replaced by hand."""
        changed = {"fulmar": "config.limits.max_connections=9", "fulmar-nats": "nats.maxFileStore=1Gi"}
        template = lambda name, values: of(rendered(values), "StatefulSet", name)["spec"]["template"]
        for name, value in changed.items():
            with self.subTest(name):
                self.assertEqual(template(name, CLUSTER), template(name, CLUSTER))
                self.assertNotEqual(template(name, CLUSTER), template(name, [*CLUSTER, value]))

    def test_the_first_administrator_is_named(self):
        """Where the program says that the first start creates one, and only there."""
        password = "auth.passwordSecret.name=a"
        for values in ([], [password], ["config.auth.scram=true"], ["tls.secretName=a", "tls.clientAuth=required"],
                       [password, "listeners.https=null"]):
            with self.subTest(values):
                found = "first-administrator" in notes(values)
                self.assertEqual(found, "the next start creates a first administrator" in self.checked(values))
                self.assertEqual(found, "listeners.https=null" not in values)
        self.assertNotIn("admin", notes(CLUSTER))

    def test_the_packed_chart_is_one(self):
        with tempfile.TemporaryDirectory() as folder:
            code = ("import sys, pathlib; sys.path.insert(0, 'scripts/dist'); import formats; "
                    "print(formats.chart('7.8.9', 1764547200, pathlib.Path(sys.argv[1])))")
            packed = subprocess.run([sys.executable, "-c", code, folder], cwd=pages.ROOT, capture_output=True, text=True,
                                    check=True, timeout=PATIENCE_S).stdout.strip()
            done = helm("template", "fulmar", packed)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("image: fulmar:7.8.9\n", done.stdout)
            self.assertIn("helm.sh/chart: fulmar-7.8.9\n", done.stdout)

    def test_the_cluster_is_created_until_it_is_there(self):
        """A Job that has not succeeded is followed by another; one that has, by none, whatever happens to it later."""
        jobs = lambda objects: [each["metadata"]["name"] for each in objects if each["kind"] == "Job"]
        installed = rendered(CLUSTER)
        self.assertEqual(jobs(installed), ["fulmar-init"])
        self.assertEqual(jobs(upgraded(CLUSTER, [])), ["fulmar-init-1"])
        self.assertEqual(jobs(upgraded(CLUSTER, installed)), ["fulmar-init-1"])
        job = {**of(installed, "Job", "fulmar-init"), "status": {"succeeded": 1}}
        others = {**job, "metadata": {**job["metadata"], "labels": {
            **job["metadata"]["labels"], "app.kubernetes.io/instance": "other"}}}
        self.assertEqual(jobs(upgraded(CLUSTER, [of(installed, "StatefulSet"), others])), ["fulmar-init-1"])
        ready = {**of(installed, "StatefulSet"), "status": {"readyReplicas": 1}}
        for there in ([of(installed, "StatefulSet"), job], [ready]):
            first = upgraded(CLUSTER, there)
            self.assertEqual(jobs(first), [])
            # The Job is gone, and no broker is ready.
            second = upgraded(CLUSTER, first)
            self.assertEqual(jobs(second), [])
            self.assertEqual(jobs(upgraded(CLUSTER, second)), [])

    def test_a_release_keeps_its_mode(self):
        for was, now in ([], CLUSTER), (CLUSTER, ["mode=single"]):
            there = rendered(was)
            self.assertTrue(upgraded(was, there))
            with self.assertRaisesRegex(AssertionError, "install another release"):
                upgraded(now, there)


class Client(paho.Client):
    """Ann, with a session that stays."""

    def __init__(self, name, pod, ca):
        super().__init__(paho.CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        self.got = []
        self.on_message = lambda client, data, message: self.got.append(message.payload)
        self.username_pw_set("ann", "a password of ann")
        self.tls_set(ca_certs=str(ca))
        # The certificate is for names that only Kubernetes' DNS has.
        self.tls_insecure_set(True)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        self.connect("127.0.0.1", pod.ports[8883], clean_start=False, properties=properties)
        self.loop_start()
        eventually("a connection", self.is_connected)

    def close(self):
        self.disconnect()
        self.loop_stop()


class Started(unittest.TestCase):
    """The page's commands, typed; what `helm install` would send to Kubernetes is started here."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="fulmar-pods-")))
        (self.folder / "ann.password").write_text("a password of ann\n")
        self.secrets = {}

    def typed(self, section):
        """Types a section's lines; returns what its `helm install` renders."""
        found = None
        for headings, command in pages.commands("docs/kubernetes.md"):
            if section not in headings or not any(command.startswith(begins) for begins in TYPED):
                continue
            if command.startswith("helm install fulmar ./packaging/helm/fulmar "):
                found = rendered(more=shlex.split(command)[4:])
                continue
            if command.startswith("kubectl"):
                command = f"{shlex.quote(tool('kubectl'))}{command.removeprefix('kubectl')} --dry-run=client -o yaml"
            command = re.sub("^fulmar ", f"{shlex.quote(binary())} ", command)
            done = subprocess.run(["bash", "-c", command], cwd=self.folder, capture_output=True, text=True,
                                  timeout=PATIENCE_S, env={"PATH": os.environ["PATH"], "HOME": str(self.folder)}, check=False)
            self.assertEqual(done.returncode, 0, f"{command}: {done.stderr}")
            if "create secret" in command:
                secret = yaml.safe_load(done.stdout)
                self.secrets[secret["metadata"]["name"]] = {
                    key: base64.b64decode(text) for key, text in secret["data"].items()}
        return found

    def kubelet(self, section):
        found = Kubelet(self.typed(section), self.folder, self.secrets)
        self.addCleanup(found.close)
        return found

    def next_commands(self, kubelet, *values):
        """Runs what the chart says after `helm install` to type in a Pod; returns what they print."""
        found = re.findall(r"exec (?:-it )?(\S+) -- (.+)", notes(values))
        self.assertTrue(found)
        return "".join(kubelet.pods[pod].run(*command.split(), typed="a password of admin\n") for pod, command in found)

    def exchange(self, pod, ca, text):
        """Leaves a subscriber's session behind, and a message in it that is acknowledged."""
        subscriber = Client("subscriber", pod, ca)
        done = []
        subscriber.on_subscribe = lambda *rest: done.append(rest)
        subscriber.subscribe("plant/#", 1)
        eventually("a subscription", lambda: done)
        subscriber.close()
        publisher = Client("publisher", pod, ca)
        publisher.publish("plant/a", text, 1).wait_for_publish(PATIENCE_S)
        publisher.close()

    def receive(self, pod, ca, text):
        subscriber = Client("subscriber", pod, ca)
        eventually(f"the message {text}", lambda: subscriber.got)
        subscriber.close()
        self.assertEqual(subscriber.got, [text])

    def test_single(self):
        kubelet = self.kubelet("## One broker")
        [pod] = kubelet.of("StatefulSet", "fulmar")
        kubelet.wait("a Pod that is ready", lambda: pod.passes("readinessProbe"))
        self.assertTrue(pod.passes("startupProbe") and pod.passes("livenessProbe"))
        # As the first start does where listeners are not on loopback.
        pod.run(*shlex.split("/usr/bin/fulmar user add admin --admin --data /var/lib/fulmar"), typed="the first password\n")
        self.assertRegex(self.next_commands(kubelet, "auth.passwordSecret.name=fulmar-users"), "clients")
        ca = pod.mounts["/var/lib/fulmar"] / "ca/ca.pem"
        for name in "fulmar.default.svc", "fulmar-udp.default.svc":
            with socket.create_connection(("127.0.0.1", pod.ports[8883]), PATIENCE_S) as plain:
                ssl.create_default_context(cafile=ca).wrap_socket(plain, server_hostname=name).close()
        self.exchange(pod, ca, b"1")
        pod.kill()
        kubelet.wait("the Pod again", lambda: pod.passes("readinessProbe"))
        self.receive(pod, ca, b"1")

    def test_cluster(self):
        kubelet = self.kubelet("## A cluster")
        nodes, nats = kubelet.of("StatefulSet", "fulmar"), kubelet.of("StatefulSet", "fulmar-nats")
        self.assertEqual([len(nodes), len(nats)], [3, 3])
        [job] = kubelet.of("Job", "fulmar-init")
        kubelet.wait("the Job's end", lambda: not job.is_running() and job.process.returncode == 0)
        self.assertTrue(all(pod.passes(probe) for pod in nats for probe in ("readinessProbe", "livenessProbe")))
        ready = lambda: [pod for pod in nodes if pod.passes("readinessProbe")]
        kubelet.wait("a node that serves", ready)
        kubelet.wait("nodes that live", lambda: all(pod.passes("livenessProbe") for pod in nodes))
        [serves] = ready()
        ca = self.folder / "ca/ca.pem"
        self.exchange(serves, ca, b"2")
        status = self.next_commands(kubelet, *CLUSTER)
        self.assertIn(f"node      {serves.name}  {serves.name}.fulmar-headless.default.svc  ", status)
        serves.kill()
        others = [pod for pod in nodes if pod is not serves]
        eventually("another node that serves", lambda: [pod for pod in others if pod.passes("readinessProbe")])
        kubelet.wait("the killed Pod lives again", lambda: serves.passes("livenessProbe"))
        [now] = ready()
        self.assertIn(now, others)
        self.receive(now, ca, b"2")
        # As `kubectl delete pod`, which is how Pods are replaced.
        now.process.terminate()
        self.assertEqual(now.process.wait(now.spec["terminationGracePeriodSeconds"]), 0)
        eventually("the next node that serves", lambda: any(pod.passes("readinessProbe") for pod in nodes))

    def test_nats_that_is_there_already(self):
        accounts = Accounts()
        servers = Servers(3, extra=accounts.lines)
        self.addCleanup(servers.close)
        found = rendered([*EXISTING[:-3], f"nats.existing.servers={{{','.join(servers.addresses())}}}",
                          f"nats.existing.monitoring={{{','.join(servers.monitoring())}}}",
                          "nats.existing.credentialsSecret.name=nats-user"])
        self.typed("## A cluster")
        self.secrets["nats-user"] = {"nats.creds": accounts.credentials().encode()}
        kubelet = Kubelet(found, self.folder, self.secrets)
        self.addCleanup(kubelet.close)
        nodes, [job] = kubelet.of("StatefulSet", "fulmar"), kubelet.of("Job", "fulmar-init")
        self.assertEqual(len(kubelet.pods), 4)
        kubelet.wait("the Job's end", lambda: not job.is_running() and job.process.returncode == 0)
        kubelet.wait("a node that serves", lambda: any(pod.passes("readinessProbe") for pod in nodes))
        # As after an upgrade that does not know that the cluster is there.
        job.start()
        self.assertNotEqual(job.process.wait(PATIENCE_S), 0)
        self.assertRegex(job.log.read_text(), "these NATS servers have the cluster [0-9a-f]{16} already")
        self.assertEqual(1, sum(pod.passes("readinessProbe") for pod in nodes))
        # On this machine a node would do without; the servers would not.
        self.assertIn("credentials_file", configuration(found)["cluster"])
