# A newer version of Fulmar may have changed its tables, and this one could not read them: nothing is installed then.
# SQLite has the number of the tables at byte 60 of a file. @TABLES@ is FILE=NUMBER for each that this version writes.
for known in @TABLES@; do
    file=/var/lib/fulmar/${known%=*}
    [ -f "$file" ] || continue
    found=$(od -An -tu1 -j60 -N4 "$file" | while read -r a b c d; do
        echo $(((a << 24) + (b << 16) + (c << 8) + d))
    done)
    if [ "$found" -gt "${known#*=}" ]; then
        echo "fulmar @VERSION@ cannot read $file: a newer version has changed its tables (to $found, this version knows" >&2
        echo "${known#*=}). Keep the newer version; or stop it, move /var/lib/fulmar away, and install this one again." >&2
        exit 1
    fi
done
