"""Root file systems to install into, each in namespaces of its own (mounts, processes, network), made by root."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

# Until something has happened that must happen; everything here takes seconds.
PATIENCE_S = 120
HOLD = """
ip link set lo up
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
mount --bind /dev/null "$2/root/dev/null"
echo ready
exec sleep infinity
"""


def run(*command, **options):
    """Runs a command to its end; its output is in the error if it fails and may not."""
    check = options.pop("check", True)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=PATIENCE_S, check=False, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}")
    return done


def child(process):
    """The process that unshare or nsenter has started; they forward no signals."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()):
        # It is started a moment after its parent.
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"{process.args} started nothing, or it has ended")
        time.sleep(0.01)
    return int(found[0])


class Root:
    """A copy-on-write view of `base`, in which programs run."""

    def __init__(self, base):
        self.stack = contextlib.ExitStack()
        self.folder = pathlib.Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ["upper", "work", "root", "root/proc", "root/dev"]:
            (self.folder / name).mkdir(exist_ok=True)
        (self.folder / "upper/proc").mkdir()
        (self.folder / "upper/dev").mkdir(mode=0o755)
        (self.folder / "upper/dev/null").touch()
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-ec", HOLD, "sh", base, self.folder],
            stdout=subprocess.PIPE, text=True)
        self.stack.callback(self._release)
        if self.holder.stdout.readline() != "ready\n":
            raise AssertionError("no root file system: is this root's account?")
        self.inside = str(child(self.holder))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def _release(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()

    def _enter(self, chroot=True):
        words = ["nsenter", "--target", self.inside, "--mount", "--net", "--pid", "--"]
        return words + (["chroot", str(self.folder / "root")] if chroot else [])

    def run(self, *command, chroot=True, **options):
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
        return run(*self._enter(chroot), *command, env=env, **options)

    def start(self, *command):
        """A program inside, until `end`."""
        return subprocess.Popen([*self._enter(), *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def end(self, process):
        """As Ctrl-C does."""
        os.kill(child(process), signal.SIGINT)
        process.wait(PATIENCE_S)

    def path(self, path):
        """The same file from outside."""
        return pathlib.Path(f"/proc/{self.inside}/root{self.folder}/root", path.lstrip("/"))

    @contextlib.contextmanager
    def broker(self, *command):
        """A broker until the block ends; it must then stop by itself."""
        log = self.folder / "log"
        with log.open("w") as file:
            process = subprocess.Popen([*self._enter(), *command], stdout=subprocess.PIPE, stderr=file, text=True)
        try:
            line = process.stdout.readline()
            assert line.startswith("ready"), f"{command} does not start: {log.read_text()}"
            yield process
            os.kill(child(process), signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, process.returncode
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def debian(folder, *packages):
    """Debian's smallest root and these packages, by debootstrap; kept in `folder` for the next run."""
    base = pathlib.Path(folder, "-".join(["debian", *packages]))
    if not (base / "complete").exists():
        shutil.rmtree(base, ignore_errors=True)
        mirror = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
        more = [f"--include={','.join(packages)}"] if packages else []
        subprocess.run(["debootstrap", "--variant=minbase", *more, "bookworm", base, mirror], check=True,
                       stdout=subprocess.DEVNULL)
        hosts(base)
        (base / "complete").touch()
    return base


def without_libc(folder):
    """A root with busybox's static programs and no C library: any kind of Linux without glibc."""
    base = pathlib.Path(folder)
    for name in ["bin", "sbin", "etc", "usr/bin", "usr/sbin", "var/lib", "tmp", "root", "proc", "dev"]:
        (base / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("busybox"), base / "bin/busybox")
    for name in run(base / "bin/busybox", "--list").stdout.split():
        (base / "bin" / name).symlink_to("busybox") if not (base / "bin" / name).exists() else None
    # Debian's busybox cannot add accounts, as others can.
    (base / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nfulmar:x:990:990::/var/lib/fulmar:/bin/false\n")
    (base / "etc/group").write_text("root:x:0:\nfulmar:x:990:\n")
    hosts(base)
    return base


def hosts(base):
    """What every installer writes."""
    pathlib.Path(base, "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
