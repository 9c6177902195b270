//! What a demonstration prints about logging in: the address, the users and their passwords.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use super::data_folder::new_password;
use super::installation::User;

/// The users of a demonstration, and the server that they log in to.
pub(super) struct Login<'a> {
    pub(super) has_web_app: bool,
    pub(super) port: u16,
    pub(super) users: &'a [User],
    pub(super) data: &'a Path,
}

impl Login<'_> {
    /// Shows what to do now on standard output: what this is `about`, how to log in, and what `also`; the ready line last,
    /// for scripts that wait for it.
    pub(super) fn announce(&self, about: &str, also: &str, ready: &str) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{}{about}\n\n{}\n\
             The browser does not know the certificate's CA: continue despite its warning, or install\n{}\n\
             {also} Ctrl-C ends it.\n\n{ready}",
            self.warning(),
            self.text(),
            self.data.join("ca").join("ca.pem").display()
        )?;
        Ok(out.flush()?)
    }

    /// Text to print before everything else.
    fn warning(&self) -> &'static str {
        if self.has_web_app {
            ""
        } else {
            "This program was built without the web app: run `make web`, build again, then repeat \
             this command.\n"
        }
    }

    /// Address, users and passwords.
    fn text(&self) -> String {
        let port = self.port;
        let mut text = if self.has_web_app {
            format!("Open https://localhost:{port}/ and log in as one of\n")
        } else {
            format!("The API at https://localhost:{port}/api/v1 accepts these users:\n")
        };
        for user in self.users {
            let password = user.password.as_deref().unwrap_or("(set before)");
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {:8} {password:16} {}", user.name, user.about);
        }
        if self.users.iter().any(|user| user.password.is_none()) {
            let _ = writeln!(text, "{}", new_password(self.data));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use fulmar_platform::Role;

    use super::*;

    #[test]
    fn only_a_program_with_the_web_app_tells_its_user_to_open_it() {
        let (password, role) = (Some("secret".to_owned()), Role::Admin);
        let user = User { name: "office", password, about: "readings", role };
        let login = |has_web_app| {
            let users = std::slice::from_ref(&user);
            let login = Login { has_web_app, port: 8443, users, data: Path::new("town") };
            (login.warning(), login.text())
        };
        let (warning, text) = login(true);
        assert_eq!(warning, "");
        assert!(text.starts_with("Open https://localhost:8443/ and log in"), "{text}");
        let (warning, text) = login(false);
        assert!(warning.starts_with("This program was built without the web app: run `make web`"));
        assert!(!text.contains("Open") && text.contains("secret"), "{text}");
    }
}
