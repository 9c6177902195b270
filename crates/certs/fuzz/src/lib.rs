//! Fuzz target of `fulmar-certs`: lists of revoked certificates.

use std::path::Path;

use fulmar_certs::revocation::parse_revocation_lists;

/// A file, in DER or PEM. What is a list is one again on its own, with the same contents.
pub fn revocation(data: &[u8]) {
    let path = Path::new("crl.pem");
    let Ok(lists) = parse_revocation_lists(path, data.to_vec()) else { return };
    assert!(!lists.is_empty());
    for list in lists {
        let again = parse_revocation_lists(path, list.der.to_vec());
        let [again] = &again.expect("a list")[..] else { panic!("one list") };
        assert_eq!(again.der, list.der);
        assert_eq!((&again.revoked, again.next_update), (&list.revoked, list.next_update));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/certs-revocation");
        fulmar_mqtt_fuzz::replay(&folder, revocation);
    }
}
