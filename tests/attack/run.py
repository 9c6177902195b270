"""What strangers and users can do to a broker: attacks it while honest clients use it, and prints what that did to them.

    FULMAR_BIN=PROGRAM run.py [ATTACK...]

`make attack` runs it. Each attack lasts ATTACK_SECONDS (60 unless set) against one broker with a data folder of its
own, on two processors where there are more, and with at most ATTACK_MEMORY_MIB (2048) of memory: a control group
holds it to that where this user may make one (cgroup v2); elsewhere its resident memory is looked at 20 times a
second, and it is killed above. A limit of address space would be another thing: an allocator takes far more of that
than it uses. Attackers have a lower priority than the broker, so that on a small machine they take its time by what
they send and not by running.

Honest clients are there before the attack: a publisher and a subscriber with a message every 100 ms, and new logins
over MQTT (by password and by SCRAM), QUIC and HTTPS (the platform's and the administration's). In a control run before each attack the same generator aims at closed ports: how long the
honest clients wait then is what the generator itself costs them. It fails if the broker ends or has more memory, a
message is lost, a connection broken or the session of a client that is away gone, a login takes more than 3 s, or a message waits 500 ms longer than in the
control run; and with ATTACK_BUDGET, such as 512MB ([limits] memory), if resident memory exceeds it by a tenth or the
data folder has more than 1.1 GB. ATTACK_AFTER_S (60) after the attack, it looks again: a message waits no longer than in
the control run and 500 ms, and with ATTACK_BUDGET resident memory is what it was before, with 32 MiB and twice what the
broker still counts for clients ([limits] memory). ATTACKS names the attacks, a part of the name each, separated by semicolons.

With ATTACK_SHORT=1, as in CI: a few attacks, no control runs, and nothing is judged that depends on the machine's speed.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))

import ports  # noqa: E402
import wire  # noqa: E402
from attacks import ATTACKS  # noqa: E402
from common import answer, logged_in  # noqa: E402

SECONDS = float(os.environ.get("ATTACK_SECONDS", "60"))
MEMORY_MIB = int(os.environ.get("ATTACK_MEMORY_MIB", "2048"))
# [limits] memory: the broker's budget, which is to keep it below MEMORY_MIB.
BUDGET = os.environ.get("ATTACK_BUDGET", "auto")
# [limits] disk, which is to keep the data folder below MAX_FOLDER_MB.
DISK = "auto" if BUDGET == "auto" else "1GB"
SHORT = os.environ.get("ATTACK_SHORT") == "1"
SHORT_ATTACKS = ("half a PUBLISH", "rapid resets, HTTP/2", "fragments, QUIC", "unfinished uploads, CoAP", "wills of 64 KB", "half exchanges, SCRAM", "$CONTROL")
MAX_LOGIN_S = 3.0
# Longer than in the control run.
MAX_WAIT_S = 0.5
MAX_FOLDER_MB = 1_100
# Resident memory above that before the attack and twice what is still counted.
MAX_KEPT_MIB = 32
# Seconds of the control run, and after the attack until memory is looked at again; the last ones are measured.
CONTROL_S = min(SECONDS, 10.0)
AFTER_S = float(os.environ.get("ATTACK_AFTER_S", "2" if SHORT else "10" if SECONDS < 60 else "60"))
MEASURED_AFTER_S = min(AFTER_S, 10.0)
# Users who have not logged in yet: the attacked ones, and behind them those who log in once.
FRESH, FRESH_USERS, FRESH_ATTACKED = "fresh%d", 2_000, 1_000
# How long anything but an attack may take.
PATIENCE_S = 60
PASSWORD = "correct horse battery staple"
TOKEN_KEY = "sixty-four characters that only the issuer and the broker know.."
# Roles of the store (docs/access.md), and its users with theirs and with roles of administration.
STORE = (
    "roles add anything",
    "roles allow anything publish #",
    "roles add control",
    "roles allow control publish $CONTROL/#",
    "roles allow control subscribe $CONTROL/#",
    "roles allow control receive $CONTROL/#",
    "users add store --topic-roles anything",
    "users add keeper --role operator",
    "users add viewer --role viewer",
    "users add chief --role administrator --topic-roles control",
)
KINDS = ("mqtt", "mqtts", "ws", "wss", "quic", "https", "http", "coap", "coaps", "mqtt_sn")
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Group:
    """A control group with a limit of memory; without the right to make one it holds nothing."""

    ROOT = pathlib.Path("/sys/fs/cgroup")

    def __init__(self):
        self.path = None
        controllers = self.ROOT / "cgroup.controllers"
        if not controllers.is_file() or "memory" not in controllers.read_text().split():
            return
        path = self.ROOT / f"fulmar-attack-{os.getpid()}"
        try:
            path.mkdir()
            (path / "memory.max").write_text(str(MEMORY_MIB << 20))
            (path / "memory.swap.max").write_text("0")
        except OSError:
            if path.is_dir():
                path.rmdir()
            return
        self.path = path

    def take(self, pid):
        if self.path:
            (self.path / "cgroup.procs").write_text(str(pid))

    def close(self):
        if self.path:
            self.path.rmdir()


class Broker:
    """The broker that is attacked, watched by a thread."""

    def __init__(self, program, group):
        self.folder = tempfile.TemporaryDirectory(prefix="fulmar-attack-")
        self.data = pathlib.Path(self.folder.name)
        self.ports = dict(zip(KINDS, ports.take(len(KINDS))))
        self.closed = dict(zip(KINDS, ports.take(len(KINDS))))
        self.program, self.group = program, group
        self.peak_mib, self.folder_peak_mb, self.too_large, self.stopped = 0.0, 0.0, False, threading.Event()
        self.configure()
        command = [program, "serve", "--config", str(self.config), "--data", str(self.data)]
        log = open(self.data / "log", "ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=self.confine)
        log.close()
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise SystemExit(f"the broker did not start: {line!r}\n{self.log()}")
        for command in STORE:
            self.command("ctl", "--data", str(self.data), *command.split())
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def confine(self):
        # Two processors, as the figures are to be compared.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
        self.group.take(os.getpid())

    @property
    def config(self):
        return self.data / "fulmar.toml"

    def configure(self):
        keys = self.data / "psk"
        keys.write_text("honest:0x" + "5a" * 16 + "\n")
        keys.chmod(0o600)
        passwords = self.data / "passwords"
        # For the attack by many users.
        token_key = self.data / "token-key"
        token_key.write_text(TOKEN_KEY)
        token_key.chmod(0o600)
        lines = [f'{kind} = ["127.0.0.1:{port}"]' for kind, port in self.ports.items()]
        self.config.write_text(
            "[listeners]\n" + "\n".join(lines) + f'\n[limits]\nmemory = "{BUDGET}"\ndisk = "{DISK}"\n[auth]\npassword_file = "{passwords}"\njwt_algorithm = "HS256"\njwt_key_file = "{token_key}"\nscram = true\nscram_iterations = 4096\n[proxy_protocol]\nlisteners = ["wss"]\nfrom = ["127.0.0.0/8"]\n[coap]\npsk_file = "{keys}"\n'
        )
        for user in ("honest", "mallory"):
            self.command("passwd", user, "--file", str(passwords))
        # Users who have not logged in yet, with the same password.
        line = passwords.read_text().splitlines()[0].split(":", 1)[1]
        with open(passwords, "a") as file:
            file.writelines(f"{FRESH % number}:{line}\n" for number in range(FRESH_USERS))
        where = ["--data", str(self.data), "--config", str(self.config)]
        self.command("twin", "add", "town", *where)
        self.command("user", "add", "clerk", "--twin", "town", "--role", "office", *where)

    def command(self, *words):
        subprocess.run([self.program, *words], input=PASSWORD + "\n", text=True, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)

    def site(self, ports=None):
        ca = str(self.data / "ca" / "ca.pem")
        return json.dumps({**(ports or self.ports), "ca": ca, "user": "honest", "fresh": FRESH, "fresh_users": FRESH_ATTACKED, "attacker": "mallory", "account": "clerk", "keeper": "keeper", "password": PASSWORD, "token_key": TOKEN_KEY})

    def resident_mib(self):
        try:
            with open(f"/proc/{self.process.pid}/statm") as statm:
                return int(statm.read().split()[1]) * PAGE / (1 << 20)
        except (OSError, IndexError):
            return 0.0

    def counted_mib(self):
        """What it counts for clients; nothing if it does not say."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports['http']}/metrics", timeout=PATIENCE_S) as page:
                lines = page.read().decode().splitlines()
        except OSError:
            return 0.0
        return sum(float(line.split()[-1]) for line in lines if line.startswith("fulmar_memory_used_bytes{")) / (1 << 20)

    def cpu_s(self):
        try:
            with open(f"/proc/{self.process.pid}/stat") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
                return (int(fields[11]) + int(fields[12])) / TICKS
        except (OSError, IndexError):
            return 0.0

    def folder_mb(self):
        """What it takes on the disk; files come and go meanwhile."""
        total = 0
        for path in self.data.rglob("*"):
            try:
                total += path.stat().st_blocks * 512
            except OSError:
                pass
        return total / 1e6

    def watch(self):
        looks = 0
        while not self.stopped.wait(0.05) and self.process.poll() is None:
            resident, looks = self.resident_mib(), looks + 1
            if looks % 10 == 0:
                self.folder_peak_mb = max(self.folder_peak_mb, self.folder_mb())
            self.peak_mib = max(self.peak_mib, resident)
            if resident > MEMORY_MIB:
                self.too_large = True
                self.process.kill()

    def log(self):
        return (self.data / "log").read_text(errors="replace")[-4000:]

    def close(self):
        self.stopped.set()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        self.folder.cleanup()


class Kept:
    """A session of an honest user who is away: it has to be there after the attack, with its message."""

    def __init__(self, site):
        self.site = json.loads(site)
        with self.dial() as sock:
            sock.sendall(wire.subscribe5(["kept"]))
            answer(sock, wire.Packets())
        with logged_in(self.site, "kept-publisher", False, user=self.site["user"]) as sock:
            heard = wire.Packets()
            answer(sock, heard)
            sock.sendall(wire.publish5("kept", b"still here", number=1))
            answer(sock, heard)

    def dial(self):
        sock = logged_in(self.site, "kept", user=self.site["user"])
        self.heard = wire.Packets()
        self.connack = answer(sock, self.heard)
        return sock

    def is_there(self):
        try:
            with self.dial() as sock:
                message = self.connack and answer(sock, self.heard)
        except OSError:
            return False
        return bool(message) and self.connack[1][0] == 1 and message[1].endswith(b"still here")


class Honest:
    """The honest clients."""

    def __init__(self, site):
        command = [sys.executable, str(HERE / "honest.py"), site]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit("the honest clients did not get in")

    def say(self, word):
        self.process.stdin.write(word + "\n")

    def figures(self):
        self.say("end")
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass


def attack(name, seconds, site):
    """What the attacker says it did."""
    if name is None:
        time.sleep(seconds)
        return {"number": 0, "seconds": seconds}
    command = [sys.executable, str(HERE / "attacks.py"), name, str(seconds), site]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + PATIENCE_S)
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return {"number": 0, "seconds": seconds}


def measure(name, program, group):
    """One attack on a broker of its own; its row of the table."""
    broker = Broker(program, group)
    honest = None
    try:
        honest, kept = Honest(broker.site()), Kept(broker.site())
        time.sleep(min(1.0, SECONDS))
        control = {}
        if not SHORT:
            honest.say("begin")
            attack(name, CONTROL_S, broker.site(broker.closed))
            control = honest.figures()
        before = {"cpu": broker.cpu_s(), "mib": broker.resident_mib(), "mb": broker.folder_mb(), "counted": broker.counted_mib()}
        broker.peak_mib = before["mib"]
        honest.say("begin")
        done = attack(name, SECONDS, broker.site())
        spent = broker.cpu_s() - before["cpu"]
        figures = honest.figures()
        figures["kept"] = kept.is_there()
        after = quiet_again(honest, broker)
        return row(name, done, before, spent, control, figures, after, broker)
    finally:
        if honest:
            honest.close()
        broker.close()


def quiet_again(honest, broker):
    """What the end of a quiet time after the attack is like."""
    time.sleep(AFTER_S - MEASURED_AFTER_S)
    honest.say("begin")
    time.sleep(MEASURED_AFTER_S)
    return {"mib": broker.resident_mib(), "counted": broker.counted_mib(), **honest.figures()}


def budget_mib():
    """The bound of resident memory."""
    if BUDGET == "auto":
        return MEMORY_MIB
    return 1.1 * float(BUDGET.removesuffix("MB")) * 1e6 / (1 << 20)


def faults_of(name, done, before, control, figures, after, broker):
    if broker.too_large or broker.peak_mib > budget_mib():
        yield "memory"
    if broker.process.poll() is not None:
        yield f"ended ({broker.process.returncode})"
    if BUDGET != "auto" and broker.folder_peak_mb > MAX_FOLDER_MB:
        yield "folder"
    if figures["lost"] or figures["broken"]:
        yield "loss"
    if not figures["kept"]:
        yield "an honest session"
    if not figures["published"]:
        yield "no honest message"
    if not SHORT:
        worst = max(figures["worst_login_s"].values(), default=float("inf"))
        if worst > MAX_LOGIN_S or figures["logins_failed"]:
            yield "login"
        if figures["worst_wait_s"] > control["worst_wait_s"] + MAX_WAIT_S:
            yield "wait"
        if after["worst_wait_s"] > control["worst_wait_s"] + MAX_WAIT_S or after["lost"] or after["broken"]:
            yield "wait after it"
    if BUDGET != "auto" and AFTER_S >= 60:
        counted = max(0.0, after["counted"] - before["counted"])
        if after["mib"] > before["mib"] + MAX_KEPT_MIB + 2 * counted:
            yield "memory after it"
    if name and not done["number"]:
        yield "no attack"
        print(broker.log(), file=sys.stderr)


def row(name, done, before, spent, control, figures, after, broker):
    faults = list(faults_of(name, done, before, control, figures, after, broker))
    slowest = " ".join(f"{kind} {seconds:.2f}" for kind, seconds in sorted(figures["worst_login_s"].items()))
    return {
        "attack": name or "none",
        "number": done["number"],
        "a second": f"{done['number'] / done['seconds']:.0f}",
        "RSS MiB": f"{before['mib']:.0f} {broker.peak_mib:.0f} {after['mib']:.0f}",
        "counted MiB": f"{before['counted']:.0f} {after['counted']:.0f}",
        "folder MB": f"{before['mb']:.0f} {broker.folder_peak_mb:.0f} {broker.folder_mb():.0f}",
        "CPU s": f"{spent:.1f}",
        "wait s": f"{figures['worst_wait_s']:.3f}",
        "control s": f"{control['worst_wait_s']:.3f}" if control else "",
        "after s": f"{after['worst_wait_s']:.3f}",
        "lost": f"{figures['lost']} of {figures['published']}",
        "broken": figures["broken"],
        "logins": figures["logins"],
        "slowest s": slowest,
        **({"detail": done["detail"]} if "detail" in done else {}),
        "verdict": "ok" if not faults else "FAILED: " + ", ".join(faults),
    }


def print_table(rows):
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    for cells in [names, ["-" * width for width in widths], *([row[name] for name in names] for row in rows)]:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(cells, widths)).rstrip(), flush=True)


def main():
    program = os.environ.get("FULMAR_BIN")
    if not program or not pathlib.Path(program).is_file():
        raise SystemExit("set FULMAR_BIN to the fulmar binary (make attack does)")
    wanted = [word for word in os.environ.get("ATTACKS", "").split(";") if word] + sys.argv[1:]
    names = [name for name in (SHORT_ATTACKS if SHORT else ATTACKS) if not wanted or any(word in name for word in wanted)]
    if not names:
        raise SystemExit("there is no such attack; there are: " + "; ".join(ATTACKS))
    group, rows = Group(), []
    held = "a control group" if group.path else "its resident memory, looked at"
    print(f"{program}: {SECONDS:.0f} s each, at most {MEMORY_MIB} MiB ({held})", flush=True)
    try:
        for name in names if SHORT else [None, *names]:
            rows.append(measure(name, program, group))
            detail = rows[-1].pop("detail", None)
            print(f"{rows[-1]['attack']}: {rows[-1]['verdict']}" + (f" ({detail})" if detail else ""), flush=True)
    finally:
        group.close()
    print("RSS and folder: before, at most and after the attack; counted: before and after; wait, control, after: the longest of an honest message")
    print_table(rows)
    return int(any(row["verdict"] != "ok" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
