//! Checks whether this process may create network namespaces: as root, or in a user namespace if the kernel and its
//! administrator allow it. If not, the error names what is missing.

use std::fs;

use super::sys;
use crate::Error;

const WITHOUT_RIGHTS: &str =
    "not root, and user namespaces have no rights here (AppArmor or a container forbids it)";

/// Origin of the privilege.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// The process had it already (root, or capabilities).
    Own,
    /// The process has entered a user namespace of its own, under the same user and group.
    UserNamespace,
}

/// Makes sure that this process may make network namespaces and TUN devices. Without privileges it
/// enters a user namespace, for which it must still have a single thread: call it early.
///
/// # Errors
/// [`Error::Missing`] says what is missing and what helps.
pub fn acquire() -> Result<Privilege, Error> {
    let privilege = if may_make_network() {
        Privilege::Own
    } else {
        enter_user_namespace()?;
        if !may_make_network() {
            return Err(refused(WITHOUT_RIGHTS));
        }
        Privilege::UserNamespace
    };
    match fs::File::options().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok(privilege),
        Err(error) => Err(Error::Missing {
            what: format!("/dev/net/tun cannot be opened ({error})"),
            remedy: tun_remedy(&error).to_owned(),
        }),
    }
}

/// Most distributions let everyone open the device; what may be done with it depends on the namespace.
fn tun_remedy(error: &std::io::Error) -> &'static str {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        "run as root, or allow all users to open it with `chmod 666 /dev/net/tun`"
    } else {
        "load the kernel module `tun`; in a container add `--device /dev/net/tun`"
    }
}

/// Tries to, on a thread that then ends and removes the namespace.
fn may_make_network() -> bool {
    std::thread::scope(|scope| {
        scope.spawn(|| sys::new_network_namespace().is_ok()).join().unwrap_or(false)
    })
}

fn enter_user_namespace() -> Result<(), Error> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if !has_one_thread() {
        return Err(refused("this process has several threads and cannot enter a user namespace"));
    }
    sys::new_user_namespace().map_err(|_| refused(&why_no_user_namespace()))?;
    // The user is the same inside as outside: programs see no difference, and files keep their owner. The kernel
    // requires `setgroups` to be disabled first; kernels without this file need nothing.
    let _ = fs::write("/proc/self/setgroups", "deny");
    let map = |path: &str, id: u32| fs::write(path, format!("{id} {id} 1\n"));
    map("/proc/self/uid_map", user.as_raw())
        .and_then(|()| map("/proc/self/gid_map", group.as_raw()))
        .map_err(|_| refused(WITHOUT_RIGHTS))
}

fn has_one_thread() -> bool {
    fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() == 1)
}

fn refused(what: &str) -> Error {
    Error::Missing {
        what: format!("network namespaces cannot be made: {what}"),
        remedy: "run as root, or with the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN".to_owned(),
    }
}

/// Returns the reason why user namespaces are forbidden, as far as the kernel's settings show it.
fn why_no_user_namespace() -> String {
    let is =
        |path: &str, value: &str| fs::read_to_string(path).is_ok_and(|text| text.trim() == value);
    if is("/proc/sys/user/max_user_namespaces", "0") {
        "not root, and sysctl user.max_user_namespaces is 0".to_owned()
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "not root, and sysctl kernel.unprivileged_userns_clone is 0".to_owned()
    } else {
        "not root, and user namespaces are not allowed here".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;

    #[test]
    fn a_forbidden_device_is_no_missing_module() {
        let forbidden = tun_remedy(&ErrorKind::PermissionDenied.into());
        assert!(forbidden.contains("chmod 666") && !forbidden.contains("module"), "{forbidden}");
        let missing = tun_remedy(&ErrorKind::NotFound.into());
        assert!(missing.contains("module `tun`"), "{missing}");
    }
}
