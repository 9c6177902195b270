//! Commands that are disabled in this build. They accept any arguments and fail with a message that names the Cargo
//! feature to enable.

use std::ffi::OsString;

use fulmar_command::exit::Usage;

/// Accepts any arguments.
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

/// A module that replaces the crate of a disabled command, with the same names.
macro_rules! disabled_command {
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

disabled_command!(bench, "bench": Args, run, "bench");
disabled_command!(bulk, "bulk": SendArgs, send, "send"; ReceiveArgs, receive, "receive"; RolloutArgs, rollout, "rollout");
disabled_command!(cluster, "cluster": ClusterArgs, cluster_command, "cluster");
disabled_command!(ctl, "admin": Args, run, "ctl"; AuditArgs, audit, "audit");
disabled_command!(demo, "demo": Args, run, "demo");
disabled_command!(import, "import": Args, run, "import");
disabled_command!(lab, "lab": Args, run, "lab");
disabled_command!(meter, "meter": Args, run, "meter");
disabled_command!(accounts, "platform": UserArgs, user, "user"; TwinArgs, twin, "twin");
disabled_command!(sink, "sinks": Args, run, "sink");
disabled_command!(sensor, "sensor": Args, run, "sensor");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_feature_is_named_in_a_usage_error() {
        let error = refuse("send", "bulk").err();
        let error = error.as_ref().and_then(|error| error.downcast_ref::<Usage>());
        let text = error.map(ToString::to_string).unwrap_or_default();
        assert!(text.contains("`fulmar send`") && text.contains("feature `bulk`"), "{text}");
    }
}
