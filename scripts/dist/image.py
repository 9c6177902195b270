"""Container images without a daemon: an OCI image layout (image-spec 1.1) in a .tar, with one manifest per architecture
below one index. An image has the program, a configuration, CA certificates and two accounts: no shell."""

import gzip
import hashlib
import io
import json
import tarfile
from datetime import datetime, timezone

import certifi

import contents
import formats
from contents import ROOT

USER = 65532
PLATFORMS = {
    "x86_64": {"architecture": "amd64", "os": "linux"},
    "aarch64": {"architecture": "arm64", "os": "linux", "variant": "v8"},
    "armv7": {"architecture": "arm", "os": "linux", "variant": "v7"},
}
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
SECOND = 1_000_000_000


def compact(document):
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(program, third_party, epoch):
    def entry(path, data=b"", mode=0o644, owner=0, kind=tarfile.REGTYPE):
        info = tarfile.TarInfo(path)
        info.type, info.mode, info.uid, info.gid = kind, mode, owner, owner
        return info, data

    def folder(path, mode=0o755, owner=0):
        return entry(path, b"", mode, owner, tarfile.DIRTYPE)

    accounts = f"root:x:0:0::/:/\nfulmar:x:{USER}:{USER}::/var/lib/fulmar:/\n"
    groups = f"root:x:0:\nfulmar:x:{USER}:\n"
    with open(certifi.where(), "rb") as file:
        roots = file.read()
    doc = "usr/share/doc/fulmar"
    return formats.archive([
        folder("etc"), entry("etc/passwd", accounts.encode()), entry("etc/group", groups.encode()),
        folder("etc/fulmar"), entry("etc/fulmar/fulmar.toml", (ROOT / "packaging/image.toml").read_bytes()),
        entry("etc/fulmar/outbox.toml", contents.OUTBOX.read_bytes()),
        folder("etc/ssl"), folder("etc/ssl/certs"), entry("etc/ssl/certs/ca-certificates.crt", roots),
        folder("tmp", 0o1777),
        folder("usr"), folder("usr/bin"), entry("usr/bin/fulmar", program.data, 0o755),
        folder("usr/share"), folder("usr/share/doc"), folder(doc),
        entry(f"{doc}/copyright", contents.copyright_notice()), entry(f"{doc}/THIRD-PARTY.txt", third_party),
        folder("var"), folder("var/lib"), folder("var/lib/fulmar", 0o700, USER),
    ], epoch)


def configuration(program, version, packed, created):
    # 1883 with outbox.toml.
    ports = ["1883/tcp", "8883/tcp", "8443/tcp", "8443/udp", "14567/udp"]
    health = {"Test": ["CMD", "/usr/bin/fulmar", "health"], "Interval": 30 * SECOND, "Timeout": 6 * SECOND,
              "StartPeriod": 10 * SECOND, "Retries": 3}
    return compact({
        **PLATFORMS[program.arch], "created": created,
        "config": {
            "User": f"{USER}:{USER}", "Env": ["PATH=/usr/bin", "FULMAR_DATA=/var/lib/fulmar"],
            "Entrypoint": ["/usr/bin/fulmar"], "Cmd": ["serve", "--config", "/etc/fulmar/fulmar.toml"],
            "WorkingDir": "/var/lib/fulmar", "ExposedPorts": {port: {} for port in ports},
            "Volumes": {"/var/lib/fulmar": {}}, "StopSignal": "SIGTERM",
            # Docker's; OCI has no health checks, and podman takes it only from images in Docker's format.
            "Healthcheck": health,
            "Labels": {"org.opencontainers.image.title": program.package, "org.opencontainers.image.version": version,
                       "org.opencontainers.image.licenses": "Apache-2.0 OR MIT"},
        },
        "rootfs": {"type": "layers", "diff_ids": [digest(gzip.decompress(packed))]},
        "history": [{"created": created, "created_by": "scripts/dist/image.py"}],
    })


def write(programs, version, epoch, notices, out):
    """One image of a variant, for the architectures of its programs."""
    created = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    blobs = {}

    def blob(kind, data, **more):
        blobs[digest(data)] = data
        return {"mediaType": kind, "digest": digest(data), "size": len(data), **more}

    manifests = []
    for program in programs:
        packed = layer(program, notices[program.arch], epoch)
        config = configuration(program, version, packed, created)
        manifest = compact({"schemaVersion": 2, "mediaType": MANIFEST, "config": blob(CONFIG, config),
                            "layers": [blob(LAYER, packed)]})
        manifests.append(blob(MANIFEST, manifest, platform=PLATFORMS[program.arch]))
    name = programs[0].package
    all_of_them = compact({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
    names = {"org.opencontainers.image.ref.name": version, "io.containerd.image.name": f"localhost/{name}:{version}"}
    top = compact({"schemaVersion": 2, "mediaType": INDEX,
                   "manifests": [blob(INDEX, all_of_them, annotations=names)]})
    path = out / f"{name}-{version}-image.tar"
    files = {"index.json": top, "oci-layout": b'{"imageLayoutVersion":"1.0.0"}',
             **{f"blobs/{key.replace(':', '/')}": data for key, data in blobs.items()}}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for path_in_layout in sorted(files):
            info = tarfile.TarInfo(path_in_layout)
            info.mtime, info.size, info.mode = epoch, len(files[path_in_layout]), 0o644
            tar.addfile(info, io.BytesIO(files[path_in_layout]))
    return path
