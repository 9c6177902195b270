"""`mosquitto_ctrl dynsec` of Debian works with Fulmar unchanged.

Each command is given to a real mosquitto with its dynamic security plugin and to Fulmar; what it prints and how it ends
is the same. Then clients of mosquitto and Eclipse Paho see the effects while they are connected to Fulmar."""

import contextlib
import json
import os
import pathlib
import sqlite3
import subprocess
import tempfile
import unittest
import uuid

import paho.mqtt.client as paho

import pages
import ports
from broker import PATIENCE_S, Broker, binary, eventually

PLUGIN = next(pathlib.Path("/usr/lib").glob("**/mosquitto_dynamic_security.so"), None)

ACL_TYPES = (
    "publishClientSend", "publishClientReceive", "subscribeLiteral", "subscribePattern", "unsubscribeLiteral",
    "unsubscribePattern",
)

# Every command of mosquitto_ctrl 2.0, with errors that it can report; not the removal of the anonymous group, at which
# mosquitto 2.0.11 ends.
COMMANDS = [
    "getDefaultACLAccess",
    "setDefaultACLAccess subscribe allow",
    "setDefaultACLAccess unsubscribe deny",
    "getDefaultACLAccess",
    "createRole r1", "createRole r1", "createRole r2",
    *(f"addRoleACL r1 {kind} a/# allow 3" for kind in ACL_TYPES),
    "addRoleACL r1 publishClientSend a/# allow 3",
    "addRoleACL r1 publishClientSend b deny 9",
    "addRoleACL r1 publishClientSend c allow 5",
    "addRoleACL r1 publishClientSend a/#/b allow 5",
    "addRoleACL nothing publishClientSend x allow 5",
    "getRole r1", "getRole nothing", "listRoles", "listRoles 1", "listRoles 1 1",
    "removeRoleACL r1 publishClientSend c", "removeRoleACL r1 publishClientSend c", "getRole r1",
    "createClient ann -p secret", "createClient ann -p secret", "createClient bob -p secret -c phone",
    "createClient eve -p secret",
    "setClientPassword ann changed", "setClientPassword nobody changed",
    "setClientId ann tablet", "setClientId nobody tablet", "getClient ann", "setClientId ann",
    "addClientRole ann r1 4", "addClientRole ann r2 7", "addClientRole ann nothing 7", "addClientRole nobody r1 7",
    "getClient ann", "getClient nobody", "listClients", "listClients 2", "listClients 1 1",
    "removeClientRole ann r2", "removeClientRole ann nothing", "getClient ann",
    "disableClient ann", "getClient ann", "enableClient ann", "disableClient nobody", "enableClient nobody",
    "createGroup g1", "createGroup g1", "createGroup g2", "getGroup nothing",
    "addGroupClient g1 ann 3", "addGroupClient g1 ann 3", "addGroupClient g1 bob 2", "addGroupClient nothing bob",
    "addGroupClient g1 nobody",
    "addGroupRole g1 r1 3", "addGroupRole g1 nothing", "addGroupRole g2 r2", "getGroup g1", "getGroup g2",
    "listGroups", "listGroups 1", "listGroups 1 1", "getClient ann",
    "removeGroupClient g1 bob", "removeGroupRole g1 r1", "removeGroupRole nothing r1", "getGroup g1",
    "getAnonymousGroup", "setAnonymousGroup g2", "setAnonymousGroup nothing", "getAnonymousGroup",
    "deleteGroup g1", "deleteGroup g1", "getClient ann",
    "deleteRole r1", "deleteRole r1", "getClient ann", "deleteClient eve", "deleteClient eve", "listClients",
]

# Sent as JSON, as mosquitto_ctrl 2.0 has no command for them. Not modifyClient with groups and modifyGroup with clients that
# do not exist: mosquitto 2.0.11 ignores them, and later versions refuse them as Fulmar does.
REQUESTS = [
    {"command": "createRole", "rolename": "m", "textname": "M", "textdescription": "Role",
     "acls": [{"acltype": "publishClientSend", "topic": "m/#", "allow": True, "priority": 2},
              {"acltype": "nothing", "topic": "m/#"}]},
    {"command": "createGroup", "groupname": "mg", "roles": [{"rolename": "m", "priority": 1}]},
    {"command": "createClient", "username": "mc", "password": "pw", "textname": "T", "textdescription": "D",
     "roles": [{"rolename": "m"}], "groups": [{"groupname": "mg", "priority": 4}], "correlationData": "17"},
    {"command": "listClients", "verbose": True, "count": 5}, {"command": "listGroups", "verbose": True},
    {"command": "listRoles", "verbose": True, "offset": 1},
    {"command": "modifyClient", "username": "mc", "textname": "T2", "groups": [], "roles": []},
    {"command": "modifyClient", "username": "nobody"}, {"command": "getClient", "username": "mc"},
    {"command": "modifyClient", "username": "mc", "roles": [{"rolename": "nothing"}]},
    {"command": "modifyGroup", "groupname": "mg", "textname": "G", "clients": [{"username": "mc", "priority": 3}]},
    {"command": "modifyGroup", "groupname": "nothing"}, {"command": "getGroup", "groupname": "mg"},
    {"command": "modifyRole", "rolename": "m", "textname": "M2", "acls": []}, {"command": "getRole", "rolename": "m"},
    {"command": "modifyRole", "rolename": "nothing"}, {"command": "createClient"}, {"command": "nothing"}, {}, 7,
    {"command": "createClient", "username": 5}, {"command": "setClientPassword", "username": "mc", "password": ""},
    {"command": "addRoleACL", "rolename": "m", "acltype": "nothing", "topic": "x"},
    {"command": "addRoleACL", "rolename": "m", "acltype": "publishClientSend"},
    {"command": "setDefaultACLAccess"}, {"command": "getClient", "username": "mc", "correlationData": "x"},
]


# A state with everything that the plugin's file has.
IMPORTED = [
    "createRole r", "addRoleACL r subscribePattern a/# allow 3", "addRoleACL r publishClientSend a/# allow",
    "addRoleACL r publishClientReceive a/# allow", "addRoleACL r subscribeLiteral b/# deny",
    "addRoleACL r unsubscribeLiteral b deny", "addRoleACL r unsubscribePattern b/# allow 1",
    "createClient ann -p secret -c phone", "createClient bob", "disableClient bob", "createGroup g",
    "addGroupRole g r 2", "addGroupClient g ann 5", "addClientRole bob r", "setAnonymousGroup g",
    "setDefaultACLAccess subscribe allow", "setDefaultACLAccess unsubscribe deny",
]

# `mosquitto_passwd -b FILE ann secret`.
MOSQUITTOS = (
    "$7$101$1w15DL2FI1iUqQ2o$u5ln/qHjWWKMSJzJguGB+B+3ElTo+nZ6Yn83Ig7ME4gsuOJGjIPfrC9BcJ9dGxg8URJ5NOCTDMTqWpzrUQyhRw=="
)


class Hashes(unittest.TestCase):
    def test_a_hash_of_mosquitto_in_the_store_is_replaced_at_the_first_login(self):
        broker = Broker()
        self.addCleanup(broker.close)
        ctl = [binary(), "ctl", "--data", broker.data, "users", "add", "ann", "--role", "viewer"]
        subprocess.run(ctl, input="another password", text=True, check=True, timeout=PATIENCE_S)
        # As a tool that moves users from mosquitto would write it, beside the running broker.
        with contextlib.closing(sqlite3.connect(broker.data / "identities.db", timeout=PATIENCE_S)) as store:
            def hashed():
                [body] = store.execute("SELECT body FROM entity WHERE kind = 3 AND name = 'ann'").fetchone()
                return json.loads(body)

            ann = hashed() | {"password": MOSQUITTOS}
            with store:
                store.execute("UPDATE entity SET body = ? WHERE kind = 3 AND name = 'ann'", [json.dumps(ann)])
            command = [binary(), "pub", f"mqtt://127.0.0.1:{broker.ports['mqtt']}", "-u", "ann", "-t", "t", "-m", "x"]

            def log_in(password):
                env = os.environ | {"FULMAR_PASSWORD": password}
                return subprocess.run(command, env=env, capture_output=True, timeout=PATIENCE_S).returncode == 0

            eventually("the login with mosquitto's hash", lambda: log_in("secret"))
            eventually("an argon2 hash", lambda: hashed()["password"].startswith("$argon2id$"))
        broker.kill()
        broker.start()
        self.assertTrue(log_in("secret"))
        self.assertFalse(log_in("Secret"))


class Mosquitto:
    """mosquitto with its plugin, and the administrator that its own tool makes."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        [self.port] = ports.take(1)
        config = pathlib.Path(self.folder.name) / "mosquitto.conf"
        state = pathlib.Path(self.folder.name) / "dynsec.json"
        command = ["mosquitto_ctrl", "dynsec", "init", str(state), "admin"]
        subprocess.run(command, input="admin-pw\nadmin-pw\n", text=True, check=True, capture_output=True)
        config.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\nuser root\nplugin {PLUGIN}\n"
            f"plugin_opt_config_file {state}\n"
        )
        self.process = subprocess.Popen(["mosquitto", "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.password = "admin-pw"

    def close(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.folder.cleanup()


def fulmar() -> Broker:
    broker = Broker("[platform]\nenabled = false\n", addresses={"mqtt": "0.0.0.0"})
    lines = (broker.data / "first-administrator").read_text().splitlines()
    [broker.password] = [line.removeprefix("password: ") for line in lines if line.startswith("password: ")]
    return broker


def control(port: int, password: str, *args: str) -> tuple[int, str]:
    command = ["mosquitto_ctrl", "-h", "127.0.0.1", "-p", str(port), "-u", "admin", "-P", password, "dynsec", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.returncode, done.stdout + done.stderr


class Client:
    """A client of Eclipse Paho, and what has happened to it."""

    def __init__(self, port: int, user: str, password: str, client_id: str = ""):
        self.messages, self.ended, self.connected = [], [], []
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id or f"{user}-{uuid.uuid4()}", protocol=paho.MQTTv5)
        self.client.username_pw_set(user, password)
        self.client.on_connect = lambda *args: self.connected.append(args[3].value)
        self.client.on_message = lambda _c, _u, message: self.messages.append((message.topic, message.payload.decode()))
        self.client.on_disconnect = lambda *args: self.ended.append(args[3].value)
        self.client.connect("127.0.0.1", port)
        self.client.loop_start()
        eventually("CONNACK", lambda: self.connected)

    def subscribe(self, topic: str):
        done = []
        self.client.on_subscribe = lambda *args: done.append(args[3])
        self.client.subscribe(topic)
        eventually("SUBACK", lambda: done)

    def close(self):
        self.client.disconnect()
        self.client.loop_stop()


class DynamicSecurity(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.broker = fulmar()
        self.addCleanup(self.broker.close)

    def dynsec(self, *args: str) -> str:
        code, output = control(self.broker.ports["mqtt"], self.broker.password, *args)
        self.assertEqual(code, 0, output)
        return output

    def ask(self, port: int, password: str, request) -> list:
        """The answer to a request in JSON, from mosquitto's own clients."""
        client = Client(port, "admin", password)
        self.addCleanup(client.close)
        client.subscribe("$CONTROL/dynamic-security/v1/response")
        client.client.publish("$CONTROL/dynamic-security/v1", request if isinstance(request, str) else json.dumps(request), 1)
        eventually("the answer", lambda: client.messages)
        return json.loads(client.messages[0][1])["responses"]

    @unittest.skipUnless(PLUGIN, "mosquitto's dynamic security plugin is not installed")
    def test_every_command_prints_what_it_prints_with_mosquitto(self):
        mosquitto = Mosquitto()
        self.addCleanup(mosquitto.close)
        eventually("mosquitto", lambda: control(mosquitto.port, mosquitto.password, "listRoles")[0] == 0)
        # What its own administrator has is not Fulmar's.
        shown = lambda text: [line for line in text.splitlines() if "admin" not in line]
        for line in COMMANDS:
            with self.subTest(line):
                expected = control(mosquitto.port, mosquitto.password, *line.split())
                found = control(self.broker.ports["mqtt"], self.broker.password, *line.split())
                self.assertEqual((found[0], shown(found[1])), (expected[0], shown(expected[1])))
        both = [(mosquitto.port, mosquitto.password), (self.broker.ports["mqtt"], self.broker.password)]
        expected, found = (self.ask(*one, {"commands": REQUESTS}) for one in both)
        for request, mine, theirs in zip(REQUESTS, found, expected, strict=True):
            with self.subTest(request):
                for answer in (mine, theirs):
                    data = answer.get("data", {})
                    for kind in ("clients", "roles"):
                        if kind in data:
                            data[kind] = [one for one in data[kind] if "admin" not in (one.get("username"), one.get("rolename"))]
                self.assertEqual(mine, theirs)
        for wrong in ("not JSON", {"commands": 5}, {}, {"commands": []}):
            expected, found = (self.ask(*one, wrong) for one in both)
            self.assertEqual(found, expected, wrong)

    @unittest.skipUnless(PLUGIN, "mosquitto's dynamic security plugin is not installed")
    def test_the_plugins_file_is_imported(self):
        mosquitto = Mosquitto()
        self.addCleanup(mosquitto.close)
        eventually("mosquitto", lambda: control(mosquitto.port, mosquitto.password, "listRoles")[0] == 0)
        for line in IMPORTED:
            code, output = control(mosquitto.port, mosquitto.password, *line.split())
            self.assertEqual((code, "Error" in output), (0, False), output)
        self.ask(mosquitto.port, mosquitto.password, {"commands": REQUESTS[:3]})
        [line] = pages.lines("docs/mosquitto.md", "fulmar import dynamic-security ")
        self.assertEqual(line.split()[3:], ["dynamic-security.json", "--data", "/var/lib/fulmar"])

        def fill(data):
            state = pathlib.Path(mosquitto.folder.name) / "dynsec.json"
            command = [binary(), "import", "dynamic-security", str(state), "--data", str(data)]
            done, again = (subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S) for _ in range(2))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("clients: 4, groups: 2, roles: 3", done.stdout)
            self.assertIn("bob has no password that can be verified", done.stdout)
            self.assertNotEqual(again.returncode, 0)
            self.assertIn("Role already exists; nothing was added", again.stderr)

        broker = Broker("[platform]\nenabled = false\n", addresses={"mqtt": "0.0.0.0"}, prepare=fill)
        self.addCleanup(broker.close)
        self.assertFalse((broker.data / "first-administrator").exists(), "the plugin's administrator is there")
        port = broker.ports["mqtt"]
        for line in (
            "listClients", "listGroups", "listRoles", "getClient admin", "getClient ann", "getClient bob", "getClient mc",
            "getGroup g", "getGroup mg", "getRole r", "getRole m", "getRole admin", "getDefaultACLAccess", "getAnonymousGroup",
        ):
            with self.subTest(line):
                expected = control(mosquitto.port, mosquitto.password, *line.split())
                self.assertEqual(control(port, mosquitto.password, *line.split()), expected)
        ann = Client(port, "ann", "secret", "phone")
        self.addCleanup(ann.close)
        ann.subscribe("a/#")
        ann.client.publish("a/1", "m", 1)
        eventually("ann's own message", lambda: ann.messages == [("a/1", "m")])
        refused = Client(port, "ann", "secret", "desk")
        self.addCleanup(refused.close)
        self.assertNotEqual(refused.connected[0], 0, "bound to a client identifier")

    def test_connected_clients_of_others_see_the_effects(self):
        port = self.broker.ports["mqtt"]
        for command in (
            "createRole r", "addRoleACL r subscribePattern a/# allow", "addRoleACL r publishClientSend a/# allow",
            "createClient ann -p secret", "createGroup g", "addGroupClient g ann", "addGroupRole g r",
        ):
            self.dynsec(*command.split())
        ann = Client(port, "ann", "secret")
        self.addCleanup(ann.close)
        ann.subscribe("a/#")

        def publish(topic: str, message: str, user="admin", password=self.broker.password) -> int:
            command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-u", user, "-P", password]
            command += ["-V", "5", "-t", topic, "-m", message, "-q", "1"]
            return subprocess.run(command, capture_output=True, timeout=PATIENCE_S).returncode

        publish("a/1", "first")
        eventually("the first message", lambda: ann.messages == [("a/1", "first")])
        self.dynsec("addRoleACL", "r", "publishClientReceive", "a/1", "deny")
        publish("a/1", "denied")
        publish("a/2", "second")
        eventually("the second message", lambda: len(ann.messages) > 1)
        self.assertEqual(ann.messages[1:], [("a/2", "second")])
        self.assertEqual(ann.ended, [], "rules change without a disconnection")
        self.dynsec("removeGroupClient", "g", "ann")
        eventually("DISCONNECT, as the subscription is no longer allowed", lambda: ann.ended)
        self.assertEqual(ann.ended[0], 0x87)
        ann.close()
        self.dynsec("addGroupClient", "g", "ann")
        ann = Client(port, "ann", "secret")
        self.addCleanup(ann.close)
        ann.subscribe("a/#")
        publish("a/4", "again")
        eventually("the third message", lambda: ann.messages == [("a/4", "again")])
        self.dynsec("deleteClient", "ann")
        eventually("DISCONNECT", lambda: ann.ended)
        self.assertEqual(ann.ended[0], 0x87)
        self.assertNotEqual(publish("a/5", "gone", "ann", "secret"), 0)
        log = (self.broker.data / "log").read_text()
        self.assertNotIn("secret", log)

    def test_the_commands_of_the_page(self):
        for line in pages.lines("docs/access.md", "mosquitto_ctrl "):
            host, *command = line.removeprefix("mosquitto_ctrl -h ").split()
            self.assertEqual((host, command[:3]), ("broker.example", ["-u", "admin", "dynsec"]))
            self.dynsec(*command[3:])
        self.assertIn("Rolename: sensors", self.dynsec("getRole", "sensors"))
        sensor = Client(self.broker.ports["mqtt"], "s1", "secret")
        self.addCleanup(sensor.close)
        done = sensor.client.publish("sensors/1", "m", 1)
        done.wait_for_publish(PATIENCE_S)
        self.assertTrue(done.is_published())


if __name__ == "__main__":
    unittest.main()
