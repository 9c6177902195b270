//! One order of a certificate, from the account to the chain (RFC 8555 section 7).

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use fulmar_certs::{CertError, files, issued};
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, Problem, RetryPolicy,
};

use super::challenge::Challenges;
use super::http::Https;
use fulmar_config::{Acme, set};

/// Polls until the CA has validated the names, and again until it has signed.
const POLLING: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(180));

/// An issued certificate.
pub(super) struct Answer {
    /// The chain in PEM, leaf first, unchecked.
    pub(super) chain: String,
    /// Certificate's private key in PEM.
    pub(super) key: String,
}

/// Orders a certificate, with the account whose key is in `account`, or with a new account that is stored there.
pub(super) async fn place(
    acme: &Acme,
    account: &Path,
    challenges: &Challenges,
) -> anyhow::Result<Answer> {
    let account = open(acme, account).await?;
    let names: Vec<_> = acme.domains.iter().cloned().map(Identifier::Dns).collect();
    let mut order = account.new_order(&NewOrder::new(&names)).await.context("order refused")?;
    answer_challenges(&mut order, &acme.domains, challenges).await?;
    let ready = order.poll_ready(&POLLING).await;
    if !matches!(ready, Ok(OrderStatus::Ready)) {
        return Err(invalid(&mut order, &acme.domains, ready.err()).await);
    }
    let (request, key) = issued::request(&acme.domains)?;
    order.finalize_csr(&request).await.context("request for the certificate refused")?;
    let chain = order.poll_certificate(&POLLING).await.context("no certificate was issued")?;
    Ok(Answer { chain, key })
}

async fn open(acme: &Acme, path: &Path) -> anyhow::Result<Account> {
    let builder = Account::builder_with_http(Box::new(Https::new(set(&acme.ca_file))?));
    match files::read_own_secret(path) {
        Ok(text) => {
            let credentials = serde_json::from_slice(&text);
            let damaged =
                || format!("{}: damaged; remove it to create a new account", path.display());
            Ok(builder.from_credentials(credentials.with_context(damaged)?).await?)
        }
        Err(CertError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {
            let contact: Vec<&str> = acme.contact.iter().map(String::as_str).collect();
            let wanted = NewAccount {
                contact: &contact,
                terms_of_service_agreed: acme.agree_to_terms,
                only_return_existing: false,
            };
            let made = builder.create(&wanted, acme.directory.clone(), None).await;
            let (account, credentials) = made.context("no account")?;
            files::write(path, &serde_json::to_vec(&credentials)?, true)?;
            Ok(account)
        }
        Err(error) => Err(error.into()),
    }
}

async fn answer_challenges(
    order: &mut Order,
    domains: &[String],
    challenges: &Challenges,
) -> anyhow::Result<()> {
    check_number(order, domains)?;
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        let name = authorization.identifier().to_string();
        let ordered = domains.iter().any(|domain| domain.eq_ignore_ascii_case(&name));
        ensure!(
            ordered,
            "the CA answers with an authorization for {name:?}, which was not ordered"
        );
        match authorization.status {
            AuthorizationStatus::Pending => {}
            AuthorizationStatus::Valid => continue,
            status => bail!("{name}: authorization is {status:?}"),
        }
        let challenge = authorization.challenge(ChallengeType::TlsAlpn01);
        let none = || anyhow!("{name}: the CA does not validate by tls-alpn-01");
        let mut challenge = challenge.ok_or_else(none)?;
        challenges.answer(&name, challenge.key_authorization().digest().as_ref())?;
        challenge.set_ready().await.with_context(|| name)?;
    }
    Ok(())
}

/// Each one is requested and kept in memory.
fn check_number(order: &mut Order, domains: &[String]) -> anyhow::Result<()> {
    let (number, most) = (order.state().authorizations.len(), domains.len());
    ensure!(number <= most, "the CA answers with {number} authorizations for {most} names");
    Ok(())
}

/// Why an order is not ready: the CA's errors per name, or else `error`.
async fn invalid(order: &mut Order, domains: &[String], error: Option<Error>) -> anyhow::Error {
    // It may be another list than at first.
    if let Err(error) = check_number(order, domains) {
        return error;
    }
    if let Ok(Some((name, problem))) = refused(order).await {
        return anyhow::Error::from(Error::Api(problem))
            .context(format!("{name} is not validated"));
    }
    match error {
        Some(error) => anyhow::Error::from(error).context("the names are not validated"),
        None => anyhow!("the CA rejected the order without a reason"),
    }
}

async fn refused(order: &mut Order) -> Result<Option<(String, Problem)>, Error> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        authorization.refresh().await?;
        let name = authorization.identifier().to_string();
        let problem = authorization.challenges.iter().find_map(|challenge| challenge.error.clone());
        if let Some(problem) = problem {
            return Ok(Some((name, problem)));
        }
    }
    Ok(None)
}
