# Boots systemd in namespaces, without a container engine: boot.sh BASE FOLDER. BASE is a root file system with systemd,
# which stays as it is; FOLDER is empty.
set -e
base=$1 folder=$2
mount --make-rprivate /
ip link set lo up
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
cd "$folder/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
# What systemd keeps its services in: one hierarchy for everything, or an older kernel's named one.
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
fi
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs dev
mknod -m 666 dev/null c 1 3
mknod -m 666 dev/zero c 1 5
mknod -m 666 dev/random c 1 8
mknod -m 666 dev/urandom c 1 9
mkdir dev/pts dev/shm
mount -t devpts devpts -o newinstance,ptmxmode=666 dev/pts
ln -s pts/ptmx dev/ptmx
: >etc/machine-id
mkdir -p mnt/old
pivot_root . mnt/old
exec chroot . /usr/bin/env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --show-status=0 --unit=multi-user.target </dev/null
