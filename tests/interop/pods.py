"""Pods as Kubernetes would start them, as processes of this machine: files of ConfigMaps and Secrets, environment, command
and probes are those of a rendered chart. What one machine needs otherwise, addresses and paths, `localised` rewrites."""

import base64
import os
import pathlib
import re
import subprocess
import urllib.error
import urllib.request

import ports
from broker import PATIENCE_S, binary, eventually
from nats_servers import program

PROGRAMS = {"/usr/bin/fulmar": binary, "nats-server": program}


class Kubelet:
    """Pods of the objects of a chart, below a folder. `secrets` are further Secrets' files by name."""

    def __init__(self, objects, folder, secrets):
        self.objects, self.folder, self.pods = objects, folder, {}
        self.files = {("Secret", name): files for name, files in secrets.items()}
        for found in objects:
            if found["kind"] in ("ConfigMap", "Secret"):
                texts = found.get("data", {})
                self.files[found["kind"], found["metadata"]["name"]] = {
                    key: base64.b64decode(text) if found["kind"] == "Secret" else text for key, text in texts.items()}
        for found in objects:
            if found["kind"] == "StatefulSet":
                for index in range(found["spec"]["replicas"]):
                    self.add(found, f"{found['metadata']['name']}-{index}")
            elif found["kind"] == "Job":
                self.add(found, f"{found['metadata']['name']}-x7k2p")

    def add(self, owner, name):
        self.pods[name] = Pod(self, name, owner["kind"], owner["spec"]["template"]["spec"])

    def of(self, kind, name):
        return [pod for pod in self.pods.values() if pod.kind == kind and re.fullmatch(rf"{name}-\w+", pod.name)]

    def restart(self):
        """Starts what has ended, as a kubelet does; a Job's Pod until it has succeeded."""
        for pod in self.pods.values():
            if not pod.is_running() and not (pod.kind == "Job" and pod.process and pod.process.returncode == 0):
                pod.start()

    def wait(self, what, done):
        def now():
            self.restart()
            return done()

        try:
            eventually(what, now, every_s=0.3)
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.logs()}") from None

    def logs(self):
        return "\n".join(f"== {pod.name}\n{pod.log.read_text()[-2000:]}" for pod in self.pods.values() if pod.log.exists())

    def close(self):
        for pod in self.pods.values():
            pod.kill()


class Pod:
    """The only container of a Pod."""

    def __init__(self, kubelet, name, kind, spec):
        self.kubelet, self.name, self.kind, self.spec = kubelet, name, kind, spec
        [self.container] = spec["containers"]
        self.folder = pathlib.Path(kubelet.folder, name)
        self.log, self.process = self.folder / "log", None
        numbers = {port["containerPort"] for port in self.container.get("ports", [])} | {14568}
        self.ports = dict(zip(sorted(numbers), ports.take(len(numbers))))
        self.mounts = {each["mountPath"]: self.folder / each["mountPath"].strip("/").replace("/", "-")
                       for each in self.container["volumeMounts"]}
        self.folder.mkdir()

    def localised(self, text):
        """What is rewritten because this is one machine: programs and mounted paths, this Pod's ports, and the names of
        other Pods, which Kubernetes' DNS would answer."""
        if text in PROGRAMS:
            return PROGRAMS[text]()
        paths = "|".join(sorted(map(re.escape, self.mounts), reverse=True))
        text = re.sub(rf'(?<![\w./-])({paths})(?=[/"\s]|$)', lambda found: str(self.mounts[found[1]]), text)
        text = re.sub(r"(?:0\.0\.0\.0|127\.0\.0\.1):(\d+)",
                      lambda found: f"127.0.0.1:{self.ports.get(int(found[1]), found[1])}", text)
        return re.sub(r"([\w-]+)\.[\w-]+\.\w+\.svc:(\d+)",
                      lambda found: f"127.0.0.1:{self.kubelet.pods[found[1]].ports[int(found[2])]}", text)

    def mount(self):
        """The files of its volumes; claims and empty folders stay as they are."""
        sources = {volume["name"]: volume for volume in self.spec["volumes"]}
        for each in self.container["volumeMounts"]:
            volume, here = sources.get(each["name"], {}), self.mounts[each["mountPath"]]
            files = {}
            if "configMap" in volume:
                files = self.kubelet.files["ConfigMap", volume["configMap"]["name"]]
            elif "secret" in volume:
                files = self.kubelet.files["Secret", volume["secret"]["secretName"]]
            if "subPath" in each:
                here.write_text(self.localised(files[each["subPath"]]))
                continue
            here.mkdir(mode=0o700, exist_ok=True)
            for key, data in files.items():
                file = here / key
                file.unlink(missing_ok=True)
                file.write_bytes(data if isinstance(data, bytes) else self.localised(data).encode())
                # fsGroup lets the group read root's files.
                file.chmod(volume["secret"]["defaultMode"] | (0o040 if os.geteuid() == 0 else 0))

    def environment(self):
        values = {}
        for each in self.container["env"]:
            if "valueFrom" in each:
                assert each["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}, each
                values[each["name"]] = self.name
            else:
                expanded = re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], each["value"])
                values[each["name"]] = self.localised(expanded)
        return values

    def start(self):
        self.mount()
        command = [self.localised(word) for word in [*self.container["command"], *self.container["args"]]]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment(), cwd=self.folder)

    def is_running(self):
        return self.process is not None and self.process.poll() is None

    def passes(self, probe):
        """Whether a probe of this kind, such as readinessProbe, succeeds."""
        asked = self.container[probe]
        if not self.is_running():
            return False
        if "exec" in asked:
            command = [self.localised(word) for word in asked["exec"]["command"]]
            if command[1:] == ["health"]:
                # The default address is not this Pod's here.
                command.append(f"http://127.0.0.1:{self.ports[14568]}/health/ready")
            return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0
        [number] = [each["containerPort"] for each in self.container["ports"] if each["name"] == asked["httpGet"]["port"]]
        try:
            url = f"http://127.0.0.1:{self.ports[number]}{asked['httpGet']['path']}"
            with urllib.request.urlopen(url, timeout=asked["timeoutSeconds"]) as answer:
                return answer.status < 400
        except (OSError, urllib.error.HTTPError):
            return False

    def run(self, *words, typed=""):
        """As `kubectl exec`; returns what the command prints."""
        done = subprocess.run([self.localised(word) for word in words], env=self.environment(), capture_output=True,
                              input=typed, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def kill(self):
        if self.is_running():
            self.process.kill()
        if self.process:
            self.process.wait(PATIENCE_S)
