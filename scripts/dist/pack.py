#!/usr/bin/env python3
"""Makes packages of the programs that scripts/dist/compile has compiled: scripts/dist/pack.py PROGRAMS OUT ARCH...

PROGRAMS/ARCH/VARIANT/fulmar are the programs; what is missing there is left out. Of each, OUT gets a .deb, a .rpm, a
.tar.gz, a wheel and a bill of materials; of each variant an image for all architectures; the Helm chart; and SHA256SUMS of everything.
With --formats, only these. The time in all of it is SOURCE_DATE_EPOCH, or that of the last commit."""

import argparse
import hashlib
import os
import pathlib
import subprocess
import tomllib

import bom
import contents
import formats
from contents import ROOT

FORMATS = {"deb": formats.deb, "rpm": formats.rpm, "tar": formats.tarball, "wheel": formats.wheel}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("arch", nargs="+", choices=list(formats.DEBIAN))
    parser.add_argument("--version", help="instead of Cargo.toml's, for tests of upgrades")
    parser.add_argument("--formats", default="deb,rpm,tar,wheel,sbom,image,chart")
    options = parser.parse_args()
    version = options.version or tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or subprocess.run(
        ["git", "log", "-1", "--format=%ct"], check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
    wanted = options.formats.split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    made = []
    for variant in ["full", "gateway"]:
        programs, notices = [], {}
        for arch in options.arch:
            path = options.programs / arch / variant / "fulmar"
            if not path.exists():
                print(f"No {variant} program for {arch}: not packed.")
                continue
            program = contents.load(arch, variant, path)
            programs.append(program)
            notices[arch] = bom.third_party(arch, variant)
            for name, form in FORMATS.items():
                if name in wanted:
                    made.append(form(program, version, epoch, notices[arch], options.out))
            if "sbom" in wanted:
                made.append(options.out / f"{program.package}-{version}-{arch}.cdx.json")
                made[-1].write_bytes(bom.bill(program, version, epoch))
        if programs and "image" in wanted:
            # Here, because only images need what it imports from the environment of `make dist`.
            import image
            made.append(image.write(programs, version, epoch, notices, options.out))
    if "chart" in wanted:
        made.append(formats.chart(version, epoch, options.out))
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
                   for path in sorted(made, key=lambda path: path.name))
    (options.out / "SHA256SUMS").write_text(sums)
    for path in made:
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path}")


if __name__ == "__main__":
    main()
