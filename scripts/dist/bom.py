"""What a program is made of: a software bill of materials (CycloneDX 1.5, JSON) and the licences' texts, from Cargo's
own answer about the crates of one target and set of features, and from npm's lock file for the web app."""

import json
import pathlib
import subprocess
import tomllib
from datetime import datetime, timezone

from contents import ROOT

TRIPLES = {
    "x86_64": "x86_64-unknown-linux-musl",
    "aarch64": "aarch64-unknown-linux-musl",
    "armv7": "armv7-unknown-linux-musleabihf",
}
FEATURES = {"full": [], "gateway": ["--no-default-features", "--features", "fulmar/gateway"]}
NOTICES = ("license", "licence", "copying", "notice", "copyright", "unlicense")


def crates(arch, variant):
    """Packages that are in the program: not what only tests or build scripts need."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TRIPLES[arch],
               "--manifest-path", "crates/fulmar/Cargo.toml", *FEATURES[variant]]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    start = next(i for i, package in packages.items() if package["name"] == "fulmar")
    # The features with which cargo builds the program alone: those of the whole workspace are more.
    wanted = names_built(arch, variant)
    reached, waiting = {}, [start]
    while waiting:
        node = waiting.pop()
        if node in reached:
            continue
        below = [dep["pkg"] for dep in nodes[node]["deps"]
                 if any(kind["kind"] is None for kind in dep["dep_kinds"])
                 and (packages[dep["pkg"]]["name"], packages[dep["pkg"]]["version"]) in wanted]
        reached[node] = below
        waiting += below
    return [(packages[i], [packages[b] for b in below]) for i, below in reached.items()]


def names_built(arch, variant):
    command = ["cargo", "tree", "--package", "fulmar", "--locked", "--target", TRIPLES[arch], "--edges", "normal",
               "--prefix", "none", "--format", "{p}", *[f.replace("fulmar/", "") for f in FEATURES[variant]]]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.splitlines()
    return {(words[0], words[1].removeprefix("v")) for words in (line.split() for line in lines) if len(words) > 1}


def web_packages():
    """The packages of npm that are in the web app, if it has been built."""
    if not (ROOT / "web/dist/index.html").exists():
        return []
    lock = json.loads((ROOT / "web/package-lock.json").read_text(encoding="utf-8"))
    return [(path.rpartition("node_modules/")[2], package, ROOT / "web" / path)
            for path, package in sorted(lock["packages"].items()) if path and not package.get("dev")]


def reference(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def bill(program, version, epoch):
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text(encoding="utf-8"))
    sums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}
    components, edges = [], []
    for package, below in sorted(crates(program.arch, program.variant), key=lambda pair: reference(pair[0])):
        edges.append({"ref": reference(package), "dependsOn": sorted(reference(b) for b in below)})
        if package["name"] == "fulmar":
            continue
        component = {"type": "library", "bom-ref": reference(package), "name": package["name"],
                     "version": package["version"], "purl": reference(package)}
        if package.get("license"):
            component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        checksum = sums.get((package["name"], package["version"]))
        if checksum:
            component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        components.append(component)
    if program.variant == "full":
        for name, package, _ in web_packages():
            purl = f"pkg:npm/{name.replace('@', '%40')}@{package['version']}"
            components.append({"type": "library", "bom-ref": purl, "name": name, "version": package["version"],
                               "purl": purl, "licenses": [{"expression": package.get("license", "NOASSERTION")}]})
    release = subprocess.run(["rustc", "-V"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()[1]
    pinned = dict(line.split("==") for line in (ROOT / "scripts/dist/requirements.txt").read_text().split() if "==" in line)
    # Its C library is musl.
    for name, number in [("rust-std", release), ("zig", pinned["ziglang"])]:
        components.append({"type": "library", "bom-ref": name, "name": name, "version": number})
    root = {"type": "application", "bom-ref": f"pkg:cargo/fulmar@{version}", "name": program.package,
            "version": version, "licenses": [{"expression": "Apache-2.0 OR MIT"}],
            "properties": [{"name": "target", "value": TRIPLES[program.arch]}]}
    time = datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
                       "metadata": {"timestamp": time, "component": root},
                       "components": components, "dependencies": edges}, indent=1).encode() + b"\n"


def notices(folder):
    return [path for path in sorted(folder.iterdir())
            if path.is_file() and path.name.lower().startswith(NOTICES)] if folder.is_dir() else []


def third_party(arch, variant):
    """Names, licences and their texts; each text once."""
    entries = [(f"{p['name']} {p['version']}", p.get("license") or "", pathlib.Path(p["manifest_path"]).parent)
               for p, _ in crates(arch, variant) if p["source"]]
    if variant == "full":
        entries += [(f"{name} {package['version']}", package.get("license", ""), folder)
                    for name, package, folder in web_packages()]
    texts, lines = {}, []
    for name, licence, folder in sorted(entries):
        numbers = []
        for path in notices(folder):
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            numbers.append(texts.setdefault(text, len(texts) + 1))
        lines.append(f"{name} ({licence}): {', '.join(f'text {n}' for n in numbers) or 'no text of its own'}")
    parts = ["What is compiled into this program beside Fulmar's own code, with its licences. The C library is musl (MIT);\n"
             "SQLite is in the public domain.\n", *lines]
    parts += [f"\n---- text {number}\n\n{text}" for text, number in texts.items()]
    return "\n".join(parts).encode() + b"\n"
