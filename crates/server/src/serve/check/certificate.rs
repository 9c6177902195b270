//! Checks the certificate that the server would present: key, dates, order of the chain, names.

use std::path::Path;
use std::time::{Duration, SystemTime};

use rustls_pki_types::CertificateDer;

use super::finding::Finding;
use fulmar_config::Config;
use fulmar_part::certificates::{self, Presented};

const CHECK: &str = "certificate";
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time before the end of a certificate at which a person should renew it.
const EARLY: Duration = Duration::from_secs(14 * 24 * 3600);

pub(super) fn check(config: &Config, data: &Path, now: SystemTime) -> Finding {
    match certificates::inspect(config, data, crate::serve::ORDERED) {
        Err(error) => Finding::error(CHECK, &error),
        Ok(Presented::Nothing) => Finding::ok(CHECK, "no listener has TLS".to_owned()),
        Ok(Presented::New(folder)) => Finding::ok(
            CHECK,
            format!("the first start creates a development CA in {}", folder.display()),
        ),
        Ok(Presented::Chain(path, chain)) => dates(&path, &chain, now, "get a new certificate"),
        Ok(Presented::Development(path, chain)) => {
            let next = "move the folder of this CA away; the next start creates another CA, which clients must trust";
            dates(&path, &chain, now, next)
        }
    }
}

/// Findings about a chain that TLS can use; `renew` is what to do when it expires.
fn dates(path: &Path, chain: &[CertificateDer<'_>], now: SystemTime, renew: &str) -> Finding {
    let shown = path.display();
    let Some((described, validity)) = chain
        .first()
        .and_then(|leaf| Some((fulmar_certs::describe(leaf)?, fulmar_certs::validity(leaf)?)))
    else {
        let text = format!("{shown}: the certificate cannot be read");
        return Finding::problem(CHECK, text, renew);
    };
    let about = format!("{shown} ({})", described.subject);
    if now < *validity.start() {
        let text = format!("{about} is not valid before {}", described.not_before);
        return Finding::problem(CHECK, text, "check the clock: date -u");
    }
    let Ok(left) = validity.end().duration_since(now) else {
        let text = format!("{about} expired on {}: clients refuse it", described.not_after);
        return Finding::problem(CHECK, text, renew);
    };
    if !fulmar_certs::is_in_order(chain) {
        let text = format!("{about}: the chain is not in order, so some clients refuse it");
        let next = "put the server's certificate first, then the intermediate ones: cat server.pem intermediate.pem > chain.pem";
        return Finding::problem(CHECK, text, next);
    }
    if described.names.is_empty() && !described.is_authority {
        let text = format!("{about} has no host names or addresses: clients refuse it");
        return Finding::problem(CHECK, text, "get a certificate with a subject alternative name");
    }
    let days = left.as_secs() / DAY.as_secs();
    let names = match described.names.as_slice() {
        [] => String::new(),
        names => format!(" for {}", names.join(", ")),
    };
    let text = format!("{about}{names} is valid for another {days} days");
    if left < EARLY {
        return Finding::warning(CHECK, text, renew);
    }
    Finding::ok(CHECK, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::finding::Level;
    use super::*;
    use fulmar_certs::authority::{Authority, Purpose};
    use fulmar_certs::files;

    #[test]
    fn dates_order_and_names_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let ca = Authority::open(&folder.path().join("ca")).unwrap();
        let path = folder.path().join("chain.pem");
        let chain = |names: &[&str], days: u32| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let issued = ca.issue("broker", &names, Purpose::Server, days).unwrap();
            files::write(&path, issued.chain_pem.as_bytes(), false).unwrap();
            files::read_chain(&path).unwrap()
        };
        let good = chain(&["broker.example"], 90);
        let found = |chain: &[CertificateDer<'_>], days: i32| {
            let now = SystemTime::now();
            let shift = DAY * days.unsigned_abs();
            let now = if days < 0 { now - shift } else { now + shift };
            let finding = dates(Path::new("chain.pem"), chain, now, "renew");
            (finding.level, finding.text)
        };
        let (level, text) = found(&good, 0);
        assert_eq!(level, Level::Ok, "{text}");
        assert!(text.contains("(CN=broker) for broker.example is valid for another"), "{text}");
        assert_eq!(found(&good, 80).0, Level::Warning);
        let cases = [(91, "expired on"), (-3, "is not valid before")];
        for (days, part) in cases {
            let (level, text) = found(&good, days);
            assert!(level == Level::Problem && text.contains(part), "{text}");
        }
        let wrong: Vec<_> = [good[0].clone(), good[0].clone()].into();
        assert!(found(&wrong, 0).1.contains("not in order"));
        let (level, text) = found(&chain(&[], 90), 0);
        assert!(level == Level::Problem && text.contains("no host names"), "{text}");
    }
}
