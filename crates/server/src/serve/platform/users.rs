//! The platform's users as the broker's external users, decided from memory.

use fulmar_broker::access::Action;
use fulmar_broker::auth::{Admitted, ExternalUsers};
use fulmar_broker::{Timestamp, User};
use fulmar_platform::{Platform, TOKEN_PREFIX};

/// The platform's users.
#[derive(Debug)]
pub(super) struct Users(pub(super) Platform);

impl ExternalUsers for Users {
    fn admit(&self, token: &str, username: Option<&str>, _: Timestamp) -> Option<Admitted> {
        let admitted = self.0.admit(token, username)?;
        Some(Admitted {
            user: Some(User::external(&admitted.user)?),
            until: Timestamp(admitted.until_ms),
            credential: Some(admitted.session.into()),
        })
    }

    fn is_token(&self, password: &str) -> bool {
        password.starts_with(TOKEN_PREFIX)
    }

    fn knows(&self, username: &str) -> bool {
        self.0.knows(username)
    }

    fn is_good(&self, credential: &str) -> bool {
        self.0.is_session(credential)
    }

    fn allows(&self, external_user: &str, action: Action, topic: &str) -> bool {
        self.0.may(external_user, action == Action::Publish, topic)
    }
}
