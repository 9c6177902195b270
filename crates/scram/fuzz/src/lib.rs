//! Fuzz targets of `fulmar-scram`: a hostile client, and a hostile server.

use std::sync::OnceLock;

use fulmar_scram::{
    ClientExchange, ClientFirst, DecoyKey, MAX_MESSAGE_BYTES, ServerExchange, Verifier,
};

/// Both messages of a client, with a line end between them. Without the password, none is accepted.
pub fn server(data: &[u8]) {
    static VERIFIER: OnceLock<Verifier> = OnceLock::new();
    let verifier = VERIFIER
        .get_or_init(|| Verifier::new(b"not in a corpus: 1C0ffEE", 4096).expect("random numbers"));
    let cut = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (first, last) = (&data[..cut], data.get(cut + 1..).unwrap_or_default());
    let Ok(first) = ClientFirst::parse(first) else { return };
    let decoy = DecoyKey::new([1; 32], 4096).verifier(first.username(), []);
    let begun = ServerExchange::begin(&first, Some(verifier), &decoy).expect("random numbers");
    let (exchange, answer) = begun;
    assert!(!exchange.username().is_empty());
    assert!(answer.len() < MAX_MESSAGE_BYTES && answer.is_ascii(), "{answer}");
    // The nonce is not the corpus', so that nothing of an earlier exchange is accepted.
    let nonce = answer.split(',').next().unwrap_or_default();
    let last = String::from_utf8_lossy(last).replace("r=NONCE", nonce);
    assert!(exchange.finish(last.as_bytes()).is_err(), "accepted without the password");
}

/// Gives a client the first line as the server's first message, and the rest as its last one.
pub fn client(data: &[u8]) {
    let cut = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (answer, end) = (&data[..cut], data.get(cut + 1..).unwrap_or_default());
    let (exchange, first) = ClientExchange::begin("ann", b"secret").expect("random numbers");
    let nonce = first.split_once(",r=").expect("a nonce").1;
    let answer = String::from_utf8_lossy(answer).replace("NONCE", nonce);
    // What takes long does so on purpose, but not here.
    if answer.split(",i=").nth(1).is_some_and(|count| !count.starts_with("4096")) {
        return;
    }
    let Ok((last, proof, _)) = exchange.answer(answer.as_bytes(), None) else { return };
    assert!(last.contains(nonce) && last.len() < 2 * MAX_MESSAGE_BYTES, "{last}");
    assert!(proof.check(end).is_err(), "a server without the verifier is trusted");
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn seeds() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
        fulmar_mqtt_fuzz::replay(seeds.join("scram-server"), server);
        fulmar_mqtt_fuzz::replay(seeds.join("scram-client"), client);
    }
}
