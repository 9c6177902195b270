"""Writes packages: .deb and .rpm with the distributions' own tools, .tar.gz and wheels with Python's. Everything has one
time and sorted names, so that the same contents give the same bytes."""

import base64
import dataclasses
import gzip
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from datetime import datetime, timezone

import contents
from contents import ROOT, File

SUMMARY = {
    "full": "MQTT broker and gateway for bad networks, over QUIC and TCP",
    "gateway": "MQTT broker and gateway for bad networks, small",
}
DESCRIPTION = {
    "full": "A QUIC-first MQTT 3.1.1 and 5.0 broker with a client, gateway, platform and tools.",
    "gateway": "The same program as the package fulmar, without platform, web app, ACME and lab.",
}
# A placeholder, for packages that are not released: scripts/release requires an address.
MAINTAINER = os.environ.get("MAINTAINER") or "The Fulmar contributors <fulmar@invalid>"
# Of xz and zlib; less is faster, for tests.
LEVEL = int(os.environ.get("DIST_LEVEL", "6"))
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64", "armv7": "armhf"}
RPM = {"x86_64": "x86_64", "aarch64": "aarch64", "armv7": "armv7hl"}
# Static programs need no C library, so they fit systems with glibc as well as with musl.
WHEEL = {
    "x86_64": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "aarch64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
    "armv7": "manylinux_2_17_armv7l.manylinux2014_armv7l.musllinux_1_1_armv7l",
}


def write(stage, files, epoch):
    for file in files:
        path = pathlib.Path(stage, file.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.data)
        path.chmod(file.mode)
    for folder, _, names in os.walk(stage, topdown=False):
        for name in names:
            os.utime(pathlib.Path(folder, name), (epoch, epoch))
        os.chmod(folder, 0o755)
        os.utime(folder, (epoch, epoch))


def archive(entries, epoch, prefix=""):
    """A .tar.gz of files, or of (TarInfo, data)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for entry in entries:
            info, data = entry if isinstance(entry, tuple) else (tarfile.TarInfo(prefix + entry.path), entry.data)
            if isinstance(entry, File):
                info.mode = entry.mode
            info.mtime, info.size = epoch, len(data)
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), LEVEL, mtime=0)


def deb(program, version, epoch, third_party, out):
    files = contents.system_files(program, third_party)
    # Debian has its own folder for zsh.
    files = [File(f.path.replace("zsh/site-functions", "zsh/vendor-completions"), f.data, f.mode) for f in files]
    other = "fulmar" if program.variant == "gateway" else "fulmar-gateway"
    control = (f"Package: {program.package}\nVersion: {version}\nArchitecture: {DEBIAN[program.arch]}\n"
               f"Maintainer: {MAINTAINER}\nSection: net\nPriority: optional\n"
               f"Installed-Size: {sum(len(f.data) for f in files) // 1024}\nRecommends: ca-certificates\n"
               f"Provides: mqtt-broker\nConflicts: {other}\nReplaces: {other}\n"
               f"Description: {SUMMARY[program.variant]}\n {DESCRIPTION[program.variant]}\n")
    meta = [File("DEBIAN/control", control.encode()), File("DEBIAN/conffiles", b"/etc/fulmar/fulmar.toml\n")]
    meta += [File(f"DEBIAN/{name}", contents.script(f"debian/{name}", program, version).encode(), 0o755)
             for name in ["preinst", "postinst", "prerm", "postrm"]]
    path = out / f"{program.package}_{version}_{DEBIAN[program.arch]}.deb"
    with tempfile.TemporaryDirectory() as stage:
        write(stage, files + meta, epoch)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", f"-z{LEVEL}", "--threads-max=1", "--build", stage, path],
                       check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, SOURCE_DATE_EPOCH=str(epoch)))
    return path


def rpm(program, version, epoch, third_party, out):
    arch = RPM[program.arch]
    other = "fulmar" if program.variant == "gateway" else "fulmar-gateway"
    with tempfile.TemporaryDirectory() as folder:
        stage = pathlib.Path(folder, "stage")
        write(stage, contents.system_files(program, third_party), epoch)
        (stage / "var/lib/fulmar").mkdir(parents=True)
        spec = contents.script("rpm/fulmar.spec", program, version)
        for mark, text in [("@PACKAGE@", program.package), ("@SUMMARY@", SUMMARY[program.variant]), ("@STAGE@", str(stage)),
                           ("@DESCRIPTION@", DESCRIPTION[program.variant]), ("@RELATIONS@", f"Conflicts: {other}")]:
            spec = spec.replace(mark, text)
        path = pathlib.Path(folder, "fulmar.spec")
        path.write_text(spec, encoding="utf-8")
        built = subprocess.run(
            ["rpmbuild", "-bb", "--target", f"{arch}-linux", "--define", f"_topdir {folder}/top", "--define",
             f"_rpmdir {folder}", "--define", "_rpmfilename package.rpm", "--define", "_tmppath %{_topdir}/tmp", str(path)],
            check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=dict(os.environ, SOURCE_DATE_EPOCH=str(epoch), HOME=folder))
        if built.returncode != 0:
            raise SystemExit(f"rpmbuild failed:\n{built.stdout}")
        target = out / f"{program.package}-{version}-1.{arch}.rpm"
        shutil.copyfile(f"{folder}/package.rpm", target)
    return target


def tarball(program, version, epoch, third_party, out):
    name = f"{program.package}-{version}-{program.arch}"
    path = out / f"{name}.tar.gz"
    path.write_bytes(archive(contents.archive_files(program, third_party), epoch, f"{name}/"))
    return path


def chart(version, epoch, out):
    """The Helm chart, as `helm package` makes it, of this version."""
    folder = ROOT / "packaging/helm"
    paths = sorted(path for path in (folder / "fulmar").rglob("*") if path.is_file())
    files = [File(str(path.relative_to(folder)), path.read_bytes()) for path in paths]
    own = folder.joinpath("fulmar/Chart.yaml").read_text()
    stamped = re.sub(r'(?m)^(version|appVersion): .*$', rf'\1: "{version}"', own).encode()
    files = [dataclasses.replace(file, data=stamped) if file.path == "fulmar/Chart.yaml" else file for file in files]
    path = out / f"fulmar-chart-{version}.tgz"
    path.write_bytes(archive(files, epoch))
    return path


def wheel(program, version, epoch, third_party, out):
    """A wheel whose only content is the program, which pip puts beside Python's: `pip install fulmar-mqtt`."""
    name = "fulmar_mqtt" if program.variant == "full" else "fulmar_mqtt_gateway"
    info = f"{name}-{version}.dist-info"
    tags = [f"py3-none-{tag}" for tag in WHEEL[program.arch].split(".")]
    meta = (f"Metadata-Version: 2.4\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            f"Summary: {SUMMARY[program.variant]}\nLicense-Expression: Apache-2.0 OR MIT\nRequires-Python: >=3.7\n"
            f"Description-Content-Type: text/plain\n\n{DESCRIPTION[program.variant]}\n")
    kind = "Wheel-Version: 1.0\nGenerator: fulmar\nRoot-Is-Purelib: false\n" + "".join(f"Tag: {tag}\n" for tag in tags)
    files = [File(f"{name}-{version}.data/scripts/fulmar", program.data, 0o755),
             File(f"{info}/METADATA", meta.encode()), File(f"{info}/WHEEL", kind.encode()),
             File(f"{info}/licenses/THIRD-PARTY.txt", third_party),
             File(f"{info}/licenses/COPYRIGHT", contents.copyright_notice())]
    record = "".join(f"{f.path},sha256={hashed(f.data)},{len(f.data)}\n" for f in files) + f"{info}/RECORD,,\n"
    path = out / f"{name}-{version}-py3-none-{WHEEL[program.arch]}.whl"
    time = datetime.fromtimestamp(epoch, timezone.utc).timetuple()[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archived:
        for file in [*files, File(f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(file.path, time)
            entry.external_attr = (0o100000 | file.mode) << 16
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            archived.writestr(entry, file.data)
    return path


def hashed(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
