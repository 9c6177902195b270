"""`fulmar import mosquitto`: what a real mosquitto answers its clients before, Fulmar answers them after.

One installation with three listeners, 50 users, ACL patterns, a dynamic security file and two bridges. Each question
is asked twice, first to mosquitto: which users may log in, publish and subscribe where, and which messages they
receive. The same is done for the ways in which an ACL file and dynamic security are combined."""

import base64
import getpass
import hashlib
import json
import os
import pathlib
import ssl
import subprocess
import tempfile
import unittest

import paho.mqtt.client as paho

import ports
from broker import PATIENCE_S, binary, eventually

PLUGIN = next(pathlib.Path("/usr/lib").glob("**/mosquitto_dynamic_security.so"), None)

TOPICS = [
    "sensor/1/temp", "sensor/2/temp", "sensor/secret/temp", "own/{user}/x", "own/other/x", "client/{client}/x",
    "news/today", "role/a/x", "role/b/x", "role/denied", "group/x", "quiet/x", "nowhere",
]
FILTERS = ["#", "sensor/#", "sensor/+/temp", "own/{user}/#", "role/#", "role/a/+", "group/#", "literal/#", "end/#", "$SYS/#"]

ACL = """# of clients without a name
topic read news/#
topic end/anonymous

user writer
topic write #

user u1
topic read sensor/+/temp
topic deny sensor/secret/#
user u2
topic readwrite sensor/#
user dyn
topic read news/#
topic write nowhere

pattern readwrite own/%u/#
pattern write client/%c/+
pattern read end/%u
"""


def hashed(password: str) -> dict:
    """A password as the dynamic security plugin stores it."""
    salt = os.urandom(12)
    key = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return {
        "password": base64.b64encode(key).decode(), "salt": base64.b64encode(salt).decode(), "iterations": 101,
    }


def acl(kind: str, topic: str, allow: bool, **more) -> dict:
    return {"acltype": kind, "topic": topic, "allow": allow, **more}


def dynsec(path: pathlib.Path, **defaults):
    """A file as the plugin's own tool makes it, with more clients and roles."""
    command = ["mosquitto_ctrl", "dynsec", "init", str(path), "admin"]
    subprocess.run(command, input="adminpw\nadminpw\n", text=True, check=True, capture_output=True)
    data = json.loads(path.read_text())
    data["clients"] += [
        {"username": "dyn", **hashed("pw-dyn"), "roles": [{"rolename": "low"}, {"rolename": "high", "priority": 5}]},
        {"username": "both", **hashed("pw-dynsec"), "roles": [{"rolename": "low"}]},
        {"username": "off", **hashed("pw-off"), "disabled": True, "roles": [{"rolename": "low"}]},
    ]
    data["groups"] = [
        {"groupname": "g", "roles": [{"rolename": "of-group"}], "clients": [{"username": "dyn"}]},
        {"groupname": "nobody", "roles": [{"rolename": "of-nobody"}]},
    ]
    data["anonymousGroup"] = "nobody"
    data["roles"] += [
        {"rolename": "low", "acls": [
            acl("publishClientSend", "role/denied", False, priority=9),
            acl("publishClientSend", "role/#", True),
            acl("subscribePattern", "role/#", True),
            acl("subscribeLiteral", "#", False),
            acl("publishClientReceive", "quiet/#", False),
        ]},
        {"rolename": "high", "acls": [
            acl("publishClientSend", "role/b/#", False),
            acl("subscribeLiteral", "literal/#", True),
        ]},
        {"rolename": "of-group", "acls": [
            acl("publishClientSend", "group/#", True),
            acl("publishClientSend", "role/b/#", True),
            acl("subscribePattern", "group/#", True),
        ]},
        {"rolename": "of-nobody", "acls": [acl("publishClientSend", "news/today", True)]},
    ]
    data["defaultACLAccess"].update(defaults)
    path.write_text(json.dumps(data, indent=1))


class Client:
    """Paho, over any of the three listeners."""

    def __init__(self, place, user, password, client="c", kind="tcp", ca=None):
        transport = "websockets" if kind == "websockets" else "tcp"
        version = paho.CallbackAPIVersion.VERSION2
        self.client = paho.Client(version, client_id=client, protocol=paho.MQTTv5, transport=transport)
        if user is not None:
            self.client.username_pw_set(user, password)
        if kind == "tls":
            self.client.tls_set(ca_certs=ca, cert_reqs=ssl.CERT_REQUIRED)
        self.connected, self.codes, self.got = None, {}, []
        self.client.on_connect = lambda client, data, flags, code, properties: self.note("connected", code)
        self.client.on_subscribe = lambda client, data, mid, codes, properties: self.codes.update({mid: codes[0]})
        self.client.on_publish = lambda client, data, mid, code, properties: self.codes.update({mid: code})
        self.client.on_message = lambda client, data, message: self.got.append(message.topic)
        self.client.connect("localhost", place)
        self.client.loop_start()
        eventually("an answer to CONNECT", lambda: self.connected is not None)

    def note(self, name, code):
        # Paho tries again by itself.
        if self.connected is None:
            self.connected = not code.is_failure
        if code.is_failure:
            self.client.disconnect()

    def answer(self, mid) -> bool:
        eventually("an acknowledgement", lambda: mid in self.codes)
        return not self.codes.pop(mid).is_failure

    def publish(self, topic: str) -> bool:
        return self.answer(self.client.publish(topic, "x", 1).mid)

    def subscribe(self, topic: str) -> bool:
        return self.answer(self.client.subscribe(topic, 1)[1])

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


def behaviour(place, user, password, writer, **how) -> dict:
    """What a client may do, and which messages of the writer it gets."""
    name = user or "anonymous"
    client = Client(place, user, password, client=f"id-{name}", **how)
    try:
        if not client.connected:
            return {"connected": False}
        fill = lambda text: text.replace("{user}", name).replace("{client}", f"id-{name}")
        topics = [fill(topic) for topic in TOPICS]
        found = {
            "connected": True,
            "subscribe": {topic: client.subscribe(topic) for topic in map(fill, FILTERS)},
            "publish": {topic: client.publish(topic) for topic in topics},
        }
        if writer:
            own = len(client.got)
            for topic in [*topics, f"end/{name}"]:
                writer.publish(topic)
            # Some who read nothing else receive this one.
            eventually(f"the end for {name}", lambda: f"end/{name}" in client.got)
            found["received"] = sorted({topic for topic in client.got[own:] if not topic.startswith("$")})
        found["reads $SYS"] = any(topic.startswith("$SYS") for topic in client.got)
        return found
    finally:
        client.close()


class Installation:
    """mosquitto with a configuration in a folder of its own, or Fulmar with what was made of it."""

    def __init__(self, test: unittest.TestCase):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.test, self.folder = test, pathlib.Path(folder.name)
        self.process = None
        test.addCleanup(self.stop)

    def write(self, name: str, text: str) -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def mosquitto(self, port: int):
        log = open(self.folder / "mosquitto.log", "wb")
        command = ["mosquitto", "-c", str(self.folder / "mosquitto.conf")]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()
        eventually("mosquitto", lambda: not ports.is_free(port) or self.process.poll() is not None)
        self.test.assertIsNone(self.process.poll(), (self.folder / "mosquitto.log").read_text())

    def imported(self, *options: str) -> subprocess.CompletedProcess:
        config, out = str(self.folder / "mosquitto.conf"), str(self.folder / "out")
        command = [binary(), "import", "mosquitto", config, "--out", out, *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)

    def fulmar(self):
        log = open(self.folder / "fulmar.log", "ab")
        config, data = str(self.folder / "out" / "fulmar.toml"), str(self.folder / "data")
        command = [binary(), "serve", "--config", config, "--data", data]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        log.close()
        line = self.process.stdout.readline()
        self.test.assertTrue(line.startswith("ready "), (self.folder / "fulmar.log").read_text())

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE_S)
        if self.process and self.process.stdout:
            self.process.stdout.close()


def passwords(path: pathlib.Path, users: dict):
    """Half of the users with each of mosquitto's two hashes."""
    path.touch(0o600)
    for number, (user, password) in enumerate(users.items()):
        kind = "sha512" if number % 2 else "sha512-pbkdf2"
        command = ["mosquitto_passwd", "-H", kind, "-b", str(path), user, password]
        subprocess.run(command, check=True, capture_output=True)


@unittest.skipIf(PLUGIN is None, "mosquitto has no dynamic security plugin")
class Combinations(unittest.TestCase):
    """An ACL file, dynamic security, both, or neither; with and without anonymous clients."""

    def play(self, settings: str, with_acl: bool, with_dynsec: bool, with_passwords: bool, **defaults):
        site = Installation(self)
        port, = ports.take(1)
        lines = [f"listener {port} 127.0.0.1", f"user {getpass.getuser()}", "max_keepalive 600", settings]
        if with_passwords:
            users = {"writer": "pw", "u1": "pw-u1", "u2": "pw-u2", "u3": "pw-u3", "both": "pw-file"}
            passwords(site.folder / "users", users)
            lines.append(f"password_file {site.folder}/users")
        if with_acl:
            lines.append(f"acl_file {site.write('acl', ACL)}")
        if with_dynsec:
            dynsec(site.folder / "dynsec.json", **defaults)
            lines += [f"plugin {PLUGIN}", f"plugin_opt_config_file {site.folder}/dynsec.json"]
        site.write("mosquitto.conf", "\n".join(lines) + "\n")
        who = [
            ("u1", "pw-u1"), ("u1", "wrong"), ("u2", "pw-u2"), ("u3", "pw-u3"), ("dyn", "pw-dyn"), ("dyn", "wrong"),
            ("both", "pw-dynsec"), ("both", "pw-file"), ("off", "pw-off"), ("admin", "adminpw"), ("nobody", "x"),
            (None, None),
        ]

        def ask():
            writer = Client(port, "writer", "pw", client="w") if with_acl and with_passwords else None
            answers = {pair: behaviour(port, *pair, writer) for pair in who}
            if writer:
                writer.close()
            return answers

        site.mosquitto(port)
        before = ask()
        site.stop()
        done = site.imported()
        self.assertEqual(done.returncode, 0, done.stderr)
        site.fulmar()
        after = ask()
        site.stop()
        self.maxDiff = None
        for pair, answers in before.items():
            with self.subTest(user=pair[0], password=pair[1]):
                self.assertEqual(answers, after[pair])
        return before

    def test_acl_file(self):
        before = self.play("allow_anonymous true", True, False, True)
        # The test is about something.
        self.assertEqual(before["u1", "pw-u1"]["received"], ["end/u1", "own/u1/x", "sensor/1/temp", "sensor/2/temp"])
        self.assertTrue(before["u1", "pw-u1"]["subscribe"]["#"])
        self.assertFalse(before["u1", "wrong"]["connected"])

    def test_dynamic_security(self):
        before = self.play("allow_anonymous true", False, True, False)
        dyn = before["dyn", "pw-dyn"]
        self.assertEqual([dyn["publish"][f"role/{name}/x"] for name in "ab"], [True, False])
        self.assertEqual([dyn["subscribe"][name] for name in ("#", "role/#", "literal/#")], [False, True, True])

    def test_dynamic_security_that_allows_by_default(self):
        self.play("allow_anonymous false", False, True, True, publishClientSend=True, subscribe=True)

    def test_both(self):
        before = self.play("allow_anonymous true", True, True, True)
        self.assertTrue(before["both", "pw-dynsec"]["connected"])
        self.assertFalse(before["both", "pw-file"]["connected"])

    def test_both_where_dynamic_security_lets_nobody_receive(self):
        self.play("allow_anonymous false", True, True, True, publishClientReceive=False)

    def test_neither(self):
        self.play("allow_anonymous false", False, False, True)


@unittest.skipIf(PLUGIN is None, "mosquitto has no dynamic security plugin")
class Everything(unittest.TestCase):
    """Three listeners, 50 users, and two bridges."""

    USERS = {"writer": "pw", **{f"u{number}": f"pw-u{number}" for number in range(1, 50)}}

    def certificate(self):
        folder = self.site.folder
        issue = [binary(), "cert", "issue", "localhost", "--dir", str(folder / "ca"), "--out", str(folder)]
        subprocess.run(issue, check=True, capture_output=True, timeout=PATIENCE_S)
        self.ca = str(next((folder / "ca").glob("**/ca.pem")))
        return folder / "localhost.pem", folder / "localhost.key"

    def remote(self, *lines: str) -> tuple[Installation, int]:
        """A broker at the other end of a bridge."""
        site = Installation(self)
        port, = ports.take(1)
        text = "\n".join([f"listener {port} 127.0.0.1", f"user {getpass.getuser()}", *lines])
        site.write("mosquitto.conf", text.replace("FOLDER", str(site.folder)) + "\n")
        return site, port

    def setUp(self):
        self.site = Installation(self)
        cert, key = self.certificate()
        self.plain, self.tls, self.web = ports.take(3)
        near, self.near_port = self.remote("allow_anonymous true")
        near.mosquitto(self.near_port)
        far, self.far_port = self.remote(
            "allow_anonymous false", "password_file FOLDER/users", f"certfile {cert}", f"keyfile {key}",
        )
        passwords(far.folder / "users", {"bridge": "pw-bridge", "person": "pw-person"})
        far.mosquitto(self.far_port)
        folder = self.site.folder
        passwords(folder / "users", self.USERS)
        self.site.write("acl", ACL + "\nuser u3\ntopic up/#\ntopic down/#\n")
        dynsec(folder / "dynsec.json")
        self.site.write("mosquitto.conf", f"""# An installation.
user {getpass.getuser()}
persistence true
persistence_location {folder}/
autosave_interval 1800
queue_qos0_messages true
max_inflight_messages 20
max_queued_messages 1000
password_file {folder}/users
acl_file {folder}/acl
allow_anonymous false
plugin {PLUGIN}
plugin_opt_config_file {folder}/dynsec.json

listener {self.plain} 127.0.0.1
max_connections 100

listener {self.tls} 127.0.0.1
certfile {cert}
keyfile {key}
tls_version tlsv1.2

listener {self.web} 127.0.0.1
protocol websockets

include_dir {folder}/conf.d
""")
        self.site.write("conf.d/near.conf", f"""connection near
address 127.0.0.1:{self.near_port}
topic up/# out 1 "" from-main/
topic down/# in 1
notifications false
""")
        self.site.write("conf.d/far.conf", f"""connection far
address localhost:{self.far_port}
bridge_cafile {self.ca}
remote_username bridge
remote_password pw-bridge
remote_clientid main
topic # both 1 up/ far/
notifications true
""")

    def play(self) -> dict:
        """Everything that is asked."""
        writer = Client(self.plain, "writer", "pw", client="w")
        people = [("u1", "pw-u1"), ("u2", "pw-u2"), ("dyn", "pw-dyn")]
        found = {
            ("tcp", *pair): behaviour(self.plain, *pair, writer) for pair in [*people, ("both", "pw-dynsec"), (None, None)]
        }
        for pair in people:
            found["tls", *pair] = behaviour(self.tls, *pair, writer, kind="tls", ca=self.ca)
            found["websockets", *pair] = behaviour(self.web, *pair, writer, kind="websockets")
        writer.close()
        for user, password in self.USERS.items():
            client = Client(self.plain, user, password, client=f"id-{user}")
            found["all", user] = client.connected and client.publish(f"own/{user}/x")
            client.close()
        for user in ("u7", "u8"):
            client = Client(self.plain, user, "wrong")
            found["wrong", user] = client.connected
            client.close()
        found["mosquitto's clients"] = self.command_line()
        return found

    def command_line(self) -> list:
        """Debian's clients, whose exit code says whether they were refused."""
        found = []
        tls = ["-p", str(self.tls), "--cafile", self.ca]
        for place in (["-p", str(self.plain)], tls):
            for user, password, topic in [
                ("u1", "pw-u1", "own/u1/x"), ("u1", "pw-u1", "sensor/1/temp"), ("u1", "no", "own/u1/x"),
                ("dyn", "pw-dyn", "role/a/x"), ("dyn", "pw-dyn", "role/b/x"),
            ]:
                command = ["mosquitto_pub", "-h", "localhost", *place, "-V", "5", "-u", user, "-P", password]
                command += ["-t", topic, "-m", "x", "-q", "1", "-r"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
                # A wrong password is 0x87 in mosquitto, and 0x86 in Fulmar, as MQTT 5 has it.
                found.append((user, password, topic, done.returncode == 0, "Publish" in done.stderr))
            command = ["mosquitto_sub", "-h", "localhost", *place, "-u", "u1", "-P", "pw-u1", "-t", "own/+/x", "-v"]
            done = subprocess.run([*command, "-C", "1"], capture_output=True, text=True, timeout=PATIENCE_S)
            found.append((done.returncode, done.stdout))
        return found

    def bridges(self):
        """Messages cross the bridges, both ways."""
        near = Client(self.near_port, None, None, client="at-near")
        far = Client(self.far_port, "person", "pw-person", client="at-far", kind="tls", ca=self.ca)
        here = Client(self.plain, "u3", "pw-u3", client="here")
        for client, topic in [(near, "from-main/#"), (far, "far/#"), (here, "down/#"), (here, "up/back")]:
            self.assertTrue(client.subscribe(topic))

        def crosses(sender, sent, receiver, received):
            # The bridge may not have connected yet, or subscribed.
            def attempt():
                sender.publish(sent)
                return received in receiver.got
            eventually(f"{sent} as {received}", attempt)

        crosses(here, "up/1", far, "far/1")
        crosses(far, "far/back", here, "up/back")
        crosses(here, "up/1", near, "from-main/up/1")
        crosses(near, "down/1", here, "down/1")
        for client in (near, far, here):
            client.close()

    def test_clients_get_the_same_answers(self):
        site, folder = self.site, self.site.folder
        site.mosquitto(self.plain)
        before = self.play()
        self.bridges()
        site.stop()
        originals = {path: path.read_bytes() for path in (folder / "users", folder / "acl", folder / "dynsec.json")}
        done = site.imported()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.check_report(done.stdout)
        for path in (folder / "out").iterdir():
            self.assertEqual(path.stat().st_mode & 0o777, 0o600, path)
        imported = (folder / "out" / "passwords").read_bytes()
        self.assertEqual(sum(line.startswith(b"u") for line in imported.splitlines()), 49)
        site.fulmar()
        after = self.play()
        self.maxDiff = None
        for question, answer in before.items():
            with self.subTest(question):
                self.assertEqual(answer, after[question])
        self.assertTrue(all(after["all", user] for user in self.USERS))
        self.bridges()
        self.check_hashes(folder / "data" / "replaced-hashes")
        site.stop()
        # Now with the argon2 hashes.
        site.fulmar()
        for user, password in [("u1", "pw-u1"), ("u2", "pw-u2"), ("dyn", "pw-dyn")]:
            for given in (password, "wrong"):
                client = Client(self.plain, user, given)
                self.assertEqual(client.connected, given == password)
                client.close()
        self.assertEqual(originals, {path: path.read_bytes() for path in originals})
        self.assertEqual(imported, (folder / "out" / "passwords").read_bytes())

    def check_report(self, text: str):
        main, folder = self.site.folder / "mosquitto.conf", self.site.folder
        numbers = {line.split(" ")[0]: number for number, line in enumerate(main.read_text().splitlines(), 1)}
        for option, what in [
            ("autosave_interval", "not needed"), ("queue_qos0_messages", "not translated"),
            ("persistence_location", "differs"), ("plugin", "differs"), ("protocol", "differs"),
        ]:
            self.assertIn(f"{main}:{numbers[option]}: {option}: {what}: ", text)
        self.assertIn(f"{folder}/conf.d/far.conf:8: notifications: not translated: ", text)
        self.assertIn("client: not translated: off is disabled", text)
        self.assertNotIn("pw-bridge", text)
        self.assertIn(f"fulmar serve --config {folder}/out/fulmar.toml", text)

    def check_hashes(self, path: pathlib.Path):
        """Everybody who has logged in has an argon2 hash now."""
        wanted = {*self.USERS, "dyn", "both"}

        def users():
            lines = path.read_text().splitlines() if path.exists() else []
            return {line.split(":")[0] for line in lines if ":$argon2id$" in line}

        eventually("argon2 for everybody", lambda: users() == wanted)
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)

    def test_nothing_is_overwritten_and_malformed_files_are_named(self):
        site = self.site
        self.assertEqual(site.imported().returncode, 0)
        again = site.imported()
        self.assertEqual(again.returncode, 2)
        self.assertIn("fulmar.toml exists", again.stderr)
        self.assertEqual(site.imported("--force").returncode, 0)
        site.write("conf.d/far.conf", "connection far\naddress localhost\ntopic # sideways\n")
        wrong = site.imported("--force")
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("conf.d/far.conf:3: topic #: direction \"sideways\"", wrong.stderr)


if __name__ == "__main__":
    unittest.main()
