//! Commands that this build leaves out: they are known, take whatever is asked of them, and say which feature
//! they need.

use std::ffi::OsString;

use fulmar_command::exit::Usage;

/// Whatever is asked.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<OsString>,
}

fn refuse(command: &str, feature: &str) -> anyhow::Result<()> {
    Err(Usage(format!(
        "this program was built without `fulmar {command}`; build it with the feature `{feature}`"
    ))
    .into())
}

/// A module in the place of a command's crate, with the same names.
macro_rules! absent {
    ($module:ident, $feature:literal: $($args:ident, $run:ident, $command:literal);+) => {
        #[cfg(not(feature = $feature))]
        pub(crate) mod $module {
            $(
                pub(crate) use super::Args as $args;

                pub(crate) fn $run(_: impl std::borrow::Borrow<$args>) -> anyhow::Result<()> {
                    super::refuse($command, $feature)
                }
            )+
        }
    };
}

absent!(bench, "bench": Args, run, "bench");
absent!(bulk, "bulk": SendArgs, send, "send"; ReceiveArgs, receive, "receive"; RolloutArgs, rollout, "rollout");
absent!(demo, "demo": Args, run, "demo");
absent!(lab, "lab": Args, run, "lab");
absent!(meter, "meter": Args, run, "meter");
absent!(accounts, "platform": UserArgs, user, "user"; TwinArgs, twin, "twin");
absent!(sensor, "sensor": Args, run, "sensor");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_and_a_mistake_of_usage() {
        let error = refuse("send", "bulk").err();
        let error = error.as_ref().and_then(|error| error.downcast_ref::<Usage>());
        let text = error.map(ToString::to_string).unwrap_or_default();
        assert!(text.contains("`fulmar send`") && text.contains("feature `bulk`"), "{text}");
    }
}
