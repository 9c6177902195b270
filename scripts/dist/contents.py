"""What packages contain beside the program, and how it is found out: manual pages, completions and the numbers of the
tables come from the program itself, licences from the sources of what is compiled in."""

import dataclasses
import gzip
import os
import pathlib
import platform
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Devices' messages for another broker (docs/outbox.md).
OUTBOX = ROOT / "packaging/outbox.toml"
# Until a broker has written its files and says so.
PATIENCE_S = 60
LISTENERS = ["mqtt", "mqtts", "ws", "wss", "quic", "https", "webtransport", "http", "coap", "coaps", "mqtt_sn"]
# Sections whose Cargo features the gateway's program does not have (crates/config/src/features.rs).
LACKING = ("acme", "platform")
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/fulmar",
    "zsh": "usr/share/zsh/site-functions/_fulmar",
    "fish": "usr/share/fish/vendor_completions.d/fulmar.fish",
}

SHARED = ["grafana/fulmar.json", "prometheus/fulmar.rules.yml",
          *(f"recipes/{path.name}" for path in sorted((ROOT / "packaging/recipes").iterdir()))]


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a package; `path` has no slash at its beginning."""
    path: str
    data: bytes
    mode: int = 0o644


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program and what it says about itself."""
    arch: str
    variant: str
    data: bytes
    manual: dict     # file name: text
    completions: dict  # shell: text
    tables: dict     # file in the data folder: number of its tables

    @property
    def package(self):
        return "fulmar" if self.variant == "full" else "fulmar-gateway"


def runner(arch):
    """What a program of this architecture is run with here."""
    here = {"arm64": "aarch64", "armv7l": "armv7"}.get(platform.machine(), platform.machine())
    if arch == here:
        return []
    name = "qemu-arm" if arch == "armv7" else f"qemu-{arch}"
    for emulator in (name, f"{name}-static"):
        if shutil.which(emulator):
            return [emulator]
    raise SystemExit(f"A program for {arch} does not run on this machine without {name} (Debian: qemu-user-static).")


def load(arch, variant, path):
    command = [*runner(arch), str(path)]
    with tempfile.TemporaryDirectory() as folder:
        pages = pathlib.Path(folder, "man")
        subprocess.run([*command, "man", str(pages)], check=True)
        manual = {page.name: page.read_bytes() for page in sorted(pages.iterdir())}
        completions = {
            shell: subprocess.run([*command, "completions", shell], check=True, stdout=subprocess.PIPE).stdout
            for shell in COMPLETIONS
        }
        config = pathlib.Path(folder, "fulmar.toml")
        config.write_bytes(configuration(variant))
        tables = tables_of([*command, "serve", "--config", str(config)], variant, pathlib.Path(folder, "data"))
    return Program(arch, variant, path.read_bytes(), manual, completions, tables)


def tables_of(command, variant, data):
    """The numbers of the tables (SQLite's user version) in the files that this program writes; with the configuration
    of the package, which it must accept."""
    env = dict(os.environ, FULMAR_UPSTREAM__URL="mqtt://127.0.0.1:9", FULMAR_UPSTREAM__UP='[{filter="#"}]')
    if variant == "full":
        env["FULMAR_PLATFORM__ENABLED"] = "true"
    for name in LISTENERS:
        env[f"FULMAR_LISTENERS__{name.upper()}"] = '["127.0.0.1:0"]' if name == "mqtt" else "[]"
    broker = subprocess.Popen([*command, "--data", str(data)], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(PATIENCE_S, broker.kill)
    watchdog.start()
    line = broker.stdout.readline()
    broker.send_signal(signal.SIGTERM)
    _, log = broker.communicate()
    watchdog.cancel()
    if not line.startswith("ready") or broker.returncode != 0:
        raise SystemExit(f"{command} does not start and stop:\n{log}")
    return {path.name: struct.unpack(">I", path.read_bytes()[60:64])[0]
            for path in sorted(data.glob("*.db")) if path.name != "tickets.db"}


def squeezed(data):
    return gzip.compress(data, 9, mtime=0)


def system_files(program, third_party):
    """The files of a .deb or .rpm."""
    unit = (ROOT / "packaging/fulmar.service").read_text(encoding="utf-8")
    unit = unit.replace("/usr/local/bin/fulmar", "/usr/bin/fulmar")
    example = configuration(program.variant)
    doc = f"usr/share/doc/{program.package}"
    files = [
        File("usr/bin/fulmar", program.data, 0o755),
        File("usr/lib/systemd/system/fulmar.service", unit.encode()),
        File("etc/fulmar/fulmar.toml", example, 0o640),
        File(f"{doc}/fulmar.example.toml", example),
        File(f"{doc}/outbox.toml", OUTBOX.read_bytes()),
        File(f"{doc}/copyright", copyright_notice()),
        File(f"{doc}/THIRD-PARTY.txt.gz", squeezed(third_party)),
        File(f"{doc}/changelog.gz", squeezed((ROOT / "CHANGELOG.md").read_bytes())),
    ]
    # Grafana's dashboard and Prometheus' alert rules.
    files += [File(f"usr/share/fulmar/{path}", (ROOT / "packaging" / path).read_bytes()) for path in SHARED]
    files += [File(COMPLETIONS[shell], text) for shell, text in program.completions.items()]
    files += [File(f"usr/share/man/man1/{name}.gz", squeezed(text)) for name, text in program.manual.items()]
    return sorted(files, key=lambda file: file.path)


def archive_files(program, third_party):
    """The files of a .tar.gz, for systems with neither kind of package."""
    files = [File("fulmar", program.data, 0o755), File("THIRD-PARTY.txt", third_party)]
    files.append(File("fulmar.example.toml", configuration(program.variant)))
    for path in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md", "packaging/fulmar.service", "packaging/outbox.toml"]:
        files.append(File(pathlib.Path(path).name, (ROOT / path).read_bytes()))
    files += [File(f"completions/{pathlib.Path(COMPLETIONS[shell]).name}", text)
              for shell, text in program.completions.items()]
    files += [File(f"man/{name}", text) for name, text in program.manual.items()]
    return sorted(files, key=lambda file: file.path)


def configuration(variant):
    """The example, without the sections of parts that this program lacks: it would refuse them."""
    kept, is_lacking = [], False
    for paragraph in (ROOT / "fulmar.example.toml").read_text(encoding="utf-8").split("\n\n"):
        section = re.search(r"(?m)^\[(\w+)", paragraph)
        if section:
            is_lacking = variant == "gateway" and section[1] in LACKING
        if not is_lacking:
            kept.append(paragraph)
    return "\n\n".join(kept).rstrip("\n").encode() + b"\n"


def copyright_notice():
    return (b"Fulmar is licensed under the Apache License 2.0 or the MIT licence, at your option. What is compiled\n"
            b"into it has licences of its own: THIRD-PARTY.txt.gz.\n\n"
            + (ROOT / "LICENSE-MIT").read_bytes() + b"\n" + (ROOT / "LICENSE-APACHE").read_bytes())


def script(name, program, version):
    """A package's script, with the parts that packages of both kinds share."""
    text = (ROOT / "packaging" / name).read_text(encoding="utf-8")
    for mark, part in [("@DATA_CHECK@", "data-check.sh"), ("@ACCOUNT@", "account.sh")]:
        text = text.replace(mark, (ROOT / "packaging" / part).read_text(encoding="utf-8").rstrip())
    tables = " ".join(f"{name}={number}" for name, number in program.tables.items())
    # Not in the comment that explains it.
    text = text.replace("@TABLES@ is", "TABLES is")
    return text.replace("@TABLES@", tables).replace("@VERSION@", version)
