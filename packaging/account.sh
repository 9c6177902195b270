# The service's user, whose only folder is the data folder.
if ! id fulmar >/dev/null 2>&1; then
    if command -v useradd >/dev/null; then
        useradd --system --user-group --home-dir /var/lib/fulmar --no-create-home --shell /usr/sbin/nologin fulmar
    else
        # busybox
        addgroup -S fulmar
        adduser -S -D -H -h /var/lib/fulmar -s /sbin/nologin -G fulmar fulmar
    fi
fi
